"""What a change does to queues: the entries of inboxes and approvals that begin and end."""

from __future__ import annotations

from msgspec.structs import replace

from routing_service.core.inbox import InboxPlace, waiting_places
from routing_service.core.registry import Registry
from routing_service.core.session import SessionState
from routing_service.storage.queue_entries import QueueEntry, approval_entries
from routing_service.storage.store import Append

Entries = tuple[QueueEntry, ...]


def with_entries(
    append: Append, before: SessionState | None, after: SessionState, registry: Registry
) -> Append:
    """Add to an append the entries that its change puts and drops."""
    put, drop = changed_entries(before, after, registry)
    return replace(append, inbox_put=put, inbox_drop=drop) if put or drop else append


def changed_entries(
    before: SessionState | None, after: SessionState, registry: Registry
) -> tuple[Entries, Entries]:
    """Return the entries that begin and those that end with a change."""
    old, new = waiting_entries(before, registry), waiting_entries(after, registry)
    put = tuple(entry for entry in new if entry not in old)
    drop = tuple(entry for entry in old if entry not in new)
    return put, drop


def entry_at(place: InboxPlace, session_id: str) -> QueueEntry:
    """Return the entry of a turn."""
    return QueueEntry(place.agent_id, place.dispatched_us, session_id, place.request_id)


def place_at(entry: QueueEntry) -> InboxPlace:
    """Return the turn's place that an entry stands for."""
    return InboxPlace(entry.queue, entry.place_us, entry.request_id)


def waiting_entries(state: SessionState | None, registry: Registry) -> Entries:
    """Return the entries that a session should have."""
    if state is None:
        return ()
    places = waiting_places(state, registry) if registry.has_inboxes else []
    inbox = (entry_at(place, state.session_id) for place in places)
    return (*inbox, *approval_entries(state))
