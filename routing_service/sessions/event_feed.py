"""Sends committed changes to watchers: first what they missed, from the log, then live.

Rule: a watcher is only a position in the log. Commits wake it, and it reads on from its position:
so nothing is queued for it, lost or sent twice, and a slow watcher delays no other.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from routing_service.core.errors import Reason, RoutingError, unknown_session
from routing_service.sessions.live_feed import LiveQueue
from routing_service.storage.checked_store import Store
from routing_service.storage.event_codec import ERASE_USER
from routing_service.storage.store import Change, CursorInvalid, SessionKey, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

READ_CHANGES_MAX: Final = 200
"""Changes per read while a watcher catches up."""

RECENT_CHANGES_MAX: Final = 256
"""Changes of a watched session kept in memory: many watchers of it cost one read, or none."""

TAIL_POLL_S: Final = 0.025
"""How often the log is read for other processes' commits while there are watchers and the store
gives no hints. With the write itself it keeps a watcher on another replica within 100 ms of the
commit."""

TAIL_HINTED_POLL_S: Final = 0.25
"""How often it is read if hints arrive. A lost hint delays a watcher by this much."""

TAIL_RETRY_S: Final = 0.5
"""How long the tail waits after the store failed."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Topic:
    """A watched session: its watchers, and its latest changes in order.

    looks: how often it was unclear whether this is still the same session.
    """

    watchers: set[asyncio.Event] = field(default_factory=set)
    recent: deque[Change] = field(default_factory=lambda: deque(maxlen=RECENT_CHANGES_MAX))
    has_ended: bool = False
    looks: int = 0

    def publish(self, change: Change) -> None:
        """Keep a change if it is the next one, and wake all watchers."""
        if change.method == ERASE_USER:
            # The changes before it have lost their content: read them from the store.
            self.recent.clear()
        if self.recent and change.revision <= self.recent[-1].revision:
            if not self._knows(change):
                # It came late, or another replica removed the session and started it again under
                # this name: read the store.
                self.looks += 1
                self.read_again()
            return  # Otherwise it came twice: from this process and from the log.
        if self.recent and change.revision != self.recent[-1].revision + 1:
            self.recent.clear()
        self.recent.append(change)
        for watcher in self.watchers:
            watcher.set()

    def _knows(self, change: Change) -> bool:
        """Say whether this very change is among the latest."""
        place = change.revision - self.recent[0].revision
        return place >= 0 and self.recent[place] == change

    def is_behind(self, revision: int) -> bool:
        """Say whether the latest known change is before a revision."""
        return bool(self.recent) and self.recent[-1].revision < revision

    def read_again(self) -> None:
        """Make all watchers read the log."""
        self.recent.clear()
        for watcher in self.watchers:
            watcher.set()

    def after(self, revision: int) -> list[Change] | None:
        """Return the changes after a revision; None if they must be read from the log."""
        if not self.recent or self.recent[0].revision > revision + 1:
            return None
        return [change for change in self.recent if change.revision > revision]


class EventFeed:
    """Feeds the watchers of one store."""

    def __init__(self, store: Store) -> None:
        """Serve one store."""
        self._store = store
        self._topics: dict[SessionKey, _Topic] = {}
        self._log_watchers: set[asyncio.Event] = set()
        self._reading: dict[bytes, asyncio.Task[tuple[list[tuple[SessionKey, Change]], bytes]]] = {}
        self._tail: asyncio.Task[None] | None = None
        self._watches = 0
        self._closed = False
        self._doubted: set[SessionKey] = set()
        self._looking: asyncio.Task[None] | None = None

    def publish(self, key: SessionKey, change: Change) -> None:
        """Publish a change that this process has committed."""
        topic = self._topics.get(key)
        if topic is not None:
            topic.publish(change)
        for watcher in self._log_watchers:
            watcher.set()

    def end(self, key: SessionKey) -> None:
        """End the watches of a removed session: another may start under its name."""
        topic = self._topics.pop(key, None)
        if topic is not None:
            topic.has_ended = True
            topic.read_again()

    def doubt(self, key: SessionKey) -> None:
        """Check the log for an append whose outcome is unknown.

        Its caller has left or got an error; if it was committed, watchers must still get it.
        """
        is_watched = key in self._topics or bool(self._log_watchers)
        if self._store.shared_writers or self._closed or not is_watched:
            return  # The tail finds it anyway, or there is no watcher.
        self._doubted.add(key)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="event feed doubts")

    async def _look(self) -> None:
        """Wake the watchers of such sessions, once the writes that were under way have ended."""
        while self._doubted:
            keys, self._doubted = self._doubted, set()
            # Writes end in order: after this one, all that were under way have ended.
            with suppress(StoreError):
                await self._store.probe_write()
            for key in keys:
                topic = self._topics.get(key)
                if topic is not None:
                    topic.read_again()
            for watcher in self._log_watchers:
                watcher.set()

    @property
    def watches(self) -> int:
        """Return the number of open watches."""
        return self._watches

    def close(self) -> None:
        """End every watch with SHUTTING_DOWN and the position to continue from."""
        self._closed = True
        for topic in self._topics.values():
            for watcher in topic.watchers:
                watcher.set()
        for watcher in self._log_watchers:
            watcher.set()
        for task in (self._tail, self._looking):
            if task is not None:
                task.cancel()

    async def session_changes(
        self, key: SessionKey, after: int, heartbeat_s: float, live: LiveQueue | None = None
    ) -> AsyncIterator[list[Change]]:
        """Yield a session's changes after a revision, in order, each once; empty = a heartbeat.

        live: messages that also wake the watcher; empty may then also mean that it has some.
        Raises SHUTTING_DOWN with the revision to continue from, UNKNOWN_SESSION once the session
        is removed.
        """
        with self._watching() as wake, self._subscribed(key, wake) as topic:
            looked = topic.looks
            if live is not None:
                live.wake = wake
            while True:
                wake.clear()
                if live is not None and live.messages:
                    yield []
                changes = topic.after(after) if not topic.has_ended else []
                if changes is None:
                    changes = await self._store.read_changes(
                        key, after=after, limit=READ_CHANGES_MAX
                    )
                if changes:
                    after = changes[-1].revision
                    yield changes
                    continue
                if topic.has_ended:
                    raise unknown_session(key.session_id)
                if looked != topic.looks or topic.is_behind(after):
                    looked = topic.looks
                    if await self._store.head_revision(key) < after:
                        raise unknown_session(key.session_id)
                if self._closed:
                    raise _shutting_down("revision", str(after))
                if not await _woken(wake, heartbeat_s):
                    yield []

    async def log_changes(
        self, cursor: bytes, heartbeat_s: float, batch_s: float = 0.0
    ) -> AsyncIterator[tuple[list[tuple[SessionKey, Change]], bytes]]:
        """Yield the changes of all sessions after a cursor, with the cursor after them.

        At least once, and a session's in order. No changes = a heartbeat. batch_s: collect changes
        up to the next multiple of it, so that such watchers read in the same instants; 0 = do not.
        Raises SHUTTING_DOWN; CursorInvalid.
        """
        with self._watching() as wake:
            self._log_watchers.add(wake)
            try:
                self._need_tail()
                while True:
                    wake.clear()
                    entries, cursor = await self._read_log(cursor)
                    if entries:
                        yield entries, cursor
                        continue
                    if self._closed:
                        raise _shutting_down("cursor", cursor.hex())
                    if not await _woken(wake, heartbeat_s):
                        yield [], cursor
                    elif batch_s:
                        await asyncio.sleep(batch_s - time.monotonic() % batch_s)
            finally:
                self._log_watchers.discard(wake)

    async def _read_log(self, cursor: bytes) -> tuple[list[tuple[SessionKey, Change]], bytes]:
        """Read the log after a cursor, once for all watchers that ask before the read begins."""
        reading = self._reading.get(cursor)
        if reading is None:
            reading = asyncio.create_task(self._read_for_all(cursor), name="event feed read")
            # All of them may have left before it fails.
            reading.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._reading[cursor] = reading
        return await asyncio.shield(reading)

    async def _read_for_all(self, cursor: bytes) -> tuple[list[tuple[SessionKey, Change]], bytes]:
        # Whoever asks from here on may have been woken by a later commit.
        del self._reading[cursor]
        return await self._store.read_log(cursor, READ_CHANGES_MAX)

    @contextmanager
    def _watching(self) -> Iterator[asyncio.Event]:
        if self._closed:
            raise _shutting_down("", "")
        self._watches += 1
        try:
            yield asyncio.Event()
        finally:
            self._watches -= 1
            if not self._watches and self._tail is not None:
                self._tail.cancel()
                self._tail = None

    @contextmanager
    def _subscribed(self, key: SessionKey, wake: asyncio.Event) -> Iterator[_Topic]:
        topic = self._topics.setdefault(key, _Topic())
        topic.watchers.add(wake)
        self._need_tail()
        try:
            yield topic
        finally:
            topic.watchers.discard(wake)
            if not topic.watchers and self._topics.get(key) is topic:
                del self._topics[key]

    def _need_tail(self) -> None:
        """Follow the log if other processes write to it; own commits come through publish."""
        if self._store.shared_writers and self._tail is None and not self._closed:
            self._tail = asyncio.create_task(self._follow(), name="event feed tail")

    async def _follow(self) -> None:
        """Read the log as it grows, for as long as there are watchers."""
        cursor: bytes | None = None
        hints = 0
        while True:
            try:
                if cursor is None:
                    cursor = await self._store.log_end()
                    # A watcher that read just before the tail began may have missed a commit: all
                    # watchers read once more.
                    self._wake_all()
                entries, cursor = await self._store.read_log(cursor, READ_CHANGES_MAX)
                if not entries:
                    pause_s = TAIL_HINTED_POLL_S if self._store.hears_changes else TAIL_POLL_S
                    hints = await self._store.wait_for_changes(hints, pause_s)
            except StoreError as error:  # Watchers get the error from their own reads.
                _log.warning("watch_tail_failed", error=type(error).__name__)
                if isinstance(error, CursorInvalid):
                    # The store failed over to a copy, or was restored: its log ends elsewhere now.
                    cursor = None
                await asyncio.sleep(TAIL_RETRY_S)
                continue
            for key, change in entries:
                topic = self._topics.get(key)
                if topic is not None:
                    topic.publish(change)
            if entries:
                for watcher in self._log_watchers:
                    watcher.set()

    def _wake_all(self) -> None:
        """Make the watchers of every session read the log again."""
        for topic in self._topics.values():
            topic.read_again()


async def _woken(wake: asyncio.Event, seconds: float) -> bool:
    """Wait for a wake-up; False if none came in time."""
    try:
        async with asyncio.timeout(seconds):
            await wake.wait()
    except TimeoutError:
        return False
    return True


def _shutting_down(field_name: str, place: str) -> RoutingError:
    return RoutingError(
        Reason.SHUTTING_DOWN,
        "the server is shutting down; watch again from the position of this watch",
        metadata={field_name: place} if field_name else {},
        retry_after_s=1.0,
    )
