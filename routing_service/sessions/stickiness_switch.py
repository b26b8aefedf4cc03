"""The switch that turns stickiness off for a tenant, or for all, and back on.

Owns: where the switch is kept and how soon a replica follows. Must not know: what routing does
without stickiness. Rule: the store has the truth; what this process believes is at most
FOLLOW_S old. The registry's word counts until somebody has switched.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from routing_service.storage.store import Store, StoreCorrupt

ALL_TENANTS: Final = "*"
SETTING: Final = "stickiness"

FOLLOW_S: Final = 0.5
"""How long a replica may act on an earlier word. One read a tenant in this time costs nothing that
could be measured, and an operator who switches sees it everywhere within a second."""

TENANTS_KEPT_MAX: Final = 10_000
"""Tenants whose word is kept in memory; names come from callers."""


class Switched(msgspec.Struct, frozen=True, omit_defaults=True):
    """Somebody's word on stickiness."""

    enabled: bool
    time_us: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Believed:
    enabled: bool
    until_s: float


class StickinessSwitch:
    """Tells whether agents stick, by tenant."""

    def __init__(
        self,
        store: Store,
        start_value: Callable[[], bool],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep the switch in a store. start_value: what counts while nobody has switched."""
        self._store = store
        self._start_value = start_value
        self._monotonic_s = monotonic_s
        self._believed: dict[str, _Believed] = {}
        self._asking: dict[str, asyncio.Task[bool]] = {}

    async def is_enabled(self, tenant: str) -> bool:
        """Say whether agents stick for a tenant, as of at most FOLLOW_S ago."""
        now_s = self._monotonic_s()
        believed = self._believed.get(tenant)
        if believed is not None and now_s < believed.until_s:
            return believed.enabled
        asking = self._asking.get(tenant)
        if asking is None:
            # One asks for all that come meanwhile: under load that would be dozens of reads.
            reading = self._read_for_all(tenant, now_s, self._believed, self._asking)
            asking = asyncio.create_task(reading, name="stickiness")
            # Those who asked may all have left before it fails.
            asking.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._asking[tenant] = asking
        return await asyncio.shield(asking)

    async def _read_for_all(
        self,
        tenant: str,
        now_s: float,
        believed: dict[str, _Believed],
        asking: dict[str, asyncio.Task[bool]],
    ) -> bool:
        """Read a tenant's word into what is believed: no longer what counts, after a switch."""
        try:
            enabled = await self.read(tenant)
        finally:
            asking.pop(tenant, None)
        if len(believed) >= TENANTS_KEPT_MAX:
            believed.clear()
        believed[tenant] = _Believed(enabled, now_s + FOLLOW_S)
        return enabled

    async def read(self, tenant: str) -> bool:
        """Say how it stands in the store now: the later word of the tenant's own and of all's."""
        words = [await self.word(tenant), await self.word(ALL_TENANTS)]
        said = [word for word in words if word is not None]
        if not said:
            return self._start_value()
        return max(said, key=lambda word: word.time_us).enabled

    async def word(self, tenant: str) -> Switched | None:
        """Return the last word that was said for exactly this tenant, or for all."""
        data = await self._store.get_setting(tenant, SETTING)
        if data is None:
            return None
        try:
            return msgspec.json.decode(data, type=Switched)
        except msgspec.DecodeError as error:
            message = f'the stickiness setting of tenant "{tenant}" cannot be read; switch it again'
            raise StoreCorrupt(message) from error

    async def switch(self, tenant: str, *, enabled: bool, now_us: int, reason: str) -> bool:
        """Switch a tenant, or ALL_TENANTS; return whether it stood otherwise before."""
        before = await self.read(tenant)
        words = [await self.word(tenant), await self.word(ALL_TENANTS)]
        # Where nobody has said a word, another replica's registry may say otherwise than this one's
        # (a roll-out changes them one by one): then it is written down, so that all agree.
        own = words[0] if tenant == ALL_TENANTS else words[0] or words[1]
        if before == enabled and own is not None:
            return False
        # A clock that went back must not let an earlier word win.
        latest_us = max((word.time_us for word in words if word), default=0)
        said = Switched(enabled, max(now_us, latest_us + 1), reason)
        await self._store.put_setting(tenant, SETTING, msgspec.json.encode(said))
        self._believed = {}
        self._asking = {}
        return before != enabled
