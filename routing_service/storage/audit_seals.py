"""Seals of the audit: what a tenant's chains were at a time, each seal chained to the one before.

A seal lists the sessions that changed since the last one and the chains of entries that grew, with
their last hashes, and has the root of a Merkle tree over them. What is sealed cannot be replaced
without a break, unless all later seals are replaced too: note the last seal's hash elsewhere.

A setting of the tenant names its last seal, and one of the store since when all that is written is
in chains. So a seal that is removed, or a chain, is missed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import msgspec

from routing_service.storage.audit_chain import merkle_root
from routing_service.storage.audit_pages import audit_of
from routing_service.storage.checked_store import Store
from routing_service.storage.store import (
    CURSOR_START,
    OWN_SETTING_PREFIX,
    AuditEntry,
    StoreCorrupt,
)

AUDIT_SEALED: Final = "audit_sealed"
"""The kind of the entries that are seals."""

SEALS: Final = "\x1fseals"
"""The session under whose name seals are stored: no session has it."""

READ_SEALS_MAX: Final = 50
"""Seals read at once."""

ALL_TENANTS: Final = "*"
"""Under whose settings those of the whole store are: no tenant has this name."""

_PLACE: Final = OWN_SETTING_PREFIX + "audit_seal"
_CHAINED: Final = OWN_SETTING_PREFIX + "audit_chained"


class SealedHead(msgspec.Struct, frozen=True, array_like=True):
    """A session's last change: its revision and hash."""

    session_id: str
    revision: int
    link: bytes


class SealedChain(msgspec.Struct, frozen=True, array_like=True):
    """The last entry of one chain of entries: its number and hash."""

    w: str
    n: int
    link: bytes


class Seal(msgspec.Struct, frozen=True):
    """One seal. n: from 1. prev: the hash of the seal before, b"" for the first."""

    n: int
    time_us: int
    prev: bytes
    root: bytes
    heads: tuple[SealedHead, ...] = ()
    chains: tuple[SealedChain, ...] = ()

    def link(self, tenant: str) -> bytes:
        """Return the seal's hash, which the next one carries."""
        place = (tenant, self.n, self.time_us, self.prev, self.root)
        return hashlib.sha256(msgspec.json.encode(place)).digest()


class SealPlace(msgspec.Struct, frozen=True):
    """How far a tenant, or the log, is sealed. n, link: of the tenant's last seal."""

    cursor: bytes = CURSOR_START
    n: int = 0
    link: bytes = b""


async def read_place(store: Store, tenant: str) -> SealPlace:
    """Return how far a tenant is sealed, as the store has noted it. Raises StoreCorrupt."""
    data = await store.get_setting(tenant, _PLACE)
    try:
        return msgspec.json.decode(data, type=SealPlace) if data else SealPlace()
    except msgspec.DecodeError as error:
        message = f'the setting "{_PLACE}" of tenant {tenant} cannot be read'
        raise StoreCorrupt(message) from error


async def put_place(store: Store, tenant: str, place: SealPlace) -> None:
    """Note how far a tenant is sealed."""
    await store.put_setting(tenant, _PLACE, msgspec.json.encode(place))


async def chained_since(store: Store) -> int | None:
    """Return since when all that is written to a store is in chains, in microseconds since 1970.

    None = that is not known: releases without chains may write to it. A value that cannot be read
    is 0, the beginning.
    """
    data = await store.get_setting(ALL_TENANTS, _CHAINED)
    return None if data is None else int(data) if data.isdigit() else 0


async def note_chained(store: Store, since_us: int) -> None:
    """Note since when everything is in chains."""
    await store.put_setting(ALL_TENANTS, _CHAINED, b"%d" % since_us)


def root_of(heads: Sequence[SealedHead], chains: Sequence[SealedChain]) -> bytes:
    """Return the root of the tree over a seal's content."""
    return merkle_root([msgspec.json.encode(each) for each in (*heads, *chains)])


def seal_entry(tenant: str, seal: Seal) -> AuditEntry:
    """Return the entry that stores a seal."""
    data = msgspec.json.encode(seal)
    return AuditEntry(seal.time_us, tenant, SEALS, 0, AUDIT_SEALED, "", "", data)


def seal_in(entry: AuditEntry) -> Seal:
    """Return the seal that an entry stores. Raises StoreCorrupt."""
    try:
        return msgspec.json.decode(entry.data, type=Seal)
    except msgspec.DecodeError as error:
        message = f"a seal of the audit of tenant {entry.tenant} cannot be read"
        raise StoreCorrupt(message) from error


async def read_seals(store: Store, tenant: str) -> list[Seal]:
    """Return a tenant's seals in the order in which they were stored. Raises StoreCorrupt."""
    return [
        seal_in(entry) async for entry in audit_of(store, tenant, SEALS, per_read=READ_SEALS_MAX)
    ]
