"""Seals the audit of every tenant about once a minute.

One of several replicas seals, by a lease. Rule: it is correct without the lease: two that seal at
once make two seals of one number, and both are true.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec
import structlog

from routing_service.storage.audit_chain import (
    entry_chain,
    entry_digest,
    entry_free,
    entry_hash,
)
from routing_service.storage.audit_seals import (
    AUDIT_SEALED,
    Seal,
    SealedChain,
    SealedHead,
    read_seals,
    root_of,
    seal_entry,
)
from routing_service.storage.event_codec import decode_head
from routing_service.storage.store import (
    CURSOR_START,
    OWN_SETTING_PREFIX,
    AuditEntry,
    CursorInvalid,
    SchemaTooNew,
    SessionKey,
    Store,
    StoreCorrupt,
    StoreError,
)

SEAL_INTERVAL_S: Final = 60.0

LEASE_S: Final = 150.0
"""Two intervals and a half: the replica that sealed last goes on."""

LOG_PAGE: Final = 50
"""Changes read at once: each may have up to 300 KB."""

CHANGES_PER_ROUND_MAX: Final = 100_000
"""Changes of one round; the next round goes on, at once."""

AUDIT_PAGE: Final = 200

HEADS_PER_SEAL_MAX: Final = 1_000
"""Sessions in one seal, about 120 KB: well below what an entry may hold."""

TENANTS_PAGE: Final = 500

_LEASE: Final = "audit_seal"
_SETTING: Final = OWN_SETTING_PREFIX + "audit_seal"
_ALL: Final = "*"
"""Under whose settings the place in the log is: no tenant has this name."""

_log = structlog.get_logger(__name__)


class _Place(msgspec.Struct, frozen=True):
    """How far a tenant, or the log, is sealed. n, link: of the tenant's last seal."""

    cursor: bytes = CURSOR_START
    n: int = 0
    link: bytes = b""


@dataclass(slots=True)
class _Grown:
    """What grew of one tenant since its last seal."""

    heads: dict[str, SealedHead] = field(default_factory=dict)
    chains: dict[str, SealedChain] = field(default_factory=dict)


class AuditSealer:
    """Seals the audits in one store."""

    def __init__(
        self,
        store: Store,
        clock_us: Callable[[], int],
        *,
        holder: str,
        interval_s: float = SEAL_INTERVAL_S,
    ) -> None:
        """Seal nothing yet. clock_us: microseconds since 1970. holder: this process."""
        self._store = store
        self._clock_us = clock_us
        self._holder = holder
        self._interval_s = interval_s

    async def run(self) -> None:
        """Seal from time to time until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                now_us = self._clock_us()
                until_us = now_us + int(LEASE_S * 1e6)
                if await self._store.acquire_lease(_LEASE, self._holder, now_us, until_us):
                    while await self.seal():
                        pass
            except StoreError as error:
                # The store's probe reports an outage; what was not sealed is sealed next time.
                _log.warning("audit_not_sealed", error=str(error))

    async def seal(self) -> bool:
        """Seal all that grew since the last time; return whether there is more. Raises StoreError.

        Changes that are being committed meanwhile are in this seal or in the next one.
        """
        place = await self._place(_ALL)
        changed, cursor, is_more = await self._changed(place.cursor)
        grown: dict[str, _Grown] = {}
        for key in changed:
            head = await self._head(key)
            if head is not None:
                grown.setdefault(key.tenant, _Grown()).heads[key.session_id] = head
        tenant = ""
        while tenants := await self._store.list_tenants(tenant, TENANTS_PAGE):
            for tenant in tenants:
                if tenant != _ALL:
                    await self._seal_tenant(tenant, grown.pop(tenant, _Grown()))
        if cursor != place.cursor:
            await self._put(_ALL, _Place(cursor))
        return is_more

    async def _changed(self, cursor: bytes) -> tuple[set[SessionKey], bytes, bool]:
        """Return the sessions that changed since a cursor, the cursor after, if there is more."""
        changed: set[SessionKey] = set()
        for _ in range(CHANGES_PER_ROUND_MAX // LOG_PAGE):
            try:
                page, cursor = await self._store.read_log(cursor, LOG_PAGE)
            except CursorInvalid:
                # Of another store, which this one was restored from: seal everything again.
                page, cursor = await self._store.read_log(CURSOR_START, LOG_PAGE)
            changed.update(key for key, _ in page)
            if len(page) < LOG_PAGE:
                return changed, cursor, False
            await asyncio.sleep(0)
        return changed, cursor, True

    async def _head(self, key: SessionKey) -> SealedHead | None:
        """Return a session's last hash; None = it is gone, not chained, or cannot be read."""
        head = await self._store.load(key)
        if head is None:
            return None
        try:
            _, link = decode_head(head.state)
        except (StoreCorrupt, SchemaTooNew):
            return None
        return SealedHead(key.session_id, head.revision, link) if link else None

    async def _seal_tenant(self, tenant: str, grown: _Grown) -> None:
        place = await self._place(tenant)
        cursor = await self._read_entries(tenant, place.cursor, grown)
        heads = list(grown.heads.values())
        chains = list(grown.chains.values())
        if not heads and not chains:
            return
        n, link = place.n, place.link
        if not n:
            # A copied or restored store has the seals and not this place.
            last = max(await read_seals(self._store, tenant), key=lambda each: each.n, default=None)
            n, link = (last.n, last.link(tenant)) if last else (0, b"")
        for at in range(0, max(len(heads), 1), HEADS_PER_SEAL_MAX):
            some = tuple(heads[at : at + HEADS_PER_SEAL_MAX])
            ends = () if at else tuple(chains)
            n += 1
            seal = Seal(n, self._clock_us(), link, root_of(some, ends), some, ends)
            await self._store.append_audit(seal_entry(tenant, seal))
            link = seal.link(tenant)
        await self._put(tenant, _Place(cursor, n, link))

    async def _read_entries(self, tenant: str, cursor: bytes, grown: _Grown) -> bytes:
        """Note the ends of the chains of entries after a cursor; return the cursor after them."""
        while True:
            try:
                page, cursor = await self._store.read_audit(tenant, None, cursor, AUDIT_PAGE)
            except CursorInvalid:
                page, cursor = await self._store.read_audit(tenant, None, CURSOR_START, AUDIT_PAGE)
            for entry in page:
                end = None if entry.kind == AUDIT_SEALED else _end_of(entry)
                known = grown.chains.get(end.w) if end else None
                if end is not None and (known is None or known.n < end.n):
                    grown.chains[end.w] = end
            if len(page) < AUDIT_PAGE:
                return cursor

    async def _place(self, tenant: str) -> _Place:
        data = await self._store.get_setting(tenant, _SETTING)
        return msgspec.json.decode(data, type=_Place) if data else _Place()

    async def _put(self, tenant: str, place: _Place) -> None:
        await self._store.put_setting(tenant, _SETTING, msgspec.json.encode(place))


def _end_of(entry: AuditEntry) -> SealedChain | None:
    """Return an entry's place in its chain; None = it is not chained, or cannot be read."""
    try:
        chain = entry_chain(entry.data)
        if chain is None:
            return None
        free = entry_free(entry.kind, entry.data)
    except msgspec.DecodeError as error:
        _log.error("audit_entry_unreadable", tenant=entry.tenant, kind=entry.kind, error=str(error))
        return None
    return SealedChain(chain.w, chain.n, entry_hash(entry, free, entry_digest(entry)))
