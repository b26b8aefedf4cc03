"""The log of all sessions, merged from the logs of the shards.

A place in the log is a place in each shard's log. Within a shard the script that commits gives
positions in the order of the commits, so no entry can come in between entries that were read.

A shard's log has the changes' names and not the changes, so erasing or deleting a change happens in
one place. An entry whose change is missing, or belongs to another session that took the name, is
skipped. So is one that is damaged, with a line in the server's log: it names no session any more,
and the change that it named is still in its session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from routing_service.storage.page_cursor import Places, check_reached
from routing_service.storage.redis.connection import Reply
from routing_service.storage.redis.keys import SHARDS, Keys
from routing_service.storage.redis.pipeline import Pipeline
from routing_service.storage.redis.records import change_position, to_listed_change, to_logged
from routing_service.storage.redis.scripts import Command
from routing_service.storage.store import Change, SessionKey, StoreCorrupt

_log = structlog.get_logger(__name__)

SHARD_ENTRIES_MIN: Final = 16
"""The minimum read of a shard's log, even if its share of a page is smaller."""


@dataclass(slots=True)
class _Shard:
    """One shard's log, read from a place."""

    number: int
    after: int
    count: int
    """How many changes it has had."""
    read: deque[tuple[int, int, SessionKey, int]] = field(default_factory=deque)
    """Entries that were read and not used yet: time, position, session, revision."""
    read_to: int = 0

    @property
    def has_more(self) -> bool:
        return self.read_to < self.count


class LogReader:
    """Reads the log through the pipeline for reads."""

    def __init__(self, pipeline: Pipeline, keys: Keys) -> None:
        """Read nothing yet."""
        self._pipeline = pipeline
        self._keys = keys

    async def read(
        self, places: Places, limit: int
    ) -> tuple[list[tuple[SessionKey, Change]], Places]:
        """Read the changes after the places, one in each shard, and the places after them.

        A place is the position of the last entry before it. Raises CursorInvalid.
        """
        counts = await self._counts()
        for place, count in zip(places, counts, strict=True):
            check_reached(place, count)
        shards = [
            _Shard(number, place, count, read_to=place)
            for number, (place, count) in enumerate(zip(places, counts, strict=True))
        ]
        page: list[tuple[SessionKey, Change]] = []
        while len(page) < limit:
            wanted = await self._merge(shards, limit - len(page))
            if not wanted:
                break
            page += await self._resolve(wanted)
        return page, tuple(shard.after for shard in shards)

    async def end(self) -> Places:
        """Return the places after everything that is committed."""
        return await self._counts()

    async def _counts(self) -> Places:
        replies = await self._pipeline.call([("GET", counter) for counter in self._keys.counters])
        return tuple(int(reply or 0) for reply in replies)

    async def _merge(
        self, shards: Sequence[_Shard], limit: int
    ) -> list[tuple[int, SessionKey, int]]:
        """Take the next entries of all shards, the oldest first, as position, session, revision.

        Shards are merged by the server's time, on which nothing depends; a shard keeps its order.
        """
        taken: list[tuple[int, SessionKey, int]] = []
        share = max(SHARD_ENTRIES_MIN, 2 * limit // SHARDS)
        while len(taken) < limit:
            await self._fill([s for s in shards if not s.read and s.has_more], share)
            filled = [shard for shard in shards if shard.read]
            if not filled:
                for shard in shards:
                    # The entries in between were deleted.
                    shard.after = shard.read_to
                break
            oldest = min(filled, key=lambda shard: shard.read[0])
            _, position, key, revision = oldest.read.popleft()
            oldest.after = position
            taken.append((position, key, revision))
        return taken

    async def _fill(self, shards: Sequence[_Shard], count: int) -> None:
        if not shards:
            return
        commands: list[Command] = [
            ("XRANGE", self._keys.logs[s.number], f"(0-{s.read_to}", f"0-{s.count}", "COUNT", count)
            for s in shards
        ]
        for shard, entries in zip(shards, await self._pipeline.call(commands), strict=True):
            for entry_id, (_, value) in entries:
                position = int(entry_id.partition(b"-")[2])
                shard.read_to = position
                try:
                    time_us, key, revision = to_logged(value)
                except StoreCorrupt:
                    _log.error("log_entry_damaged", shard=shard.number, position=position)
                    continue
                shard.read.append((time_us, position, key, revision))
            if len(entries) < count:
                shard.read_to = shard.count

    async def _resolve(
        self, wanted: Sequence[tuple[int, SessionKey, int]]
    ) -> list[tuple[SessionKey, Change]]:
        commands: list[Command] = [
            ("LINDEX", self._keys.session(key).changes, revision - 1) for _, key, revision in wanted
        ]
        replies: list[Reply] = await self._pipeline.call(commands)
        return [
            (key, to_listed_change(key, revision, data))
            for (position, key, revision), data in zip(wanted, replies, strict=True)
            if data is not None and change_position(data) in (position, None)
        ]
