# Lo que dicen los agentes de la plataforma.

welcome = ¡Hola! Puedo encargar un informe o el despliegue de una versión. ¿Qué será?
what-about = ¿Será un informe o un despliegue?
goodbye = ¡Hasta la próxima!
refused = No puedo pasarlo: eso necesita a alguien de operaciones.
to-analyst = La analista lo mira.
to-deployer = La desplegadora sigue desde aquí.

report-no-files = Envíeme los archivos con el mensaje y escribo el informe.
report-which = He leído los { $files } archivos ({ $kinds }). ¿De qué trimestre es el informe?
report-done = Aquí está el informe del { $quarter }: las ventas suben un 8 % y las devoluciones bajan.
report-unsure = Entonces tomo el último trimestre. ¿Está bien?
latest = último trimestre

deploy-which = ¿Qué versión despliego?
deploy-approval = La versión { $version } está lista. Necesito una aprobación antes de seguir.
deploy-prompt = ¿Desplegar la versión { $version } en producción ({ $when })?
deploy-waiting = Nadie ha decidido todavía; sigo en cuanto alguien lo haga.
deploy-rejected = La versión { $version } se queda donde está: «{ $comment }». ¿Cuándo lo intento de nuevo?
deploy-done = La versión { $version } está en producción.
now = ahora
no-comment = sin motivo
