"""The automatic off: it switches stickiness off for one agent whose stuck share jumps.

Rule: it never switches on, and an operator's switch stands. What happened before that switch is no
evidence, and an agent that was off must be seen below the bound before it is switched off again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog

from routing_service.analytics.counts import AgentCounts
from routing_service.analytics.session_walk import HOUR_US
from routing_service.analytics.stored_forms import STUCK_WINDOW, Figures, decode, encode, hour_name
from routing_service.analytics.stuck_windows import WINDOW_PARTS, AgentWindow, StuckWindow
from routing_service.core.registry import AutoOff, Registry
from routing_service.sessions.audit_log import AuditLog, Operator
from routing_service.sessions.stickiness_switch import (
    AGENTS_OFF_MAX,
    StickinessSwitch,
    Switched,
    switch_entry,
)
from routing_service.storage.checked_store import Store
from routing_service.storage.store import StoreError

BY: Final = "agent-routing"
"""Who switched, as the switch and its audit record name it."""

JUMP_FACTOR: Final = 2.0
"""How many times its earlier share an agent's share must be: one that was always bad is no jump."""

EARLIER_HOURS: Final = 24
"""The earlier share is that of so many hours before the window."""

LOOK_S: Final = 2.0
"""How often the windows are looked at: as often as a quiet log is counted."""

TENANTS_PER_LOOK_MAX: Final = 8
"""Tenants without news that a look checks in rotation: another process may have counted them."""

SWAP_ATTEMPTS_MAX: Final = 4

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Jump:
    """An agent whose stuck share has jumped. earlier: of the 24 hours before; None = not used."""

    agent_id: str
    window: AgentWindow
    earlier: AgentCounts | None

    @property
    def earlier_share(self) -> float:
        """The stuck share of the hours before; 0 if the agent was not used."""
        before = self.earlier
        return before.stuck / before.activations if before and before.activations else 0.0

    def reason(self, rule: AutoOff) -> str:
        """Return the switch's reason, with its figures."""
        window = self.window
        before = self.earlier
        said = f"{before.stuck} of {before.activations} times" if before else "not used"
        return (
            f"{self.agent_id}: users left it by a command within two turns "
            f"{window.stuck} of {window.activations} times ({window.stuck_share:.0%}, "
            f"{window.users_min} users or more, {window.turns} turns) in "
            f"{rule.window_us // 1_000_000} s; the {EARLIER_HOURS} hours before: {said} "
            f"({self.earlier_share:.0%}); auto_off is at {rule.stuck_share:.0%}"
        )


class AutoOffWatch:
    """Looks at the windows of one store, for the process that counts."""

    def __init__(
        self,
        store: Store,
        switch: StickinessSwitch,
        registry: Callable[[], Registry],
        clock_us: Callable[[], int],
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Switch nothing yet. clock_us: microseconds since 1970."""
        self._store = store
        self._switch = switch
        self._registry = registry
        self._clock_us = clock_us
        self._monotonic_s = monotonic_s
        self.audit = AuditLog(store, clock_us)
        self._look_again_s = 0.0
        self._changed: set[str] = set()
        self._rotation_after = ""
        self.agents_switched_off = 0

    def part_us(self) -> int:
        """Return the length of a window's parts; 0 while the registry asks for no automatic off."""
        rule = self._registry().auto_off
        return 0 if rule is None else rule.window_us // WINDOW_PARTS

    async def look(self, tenants: Collection[str]) -> None:
        """Look at the windows of these tenants, and of some others in rotation.

        Does nothing more often than every LOOK_S; tenants are remembered. Raises StoreError.
        """
        self._changed.update(tenants)
        now_s = self._monotonic_s()
        rule = self._registry().auto_off
        if rule is None or now_s < self._look_again_s:
            return
        self._look_again_s = now_s + LOOK_S
        others = await self._store.list_tenants(self._rotation_after, TENANTS_PER_LOOK_MAX)
        self._rotation_after = others[-1] if len(others) == TENANTS_PER_LOOK_MAX else ""
        changed, self._changed = self._changed, set()
        for tenant in dict.fromkeys((*changed, *others)):
            try:
                await self._look_at(tenant, rule)
            except StoreError as error:
                # One tenant's damaged setting must not hide the others' jumps.
                _log.warning("stickiness_auto_off_failed", tenant=tenant, error=str(error))

    async def _look_at(self, tenant: str, rule: AutoOff) -> None:
        raw = await self._store.get_setting(tenant, STUCK_WINDOW)
        if raw is None:
            return
        stored = decode(StuckWindow, raw, STUCK_WINDOW)
        if stored.part_us != rule.window_us // WINDOW_PARTS:
            return
        now_us = self._clock_us()
        found = await self._switch.read(tenant)
        switched = found.switched
        if switched.is_off_for_all:
            return
        alarmed = {*stored.alarmed, *switched.agent_ids}
        for agent_id, window in stored.since(switched.time_us, now_us).items():
            if not _is_enough(window, rule) or agent_id in switched.agent_ids:
                continue
            if window.stuck_share < rule.stuck_share:
                alarmed.discard(agent_id)
            elif agent_id not in alarmed and self._may_be_off(agent_id):
                jump = await self._jump(tenant, agent_id, window, stored, now_us)
                if jump is not None and await self._switch_off(tenant, jump, rule):
                    alarmed.add(agent_id)
        await self._keep_alarmed(tenant, alarmed, set(stored.alarmed))

    def _may_be_off(self, agent_id: str) -> bool:
        """Say whether an agent is one that sticks: the home agent gets the messages anyway."""
        registry = self._registry()
        return agent_id in registry.agents and agent_id != registry.home_agent_id

    async def _jump(
        self, tenant: str, agent_id: str, window: AgentWindow, stored: StuckWindow, now_us: int
    ) -> Jump | None:
        """Compare with the agent's share in the hours before; None if that is no jump."""
        last = now_us // HOUR_US
        names = [hour_name(hour, "") for hour in range(last - EARLIER_HOURS, last + 1)]
        found = await asyncio.gather(*(self._store.get_setting(tenant, each) for each in names))
        earlier = AgentCounts()
        for name, raw in zip(names, found, strict=True):
            counts = decode(Figures, raw, name).counts.agents.get(agent_id)
            if counts is not None:
                earlier.add(counts)
        # The hours contain the window: what is left is from before it.
        inside = stored.since(0, now_us).get(agent_id, window)
        earlier.activations = max(0, earlier.activations - inside.activations)
        earlier.stuck = min(max(0, earlier.stuck - inside.stuck), earlier.activations)
        jump = Jump(agent_id, window, earlier if earlier.activations else None)
        return jump if window.stuck_share >= JUMP_FACTOR * jump.earlier_share else None

    async def _switch_off(self, tenant: str, jump: Jump, rule: AutoOff) -> bool:
        """Switch off for the agent as well; False if it is, or the switch has changed meanwhile."""
        seen = await self._switch.read(tenant)
        switched = seen.switched
        if switched.is_off_for_all or jump.agent_id in switched.agent_ids:
            return False
        if len(switched.agent_ids) >= AGENTS_OFF_MAX:
            _log.warning("stickiness_auto_off_full", tenant=tenant, agent_id=jump.agent_id)
            return False
        new = Switched(
            enabled=False,
            time_us=self._clock_us(),
            reason=jump.reason(rule),
            by=BY,
            agent_ids=(*switched.agent_ids, jump.agent_id),
            users_percent=switched.users_percent,
        )
        before, stored = await self._switch.switch(tenant, new, only_after=switched)
        if stored is None:
            return False
        self.agents_switched_off += 1
        _log.warning(
            "stickiness_auto_off",
            tenant=tenant,
            agent_id=jump.agent_id,
            stuck=jump.window.stuck,
            activations=jump.window.activations,
            stuck_share=round(jump.window.stuck_share, 3),
            earlier_share=round(jump.earlier_share, 3),
            reason=stored.reason,
            remedy="look at the agent; agent-routing stickiness on switches it on again",
        )
        await self.audit.add(switch_entry(Operator(tenant, BY), tenant, before, stored))
        return True

    async def _keep_alarmed(self, tenant: str, alarmed: set[str], before: set[str]) -> None:
        """Store which agents have to be seen below the bound first; others may be counting."""
        if alarmed == before:
            return
        for _ in range(SWAP_ATTEMPTS_MAX):
            raw = await self._store.get_setting(tenant, STUCK_WINDOW)
            stored = decode(StuckWindow, raw, STUCK_WINDOW)
            kept = msgspec.structs.replace(stored, alarmed=sorted(alarmed))
            if await self._store.swap_setting(tenant, STUCK_WINDOW, raw, encode(kept)):
                return
        # The next look does it: an agent that is off is alarmed by that alone.


def _is_enough(window: AgentWindow, rule: AutoOff) -> bool:
    """Say whether there are enough turns and different users to judge an agent."""
    return window.turns >= rule.turns_min and window.users_min >= rule.users_min
