"""One session copied from one store to another, change by change, unaltered.

If what the target has already differs from the source, nothing more of that session is written. The
state goes in with the last change, so that half a session never answers for the whole.

Erasure follows: where the source's changes are blank and the target's are not yet, the target's are
blanked too. A target that is blank where the source is not stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from msgspec.structs import replace

from routing_service.core.strand_fold import every_open_turn
from routing_service.storage.checked_store import Store
from routing_service.storage.event_codec import BLANK_EVENTS, decode_state
from routing_service.storage.queue_entries import QueueEntry, approval_entries
from routing_service.storage.store import (
    APPEND_TASKS_MAX,
    DAMAGED,
    Append,
    AppendRefused,
    Change,
    Head,
    RequestSeen,
    RevisionConflict,
    SchemaTooNew,
    SessionKey,
    SessionRow,
    StoreCorrupt,
    TaskRow,
    TaskTaken,
)
from routing_service.stored_data.whole_session import pages_of_changes, settled_head, tasks_of


class SessionDiffers(Exception):
    """The target has another session under this name."""

    def __init__(self, key: SessionKey, difference: str) -> None:
        super().__init__(
            f'session "{key}" is in the target with other content ({difference}); delete it there, '
            "or copy to an empty store"
        )
        self.key = key


class SessionUnreadable(Exception):
    """A part of the source's session does not fit its checksum; a copy would make it look whole."""

    def __init__(self, key: SessionKey, part: str) -> None:
        super().__init__(
            f'session "{key}" is damaged in the source: {part} does not fit its checksum; restore '
            "it from a backup, or delete it there"
        )
        self.key = key


@dataclass(frozen=True, slots=True)
class CopiedSession:
    """The parts of a session that were written; all 0 = the target had it already."""

    changes: int = 0
    tasks: int = 0
    blanked: int = 0


async def copy_session(source: Store, target: Store, key: SessionKey) -> CopiedSession:
    """Make the target's session equal to the source's; one deleted in the source stays.

    Raises SessionDiffers, SessionUnreadable, SessionBusy, StoreError.
    """
    found = await settled_head(source, key)
    if found is None:
        return CopiedSession()
    row, head = found
    if head.state == DAMAGED:
        raise SessionUnreadable(key, "its state")
    present = await target.find_session(key)
    base = present.revision if present else 0
    if base > row.revision:
        raise SessionDiffers(key, f"revision {base} there, {row.revision} in the source")
    erase_before = await _compare_changes(source, target, key, base)
    tasks = await _tasks_to_write(source, target, key, will_erase=erase_before > 0)
    if len(tasks) > (row.revision - base) * APPEND_TASKS_MAX:
        raise SessionDiffers(key, f"task {tasks[0].task_id}")
    await _append(source, target, row, head, base, tasks=tasks)
    blanked = await target.erase_before(key, erase_before, BLANK_EVENTS) if erase_before else 0
    if base == row.revision:
        await _compare_heads(target, row, head)
    await _copy_entry(source, target, key, head)
    return CopiedSession(row.revision - base, len(tasks), blanked)


async def _compare_changes(source: Store, target: Store, key: SessionKey, base: int) -> int:
    """Compare both stores. Returns the revision before which the target has to be erased."""
    erase_before = 0
    async for page in pages_of_changes(target, key, after=0, upto=base):
        after, before = page[0].revision - 1, page[-1].revision + 1
        first = await source.read_changes(key, after=after, before=before, limit=len(page))
        if len(first) != len(page):
            raise SessionDiffers(key, f"revision {before - 1}")
        for theirs, ours in zip(first, page, strict=True):
            if DAMAGED in (theirs.events, ours.events):
                raise SessionUnreadable(key, f"revision {ours.revision}, or its copy,")
            if theirs == ours or _blanked(theirs) == ours:
                continue
            if theirs != _blanked(ours):
                raise SessionDiffers(key, f"revision {ours.revision}")
            erase_before = ours.revision + 1
    return erase_before


def _blanked(change: Change) -> Change:
    return replace(change, events=BLANK_EVENTS, answer=b"", fingerprint=b"")


async def _tasks_to_write(
    source: Store, target: Store, key: SessionKey, *, will_erase: bool
) -> list[TaskRow]:
    """Return the source's tasks that the target lacks or that differ there.

    will_erase: the target's tasks will be blanked, so they need no writing.
    """
    differing = []
    async for task in tasks_of(source, key):
        if task.data == DAMAGED:
            raise SessionUnreadable(key, f"task {task.task_id}")
        theirs = await target.find_task(key.tenant, task.task_id)
        if theirs is not None and theirs.session_id != key.session_id:
            raise SessionDiffers(key, f"task {task.task_id} is of session {theirs.session_id}")
        if theirs in (task, _blanked_task(task)):
            continue
        if will_erase and theirs is not None and _blanked_task(theirs) == task:
            continue
        differing.append(task)
    return differing


def _blanked_task(task: TaskRow) -> TaskRow:
    return replace(task, user_id="", data=b"")


async def _append(
    source: Store,
    target: Store,
    row: SessionRow,
    head: Head,
    base: int,
    *,
    tasks: Sequence[TaskRow],
) -> None:
    """Append the changes after base. The last tasks go with the last change, eight with each."""
    key = row.key
    async for page in pages_of_changes(source, key, after=base, upto=row.revision):
        for change in page:
            if change.events == DAMAGED:
                raise SessionUnreadable(key, f"revision {change.revision}")
            is_last = change.revision == row.revision
            later = (row.revision - change.revision) * APPEND_TASKS_MAX
            upto = max(len(tasks) - later, 0)
            append = Append(
                key=key,
                base_revision=change.revision - 1,
                change=change,
                state=head.state if is_last else b"",
                user_id=row.user_id,
                tasks=tuple(tasks[max(upto - APPEND_TASKS_MAX, 0) : upto]),
                due_us=row.due_us if is_last else None,
            )
            await _store(target, append)


async def _store(target: Store, append: Append) -> None:
    try:
        await target.append(append)
    except RevisionConflict as conflict:
        raise SessionDiffers(
            append.key, f"another process writes to it, at revision {conflict.actual_revision}"
        ) from conflict
    except RequestSeen as seen:
        if seen.change != append.change:
            raise SessionDiffers(
                append.key, f"request {seen.change.request_id} is revision {seen.change.revision}"
            ) from seen
    except TaskTaken as taken:
        raise SessionDiffers(
            append.key, f"task {taken.task_id} is of session {taken.session_id}"
        ) from taken
    except AppendRefused as refused:
        raise SessionDiffers(append.key, f"it does not take it: {refused}") from refused


async def _copy_entry(source: Store, target: Store, key: SessionKey, head: Head) -> None:
    """Copy the entries of what waits, in an inbox or for an approval, without leases.

    An entry is a hint, and what it is a hint to is in the state: one that the target lacks is also
    put back when the session is read there.
    """
    with suppress(SchemaTooNew, StoreCorrupt):  # Of a state that only another release reads.
        state = decode_state(head.state)
        put = list(approval_entries(state))
        for turn in every_open_turn(state):
            entry = QueueEntry(turn.holder, turn.dispatched_us, key.session_id, turn.request_id)
            if await source.find_item(key.tenant, entry) is not None:
                put.append(entry)
        if put:
            await target.mend_queue(key.tenant, tuple(put), ())


async def _compare_heads(target: Store, row: SessionRow, head: Head) -> None:
    found = await settled_head(target, row.key)
    if found is None:
        raise SessionDiffers(row.key, "it was deleted meanwhile")
    theirs, theirs_head = found
    if theirs_head.state != head.state:
        raise SessionDiffers(row.key, "its state")
    if theirs != row and replace(row, user_id="") != theirs:
        raise SessionDiffers(row.key, "its owner, times or due time")
