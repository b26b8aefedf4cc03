"""Events and states as versioned bytes, and back.

Bytes of older releases stay readable for ever. Bytes of a newer release are SchemaTooNew, not
damage: a new kind of event is written one release after it can be read.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec

from routing_service.core.events import Event
from routing_service.core.session import SessionState
from routing_service.storage.audit_chain import Place, free_of
from routing_service.storage.store import DAMAGED, SchemaTooNew, StoreCorrupt

EVENTS_VERSION: Final = 1
STATE_VERSION: Final = 2
"""2: with the rule of an approval, with parked tasks, or with session.Work, what a turn that
takes long has. A release that reads 1 would drop them. Other states stay 1."""

_PLAIN_STATE: Final = 1

COMPRESS_EVENTS_FROM_BYTES: Final = 32 * 1024
"""JSON writes a control character as six bytes and a byte of data as four thirds, so that a legal
message could outgrow what one change may have. Only the largest changes pay for compressing."""

COMPRESS_FROM_BYTES: Final = 2048
"""States are rarely this large, and compressing costs more than the bytes do below it. Above it the
repeated field names and ids shrink to a fraction, which keeps the state within its bound."""

_COMPRESSED: Final = b"z"
_ZLIB_LEVEL: Final = 1


class StoredEvents(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change's events as they are stored.

    v: the form's version. active: the active agent's id after each event, "" for none. user_id: the
    caller; "" for an agent runtime, an operator without a name, or the service itself.
    registry_version: of the registry that decided. actor: the signed-in caller; "" = none.
    trace_id: of the call, W3C; "" = it had none. prev: the
    hash of the change before; salt: of the content's digest; see audit_chain.
    """

    v: int
    events: list[Event]
    active: list[str] = []
    user_id: str = ""
    registry_version: str = ""
    actor: str = ""
    trace_id: str = ""
    prev: bytes = b""
    salt: bytes = b""


class _StoredState(msgspec.Struct, frozen=True, omit_defaults=True):
    v: int
    state: SessionState
    chain: bytes = b""
    """The hash of the last change; b"" = it was written by a release without the chain."""


_encoder = msgspec.json.Encoder()
_encode = _encoder.encode
_events_decoder = msgspec.json.Decoder(StoredEvents)
_state_decoder = msgspec.json.Decoder(_StoredState)
_KINDS: Final = frozenset(member.__struct_config__.tag for member in Event.__args__)


def encode_events(
    events: Sequence[Event],
    active_after: Sequence[str] = (),
    *,
    user_id: str = "",
    registry_version: str = "",
    actor: str = "",
    trace_id: str = "",
) -> bytes:
    """Return the stored form of one change's events."""
    stored = StoredEvents(
        EVENTS_VERSION,
        list(events),
        list(active_after),
        user_id,
        registry_version,
        actor,
        trace_id,
    )
    data = _encoder.encode(stored)
    if len(data) < COMPRESS_EVENTS_FROM_BYTES:
        return data
    return _COMPRESSED + zlib.compress(data, _ZLIB_LEVEL)


def encode_stored(stored: StoredEvents) -> bytes:
    """Return the stored form of a change's events as they were read."""
    return _encode(stored)


def encode_linked(stored: StoredEvents, place: Place, answer: bytes) -> tuple[bytes, bytes]:
    """Return the stored form of a change's events, and the change's hash, for the next one.

    The hash is audit_chain.change_hash. It is made here in one go: every message pays for it.
    place, answer: of the change.
    """
    data = _encode(stored)
    digest = sha256(answer + data).digest()
    link = sha256(_encode((place, digest)) + _encode(free_of(data))).digest()
    if len(data) < COMPRESS_EVENTS_FROM_BYTES:
        return data, link
    return _COMPRESSED + zlib.compress(data, _ZLIB_LEVEL), link


ERASE_USER: Final = "EraseUser"
"""The method of a session's last change, by which its content goes."""

BLANK_EVENTS: Final = encode_events(())
"""What stands in place of a change's events after its session was erased. No change that was
decided is without events."""


def decode_events(data: bytes) -> list[Event]:
    """Return the events of one change. Raises SchemaTooNew, StoreCorrupt."""
    return decode_change(data).events


def decode_change(data: bytes) -> StoredEvents:
    """Return the events of one change and what is kept with them. Raises as decode_events."""
    plain = _decompressed("event", data)
    try:
        stored = _events_decoder.decode(plain)
    except msgspec.DecodeError as error:
        raise _explain("event", plain, EVENTS_VERSION) from error
    if stored.v > EVENTS_VERSION:
        where = "a stored change"
        raise SchemaTooNew(where, stored.v, EVENTS_VERSION)
    return stored


def _packed(stored: _StoredState) -> bytes:
    data = _encode(stored)
    if len(data) < COMPRESS_FROM_BYTES:
        return data
    return _COMPRESSED + zlib.compress(data, _ZLIB_LEVEL)


def encode_state(state: SessionState, chain: bytes = b"") -> bytes:
    """Return the stored form of a session's state. chain: the hash of its last change."""
    if state.approval is not None or state.has_work:
        return _packed(_StoredState(STATE_VERSION, state, chain))
    data = _encode(
        _StoredState(_PLAIN_STATE, state, chain)
    )  # As _packed: every change pays for it.
    if len(data) < COMPRESS_FROM_BYTES:
        return data
    return _COMPRESSED + zlib.compress(data, _ZLIB_LEVEL)


def decode_state(data: bytes) -> SessionState:
    """Return a session's state. Raises SchemaTooNew, StoreCorrupt."""
    return decode_head(data)[0]


def decode_head(data: bytes) -> tuple[SessionState, bytes]:
    """Return a session's state and the hash of its last change. Raises as decode_state."""
    plain = _decompressed("state", data)
    try:
        stored = _state_decoder.decode(plain)
    except msgspec.DecodeError as error:
        raise _explain("state", plain, STATE_VERSION) from error
    if stored.v > STATE_VERSION:
        where = "a stored state"
        raise SchemaTooNew(where, stored.v, STATE_VERSION)
    return stored.state, stored.chain


def plain_events(data: bytes) -> bytes:
    """Return a change's stored events as they were before they were compressed."""
    return _decompressed("event", data)


def is_newer_change(data: bytes) -> bool:
    """Say whether bytes are a change of a newer release, which may count its checksum otherwise."""
    try:
        decode_change(data)
    except SchemaTooNew:
        return True
    except StoreCorrupt:
        pass
    return False


def is_newer_state(data: bytes) -> bool:
    """Say whether bytes are a state of a newer release, which may count its checksum otherwise."""
    try:
        decode_state(data)
    except SchemaTooNew:
        return True
    except StoreCorrupt:
        pass
    return False


def _decompressed(what: str, data: bytes) -> bytes:
    if data == DAMAGED:
        message = f"a stored {what} does not fit its checksum; restore it from a backup"
        raise StoreCorrupt(message)
    if data[:1] != _COMPRESSED:
        return data
    try:
        return zlib.decompress(data[1:])
    except zlib.error as error:
        message = f"a stored {what} cannot be decompressed; restore it from a backup"
        raise StoreCorrupt(message) from error


def _explain(what: str, data: bytes, supported: int) -> Exception:
    """Tell bytes of a newer release from damaged ones."""
    try:
        raw: Any = msgspec.json.decode(data)
        version = int(raw["v"])
        kinds = {event.get("kind") for event in raw.get("events", ())}
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError):
        return StoreCorrupt(f"a stored {what} cannot be read; restore it from a backup")
    if version > supported:
        return SchemaTooNew(f"a stored {what}", version, supported)
    unknown = kinds - _KINDS
    if unknown and all(isinstance(kind, str) for kind in unknown):
        # A release may write a new kind under the same version: it is still only newer.
        return SchemaTooNew(f"a stored {what} of kind {min(unknown)}", version + 1, supported)
    return StoreCorrupt(f"a stored {what} cannot be read; restore it from a backup")
