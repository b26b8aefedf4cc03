# What the service itself says to users, in English. Agents' names and descriptions come from the
# registry. Every other language has the same messages with the same variables.

# $home is the agent that routes, or in a swarm the one that conversations start with.
# $agent is the agent that the reply is about.
# A name has five forms: $home is the name; $home_the has its article; $home_of and $home_to have the
# preposition too; $home_start begins a sentence. Languages choose the form that they need.
# $typed, $supervisor_command, … are commands as users of the language type them, slash included.

## /supervisor

supervisor-done = { $home } is with you again, in place of { $agent }.
supervisor-none-active = You are with { $home } already.

# Before a list of agents with what each is for.
ask-about = { $count ->
    [one] This is what you can ask about:
   *[other] These are the things you can ask about:
}
ask-freely = Just say what you need.
# After that list.
ask-what = What do you need?

## /reset

reset-done = We start afresh: what was open is cancelled, and { $home } takes your next message.

## /agents

agents-head = { $count ->
    [one] There is one agent who can help you:
   *[other] There are { $count } agents who can help you:
}
agents-none = { $home } takes all messages here; there is no other agent to choose.
agents-active-mark = (you are talking to this one)
# $agent_id is an example: the first agent in the list that may be chosen.
agents-select = { $count ->
    [one] To talk to { $name } directly, type { $agent_command } { $agent_id }
   *[other] To talk to one of them directly, type { $agent_command } and the word in brackets, for example { $agent_command } { $agent_id }
}
agents-ask = Just ask: { $home } brings in the right one.
agents-next-page = For more, type { $agents_command } { $page }

## Lists

# $label is an agent's name, followed by its id where the user may type it.
list-item = - { $label }: { $description }
list-item-plain = - { $label }
list-number = { $number }. { $label }: { $description }
list-number-plain = { $number }. { $label }
list-more = { $count ->
    [one] … and one more
   *[other] … and { $count } more
}

## /agent

agent-done = You are now talking to { $agent }.
agent-already-active = You are already talking to { $agent }.
agent-kept = { $home } takes every message for the time being; after that you talk to { $agent }.
agent-refused = { $agent } cannot take your messages now.
agent-unknown = Nobody here is called “{ $written }”.
agent-which = More than one fits “{ $written }”. Which one?
agent-by-number = Type { $agent_command } and the number or the name.
agent-no-argument = Who would you like to talk to? Write the name after the command.
agent-choices = { $count ->
    [one] You can choose:
   *[other] You can choose one of these:
}
agent-no-choices = There is no one you can choose directly. { ask-freely }

## Why an agent was refused: one message for each rule

rule-enabled = It is not available at the moment.
rule-not_system = Nobody can talk to it directly.
rule-not_active = It already has the conversation.
rule-from_agent = Another agent has just taken over. Please try once more.
rule-handoff_to = The agent you are talking to does not hand over to it.
rule-entitled = Your plan does not include it.
rule-channel = It is not available on this channel.
rule-user_selectable = It cannot be chosen directly; describe what you need, and it is brought in when it can help.
rule-owns_session = What you are doing has to be finished first.
rule-owns_session-leave = What you are doing has to be finished first. To leave it, type { $supervisor_command }
rule-hop_limit = Your message has been passed on too often.
rule-ping_pong = Your message is going back and forth between two agents.
rule-return_stack = It is already waiting for you to come back.
rule-return_depth = Too many conversations are already waiting for you to come back.
rule-approval_pending = Something of yours is waiting for an approval.
rule-live_turn = Your last message is still being answered.
rule-other = That is not possible at the moment.

## /status

status-active = You are talking to { $agent }.
status-none-active = You are with { $home }.
status-way-back = To go back to { $home }, type { $supervisor_command }
status-locked = { $agent } is waiting for your answer.
status-returns-to = After that you go back to { $next_agent }.
status-unavailable = { $agent } cannot be reached at the moment, so { $home } takes your messages.
status-stickiness_off = For the time being { $home } takes every message.
status-task_running = Your task is in progress.
status-task_paused = Your task is waiting for an approval.

## /history

history-head = This conversation so far, by agent:
history-agent = { $count ->
    [one] - { $agent }: one answer
   *[other] - { $agent }: { $count } answers
}
# Of agents that are too many to be named one by one.
history-others = { $count ->
    [one] - others: one answer
   *[other] - others: { $count } answers
}
history-none = Nobody has answered you in this conversation yet.
history-latest = Your latest messages, and who had them:
history-message = - “{ $text }”: { $agents }
history-message-plain = - a message without text: { $agents }
history-message-task = - “{ $text }” (task { $number }): { $agents }
history-message-plain-task = - a message without text (task { $number }): { $agents }

## /tasks and /task

tasks-head = { $count ->
    [one] One task waits:
   *[other] { $count } tasks wait:
}
tasks-none-parked = No task of yours waits.
tasks-paused = { $number }. { $label }: waits for an approval
tasks-locked = { $number }. { $label }: waits for your answer
tasks-running = { $number }. { $label }: in progress
tasks-select = To go on with one, type { $task_command } and its number, such as { $task_command } { $number }
task-done = You are back with { $agent }, where you left off.
task-paused = You are back with { $agent }. This task is still waiting for an approval.
task-unknown = There is no task “{ $written }” that waits.
task-no-argument = Which task?
task-refused = You cannot leave this conversation for another task at the moment.
task-parked = { $agent } is waiting for an approval. Until then you can go on with something else; { $tasks_command } shows what waits.

## /help

help-head = This is what you can type:
help-supervisor = { $typed }: go back to { $home }. What you write after it is passed on.
help-reset = { $typed }: start afresh. What is open is cancelled.
help-agents = { $typed }: who can help you.
help-agent = { $typed } NAME: talk to an agent of your choice. What you write after the name is passed on.
help-status = { $typed }: who you are talking to.
help-tasks = { $typed }: which tasks wait.
help-task = { $typed } NUMBER: go on with a task that waits. What you write after the number is passed on.
help-history = { $typed }: who has answered you so far.
help-help = { $typed }: this list.
help-foot = Anything else is a message to the agent you are talking to.

## A command that this registry switches off

command-disabled = { $typed } is not available here.
command-disabled-help = Type { $help_command } to see what is.

## The offer of another agent

# $agent is the agent that is offered, $present the one that the user is with.
suggestion-text = This sounds like something for { $agent }. Would you like to switch?
suggestion-accept = Switch to { $agent }
suggestion-stay = Stay with { $present }
# On a channel where users speak.
suggestion-spoken = Say “yes” or “no”.
suggestion-stays = You stay with { $agent }.

## Approvals

approval-withdrawn = What was waiting for an approval has been withdrawn.
approval-expired = The approval did not come in time, so what was waiting for it has been cancelled.
