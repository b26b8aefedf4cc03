"""Counts of verdicts by sureness, kept in the store by tenant and registry.

A process reads them with a tenant's first judged message, and adds what it has counted since at an
interval and at its end, so that restarts, reloads and replicas go on from one count. Rule: a store
that fails costs the counts of an interval, and no message.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Final

import msgspec
import structlog

from routing_service.core.registry import Registry
from routing_service.storage.checked_store import Store
from routing_service.storage.store import StoreError
from routing_service.topics.ask_bound import BINS, Counts

TENANTS_MAX: Final = 1_024
"""Counts in memory, a kilobyte each; the one that was not used for longest is written and left."""

FLUSH_S: Final = 30.0
"""Between two writes of what was counted: a process that is killed loses as much."""

SWAPS_MAX: Final = 5
"""Attempts to add to counts that replicas write at the same time."""

SETTING: Final = "topic_counts:"
_DIGEST_CHARACTERS: Final = 16

_log = structlog.get_logger(__name__)
_Key = tuple[str, str]


class _Held(msgspec.Struct):
    """stored: as read last. new: counted since."""

    stored: Counts
    new: Counts


def setting_of(registry: Registry, model: str) -> str:
    """Return the name of the setting: of the model and of the agents by id, not of their texts."""
    said = msgspec.json.encode([model, registry.home_agent_id, sorted(registry.agents)])
    return f"{SETTING}{hashlib.sha256(said).hexdigest()[:_DIGEST_CHARACTERS]}"


class KeptCounts:
    """The counts of all tenants in this process. For one thread."""

    def __init__(self, store: Store | None = None) -> None:
        """Keep counts in a store; None: in memory alone."""
        self._store = store
        self._held: OrderedDict[_Key, _Held] = OrderedDict()

    def known(self, tenant: str, name: str) -> Counts | None:
        """Return the counts of a tenant, None if they have to be read."""
        held = self._held.get((tenant, name))
        if held is None:
            return None
        self._held.move_to_end((tenant, name))
        return held.stored.plus(held.new)

    async def read(self, tenant: str, name: str) -> Counts:
        """Return the counts of a tenant, read from the store if they are not known."""
        found = self.known(tenant, name)
        if found is not None:
            return found
        stored = Counts()
        if self._store is not None:
            try:
                stored = _decoded(await self._store.get_setting(tenant, name))
            except StoreError as error:
                _log.warning("topic_counts_not_read", tenant=tenant, error=str(error))
        self._held.setdefault((tenant, name), _Held(stored, Counts()))
        if len(self._held) > TENANTS_MAX:
            oldest = next(iter(self._held))
            await self._write(oldest)
            self._held.pop(oldest, None)
        return stored

    def note(self, tenant: str, name: str, sureness: float, probability: float) -> None:
        """Count a judged message."""
        held = self._held.setdefault((tenant, name), _Held(Counts(), Counts()))
        held.new.note(sureness, probability)

    async def flush(self) -> None:
        """Add what was counted to the store."""
        for key in list(self._held):
            await self._write(key)

    async def _write(self, key: _Key) -> None:
        held = self._held.get(key)
        if held is None or self._store is None or not held.new.total:
            return
        tenant, name = key
        # What is counted while this waits is of the next write.
        adding, held.new = held.new, Counts()
        held.stored = held.stored.plus(adding)
        try:
            for _ in range(SWAPS_MAX):
                before = await self._store.get_setting(tenant, name)
                both = _decoded(before).plus(adding)
                if await self._store.swap_setting(tenant, name, before, msgspec.json.encode(both)):
                    held.stored = both
                    return
            held.new = held.new.plus(adding)
        except StoreError as error:
            _log.warning("topic_counts_not_written", tenant=tenant, error=str(error))


def _decoded(stored: bytes | None) -> Counts:
    """Return stored counts; none for what another release wrote otherwise, or is damaged."""
    if stored is not None:
        try:
            found = msgspec.json.decode(stored, type=Counts)
        except msgspec.DecodeError:
            return Counts()
        if len(found.messages) == len(found.right) == BINS:
            return found
    return Counts()
