"""The chain of hashes through the audit: each record carries the hash of the one before.

A hash is over the record's content-free form and a salted digest of all of it. Content can so be
erased: what stays is the content-free form, the digest and the chain.

Rule: a field of an event that may hold what a person said, or says who a person is, is in _CONTENT.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any, Final, get_type_hints

import msgspec

from routing_service.core import events as ev
from routing_service.core.events import MessageSaid, NoteAdded
from routing_service.core.vocabulary import Initiator
from routing_service.storage.store import AuditEntry, Change, SessionKey

SALT_BYTES: Final = 16
"""Random for each record: without its salt, which goes with the content, a digest tells nothing of
the content."""

_SALTS_AT_ONCE: Final = 256
_salts: list[bytes] = []


def new_salt() -> bytes:
    """Return the salt of one record.

    The system's randomness is fetched for many: each fetch lets other threads have Python's
    interpreter lock, which costs a busy event loop ten times the fetch itself. Taking a list's last
    entry is one step, so no two callers get the same.
    """
    try:
        return _salts.pop()
    except IndexError:
        fetched = os.urandom(SALT_BYTES * _SALTS_AT_ONCE)
        mine, *others = map(bytes, zip(*[iter(fetched)] * SALT_BYTES, strict=True))
        _salts.extend(others)
        return mine


if hasattr(os, "register_at_fork"):
    # A child process would use its parent's salts.
    os.register_at_fork(after_in_child=_salts.clear)

_CONTENT: Final[Mapping[type, frozenset[str]]] = {
    ev.SessionStarted: frozenset({"profile"}),
    ev.ProfileUpdated: frozenset({"profile"}),
    ev.TaskCreated: frozenset({"metadata"}),
    ev.TaskCompleted: frozenset({"summary"}),
    ev.TaskFailed: frozenset({"message"}),
    ev.TaskPaused: frozenset({"prompt"}),
    ev.TaskResumed: frozenset({"comment"}),
    ev.ApprovalRequested: frozenset({"fields"}),
    ev.ApprovalVoted: frozenset({"comment", "decider"}),
    ev.ApprovalDecided: frozenset({"decider"}),
    ev.MessageRouted: frozenset({"text", "items", "metadata", "reason_detail"}),
    ev.CommandHandled: frozenset({"text", "listed"}),
    ev.MessageQueued: frozenset({"text", "items", "metadata"}),
    ev.StepsReported: frozenset({"steps"}),
    ev.TurnCompleted: frozenset({"text", "items", "steps", "detail", "message"}),
    ev.AgentHandedOff: frozenset({"reason", "context", "message"}),
    ev.AgentCleared: frozenset({"reason"}),
    ev.SessionErased: frozenset({"owner_hash"}),
    MessageSaid: frozenset({"text", "by"}),
    NoteAdded: frozenset({"text", "author"}),
}

HANDOFF_REFUSED: Final = "handoff_refused"
"""The kind of the audit entries of refused handoffs: the only ones with content."""


class _Nothing(msgspec.Struct, frozen=True):
    """Stands for a content field that readers require."""


def _without_content(event: type) -> type:
    """Return an event's type without its content. Unknown fields are skipped as it is read."""
    content = _CONTENT.get(event, frozenset())
    hints = get_type_hints(event)
    fields: list[Any] = []
    for field in msgspec.structs.fields(event):
        if field.name not in content:
            kind = hints[field.name]
            if field.default is not msgspec.NODEFAULT:
                fields.append((field.name, kind, field.default))
            elif field.default_factory is not msgspec.NODEFAULT:
                factory = msgspec.field(default_factory=field.default_factory)
                fields.append((field.name, kind, factory))
            else:
                fields.append((field.name, kind))
        elif field.required:
            fields.append((field.name, _Nothing))
    config = event.__struct_config__  # type: ignore[attr-defined]
    return msgspec.defstruct(
        event.__name__,
        fields,
        frozen=True,
        omit_defaults=True,
        tag_field="kind",
        tag=config.tag,
    )


_Event: Any = None
for _type in ev.Event.__args__:
    _made = _without_content(_type)
    _Event = _made if _Event is None else _Event | _made


class ContentFree(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stored change's events without content; see event_codec.StoredEvents."""

    v: int
    events: list[_Event]
    active: list[str] = []
    registry_version: str = ""
    actor: str = ""
    trace_id: str = ""
    prev: bytes = b""


free_of = msgspec.json.Decoder(ContentFree).decode
"""Reads a change's events, not compressed, without their content. Raises DecodeError."""

_encode = msgspec.json.Encoder().encode
_sha256 = hashlib.sha256

Place = tuple[SessionKey, int, int, str, str, str]
"""What a change's row says of it: session, revision, time, method, request, agent."""


def place_of(key: SessionKey, change: Change) -> Place:
    """Return what a change's row says of it."""
    return (key, change.revision, change.time_us, change.method, change.request_id, change.actor)


def content_free(plain: bytes) -> bytes:
    """Return the content-free form of a change's events, not compressed. Raises DecodeError."""
    return _encode(free_of(plain))


def content_digest(plain: bytes, answer: bytes) -> bytes:
    """Return the digest of a change's events, with their salt, and its answer."""
    return _sha256(answer + plain).digest()


def change_hash(place: Place, free: bytes, digest: bytes) -> bytes:
    """Return the hash of a change, which the next one carries."""
    return _sha256(_encode((place, digest)) + free).digest()


class EntryChain(msgspec.Struct, frozen=True):
    """An audit entry's place: the writer's chain, its number there from 1, the hash before."""

    w: str
    n: int
    prev: bytes = b""


class _Data(msgspec.Struct, frozen=True):
    chain: EntryChain | None = None


_chain_of = msgspec.json.Decoder(_Data).decode


def entry_chain(data: bytes) -> EntryChain | None:
    """Return an entry's place in its chain; None = it is not chained. Raises DecodeError."""
    return _chain_of(data).chain if data else None


def entry_free(kind: str, data: bytes) -> bytes:
    """Return an entry's data without content. Raises DecodeError."""
    fields: dict[str, Any] = msgspec.json.decode(data)
    fields.pop("salt", None)
    if kind == HANDOFF_REFUSED:
        user = fields.pop("user", "")
        if fields.get("actor") == user:
            fields.pop("actor", None)
        metadata = fields.get("metadata", {})
        if metadata.get("initiator") != Initiator.OPERATOR.value:
            fields.pop("reason", None)
        fields["verdicts"] = [[rule, ok, ""] for rule, ok, _ in fields.get("verdicts", ())]
    return _encode(fields)


def entry_digest(entry: AuditEntry) -> bytes:
    """Return the digest of all that an entry holds. Its data hold its salt."""
    return _sha256(_encode(entry.user_id) + entry.data).digest()


def entry_hash(entry: AuditEntry, free: bytes, digest: bytes) -> bytes:
    """Return the hash of an entry, which the next one of its chain carries."""
    place = (
        entry.tenant,
        entry.session_id,
        entry.time_us,
        entry.revision,
        entry.kind,
        entry.request_id,
        digest,
    )
    return _sha256(_encode(place) + free).digest()


def merkle_root(leaves: list[bytes]) -> bytes:
    """Return the root of a Merkle tree; b"" without leaves. Source: RFC 6962, section 2.1."""
    if not leaves:
        return b""
    level = [_sha256(b"\0" + leaf).digest() for leaf in leaves]
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=False)
        above = [_sha256(b"\1" + left + right).digest() for left, right in pairs]
        level = above + level[len(level) & ~1 :]
    return level[0]
