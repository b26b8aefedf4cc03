# Los mensajes de es.ftl que cambian cuando se trata al usuario de usted. Los demás son los mismos.

supervisor-done = Vuelve a estar con { $home_the } en lugar { $agent_of }.
supervisor-none-active = Ya está con { $home_the }.
ask-about = { $count ->
    [one] Esto es lo que puede preguntar:
   *[other] Estas son las cosas que puede preguntar:
}
ask-freely = Cuénteme qué necesita.
ask-what = ¿Qué necesita?
reset-done = Empezamos de nuevo: lo que estaba pendiente queda cancelado y { $home_the } recibirá su próximo mensaje.
agents-head = { $count ->
    [one] Hay un agente que puede ayudarle:
   *[other] Hay { $count } agentes que pueden ayudarle:
}
agents-active-mark = (habla con este)
agents-select = { $count ->
    [one] Para hablar directamente con { $name_the }, escriba { $agent_command } { $agent_id }
   *[other] Para hablar directamente con uno de ellos, escriba { $agent_command } y la palabra entre corchetes, por ejemplo { $agent_command } { $agent_id }
}
agents-ask = Pregunte sin más: { $home_the } avisará a quien corresponda.
agents-next-page = Para ver más, escriba { $agents_command } { $page }
agent-done = Ahora habla con { $agent_the }.
agent-already-active = Ya está hablando con { $agent_the }.
agent-kept = Por ahora { $home_the } recibe todos los mensajes; después hablará con { $agent_the }.
agent-refused = { $agent_start } no puede atenderle ahora.
agent-by-number = Escriba { $agent_command } y el número o el nombre.
agent-no-argument = ¿Con quién quiere hablar? Escriba el nombre después del comando.
agent-choices = { $count ->
    [one] Puede elegir:
   *[other] Puede elegir entre:
}
agent-no-choices = No hay nadie a quien pueda elegir directamente. Cuénteme qué necesita.
rule-from_agent = Otro agente acaba de tomar la conversación. Inténtelo otra vez.
rule-handoff_to = El agente con el que habla no le pasa conversaciones.
rule-entitled = Su plan no lo incluye.
rule-user_selectable = No se puede elegir directamente; explique qué necesita y se le avisará cuando pueda ayudarle.
rule-owns_session = Antes hay que terminar lo que está haciendo.
rule-owns_session-leave = Antes hay que terminar lo que está haciendo. Para dejarlo, escriba { $supervisor_command }
rule-hop_limit = Su mensaje ha pasado por demasiados agentes.
rule-ping_pong = Su mensaje va y viene entre dos agentes.
rule-return_stack = Ya está esperando a que vuelva.
rule-return_depth = Ya hay demasiadas conversaciones esperando a que vuelva.
rule-approval_pending = Hay algo suyo pendiente de aprobación.
rule-live_turn = Todavía se está respondiendo a su último mensaje.
status-active = Está hablando con { $agent_the }.
status-none-active = Está con { $home_the }.
status-way-back = Para volver con { $home_the }, escriba { $supervisor_command }
status-locked = { $agent_start } espera su respuesta.
status-returns-to = Después volverá con { $next_agent_the }.
status-unavailable = { $agent_start } no está disponible en este momento, así que { $home_the } recibe sus mensajes.
status-task_running = Su tarea está en curso.
status-task_paused = Su tarea está pendiente de aprobación.
history-none = Todavía no le ha respondido nadie en esta conversación.
history-latest = Sus últimos mensajes y quién los atendió:
tasks-none-parked = No tiene ninguna tarea en espera.
tasks-locked = { $number }. { $label }: espera su respuesta
tasks-select = Para seguir con una, escriba { $task_command } y su número, por ejemplo { $task_command } { $number }
task-done = Vuelve a estar con { $agent_the }, donde lo dejó.
task-paused = Vuelve a estar con { $agent_the }. Esta tarea sigue pendiente de aprobación.
task-refused = Ahora no puede dejar esta conversación por otra tarea.
task-parked = { $agent_start } espera una aprobación. Mientras tanto puede seguir con otra cosa; { $tasks_command } muestra lo que está en espera.
help-task = { $typed } NÚMERO: seguir con una tarea en espera. Lo que escriba después del número se le transmite.
help-head = Esto es lo que puede escribir:
help-supervisor = { $typed }: volver con { $home_the }. Lo que escriba después se le transmite.
help-agents = { $typed }: quién puede ayudarle.
help-agent = { $typed } NOMBRE: hablar con quien elija. Lo que escriba después del nombre se le transmite.
help-status = { $typed }: con quién está hablando.
help-history = { $typed }: quién le ha respondido hasta ahora.
help-foot = Todo lo demás es un mensaje para quien le atiende.
command-disabled-help = Escriba { $help_command } para ver qué lo está.
suggestion-text = Esto parece cosa { $agent_of }. ¿Quiere cambiar?
suggestion-spoken = Diga «sí» o «no».
suggestion-stays = Sigue con { $agent_the }.
