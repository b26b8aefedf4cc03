"""The invariants of sessions with parked tasks: one foreground, each turn in exactly one task.

They are written separately from the state machine. A change is cut at the events by which tasks
change places; each part between them is about one task, and is checked as if it were the only one.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from routing_service.core import events as ev
from routing_service.core.commands import (
    Command,
    CompleteTurn,
    Decision,
    ResumeTask,
    RouteMessage,
)
from routing_service.core.decide import Decided
from routing_service.core.evolve import apply_change, evolve
from routing_service.core.registry import AgentKind, Registry
from routing_service.core.session import OpenTurn, SessionState, Strand
from routing_service.core.vocabulary import Initiator, OutcomeStatus

PARKED_MAX = 8
QUEUED_MAX = 8
PLACES = (ev.TaskParked, ev.TaskForegrounded, ev.StrandChosen)
_KEPT_WITH_A_TASK = [
    name for name in Strand.__struct_fields__ if name not in ("number", "since_us")
]


class Part(NamedTuple):
    """Events of a change about one task, with the session as it is seen from there."""

    before: SessionState | None
    events: tuple[ev.Event, ...]
    after: SessionState


def views(state: SessionState) -> list[SessionState]:
    """Return the session as it is seen from each task, the foreground's first."""
    parked = state.apart.parked if state.apart else ()
    return [msgspec.structs.replace(state, apart=None), *(_seen(state, one) for one in parked)]


def _seen(state: SessionState, strand: Strand) -> SessionState:
    values = {name: getattr(strand, name) for name in _KEPT_WITH_A_TASK}
    return msgspec.structs.replace(state, apart=None, **values)


def has_parked(before: SessionState | None, state: SessionState) -> bool:
    """Say whether a change begins or ends with parked tasks."""
    return state.apart is not None or (before is not None and before.apart is not None)


def check_places(state: SessionState) -> None:
    """Assert what holds for the tasks of any state, besides what holds for each of them."""
    apart = state.apart
    if apart is None:
        return
    assert apart.aside is None, "the foreground is not in its place"
    assert state.has_work, "a state of format 2 would be written as one of format 1"
    assert len(apart.parked) <= PARKED_MAX
    numbers = [strand.number for strand in apart.parked]
    assert len(set(numbers)) == len(numbers), "one number for two tasks"
    assert all(1 <= number <= PARKED_MAX + 1 for number in numbers)
    open_ids = [view.open_task.task_id for view in views(state) if view.open_task]
    assert len(set(open_ids)) == len(open_ids), "a task is in two places"
    assert all(view.open_task for view in views(state)[1:]), "a closed task is parked"
    requests = [turn.request_id for turn in _turns(state)]
    assert len(set(requests)) == len(requests), "a turn is in two tasks"
    waiting = _queued(state)
    assert len(set(waiting)) == len(waiting) <= QUEUED_MAX
    for strand in apart.parked:
        assert strand.since_us <= state.update_us
        assert {turn.task_id for turn in strand.open_turns} <= {strand.task_id}


def parts_of(
    before: SessionState | None, decision: Decision, state: SessionState, registry_version: str
) -> list[Part]:
    """Cut a change where tasks change places, and assert what each such event does."""
    now = apply_change(
        before,
        (),
        session_id=state.session_id,
        now_us=state.update_us,
        registry_version=registry_version,
    )
    base, parts, held = before, [], []
    for event in decision.events:
        then = evolve(now, event)
        if isinstance(event, PLACES):
            parts.append(Part(base, tuple(held), now))
            _check_place(now, event, then)
            base, held = then, []
        else:
            held.append(event)
        now = then
    parts.append(Part(base, tuple(held), now))
    _check_change(before, decision.events, state)
    return parts


def main_part(parts: list[Part], command: Command, decision: Decision) -> Part:
    """Return the part in which a command is decided: what arranges tasks for it comes before.

    Of a message the last one, of everything else the first with an event.
    """
    if isinstance(command, RouteMessage):
        if decision.dispatch is None:
            said = [part for part in parts if _has(part, ev.CommandHandled, ev.MessageQueued)]
            return said[-1] if said else parts[-1]
        return parts[-1]
    return next((part for part in parts if part.events), parts[0])


def check_begun(
    before: SessionState | None, command: Command, decided: Decided, registry: Registry
) -> None:
    """A message begins a task of its own exactly where the rule of `tasks: new` says so.

    The rule is written again here, on the session as the message finds it: after its time-outs.
    """
    if not isinstance(command, RouteMessage) or before is None:
        return
    now, rest = _as_found(before, decided, registry)
    if any(isinstance(e, ev.CommandHandled | ev.SwitchAnswered) for e in rest) or not rest:
        return
    if any(isinstance(e, ev.TaskForegrounded) for e in rest):
        assert command.task_id, "a message that names no task brought one forward"
        return
    left = [e for e in rest if isinstance(e, ev.TaskParked | ev.TaskCompleted)]
    task = now.open_task
    if task is None:
        assert not left
        return
    has_room = len(_parked(now)) < PARKED_MAX
    is_brought = now.apart is not None and now.apart.parks_again and now.paused is not None
    if not command.task_id and has_room and (is_brought or _is_unseen(now, command)):
        assert [type(e) for e in left] == [ev.TaskParked]
        return
    joins = not command.stickiness_enabled or now.paused is not None
    joins |= _waits(now, registry) or _is_owned(now, registry)
    is_pending = _waits(now, registry, people=False)
    is_pending |= bool(now.stack or now.meanwhile or now.paused)
    begins = registry.begins_tasks and (has_room or not is_pending)
    begins &= command.task_id != task.task_id if command.task_id else not joins
    assert bool(left) == begins, f"tasks: new was not followed: {task}"
    if not begins:
        return
    assert not _is_owned(now, registry), "an owner was left"
    assert isinstance(left[0], ev.TaskParked) == is_pending, "parked and completed are mixed up"
    assert [e.task_id for e in left] == [task.task_id]
    if decided.decision.dispatch is not None:
        assert decided.state.open_task is not None
        named = command.task_id or now.next_task_id or command.new_task_id
        assert decided.state.open_task.task_id == named
        assert not decided.state.stack


def check_freed(before: SessionState | None, command: Command, decided: Decided) -> None:
    """Where a change leaves nothing in the foreground, a parked question takes the place.

    Not for a message: its own command for the home agent is the user's wish.
    """
    state = decided.state
    brought = [e for e in decided.decision.events if isinstance(e, ev.TaskForegrounded)]
    freed = [event for event in brought if event.cause == "freed"]
    assert not (freed and isinstance(command, RouteMessage))
    enabled = getattr(command, "stickiness_enabled", True)
    assert enabled or not freed, "a question came forward while stickiness is off"
    if before is None or not enabled or isinstance(command, RouteMessage | ResumeTask):
        return
    is_new = not _is_free(before) or isinstance(command, CompleteTurn)
    if is_new and _is_free(state):
        asking = [one for one in _parked(state) if one.active and one.active.locked]
        assert all(one.paused for one in asking), "nothing is left, and a question still waits"


def _is_free(state: SessionState) -> bool:
    """Say whether nobody has the conversation, and nothing is at work or offered there."""
    waits = (state.active, state.open_turns, state.queued, state.suggestion, state.paused)
    return not any(waits)


def check_overtaken(before: SessionState | None, decided: Decided, registry: Registry) -> None:
    """With double_text: queue, /task overtakes no turn that a worker may be at work on."""
    now = before
    for event in decided.decision.events if before is not None else ():
        now = evolve(now, event)
        if isinstance(event, ev.TaskForegrounded) and event.cause == "command":
            live = now.live_turn
            if live is None or now.paused or not registry.double_text_queues:
                return
            agent = registry.agents.get(live.holder)
            has_inbox = live.is_delivered or (agent is not None and agent.has_inbox)
            is_person = bool(now.active) and registry.agents[now.active_id].kind is AgentKind.HUMAN
            if has_inbox and not is_person:
                assert decided.decision.dispatch is None, "a worker's turn was overtaken"
            return


def _as_found(
    before: SessionState, decided: Decided, registry: Registry
) -> tuple[SessionState, tuple[ev.Event, ...]]:
    """Return the session after a message's time-outs, and the events from then on."""
    events = decided.decision.events
    now = apply_change(
        before,
        (),
        session_id=before.session_id,
        now_us=decided.now_us,
        registry_version=registry.version,
    )
    inside = False
    for place, event in enumerate(events):
        if isinstance(event, ev.StrandChosen):
            inside = bool(event.task_id)
        elif not inside and _is_the_messages(event):
            return now, events[place:]
        now = evolve(now, event)
    return now, ()


def _is_the_messages(event: ev.Event) -> bool:
    """Say whether an event of a message's change is the message's, and not of a time-out."""
    match event:
        case ev.MessageRouted() | ev.MessageQueued() | ev.CommandHandled() | ev.SwitchAnswered():
            return True
        case ev.TaskCreated() | ev.TaskCompleted() | ev.TaskParked() | ev.TaskForegrounded():
            return True
        case ev.AgentHandedOff():
            return event.initiator is Initiator.TOPIC
        case ev.LockReleased():
            return event.cause == "handoff"
        case ev.TurnAbandoned():
            return event.cause == "limit"
        case _:
            return False


def _waits(state: SessionState, registry: Registry, *, people: bool = True) -> bool:
    """Say whether something in the open task waits for a message. people: they always do."""
    human = {agent.agent_id for agent in registry.agents.values() if agent.kind is AgentKind.HUMAN}
    return bool(
        state.live_turn
        or state.queued
        or (state.active and state.active.locked)
        or (people and state.active and state.active.agent_id in human)
    )


def _is_owned(state: SessionState, registry: Registry) -> bool:
    """Say whether an agent that owns the session has a part in the open task."""
    held = [tenure.agent_id for tenure in (*state.stack, *([state.active] if state.active else []))]
    held += [state.paused.holder] if state.paused else []
    return any(registry.agents[name].owns_session for name in held if name in registry.agents)


def _is_unseen(state: SessionState, command: RouteMessage) -> bool:
    """Say whether a question came forward by itself after the message was written."""
    if command.shown_revision is None or state.apart is None:
        return False
    asked = state.active is not None and state.active.locked
    return asked and command.shown_revision < state.apart.freed_revision


def without_left_task(part: Part, decision: Decision) -> tuple[ev.Event, ...]:
    """Return a part's events without the end of a task that the answer itself does not end.

    A parked one takes its place, or it is parked and has nothing left to wait for.
    """
    events = decision.events
    places = [place for place, e in enumerate(events) if isinstance(e, ev.TaskForegrounded)]
    left = events[places[0] - 1] if places else None
    is_aside = part.before is not None and part.before.apart is not None
    is_aside = is_aside and part.before.apart.aside is not None
    is_stored = decision.status is OutcomeStatus.STORED_ONLY
    return tuple(
        event
        for event in part.events
        if not isinstance(event, ev.TaskCompleted)
        or not (event is left or (is_aside and is_stored))
    )


def _has(part: Part, *kinds: type[ev.Event]) -> bool:
    return any(isinstance(event, kinds) for event in part.events)


def _check_place(before: SessionState, event: ev.Event, after: SessionState) -> None:
    """An event that moves tasks moves all that hangs on them, and nothing else."""
    assert _everything(before) == _everything(after), "a turn or a message was lost or doubled"
    assert before.turns_by_agent == after.turns_by_agent
    assert before.rests == after.rests
    match event:
        case ev.TaskParked():
            assert before.open_task is not None, "a closed task was parked"
            assert before.open_task.task_id == event.task_id
            assert after.task is None
            assert after.active is None
            assert not after.stack
            assert not after.open_turns
            assert after.epoch > before.epoch, "a parked turn could move the foreground"
            assert len(_parked(after)) == len(_parked(before)) + 1
        case ev.TaskForegrounded():
            strand = next(one for one in _parked(before) if one.task_id == event.task_id)
            assert after.open_task == strand.task
            assert after.active_id == (strand.active.agent_id if strand.active else "")
            assert event.locked == bool(after.active and after.active.locked)
            assert after.paused == strand.paused
            assert after.open_turns == strand.open_turns
            assert not before.open_turns, "the turns of a task that was replaced are gone"
            assert len(_parked(after)) == len(_parked(before)) - 1
        case ev.StrandChosen():
            assert bool(event.task_id) == bool(after.apart and after.apart.aside)
            if event.task_id:
                assert after.open_task is not None
                assert after.open_task.task_id == event.task_id
        case _:
            raise AssertionError(event)


def _everything(state: SessionState) -> tuple[list[str], list[str]]:
    """Return all requests that wait for something, and all messages that do."""
    return sorted(turn.request_id for turn in _turns(state)), sorted(_queued(state))


def _turns(state: SessionState) -> list[OpenTurn]:
    aside, chosen = state.apart.aside if state.apart else None, ""
    if aside is not None and state.task is not None:
        chosen = state.task.task_id
    held = [state, *([aside] if aside else [])]
    held += [strand for strand in _parked(state) if strand.task_id != chosen]
    return [
        turn
        for each in held
        for turn in (*each.open_turns, *((each.paused,) if each.paused else ()))
    ]


def _queued(state: SessionState) -> list[str]:
    aside, chosen = state.apart.aside if state.apart else None, ""
    if aside is not None and state.task is not None:
        chosen = state.task.task_id
    held = [state, *([aside] if aside else [])]
    held += [strand for strand in _parked(state) if strand.task_id != chosen]
    return [queued.request_id for each in held for queued in each.queued]


def _parked(state: SessionState) -> tuple[Strand, ...]:
    return state.apart.parked if state.apart else ()


def _check_change(
    before: SessionState | None, events: tuple[ev.Event, ...], state: SessionState
) -> None:
    """Tasks are parked, brought forward and closed by events; all others stay as they were."""
    old = {strand.task_id: strand for strand in (_parked(before) if before else ())}
    new = {strand.task_id: strand for strand in _parked(state)}
    parked = {event.task_id for event in events if isinstance(event, ev.TaskParked)}
    brought = {event.task_id for event in events if isinstance(event, ev.TaskForegrounded)}
    chosen = {event.task_id for event in events if isinstance(event, ev.StrandChosen)}
    closed = {
        event.task_id
        for event in events
        if isinstance(event, ev.TaskCompleted | ev.TaskFailed | ev.TaskCancelled)
    }
    assert set(new) - set(old) <= parked, "a task was parked without an event"
    assert set(old) - set(new) <= brought | closed, "a parked task vanished"
    assert not (set(new) & closed), "a closed task is still parked"
    begins = any(isinstance(event, ev.TaskCreated) for event in events)
    for task_id in set(old) & set(new) - chosen - brought:
        strand = old[task_id]
        if begins and strand.task is not None:
            strand = replace(strand, task=replace(strand.task, shared=True))
        assert new[task_id] == strand, "a task changed that the change is not about"
    marks = [event.task_id for event in events if isinstance(event, ev.StrandChosen)]
    assert all(marks[::2]), "a choice within a choice"
    assert not any(marks[1::2])
    assert len(marks) % 2 == 0, "the foreground was not put back"
    inside, untouched = False, True
    for event in events:
        if isinstance(event, ev.StrandChosen):
            inside = bool(event.task_id)
        elif not inside:
            untouched = False
    if untouched and before is not None:
        assert state.active == before.active, "a parked task moved the conversation"
        assert state.stack == before.stack
        assert state.open_turns == before.open_turns
        assert (state.epoch, state.paused) == (before.epoch, before.paused)
        assert state.queued[: len(before.queued)] == before.queued
