"""The switch that turns stickiness off for a tenant, or for all, and back on.

It can be off for some agents or a share of the users alone.

Rule: the store holds the switch; a process acts on a value that is at most FOLLOW_S old. The
registry's value counts until an operator has switched.
"""

from __future__ import annotations

import asyncio
import enum
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, get_args

import msgspec
from msgspec.structs import replace

from routing_service.core.commands import (
    CancelTask,
    ClaimTurn,
    ClearActiveAgent,
    Command,
    CompleteTurn,
    KeepTurn,
    ReleaseTurn,
    RouteMessage,
    SetActiveAgent,
)
from routing_service.core.evolve import held_meanwhile
from routing_service.core.people import is_with_person
from routing_service.core.registry import Registry
from routing_service.core.session import SessionState
from routing_service.sessions.audit_log import NO_SESSION, Operator
from routing_service.sessions.calls import Call
from routing_service.storage.checked_store import Store
from routing_service.storage.store import AuditEntry, StoreCorrupt, StoreError

ByStickiness = (
    RouteMessage
    | SetActiveAgent
    | CompleteTurn
    | ClearActiveAgent
    | CancelTask
    | KeepTurn
    | ClaimTurn
    | ReleaseTurn
)
"""Commands that are decided differently while stickiness is off."""

BY_STICKINESS: Final = get_args(ByStickiness)

ALL_TENANTS: Final = "*"
SETTING: Final = "stickiness"
DEFAULT_TENANT: Final = "default"
"""The tenant of callers that name none; sign-in has the same name for it."""

FOLLOW_S: Final = 0.5
"""How long a replica may act on an earlier value. One read per tenant in this time has no
measurable cost, and an operator's switch takes effect everywhere within a second."""

TENANTS_KEPT_MAX: Final = 10_000
"""Tenants whose value is kept in memory; the names come from callers."""


STICKINESS_SWITCHED: Final = "stickiness_switched"
"""The kind of the audit entries of switches."""

AGENTS_OFF_MAX: Final = 64
"""Agents in one switch: each message compares its own with them."""

GAUGE_S: Final = 5.0
"""How often a process without calls looks at the switch, for its figures."""

GAUGE_TENANTS_MAX: Final = 100
"""Tenants that such a look reads again, the latest served: one read each."""


class Source(enum.StrEnum):
    """What decides whether stickiness is on."""

    REGISTRY = "registry"
    SETTING = "setting"
    TENANT = "tenant"
    ALL_TENANTS = "all_tenants"


class Switched(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an operator has set, when, why, and under which name (by).

    agent_ids, users_percent: it is off for these agents and this share of the users alone.
    stale_from_us: sessions used from then until time_us are stale; 0 = none is.
    """

    enabled: bool
    time_us: int
    reason: str = ""
    by: str = ""
    agent_ids: tuple[str, ...] = ()
    users_percent: int = 0
    stale_from_us: int = 0

    @property
    def is_off_for_all(self) -> bool:
        """Whether it is off for all agents and users."""
        return not (self.enabled or self.agent_ids or self.users_percent)


@dataclass(frozen=True, slots=True)
class Stickiness:
    """Whether agents stick, for whom, and who said so. enabled: for all users and agents."""

    switched: Switched
    source: Source
    is_plain: bool = field(init=False)
    """On for all, and no session is stale: so it is nearly always, and every message asks."""

    def __post_init__(self) -> None:
        """Find out whether it is plain."""
        switched = self.switched
        object.__setattr__(self, "is_plain", switched.enabled and not switched.stale_from_us)

    @property
    def enabled(self) -> bool:
        """Whether it is on for all users and agents."""
        return self.switched.enabled

    @property
    def is_stored(self) -> bool:
        """Whether an operator has switched it."""
        return self.source in (Source.TENANT, Source.ALL_TENANTS)

    @property
    def version(self) -> str:
        """Another one after each switch."""
        return f"{self.source.value}-{self.switched.time_us}-{int(self.enabled)}"

    def is_stale(self, last_used_us: int) -> bool:
        """Say whether a session was last used while it was off, before a fresh start."""
        switched = self.switched
        return bool(switched.stale_from_us) and (
            switched.stale_from_us <= last_used_us < switched.time_us
        )

    def sticks(self, user_id: str, agent_ids: Iterable[str]) -> bool:
        """Say whether it is on for a user whose conversation is with one of these agents."""
        switched = self.switched
        if switched.enabled:
            return True
        if switched.is_off_for_all:
            return False
        if any(agent_id in switched.agent_ids for agent_id in agent_ids):
            return False
        return user_share(user_id) >= switched.users_percent


def user_share(user_id: str) -> int:
    """Return 0-99 for a user, always the same: below a percentage, the user is in that share."""
    return zlib.crc32(user_id.encode()) % 100


@dataclass(frozen=True, slots=True)
class _Believed:
    stickiness: Stickiness
    until_s: float


class StickinessSwitch:
    """Says whether agents stick, by tenant."""

    def __init__(
        self,
        store: Store,
        start_value: Callable[[], bool],
        monotonic_s: Callable[[], float] = time.monotonic,
        *,
        start_source: Source = Source.REGISTRY,
        gauge_s: float = GAUGE_S,
    ) -> None:
        """Keep the switch in a store.

        start_value: what counts until an operator switches. gauge_s: how often run() looks.
        """
        self._start_source = start_source
        self._gauge_s = gauge_s
        self._store = store
        self._start_value = start_value
        self._monotonic_s = monotonic_s
        self._believed: dict[str, _Believed] = {}
        self._asking: dict[str, asyncio.Task[Stickiness]] = {}

    @property
    def start_enabled(self) -> bool:
        """What counts until an operator switches."""
        return self._start_value()

    @property
    def tenants_off(self) -> int:
        """Tenants that this process knows of for which it is off, in whole or in part."""
        return sum(not believed.stickiness.enabled for believed in self._believed.values())

    @property
    def enabled_for_all(self) -> bool:
        """Whether it is on for every tenant that this process knows of."""
        return not self.tenants_off and (bool(self._believed) or self.start_enabled)

    async def run(self) -> None:
        """Look at the switch from time to time, so that the figures are true without calls."""
        while True:
            await asyncio.sleep(self._gauge_s)
            tenants = [DEFAULT_TENANT, ALL_TENANTS, *self._believed]
            for tenant in dict.fromkeys(tenants[:2] + tenants[2:][-GAUGE_TENANTS_MAX:]):
                try:
                    await self.now(tenant)
                except StoreError:
                    # The store's own probe reports it.
                    break

    async def now(self, tenant: str) -> Stickiness:
        """Return what counts for a tenant, as of at most FOLLOW_S ago."""
        now_s = self._monotonic_s()
        believed = self._believed.get(tenant)
        if believed is not None and now_s < believed.until_s:
            return believed.stickiness
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
        asking: dict[str, asyncio.Task[Stickiness]],
    ) -> Stickiness:
        """Read a tenant's value into the given cache, which a switch meanwhile replaces."""
        try:
            stickiness = await self.read(tenant)
        finally:
            asking.pop(tenant, None)
        if len(believed) >= TENANTS_KEPT_MAX:
            believed.clear()
        believed[tenant] = _Believed(stickiness, now_s + FOLLOW_S)
        return stickiness

    async def read(self, tenant: str) -> Stickiness:
        """Return the value in the store: the later one of the tenant's and that of all tenants."""
        own, of_all = await self.setting(tenant), await self.setting(ALL_TENANTS)
        if of_all is not None and (own is None or own.time_us <= of_all.time_us):
            return Stickiness(of_all, Source.ALL_TENANTS)
        if own is not None:
            return Stickiness(own, Source.TENANT)
        return Stickiness(Switched(self._start_value(), 0), self._start_source)

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

    async def switch(
        self,
        tenant: str,
        new: Switched,
        *,
        fresh: bool = False,
        only_after: Switched | None = None,
    ) -> tuple[Stickiness, Switched | None]:
        """Switch a tenant, or ALL_TENANTS; return what counted before, and what was stored.

        A switch to what an operator has switched already is not stored. fresh: sessions used since
        it was switched off are stale. only_after: what counts now; if that has changed, nothing is
        stored. None = that does not matter.
        """
        raw = await self._store.get_setting(tenant, SETTING)
        before = await self.read(tenant)
        if only_after is not None and before.switched != only_after:
            return before, None
        found = [await self.setting(tenant), await self.setting(ALL_TENANTS)]
        # If nothing was set yet, another replica's registry may have another start value (a
        # roll-out changes them one by one): then the value is stored, so that all agree.
        own = found[0] if tenant == ALL_TENANTS else found[0] or found[1]
        if own is not None and is_same(before.switched, new):
            return before, None
        # A clock that went back must not let an earlier value win.
        latest_us = max((each.time_us for each in found if each), default=0)
        off_since_us = 0 if before.enabled or not fresh else max(1, before.switched.time_us)
        new = replace(new, time_us=max(new.time_us, latest_us + 1), stale_from_us=off_since_us)
        data = msgspec.json.encode(new)
        if only_after is None:
            await self._store.put_setting(tenant, SETTING, data)
        elif not await self._store.swap_setting(tenant, SETTING, raw, data):
            return before, None
        self._believed = {}
        self._asking = {}
        return before, new


def is_same(one: Switched, other: Switched) -> bool:
    """Say whether both switch the same off."""
    return (one.enabled, set(one.agent_ids), one.users_percent) == (
        other.enabled,
        set(other.agent_ids),
        other.users_percent,
    )


def switch_entry(operator: Operator, tenant: str, before: Stickiness, new: Switched) -> AuditEntry:
    """Return the record of a switch, for the audit of the tenant or, for all, of the operator's."""
    data = {"tenant": tenant, "was_enabled": before.enabled, **msgspec.to_builtins(new)}
    if operator.trace_id:
        data["trace_id"] = operator.trace_id
    return AuditEntry(
        time_us=new.time_us,
        tenant=operator.tenant if tenant == ALL_TENANTS else tenant,
        session_id=NO_SESSION,
        revision=0,
        kind=STICKINESS_SWITCHED,
        request_id="",
        user_id="",
        data=msgspec.json.encode(data),
    )


def by_stickiness(
    stickiness: Stickiness,
    call: Call,
    command: ByStickiness,
    state: SessionState | None,
    registry: Registry,
) -> Command:
    """Return a command with what the switch says about its session.

    A person keeps the conversation until it is handed back, whatever the switch says.
    """
    if state is not None and is_with_person(state, registry):
        return command
    enabled = _sticks(stickiness, call, command, state)
    if isinstance(command, RouteMessage):
        is_stale = state is not None and stickiness.is_stale(state.last_used_us)
        return replace(command, stickiness_enabled=enabled, is_stale=is_stale)
    return replace(command, stickiness_enabled=enabled)


def _sticks(
    stickiness: Stickiness, call: Call, command: Command, state: SessionState | None
) -> bool:
    """Say whether agents stick for one call."""
    user_id = (state.owner if state else "") or call.access.user_id or call.key.session_id
    agent_ids = [held.agent_id for held in held_meanwhile(state)[-1:]] if state else []
    if isinstance(command, CompleteTurn):
        agent_ids.append(command.agent_id)
    return stickiness.sticks(user_id, agent_ids)
