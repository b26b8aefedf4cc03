"""Reading the log and the audit: first the places, then the changes or entries at them.

A page never skips a hole. A place whose change is missing, or has another writer's mark, belonged
to a deleted session. A reader at the end of the log costs one call.

The log is LOG_SHARDS sequences; a session is always in the same one, so its changes are in their
order. A cursor has a place in each. A page takes the earliest of what the sequences have next,
which promises nothing across sessions: processes' clocks differ.

A damaged place is skipped, with a line in the server's log: it names no session any more, and the
change that it named is still in its session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import structlog

from routing_service.storage.dynamodb import keys
from routing_service.storage.dynamodb.api import Api
from routing_service.storage.dynamodb.items import (
    Item,
    is_of_place,
    key,
    to_audit,
    to_key,
    to_listed_change,
    to_revision,
    to_time_us,
    to_write_id,
)
from routing_service.storage.dynamodb.sequence import (
    LOOK_PAUSE_MAX_S,
    LOOK_PAUSE_MIN_S,
    Sequences,
    Stretch,
)
from routing_service.storage.page_cursor import Places, check_reached
from routing_service.storage.store import (
    AuditEntry,
    Change,
    SessionKey,
    StoreCorrupt,
    damaged_entry,
)

_log = structlog.get_logger(__name__)

READERS_KEPT_MAX: Final = 256
"""Readers at the log's end whose last read is remembered."""


class LogReader:
    """Reads the log and the audit of one table."""

    def __init__(self, api: Api, sequences: Sequences, *, poll_s: float) -> None:
        """Read nothing yet. poll_s: how often a reader at the end reads again."""
        self._api = api
        self._sequences = sequences
        self._poll_s = poll_s
        self._empty_at_s: dict[Places, float] = {}
        self._told = asyncio.Event()

    def tell(self) -> None:
        """Let readers read at once: this process has appended."""
        self._told.set()
        self._told = asyncio.Event()

    async def read_log(
        self, places: Places, limit: int
    ) -> tuple[list[tuple[SessionKey, Change]], Places]:
        """See Engine.read_log. An empty page comes after a read, and at most one each poll_s."""
        loop = asyncio.get_running_loop()
        told = self._told
        wait_s = self._empty_at_s.get(places, -self._poll_s) + self._poll_s - loop.time()
        if wait_s > 0:
            await _set_within(told, wait_s)
        page: list[tuple[SessionKey, Change]] = []
        pause_s = LOOK_PAUSE_MIN_S
        while len(page) < limit:
            stretches = await self._look(places, limit - len(page))
            chosen, places = _choose(stretches, places, limit - len(page))
            page += await self._changes(chosen)
            if chosen or any(stretch.has_more for stretch in stretches):
                continue
            if page or not any(stretch.is_held for stretch in stretches):
                break
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LOOK_PAUSE_MAX_S)
        if page:
            return page, places
        if len(self._empty_at_s) >= READERS_KEPT_MAX:
            self._empty_at_s.clear()
        self._empty_at_s[places] = loop.time()
        return [], places

    async def log_end(self) -> Places:
        """See Engine.log_end. It waits for the appends that are being written."""
        names = keys.log_names()
        counters = await self._sequences.counters(names)
        places = await asyncio.gather(
            *(
                self._sequences.settle(name, counter)
                for name, counter in zip(names, counters, strict=True)
            )
        )
        return tuple(places)

    async def read_audit(
        self, tenant: str, session_id: str | None, places: Places, limit: int
    ) -> tuple[list[AuditEntry], Places]:
        """See Engine.read_audit."""
        (place,) = places
        name = keys.audit_name(tenant)
        (counter,) = await self._sequences.counters([name])
        check_reached(place, counter.given)
        if session_id is None:
            entries, place = await self._tenant_audit(tenant, place, counter.given, limit)
        else:
            # Entries that are being written may come in between.
            end = await self._sequences.settle(name, counter)
            pk = keys.session_pk(SessionKey(tenant, session_id))
            found = await self._api.query(
                pk, keys.audit_sk(place + 1), keys.audit_sk(end), limit=limit
            )
            entries = [to_audit(SessionKey(tenant, session_id), item) for item in found]
            place = max(place, end)
            if len(found) == limit:
                place = int(found[-1]["sk"]["S"].removeprefix(keys.AUDIT_PREFIX))
        return entries, (place,)

    async def _tenant_audit(
        self, tenant: str, place: int, given: int, limit: int
    ) -> tuple[list[AuditEntry], int]:
        name = keys.audit_name(tenant)
        pause_s = LOOK_PAUSE_MIN_S
        entries: list[AuditEntry] = []
        while place < given and len(entries) < limit:
            left = limit - len(entries)
            stretch = await self._sequences.after(name, place, upto=given, limit=left)
            places = [(_session_of(tenant, item), at) for at, item in stretch.taken]
            sessions = [session for session, _ in places]
            wanted = [(keys.session_pk(session), keys.audit_sk(at)) for session, at in places]
            found = await self._api.get_many([key(*where) for where in wanted])
            entries += [
                to_audit(session, found[where]) if where in found else damaged_entry(session)
                for session, where in zip(sessions, wanted, strict=True)
                if where in found or not session.session_id
            ]
            place = stretch.reached
            if stretch.is_held:
                if entries:
                    break
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, LOOK_PAUSE_MAX_S)
        return entries, place

    async def _look(self, places: Places, limit: int) -> list[Stretch]:
        """Read each sequence of the log from its place, if it has more."""
        names = keys.log_names()
        counters = await self._sequences.counters(names)
        for place, counter in zip(places, counters, strict=True):
            check_reached(place, counter.given)
        stretches = await asyncio.gather(
            *(
                self._sequences.after(name, place, upto=counter.given, limit=limit)
                if counter.given > place
                else _nothing(place)
                for name, place, counter in zip(names, places, counters, strict=True)
            )
        )
        return list(map(_readable, names, stretches))

    async def _changes(self, chosen: Sequence[Item]) -> list[tuple[SessionKey, Change]]:
        sessions = [to_key(item) for item in chosen]
        wanted = [
            (keys.session_pk(session), keys.change_sk(to_revision(item)))
            for session, item in zip(sessions, chosen, strict=True)
        ]
        found = await self._api.get_many([key(*name) for name in dict.fromkeys(wanted)])
        return [
            (session, to_listed_change(found[name], to_revision(item)))
            for item, session, name in zip(chosen, sessions, wanted, strict=True)
            if name in found and is_of_place(found[name], item)
        ]


def _choose(stretches: Sequence[Stretch], places: Places, limit: int) -> tuple[list[Item], Places]:
    """Take a page from what the sequences have next, the earliest first, and the places after."""
    taken = [0] * len(stretches)
    chosen: list[Item] = []
    while len(chosen) < limit:
        next_ones = [
            (to_time_us(stretch.taken[taken[shard]][1]), shard)
            for shard, stretch in enumerate(stretches)
            if taken[shard] < len(stretch.taken)
        ]
        if not next_ones:
            break
        _, shard = min(next_ones)
        chosen.append(stretches[shard].taken[taken[shard]][1])
        taken[shard] += 1
    after = []
    for shard, stretch in enumerate(stretches):
        if taken[shard] == len(stretch.taken):
            # Beyond the last one there may be sealed places.
            after.append(stretch.reached)
        elif taken[shard]:
            after.append(stretch.taken[taken[shard] - 1][0])
        else:
            after.append(places[shard])
    return chosen, tuple(after)


def _readable(name: str, stretch: Stretch) -> Stretch:
    """Leave out the places that cannot be read."""
    taken = []
    for place, item in stretch.taken:
        try:
            to_time_us(item), to_key(item), to_revision(item), to_write_id(item)
        except StoreCorrupt:
            _log.error("log_entry_damaged", sequence=name, position=place)
        else:
            taken.append((place, item))
    return replace(stretch, taken=taken)


def _session_of(tenant: str, place: Item) -> SessionKey:
    """Return the session of an audit entry's place; "" for its id if that is damaged."""
    try:
        return to_key(place)
    except StoreCorrupt:
        return SessionKey(tenant, "")


async def _nothing(place: int) -> Stretch:
    return Stretch([], place, is_held=False, has_more=False)


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
