"""Applies time-outs when they fall due, without a call.

One of several replicas sweeps, by a lease. Rule: it is correct without the lease, which only saves
work: of several attempts to change a session one wins, and a time-out that is not swept takes
effect at the session's next call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import structlog

from routing_service.core.errors import RoutingError
from routing_service.ids import new_uuid7
from routing_service.sessions.calls import Expiry
from routing_service.storage.checked_store import Store
from routing_service.storage.store import (
    PAGE_ROWS_MAX,
    SessionKey,
    StoreClosed,
    StoreError,
    StoreUnavailable,
)

SWEEP_INTERVAL_S: Final = 1.0
"""Between two sweeps: how late a time-out may take effect. A sweep is one read of an index."""

SWEEP_SESSIONS_MAX: Final = 100
"""Sessions of one round. If more are due, the next round follows at once."""

SWEEP_AT_ONCE: Final = 16
"""Sessions swept at the same time: one group for the store, few next to the callers' writes."""

LEASE_S: Final = 10.0
"""How long one replica sweeps alone. If it dies, another one takes over after this time."""

POSTPONE_S: Final = 60.0
"""A session that is due by its row but has nothing to do is tried again after so long: the registry
has changed since its last change, or its state cannot be read."""

_LEASE: Final = "expiry_sweep"
_SECOND_US: Final = 1_000_000

_log = structlog.get_logger(__name__)


class ExpirySweeper:
    """Sweeps one store, for as long as ``run`` runs."""

    def __init__(
        self,
        store: Store,
        expire: Callable[[SessionKey], Awaitable[Expiry]],
        clock_us: Callable[[], int],
        *,
        interval_s: float = SWEEP_INTERVAL_S,
    ) -> None:
        """Do not sweep yet. expire: applies a session's time-outs.

        clock_us: microseconds since 1970. interval_s: between two sweeps.
        """
        self._store = store
        self._expire = expire
        self._clock_us = clock_us
        self._interval_s = interval_s
        self._holder = new_uuid7()
        self._lease_ends_us = 0
        self.sessions_swept = 0
        self.failures = 0
        self._postponed: dict[SessionKey, int] = {}
        """Sessions that were due by their rows but had nothing to do: when to try again."""

    async def run(self) -> None:
        """Sweep until cancelled; after a store's failure, try again."""
        failed = False
        try:
            while True:
                is_full = False
                try:
                    is_full = await self.sweep() >= SWEEP_SESSIONS_MAX
                    failed = False
                except StoreClosed:
                    return
                except StoreError as error:
                    self.failures += 1
                    if not failed:
                        _log.warning("expiry_sweep_failed", error=str(error))
                    failed = True
                except Exception:  # noqa: BLE001 - the other sessions must still be swept
                    # A bug must end neither the server nor the sweeping of other sessions.
                    self.failures += 1
                    _log.exception("expiry_sweep_failed")
                if not is_full:
                    await asyncio.sleep(self._interval_s)
        finally:
            await self._give_up()

    async def sweep(self) -> int:
        """Apply what is due now, in one round; return the number of sessions that changed.

        0 while another replica sweeps. Raises StoreError.
        """
        now_us = self._clock_us()
        due = await self._due(now_us)
        if not due or not await self._may_sweep(now_us):
            return 0
        swept = 0
        for place in range(0, len(due), SWEEP_AT_ONCE):
            part = due[place : place + SWEEP_AT_ONCE]
            swept += sum(await asyncio.gather(*(self._sweep_one(key, now_us) for key in part)))
        if swept:
            self.sessions_swept += swept
            _log.info("expiry_swept", sessions=swept)
        return swept

    async def _due(self, now_us: int) -> list[SessionKey]:
        """Return the sessions of this round, the earliest first."""
        waiting = {key: until for key, until in self._postponed.items() if until > now_us}
        # A clock that went back must not postpone a session for longer.
        limit_us = now_us + int(POSTPONE_S * _SECOND_US)
        self._postponed = {key: until for key, until in waiting.items() if until <= limit_us}
        limit = min(SWEEP_SESSIONS_MAX + len(self._postponed), PAGE_ROWS_MAX)
        found = await self._store.due_sessions(now_us, limit)
        if found and all(key in self._postponed for key in found) and limit == PAGE_ROWS_MAX:
            # Postponed sessions fill the page and hide the others.
            self._postponed.clear()
        return [key for key in found if key not in self._postponed][:SWEEP_SESSIONS_MAX]

    async def _may_sweep(self, now_us: int) -> bool:
        """Say whether this replica may sweep now, and take the lease.

        Called only if a session is due, so that an idle service writes nothing.
        """
        if not self._store.shared_writers:
            return True
        half_us = int(LEASE_S * _SECOND_US / 2)
        if now_us + half_us < self._lease_ends_us <= now_us + 2 * half_us:
            return True
        ends_us = now_us + 2 * half_us
        is_ours = await self._store.acquire_lease(_LEASE, self._holder, now_us, ends_us)
        self._lease_ends_us = ends_us if is_ours else 0
        return is_ours

    async def _sweep_one(self, key: SessionKey, now_us: int) -> bool:
        """Sweep one session; False if there was nothing to do, or another caller did it."""
        try:
            expiry = await self._expire(key)
        except (StoreUnavailable, StoreClosed):
            raise
        except (StoreError, RoutingError) as error:
            # A problem of this session alone; its callers get the error too.
            _log.warning("session_not_swept", session_id=key.session_id, error=str(error))
            self._postpone(key, now_us)
            return False
        if not expiry.changed and not expiry.overtaken:
            self._postpone(key, now_us)
        return expiry.changed

    def _postpone(self, key: SessionKey, now_us: int) -> None:
        self._postponed[key] = now_us + int(POSTPONE_S * _SECOND_US)

    async def _give_up(self) -> None:
        if not self._lease_ends_us:
            return
        now_us = self._clock_us()
        with suppress(StoreError):
            await self._store.acquire_lease(_LEASE, self._holder, now_us, now_us)
