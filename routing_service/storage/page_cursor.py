"""The cursors of every list: places in one list of one store, as bytes.

Their rule: a cursor that another list or another store made is refused as CursorInvalid. Read as a
place here, it would skip rows.
"""

from __future__ import annotations

import struct
import unicodedata
from typing import Final, TypeAlias

from routing_service.storage.store import CURSOR_START, INT_MAX, CursorInvalid

STORE_ID_BYTES: Final = 8
"""Long enough that two stores whose cursors could be confused do not share an id."""

LOG: Final = b"L"
AUDIT: Final = b"A"
SESSIONS: Final = b"S"

SESSION_CURSOR_BYTES_MAX: Final = 1 + 512
"""The longest cursor in a list of sessions: its kind, and the longest id that is stored."""

Places: TypeAlias = tuple[int, ...]
"""Where a reader stands: one number per part of the list, each 0 before the first row."""


class CursorForm:
    """The form of one list's cursors: its kind, its store's id, its mark, then the places."""

    __slots__ = ("_kind", "_mark", "_start", "_store_id", "_struct")

    def __init__(self, kind: bytes, store_id: bytes, *, places: int = 1, mark: bytes = b"") -> None:
        """Describe the cursors. mark: tells this list from the store's others of the same kind."""
        self._kind = kind
        self._store_id = store_id
        self._mark = mark
        self._start = (0,) * places
        self._struct = struct.Struct(f">c{STORE_ID_BYTES}s{len(mark)}s{places}Q")

    @property
    def size_bytes(self) -> int:
        """The length of every cursor."""
        return self._struct.size

    def pack(self, places: Places) -> bytes:
        """Make the cursor of places."""
        return self._struct.pack(self._kind, self._store_id, self._mark, *places)

    def unpack(self, cursor: bytes) -> Places:
        """Read places back. Raises CursorInvalid."""
        if cursor == CURSOR_START:
            return self._start
        if len(cursor) != self._struct.size:
            raise CursorInvalid("the cursor was not made by this service; start without one")
        kind, store_id, mark, *places = self._struct.unpack(cursor)
        if kind != self._kind:
            raise CursorInvalid("the cursor belongs to another list; start without one")
        if store_id != self._store_id:
            raise CursorInvalid("the cursor belongs to another store; start without one")
        if mark != self._mark:
            raise CursorInvalid("the cursor belongs to another tenant; start without one")
        check_reached(max(places), INT_MAX)
        return tuple(places)


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
        session_id = cursor.removeprefix(SESSIONS).decode()
    except UnicodeDecodeError as error:
        raise CursorInvalid("the cursor is damaged; start without one") from error
    if len(cursor) > SESSION_CURSOR_BYTES_MAX or any(map(_is_control, session_id)):
        # No session has such an id, and not every engine can compare with it.
        raise CursorInvalid("the cursor was not made by this service; start without one")
    return session_id


def _is_control(character: str) -> bool:
    return unicodedata.category(character) == "Cc"


def check_reached(position: int, end_position: int) -> None:
    """Refuse a position that the store has not reached, as after a backup was restored."""
    if position > end_position:
        raise CursorInvalid(
            "the cursor is ahead of this store, which was restored from an older copy; "
            "start without one"
        )
