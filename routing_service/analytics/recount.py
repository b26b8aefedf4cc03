"""Counting from the beginning: what statistics are stored, which are damaged, and clearing them.

A recount is asked for by a head with ``recount``, written by compare-and-set. The next step clears
every setting whose step is lower than the head's, and only then counts: a crash in between leaves
the head as it was, and the next process clears what is left.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from routing_service.analytics.stored_forms import (
    ALL_TENANTS,
    DIRECTORY,
    HEAD,
    PREFIX,
    STUCK_WINDOW,
    Directory,
    Figures,
    Head,
    StatsDamaged,
    decode,
    encode,
    encode_figures,
)
from routing_service.analytics.stuck_windows import StuckWindow
from routing_service.storage.checked_store import Store
from routing_service.storage.store import StoreUnavailable

SETTINGS_PER_READ: Final = 100
TENANTS_PER_READ: Final = 100

SEQ_GAP: Final = 1_000
"""How far a recount's step is beyond the highest that can be read: a damaged setting may have had
a higher one, and a process may still be adding an earlier step."""

SWAP_ATTEMPTS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class StoredStats:
    """What is stored. settings: how many. damaged: tenant and name of each. seq: the highest."""

    settings: int
    damaged: tuple[tuple[str, str], ...]
    seq: int


async def stored_stats(store: Store) -> StoredStats:
    """Read all stored statistics. Raises StoreError."""
    settings = seq = 0
    damaged: list[tuple[str, str]] = []
    async for tenant, name, value in _all_settings(store):
        settings += 1
        try:
            seq = max(seq, _seq(name, value))
        except StatsDamaged:
            damaged.append((tenant, name))
    return StoredStats(settings, tuple(damaged), seq)


async def clear_figures(store: Store, seq: int) -> None:
    """Clear all settings of lower steps than seq, and the damaged ones. Raises StoreError."""
    async for tenant, name, value in _all_settings(store):
        if name != HEAD:
            await _clear(store, (tenant, name), value, seq)


async def _clear(store: Store, place: tuple[str, str], value: bytes | None, seq: int) -> None:
    tenant, name = place
    empty = encode_figures(Figures(seq=seq))
    if name == DIRECTORY:
        empty = encode(Directory(seq=seq))
    elif name == STUCK_WINDOW:
        empty = encode(StuckWindow(seq=seq))
    for _ in range(SWAP_ATTEMPTS_MAX):
        try:
            if _seq(name, value) >= seq:
                return
        except StatsDamaged:
            pass
        if await store.swap_setting(tenant, name, value, empty):
            return
        value = await store.get_setting(tenant, name)
    raise StoreUnavailable(f'the setting "{name}" is being changed by others; try again')


def _seq(name: str, value: bytes | None) -> int:
    """Return the step of a setting. Raises SchemaTooNew, StatsDamaged."""
    if name == HEAD:
        return decode(Head, value, name).seq
    if name == DIRECTORY:
        return decode(Directory, value, name).seq
    if name == STUCK_WINDOW:
        return decode(StuckWindow, value, name).seq
    return decode(Figures, value, name).seq


async def _all_settings(store: Store) -> AsyncIterator[tuple[str, str, bytes]]:
    """Read tenant, name and value of every setting of the statistics."""
    async for tenant in _tenants(store):
        after = PREFIX
        while page := await store.list_settings(tenant, after, SETTINGS_PER_READ):
            for name, value in page:
                if name.startswith(PREFIX):
                    yield tenant, name, value
            after = page[-1][0]
            if not after.startswith(PREFIX):
                break


async def _tenants(store: Store) -> AsyncIterator[str]:
    yield ALL_TENANTS
    after = ""
    while page := await store.list_tenants(after, TENANTS_PER_READ):
        for tenant in page:
            if tenant != ALL_TENANTS:
                yield tenant
        after = page[-1]
