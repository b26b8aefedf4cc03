"""How people see the answers of RoutingService.

Its rule: users' text is shown literally, never as markup or terminal control.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from agent_routing.v1.agent_pb2 import Agent, AgentKind
from agent_routing.v1.dispatch_pb2 import Dispatch
from agent_routing.v1.handoff_pb2 import Handoff, HandoffMode, Initiator, Verdict
from agent_routing.v1.route_reason_pb2 import RouteReason
from agent_routing.v1.routing_service_pb2 import (
    CancelTaskResponse,
    ClearActiveAgentResponse,
    CompleteTurnResponse,
    ListAgentsResponse,
    ParkedTask,
    PendingApproval,
    RouteResponse,
    SetActiveAgentResponse,
    StatusResponse,
    TopicOutcome,
    TopicTrace,
)
from agent_routing.v1.task_pb2 import TaskStatus
from agent_routing.v1.turn_pb2 import OutcomeStatus, Turn, TurnOutcome
from routing_service.cli.screen import agent_text, console, grid, time_text, word
from routing_service.telemetry.terminal_text import seen

_ARROW: Final = " → "


def reason_words(reason: RouteReason.ValueType) -> str:
    """Return a route reason as text: "follow up lock"."""
    return word(RouteReason.DESCRIPTOR, reason, "ROUTE_REASON_")


def handoff_line(handoff: Handoff) -> Text:
    """Return a handoff on one line: both agents, the initiator, and the mode if unusual."""
    line = Text()
    line.append_text(agent_text(getattr(handoff, "from")))
    line.append(_ARROW)
    line.append_text(agent_text(handoff.to))
    by = word(Initiator.DESCRIPTOR, handoff.initiator, "INITIATOR_")
    mode = word(HandoffMode.DESCRIPTOR, handoff.mode, "HANDOFF_MODE_")
    # A refused handoff has no mode: none was applied.
    is_usual = mode in ("transfer", "unspecified")
    line.append(f"  by {by}" + ("" if is_usual else f", {mode}"), style="dim")
    return line


def refused_rules(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return the verdicts of rules that refuse."""
    return [verdict for verdict in verdicts if not verdict.allowed]


def print_agents(answer: ListAgentsResponse) -> None:
    """Print a registry's agents with their notes and descriptions."""
    out = console()
    for agent in answer.agents:
        line = agent_text(agent)
        line.append(f"  {', '.join(_notes(agent, answer.home_agent_id))}", style="not bold dim")
        out.print(line)
        if agent.description:
            out.print(Padding(Text(seen(agent.description)), (0, 0, 0, 2), expand=False))
    count = len(answer.agents)
    out.print(f"{count} agent{'s' * (count != 1)}, registry {answer.registry_version}", style="dim")


def _notes(agent: Agent, home_agent_id: str) -> list[str]:
    notes = (
        (word(AgentKind.DESCRIPTOR, agent.kind, "AGENT_KIND_"), True),
        ("home", agent.agent_id == home_agent_id),
        ("users may pick it", agent.user_selectable),
        ("disabled", not agent.enabled),
    )
    return [note for note, holds in notes if holds]


def print_status(answer: StatusResponse) -> None:
    """Print the state of a session."""
    table = grid()
    table.add_row("session", Text(f"{seen(answer.session_id)}, revision {answer.revision}"))
    table.add_row("active agent", _active(answer))
    if answer.next_agent.agent_id != answer.active_agent.agent_id:
        table.add_row("next message", Text("to ").append_text(agent_text(answer.next_agent)))
    for frame in reversed(answer.return_stack):
        line = agent_text(frame.agent)
        line.append(", which waits for an answer" if frame.locked else "", style="dim")
        table.add_row("returns to", line)
    if answer.HasField("task"):
        table.add_row("task", _task(answer))
    for parked in answer.parked_tasks:
        table.add_row("parked task", _parked(parked))
    for request in answer.open_requests:
        table.add_row("open request", _open_request(request))
    if answer.turns_by_agent:
        counts = sorted(answer.turns_by_agent.items(), key=lambda item: (-item[1], item[0]))
        table.add_row(
            "turns", Text(", ".join(f"{seen(agent_id)} {count}" for agent_id, count in counts))
        )
    whose = ", ".join(filter(None, (answer.owner, answer.locale, answer.channel)))
    if whose:
        table.add_row("user", Text(seen(whose)))
    table.add_row(
        "began", f"{time_text(answer.create_time)}, changed {time_text(answer.update_time)}"
    )
    table.add_row("registry", Text(seen(answer.registry_version)))
    console().print(table)


def _active(answer: StatusResponse) -> Text:
    if not answer.HasField("active_agent"):
        return Text("none")
    line = agent_text(answer.active_agent)
    if answer.locked:
        line.append(", waits for an answer", style="yellow")
        if answer.HasField("lock_expire_time"):
            line.append(f" until {time_text(answer.lock_expire_time)}", style="yellow")
    return line


def pending_approvals(answer: StatusResponse) -> list[PendingApproval]:
    """Return what waits for an approval in a session: in the conversation, then in parked tasks."""
    front = [answer.pending_approval] if answer.HasField("pending_approval") else []
    parked = [task for task in answer.parked_tasks if task.HasField("pending_approval")]
    return [*front, *(task.pending_approval for task in parked)]


def _parked(parked: ParkedTask) -> Text:
    line = Text(f"{parked.number}  {parked.task.task_id}  ").append_text(agent_text(parked.agent))
    if parked.HasField("pending_approval"):
        line.append(", waits for an approval", style="yellow")
    elif parked.locked:
        line.append(", waits for an answer", style="yellow")
    return line


def _task(answer: StatusResponse) -> Text:
    task = answer.task
    line = Text(f"{task.task_id}  {word(TaskStatus.DESCRIPTOR, task.status, 'TASK_STATUS_')}")
    if task.HasField("expire_time"):
        line.append(f", expires {time_text(task.expire_time)}", style="dim")
    for key, value in sorted(task.metadata.items()):
        line.append(f"\n{seen(key)}={seen(value)}", style="dim")
    return line


def _open_request(request: Dispatch) -> Text:
    line = Text(f"{request.request_id}  waits for ")
    line.append_text(agent_text(request.agent))
    line.append(f"  {reason_words(request.reason)}", style="dim")
    return line


def print_turns(turns: Iterable[Turn]) -> None:
    """Print turns in their order, each as soon as it is read."""
    out = console()
    shown_request_id = ""
    count = 0
    for count, turn in enumerate(turns, 1):
        # Consecutive turns may share a message; it is shown once.
        follows = shown_request_id in (turn.request_id, turn.parent_request_id)
        if turn.user_text and not (follows and count > 1):
            when = time_text(turn.create_time)
            out.print(Text("user", style="bold").append(f"  {when}", style="not bold dim"))
            out.print(Padding(Text(seen(turn.user_text)), (0, 0, 0, 2), expand=False))
        shown_request_id = turn.request_id
        out.print(_turn_heading(turn))
        for said in filter(None, (turn.agent_text, turn.handoff_message)):
            out.print(Padding(Text(seen(said)), (0, 0, 0, 2), expand=False))
    if not count:
        out.print("no turns", style="dim")


def _turn_heading(turn: Turn) -> Text:
    line = Text(seen(turn.agent_id), style="bold")
    notes = [reason_words(turn.reason)]
    if turn.from_agent_id:
        notes.append(f"from {seen(turn.from_agent_id)}")
    if turn.outcome:
        notes.append(word(TurnOutcome.DESCRIPTOR, turn.outcome, "TURN_OUTCOME_"))
    else:
        notes.append("not answered yet")
    status = word(OutcomeStatus.DESCRIPTOR, turn.outcome_status, "OUTCOME_STATUS_")
    if status in ("stored only", "degraded"):
        notes.append(status)
    if turn.HasField("response_duration"):
        notes.append(f"{turn.response_duration.ToTimedelta().total_seconds():.3f} s")
    line.append(f"  {', '.join(notes)}", style="not bold dim")
    return line


def print_routed(answer: RouteResponse) -> None:
    """Print where a message was routed."""
    out = console()
    if answer.HasField("reply"):
        out.print(Text(seen(answer.reply.text)))
    if answer.HasField("dispatch"):
        _print_dispatch(answer.dispatch)
        out.print("the supervisor was not asked" * answer.supervisor_bypassed, style="dim", end="")
        out.print("\n" * answer.supervisor_bypassed, end="")
    if answer.HasField("suggestion"):
        out.print(Text(seen(answer.suggestion.text)))
        for option in answer.suggestion.options:
            out.print(
                Text(f"  {seen(option.label)}  ").append(f"--quick-reply {option.id}", style="dim")
            )
    if answer.HasField("topic_trace"):
        _print_topic(answer.topic_trace)
    table = grid()
    table.add_row("session", Text(f"{seen(answer.session_id)}, revision {answer.revision}"))
    if answer.HasField("dispatch"):
        table.add_row("request", Text(answer.dispatch.request_id))
    out.print(table)


def _print_topic(trace: TopicTrace) -> None:
    """Print what topic detection found, with its figures."""
    outcome = word(TopicOutcome.DESCRIPTOR, trace.outcome, "TOPIC_OUTCOME_")
    line = f"topic: {outcome}"
    if trace.candidates:
        best = trace.candidates[0]
        line += f", {best.agent_id} {best.confidence:.2f} of {trace.threshold:.2f}"
        line += f", staying {trace.stay:.2f}"
    console().print(Text(line, style="dim"))


def _print_dispatch(dispatch: Dispatch) -> None:
    out = console()
    if dispatch.HasField("handoff"):
        out.print(handoff_line(dispatch.handoff))
        if dispatch.handoff.message:
            out.print(Padding(Text(seen(dispatch.handoff.message)), (0, 0, 0, 2), expand=False))
    line = Text("to ")
    line.append_text(agent_text(dispatch.agent))
    line.append(f"  {reason_words(dispatch.reason)}", style="dim")
    if dispatch.locked:
        line.append(", which waits for this answer", style="dim")
    out.print(line)


def print_completed(answer: CompleteTurnResponse) -> None:
    """Print the result of a completed turn."""
    out = console()
    status = word(OutcomeStatus.DESCRIPTOR, answer.outcome_status, "OUTCOME_STATUS_")
    style = "green" if status == "applied" else "yellow"
    out.print(Text(status, style=style).append(f", revision {answer.revision}", style="dim"))
    _print_refusals(refused_rules(answer.verdicts))
    table = grid()
    if answer.HasField("active_agent"):
        line = agent_text(answer.active_agent)
        line.append(", waits for an answer" if answer.locked else "", style="yellow")
        table.add_row("active agent", line)
    else:
        table.add_row("active agent", "none")
    table.add_row("task", word(TaskStatus.DESCRIPTOR, answer.task_status, "TASK_STATUS_"))
    out.print(table)
    if answer.HasField("next"):
        out.print("the message goes on:")
        _print_dispatch(answer.next)
        out.print(Text(f"request {answer.next.request_id}", style="dim"))


def print_handoff(answer: SetActiveAgentResponse, *, is_trial: bool) -> None:
    """Print a handoff, or the verdict of each rule if is_trial."""
    out = console()
    if is_trial:
        refusing = refused_rules(answer.verdicts)
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("rule", no_wrap=True)
        table.add_column("says", no_wrap=True)
        table.add_column("why", overflow="fold")
        for verdict in answer.verdicts:
            says = Text("yes", "green") if verdict.allowed else Text("no", "bold red")
            table.add_row(verdict.rule, says, Text(seen(verdict.detail)))
        out.print(table)
        names = ", ".join(verdict.rule for verdict in refusing)
        out.print(f"refused by {names}" if refusing else "allowed; nothing was changed")
        return
    out.print(handoff_line(answer.handoff))
    out.print(f"revision {answer.revision}", style="dim")


def print_cleared(answer: ClearActiveAgentResponse | CancelTaskResponse) -> None:
    """Print the agent that gets the next message after a clear or a cancellation."""
    line = agent_text(answer.agent)
    line.append(" gets the next message")
    if answer.HasField("previous_agent"):
        line.append("; before: ").append_text(agent_text(answer.previous_agent))
    line.append(f"  revision {answer.revision}", style="dim")
    console().print(line)


def _print_refusals(refusing: Sequence[Verdict]) -> None:
    for verdict in refusing:
        console().print(Text(f"{verdict.rule}: {seen(verdict.detail)}", style="yellow"))
