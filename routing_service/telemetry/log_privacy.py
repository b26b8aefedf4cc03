"""Personal data in logs: which ids are hashed, and which errors' messages are shown.

Its rule: when in doubt, leave it out. An error's place is always shown; its message only if it
comes from the operating system, the store or our own code, because others quote the value they
failed on.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import sqlite3
import traceback
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any, Final

from routing_service.core.errors import RoutingError
from routing_service.storage.store import StoreError

NOT_LOGGED: Final = "[not logged]"

NAMING_FIELDS: Final = frozenset(
    {"actor", "origin", "owner", "peer", "session_id", "subject", "url_path", "user_id"}
)
"""Fields that may identify a person: names, or ids that callers choose and that may contain a name,
a mail address or a telephone number. Ids of tasks and requests are random and stay."""

KEY_BYTES_MIN: Final = 16
"""A shorter key could be guessed, and with it every id that can be guessed."""

_HASH_BYTES: Final = 8
_IN_WORDS: Final = re.compile(r'\b(session|user|owner) "([^"\n]*)"')
_SHOWN_BY_NAME: Final = frozenset(
    # Errors of drivers, by name because drivers are imported lazily: about the connection.
    {
        "OperationalError",
        "InterfaceError",
        "ConnectionError",
        "TimeoutError",
        "EndpointConnectionError",
    }
)


class LogKeyInvalid(Exception):
    """An invalid key file; the message says why, and what to do."""


class IdHashes:
    """Replaces ids with keyed hashes: the same id has the same hash.

    Without a key, ids could be found again by hashing every telephone number.
    """

    def __init__(self, key: bytes = b"") -> None:
        """Use this key; b"" makes a random one that is never stored."""
        self._key = key or secrets.token_bytes(32)

    def hide(self, value: str) -> str:
        """Return an id's hash: "#" and 16 hexadecimal digits. An empty id stays empty."""
        if not value:
            return ""
        made = hashlib.blake2b(
            value.encode("utf-8", "surrogatepass"), digest_size=_HASH_BYTES, key=self._key
        )
        return f"#{made.hexdigest()}"

    def hide_in(self, event: MutableMapping[str, Any]) -> None:
        """Replace the ids of one log line, also in fields that quote them."""
        hidden = {
            event[name]: self.hide(event[name])
            for name in NAMING_FIELDS & event.keys()
            if isinstance(event[name], str) and event[name]
        }
        for name, value in event.items():
            if not isinstance(value, str):
                continue
            if name in NAMING_FIELDS:
                event[name] = hidden.get(value, value)
                continue
            shown = _IN_WORDS.sub(lambda found: f'{found[1]} "{self.hide(found[2])}"', value)
            for plain, hashed in hidden.items():
                # Only in quotation marks: an id such as "a" is part of many other words.
                for quote in "\"'":
                    shown = shown.replace(f"{quote}{plain}{quote}", f"{quote}{hashed}{quote}")
            event[name] = shown


def read_key(path: str) -> bytes:
    """Read the key of the hashes; "" = none. Raises LogKeyInvalid."""
    if not path:
        return b""
    try:
        key = Path(path).read_bytes().strip()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise LogKeyInvalid(
            f'the key file "{path}" of log_ids cannot be read: {reason}; check path and permissions'
        ) from None
    if len(key) < KEY_BYTES_MIN:
        raise LogKeyInvalid(
            f'the key file "{path}" of log_ids has {len(key)} bytes, at least {KEY_BYTES_MIN} are '
            f"needed; make one: openssl rand -hex 32 > {path}"
        )
    # The hash takes keys of up to 64 bytes; a longer file counts as a whole.
    return hashlib.blake2b(key).digest()


def trace_of(error: BaseException, *, with_words: bool) -> str:
    """Return an error's trace without local variables. with_words: with foreign messages too."""
    return "".join(_trace(error, with_words=with_words, seen=set())).rstrip("\n")


def _trace(error: BaseException, *, with_words: bool, seen: set[int]) -> Iterator[str]:
    seen.add(id(error))
    before, link = error.__cause__, "\nThe above was the direct cause of:\n\n"
    if before is None and not error.__suppress_context__:
        before, link = error.__context__, "\nWhile that was handled:\n\n"
    if before is not None and id(before) not in seen:
        yield from _trace(before, with_words=with_words, seen=seen)
        yield link
    if error.__traceback__ is not None:
        yield "Traceback (most recent call last):\n"
        yield from traceback.format_tb(error.__traceback__)
    yield f"{_name_of(error)}: {words_of(error, with_words=with_words)}\n"
    if isinstance(error, BaseExceptionGroup):
        for number, inner in enumerate(error.exceptions, 1):
            yield f"--- {number} of {len(error.exceptions)} ---\n"
            if id(inner) not in seen:
                yield from _trace(inner, with_words=with_words, seen=seen)


def words_of(error: BaseException, *, with_words: bool) -> str:
    """Return an error's message, or a note that it is not shown."""
    try:
        words = str(error)
    except Exception:  # noqa: BLE001 - the line is written even if __str__ fails
        return NOT_LOGGED
    if not words or with_words or _may_be_shown(error):
        return words
    return NOT_LOGGED


def _may_be_shown(error: BaseException) -> bool:
    """Return whether an error's message is about the machine rather than about a value."""
    shown = (
        OSError,
        StoreError,
        RoutingError,
        sqlite3.Error,
        MemoryError,
        RecursionError,
        EOFError,
    )
    # UnicodeError and the like quote the text they could not read, so they are not among these.
    return isinstance(error, shown) or type(error).__name__ in _SHOWN_BY_NAME


def _name_of(error: BaseException) -> str:
    kind = type(error)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
