"""Seals the audit of every tenant about once a minute.

One of several replicas seals, by a lease. It looks at the tenants whose sessions changed, which the
log names, and at those that got entries without a revision, which each replica notes in a setting.
Every hour it looks at all tenants: a replica may have crashed before its note.

Rule: it is correct without the lease: two that seal at once make two seals of one number, and both
are true.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import structlog

from routing_service.sessions.audit_log import AuditLog
from routing_service.sessions.seal_notes import SealNotes
from routing_service.storage.audit_chain import (
    entry_chain,
    entry_digest,
    entry_free,
    entry_hash,
)
from routing_service.storage.audit_pages import audit_of
from routing_service.storage.audit_seals import (
    ALL_TENANTS,
    AUDIT_SEALED,
    READ_SEALS_MAX,
    SEALS,
    Seal,
    SealedChain,
    SealedHead,
    SealPlace,
    put_place,
    read_place,
    read_seals,
    root_of,
    seal_entry,
)
from routing_service.storage.checked_store import Store
from routing_service.storage.event_codec import decode_head
from routing_service.storage.store import (
    CURSOR_START,
    OWN_SETTING_PREFIX,
    AuditEntry,
    CursorInvalid,
    SchemaTooNew,
    SessionKey,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
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

TENANTS_NOTED_MAX: Final = 400
"""Tenants in the note of those that grew: their names stay well below what a setting may hold. If
there are more, the next round looks at all."""

ALL_TENANTS_S: Final = 3600.0
"""How often all tenants are looked at."""

NOTE_ATTEMPTS_MAX: Final = 5

_LEASE: Final = "audit_seal"
_GREW: Final = OWN_SETTING_PREFIX + "audit_grew"
_log = structlog.get_logger(__name__)


class _Noted(msgspec.Struct, frozen=True):
    """The tenants that got entries since they were last sealed."""

    tenants: tuple[str, ...] = ()
    too_many: bool = False


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
        logs: Sequence[AuditLog] = (),
        interval_s: float = SEAL_INTERVAL_S,
        notes: SealNotes | None = None,
    ) -> None:
        """Seal nothing yet. clock_us: microseconds since 1970. holder: this process.

        logs: all by which this process writes entries. notes: the last seals known outside of the
        store; None = those of this process.
        """
        self._notes = notes or SealNotes()
        self._store = store
        self._clock_us = clock_us
        self._holder = holder
        self._logs = logs
        self._interval_s = interval_s
        self._all_due_us = 0

    async def run(self) -> None:
        """Compare the store with the seals noted elsewhere, then seal until cancelled."""
        while True:
            try:
                await self.compare()
                break
            except StoreError as error:
                _log.warning("audit_not_compared", error=str(error))
                await asyncio.sleep(self._interval_s)
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.note_grown()
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
        raw, noted = await self._noted()
        is_all = noted.too_many or self._clock_us() >= self._all_due_us
        place = await self._place(ALL_TENANTS)
        changed, cursor, is_more = await self._changed(place.cursor)
        grown: dict[str, _Grown] = {}
        for key in changed:
            head = await self._head(key)
            if head is not None:
                grown.setdefault(key.tenant, _Grown()).heads[key.session_id] = head
        for tenant in await self._tenants() if is_all else {*grown, *noted.tenants} - {ALL_TENANTS}:
            await self._seal_tenant(tenant, grown.get(tenant, _Grown()))
        if cursor != place.cursor:
            await put_place(self._store, ALL_TENANTS, SealPlace(cursor))
        if noted != _Noted():
            # If another replica has added to it meanwhile, the next round seals all of it.
            await self._store.swap_setting(ALL_TENANTS, _GREW, raw, msgspec.json.encode(_Noted()))
        if is_all:
            self._all_due_us = self._clock_us() + int(ALL_TENANTS_S * 1e6)
        await self._notes.store()
        return is_more

    async def compare(self) -> None:
        """Log an error for each tenant whose store lacks its noted seal. Raises StoreError."""
        for tenant in self._notes.tenants:
            await self._compare(tenant, await self._place(tenant), again=True)
        await self._notes.store()

    async def _compare(self, tenant: str, place: SealPlace, *, again: bool = False) -> None:
        """Log an error if a store lacks a tenant's noted seal. again: also if that is known."""
        noted = self._notes.of(tenant)
        if noted is None or (noted.missing_us and not again):
            return
        if place.n > noted.seal and not noted.missing_us:
            return  # It went on from there.
        n, link = (place.n, place.link) if place.n else await self._last_seal(tenant)
        has_it = (n, link.hex()) == (noted.seal, noted.hash)
        if not has_it and n >= noted.seal:
            # Two that seal at once make two seals of one number.
            seals = await read_seals(self._store, tenant)
            has_it = noted.hash in {seal.link(tenant).hex() for seal in seals}
        if has_it:
            self._notes.find(tenant)
            return
        self._notes.miss(tenant, noted.missing_us or self._clock_us())
        _log.error(
            "audit_rolled_back",
            tenant=tenant,
            noted_seal=noted.seal,
            noted_hash=noted.hash,
            last_seal=n,
            last_hash=link.hex(),
            remedy="the store was put back to an earlier state, or its seals were replaced; name "
            "what is missing by agent-routing audit verify --expect. If you restored a backup, "
            "remove the tenant's line from the file of audit_seals_file",
        )

    async def note_grown(self) -> None:
        """Note for the replica that seals which tenants got entries here. Raises StoreError."""
        taken = {tenant for log in self._logs for tenant in log.grown}
        for log in self._logs:
            log.grown.clear()
        try:
            await self._note(taken)
        except BaseException:
            for log in self._logs:
                log.grown |= taken
            raise

    async def _note(self, tenants: Collection[str]) -> None:
        for _ in range(NOTE_ATTEMPTS_MAX if tenants else 0):
            raw, noted = await self._noted()
            all_of_them = tuple(sorted({*noted.tenants, *tenants}))
            after = _Noted(all_of_them, noted.too_many)
            if len(all_of_them) > TENANTS_NOTED_MAX or noted.too_many:
                after = _Noted(too_many=True)
            if after == noted or await self._store.swap_setting(
                ALL_TENANTS, _GREW, raw, msgspec.json.encode(after)
            ):
                return
        if tenants:
            raise StoreUnavailable(f'the setting "{_GREW}" is being changed by others; try again')

    async def _noted(self) -> tuple[bytes | None, _Noted]:
        """Return the note as stored, and decoded. A damaged one may have named any tenant."""
        raw = await self._store.get_setting(ALL_TENANTS, _GREW)
        try:
            return raw, msgspec.json.decode(raw, type=_Noted) if raw else _Noted()
        except msgspec.DecodeError:
            return raw, _Noted(too_many=True)

    async def _tenants(self) -> list[str]:
        found: list[str] = []
        while page := await self._store.list_tenants(found[-1] if found else "", TENANTS_PAGE):
            found += page
        return [tenant for tenant in found if tenant != ALL_TENANTS]

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
        await self._compare(tenant, place)
        cursor = await self._read_entries(tenant, place.cursor, grown)
        heads = list(grown.heads.values())
        chains = list(grown.chains.values())
        if not heads and not chains:
            return
        n, link = place.n, place.link
        if not n:
            # A copied or restored store has the seals and not this place.
            n, link = await self._last_seal(tenant)
        for at in range(0, max(len(heads), 1), HEADS_PER_SEAL_MAX):
            some = tuple(heads[at : at + HEADS_PER_SEAL_MAX])
            ends = () if at else tuple(chains)
            n += 1
            seal = Seal(n, self._clock_us(), link, root_of(some, ends), some, ends)
            await self._store.append_audit(seal_entry(tenant, seal))
            link = seal.link(tenant)
            # A log that is kept elsewhere is an anchor outside the store.
            _log.info("audit_sealed", tenant=tenant, seal=n, hash=link.hex(), sessions=len(some))
        await put_place(self._store, tenant, SealPlace(cursor, n, link))
        self._notes.note(tenant, n, link)

    async def _last_seal(self, tenant: str) -> tuple[int, bytes]:
        """Return the number and hash of a tenant's last seal. Damaged seals are passed over."""
        n, link = 0, b""
        async for entry in audit_of(self._store, tenant, SEALS, per_read=READ_SEALS_MAX):
            try:
                seal = msgspec.json.decode(entry.data, type=Seal)
            except msgspec.DecodeError:
                # agent-routing audit verify names it; sealing goes on.
                continue
            if seal.n > n:
                n, link = seal.n, seal.link(tenant)
        return n, link

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

    async def _place(self, tenant: str) -> SealPlace:
        try:
            return await read_place(self._store, tenant)
        except StoreCorrupt as error:
            # Begin again: what is sealed twice is true both times.
            _log.error("audit_place_damaged", tenant=tenant, error=str(error))
            return SealPlace()


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
