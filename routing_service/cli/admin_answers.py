"""How people see the answers of AdminService, tasks and decisions.

Its rule, as in answers.py: users' text is shown literally, never as markup or terminal control.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from agent_routing.v1.admin_service_pb2 import (
    AuditRecord,
    GetStickinessResponse,
    ListEventsResponse,
    ListSessionsResponse,
    ReloadAgentsResponse,
    SetStickinessResponse,
    StickinessSource,
)
from agent_routing.v1.routing_service_pb2 import ResumeTaskResponse
from agent_routing.v1.session_event_pb2 import Change, SessionEvent
from agent_routing.v1.task_pb2 import Task, TaskStatus
from routing_service.cli.answers import handoff_line, reason_words, refused_rules
from routing_service.cli.screen import agent_text, console, count_of, time_text, word
from routing_service.telemetry.terminal_text import seen

BRIEF_ID_CHARACTERS: Final = 20


def print_sessions(answer: ListSessionsResponse) -> None:
    """Print sessions, one line each."""
    out = console()
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("session", "owner", "active agent", "task", "channel", "changed"):
        table.add_column(name, overflow="fold", no_wrap=name == "changed")
    for session in answer.sessions:
        active = Text("none", style="dim")
        if session.HasField("active_agent"):
            active = agent_text(session.active_agent)
            active.append(", waits" if session.locked else "", style="yellow")
        table.add_row(
            Text(seen(session.session_id)),
            Text(seen(session.owner)),
            active,
            word(TaskStatus.DESCRIPTOR, session.task_status, "TASK_STATUS_")
            if session.task_id
            else "",
            Text(seen(session.channel)),
            time_text(session.update_time),
        )
    if answer.sessions:
        out.print(table)
    _print_count(len(answer.sessions), "session", more=bool(answer.next_page_token))


def print_records(answer: ListEventsResponse, *, of_session: str) -> None:
    """Print audit records, one line each. of_session: the session that was named, or ""."""
    out = console()
    for record in answer.records:
        out.print(_record_line(record, with_session=not of_session), soft_wrap=True)
    _print_count(len(answer.records), "event", more=bool(answer.next_page_token))
    if of_session and not answer.records:
        # The audit does not say whether a session exists: one that was erased may have records.
        where = (
            f'nothing of session "{seen(of_session)}" matches; agent-routing sessions lists them'
        )
        out.print(Text(where, "dim"), soft_wrap=True)


def print_change(change: Change, tenant: str, *, with_session: bool) -> None:
    """Print a change, one line for each event, and flush."""
    out = console()
    for event in change.events:
        line = event_line(event, with_session=with_session)
        if tenant and tenant != "default":
            line.append(f"  tenant {seen(tenant)}", style="dim")
        out.print(line, soft_wrap=True)
    sys.stdout.flush()


def known_kinds() -> list[str]:
    """Return the kinds of events, by the contract's names."""
    return [field.name for field in SessionEvent.DESCRIPTOR.oneofs_by_name["kind"].fields]


def _record_line(record: AuditRecord, *, with_session: bool) -> Text:
    line = event_line(record.event, with_session=with_session)
    if record.HasField("unreadable"):
        line.append(f"  unreadable: {record.unreadable.reason}", style="bold red")
    if record.actor:
        line.append(f"  by {seen(record.actor)}", style="dim")
    return line


def event_line(event: SessionEvent, *, with_session: bool, is_brief: bool = False) -> Text:
    """Return an event on one line. brief: without the day and the end of a long id."""
    time, session_id = time_text(event.event_time), seen(event.session_id)
    if is_brief:
        time = time[len("2026-01-01 ") : -len(" UTC")]
        if len(session_id) > BRIEF_ID_CHARACTERS:
            session_id = f"{session_id[: BRIEF_ID_CHARACTERS - 1]}…"
    line = Text(f"{time}  ", style="dim")
    if with_session:
        line.append(f"{session_id}  ", style="not dim")
    line.append(f"{event.revision}  ")
    kind = event.WhichOneof("kind") or "unknown to this release"
    style = "not dim bold red" if kind == "handoff_refused" else "not dim bold"
    line.append(kind.replace("_", " "), style=style)
    told = _what(event, kind)
    if told:
        line.append("  ").append_text(told)
    return line


def _what(event: SessionEvent, kind: str) -> Text:
    """Return the details of an event after its kind."""
    line = Text(style="not dim")
    match kind:
        case "message_routed":
            line.append("to ").append_text(agent_text(event.message_routed.agent))
            line.append(f"  {reason_words(event.message_routed.reason)}", style="dim")
        case "agent_handoff":
            line.append_text(handoff_line(event.agent_handoff.handoff))
        case "handoff_refused":
            line.append_text(handoff_line(event.handoff_refused.handoff))
            rules = [verdict.rule for verdict in refused_rules(event.handoff_refused.verdicts)]
            line.append(f"  refused by {', '.join(rules)}", style="red")
        case "command_handled":
            line.append(seen(event.command_handled.command))
        case "agent_cleared":
            line.append_text(agent_text(event.agent_cleared.previous_agent))
        case "stickiness_switched":
            switched = event.stickiness_switched
            line.append(_on(switched.enabled))
            if switched.reason:
                line.append(f"  {seen(switched.reason)}", style="dim")
        case "operator_act":
            line.append(f"{seen(event.operator_act.method)}  {seen(event.operator_act.target)}")
            line.append(f"  {seen(event.operator_act.reason)}", style="dim")
        case "audit_sealed":
            line.append(f"seal {event.audit_sealed.seal}  hash {seen(event.audit_sealed.hash)}")
        case "session_erased" | "session_purged":
            line.append(seen(getattr(event, kind).reason), style="dim")
        case "unknown to this release":
            pass
        case _:
            body = getattr(event, kind)
            fields = {field.name for field, _ in body.ListFields()}
            if "agent" in fields:
                line.append_text(agent_text(body.agent))
            if kind == "turn_completed":
                outcome = body.DESCRIPTOR.fields_by_name["outcome"].enum_type
                line.append(f"  {word(outcome, body.outcome, 'TURN_OUTCOME_')}", style="dim")
            elif "task_id" in fields:
                line.append(f"  task {seen(body.task_id)}", style="dim")
    return line


def print_tasks(tasks: Sequence[Task]) -> None:
    """Print a session's tasks."""
    out = console()
    for task in tasks:
        line = Text(seen(task.task_id), style="bold")
        line.append(f"  {word(TaskStatus.DESCRIPTOR, task.status, 'TASK_STATUS_')}", "not bold")
        times = f"  began {time_text(task.create_time)}, changed {time_text(task.update_time)}"
        if task.HasField("expire_time"):
            times += f", expires {time_text(task.expire_time)}"
        line.append(times, style="not bold dim")
        out.print(line, soft_wrap=True)
        for key, value in sorted(task.metadata.items()):
            out.print(Text(f"  {seen(key)}={seen(value)}", style="dim"))
    _print_count(len(tasks), "task", more=False)


def print_resumed(answer: ResumeTaskResponse, decision: str) -> None:
    """Print the agent that continues after a decision."""
    out = console()
    said = "approved" if decision == "approve" else "rejected"
    out.print(Text(said, "green").append(f", revision {answer.revision}", "dim"))
    if not answer.HasField("dispatch"):
        if decision == "approve" and answer.decisions < answer.decisions_needed:
            said = f"{answer.decisions} of {answer.decisions_needed} people have approved"
        else:
            said = "decided; the agent goes on"
        out.print(Text(said, style="dim"))
        return
    line = Text("to ").append_text(agent_text(answer.dispatch.agent))
    line.append(f"  {reason_words(answer.dispatch.reason)}", style="dim")
    out.print(line)
    out.print(Text(f"request {answer.dispatch.request_id}", style="dim"))


def print_reloaded(answer: ReloadAgentsResponse, *, is_trial: bool) -> None:
    """Print what a reload changed, or would change if is_trial."""
    out = console()
    changed = (
        ("added", answer.added_agent_ids),
        ("removed", answer.removed_agent_ids),
        ("changed", answer.changed_agent_ids),
    )
    verb = "would be" if is_trial else "is"
    out.print(
        Text(
            f"registry {answer.registry_version} {verb} in force; before: "
            f"{answer.previous_registry_version}"
        )
    )
    for what, agent_ids in changed:
        if agent_ids:
            out.print(Text(f"{what}: {', '.join(agent_ids)}"))
    if not any(agent_ids for _, agent_ids in changed):
        out.print("no agent changed", style="dim")
    if answer.changed_settings:
        out.print(Text(f"settings changed: {', '.join(answer.changed_settings)}"))
    if answer.sessions_read or answer.all_sessions_read:
        _print_touched(answer)


def _print_touched(answer: ReloadAgentsResponse) -> None:
    """Print the live sessions that a reload would touch."""
    out = console()
    read = f"{count_of(answer.sessions_read, 'session')} read"
    if not answer.all_sessions_read:
        read += "; there are more, so the counts are too low"
    if not answer.touched:
        out.print(Text(f"no live session has to do with them ({read})", style="dim"))
        return
    removed = set(answer.removed_agent_ids)
    for touched in answer.touched:
        what = "removed" if touched.agent_id in removed else "changed"
        line = Text(f"{seen(touched.agent_id)} ({what}): ", style="bold")
        line.append(
            f"has {count_of(touched.active, 'live session')}, gets {touched.interrupted} back, "
            f"is answering in {touched.answering}",
            style="not bold",
        )
        out.print(line)
        examples = ", ".join(map(seen, touched.example_session_ids))
        out.print(Text(f"  such as {examples}", style="dim"))
    out.print(Text(read, style="dim"))


def print_switched(answer: SetStickinessResponse) -> None:
    """Print whether stickiness is on."""
    now, before = (_on(enabled) for enabled in (answer.enabled, answer.previously_enabled))
    told = f"stickiness is {now}"
    told += f", it was {before}" if answer.HasField("update_time") else " already"
    console().print(told)


def stickiness_text(state: GetStickinessResponse) -> str:
    """Return the state of stickiness in one sentence: what, since when, by whom and why."""
    told = f"stickiness is {_on(state.enabled)}"
    partly = [seen(agent_id) for agent_id in state.agent_ids]
    if state.users_percent:
        partly.append(f"{state.users_percent} % of the users")
    if partly:
        told += f" for {', '.join(partly)} alone"
    if not state.HasField("switch_time"):
        is_setting = state.source == StickinessSource.STICKINESS_SOURCE_SETTING
        return f"{told}, by the {'setting' if is_setting else 'registry'}; nobody has switched it"
    told += f" since {time_text(state.switch_time)}"
    if state.source == StickinessSource.STICKINESS_SOURCE_ALL_TENANTS:
        told += ", for all tenants"
    told += f", by {seen(state.actor) or 'a caller without sign-in'}"
    if state.reason:
        told += f": {seen(state.reason)}"
    if state.enabled != state.start_enabled:
        told += f" (the start value, {_on(state.start_enabled)}, does not count)"
    return told


def print_stickiness(state: GetStickinessResponse) -> None:
    """Print the state of stickiness."""
    console().print(Text(stickiness_text(state)))


def _on(enabled: bool) -> str:  # noqa: FBT001 - a word for a truth value
    return "on" if enabled else "off"


def _print_count(count: int, what: str, *, more: bool) -> None:
    told = f"{count or 'no'} {what}{'s' * (count != 1)}"
    told += "; there are more: --max" * more
    console().print(told, style="dim")
