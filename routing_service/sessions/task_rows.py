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
from routing_service.core.strand_fold import open_or_last
from routing_service.core.vocabulary import TaskStatus
from routing_service.sessions.session_cache import HotSession
from routing_service.storage.checked_store import Store
from routing_service.storage.row_content import decode_metadata, task_status
from routing_service.storage.store import SessionKey, TaskRow

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
        present = open_or_last(decided.state)
        begun = {task.task_id: task for task in (open_or_last(before) if before else ())}
        tasks = begun | {task.task_id: task for task in present}
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
                case _:
                    continue
            # A task that began and ended within this change is known from its events alone.
            task = tasks.get(event.task_id)
            status = task.status if task is not None and task in present else _status_after(event)
            rows[event.task_id] = _row(
                key, decided, event.task_id, task, status=status, metadata=metadata
            )
        for task in present:
            known_task = begun.get(task.task_id)
            if task.task_id in rows or known_task is None or known_task.status is task.status:
                continue
            # The events are about its agent: it goes on without its approval.
            metadata = await self._known_metadata(key, hot, task.task_id)
            rows[task.task_id] = _row(
                key, decided, task.task_id, task, status=task.status, metadata=metadata
            )
        return tuple(rows.values())

    async def status_after(
        self, key: SessionKey, task_id: str, state: SessionState, rows: tuple[TaskRow, ...]
    ) -> TaskStatus | None:
        """Return the status of a task that is not the foreground's; None if there is none.

        state: after the change. rows: that the change writes.
        """
        for task in open_or_last(state):
            if task.task_id == task_id:
                return task.status
        written = next((row for row in rows if row.task_id == task_id), None)
        if written is None and task_id:
            # The session has another task by now.
            written = await self._store.find_task(key.tenant, task_id)
        return task_status(written) if written else None

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


def _row(
    key: SessionKey,
    decided: Decided,
    task_id: str,
    task: Task | None,
    *,
    status: TaskStatus,
    metadata: Mapping[str, str],
) -> TaskRow:
    return TaskRow(
        task_id=task_id,
        session_id=key.session_id,
        user_id=decided.state.owner,
        status=status.value,
        create_us=task.create_us if task else decided.now_us,
        update_us=decided.now_us,
        expire_us=task.expire_us if task else None,
        data=msgspec.json.encode(metadata),
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
