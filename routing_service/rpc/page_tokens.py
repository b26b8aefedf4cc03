"""Page tokens and cursors as callers see them: opaque text, URL-safe base64 without padding."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

from routing_service.core.errors import RoutingError, invalid_field
from routing_service.storage.queue_entries import QueueEntry
from routing_service.storage.store import CURSOR_START, INT_MAX, TASKS_START, TaskCursor

_TASK_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NUMBER: Final = re.compile(r"0|-?[1-9][0-9]{0,18}")
"""A number as this module writes it: int() also reads spaces, underscores and other digits."""

PAGE_BYTES_MAX: Final = 1024 * 1024
"""The size at which a page ends. It is well below the 4 MiB that clients accept by default."""


def token_of(data: bytes) -> str:
    """Return bytes as a token."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def token_of_parts(*parts: int | str) -> str:
    """Return numbers and ids, joined by colons, as a token."""
    return token_of(":".join(map(str, parts)).encode())


def cursor_in(token: str, field: str = "page_token") -> bytes:
    """Return the bytes of a token; no token = the start of the log. Raises INVALID_FIELD."""
    if not token:
        return bytes(CURSOR_START)
    try:
        return _decoded(token)
    except (ValueError, binascii.Error) as error:
        raise bad_token(field) from error


def revision_in(token: str) -> int | None:
    """Return the revision of a token; None without one. Raises INVALID_FIELD."""
    if not token:
        return None
    try:
        return _number(cursor_in(token).decode("ascii"))
    except ValueError as error:
        raise bad_token() from error


def turn_position_in(token: str) -> tuple[int, int] | None:
    """Return a turn's position: its revision and place in it; None without a token.

    Raises INVALID_FIELD.
    """
    if not token:
        return None
    try:
        revision, place = map(_number, _parts(token))
    except (ValueError, binascii.Error) as error:
        raise bad_token() from error
    return revision, place


def task_cursor_in(token: str) -> TaskCursor:
    """Return the cursor of a token; no token = the first task. Raises INVALID_FIELD."""
    if not token:
        return TASKS_START
    try:
        create_us, task_id = _parts(token)
        if not _TASK_ID.fullmatch(task_id):
            raise bad_token()
        return TaskCursor(_number(create_us), task_id)
    except (ValueError, binascii.Error) as error:
        raise bad_token() from error


def entry_token(entry: QueueEntry) -> str:
    """Return the position of an entry in its queue as a token."""
    return token_of_parts(entry.place_us, entry.request_id, entry.session_id)


def entry_in(token: str, queue: str) -> QueueEntry | None:
    """Return the entry of a token; None without one. Raises INVALID_FIELD."""
    if not token:
        return None
    try:
        place_us, request_id, session_id = _decoded(token).decode().split(":", 2)
        if not _TASK_ID.fullmatch(request_id):
            raise bad_token()
        return QueueEntry(queue, _number(place_us), session_id, request_id)
    except (ValueError, binascii.Error) as error:
        raise bad_token() from error


def bad_token(field: str = "page_token") -> RoutingError:
    """Return the refusal of a token that this list did not make. field: the one it came in."""
    return invalid_field(field, "was not made by this list; send the token unchanged")


def _parts(token: str) -> list[str]:
    return _decoded(token).decode("ascii").split(":")


def _number(text: str) -> int:
    """Return a number of a token. Raises ValueError."""
    if not _NUMBER.fullmatch(text) or not -1 <= int(text) <= INT_MAX:
        raise ValueError(text)
    return int(text)


def _decoded(token: str) -> bytes:
    padded = token + "=" * (-len(token) % 4)
    return base64.b64decode(padded, altchars=b"-_", validate=True)
