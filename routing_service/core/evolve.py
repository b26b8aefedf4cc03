"""How each event changes a session.

Rule: the state is a fold of the events and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import assert_never

from msgspec.structs import replace

from routing_service.core import events as ev
from routing_service.core.claim_fold import evolve_claim
from routing_service.core.events import ClaimEvent, MessageSaid, NoteAdded, WaitBegun
from routing_service.core.session import (
    OPEN_STATUSES,
    OpenTurn,
    QueuedMessage,
    Rest,
    SessionState,
    Tenure,
    Work,
    work_of_next,
)
from routing_service.core.strand_fold import evolve_strands, without_freed
from routing_service.core.suggestion_fold import evolve_suggestion
from routing_service.core.task_fold import (
    evolve_task,
    other_turns,
    overtaken,
    touched,
    without_approval,
    without_turn,
)
from routing_service.core.vocabulary import HandoffMode

# turns_by_agent is a bounded summary: agents beyond this many, or beyond ids of this length in all,
# share one row. 25 agents have rows of their own with ids of 20 characters, 4 with the longest.
COUNTED_AGENTS_MAX = 64
COUNTED_IDS_CHARS_MAX = 512
OTHER_AGENTS = "other"

# Holders that an open turn remembers. The rules look three back; the rest distinguishes a late
# answer of an earlier holder from a stranger's. Handoffs by operators and to the home agent have no
# other bound.
PATH_MAX = 4

_IN_INBOX = Work(inbox=True)
_NO_WORK = Work()


def apply_change(
    state: SessionState | None,
    events: Iterable[ev.Event],
    *,
    session_id: str,
    now_us: int,
    registry_version: str,
) -> SessionState:
    """Fold one change: the revision grows by one however many events it holds.

    state: None for a session that the change starts (its first event is SessionStarted).
    """
    if state is None:
        state = SessionState(session_id=session_id, revision=0, create_us=now_us, update_us=now_us)
    state = replace(
        state,
        revision=state.revision + 1,
        update_us=now_us,
        registry_version=registry_version,
        used_us=0,
    )
    for event in events:
        state = evolve(state, event)
    return state


def evolve(state: SessionState, event: ev.Event) -> SessionState:
    """Return the state after one event. Every event that decide makes can be applied.

    The two events of every turn come first in the match.
    """
    match event:
        case ev.MessageRouted():
            return _route(state, event)
        case ev.TurnCompleted():
            return _complete(state, event)
        case ev.SessionStarted() | ev.ProfileUpdated():
            return _with_profile(state, event.profile)
        case (
            ev.TaskCreated()
            | ev.TaskCompleted()
            | ev.TaskFailed()
            | ev.TaskCancelled()
            | ev.TaskPaused()
            | ev.TaskResumed()
            | ev.ApprovalRequested()
            | ev.ApprovalVoted()
            | ev.ApprovalDecided()
            | ev.ApprovalWithdrawn()
            | ev.ApprovalExpired()
        ):
            return evolve_task(state, event)
        case ev.CommandHandled():
            return _with_command(state, event)
        case (
            ev.TurnExtended()
            | ev.StepsReported()
            | ev.MessageQueued()
            | ev.MessageDequeued()
            | ev.TurnAbandoned()
            | ev.Claimed()
            | ev.ClaimReleased()
            | ev.TurnAnswered()
            | MessageSaid()
            | NoteAdded()
            | WaitBegun()
        ):
            return touched(_work(state, event))
        case ev.AgentHandedOff():
            return _hand_off(state, event)
        case ev.AgentCleared():
            return _leave(state, event)
        case ev.StickinessExpired():
            return _cleared(state, sent_home=False)
        case ev.LockEngaged() | ev.LockReleased():
            return _lock(state, event) if isinstance(event, ev.LockEngaged) else _unlock(state)
        case ev.SwitchSuggested() | ev.SwitchAnswered():
            return evolve_suggestion(state, event)
        case ev.TimePassed():
            return replace(
                state, used_us=event.last_used_us, expired=state.expired or event.expired
            )
        case ev.TaskParked() | ev.TaskForegrounded() | ev.StrandChosen():
            return evolve_strands(state, event)
        case ev.SessionErased():
            return SessionState(
                session_id=state.session_id,
                revision=state.revision,
                create_us=state.create_us,
                update_us=state.update_us,
                registry_version=state.registry_version,
                erased=True,
                owner_hash=event.owner_hash,
            )
        case _:
            assert_never(event)


def _work(
    state: SessionState,
    event: ev.TurnExtended
    | ev.StepsReported
    | ev.MessageQueued
    | ev.MessageDequeued
    | ev.TurnAbandoned
    | ClaimEvent,
) -> SessionState:
    """Note what was said or claimed of a turn, what waits for its end, or that it was given up."""
    match event:
        case ev.TurnAbandoned():
            return without_turn(state, event.request_id)
        case ev.TurnExtended() | ev.StepsReported():
            return _say(state, event)
        case ev.MessageQueued():
            queued = (*state.queued, QueuedMessage(event.request_id, state.revision))
            return replace(state, queued=queued, has_work=True)
        case ev.MessageDequeued():
            rest = tuple(each for each in state.queued if each.request_id != event.request_id)
            return replace(state, queued=rest)
        case _:
            return evolve_claim(state, event)


def _say(state: SessionState, event: ev.TurnExtended | ev.StepsReported) -> SessionState:
    turn = state.find_turn(event.request_id)
    assert turn is not None
    work = turn.work or _NO_WORK
    match event:
        case ev.TurnExtended():
            work = replace(work, deadline_us=event.deadline_us)
        case ev.StepsReported():
            work = replace(
                work,
                attempt=event.attempt,
                steps=event.first_step + len(event.steps),
                kept=work.kept + len(event.steps),
                kept_bytes=work.kept_bytes + event.steps_bytes,
                reported_us=state.update_us,
            )
        case _:
            assert_never(event)
    task = state.task
    if task is not None and task.task_id == turn.task_id:
        state = replace(state, task=replace(task, update_us=state.update_us))
    changed = replace(turn, work=work)
    turns = tuple(changed if other is turn else other for other in state.open_turns)
    return replace(state, open_turns=turns, has_work=True)


def _with_command(state: SessionState, event: ev.CommandHandled) -> SessionState:
    """Remember what a command's reply has shown."""
    if state.approval is not None and state.approval.ended:
        state = replace(state, approval=None)
    if event.next_task_id:
        state = replace(state, next_task_id=event.next_task_id)
    return replace(state, listed=event.listed) if event.listed else state


def _with_profile(state: SessionState, profile: ev.Profile) -> SessionState:
    """Store what the call says of its user; empty fields leave what is known."""
    return replace(
        state,
        owner=state.owner or profile.user_id,
        locale=profile.locale or state.locale,
        channel=profile.channel or state.channel,
        entitlements=profile.entitlements or state.entitlements,
    )


def _route(state: SessionState, event: ev.MessageRouted) -> SessionState:
    turn = OpenTurn(
        request_id=event.request_id,
        root_request_id=event.request_id,
        message_revision=state.revision,
        task_id=event.task_id,
        holder=event.agent_id,
        epoch=state.epoch,
        path=(event.agent_id,),
        reason=event.reason,
        dispatched_us=state.update_us,
        dispatch_revision=state.revision,
        mid_task=event.mid_task,
    )
    task = state.task
    if task is not None and task.task_id == event.task_id:
        expire_us = task.expire_us if event.task_expire_us is None else event.task_expire_us
        task = replace(task, update_us=state.update_us, expire_us=expire_us)
    if state.approval is not None and state.approval.ended:
        state = replace(state, approval=None)
    if event.inbox:
        turn = replace(turn, work=_IN_INBOX)
        state = replace(state, has_work=True)
    return replace(
        state,
        open_turns=(*map(overtaken, state.open_turns), turn) if state.open_turns else (turn,),
        newest_turn=event.request_id,
        previous_agent=event.agent_id,
        returned=state.returned and state.active_id != event.agent_id,
        task=task,
        expired=False,
        sent_home=False,
        rests=_shortened(state.rests) if state.rests else (),
    )


def _shortened(rests: tuple[Rest, ...]) -> tuple[Rest, ...]:
    """Return the rests after one more message."""
    return tuple(
        Rest(rest.agent_id, rest.messages_left - 1) for rest in rests if rest.messages_left > 1
    )


def _complete(state: SessionState, event: ev.TurnCompleted) -> SessionState:
    open_turns = state.open_turns
    if event.closes:
        # Usually it is the only one; the call would cost every answer.
        is_last = len(open_turns) == 1 and open_turns[0].request_id == event.request_id
        open_turns = () if is_last else other_turns(open_turns, event.request_id)
    active, agent_id = state.active, event.agent_id
    if event.counts and active is not None and active.agent_id == agent_id:
        active = replace(active, turns_taken=active.turns_taken + 1)
    counts = dict(state.turns_by_agent)
    if agent_id in counts:
        counts[agent_id] += 1
    else:
        row = agent_id if _gets_row(counts, agent_id) else OTHER_AGENTS
        counts[row] = counts.get(row, 0) + 1
    if event.kept:
        state = replace(state, meanwhile=held_meanwhile(state)[:-1])
    task = state.task
    if task is not None and task.task_id == event.task_id and task.status in OPEN_STATUSES:
        task = replace(task, update_us=state.update_us)
    return replace(
        state,
        open_turns=open_turns,
        active=active,
        task=task,
        turns_by_agent=counts,
    )


def _gets_row(counts: Mapping[str, int], agent_id: str) -> bool:
    """Say whether the turns of an agent without a row are counted by themselves."""
    chars = len(agent_id) + sum(map(len, counts))
    return len(counts) < COUNTED_AGENTS_MAX and chars <= COUNTED_IDS_CHARS_MAX


def _hand_off(state: SessionState, event: ev.AgentHandedOff) -> SessionState:
    state = touched(state)
    if event.drops_approval:
        state = without_approval(state)
    if event.settles:
        return _settled(state)
    if event.moves:
        state = _with_new_owner(state, event)
    elif event.kept:
        state = replace(state, meanwhile=_handed_meanwhile(held_meanwhile(state), event))
    if not event.turn_request_id:
        return state
    turn = state.find_turn(event.turn_request_id)
    assert turn is not None
    if not event.dispatches:
        return state
    path = (*turn.path, event.to_agent)
    since = len(turn.path) if event.child_request_id else turn.request_since
    moved = replace(
        turn,
        request_id=event.child_request_id or turn.request_id,
        holder=event.to_agent,
        epoch=state.epoch,
        path=path[-PATH_MAX:],
        reason=event.route_reason,
        dispatched_us=state.update_us,
        dispatch_revision=state.revision,
        # Bringing an answer back does not count as a hop, nor does a person's part.
        hops=turn.hops + (0 if event.mode is HandoffMode.ANSWER or event.to_person else 1),
        asker=event.from_agent if event.mode is HandoffMode.CONSULT else "",
        request_since=max(0, since - max(0, len(path) - PATH_MAX)),
        path_of_handoffs=_path_of_handoffs(turn, event),
        work=None if turn.work is None else work_of_next(turn),
    )
    turns = tuple(moved if other is turn else other for other in state.open_turns)
    return replace(state, open_turns=turns, previous_agent=event.to_agent)


def _path_of_handoffs(turn: OpenTurn, event: ev.AgentHandedOff) -> tuple[str, ...]:
    if event.is_aside:
        return turn.handed_along
    if not turn.path_of_handoffs:
        return ()
    return (*turn.path_of_handoffs, event.to_agent)[-PATH_MAX:]


def _with_new_owner(state: SessionState, event: ev.AgentHandedOff) -> SessionState:
    entered = Tenure(event.to_agent, entered_turn=event.root_request_id)
    active: Tenure | None = entered if event.activates else None
    stack: tuple[Tenure, ...] = ()
    match event.mode:
        case HandoffMode.TRANSFER if event.resumes:
            place = [frame.agent_id for frame in state.stack].index(event.to_agent)
            active, stack = state.stack[place], state.stack[:place]
        case HandoffMode.TRANSFER:
            pass
        case HandoffMode.INTERLUDE:
            stack = (*state.stack, state.active or Tenure(event.from_agent))
        case HandoffMode.HOP:
            # The home agent ends what was interrupted: frames need someone active above them.
            stack = state.stack if event.activates else ()
        case HandoffMode.CONSULT | HandoffMode.ANSWER:
            assert False, "a consult moves nothing"  # noqa: B011, PT015 - our own mistake
        case HandoffMode.RETURN:
            if event.activates:
                active, stack = state.stack[-1], state.stack[:-1]
        case _:
            assert_never(event.mode)
    is_return = event.mode is HandoffMode.RETURN and event.activates
    returned = is_return and not event.dispatches
    return replace(
        state,
        active=active,
        stack=stack,
        returned=returned,
        epoch=state.epoch + 1,
        meanwhile=None,
        expired=False,
        sent_home=event.sends_home,
        suggestion=None,
    )


def held_meanwhile(state: SessionState) -> tuple[Tenure, ...]:
    """Return who would have the conversation if stickiness were on, the return stack first."""
    if state.meanwhile is not None:
        return state.meanwhile
    return (*state.stack, state.active) if state.active else ()


def _handed_meanwhile(held: tuple[Tenure, ...], event: ev.AgentHandedOff) -> tuple[Tenure, ...]:
    entered = (Tenure(event.to_agent, entered_turn=event.root_request_id),)
    if event.mode is HandoffMode.RETURN:
        return held[:-1]
    if not event.activates:
        return ()
    if event.mode is HandoffMode.INTERLUDE:
        return (*held, *entered)
    return (*held[:-1], *entered) if event.mode is HandoffMode.HOP else entered


def _settled(state: SessionState) -> SessionState:
    """Give the conversation to who has it by what was kept. The live turn goes along."""
    held, live = held_meanwhile(state), state.live_turn
    epoch = state.epoch + 1
    return replace(
        state,
        active=held[-1] if held else None,
        stack=held[:-1],
        returned=False,
        meanwhile=None,
        epoch=epoch,
        suggestion=None,
        open_turns=tuple(
            replace(turn, epoch=epoch) if turn is live else turn for turn in state.open_turns
        ),
    )


def _leave(state: SessionState, event: ev.AgentCleared) -> SessionState:
    return _settled(state) if event.settles else _cleared(state, sent_home=event.sends_home)


def _cleared(state: SessionState, *, sent_home: bool) -> SessionState:
    state = touched(without_approval(state))
    return replace(
        state,
        active=None,
        stack=(),
        returned=False,
        epoch=state.epoch + 1,
        meanwhile=None,
        expired=False,
        sent_home=sent_home,
        suggestion=None,
    )


def _lock(state: SessionState, event: ev.LockEngaged) -> SessionState:
    active = state.active
    if active is not None and active.agent_id == event.agent_id:
        locked = replace(active, locked=True, lock_expire_us=event.expire_us, soft=event.soft)
        return replace(state, active=locked)
    # An agent that stood in, or a default agent, asked the user: it takes over.
    taken = Tenure(
        event.agent_id,
        locked=True,
        lock_expire_us=event.expire_us,
        entered_turn=event.root_request_id,
        soft=event.soft,
    )
    return replace(
        state,
        active=taken,
        stack=(),
        returned=False,
        epoch=state.epoch + 1,
        meanwhile=None,
        expired=False,
        sent_home=False,
        suggestion=None,
    )


def _unlock(state: SessionState) -> SessionState:
    active = state.active
    assert active is not None
    unlocked = replace(active, locked=False, lock_expire_us=None, soft=False)
    if state.apart is not None:
        state = without_freed(state)
    return replace(state, active=unlocked)
