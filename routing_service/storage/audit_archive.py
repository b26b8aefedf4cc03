"""The audit of sessions whose content is gone: the form of their records, and how they are found.

Rule: a record is what it was without content, so that its place in the chain can still be proved.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import msgspec
import structlog

from routing_service.core import events as ev
from routing_service.core.vocabulary import Initiator
from routing_service.storage.audit_chain import (
    content_digest,
    content_free,
)
from routing_service.storage.audit_pages import audit_of
from routing_service.storage.checked_store import Store
from routing_service.storage.event_codec import (
    BLANK_EVENTS,
    StoredEvents,
    decode_change,
    encode_stored,
    plain_events,
)
from routing_service.storage.store import AuditEntry, Change, SchemaTooNew, SessionKey, StoreCorrupt

_log = structlog.get_logger(__name__)

SESSION_ARCHIVED: Final = "session_archived"
"""The kind of the entries with archived records."""

READ_MAX: Final = 50
"""Changes read at once: each may have up to 300 KB."""

READ_ENTRIES_MAX: Final = 500

_NAME_BYTES: Final = 16


class ArchivedChange(msgspec.Struct, frozen=True, array_like=True):
    """A change without content. digest: of all that it held.

    reasons: those that operators gave, by the place of the event.
    """

    revision: int
    time_us: int
    method: str
    request_id: str
    actor: str
    digest: bytes
    free: msgspec.Raw
    reasons: tuple[tuple[int, str], ...] = ()

    def shown(self) -> Change:
        """Return the change as it can still be shown."""
        stored = decode_change(bytes(self.free))
        events = list(stored.events)
        for place, reason in self.reasons:
            events[place] = msgspec.structs.replace(events[place], reason=reason)
        made = encode_stored(msgspec.structs.replace(stored, events=events))
        return self.change(made)

    def change(self, events: bytes) -> Change:
        """Return the change with these events."""
        return Change(
            self.revision, self.time_us, self.method, self.request_id, self.actor, b"", events, b""
        )


class ArchivedEntry(msgspec.Struct, frozen=True, array_like=True):
    """An audit entry without content. digest: of all that it held."""

    time_us: int
    revision: int
    kind: str
    request_id: str
    digest: bytes
    free: msgspec.Raw

    def shown(self, key: SessionKey) -> AuditEntry:
        """Return the entry as it can still be shown."""
        return AuditEntry(
            self.time_us,
            *key,
            self.revision,
            self.kind,
            self.request_id,
            "",
            bytes(self.free),
        )


class Archived(msgspec.Struct, frozen=True):
    """Records of one session. create_us: when it began, which tells it from others of its name.

    is_purge: they were archived because the session was to be removed.
    """

    session_id: str
    create_us: int
    is_purge: bool
    changes: tuple[ArchivedChange, ...] = ()
    entries: tuple[ArchivedEntry, ...] = ()


def archive_key(key: SessionKey) -> SessionKey:
    """Return where a session's archived records are: no session has such a name."""
    name = hashlib.blake2b(key.session_id.encode(), digest_size=_NAME_BYTES).hexdigest()
    return SessionKey(key.tenant, f"\x1f{name}")


def archived_in(entry: AuditEntry) -> Archived:
    """Return the records in an entry of the kind SESSION_ARCHIVED. Raises StoreCorrupt."""
    try:
        return msgspec.json.decode(entry.data, type=Archived)
    except msgspec.DecodeError as error:
        raise StoreCorrupt("archived audit records cannot be read") from error


class ArchiveOf:
    """The archived records of one session that is still stored, by revision."""

    def __init__(self, found: Sequence[Archived], create_us: int | None) -> None:
        """Take what was found. create_us: when the session began; None = it is not stored."""
        self.former = [each for each in found if each.create_us != create_us]
        """Records of sessions of this name that were purged."""
        erased = [each for each in found if each.create_us == create_us and not each.is_purge]
        self.changes = {change.revision: change for each in erased for change in each.changes}
        self.entries = [entry for each in erased for entry in each.entries]


async def read_archive(store: Store, key: SessionKey) -> list[Archived]:
    """Return a session's archived records, also of earlier sessions of its name."""
    found: list[Archived] = []
    async for entry in audit_of(store, *archive_key(key), per_read=READ_ENTRIES_MAX):
        if entry.kind != SESSION_ARCHIVED:
            continue
        try:
            found.append(archived_in(entry))
        except StoreCorrupt as error:
            # Damage ends at its own row; audit verify names it.
            _log.error("audit_archive_unreadable", tenant=key.tenant, error=str(error))
    return [each for each in found if each.session_id == key.session_id]


def archived_change(change: Change) -> ArchivedChange | None:
    """Return a change without its content; None if it has none left, or cannot be read."""
    if change.events == BLANK_EVENTS:
        return None
    try:
        stored = decode_change(change.events)
    except (StoreCorrupt, SchemaTooNew):
        return None
    plain = plain_events(change.events)
    return ArchivedChange(
        change.revision,
        change.time_us,
        change.method,
        change.request_id,
        change.actor,
        # Without a salt a digest would tell a guess of the content from others.
        content_digest(plain, change.answer) if stored.salt else b"",
        msgspec.Raw(content_free(_without_user(stored, plain))),
        _reasons(stored),
    )


def _without_user(stored: StoredEvents, plain: bytes) -> bytes:
    """Return a change's events as they count: releases before the chain named a user twice."""
    if stored.actor and stored.actor == stored.user_id and not stored.salt:
        return msgspec.json.encode(msgspec.structs.replace(stored, actor=""))
    return plain


def _reasons(stored: StoredEvents) -> tuple[tuple[int, str], ...]:
    """Return the reasons that operators gave: they are no content of the user's conversation."""
    return tuple(
        (place, event.reason)
        for place, event in enumerate(stored.events)
        if isinstance(event, ev.AgentHandedOff)
        and event.initiator is Initiator.OPERATOR
        and event.reason
    )
