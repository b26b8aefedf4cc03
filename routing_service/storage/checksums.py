"""The checksum of every stored value: made as it is written, compared as it is read.

A checksum stands inside its value, where releases without checksums pass over it: as the last field
of a JSON object, after a compressed value, and after the JSON of a task as white space, since every
field of that is a caller's. So no engine knows of it, a value and its checksum are one write, and a
value that an older release wrote has none and is accepted. Callers of the store never see it.

A row whose checksum does not fit keeps its place, and its content becomes DAMAGED: every decoder
refuses that with StoreCorrupt, so damage ends at its own row.
"""

from __future__ import annotations

import re
import zlib
from typing import Final

from msgspec.structs import replace

from routing_service.storage.event_codec import is_newer_change, is_newer_state
from routing_service.storage.store import (
    DAMAGED,
    Append,
    AuditEntry,
    Change,
    Head,
    SessionKey,
    SessionRow,
    TaskRow,
    damaged_change,
    damaged_entry,
    damaged_row,
)

FIELD_BYTES: Final = 18
"""Of a checksum in a change, a state, an audit entry or a setting."""

_NAME: Final = b',"crc":"'
_NAME_AT: Final = slice(-FIELD_BYTES, -FIELD_BYTES + len(_NAME))
_REWRITTEN: Final = re.compile(rb'"crc"\s*:\s*"[^"]*"\s*}\s*\Z')
"""A checksum that a tool has moved: it belongs to another form of the value."""
_TAIL_BYTES: Final = 64

_OBJECT: Final = b"{"
_COMPRESSED: Final = b"z"
_SPACES: Final = b" \t\n\r"
_TWO_BITS: Final = tuple(
    bytes(_SPACES[byte >> shift & 3] for shift in (6, 4, 2, 0)) for byte in range(256)
)
"""The four spaces of each byte of a task's checksum."""


def seal_append(append: Append) -> Append:
    """Return an append whose change, state and tasks have their checksums."""
    # Every turn pays for this, so nothing here is a function of its own.
    change, state, (tenant, session_id) = append.change, append.state, append.key
    events = change.events
    place = zlib.crc32(f"{tenant}\0{session_id}\0{change.revision}".encode())
    named = f"{change.time_us}\0{change.method}\0{change.request_id}\0{change.actor}".encode()
    crc = zlib.crc32(b"".join((named, change.fingerprint, change.answer, events)), place)
    return replace(
        append,
        change=replace(change, events=_with_field(events, crc)),
        state=_with_field(state, zlib.crc32(state, place)),
        tasks=tuple([_seal_task(append.key, task) for task in append.tasks]),
    )


def open_change(key: SessionKey, change: Change) -> Change:
    """Return a stored change without its checksum; with DAMAGED events if it does not fit."""
    plain, crc = _without_field(change.events)
    if crc is None:
        return change
    opened = replace(change, events=plain)
    try:
        if crc == _crc_of_change(_place(key, change.revision), opened) or is_newer_change(plain):
            return opened
    except TypeError:
        pass  # SQLite keeps any type in any column.
    time_us: object = change.time_us
    if not isinstance(time_us, int):
        return damaged_change(change.revision)
    return replace(change, events=DAMAGED)


def open_head(key: SessionKey, head: Head) -> Head:
    """Return a stored head without its checksum; with a DAMAGED state if it does not fit."""
    plain, crc = _without_field(head.state)
    if crc is None:
        return head
    if crc == zlib.crc32(plain, _place(key, head.revision)) or is_newer_state(plain):
        return replace(head, state=plain)
    revision: object = head.revision
    return Head(revision if isinstance(revision, int) else 0, DAMAGED)


def open_row(row: SessionRow) -> SessionRow:
    """Return a line of a list as stored; a damaged one if a column has a value of another type."""
    numbers: tuple[object, ...] = (row.revision, row.create_us, row.update_us)
    # SQLite keeps any type in any column.
    is_whole = all(isinstance(number, int) for number in numbers)
    return row if is_whole else damaged_row(row.key)


def open_task(key: SessionKey, task: TaskRow) -> TaskRow:
    """Return a stored task without its checksum; with DAMAGED data if it does not fit."""
    data: object = task.data
    if not isinstance(data, bytes):
        return replace(task, data=DAMAGED)
    plain = data.rstrip(_SPACES)
    if plain == task.data or not plain.startswith(_OBJECT):
        return task
    opened = replace(task, data=plain)
    return opened if _seal_task(key, opened).data == task.data else replace(task, data=DAMAGED)


def seal_audit(entry: AuditEntry) -> AuditEntry:
    """Return an audit entry with its checksum."""
    return replace(entry, data=_with_field(entry.data, _crc_of_audit(entry)))


def open_audit(entry: AuditEntry) -> AuditEntry:
    """Return a stored entry without its checksum; with DAMAGED data if it does not fit."""
    plain, crc = _without_field(entry.data)
    if crc is None:
        return entry
    opened = replace(entry, data=plain)
    if crc == _crc_of_audit(opened):
        return opened
    numbers: tuple[object, ...] = (entry.time_us, entry.revision)
    if not all(isinstance(number, int) for number in numbers):
        return damaged_entry(SessionKey(entry.tenant, entry.session_id))
    return replace(entry, data=DAMAGED)


def seal_setting(tenant: str, name: str, value: bytes) -> bytes:
    """Return a setting with its checksum; one that is neither JSON nor compressed as it is."""
    return _with_field(value, _crc_of_setting(tenant, name, value))


def open_setting(tenant: str, name: str, value: bytes) -> bytes:
    """Return a stored setting without its checksum; DAMAGED if it does not fit."""
    plain, crc = _without_field(value)
    return plain if crc is None or crc == _crc_of_setting(tenant, name, plain) else DAMAGED


def _place(key: SessionKey, revision: int) -> int:
    """Return the checksum of a row's place, with which that of its content begins."""
    tenant, session_id = key
    return zlib.crc32(f"{tenant}\0{session_id}\0{revision}".encode())


def _crc_of_change(place: int, change: Change) -> int:
    named = f"{change.time_us}\0{change.method}\0{change.request_id}\0{change.actor}".encode()
    return zlib.crc32(b"".join((named, change.fingerprint, change.answer, change.events)), place)


def _crc_of_audit(entry: AuditEntry) -> int:
    named = (
        f"{entry.tenant}\0{entry.session_id}\0{entry.time_us}\0{entry.revision}\0{entry.kind}\0"
        f"{entry.request_id}\0{entry.user_id}"
    )
    return zlib.crc32(entry.data, zlib.crc32(named.encode()))


def _crc_of_setting(tenant: str, name: str, value: bytes) -> int:
    return zlib.crc32(value, zlib.crc32(f"{tenant}\0{name}".encode()))


def _seal_task(key: SessionKey, task: TaskRow) -> TaskRow:
    """Return a task with its checksum. create_us is left out: the first upsert decides it."""
    if not task.data.startswith(_OBJECT):
        return task
    named = (
        f"{key.tenant}\0{key.session_id}\0{task.task_id}\0{task.user_id}\0{task.status}\0"
        f"{task.update_us}\0{task.expire_us}"
    )
    crc = zlib.crc32(task.data, zlib.crc32(named.encode()))
    spaces = b"".join([_TWO_BITS[byte] for byte in crc.to_bytes(4)])
    return replace(task, data=task.data + spaces)


def _with_field(value: bytes, crc: int) -> bytes:
    """Return a value with its checksum; one that is neither JSON nor compressed as it is."""
    if value.startswith(_OBJECT) and value.endswith(b"}") and value != b"{}":
        return b'%b,"crc":"%08x"}' % (value[:-1], crc)
    if value.startswith(_COMPRESSED):
        return b'%b,"crc":"%08x"}' % (value, crc)
    return value


def _without_field(value: object) -> tuple[bytes, int | None]:
    """Return a value without its checksum, and that; None = it has none, -1 = no number fits."""
    if not isinstance(value, bytes):
        return DAMAGED, -1  # SQLite keeps any type in any column.
    first = value[:1]
    if value[_NAME_AT] == _NAME and first in (_OBJECT, _COMPRESSED):
        plain = value[:-FIELD_BYTES]
        try:
            crc = int(value[-FIELD_BYTES + len(_NAME) : -len(b'"}')], 16)
        except ValueError:
            crc = -1
        return (plain + b"}" if first == _OBJECT else plain), crc
    if first == _OBJECT and _REWRITTEN.search(value[-_TAIL_BYTES:]):
        return value, -1
    return value, None
