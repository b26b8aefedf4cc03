"""A store that fails as stores do: before the write, after it, late, or with the caller cancelled.

Owns the faults, and which call gets which, by a seed or by a list. Every fault could come from a
real store, and its effects on the data are real.

================== ================================================================================
before StoreUnavailable, and nothing was written after StoreUnavailable, and it was written:
executed, then timed out late written and told, after a while cancelled before the driver was
cancelled before it sent anything cancelled after the driver was cancelled while the answer was on
its way ==================
================================================================================
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from routing_service.storage.checked_store import Store
from routing_service.storage.store import (
    Append,
    AuditEntry,
    Change,
    Head,
    SessionKey,
    StoreUnavailable,
)

BEFORE: Final = "before"
AFTER: Final = "after"
LATE: Final = "late"
CANCELLED_BEFORE: Final = "cancelled before"
CANCELLED_AFTER: Final = "cancelled after"

WRITE_FAULTS: Final = (BEFORE, AFTER, LATE, CANCELLED_BEFORE, CANCELLED_AFTER)
READ_FAULTS: Final = (BEFORE, LATE)

LATE_S: Final = 0.01


class FaultyStore:
    """A Store around another one. Faults come from ``plan``, then by chance.

    share: the share of calls with a random fault; 0 = none. is_shared: whether it reports other
    writers; with True a cached state is never trusted. met: how often each fault occurred.
    """

    def __init__(
        self, inner: Store, *, seed: int = 0, share: float = 0.0, is_shared: bool | None = None
    ) -> None:
        self.inner = inner
        self.share = share
        self.plan: deque[str] = deque()
        self.met: Counter[str] = Counter()
        self._dice = random.Random(seed)
        self._is_shared = inner.shared_writers if is_shared is None else is_shared

    def __getattr__(self, name: str) -> Any:
        # Calls without faults are passed on: pages, settings, probes.
        return getattr(self.inner, name)

    @property
    def shared_writers(self) -> bool:
        """See Store.shared_writers."""
        return self._is_shared

    def next_writes(self, faults: Iterable[str]) -> None:
        """Give the next appends these faults, in order; "" is none."""
        self.plan.extend(faults)

    async def append(self, append: Append) -> None:
        """See Store.append."""
        fault = self.plan.popleft() if self.plan else self._by_chance(WRITE_FAULTS)
        await self._meet(fault, lambda: self.inner.append(append))

    async def append_audit(self, entry: AuditEntry) -> None:
        """See Store.append_audit."""
        fault = self._by_chance((BEFORE, LATE))
        await self._meet(fault, lambda: self.inner.append_audit(entry))

    async def load(self, key: SessionKey) -> Head | None:
        """See Store.load."""
        return await self._meet(self._by_chance(READ_FAULTS), lambda: self.inner.load(key))

    async def head_revision(self, key: SessionKey) -> int:
        """See Store.head_revision."""
        return await self._meet(self._by_chance(READ_FAULTS), lambda: self.inner.head_revision(key))

    async def find_request(
        self, key: SessionKey, method: str, request_id: str, actor: str = ""
    ) -> Change | None:
        """See Store.find_request."""
        return await self._meet(
            self._by_chance(READ_FAULTS),
            lambda: self.inner.find_request(key, method, request_id, actor),
        )

    async def read_changes(self, key: SessionKey, **how: Any) -> list[Change]:
        """See Store.read_changes."""
        return await self._meet(
            self._by_chance(READ_FAULTS), lambda: self.inner.read_changes(key, **how)
        )

    def _by_chance(self, faults: tuple[str, ...]) -> str:
        return self._dice.choice(faults) if self._dice.random() < self.share else ""

    async def _meet(self, fault: str, call: Callable[[], Awaitable[Any]]) -> Any:
        self.met[fault] += bool(fault)
        match fault:
            case "before":
                raise StoreUnavailable("the store did not answer; try again")
            case "cancelled before":
                raise asyncio.CancelledError
            case "late":
                await asyncio.sleep(LATE_S * self._dice.random())
        result = await call()
        match fault:
            case "after":
                raise StoreUnavailable("the store did not answer in time; try again")
            case "cancelled after":
                raise asyncio.CancelledError
        return result
