"""How events about tasks and approvals change a session's state.

Rule: an approval of format 2 is pending exactly where its task is paused.
"""

from __future__ import annotations

import hashlib
from typing import Final, assert_never

from msgspec.structs import replace

from routing_service.core import events as ev
from routing_service.core.session import Approval, OpenTurn, SessionState, Task, Work, work_of_next
from routing_service.core.strand_fold import with_shared_tasks
from routing_service.core.vocabulary import RouteReason, TaskStatus

_VOTER_BYTES: Final = 8

_NO_WORK: Final = Work()


def evolve_task(
    state: SessionState,
    event: ev.TaskCreated
    | ev.TaskCompleted
    | ev.TaskFailed
    | ev.TaskCancelled
    | ev.TaskPaused
    | ev.TaskResumed
    | ev.ApprovalEvent,
) -> SessionState:
    """Change the task, or its pending approval."""
    match event:
        case ev.TaskCreated():
            task = Task(
                task_id=event.task_id,
                status=TaskStatus.RUNNING,
                create_us=state.update_us,
                update_us=state.update_us,
                expire_us=event.expire_us,
            )
            state = replace(state, task=task, next_task_id="")
            return with_shared_tasks(state) if event.shared else state
        case ev.TaskCompleted():
            return _with_task_status(state, event.task_id, TaskStatus.COMPLETED)
        case ev.TaskFailed():
            return _with_task_status(state, event.task_id, TaskStatus.FAILED)
        case ev.TaskCancelled():
            state = _with_task_status(state, event.task_id, TaskStatus.CANCELLED)
            return replace(state, paused=None)
        case ev.TaskPaused():
            turn = state.find_turn(event.request_id)
            assert turn is not None
            state = _with_task_status(state, event.task_id, TaskStatus.PAUSED)
            return replace(without_turn(state, event.request_id), paused=overtaken(turn))
        case ev.TaskResumed():
            return _resume(state, event)
        case _:
            return _evolve_approval(state, event)


def _evolve_approval(
    state: SessionState,
    event: ev.ApprovalEvent,
) -> SessionState:
    """Change the pending approval. Where it ends without a decision its task no longer waits."""
    pending = state.approval
    match event:
        case ev.ApprovalRequested():
            asked = Approval(
                by=event.by, needs=event.needs, expire_us=event.expire_us, rejects=event.rejects
            )
            return replace(state, approval=asked)
        case ev.ApprovalVoted():
            assert pending is not None
            voted = replace(
                pending, voters=(*pending.voters, voter_hash(event.request_id, event.decider))
            )
            return replace(state, approval=voted)
        case ev.ApprovalDecided() | ev.ApprovalExpired(rejects=True):
            return replace(state, approval=None)
        case ev.ApprovalWithdrawn(was_shown=True):
            return replace(without_approval(state), approval=None)
        case ev.ApprovalWithdrawn():
            return replace(without_approval(state), approval=Approval("", ended="withdrawn"))
        case ev.ApprovalExpired():
            return replace(without_approval(state), approval=Approval("", ended="expired"))
        case _:
            assert_never(event)


def _resume(state: SessionState, event: ev.TaskResumed) -> SessionState:
    paused = state.paused
    assert paused is not None
    turn = replace(
        paused,
        request_id=event.child_request_id,
        epoch=state.epoch,
        path=(paused.holder,),
        request_since=0,
        reason=RouteReason.TASK_RESUMED,
        dispatched_us=state.update_us,
        dispatch_revision=state.revision,
        work=work_of_next(paused),
    )
    state = _with_task_status(state, event.task_id, TaskStatus.RUNNING)
    return replace(
        state,
        paused=None,
        open_turns=(*map(overtaken, state.open_turns), turn),
        newest_turn=turn.root_request_id,
        previous_agent=turn.holder,
    )


def touched(state: SessionState) -> SessionState:
    """Return the state with its open task changed now."""
    task = state.open_task
    if task is None or task.update_us == state.update_us:
        return state
    return replace(state, task=replace(task, update_us=state.update_us))


def without_approval(state: SessionState) -> SessionState:
    """Return the state without a pending approval; the task goes on."""
    if state.paused is None:
        return state
    running = _with_task_status(state, state.paused.task_id, TaskStatus.RUNNING)
    return replace(running, paused=None)


def _with_task_status(state: SessionState, task_id: str, status: TaskStatus) -> SessionState:
    task = state.task
    assert task is not None
    assert task.task_id == task_id
    return replace(state, task=replace(task, status=status, update_us=state.update_us))


def overtaken(turn: OpenTurn) -> OpenTurn:
    """Return the turn without its earlier holders: it is not handed over any more."""
    if turn.work is not None:
        kept = Work(inbox=turn.work.inbox, deadline_us=turn.work.deadline_us)
        turn = replace(turn, work=None if kept == _NO_WORK else kept)
    if len(turn.path) == 1:
        return turn
    return replace(turn, path=(turn.holder,), request_since=0)


def without_turn(state: SessionState, request_id: str) -> SessionState:
    """Return the state without the turn whose open request this is."""
    return replace(state, open_turns=other_turns(state.open_turns, request_id))


def other_turns(turns: tuple[OpenTurn, ...], request_id: str) -> tuple[OpenTurn, ...]:
    """Return the turns except the one whose open request this is; usually it is the only one."""
    if len(turns) == 1 and turns[0].request_id == request_id:
        return ()
    return tuple([turn for turn in turns if turn.request_id != request_id])


def voter_hash(request_id: str, decider: str) -> str:
    """Return what the state keeps of a person who approved: short, and without the name."""
    said = f"{request_id}\0{decider}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(said, digest_size=_VOTER_BYTES).hexdigest()
