"""Cursors of the engines that number their rows: a place in one list of one store, as bytes.

Owns their form alone. It must not know what the numbers count. Its rule: a cursor that another
list or another store made is CursorInvalid; read as a place here, it would pass over rows.
"""

from __future__ import annotations

import struct
from typing import Final

from routing_service.storage.store import CURSOR_START, INT_MAX, CursorInvalid

STORE_ID_BYTES: Final = 8
"""Enough that two stores which a cursor could be mixed up between never share an id."""

LOG: Final = b"L"
AUDIT: Final = b"A"
SESSIONS: Final = b"S"

_FORM: Final = struct.Struct(f">c{STORE_ID_BYTES}sQ")


def from_position(kind: bytes, store_id: bytes, position: int) -> bytes:
    """Make the cursor just after a row's position (from 1; 0 = before the first row)."""
    return _FORM.pack(kind, store_id, position)


def to_position(kind: bytes, store_id: bytes, cursor: bytes) -> int:
    """Read a position back. Raises CursorInvalid."""
    if cursor == CURSOR_START:
        return 0
    if len(cursor) != _FORM.size:
        raise CursorInvalid("the cursor was not made by this service; start without one")
    found_kind, found_store_id, position = _FORM.unpack(cursor)
    if found_kind != kind:
        raise CursorInvalid("the cursor belongs to another list; start without one")
    if found_store_id != store_id:
        raise CursorInvalid("the cursor belongs to another store; start without one")
    check_reached(position, INT_MAX)
    return int(position)


def from_session_id(session_id: str) -> bytes:
    """Make the cursor just after a session in a list of sessions."""
    return SESSIONS + session_id.encode()


def to_session_id(cursor: bytes) -> str:
    """Read a session id back, "" for the start. Raises CursorInvalid."""
    if cursor == CURSOR_START:
        return ""
    if not cursor.startswith(SESSIONS):
        raise CursorInvalid("the cursor belongs to another list; start without one")
    try:
        return cursor.removeprefix(SESSIONS).decode()
    except UnicodeDecodeError as error:
        raise CursorInvalid("the cursor is damaged; start without one") from error


def check_reached(position: int, end_position: int) -> None:
    """Refuse a position that the store has not reached, as after a backup was restored."""
    if position > end_position:
        raise CursorInvalid(
            "the cursor is ahead of this store, which was restored from an older copy; "
            "start without one"
        )
