"""Several open tasks in a session: which one a command is about, and how they change places.

Rule: a decision is made on one task, as if it were the session's only one. This module chooses it
before, and puts everything back in its place after.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from routing_service.core import approvals, ownership
from routing_service.core import events as ev
from routing_service.core.abandon import drop_overtaken
from routing_service.core.commands import (
    Abandon,
    AddNote,
    CancelTask,
    ClearActiveAgent,
    Command,
    CompleteTurn,
    Decision,
    KeepTurn,
    ReportDegraded,
    ResumeTask,
    RouteMessage,
    Say,
    SetActiveAgent,
)
from routing_service.core.deadlines import deadline_us
from routing_service.core.draft import Draft
from routing_service.core.errors import Reason, RoutingError, request_id_of_another, task_closed
from routing_service.core.inbox import overtaken_of_task
from routing_service.core.people import person_with, unclaimed_due_us
from routing_service.core.registry import Registry, WhilePaused
from routing_service.core.session import SessionState, Strand
from routing_service.core.strand_fold import apart_of, find_strand, live_turn, turns_of
from routing_service.core.unclaimed import give_back_unclaimed
from routing_service.core.vocabulary import TaskStatus

PARKED_MAX: Final = 8
"""Parked tasks of a session. Eight with full return stacks make a state of 7.1 KB with ids of 20
characters and 14.5 KB with the longest, of 128 (tests/unit/core/test_bounds.py)."""

PARKED_TURNS_MAX: Final = 2
"""Open turns that a task keeps when it is parked: the live one and one that was overtaken."""


def holder_of(strand: Strand, registry: Registry) -> str:
    """Return the agent that a parked task is with: it waits, is active, or has its turn."""
    live = live_turn(strand)
    if strand.paused is not None:
        return strand.paused.holder
    if strand.active is not None:
        return strand.active.agent_id
    return live.holder if live is not None else registry.home_agent_id


def chosen_task(state: SessionState, command: Command) -> str:
    """Return the parked task that a command is about; "" for the foreground."""
    match command:
        case ResumeTask() | CancelTask():
            strand = find_strand(state, command.task_id)
            return strand.task_id if strand else ""
        case Say(request_id="") | AddNote():
            strand = find_strand(state, command.task_id) if command.task_id else None
            return strand.task_id if strand else ""
        case CompleteTurn() | KeepTurn() | Say() | Abandon():
            request_id = command.request_id
        case SetActiveAgent() | ClearActiveAgent():
            if command.task_id:
                strand = find_strand(state, command.task_id)
                return strand.task_id if strand else ""
            request_id = command.turn_request_id if isinstance(command, SetActiveAgent) else ""
        case _:
            return ""
    if not request_id:
        return ""
    for strand in apart_of(state).parked:
        if any(turn.request_id == request_id for turn in strand.open_turns):
            return strand.task_id
    return ""


def work_on(draft: Draft, task_id: str, command: Command) -> None:
    """Begin to decide about a parked task; nothing of the change may be decided yet.

    A call about one of its turns finds it as it is by now: closed if its time has passed.
    """
    draft.add(ev.StrandChosen(task_id))
    before = draft.before
    draft.before = replace(
        draft.state,
        revision=before.revision,
        update_us=before.update_us,
        used_us=before.used_us,
    )
    if isinstance(command, CompleteTurn | KeepTurn | Say | SetActiveAgent):
        ownership.expire_waits(draft)
        if draft.state.open_task is None:
            _abandon_all(draft)


def is_apart(draft: Draft) -> bool:
    """Say whether the change is being decided about a parked task."""
    return apart_of(draft.state).aside is not None


def put_back(draft: Draft, *, keeps: bool = False) -> None:
    """End the work on a parked task.

    A task that is closed leaves with its turns; one with nothing pending is completed by it.
    keeps: it waits on for the user.
    """
    state = draft.state
    task = state.open_task
    if task is not None and not keeps and not is_pending(state):
        agent_id = state.active_id or state.previous_agent
        draft.add(ev.TaskCompleted(task_id=task.task_id, agent_id=agent_id, summary=""))
    if draft.state.open_task is None:
        _abandon_all(draft)
    aside = apart_of(draft.state).aside
    assert aside is not None
    first = max(
        place for place, event in enumerate(draft.events) if isinstance(event, ev.StrandChosen)
    )
    draft.add(ev.StrandChosen())
    # All along the conversation was with the agent of the foreground.
    active_id = aside.active.agent_id if aside.active else ""
    draft.active_after[first:] = [active_id] * (len(draft.active_after) - first)


def _abandon_all(draft: Draft) -> None:
    """Close the turns of a task that is closed."""
    task = draft.state.task
    is_cancelled = task is not None and task.status is TaskStatus.CANCELLED
    ownership.abandon_all(draft, "cancelled" if is_cancelled else "overtaken")


def is_pending(state: SessionState) -> bool:
    """Say whether anything waits in the task that is decided about: else it ends by being left.

    A turn that was overtaken is nothing to wait for: its answer could move nothing.
    """
    active = state.active
    return bool(
        state.paused
        or state.live_turn
        or state.queued
        or state.stack
        or state.meanwhile
        or (active is not None and active.locked)
    )


def owned_in_task(draft: Draft) -> bool:
    """Say whether an agent that owns the session is in the middle of its task."""
    state = draft.state
    if state.open_task is None:
        return False
    holders = [frame.agent_id for frame in state.stack]
    holders += [state.active_id] if state.active_id else []
    holders += [state.paused.holder] if state.paused else []
    return any(draft.agent(agent_id).owns_session for agent_id in holders)


def may_park_paused(draft: Draft) -> bool:
    """Say whether a task that has just been paused is to be parked."""
    return (
        draft.registry.while_paused is WhilePaused.PARK
        and not is_apart(draft)
        and len(apart_of(draft.state).parked) < PARKED_MAX
        and not owned_in_task(draft)
    )


def park(draft: Draft, cause: str) -> None:
    """Park the foreground's open task, with its latest turns. Older ones are abandoned."""
    state = draft.state
    task = state.open_task
    assert task is not None
    own = [turn for turn in state.open_turns if turn.task_id == task.task_id]
    for turn in state.open_turns:
        if turn not in own:
            ownership.abandon(draft, turn, "overtaken")  # Of a task that was closed before.
        elif turn not in own[-PARKED_TURNS_MAX:]:
            ownership.abandon(draft, turn, "limit")
    taken = {strand.number for strand in apart_of(state).parked}
    number = next(n for n in range(1, PARKED_MAX + 2) if n not in taken)
    holder = state.paused.holder if state.paused else ""
    draft.add(
        ev.TaskParked(
            task_id=task.task_id, number=number, cause=cause, agent_id=state.active_id or holder
        )
    )


def bring(draft: Draft, strand: Strand, cause: str) -> None:
    """Bring a parked task forward. The present one is parked, or ends if nothing of it waits."""
    task = draft.state.open_task
    if task is not None and is_pending(draft.state):
        park(draft, cause if cause != "freed" else "message")
    elif task is not None:
        agent_id = draft.state.active_id or draft.registry.home_agent_id
        draft.add(ev.TaskCompleted(task_id=task.task_id, agent_id=agent_id, summary=""))
    _abandon_all(draft)  # Of a task that was closed.
    draft.add(
        ev.TaskForegrounded(
            task_id=strand.task_id,
            agent_id=holder_of(strand, draft.registry),
            cause=cause,
            locked=strand.is_locked,
        )
    )


def begins_task(draft: Draft, command: RouteMessage) -> bool:
    """With tasks: new, say whether a message begins a task of its own although one is open.

    One that names no task joins the open one if something there waits for it.
    """
    state = draft.state
    task = state.open_task
    if task is None or command.quick_reply_id:
        return False
    has_room = len(apart_of(state).parked) < PARKED_MAX or not is_pending(state)
    if command.task_id:
        is_other = command.task_id != task.task_id
        return is_other and has_room and not owned_in_task(draft)
    waits = (
        state.paused
        or state.live_turn
        or state.queued
        or (state.active is not None and state.active.locked)
        or person_with(state, draft.registry)
        or owned_in_task(draft)
    )
    return command.stickiness_enabled and has_room and not waits


def leave_task(draft: Draft) -> None:
    """Make room for a task that begins: what is left is parked, or ends if nothing of it waits."""
    task = draft.state.open_task
    assert task is not None
    if is_pending(draft.state):
        park(draft, "message")
        return
    agent_id = draft.state.active_id or draft.registry.home_agent_id
    draft.add(ev.TaskCompleted(task_id=task.task_id, agent_id=agent_id, summary=""))
    if draft.state.active is not None:
        ownership.clear(draft, "complete", "superseded")


def why_not_begun(draft: Draft, task_id: str) -> RoutingError | None:
    """Return why a message that names a new task cannot begin it; None for a user's command."""
    if owned_in_task(draft):
        return _held(draft, task_id)
    parked = apart_of(draft.state).parked
    if len(parked) < PARKED_MAX or not is_pending(draft.state):
        return None
    return RoutingError(
        Reason.TASKS_OPEN,
        f"{len(parked)} tasks of this session are parked, which is the most; finish or cancel one "
        f'before "{task_id}" begins, or leave task_id out to join the open one',
        metadata={
            "session_id": draft.state.session_id,
            "task_id": task_id,
            "tasks_max": str(PARKED_MAX),
        },
    )


def arrive(draft: Draft, command: RouteMessage, *, is_command: bool) -> None:
    """Bring forward the task that a message names, or park again one that it does not name.

    So is a question that came forward by itself after the user had written the message.

    is_command: it is one that leaves the foreground as it is, such as /status.
    Raises RoutingError REQUEST_ID_REUSED for the request of a parked task; TASK_OPEN if an agent
    that owns the session holds the foreground; TASK_CLOSED for a task that expires by now.
    """
    for each in apart_of(draft.state).parked:
        if any(turn.request_id == command.request_id for turn in turns_of(each)):
            raise request_id_of_another(draft.state.session_id, command.request_id)
    was_parked = command.task_id and find_strand(draft.state, command.task_id) is not None
    expire_parked(draft)
    parked = apart_of(draft.state).parked
    strand = find_strand(draft.state, command.task_id) if was_parked else None
    if was_parked and strand is None:
        raise task_closed(draft.state.session_id, command.task_id, "cancelled")
    if is_command:
        return
    if strand is not None:
        if owned_in_task(draft):
            raise _held(draft, command.task_id)
        bring(draft, strand, "message")
        return
    if command.task_id or command.quick_reply_id or len(parked) >= PARKED_MAX:
        return
    apart, state = apart_of(draft.state), draft.state
    was_brought = apart.parks_again and state.paused is not None
    is_unseen = (
        command.shown_revision is not None
        and command.shown_revision < apart.freed_revision
        and state.active is not None
        and state.active.locked
        and state.open_task is not None
    )
    if was_brought or is_unseen:
        park(draft, "message")


def finish(
    draft: Draft, command: Command, decision: Decision, origin: SessionState | None
) -> Decision:
    """End a decision of a session with parked tasks. origin: of Case."""
    if not decision.events:
        return decision
    if is_apart(draft):
        if len(draft.events) == 1:
            return replace(decision, events=())  # Nothing but the choice.
        # A handoff between turns, and a clear, only say who goes on with the task.
        moves = isinstance(command, SetActiveAgent) and not command.turn_request_id
        put_back(draft, keeps=moves or isinstance(command, ClearActiveAgent))
    if not isinstance(command, _NOT_FREEING) and getattr(command, "stickiness_enabled", True):
        was_free = origin is not None or is_free(draft.before)
        if is_free(draft.state) and (isinstance(command, CompleteTurn) or not was_free):
            decision = _free(draft, command, decision)
    return replace(decision, events=tuple(draft.events))


_NOT_FREEING: Final = (RouteMessage, ReportDegraded)
"""A user's own command brings no question forward: who asks for the home agent is not to answer
another agent next. What a client decided alone moves nothing."""


def is_free(state: SessionState) -> bool:
    """Say whether nothing in the foreground has the conversation or waits there."""
    return not (
        state.active or state.open_turns or state.queued or state.suggestion or state.paused
    )


def _free(draft: Draft, command: Command, decision: Decision) -> Decision:
    """Bring the oldest question forward."""
    parked = apart_of(draft.state).parked
    asking = next((s for s in parked if s.is_locked and not s.paused), None)
    if asking is None:
        return decision
    bring(draft, asking, "freed")
    if isinstance(command, ClearActiveAgent | CancelTask):
        # It gets the next message.
        return replace(decision, agent_id=draft.state.active_id)
    return decision


def expire_parked(
    draft: Draft, child_seed: str = "", *, stickiness_enabled: bool = True, is_own: bool = False
) -> None:
    """Apply the time-outs of parked tasks: turns, approvals, the task's own, the time parked.

    child_seed: see approvals.expire. is_own: the change is the service's own, which knows what
    workers have.
    """
    for strand in apart_of(draft.state).parked:
        due_us = parked_due_us(strand, draft.registry)
        if draft.now_us < due_us:
            continue
        first, state = len(draft.events), draft.state
        draft.add(ev.StrandChosen(strand.task_id))
        ownership.expire_waits(draft, child_seed)
        if is_own:
            drop_overtaken(draft)
        give_back_unclaimed(draft, child_seed, strand.number, stickiness_enabled=stickiness_enabled)
        is_over = draft.now_us >= strand.since_us + draft.registry.limits.parked_timeout_us
        task = draft.state.open_task
        if is_over and task is not None:
            for turn in draft.state.open_turns:
                ownership.abandon(draft, turn, "timeout")
            approvals.withdraw(draft, "expired")
            draft.add(ev.TaskCancelled(task_id=task.task_id, cause="expired"))
            ownership.clear(draft, "timeout")
        if len(draft.events) > first + 1:
            put_back(draft)
        else:  # An approval whose rejection is the service's own change.
            del draft.events[first:], draft.active_after[first:]
            draft.state = state


def cancel_parked(draft: Draft, cause: str) -> None:
    """Cancel every parked task."""
    for strand in apart_of(draft.state).parked:
        draft.add(ev.StrandChosen(strand.task_id))
        ownership.clear_all(draft, cause)
        put_back(draft)


def parked_due_us(strand: Strand, registry: Registry) -> int:
    """Return when something of a parked task falls due. Idle and lock time-outs stand still."""
    limits = registry.limits
    times = [strand.since_us + limits.parked_timeout_us]
    times += [
        deadline_us(turn, registry)
        for turn in strand.open_turns
        if turn.holder not in registry.people
    ]
    if strand.task is not None and strand.task.expire_us is not None:
        times.append(strand.task.expire_us)
    if strand.approval is not None and strand.approval.expire_us is not None:
        times.append(strand.approval.expire_us)
    unclaimed_us = unclaimed_due_us(strand, registry)
    if unclaimed_us is not None:
        times.append(unclaimed_us)
    if strand.open_turns and overtaken_of_task(strand, registry):
        times.append(strand.since_us)
    return min(times)


def _held(draft: Draft, task_id: str) -> RoutingError:
    task = draft.state.open_task
    held_id = task.task_id if task else ""
    return RoutingError(
        Reason.TASK_OPEN,
        f'task "{held_id}" is with an agent that owns the session until it is done, the request '
        f'names "{task_id}"; finish or reset the open one first, or leave task_id out to join it',
        metadata={
            "session_id": draft.state.session_id,
            "open_task_id": held_id,
            "task_id": task_id,
        },
    )
