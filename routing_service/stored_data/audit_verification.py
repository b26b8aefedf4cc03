"""The audit of a store proved: every chain followed, every seal compared with what is stored.

A break is named with the first record that does not follow from the one before, and does not stop
the rest. Records of releases without the chain are counted; they cannot be proved. What the store
itself has noted is compared too: each tenant's last seal, and since when everything is in chains.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from routing_service.storage.audit_archive import (
    SESSION_ARCHIVED,
    Archived,
    ArchivedChange,
    archived_in,
    read_archive,
)
from routing_service.storage.audit_chain import (
    change_hash,
    content_digest,
    content_free,
    entry_chain,
    entry_digest,
    entry_free,
    entry_hash,
    free_of,
    place_of,
)
from routing_service.storage.audit_pages import audit_of
from routing_service.storage.audit_seals import (
    ALL_TENANTS,
    AUDIT_SEALED,
    Seal,
    SealPlace,
    chained_since,
    read_place,
    read_seals,
    root_of,
)
from routing_service.storage.checked_store import Store
from routing_service.storage.event_codec import BLANK_EVENTS, decode_head, plain_events
from routing_service.storage.store import (
    CURSOR_START,
    AuditEntry,
    Change,
    SchemaTooNew,
    SessionKey,
    StoreCorrupt,
)
from routing_service.stored_data.noted_seals import NotedSeal
from routing_service.stored_data.whole_session import (
    SESSIONS_PER_READ,
    pages_of_changes,
    tenants_of,
)

AUDIT_PER_READ: Final = 100
"""Audit entries in one page; one may be as large as a change."""

PROBLEMS_MAX: Final = 100
"""Breaks named for one tenant: the first ones tell where to look."""


@dataclass(slots=True)
class TenantAudit:
    """What was found of one tenant's audit.

    changes, entries: that are chained. unchained: changes of releases without the chain.
    seals: how many, with the last one's number, time and hash; time 0 = there is none. unsealed:
    sessions that changed since the last seal.
    """

    tenant: str
    sessions: int = 0
    changes: int = 0
    entries: int = 0
    unchained: int = 0
    unsealed: int = 0
    seals: int = 0
    last_seal: int = 0
    sealed_until_us: int = 0
    last_seal_hash: str = ""
    problems: list[str] = field(default_factory=list)
    problems_left_out: int = 0

    def problem(self, text: str) -> None:
        """Record a break."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(text)
        else:
            self.problems_left_out += 1


class _Row(msgspec.Struct, frozen=True):
    """One change to follow. link: its hash; b"" = it is not chained. time_us: 0 = not known."""

    revision: int
    prev: bytes
    link: bytes
    time_us: int = 0


async def verify_audit(
    store: Store, tenant: str = "", expected: Sequence[NotedSeal] = ()
) -> AsyncIterator[TenantAudit]:
    """Report on the audit of each tenant. tenant: of this one alone. Raises StoreUnavailable.

    expected: seals noted elsewhere, which the store must have.
    """
    since_us = await chained_since(store)
    names = {name async for name in tenants_of(store)} | {seal.tenant for seal in expected}
    for name in sorted(names - {ALL_TENANTS}):
        if tenant in ("", name):
            noted = [seal for seal in expected if seal.tenant == name]
            yield await _Tenant(store, name, since_us).report(noted)


class _Tenant:
    """Follows the chains of one tenant."""

    def __init__(self, store: Store, tenant: str, since_us: int | None) -> None:
        self._store = store
        self._since_us = since_us
        """Since when everything is in chains; None = that is not known."""
        self._found = TenantAudit(tenant)
        self._sealed: dict[str, dict[int, set[bytes]]] = {}
        """By session and revision: the hashes that are sealed."""
        self._chains: dict[str, dict[int, tuple[bytes, bytes]]] = {}
        """By chain and number: the hash before and the own."""
        self._archived: dict[str, list[Archived]] = {}
        self._purges: set[tuple[str, int, bytes]] = set()

    async def report(self, expected: Sequence[NotedSeal]) -> TenantAudit:
        """Follow every chain. expected: seals that must be there. Raises StoreUnavailable."""
        found = self._found
        place, seals = SealPlace(), list[Seal]()
        try:
            # A seal is stored before it is noted, and what it seals before the seal: so they are
            # read in the other order.
            place = await read_place(self._store, found.tenant)
            seals = await read_seals(self._store, found.tenant)
        except StoreCorrupt as error:
            found.problem(str(error))
        self._follow_seals(seals)
        self._check_noted(place, seals, expected)
        await self._read_entries()
        self._follow_entries(seals)
        await self._follow_sessions()
        for session_id, revision, _ in sorted(self._purges):
            found.problem(
                f"session {session_id}, revision {revision}: was the last one when the session was "
                "purged, and is missing or was changed since"
            )
        for session_id in sorted(self._sealed):
            for revision in sorted(self._sealed[session_id]):
                found.problem(
                    f"session {session_id}, revision {revision}: is sealed, and is missing or was "
                    "changed since"
                )
        return found

    def _follow_seals(self, seals: list[Seal]) -> None:
        found = self._found
        links: dict[int, set[bytes]] = {0: {b""}}
        for seal in seals:
            links.setdefault(seal.n, set()).add(seal.link(found.tenant))
            for head in seal.heads:
                revisions = self._sealed.setdefault(head.session_id, {})
                revisions.setdefault(head.revision, set()).add(head.link)
        for seal in seals:
            if seal.root != root_of(seal.heads, seal.chains):
                found.problem(f"seal {seal.n}: its list is not the one that was sealed")
            if seal.prev not in links.get(seal.n - 1, set()):
                found.problem(f"seal {seal.n}: does not follow from seal {seal.n - 1}")
        found.seals = len(seals)
        if seals:
            last = max(seals, key=lambda each: each.n)
            found.last_seal, found.sealed_until_us = last.n, last.time_us
            found.last_seal_hash = last.link(found.tenant).hex()

    def _check_noted(
        self, place: SealPlace, seals: Sequence[Seal], expected: Sequence[NotedSeal]
    ) -> None:
        """Compare with the last seal that the store has noted, and with those noted elsewhere."""
        found = self._found
        links = {(seal.n, seal.link(found.tenant).hex()) for seal in seals}
        if place.n and (place.n, place.link.hex()) not in links:
            found.problem(
                f"seal {place.n}: the store has noted it as the last one, and it is missing or was "
                "changed since"
            )
        for seal in expected:
            if (seal.seal, seal.hash) in links:
                continue
            if seal.seal > found.last_seal:
                how = (
                    f"the last seal is {found.last_seal}: the store was put back to an earlier "
                    "state, or seals were removed"
                )
            else:
                how = "the store has other seals in its place: they were replaced"
            found.problem(f"seal {seal.seal}, hash {seal.hash}: is expected and missing; {how}")

    def _is_chainless(self, time_us: int) -> bool:
        """Say whether a record without a chain was written when everything had one."""
        return self._since_us is not None and time_us > self._since_us

    async def _read_entries(self) -> None:
        tenant = self._found.tenant
        try:
            async for entry in audit_of(self._store, tenant, None, per_read=AUDIT_PER_READ):
                try:
                    self._note_entry(entry)
                except (msgspec.DecodeError, StoreCorrupt):
                    self._found.problem(
                        f"an entry of the kind {entry.kind} of session {entry.session_id!r} cannot "
                        "be read"
                    )
        except StoreCorrupt as error:
            self._found.problem(f"audit entries cannot be read: {error}")

    def _note_entry(self, entry: AuditEntry) -> None:
        if entry.kind == AUDIT_SEALED or not entry.data:
            return
        self._note_link(entry, entry_free(entry.kind, entry.data), entry_digest(entry))
        if entry.kind == SESSION_ARCHIVED:
            archived = archived_in(entry)
            self._archived.setdefault(archived.session_id, []).append(archived)
            key = SessionKey(entry.tenant, archived.session_id)
            for each in archived.entries:
                self._note_link(each.shown(key), bytes(each.free), each.digest)

    def _note_link(self, entry: AuditEntry, free: bytes, digest: bytes) -> None:
        if entry.kind == "session_purged":
            last = msgspec.json.decode(free).get("last_hash", "")
            if last:
                self._purges.add((entry.session_id, entry.revision, bytes.fromhex(last)))
        chain = entry_chain(free)
        if chain is None:
            if self._is_chainless(entry.time_us):
                self._found.problem(
                    f"an entry of the kind {entry.kind} of session {entry.session_id!r} has no "
                    "place in a chain: it was added or changed by hand"
                )
            return
        link = entry_hash(entry, free, digest)
        known = self._chains.setdefault(chain.w, {})
        before = known.get(chain.n)
        if before is not None and before[1] != link:
            # The original next to its copy in the archive: one of them was changed.
            self._found.problem(
                f"entry {chain.n} of chain {chain.w} ({entry.kind}, session {entry.session_id!r}) "
                "is stored twice, with different content"
            )
            return
        known[chain.n] = (chain.prev, link)

    def _follow_entries(self, seals: list[Seal]) -> None:
        for name, chain in sorted(self._chains.items()):
            self._found.entries += len(chain)
            link = b""
            for n in range(1, max(chain) + 1):
                here = chain.get(n)
                if here is None:
                    self._found.problem(f"entry {n} of chain {name} is missing")
                    link = chain[n + 1][0] if n + 1 in chain else b""
                    continue
                if here[0] != link:
                    self._found.problem(
                        f"entry {n} of chain {name}: does not follow from entry {n - 1}: one of "
                        "them was changed"
                    )
                link = here[1]
        for seal in seals:
            for end in seal.chains:
                here = self._chains.get(end.w, {}).get(end.n)
                if here is None or here[1] != end.link:
                    self._found.problem(
                        f"entry {end.n} of chain {end.w}: seal {seal.n} has it, and it is missing "
                        "or was changed since"
                    )

    async def _follow_sessions(self) -> None:
        cursor = CURSOR_START
        live: dict[str, int] = {}
        while True:
            page, cursor = await self._store.list_sessions(
                self._found.tenant, cursor, SESSIONS_PER_READ
            )
            for row in page:
                live[row.key.session_id] = row.create_us
                await self._follow_live(row.key, row.create_us)
            if len(page) < SESSIONS_PER_READ:
                break
        for session_id in sorted(set(self._archived) | set(self._sealed)):
            # Also those that were purged while this was read.
            key = SessionKey(self._found.tenant, session_id)
            archived = self._archived.get(session_id) or await read_archive(self._store, key)
            began = {each.create_us for each in archived} - {live.get(session_id)}
            for create_us in sorted(began):
                changes = {
                    change.revision: change
                    for each in archived
                    if each.create_us == create_us
                    for change in each.changes
                }
                rows = [_archived_row(key, changes[revision]) for revision in sorted(changes)]
                self._follow(session_id, rows)

    async def _follow_live(self, key: SessionKey, create_us: int) -> None:
        name = key.session_id
        try:
            head = await self._store.load(key)
            if head is None:
                return
            rows: list[_Row] = []
            archived: dict[int, ArchivedChange] | None = None
            async for page in pages_of_changes(self._store, key, after=0, upto=head.revision):
                for change in page:
                    if change.events == BLANK_EVENTS and archived is None:
                        archived = {
                            each.revision: each
                            for found in await read_archive(self._store, key)
                            if found.create_us == create_us
                            for each in found.changes
                        }
                    rows.append(self._row_of(key, change, archived or {}))
            _, link = decode_head(head.state)
        except (StoreCorrupt, SchemaTooNew, msgspec.DecodeError) as error:
            self._found.problem(f"session {name}: {error}")
            return
        self._follow(name, rows)
        if link and rows and rows[-1].link != link:
            self._found.problem(
                f"session {name}, revision {rows[-1].revision}: is not the change that the "
                "session's state names as its last one"
            )

    def _row_of(self, key: SessionKey, change: Change, archived: dict[int, ArchivedChange]) -> _Row:
        """Return a change of a stored session; of an erased one, what was archived."""
        revision = change.revision
        try:
            if change.events != BLANK_EVENTS:
                return _row(key, change)
            if revision in archived:
                return _archived_row(key, archived[revision], change)
        except (StoreCorrupt, msgspec.DecodeError):
            self._found.problem(f"session {key.session_id}, revision {revision}: cannot be read")
        return _Row(revision, b"", b"")

    def _follow(self, name: str, rows: list[_Row]) -> None:
        """Follow the changes of one session, the oldest first."""
        found = self._found
        found.sessions += 1
        last, is_purged = _Row(0, b"", b""), False
        sealed = self._sealed.get(name, {})
        newest_sealed = max(sealed, default=0)
        for row in rows:
            if row.revision != last.revision + 1:
                found.problem(
                    f"session {name}: revision {last.revision} is followed by {row.revision}"
                )
            elif row.link and row.prev != last.link:
                found.problem(
                    f"session {name}, revision {row.revision}: does not follow from revision "
                    f"{last.revision}: one of them was changed"
                )
            if row.link:
                found.changes += 1
            else:
                found.unchained += 1
                if self._is_chainless(row.time_us):
                    found.problem(
                        f"session {name}, revision {row.revision}: has no hash, and the store has "
                        "hashes of all changes of its time: it was removed"
                    )
            if row.revision in sealed and row.link in sealed[row.revision]:
                sealed[row.revision].discard(row.link)
                if not sealed[row.revision]:
                    del sealed[row.revision]
            last = row
            purge = (name, row.revision, row.link)
            is_purged = purge in self._purges
            self._purges.discard(purge)
        if name in self._sealed and not sealed:
            del self._sealed[name]
        # What is purged before it is sealed is proved by the purge, an entry in a chain.
        if rows and rows[-1].revision > newest_sealed and not is_purged:
            found.unsealed += 1


def _row(key: SessionKey, change: Change) -> _Row:
    """Return a change with its hash. Raises DecodeError, StoreCorrupt."""
    plain = plain_events(change.events)
    free = content_free(plain)
    if b'"salt":"' not in plain:
        return _Row(change.revision, b"", b"", change.time_us)
    digest = content_digest(plain, change.answer)
    link = change_hash(place_of(key, change), free, digest)
    return _Row(change.revision, free_of(plain).prev, link)


def _archived_row(key: SessionKey, kept: ArchivedChange, stored: Change | None = None) -> _Row:
    """Return an archived change with its hash. stored: what the session still has of it."""
    free = bytes(kept.free)
    if not kept.digest:
        return _Row(kept.revision, b"", b"", kept.time_us)
    change = kept.change(free) if stored is None else stored
    link = change_hash(place_of(key, change), content_free(free), kept.digest)
    return _Row(kept.revision, free_of(free).prev, link)
