"""A command as it meets its session, before it is decided.

Rule: what happens before any decision (the user is noted, time-outs apply) happens here, once.
"""

from __future__ import annotations

import msgspec

from routing_service.core import approvals, ownership, strands
from routing_service.core.commands import (
    AddNote,
    CancelTask,
    ClaimTurn,
    ClearActiveAgent,
    Command,
    CompleteTurn,
    Erase,
    Expire,
    KeepTurn,
    ReleaseTurn,
    ResumeTask,
    RouteMessage,
    Say,
)
from routing_service.core.draft import Draft
from routing_service.core.errors import session_erased, unknown_session
from routing_service.core.kept_moves import settle_session
from routing_service.core.people import person_with
from routing_service.core.queued_messages import Blocker, blocking_turn
from routing_service.core.registry import Registry, WhilePaused
from routing_service.core.route_lines import Arrival, RouteLine, choose_line
from routing_service.core.session import OPEN_STATUSES, SessionState
from routing_service.core.slash_commands import (
    MOVING_COMMANDS,
    TASK_COMMANDS,
    ParsedCommand,
    may_be_command,
    parse,
)
from routing_service.core.suggestions import takes_plain_answers


class Case(msgspec.Struct, frozen=True):
    """One command and the draft of its change.

    is_new: the session begins with it. The rest is about messages (Route). mid_task: see
    is_mid_task(). parsed: the command in the text. line, agent_id: of Route, for ordinary text that
    topic detection does not send elsewhere; None, "" for a command and for an answer to a
    suggestion. blocked_by: because of which this registry refuses the message, or lets it wait.
    origin: the session before, where the draft's is seen from a parked task. otherwise: the same
    message as the first of another task, if it is no plain answer to the open suggestion.
    """

    draft: Draft
    command: Command
    is_new: bool
    mid_task: bool = False
    parsed: ParsedCommand | None = None
    line: RouteLine | None = None
    agent_id: str = ""
    blocked_by: Blocker | None = None
    origin: SessionState | None = None
    otherwise: Case | None = None


_OF_A_SESSION = (
    ClearActiveAgent,
    CancelTask,
    CompleteTurn,
    KeepTurn,
    ClaimTurn,
    ReleaseTurn,
    Say,
    AddNote,
    ResumeTask,
)
"""Commands that no session can begin with."""


def open_case(
    state: SessionState | None,
    command: Command,
    registry: Registry,
    now_us: int,
    *,
    session_id: str,
) -> Case:
    """Bring a command before a session. Pure.

    state: None for a session without any change. now_us: microseconds since 1970; if the clock is
    behind the session's last change, that change's time counts.
    Raises RoutingError SESSION_ERASED, UNKNOWN_SESSION.
    """
    if state is None:
        if isinstance(command, _OF_A_SESSION):
            raise unknown_session(session_id)
    elif state.erased and not isinstance(command, Expire | Erase):
        raise session_erased(session_id)
    draft = Draft(state, session_id, registry, now_us)
    if isinstance(command, RouteMessage):
        return _receive(draft, command, is_new=state is None)
    if draft.state.apart is not None:
        task_id = strands.chosen_task(draft.state, command)
        if task_id:
            strands.work_on(draft, task_id, command)
            return Case(draft, command, is_new=False, origin=state)
    return Case(draft, command, is_new=state is None)


def is_mid_task(state: SessionState) -> bool:
    """Say whether a message would come in the middle of a task.

    A task that only a command opened has had no message yet, so no message is in the middle of it.
    """
    task = state.task
    return task is not None and task.status in OPEN_STATUSES and state.newest_turn != ""


def _receive(draft: Draft, command: RouteMessage, *, is_new: bool) -> Case:
    """Note the user, apply time-outs, and find the line of Route."""
    ownership.meet_user(draft, command.profile, is_new=is_new)
    if draft.state.approval is not None:
        approvals.expire(draft)
    ownership.expire_turns(draft)
    if draft.state.apart is not None:
        _arrive(draft, command)
    if command.is_stale and draft.state.active is not None and draft.state.paused is None:
        ownership.clear(draft, "timeout", "stale: stickiness was off meanwhile")
    if draft.state.meanwhile is not None and command.stickiness_enabled:
        settle_session(draft)
    mid_task = is_mid_task(draft.state)
    if command.quick_reply_id:
        ownership.expire_ownership(draft)
        return Case(draft, command, is_new, mid_task)
    # Most messages have no slash anywhere; to see that is cheaper than to parse them.
    if may_be_command(command.text) and not command.literal_text:
        parsed = _parsed(draft, command)
        if parsed is not None:
            # Commands see the lock and the active agent before their time-outs: /supervisor ends
            # them anyway, and /status only shows what would expire.
            return Case(draft, command, is_new, mid_task, parsed)
    blocked_by: Blocker | None = None
    # While an approval is pending no turn can move anything, so none is in the way.
    # Nor is a person's: people read all that the user has written.
    if (
        draft.registry.is_one_at_a_time
        and draft.state.paused is None
        and not person_with(draft.state, draft.registry)
    ):
        blocked_by = blocking_turn(draft.state, draft.registry)
    expired = ownership.expire_ownership(draft)
    if draft.registry.begins_tasks and strands.begins_task(draft, command):
        return _begin(draft, command, is_new=is_new, expired=expired)
    arrival = Arrival(draft, draft.state, command.stickiness_enabled, expired)
    line = choose_line(arrival)
    return Case(draft, command, is_new, mid_task, None, line, line.agent(arrival), blocked_by)


def _begin(draft: Draft, command: RouteMessage, *, is_new: bool, expired: bool) -> Case:
    """Let a message begin a task of its own; a plain answer to a suggestion is still to be one."""
    own = draft.fork()
    strands.leave_task(own)
    arrival = Arrival(own, own.state, command.stickiness_enabled, expired)
    line = choose_line(arrival)
    begun = Case(own, command, is_new, mid_task=False, line=line, agent_id=line.agent(arrival))
    if command.items or command.task_id or takes_plain_answers(draft.state) is None:
        return begun
    arrival = Arrival(draft, draft.state, command.stickiness_enabled, expired)
    line = choose_line(arrival)
    mid_task = is_mid_task(draft.state)
    return Case(draft, command, is_new, mid_task, None, line, line.agent(arrival), otherwise=begun)


def _arrive(draft: Draft, command: RouteMessage) -> None:
    """Let a message come to the task that it is about, in a session with parked tasks."""
    parsed = None
    if not (command.literal_text or command.quick_reply_id):
        parsed = _parsed(draft, command)
    leaves_alone = parsed is not None and parsed.name not in MOVING_COMMANDS
    strands.arrive(draft, command, is_command=leaves_alone)


def _parsed(draft: Draft, command: RouteMessage) -> ParsedCommand | None:
    """Return the command that a message is; None for ordinary text."""
    parsed = parse(command.text, draft.registry.command_words)
    if parsed is None or parsed.name not in TASK_COMMANDS:
        return parsed
    # Where no task is ever parked, these are ordinary words.
    registry = draft.registry
    parks = registry.while_paused is WhilePaused.PARK or registry.begins_tasks
    return parsed if parks or draft.state.apart is not None else None
