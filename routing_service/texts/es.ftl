# Lo que el propio servicio dice a los usuarios, en español. Los nombres y las descripciones de los
# agentes vienen del registro. Los mensajes y sus variables son los mismos que en en.ftl.

## /supervisor

supervisor-done = Vuelves a estar con { $home_the } en lugar { $agent_of }.
supervisor-none-active = Ya estás con { $home_the }.

ask-about = { $count ->
    [one] Esto es lo que puedes preguntar:
   *[other] Estas son las cosas que puedes preguntar:
}
ask-freely = Cuéntame qué necesitas.
ask-what = ¿Qué necesitas?

## /reset

reset-done = Empezamos de nuevo: lo que estaba pendiente queda cancelado y { $home_the } recibirá tu próximo mensaje.

## /agents

agents-head = { $count ->
    [one] Hay un agente que puede ayudarte:
   *[other] Hay { $count } agentes que pueden ayudarte:
}
agents-none = Aquí { $home_the } atiende todos los mensajes; no hay otro agente que elegir.
agents-active-mark = (hablas con este)
agents-select = { $count ->
    [one] Para hablar directamente con { $name_the }, escribe { $agent_command } { $agent_id }
   *[other] Para hablar directamente con uno de ellos, escribe { $agent_command } y la palabra entre corchetes, por ejemplo { $agent_command } { $agent_id }
}
agents-ask = Pregunta sin más: { $home_the } avisará a quien corresponda.
agents-next-page = Para ver más, escribe { $agents_command } { $page }

## Listas

list-item = - { $label }: { $description }
list-item-plain = - { $label }
list-number = { $number }. { $label }: { $description }
list-number-plain = { $number }. { $label }
list-more = { $count ->
    [one] … y uno más
   *[other] … y { $count } más
}

## /agent

agent-done = Ahora hablas con { $agent_the }.
agent-already-active = Ya estás hablando con { $agent_the }.
agent-kept = Por ahora { $home_the } recibe todos los mensajes; después hablarás con { $agent_the }.
agent-refused = { $agent_start } no puede atenderte ahora.
agent-unknown = Aquí nadie se llama «{ $written }».
agent-which = Hay más de uno que encaja con «{ $written }». ¿Cuál?
agent-by-number = Escribe { $agent_command } y el número o el nombre.
agent-no-argument = ¿Con quién quieres hablar? Escribe el nombre después del comando.
agent-choices = { $count ->
    [one] Puedes elegir:
   *[other] Puedes elegir entre:
}
agent-no-choices = No hay nadie a quien puedas elegir directamente. { ask-freely }

## Por qué se rechaza un agente: un mensaje por regla

rule-enabled = No está disponible en este momento.
rule-not_system = No atiende directamente a nadie.
rule-not_active = Ya tiene la conversación.
rule-from_agent = Otro agente acaba de tomar la conversación. Inténtalo otra vez.
rule-handoff_to = El agente con el que hablas no le pasa conversaciones.
rule-entitled = Tu plan no lo incluye.
rule-channel = No está disponible en este canal.
rule-user_selectable = No se puede elegir directamente; explica qué necesitas y se le avisará cuando pueda ayudarte.
rule-owns_session = Antes hay que terminar lo que estás haciendo.
rule-owns_session-leave = Antes hay que terminar lo que estás haciendo. Para dejarlo, escribe { $supervisor_command }
rule-hop_limit = Tu mensaje ha pasado por demasiados agentes.
rule-ping_pong = Tu mensaje va y viene entre dos agentes.
rule-return_stack = Ya está esperando a que vuelvas.
rule-return_depth = Ya hay demasiadas conversaciones esperando a que vuelvas.
rule-approval_pending = Hay algo tuyo pendiente de aprobación.
rule-live_turn = Todavía se está respondiendo a tu último mensaje.
rule-other = En este momento no es posible.

## /status

status-active = Estás hablando con { $agent_the }.
status-none-active = Estás con { $home_the }.
status-way-back = Para volver con { $home_the }, escribe { $supervisor_command }
status-locked = { $agent_start } espera tu respuesta.
status-returns-to = Después volverás con { $next_agent_the }.
status-unavailable = { $agent_start } no está disponible en este momento, así que { $home_the } recibe tus mensajes.
status-stickiness_off = Por ahora { $home_the } recibe todos los mensajes.
status-task_running = Tu tarea está en curso.
status-task_paused = Tu tarea está pendiente de aprobación.

## /history

history-head = Esta conversación hasta ahora, por agente:
history-agent = { $count ->
    [one] - { $agent }: una respuesta
   *[other] - { $agent }: { $count } respuestas
}
history-others = { $count ->
    [one] - otros: una respuesta
   *[other] - otros: { $count } respuestas
}
history-none = Todavía no te ha respondido nadie en esta conversación.
history-latest = Tus últimos mensajes y quién los atendió:
history-message = - «{ $text }»: { $agents }
history-message-plain = - un mensaje sin texto: { $agents }
history-message-task = - «{ $text }» (tarea { $number }): { $agents }
history-message-plain-task = - un mensaje sin texto (tarea { $number }): { $agents }

## /tasks y /task

tasks-head = { $count ->
    [one] Hay una tarea en espera:
   *[other] Hay { $count } tareas en espera:
}
tasks-none-parked = No tienes ninguna tarea en espera.
tasks-paused = { $number }. { $label }: pendiente de aprobación
tasks-locked = { $number }. { $label }: espera tu respuesta
tasks-running = { $number }. { $label }: en curso
tasks-select = Para seguir con una, escribe { $task_command } y su número, por ejemplo { $task_command } { $number }
task-done = Vuelves a estar con { $agent_the }, donde lo dejaste.
task-paused = Vuelves a estar con { $agent_the }. Esta tarea sigue pendiente de aprobación.
task-unknown = No hay ninguna tarea «{ $written }» en espera.
task-no-argument = ¿Qué tarea?
task-refused = Ahora no puedes dejar esta conversación por otra tarea.
task-parked = { $agent_start } espera una aprobación. Mientras tanto puedes seguir con otra cosa; { $tasks_command } muestra lo que está en espera.

## /help

help-head = Esto es lo que puedes escribir:
help-supervisor = { $typed }: volver con { $home_the }. Lo que escribas después se le transmite.
help-reset = { $typed }: empezar de nuevo. Lo que esté pendiente se cancela.
help-agents = { $typed }: quién puede ayudarte.
help-agent = { $typed } NOMBRE: hablar con quien elijas. Lo que escribas después del nombre se le transmite.
help-status = { $typed }: con quién estás hablando.
help-tasks = { $typed }: qué tareas están en espera.
help-task = { $typed } NÚMERO: seguir con una tarea en espera. Lo que escribas después del número se le transmite.
help-history = { $typed }: quién te ha respondido hasta ahora.
help-help = { $typed }: esta lista.
help-foot = Todo lo demás es un mensaje para quien te atiende.

## Un comando que este registro desactiva

command-disabled = { $typed } no está disponible aquí.
command-disabled-help = Escribe { $help_command } para ver qué lo está.

## La oferta de otro agente

suggestion-text = Esto parece cosa { $agent_of }. ¿Quieres cambiar?
suggestion-accept = Cambiar { $agent_to }
suggestion-stay = Seguir con { $present_the }
suggestion-spoken = Di «sí» o «no».
suggestion-stays = Sigues con { $agent_the }.

## Aprobaciones

approval-withdrawn = Lo que esperaba una aprobación se ha retirado.
approval-expired = La aprobación no llegó a tiempo, así que se ha cancelado lo que la esperaba.
