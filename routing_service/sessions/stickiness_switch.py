"""The switch that turns stickiness off for a tenant, or for all, and back on.

Rule: the store holds the switch; a process acts on a value that is at most FOLLOW_S old. The
registry's value counts until an operator has switched.
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
"""How long a replica may act on an earlier value. One read per tenant in this time has no
measurable cost, and an operator's switch takes effect everywhere within a second."""

TENANTS_KEPT_MAX: Final = 10_000
"""Tenants whose value is kept in memory; the names come from callers."""


class Switched(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an operator has set, and when."""

    enabled: bool
    time_us: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Believed:
    enabled: bool
    until_s: float


class StickinessSwitch:
    """Says whether agents stick, by tenant."""

    def __init__(
        self,
        store: Store,
        start_value: Callable[[], bool],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep the switch in a store. start_value: what counts until an operator switches."""
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
            # One read serves all calls that come meanwhile: under load they would be dozens.
            reading = self._read_for_all(tenant, now_s, self._believed, self._asking)
            asking = asyncio.create_task(reading, name="stickiness")
            # All calls may have left before it fails.
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
        """Read a tenant's value into the given cache, which a switch meanwhile replaces."""
        try:
            enabled = await self.read(tenant)
        finally:
            asking.pop(tenant, None)
        if len(believed) >= TENANTS_KEPT_MAX:
            believed.clear()
        believed[tenant] = _Believed(enabled, now_s + FOLLOW_S)
        return enabled

    async def read(self, tenant: str) -> bool:
        """Return the value in the store: the later one of the tenant's and that of all tenants."""
        found = [await self.setting(tenant), await self.setting(ALL_TENANTS)]
        settings = [each for each in found if each is not None]
        if not settings:
            return self._start_value()
        return max(settings, key=lambda each: each.time_us).enabled

    async def setting(self, tenant: str) -> Switched | None:
        """Return what was last set for exactly this tenant, or for ALL_TENANTS."""
        data = await self._store.get_setting(tenant, SETTING)
        if data is None:
            return None
        try:
            return msgspec.json.decode(data, type=Switched)
        except msgspec.DecodeError as error:
            message = f'the stickiness setting of tenant "{tenant}" cannot be read; switch it again'
            raise StoreCorrupt(message) from error

    async def switch(self, tenant: str, *, enabled: bool, now_us: int, reason: str) -> bool:
        """Switch a tenant, or ALL_TENANTS; return whether that changed the value."""
        before = await self.read(tenant)
        found = [await self.setting(tenant), await self.setting(ALL_TENANTS)]
        # If nothing was set yet, another replica's registry may have another start value (a
        # roll-out changes them one by one): then the value is stored, so that all agree.
        own = found[0] if tenant == ALL_TENANTS else found[0] or found[1]
        if before == enabled and own is not None:
            return False
        # A clock that went back must not let an earlier value win.
        latest_us = max((each.time_us for each in found if each), default=0)
        new = Switched(enabled, max(now_us, latest_us + 1), reason)
        await self._store.put_setting(tenant, SETTING, msgspec.json.encode(new))
        self._believed = {}
        self._asking = {}
        return before != enabled
