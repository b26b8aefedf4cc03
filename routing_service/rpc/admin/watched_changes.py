"""The messages of WatchEvents: one a change, or one for the changes of an interval.

Rule: watchers that read the same changes for the same tenant get the same bytes, made once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import session_event_pb2
from routing_service.rpc.admin.unreadable import unreadable
from routing_service.rpc.agent_cards import AgentCards
from routing_service.rpc.event_mapping import change_out
from routing_service.rpc.page_tokens import token_of
from routing_service.sessions.stickiness_switch import ALL_TENANTS
from routing_service.storage.store import Change, SchemaTooNew, SessionKey, StoreCorrupt

BATCH_BYTES_MAX: Final = 256 * 1024
"""Of a batch: a change may have 300 KB, and a message 4 MiB."""

SHARED_MAX: Final = 8
"""Batches kept for other watchers. Consoles ask in the same instants, so a few are enough."""

Entries = list[tuple[SessionKey, Change]]
Wanted = tuple[str, frozenset[str]]
"""A tenant or ALL_TENANTS, and the kinds of events; none = all kinds."""


def heartbeat(cursor: bytes) -> bytes:
    """Return a heartbeat at a position."""
    message = pb.WatchEventsResponse(cursor=token_of(cursor))
    message.heartbeat.send_time.GetCurrentTime()
    return message.SerializeToString()


class WatchedChanges:
    """Makes messages of changes for watchers."""

    def __init__(self, cards_in_force: Callable[[], AgentCards]) -> None:
        """Show agents by cards_in_force."""
        self._cards = cards_in_force
        self._shared: dict[object, tuple[Entries, AgentCards, list[bytes]]] = {}

    def each(
        self, entries: Entries, before: bytes, after: bytes, wanted: Wanted
    ) -> list[tuple[bytes, str]]:
        """Return a message for each change that is wanted, with its cursor."""
        cards = self._cards()
        made = []
        for key, change in entries:
            shown = _shown(key, change, wanted, cards)
            if shown is None:
                continue
            # Only the last entry of a batch moves the cursor. After a broken stream a
            # reader recognises repeated changes by their revisions.
            cursor = token_of(after if change is entries[-1][1] else before)
            message = pb.WatchEventsResponse(cursor=cursor, tenant=key.tenant)
            if isinstance(shown, pb.Unreadable):
                message.unreadable.CopyFrom(shown)
            else:
                message.change.CopyFrom(shown)
            made.append((message.SerializeToString(), cursor))
        return made

    def batches(self, entries: Entries, before: bytes, after: bytes, wanted: Wanted) -> list[bytes]:
        """Return the wanted changes in as few messages as their size allows; the last has after."""
        cards = self._cards()
        name = (id(entries), after, wanted)
        found = self._shared.get(name)
        if found is not None and found[0] is entries and found[1] is cards:
            return found[2]
        bodies = _batches(entries, before, after, wanted, cards)
        if len(self._shared) >= SHARED_MAX:
            del self._shared[next(iter(self._shared))]
        self._shared[name] = (entries, cards, bodies)
        return bodies


def _batches(
    entries: Entries, before: bytes, after: bytes, wanted: Wanted, cards: AgentCards
) -> list[bytes]:
    """Return the messages of a batch. One without a wanted change is a heartbeat."""
    bodies: list[bytes] = []
    message, size = pb.WatchEventsResponse(cursor=token_of(before)), 0
    for key, change in entries:
        shown = _shown(key, change, wanted, cards)
        if shown is None:
            continue
        entry = message.batch.changes.add(tenant=key.tenant)
        if isinstance(shown, pb.Unreadable):
            entry.unreadable.CopyFrom(shown)
        else:
            entry.change.CopyFrom(shown)
        size += entry.ByteSize()
        if size >= BATCH_BYTES_MAX:
            bodies.append(message.SerializeToString())
            message, size = pb.WatchEventsResponse(cursor=token_of(before)), 0
    message.cursor = token_of(after)
    if not size:
        message.heartbeat.send_time.GetCurrentTime()
    return [*bodies, message.SerializeToString()]


def _shown(
    key: SessionKey, change: Change, wanted: Wanted, cards: AgentCards
) -> pb.Unreadable | session_event_pb2.Change | None:
    """Return a change for a watcher; None if it is not wanted or empty."""
    tenant, kinds = wanted
    if tenant not in (ALL_TENANTS, key.tenant):
        return None
    try:
        made = change_out(key, change, cards)
    except (StoreCorrupt, SchemaTooNew) as error:
        # A watch of all sessions goes on; the watchers of this session get the error.
        return unreadable(key, change.revision, error)
    if kinds and all(event.WhichOneof("kind") not in kinds for event in made.events):
        return None
    return made if made.events else None
