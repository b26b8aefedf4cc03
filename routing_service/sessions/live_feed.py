"""Notes and parts of answers on their way from workers to watchers. Nothing is kept.

Rule: best effort. A watcher that is slow, or was away, misses some; the whole answer is in the
history once the turn is completed.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec
import structlog

from routing_service.core.errors import Reason, RoutingError
from routing_service.storage.checked_store import Store
from routing_service.storage.store import SessionKey, StoreError

TURN_BYTES_PER_S: Final = 64 * 1024
"""What one turn may send: far more than a model writes. As much may come at once."""

TURNS_COUNTED_MAX: Final = 10_000
"""Turns whose rate is remembered; beyond that, those that sent longest ago are forgotten."""

QUEUE_MESSAGES_MAX: Final = 256
"""Messages that wait for one watcher; the oldest are dropped: 256 parts of 4 KiB are 1 MiB."""

RECENT_S: Final = 5.0
"""A watcher gets what came in this time before it: an agent may begin to write before the
caller that asked has opened a watch."""

RECENT_MESSAGES_MAX: Final = 32
RECENT_SESSIONS_MAX: Final = 256
"""Of one session, and sessions, that are kept in memory for that: 32 MiB at most."""

PART_CHARS: Final = 1_024
"""Of one message, so that a message with its names is below the 8,000 bytes of a NOTIFY."""

_log = structlog.get_logger(__name__)


class LiveKind(enum.Enum):
    """What a message is."""

    DELTA = "delta"
    NOTE = "note"


class LiveMessage(msgspec.Struct, frozen=True, array_like=True):
    """A note, or a part of an answer.

    begin, end: of a part, in bytes of what the agent has written in this attempt.
    """

    kind: LiveKind
    tenant: str
    session_id: str
    request_id: str
    agent_id: str
    attempt: int
    text: str
    begin: int = 0
    end: int = 0


class LiveQueue:
    """What waits for one watcher. wake: is set when something comes."""

    def __init__(self, kinds: frozenset[LiveKind]) -> None:
        """Wait for these kinds."""
        self.kinds = kinds
        self.wake: asyncio.Event | None = None
        self.messages: deque[LiveMessage] = deque(maxlen=QUEUE_MESSAGES_MAX)

    def take(self) -> list[LiveMessage]:
        """Return what came, and forget it."""
        taken = list(self.messages)
        self.messages.clear()
        return taken


class LiveFeed:
    """Brings messages to the watchers of this replica and, by the store, of the others."""

    def __init__(self, store: Store, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Serve one store."""
        self._store = store
        self._clock_s = clock_s
        self._queues: dict[SessionKey, set[LiveQueue]] = {}
        self._recent: OrderedDict[SessionKey, deque[tuple[float, LiveMessage]]] = OrderedDict()
        self._due_s: OrderedDict[tuple[SessionKey, str], float] = OrderedDict()
        if store.relay is not None:
            store.relay.hear(self._heard)

    @contextmanager
    def watching(self, key: SessionKey, kinds: frozenset[LiveKind]) -> Iterator[LiveQueue | None]:
        """Collect the messages of a session, the recent ones first; None if no kind is wanted."""
        if not kinds:
            yield None
            return
        queue = LiveQueue(kinds)
        since_s = self._clock_s() - RECENT_S
        for time_s, message in self._recent.get(key, ()):
            if time_s >= since_s and message.kind in kinds:
                queue.messages.append(message)
        self._queues.setdefault(key, set()).add(queue)
        if self._store.relay is not None:
            self._store.relay.begin()
        try:
            yield queue
        finally:
            queues = self._queues[key]
            queues.discard(queue)
            if not queues:
                del self._queues[key]

    def admit(self, key: SessionKey, request_id: str, size_bytes: int) -> None:
        """Count what a turn sends. Raises OVERLOADED beyond TURN_BYTES_PER_S.

        Source: the generic cell rate algorithm (ITU-T I.371), as in caller_limits.
        """
        now_s = self._clock_s()
        turn = (key, request_id)
        due_s = max(now_s, self._due_s.get(turn, now_s))
        if due_s - now_s >= 1.0:
            raise RoutingError(
                Reason.OVERLOADED,
                f"the turn sends more than {TURN_BYTES_PER_S} bytes of notes and deltas a second; "
                "send the rest after the delay",
                metadata={"limit": "turn_bytes_per_s", "value": str(TURN_BYTES_PER_S)},
                retry_after_s=due_s - now_s - 1.0 + 0.01,
            )
        self._due_s[turn] = due_s + size_bytes / TURN_BYTES_PER_S
        self._due_s.move_to_end(turn)
        if len(self._due_s) > TURNS_COUNTED_MAX:
            self._due_s.popitem(last=False)

    async def send(self, message: LiveMessage) -> bool:
        """Bring a message to all watchers. False: only those of this replica got it."""
        parts = _parts(message)
        for part in parts:
            self._deliver(part)
        relay = self._store.relay
        if relay is None:
            return not self._store.shared_writers
        try:
            await relay.send([_encode(part) for part in parts])
        except StoreError as error:
            _log.warning("live_message_not_relayed", error=type(error).__name__)
            return False
        return True

    def _heard(self, data: bytes) -> None:
        """Deliver what another replica sent. Others may send too, so bad data is dropped."""
        try:
            self._deliver(_decoder.decode(data))
        except msgspec.DecodeError:
            _log.debug("live_message_unreadable")

    def _deliver(self, message: LiveMessage) -> None:
        key = SessionKey(message.tenant, message.session_id)
        recent = self._recent.setdefault(key, deque(maxlen=RECENT_MESSAGES_MAX))
        recent.append((self._clock_s(), message))
        self._recent.move_to_end(key)
        if len(self._recent) > RECENT_SESSIONS_MAX:
            self._recent.popitem(last=False)
        for queue in self._queues.get(key, ()):
            if message.kind in queue.kinds:
                queue.messages.append(message)
                if queue.wake is not None:
                    queue.wake.set()


def _parts(message: LiveMessage) -> list[LiveMessage]:
    """Return a message in parts of PART_CHARS that follow each other."""
    text = message.text
    if len(text) <= PART_CHARS:
        return [message]
    parts: list[LiveMessage] = []
    begin = message.begin
    for start in range(0, len(text), PART_CHARS):
        piece = text[start : start + PART_CHARS]
        is_last = start + PART_CHARS >= len(text)
        end = message.end if is_last else begin + len(piece.encode())
        parts.append(msgspec.structs.replace(message, text=piece, begin=begin, end=end))
        begin = end
    return parts


_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(LiveMessage)
