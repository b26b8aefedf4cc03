"""The values of the Redis store, as bytes: heads, changes, tasks, audit entries.

The scripts in lua/ know these forms as well. Numbers are 8 bytes each, highest first, so that none
is rounded by a script's floating point and their bytes sort as they do. A value that does not fit
its form is StoreCorrupt.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final

from routing_service.storage.redis.keys import session_of, text_bytes
from routing_service.storage.store import (
    DAMAGED,
    INT_MAX,
    Append,
    AuditEntry,
    Change,
    Head,
    SessionKey,
    SessionRow,
    StoreCorrupt,
    TaskCursor,
    TaskRow,
    damaged_change,
    damaged_entry,
    damaged_row,
)

_NUMBER: Final = struct.Struct(">Q")
NUMBER_BYTES: Final = _NUMBER.size
_OPTIONAL: Final = struct.Struct(">BQ")
"""Whether the number is present, and the number."""
_HEAD: Final = struct.Struct(">QQQBQH")
"""Revision, create_us, update_us, due_us, length of the owner. Then the owner and the state."""
_CHANGE: Final = struct.Struct(">QQQHHHII")
"""Position in the shard's log, revision, time_us, lengths. Then the texts, and the answer."""
_TASK: Final = struct.Struct(">QQBQHH")
"""create_us, update_us, expire_us, lengths. Then status, owner and data."""
_AUDIT: Final = struct.Struct(">QQHHHH")
"""Revision, time_us, lengths. Then kind, request, session, user and data."""
_LOGGED: Final = struct.Struct(">QQ")
"""The server's time, the revision. Then the session's member."""

HEAD_ROW_BYTES: Final = _HEAD.size + 512
"""Enough of a head to hold everything but the state, even with the longest owner."""

NONE: Final = _OPTIONAL.pack(0, 0)

_DAMAGED: Final = "what the store has of it is damaged; restore it from a backup"


def number(value: int) -> bytes:
    """Make the 8 bytes of a number."""
    return _NUMBER.pack(value)


def to_number(data: bytes) -> int:
    """Read a number back."""
    return int(_NUMBER.unpack(data)[0])


def optional(value: int | None) -> bytes:
    """Make the 9 bytes of a number that may be missing."""
    return NONE if value is None else _OPTIONAL.pack(1, value)


def head_rest(append: Append) -> bytes:
    """Make the part of a head after its revision and create_us."""
    user = text_bytes(append.user_id)
    times = number(append.change.time_us) + optional(append.due_us)
    return times + len(user).to_bytes(2) + user + append.state


def to_head(data: bytes) -> Head:
    """Read a head; a damaged one has a damaged state."""
    if len(data) < _HEAD.size:
        return Head(0, DAMAGED)
    revision, _, _, _, _, user_bytes = _HEAD.unpack_from(data)
    return Head(revision, data[_HEAD.size + user_bytes :])


def to_revision(key: SessionKey, data: bytes) -> int:
    """Read the revision at a head's start; 0 if there is no head. Raises StoreCorrupt."""
    if data and len(data) < _NUMBER.size:
        raise StoreCorrupt(f'session "{key}": {_DAMAGED}')
    return to_number(data[: _NUMBER.size]) if data else 0


def to_session_row(key: SessionKey, data: bytes) -> SessionRow:
    """Read a head's first HEAD_ROW_BYTES as a line of a list; a damaged one hides no other."""
    try:
        revision, create_us, update_us, is_due, due_us, user_bytes = _HEAD.unpack_from(data)
        user_id = data[_HEAD.size : _HEAD.size + user_bytes].decode()
    except (struct.error, UnicodeDecodeError):
        return damaged_row(key)
    due = due_us if is_due else None
    return SessionRow(key, user_id, revision, create_us, update_us, due)


def from_change(change: Change) -> bytes:
    """Make a change's bytes; its position comes before them when it has one."""
    method, request_id, actor = map(text_bytes, (change.method, change.request_id, change.actor))
    sizes = map(len, (method, request_id, actor, change.fingerprint, change.events))
    head = _CHANGE.pack(0, change.revision, change.time_us, *sizes)[_NUMBER.size :]
    texts = (method, request_id, actor, change.fingerprint, change.events, change.answer)
    return b"".join((head, *texts))


def to_change(key: SessionKey, data: bytes) -> Change:
    """Read a change. Raises StoreCorrupt."""
    try:
        _, revision, time_us, *sizes = _CHANGE.unpack_from(data)
        method, request_id, actor, fingerprint, events, answer = _parts(_CHANGE, data, sizes)
        texts = (method.decode(), request_id.decode(), actor.decode())
    except (struct.error, ValueError) as error:
        raise StoreCorrupt(f'a change of session "{key}": {_DAMAGED}') from error
    return Change(revision, time_us, *texts, fingerprint, events, answer)


def to_listed_change(key: SessionKey, revision: int, data: bytes) -> Change:
    """Read a change that is one of many; a damaged one hides no other."""
    try:
        return to_change(key, data)
    except StoreCorrupt:
        return damaged_change(revision)


def change_position(data: bytes) -> int | None:
    """Read a change's place in its shard's log; None if the change is too short to have one."""
    return to_number(data[: _NUMBER.size]) if len(data) >= _NUMBER.size else None


def from_task(task: TaskRow) -> bytes:
    """Make a task's bytes."""
    status, user = text_bytes(task.status), text_bytes(task.user_id)
    times = number(task.create_us) + number(task.update_us) + optional(task.expire_us)
    return b"".join(
        (times, len(status).to_bytes(2), len(user).to_bytes(2), status, user, task.data)
    )


def to_task(key: SessionKey, task_id: str, data: bytes) -> TaskRow:
    """Read a task. Raises StoreCorrupt."""
    try:
        create_us, update_us, expires, expire_us, *sizes = _TASK.unpack_from(data)
        status, user, rest = _parts(_TASK, data, sizes)
        texts = (user.decode(), status.decode())
    except (struct.error, ValueError) as error:
        raise StoreCorrupt(f'task "{task_id}" of session "{key}": {_DAMAGED}') from error
    expiry = expire_us if expires else None
    return TaskRow(task_id, key.session_id, *texts, create_us, update_us, expiry, rest)


def task_place(place: TaskCursor) -> bytes:
    """Make a place in a session's list of tasks; the bytes sort in the list's order."""
    return number(min(max(place.create_us, 0), INT_MAX)) + text_bytes(place.task_id)


def place_task_id(key: SessionKey, place: bytes) -> str:
    """Read the task id of a place. Raises StoreCorrupt."""
    try:
        return place[_NUMBER.size :].decode()
    except UnicodeDecodeError as error:
        raise StoreCorrupt(f'the tasks of session "{key}": {_DAMAGED}') from error


def from_audit(entry: AuditEntry) -> bytes:
    """Make an audit entry's bytes; their key names the tenant."""
    texts = [
        text_bytes(text) for text in (entry.kind, entry.request_id, entry.session_id, entry.user_id)
    ]
    head = _AUDIT.pack(entry.revision, entry.time_us, *map(len, texts))
    return b"".join((head, *texts, entry.data))


def to_audit(key: SessionKey, data: bytes) -> AuditEntry:
    """Read an audit entry; a damaged one is the key's, as far as that names a session."""
    try:
        revision, time_us, *sizes = _AUDIT.unpack_from(data)
        *texts, rest = _parts(_AUDIT, data, sizes)
        kind, request_id, session_id, user_id = (text.decode() for text in texts)
    except (struct.error, ValueError):
        return damaged_entry(key)
    return AuditEntry(time_us, key.tenant, session_id, revision, kind, request_id, user_id, rest)


def to_logged(data: bytes) -> tuple[int, SessionKey, int]:
    """Read an entry of a shard's log: the server's time, session, revision. Raises StoreCorrupt."""
    try:
        time_us, revision = _LOGGED.unpack_from(data)
        return time_us, session_of(data[_LOGGED.size :]), revision
    except (struct.error, ValueError) as error:
        raise StoreCorrupt(f"an entry of the log: {_DAMAGED}") from error


def to_due(data: bytes) -> tuple[int, SessionKey]:
    """Read an entry of the due sessions: when, and which. Raises StoreCorrupt."""
    try:
        return to_number(data[: _NUMBER.size]), session_of(data[_NUMBER.size :])
    except (struct.error, ValueError) as error:
        raise StoreCorrupt(f"an entry of the due sessions: {_DAMAGED}") from error


def _parts(form: struct.Struct, data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Split the bytes after a head into parts of these sizes, and the rest. Raises ValueError."""
    ends = list(accumulate(sizes, initial=form.size))
    if ends[-1] > len(data):
        raise ValueError("cut short")
    return [*(data[start:end] for start, end in pairwise(ends)), data[ends[-1] :]]
