"""The rows of tasks that a change writes, and the metadata that callers keep on a task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from routing_service.core import events as ev
from routing_service.core.decide import Decided
from routing_service.core.errors import invalid_field
from routing_service.core.identifiers import TASK_METADATA_BYTES_MAX, TASK_METADATA_ENTRIES_MAX
from routing_service.core.session import SessionState, Task
from routing_service.core.vocabulary import TaskStatus
from routing_service.sessions.session_cache import HotSession
from routing_service.storage.row_content import decode_metadata, task_status
from routing_service.storage.store import SessionKey, Store, TaskRow

_TASK_EVENTS: Final = (
    ev.TaskCreated,
    ev.TaskCompleted,
    ev.TaskFailed,
    ev.TaskCancelled,
    ev.TaskPaused,
    ev.TaskResumed,
    ev.ApprovalVoted,
    ev.MessageRouted,
)

_MESSAGE: Final = ev.MessageRouted
_ANSWER: Final = ev.TurnCompleted


class TaskRows:
    """Makes task rows; reads what it does not know from the store."""

    def __init__(self, store: Store) -> None:
        """Read from a store."""
        self._store = store

    async def changed(
        self, key: SessionKey, hot: HotSession, decided: Decided, before: SessionState | None
    ) -> tuple[TaskRow, ...]:
        """Return the rows that a change writes: status, time limit or metadata differ.

        Raises RoutingError INVALID_FIELD if the metadata would exceed its bounds; StoreError.
        """
        rows: dict[str, TaskRow] = {}
        tasks = {task.task_id: task for task in _tasks_of(before, decided.state)}
        for event in decided.decision.events:
            match event:
                case ev.TaskCreated():
                    hot.task_metadata = (event.task_id, dict(event.metadata))
                    metadata = event.metadata
                case (
                    ev.TaskCompleted()
                    | ev.TaskFailed()
                    | ev.TaskCancelled()
                    | ev.TaskPaused()
                    | ev.TaskResumed()
                    | ev.ApprovalVoted()
                ):
                    metadata = await self._known_metadata(key, hot, event.task_id)
                case ev.MessageRouted() if event.metadata or event.task_expire_us is not None:
                    known = await self._known_metadata(key, hot, event.task_id)
                    metadata = _merged(known, event.metadata)
                    hot.task_metadata = (event.task_id, metadata)
                case ev.AgentCleared() | ev.AgentHandedOff() if _dropped_approval(before, decided):
                    # The event is about the agent; its task goes on without the approval.
                    metadata = await self._known_metadata(key, hot, _task_id(decided.state))
                case _:
                    continue
            task_id = event.task_id if isinstance(event, _TASK_EVENTS) else _task_id(decided.state)
            # A task that began and ended within this change is known from its events alone.
            task = tasks.get(task_id)
            is_present = task is not None and task is decided.state.task
            status = task.status if task and is_present else _status_after(event)
            rows[task_id] = TaskRow(
                task_id=task_id,
                session_id=key.session_id,
                user_id=decided.state.owner,
                status=status.value,
                create_us=task.create_us if task else decided.now_us,
                update_us=decided.now_us,
                expire_us=task.expire_us if task else None,
                data=msgspec.json.encode(metadata),
            )
        return tuple(rows.values())

    async def stored_status(self, key: SessionKey, task_id: str) -> TaskStatus | None:
        """Return the status of a task that is not the session's latest; None if there is none."""
        row = await self._store.find_task(key.tenant, task_id) if task_id else None
        return task_status(row) if row else None

    async def metadata(self, tenant: str, task_id: str) -> Mapping[str, str]:
        """Return what callers keep on a task."""
        row = await self._store.find_task(tenant, task_id)
        return decode_metadata(row) if row else {}

    async def _known_metadata(
        self, key: SessionKey, hot: HotSession, task_id: str
    ) -> Mapping[str, str]:
        if hot.task_metadata is None or hot.task_metadata[0] != task_id:
            hot.task_metadata = (task_id, await self.metadata(key.tenant, task_id))
        return hot.task_metadata[1]


def may_change_tasks(events: Iterable[ev.Event]) -> bool:
    """Say whether a change may write a task's row. Most do not."""
    for event in events:
        # By class, not by isinstance(): every change pays for it.
        if event.__class__ is _MESSAGE:
            if event.metadata or event.task_expire_us is not None:
                return True
        elif event.__class__ is not _ANSWER:
            return True
    return False


def _tasks_of(before: SessionState | None, after: SessionState) -> list[Task]:
    """Return the tasks before and after a change, the present one last."""
    tasks = [before.task] if before and before.task else []
    return [*tasks, after.task] if after.task else tasks


def _task_id(state: SessionState) -> str:
    assert state.task is not None
    return state.task.task_id


def _dropped_approval(before: SessionState | None, decided: Decided) -> bool:
    """Say whether a change removed a pending approval and left its task running."""
    if before is None or before.paused is None or decided.state.paused is not None:
        return False
    task = decided.state.task
    return (
        task is not None
        and task.status is TaskStatus.RUNNING
        and task.task_id == before.paused.task_id
    )


def _status_after(event: ev.Event) -> TaskStatus:
    """Return the status of a task after an event that names it."""
    match event:
        case ev.TaskCompleted():
            return TaskStatus.COMPLETED
        case ev.TaskFailed():
            return TaskStatus.FAILED
        case ev.TaskCancelled():
            return TaskStatus.CANCELLED
        case _:
            return TaskStatus.RUNNING


def _merged(known: Mapping[str, str], news: Mapping[str, str]) -> Mapping[str, str]:
    """Add to a task's metadata, within its bounds. Raises INVALID_FIELD."""
    merged = {**known, **news}
    size_bytes = sum(len(key.encode()) + len(value.encode()) for key, value in merged.items())
    if len(merged) > TASK_METADATA_ENTRIES_MAX or size_bytes > TASK_METADATA_BYTES_MAX:
        raise invalid_field(
            "metadata",
            f"the task would have {len(merged)} entries of {size_bytes} bytes, at most "
            f"{TASK_METADATA_ENTRIES_MAX} of {TASK_METADATA_BYTES_MAX} are kept; "
            "use fewer or shorter ones",
        )
    return merged
