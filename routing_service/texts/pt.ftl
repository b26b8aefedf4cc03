# O que o próprio serviço diz aos usuários, em português. Os nomes e as descrições dos agentes vêm do
# registro. As mensagens e suas variáveis são as mesmas de en.ftl.

## /supervisor

supervisor-done = Você está de novo com { $home_the }, no lugar { $agent_of }.
supervisor-none-active = Você já está com { $home_the }.

ask-about = { $count ->
    [one] É isto que você pode perguntar:
   *[other] Estas são as coisas que você pode perguntar:
}
ask-freely = Diga do que você precisa.
ask-what = Do que você precisa?

## /reset

reset-done = Vamos começar de novo: o que estava pendente foi cancelado, e { $home_the } recebe a sua próxima mensagem.

## /agents

agents-head = { $count ->
    [one] Há um agente que pode ajudar você:
   *[other] Há { $count } agentes que podem ajudar você:
}
agents-none = Aqui { $home_the } recebe todas as mensagens; não há mais ninguém para escolher.
agents-active-mark = (você está falando com este)
agents-select = { $count ->
    [one] Para falar diretamente com { $name_the }, digite { $agent_command } { $agent_id }
   *[other] Para falar diretamente com um deles, digite { $agent_command } e a palavra entre colchetes, por exemplo { $agent_command } { $agent_id }
}
agents-ask = É só perguntar: { $home_the } chama quem for preciso.
agents-next-page = Para ver mais, digite { $agents_command } { $page }

## Listas

list-item = - { $label }: { $description }
list-item-plain = - { $label }
list-number = { $number }. { $label }: { $description }
list-number-plain = { $number }. { $label }
list-more = { $count ->
    [one] … e mais um
   *[other] … e mais { $count }
}

## /agent

agent-done = Agora você está falando com { $agent_the }.
agent-already-active = Você já está falando com { $agent_the }.
agent-kept = Por enquanto { $home_the } recebe todas as mensagens; depois você falará com { $agent_the }.
agent-refused = { $agent_start } não pode atender você agora.
agent-unknown = Ninguém aqui se chama “{ $written }”.
agent-which = Há mais de um que combina com “{ $written }”. Qual?
agent-by-number = Digite { $agent_command } e o número ou o nome.
agent-no-argument = Com quem você quer falar? Escreva o nome depois do comando.
agent-choices = { $count ->
    [one] Você pode escolher:
   *[other] Você pode escolher entre:
}
agent-no-choices = Não há ninguém que você possa escolher diretamente. { ask-freely }

## Por que um agente foi recusado: uma mensagem para cada regra

rule-enabled = Não está disponível neste momento.
rule-not_system = Não atende diretamente ninguém.
rule-not_active = Já está com a conversa.
rule-from_agent = Outro agente acabou de assumir a conversa. Tente mais uma vez.
rule-handoff_to = O agente com quem você fala não lhe passa conversas.
rule-entitled = Não está incluído no seu plano.
rule-channel = Não está disponível neste canal.
rule-user_selectable = Não pode ser escolhido diretamente; explique do que você precisa, e a conversa será passada quando for o caso.
rule-owns_session = Antes é preciso terminar o que você está fazendo.
rule-owns_session-leave = Antes é preciso terminar o que você está fazendo. Para sair, digite { $supervisor_command }
rule-hop_limit = A sua mensagem já passou por agentes demais.
rule-ping_pong = A sua mensagem está indo e voltando entre dois agentes.
rule-return_stack = Já está esperando que você volte.
rule-return_depth = Já há conversas demais esperando que você volte.
rule-approval_pending = Há algo seu à espera de aprovação.
rule-live_turn = A sua última mensagem ainda está sendo respondida.
rule-other = Não é possível neste momento.

## /status

status-active = Você está falando com { $agent_the }.
status-none-active = Você está com { $home_the }.
status-way-back = Para voltar { $home_to }, digite { $supervisor_command }
status-locked = { $agent_start } espera a sua resposta.
status-returns-to = Depois disso você volta { $next_agent_to }.
status-unavailable = { $agent_start } não está disponível neste momento, por isso { $home_the } recebe as suas mensagens.
status-stickiness_off = Por enquanto { $home_the } recebe todas as mensagens.
status-task_running = A sua tarefa está em andamento.
status-task_paused = A sua tarefa está à espera de aprovação.

## /history

history-head = Esta conversa até agora, por agente:
history-agent = { $count ->
    [one] - { $agent }: uma resposta
   *[other] - { $agent }: { $count } respostas
}
history-others = { $count ->
    [one] - outros: uma resposta
   *[other] - outros: { $count } respostas
}
history-none = Ninguém respondeu a você nesta conversa ainda.
history-latest = As suas últimas mensagens, e quem cuidou delas:
history-message = - “{ $text }”: { $agents }
history-message-plain = - uma mensagem sem texto: { $agents }
history-message-task = - “{ $text }” (tarefa { $number }): { $agents }
history-message-plain-task = - uma mensagem sem texto (tarefa { $number }): { $agents }

## /tasks e /task

tasks-head = { $count ->
    [one] Há uma tarefa em espera:
   *[other] Há { $count } tarefas em espera:
}
tasks-none-parked = Você não tem nenhuma tarefa em espera.
tasks-paused = { $number }. { $label }: à espera de aprovação
tasks-locked = { $number }. { $label }: espera a sua resposta
tasks-running = { $number }. { $label }: em andamento
tasks-select = Para continuar com uma, digite { $task_command } e o número dela, por exemplo { $task_command } { $number }
task-done = Você está de volta com { $agent_the }, onde parou.
task-paused = Você está de volta com { $agent_the }. Esta tarefa continua à espera de aprovação.
task-unknown = Não há nenhuma tarefa “{ $written }” em espera.
task-no-argument = Qual tarefa?
task-refused = Agora você não pode deixar esta conversa por outra tarefa.
task-parked = { $agent_start } espera uma aprovação. Enquanto isso você pode continuar com outra coisa; { $tasks_command } mostra o que está em espera.

## /help

help-head = É isto que você pode digitar:
help-supervisor = { $typed }: voltar { $home_to }. O que você escrever depois é passado adiante.
help-reset = { $typed }: começar de novo. O que está pendente é cancelado.
help-agents = { $typed }: quem pode ajudar você.
help-agent = { $typed } NOME: falar com quem você escolher. O que você escrever depois do nome é passado adiante.
help-status = { $typed }: com quem você está falando.
help-tasks = { $typed }: quais tarefas estão em espera.
help-task = { $typed } NÚMERO: continuar com uma tarefa em espera. O que você escrever depois do número é passado adiante.
help-history = { $typed }: quem respondeu a você até agora.
help-help = { $typed }: esta lista.
help-foot = Todo o resto é uma mensagem para quem está com você.

## Um comando que este registro desativa

command-disabled = { $typed } não está disponível aqui.
command-disabled-help = Digite { $help_command } para ver o que está.

## A oferta de outro agente

suggestion-text = Isto parece ser com { $agent_the }. Você quer mudar?
suggestion-accept = Mudar para { $agent_the }
suggestion-stay = Continuar com { $present_the }
suggestion-spoken = Diga “sim” ou “não”.
suggestion-stays = Você continua com { $agent_the }.

## Aprovações

approval-withdrawn = O que aguardava uma aprovação foi retirado.
approval-expired = A aprovação não chegou a tempo, por isso o que a aguardava foi cancelado.
