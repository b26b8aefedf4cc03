# Lo que los usuarios responden a la oferta de otro agente, por clases (véase plain_answers.py).

yes =
    sí | si | claro | claro que sí | por supuesto | desde luego | obvio | obviamente | seguro |
    exacto | exactamente | correcto | afirmativo | sip | sep | sí quiero | quiero | eso | eso es |
    así es | cómo no | con gusto | encantado | encantada | me interesa | venga | vamos | dale | dale
    pues | ándale | órale | sale | va | va que va | adelante | acepto | confirmo | confirmado |
    bueno sí | creo que sí | yo creo que sí | me parece bien | me parece | está bien | de una |
    hágale | todo bien | por fa sí | que sí | sí señor | sí señora | sí claro | sí sí
fine =
    ok | okay | okey | oki | okis | vale | de acuerdo | perfecto | genial | estupendo | excelente |
    bien | muy bien | listo | bueno | buenísimo | bacán | bakán | chévere | guay | súper | fenomenal
    | conforme | fantástico | buena idea | joya
switch =
    cambia | cambiar | cámbiame | cambiemos | cambie | cámbieme | cambiamos | cambio | quiero
    cambiar | quiero el cambio | hazlo | hágalo | hazlo ya | hacelo | háganlo | conéctame |
    conécteme | conectame | conecta | conectar | conéctanos | pásame | páseme | pasame | pásalo |
    pasemos | transfiéreme | transfiérame | transfiere | transferir | derívame | derivame | deriva |
    comunícame | comuníqueme | ponme | póngame | llévame | lléveme | quiero hablar | quiero que me
    pases | quiero que me cambies | puedes cambiar | puedes cambiarme | prefiero cambiar | mejor
    cambia | mejor cambiar | me paso | vamos allá | sigue adelante
please =
    por favor | porfa | porfis | porfavor | por fa | plis | si eres tan amable | si puedes | si es
    posible | te lo agradezco
thanks =
    gracias | muchas gracias | mil gracias | muchísimas gracias
filler =
    ah | oh | eh | pues | bueno | mmm | mm | hm | hmm | jaja | uy | ay | entonces | ya | ahora |
    ahora mismo | ahorita | de una vez | mejor | hola | amigo | amiga | señor | señora | eso sí | yo
    | pero | y | pues bueno
no =
    no | nop | nopes | nel | nah | na | ni hablar | para nada | de ninguna manera | claro que no |
    por supuesto que no | mejor no | no quiero | no quiero cambiar | no cambies | no cambiar | no me
    cambies | no hace falta | no es necesario | no necesito | no lo necesito | no me interesa |
    ahora no | por ahora no | todavía no | aún no | de momento no | en otro momento | más tarde |
    después | luego | otro día | negativo | paso | prefiero no | creo que no | no creo | no por
    ahora | tampoco | nunca | cancelar | cancela | no lo hagas | no hagas nada | déjalo | déjelo |
    dejalo | déjalo así | deja | ninguno | ninguna | no todavía | no aún | no ahora | qué va | no
    señor | no señora | no no | mejor más tarde | mejor después | mejor luego
stay =
    seguir | sigue | sigamos | seguimos | sigo | sigo aquí | continuar | continúa | continuemos |
    continuamos | quedarme | me quedo | me quedo aquí | quédate | quedémonos | prefiero seguir |
    prefiero quedarme | prefiero continuar | quiero seguir | quiero quedarme | seguir aquí | sigue
    aquí | mejor seguir | mejor seguimos | aquí | acá | así | como estaba | como estamos | igual |
    estoy bien | estoy bien aquí | contigo | con usted | prefiero
link =
    a | al | a la | a los | a las | con | con el | con la | el | la | los | las | de | del | para |
    hacia | en | que me | me | opción | opcion | número | numero | el número | la opción | por
first =
    uno | el primero | la primera | primero | primera | el uno | la uno | el 1 | la 1 | opción 1 |
    número 1
second =
    dos | el segundo | la segunda | segundo | segunda | el dos | la dos | el 2 | la 2 | opción 2 |
    número 2
