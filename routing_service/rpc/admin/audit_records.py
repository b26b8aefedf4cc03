"""Stored changes and audit entries as records of the audit, with what an archive has of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import structlog

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import session_event_pb2
from routing_service.core import events as ev
from routing_service.rpc.admin.audit_entries import (
    act_out,
    method_path,
    purge_out,
    refusal_out,
    seal_out,
    switch_out,
)
from routing_service.rpc.admin.unreadable import UnreadableError, unreadable
from routing_service.rpc.agent_cards import AgentCards
from routing_service.rpc.event_mapping import (
    bare_event,
    event_out,
)
from routing_service.sessions.audit_log import (
    OPERATOR_ACT,
    SESSION_PURGED,
)
from routing_service.sessions.refusals import HANDOFF_REFUSED
from routing_service.sessions.stickiness_switch import STICKINESS_SWITCHED
from routing_service.storage.audit_archive import (
    Archived,
    ArchiveOf,
)
from routing_service.storage.audit_pages import audit_of
from routing_service.storage.audit_seals import AUDIT_SEALED
from routing_service.storage.checked_store import Store
from routing_service.storage.event_codec import BLANK_EVENTS, decode_change
from routing_service.storage.row_content import decode_audit
from routing_service.storage.store import (
    DAMAGED,
    AuditEntry,
    Change,
    SchemaTooNew,
    SessionKey,
    StoreCorrupt,
)

_log = structlog.get_logger(__name__)

READ_REFUSALS_MAX: Final = 500

NO_ARCHIVE: Final = ArchiveOf((), None)


async def read_refusals(store: Store, key: SessionKey) -> list[AuditEntry]:
    """Return the audit entries of a session's refused handoffs."""
    return [entry for entry in await read_entries(store, key) if entry.kind == HANDOFF_REFUSED]


async def read_entries(store: Store, key: SessionKey) -> list[AuditEntry]:
    """Return all audit entries of a session."""
    return [entry async for entry in audit_of(store, *key, per_read=READ_REFUSALS_MAX)]


def shown_records(
    key: SessionKey,
    change: Change,
    refused: list[AuditEntry],
    cards: AgentCards,
    archive: ArchiveOf,
) -> list[pb.AuditRecord]:
    """Return a change's records; of an erased change, those that were archived."""
    archived = archive.changes.get(change.revision) if change.events == BLANK_EVENTS else None
    if archived is None:
        return records_of(key, change, refused, cards)
    records = records_of(key, archived.shown(), refused, cards)
    for record in records:
        record.content_removed = True
    return records


def archived_records(key: SessionKey, found: Archived, cards: AgentCards) -> list[pb.AuditRecord]:
    """Return all records in an entry of the archive."""
    key = SessionKey(key.tenant, found.session_id)
    records = [
        record for change in found.changes for record in records_of(key, change.shown(), [], cards)
    ]
    for entry in found.entries:
        made = entry_record(key, entry.shown(key), cards)
        if made is not None:
            records.append(made)
    for record in records:
        record.content_removed = True
    return records


def records_of(
    key: SessionKey, change: Change, refused: list[AuditEntry], cards: AgentCards
) -> list[pb.AuditRecord]:
    """Return a change's events as audit records, then what was refused at its revision.

    A change that cannot be read has one record, which says so.
    """
    refusals = [
        refusal_record(key, entry, cards) for entry in refused if entry.revision == change.revision
    ]
    try:
        stored = decode_change(change.events)
    except (StoreCorrupt, SchemaTooNew) as error:
        return [unreadable_record(key, change, error), *refusals]
    method = method_path(change.method)
    records = []
    if not stored.events:
        # Erased: what remains is that there was a change, when, and by which call.
        left = bare_event(key, change, "0")
        records.append(pb.AuditRecord(tenant=key.tenant, event=left, method=method))
    for index in range(len(stored.events)):
        event = event_out(key, change, stored, index, cards)
        if event is not None:
            made = pb.AuditRecord(
                tenant=key.tenant,
                event=event,
                actor=stored.actor or stored.user_id,
                method=method,
                trace_id=stored.trace_id,
            )
            if stored.actor and stored.actor != stored.user_id:
                made.acting_for = stored.user_id
            said = stored.events[index]
            if isinstance(said, ev.SessionErased):
                # Watchers do not get it.
                made.event.session_erased.reason = said.reason
            records.append(made)
    return [*records, *refusals]


def unreadable_record(
    key: SessionKey, row: Change | AuditEntry, error: UnreadableError
) -> pb.AuditRecord:
    """Return the record that stands for a row that cannot be read."""
    event = bare_event(key, row, "u")
    if not row.time_us:
        # Damaged in its form: its time is not known either.
        event.ClearField("event_time")
    return pb.AuditRecord(
        tenant=key.tenant, event=event, unreadable=unreadable(key, row.revision, error)
    )


def records_in(
    key: SessionKey, entry: Change | AuditEntry, cards: AgentCards, archive: ArchiveOf
) -> list[pb.AuditRecord]:
    """Return the records of one change or audit entry."""
    if isinstance(entry, AuditEntry):
        made = entry_record(key, entry, cards)
        return [] if made is None else [made]
    return shown_records(key, entry, [], cards, archive)


_ENTRIES: Final[
    Mapping[str, Callable[[AuditEntry], tuple[session_event_pb2.SessionEvent, str]]]
] = {
    STICKINESS_SWITCHED: lambda entry: (switch_out(entry), "SetStickiness"),
    OPERATOR_ACT: act_out,
    SESSION_PURGED: lambda entry: (purge_out(entry), "PurgeSessions"),
    AUDIT_SEALED: lambda entry: (seal_out(entry), ""),
}
"""What operators did and the service sealed, as an event and its method, by the entry's kind."""

ENTRY_KINDS: Final = frozenset({*_ENTRIES, HANDOFF_REFUSED})
"""Kinds of events that are entries of the audit and never changes of a session."""


def entry_record(key: SessionKey, entry: AuditEntry, cards: AgentCards) -> pb.AuditRecord | None:
    """Return the record of an audit entry; None if it has none, or its content was erased."""
    if not entry.data:
        return None
    if entry.kind == HANDOFF_REFUSED:
        return refusal_record(key, entry, cards)
    try:
        data = decode_audit(entry) if entry.kind in _ENTRIES or entry.data == DAMAGED else None
        if data is None:
            return None
        event, method = _ENTRIES[entry.kind](entry)
    except StoreCorrupt as error:
        return unreadable_record(key, entry, error)
    return pb.AuditRecord(
        tenant=key.tenant,
        event=event,
        actor=data.get("by", ""),
        method=method_path(method),
        trace_id=data.get("trace_id", ""),
    )


def refusal_record(key: SessionKey, entry: AuditEntry, cards: AgentCards) -> pb.AuditRecord:
    """Return the record of a refused handoff, with its caller as far as the caller was known."""
    try:
        data = decode_audit(entry)
    except StoreCorrupt as error:
        return unreadable_record(key, entry, error)
    event, method = refusal_out(key, entry, cards)
    actor, user = data.get("actor", ""), data.get("user", "")
    return pb.AuditRecord(
        tenant=key.tenant,
        event=event,
        actor=actor or user,
        acting_for=user if actor and user != actor else "",
        method=method,
        trace_id=data.get("trace_id", ""),
    )
