"""Erasing users and purging old sessions, both on request only.

Rule: each session is done as a whole, so that an erasure or purge that ends early (an error, a
deadline) can be called again and continues with the rest.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import structlog

from routing_service.core import events as ev
from routing_service.core.decide import view
from routing_service.sessions.audit_log import SESSION_PURGED, AuditLog, Operator
from routing_service.sessions.command_handler import CommandHandler
from routing_service.sessions.event_feed import EventFeed
from routing_service.sessions.stickiness_switch import ALL_TENANTS
from routing_service.storage.audit_pages import audit_of
from routing_service.storage.checked_store import Store
from routing_service.storage.event_codec import (
    BLANK_EVENTS,
    decode_events,
    decode_head,
    decode_state,
)
from routing_service.storage.store import (
    CURSOR_START,
    PAGE_ROWS_MAX,
    SchemaTooNew,
    SessionKey,
    SessionRow,
    StoreCorrupt,
    StoreError,
)

READ_CHANGES_MAX: Final = 50
"""Changes read at once to count what an erasure removes: each may have up to 300 KB."""

PURGE_SESSIONS_MAX: Final = 10_000
"""Sessions that one purge removes at most; it keeps their keys in memory."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Erased:
    """What an erasure removed, or would remove.

    turns: user messages. records: events and refusals with content or personal data.
    """

    sessions: int = 0
    turns: int = 0
    records: int = 0

    def __add__(self, other: Erased) -> Erased:
        """Add up both."""
        return Erased(
            self.sessions + other.sessions,
            self.turns + other.turns,
            self.records + other.records,
        )


@dataclass(frozen=True, slots=True)
class Purged:
    """How many sessions a purge removed, or would remove, and whether more are left."""

    sessions: int
    more: bool


class Retention:
    """Erases and purges in one store."""

    def __init__(
        self,
        store: Store,
        handler: CommandHandler,
        feed: EventFeed,
        clock_us: Callable[[], int],
        audit: AuditLog,
    ) -> None:
        """Work on one store. clock_us: microseconds since 1970. audit: records purges."""
        self._store = store
        self._handler = handler
        self._feed = feed
        self._clock_us = clock_us
        self._audit = audit

    async def erase_user(
        self,
        tenant: str,
        user_id: str,
        *,
        by: Operator,
        reason: str = "",
        validate_only: bool = False,
    ) -> Erased:
        """Erase all sessions of a user, one after the other; count what was removed.

        Refusals of the user in sessions that never began go too.

        A session whose erasure was interrupted is still listed for the user, and finished here.
        Sessions that begin meanwhile may be missed. Reads the list of all the tenant's sessions.
        Raises StoreError, RoutingError; StoreCorrupt or SchemaTooNew for a session whose state
        cannot be read, after all others were erased.
        """
        erased = Erased()
        damaged: StoreError | None = None
        async for row in self._sessions(tenant):
            if not row.revision and not validate_only:
                damaged = owner_unknown(row)
                _log.error("session_not_erased", session_id=row.key.session_id, error=str(damaged))
            if row.user_id != user_id:
                continue
            content = await self._content(row.key)
            if not validate_only:
                try:
                    await self._handler.erase(row.key, reason, by)
                except (StoreCorrupt, SchemaTooNew) as error:
                    # The other sessions are erased first; the error is raised at the end.
                    _log.error(
                        "session_not_erased", session_id=row.key.session_id, error=str(error)
                    )
                    damaged = error
                    continue
                _log.info("session_erased", tenant=tenant, session_id=row.key.session_id)
            erased += content
        erased += await self._erase_refusals(tenant, user_id, validate_only=validate_only)
        if damaged is not None:
            raise damaged
        return erased

    async def _erase_refusals(self, tenant: str, user_id: str, *, validate_only: bool) -> Erased:
        """Erase the user's refusals in sessions that are not stored, which no list shows."""
        found: dict[SessionKey, int] = {}
        async for entry in audit_of(self._store, tenant, None, per_read=PAGE_ROWS_MAX):
            if entry.user_id == user_id:
                key = SessionKey(tenant, entry.session_id)
                found[key] = found.get(key, 0) + 1
        records = 0
        for key, count in found.items():
            if await self._store.find_session(key) is None:
                records += count
                if not validate_only:
                    await self._store.erase_before(key, 0, BLANK_EVENTS)
        return Erased(records=records)

    async def _content(self, key: SessionKey) -> Erased:
        """Count what an erasure of a session removes."""
        turns = records = after = 0
        while changes := await self._store.read_changes(key, after=after, limit=READ_CHANGES_MAX):
            for change in changes:
                after = change.revision
                try:
                    found = decode_events(change.events)
                except (StoreCorrupt, SchemaTooNew):
                    # A change that cannot be read can still be erased.
                    records += 1
                    continue
                events = [event for event in found if not isinstance(event, _KEPT)]
                records += len(events)
                turns += sum(isinstance(event, ev.MessageRouted) for event in events)
        async for entry in audit_of(self._store, *key, per_read=PAGE_ROWS_MAX):
            records += bool(entry.user_id or entry.data)
        return Erased(1, turns, records)

    async def purge(
        self,
        tenant: str,
        before_us: int,
        *,
        sessions_max: int,
        by: Operator,
        reason: str = "",
        validate_only: bool = False,
    ) -> Purged:
        """Remove sessions that last changed before a time, the oldest first.

        A session with an open turn stays, as does one that waits for an approval, one that is used
        meanwhile, and one that cannot be read. sessions_max: at most so many, up to
        PURGE_SESSIONS_MAX. tenant: ALL_TENANTS = all of them. Reads the list of all the tenant's
        sessions. Raises StoreError.
        """
        assert 1 <= sessions_max <= PURGE_SESSIONS_MAX, sessions_max
        # A heap of the oldest so far, the youngest on top: (-update_us, key, revision).
        chosen: list[tuple[int, SessionKey, int]] = []
        more = False
        async for row in self._sessions(tenant):
            entry = (-row.update_us, row.key, row.revision)
            if row.update_us >= before_us or (len(chosen) == sessions_max and entry <= chosen[0]):
                # Read only sessions that are old enough to be removed.
                more = more or (row.update_us < before_us and await self._may_go(row.key))
                continue
            if not await self._may_go(row.key):
                continue
            if len(chosen) == sessions_max:
                more = True
                heapq.heapreplace(chosen, entry)
            else:
                heapq.heappush(chosen, entry)
        if validate_only:
            return Purged(len(chosen), more)
        removed = 0
        for _, key, revision in sorted(chosen, reverse=True):
            removed += await self._purge_one(key, revision, reason, by)
        return Purged(removed, more)

    async def _purge_one(self, key: SessionKey, revision: int, reason: str, by: Operator) -> bool:
        head = await self._store.load(key)
        if head is None or not await self._handler.delete(key, revision):
            return False
        said = {"reason": reason}
        with suppress(StoreCorrupt, SchemaTooNew):
            # The deletion held the revision: this is the session's last hash.
            said["last_hash"] = decode_head(head.state)[1].hex()
        self._feed.end(key)
        _log.info("session_purged", tenant=key.tenant, session_id=key.session_id)
        await self._audit.note(by, key, SESSION_PURGED, said, at=revision)
        return True

    async def _may_go(self, key: SessionKey) -> bool:
        """Say whether a session may be removed: no open turn, pending approval or parked task."""
        head = await self._store.load(key)
        if head is None:
            return False
        try:
            state = decode_state(head.state)
        except (StoreCorrupt, SchemaTooNew) as error:
            _log.warning("session_not_purged", session_id=key.session_id, error=str(error))
            return False
        now = view(state, self._handler.registry, self._clock_us())
        return not now.open_turns and now.paused is None and now.apart is None

    async def _sessions(self, tenant: str) -> AsyncIterator[SessionRow]:
        async for one in self._tenants(tenant):
            cursor = CURSOR_START
            rows = None
            while rows is None or len(rows) == PAGE_ROWS_MAX:
                rows, cursor = await self._store.list_sessions(one, cursor, PAGE_ROWS_MAX)
                for row in rows:
                    yield row

    async def _tenants(self, tenant: str) -> AsyncIterator[str]:
        if tenant != ALL_TENANTS:
            yield tenant
            return
        names: list[str] = []
        while page := await self._store.list_tenants(names[-1] if names else "", PAGE_ROWS_MAX):
            names = page
            for name in page:
                yield name


def owner_unknown(row: SessionRow) -> StoreCorrupt:
    """Return the error for a session whose row is damaged in its form."""
    return StoreCorrupt(
        f'the head of session "{row.key.session_id}" cannot be read, so its owner is unknown; '
        "restore it from a backup"
    )


_KEPT: Final = (ev.SessionErased, ev.TimePassed)
"""Events without content, which an erasure does not count."""
