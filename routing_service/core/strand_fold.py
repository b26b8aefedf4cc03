"""How a session's tasks change places: parked, brought forward, worked on where they are.

Rule: a state between two changes has its foreground in its own fields, and nothing put aside. The
time of a lock stands still while its task is parked.
"""

from __future__ import annotations

from typing import Final, assert_never

from msgspec.structs import replace

from routing_service.core import events as ev
from routing_service.core.session import (
    Apart,
    Approval,
    OpenTurn,
    SessionState,
    Strand,
    Task,
    Tenure,
)

NOTHING_APART: Final = Apart()

_OF_A_STRAND: Final = tuple(
    name for name in Strand.__struct_fields__ if name not in ("number", "since_us")
)


def apart_of(state: SessionState) -> Apart:
    """Return what the session has besides its foreground."""
    return state.apart or NOTHING_APART


def turns_of(strand: Strand) -> tuple[OpenTurn, ...]:
    """Return all turns of a parked task that may still be answered or decided."""
    return (*strand.open_turns, strand.paused) if strand.paused else strand.open_turns


def every_open_turn(state: SessionState) -> tuple[OpenTurn, ...]:
    """Return the open turns of the foreground and of the parked tasks."""
    parked = apart_of(state).parked
    return (*state.open_turns, *(turn for strand in parked for turn in strand.open_turns))


def find_strand(state: SessionState, task_id: str) -> Strand | None:
    """Return a parked task."""
    for strand in apart_of(state).parked:
        if strand.task_id == task_id:
            return strand
    return None


def open_or_last(state: SessionState) -> list[Task]:
    """Return the parked tasks and the foreground's, which may be closed."""
    parked = state.apart.parked if state.apart is not None else ()
    return [task for task in (*(strand.task for strand in parked), state.task) if task is not None]


def parked_views(state: SessionState) -> list[tuple[Strand, SessionState]]:
    """Return each parked task with the session as it is seen from there."""
    return [(strand, _with(state, strand, apart_of(state))) for strand in apart_of(state).parked]


def with_shared_tasks(state: SessionState) -> SessionState:
    """Note in each open task that another one is open too: a task began next to parked ones."""
    apart, task = apart_of(state), state.task
    assert task is not None
    parked = tuple(
        replace(each, task=replace(each.task, shared=True)) if each.task else each
        for each in apart.parked
    )
    return replace(state, task=replace(task, shared=True), apart=replace(apart, parked=parked))


def has_own_history(state: SessionState, task_id: str) -> bool:
    """Say whether the agents of a task are sent its own turns alone.

    They are from the moment at which another task is open too, until the task is closed.
    """
    # A session in which a task was ever parked has had work; most messages pay only for this.
    return state.has_work and any(
        task.shared and task.task_id == task_id for task in open_or_last(state)
    )


def task_of_next(state: SessionState) -> str | None:
    """Return the task whose turns alone a message without task_id is read with.

    None: all turns of the session. "": none, because the message begins a task next to others.
    """
    task = state.open_task
    if task is None:
        return "" if apart_of(state).parked else None
    return task.task_id if has_own_history(state, task.task_id) else None


def with_own_history(events: tuple[ev.Event, ...], state: SessionState) -> tuple[ev.Event, ...]:
    """Note in the events of a change what their dispatches are sent with: a repeat gets the same.

    state: after the change.
    """
    return tuple(
        replace(event, own_history=True)
        if isinstance(event, ev.MessageRouted | ev.AgentHandedOff | ev.TaskResumed)
        and has_own_history(state, event.task_id)
        else event
        for event in events
    )


def seen_from(state: SessionState, task_id: str) -> SessionState:
    """Return the session as it is seen from a task; from the foreground if it is not parked."""
    strand = find_strand(state, task_id) if state.apart is not None else None
    return _with(state, strand, apart_of(state)) if strand is not None else state


def live_turn(strand: Strand) -> OpenTurn | None:
    """Return the one turn of a parked task that may still move something."""
    for turn in strand.open_turns:
        if turn.root_request_id == strand.newest_turn and turn.epoch == strand.epoch:
            return turn
    return None


def evolve_strands(
    state: SessionState, event: ev.TaskParked | ev.TaskForegrounded | ev.StrandChosen
) -> SessionState:
    """Change which task is in the session's own fields."""
    match event:
        case ev.TaskParked():
            return _park(state, event)
        case ev.TaskForegrounded():
            return _bring_forward(state, event)
        case ev.StrandChosen():
            return _choose(state, event)
        case _:
            assert_never(event)


def _park(state: SessionState, event: ev.TaskParked) -> SessionState:
    """Park the foreground. What follows begins without a task and with the home agent.

    Where the task parks by its pause, what waited behind its turn goes on without it.
    """
    told = _untold(state.approval)
    stays = state.queued if event.cause == "paused" else ()
    parked = replace(
        _strand(state, event.number, state.update_us),
        suggestion=None,
        expired=False,
        sent_home=False,
        approval=None if told else state.approval,
        queued=() if stays else state.queued,
    )
    # The next turn of the foreground is in a newer epoch than those that were parked.
    fresh = Strand(
        epoch=state.epoch + 1, previous_agent=state.previous_agent, approval=told, queued=stays
    )
    state = replace(state, has_work=True)  # Its form is 2 from now on.
    return _with(state, fresh, Apart((*apart_of(state).parked, parked)))


def _bring_forward(state: SessionState, event: ev.TaskForegrounded) -> SessionState:
    """Replace the foreground by a parked task. What it leaves of messages joins that task."""
    strand = find_strand(state, event.task_id)
    assert strand is not None
    kept = tuple(each for each in apart_of(state).parked if each is not strand)
    apart = Apart(
        kept,
        parks_again=strand.paused is not None,
        freed_revision=state.revision if event.cause == "freed" else 0,
    )
    return _with(state, _joined(_awake(strand, state.update_us), state), apart)


def _choose(state: SessionState, event: ev.StrandChosen) -> SessionState:
    """Work on a parked task as on a foreground; task_id "": give the foreground back its place.

    A task that is closed by then leaves the session; what waited in it goes on in the foreground.
    """
    apart = apart_of(state)
    if event.task_id:
        strand = find_strand(state, event.task_id)
        assert strand is not None
        assert apart.aside is None
        aside = replace(apart, aside=_strand(state, 0, 0))
        return _with(state, _awake(strand, state.update_us), aside)
    assert apart.aside is not None
    assert state.task is not None
    task_id = state.task.task_id
    foreground = apart.aside if state.open_task is not None else _joined(apart.aside, state)
    parked = []
    for each in apart.parked:
        if each.task_id != task_id:
            parked.append(each)
        elif state.open_task is not None:
            parked.append(_strand(state, each.number, state.update_us))
    return _with(state, foreground, replace(apart, parked=tuple(parked), aside=None))


def without_freed(state: SessionState) -> SessionState:
    """Forget when the question in the foreground came forward: it waits no more."""
    apart = state.apart
    if apart is None or not apart.freed_revision or apart.aside is not None:
        return state
    apart = replace(apart, freed_revision=0)
    return replace(state, apart=None if apart == NOTHING_APART else apart)


def _joined(strand: Strand, left: SessionState) -> Strand:
    """Return a task with the messages and the untold end of an approval that another one leaves."""
    told = _untold(left.approval) if strand.approval is None else None
    if not (left.queued or told):
        return strand
    queued = (*strand.queued, *left.queued)
    return replace(strand, queued=queued, approval=told or strand.approval)


def _untold(approval: Approval | None) -> Approval | None:
    """Return the end of an approval that the user is still to be told of."""
    return approval if approval is not None and approval.ended else None


def _strand(state: SessionState, number: int, since_us: int) -> Strand:
    """Return the task in the session's own fields."""
    values = {name: getattr(state, name) for name in _OF_A_STRAND}
    return Strand(number=number, since_us=since_us, **values)


def _with(state: SessionState, strand: Strand, apart: Apart) -> SessionState:
    """Put a task into the session's own fields."""
    values = {name: getattr(strand, name) for name in _OF_A_STRAND}
    return replace(state, apart=None if apart == NOTHING_APART else apart, **values)


def _awake(strand: Strand, now_us: int) -> Strand:
    """Return a parked task with the time of its locks running on."""
    passed_us = max(0, now_us - strand.since_us)
    active = strand.active
    return replace(
        strand,
        active=_later(active, passed_us) if active else None,
        stack=tuple(_later(frame, passed_us) for frame in strand.stack),
    )


def _later(tenure: Tenure, passed_us: int) -> Tenure:
    if tenure.lock_expire_us is None:
        return tenure
    return replace(tenure, lock_expire_us=tenure.lock_expire_us + passed_us)
