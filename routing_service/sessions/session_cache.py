"""The cache of hot sessions, and the lock that keeps the calls of one session in order.

Rule: a cached state is a guess that the append checks. A call that appends nothing must confirm the
stored revision first if other processes may write.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from routing_service.core.history import HistoryFold
from routing_service.core.session import SessionState
from routing_service.storage.checked_store import Store
from routing_service.storage.event_codec import decode_events, decode_head, decode_state
from routing_service.storage.store import RevisionConflict, SessionKey, StoreCorrupt

RECENT_TURNS_MAX: Final = 64
"""Turns of a hot session kept in memory: three times the default history, so that one of several
agents usually finds its own turns without a read."""

RECENT_BYTES_MAX: Final = 64 * 1024
"""Text of a hot session kept in memory; times the cache size, this bounds the process."""

FOLDS_MAX: Final = 3_000
"""Sessions whose recent turns are kept, the most recently used ones. Turns take most of a hot
session's memory, and one read brings them back."""

HOT_TRUST_S: Final = 60.0
"""A cached session that was idle for this long is compared with the store once more if other
processes may write: the revision alone does not show that it was purged and started again. A
message after a pause of a minute therefore costs one read of one row."""


@dataclass(slots=True)
class HotSession:
    """A session in the cache. state None: not loaded. fold None: its turns were not read yet.

    chain: the hash of its last change; b"" = there is none.
    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0
    used_s: float = 0.0
    state: SessionState | None = None
    chain: bytes = b""
    fold: HistoryFold | None = None
    task_metadata: tuple[str, Mapping[str, str]] | None = None

    def forget(self) -> None:
        """Drop everything cached of the session; the next call reads the store."""
        self.state = None
        self.chain = b""
        self.fold = None
        self.task_metadata = None


class HeldSession:
    """A hot session with its lock, for ``async with``. A class, since a generator costs more."""

    __slots__ = ("_hot", "_leave")

    def __init__(self, hot: HotSession, leave: Callable[[HotSession], None]) -> None:
        self._hot = hot
        self._leave = leave

    async def __aenter__(self) -> HotSession:
        try:
            await self._hot.lock.acquire()
        except BaseException:
            self._leave(self._hot)
            raise
        return self._hot

    async def __aexit__(self, *_: object) -> None:
        self._hot.lock.release()
        self._leave(self._hot)


class SessionCache:
    """The hot sessions of one store."""

    def __init__(
        self,
        store: Store,
        sessions_max: int,
        *,
        folds_max: int = FOLDS_MAX,
        hot_trust_s: float = HOT_TRUST_S,
    ) -> None:
        """Cache sessions of a store. sessions_max: the least recently used beyond it go.

        folds_max: sessions whose recent turns are kept. hot_trust_s: idle time after which a
        session is compared with the store.
        """
        self._store = store
        self._sessions_max = sessions_max
        self._folds_max = folds_max
        self._hot_trust_s = hot_trust_s
        self._hot: OrderedDict[SessionKey, HotSession] = OrderedDict()
        self._with_fold: OrderedDict[SessionKey, HotSession] = OrderedDict()

    def hold(self, key: SessionKey) -> HeldSession:
        """Hold one session: its calls run one at a time, in the order in which they came."""
        return HeldSession(self.enter(key), self.leave)

    def enter(self, key: SessionKey) -> HotSession:
        """Return a session and count one more user of it; it stays cached until leave()."""
        hot = self._hot.get(key)
        if hot is None:
            hot = self._hot[key] = HotSession()
        self._hot.move_to_end(key)
        hot.users += 1
        return hot

    def leave(self, hot: HotSession) -> None:
        """Count one user less."""
        hot.users -= 1
        if len(self._hot) > self._sessions_max:
            self._evict()

    def peek(self, key: SessionKey) -> SessionState | None:
        """Return the session's state as it is in memory, if it is; it may be out of date."""
        hot = self._hot.get(key)
        return hot.state if hot is not None else None

    async def current(self, key: SessionKey, hot: HotSession) -> SessionState | None:
        """Return the session's state, certainly the latest one; None if it has none."""
        return await self.loaded(key, hot, trust_s=-1.0 if self._store.shared_writers else 0.0)

    async def loaded(
        self, key: SessionKey, hot: HotSession, *, trust_s: float | None = None
    ) -> SessionState | None:
        """Return the session's state, from memory if it was used in the last trust_s seconds.

        trust_s: None = hot_trust_s. Raises StoreError; StoreCorrupt if state and revision differ.
        """
        known = hot.state
        now_s = 0.0
        if self._store.shared_writers:
            now_s = asyncio.get_running_loop().time()
        trust_s = self._hot_trust_s if trust_s is None else trust_s
        if known is None or now_s - hot.used_s > trust_s:
            head = await self._store.load(key)
            if head is not None:
                state, chain = decode_head(head.state)
                if state.revision != head.revision:
                    message = (
                        f"the stored state has revision {state.revision}, the session has "
                        f"{head.revision}; restore the session from a backup"
                    )
                    raise StoreCorrupt(message)
                if known is None or not _is_same(known, state):
                    hot.forget()
                    hot.state, hot.chain = state, chain
            else:
                hot.forget()
        hot.used_s = now_s
        return hot.state

    async def confirm(self, key: SessionKey, state: SessionState | None) -> None:
        """Check that a decision that writes nothing was made on the latest state.

        Raises RevisionConflict if it was not; StoreError.
        """
        if not self._store.shared_writers:
            return
        base = state.revision if state else 0
        head = await self._store.load(key)
        actual = head.revision if head else 0
        # The revision alone does not show that another process removed the session and that it
        # was started again.
        is_same = head is None or state is None or _is_same(decode_state(head.state), state)
        if actual != base or not is_same:
            raise RevisionConflict(key, base, actual)

    async def load_fold(self, key: SessionKey, hot: HotSession) -> None:
        """Read the session's recent turns, if they are not in memory. Raises StoreError."""
        if hot.fold is not None or hot.state is None:
            return
        fold = new_fold()
        before = hot.state.revision + 1
        changes = await self._store.read_changes(
            key, before=before, limit=RECENT_TURNS_MAX, newest_first=True
        )
        fold.is_cut = len(changes) < hot.state.revision
        for change in reversed(changes):
            fold.apply(change.revision, change.time_us, decode_events(change.events))
        hot.fold = fold

    def keep_fold(self, key: SessionKey, hot: HotSession) -> None:
        """Keep the session's recent turns; beyond folds_max the least recently used are dropped."""
        self._with_fold[key] = hot
        self._with_fold.move_to_end(key)
        if len(self._with_fold) > self._folds_max:
            _, oldest = self._with_fold.popitem(last=False)
            if not oldest.users:  # If it is in use, its call keeps it again in a moment.
                oldest.fold = None

    def _evict(self) -> None:
        """Drop the least recently used sessions."""
        while len(self._hot) > self._sessions_max:
            oldest = next(iter(self._hot))
            if self._hot[oldest].users:
                # In use: all others were used later, and the next call evicts again.
                break
            del self._hot[oldest]
            self._with_fold.pop(oldest, None)


def new_fold() -> HistoryFold:
    """Return an empty fold with the bounds of a hot session."""
    return HistoryFold(records_max=RECENT_TURNS_MAX, bytes_max=RECENT_BYTES_MAX)


def _is_same(known: SessionState, stored: SessionState) -> bool:
    """Say whether both are one session at one revision, not two sessions of the same name."""
    return (known.revision, known.create_us) == (stored.revision, stored.create_us)
