"""Keeps the figures up to date with the log.

A step is first written whole into the head, by compare-and-set together with its place in the log,
and then added to each setting that it names; a setting records the last step that it contains. So
a crash repeats nothing and loses nothing, and if two processes take the same step, one succeeds and
the other finds it taken.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Final

import structlog

from routing_service.analytics.fold import REFUSED_KIND, Refusal, Step, Walked
from routing_service.analytics.log_place import audit_place, log_place
from routing_service.analytics.recount import SEQ_GAP, StoredStats, clear_figures, stored_stats
from routing_service.analytics.session_walk import Added, SessionWalk, step
from routing_service.analytics.stored_forms import (
    ALL_TENANTS,
    DIRECTORY,
    HEAD,
    STUCK_WINDOW,
    VALUE_BYTES_MAX,
    Delta,
    Directory,
    DirectoryDelta,
    Figures,
    Head,
    StatsDamaged,
    decode,
    encode,
    encode_figures,
)
from routing_service.analytics.stuck_windows import StuckWindow, WindowDelta
from routing_service.storage.checked_store import Store
from routing_service.storage.event_codec import (
    BLANK_EVENTS,
    StoredEvents,
    decode_change,
    decode_state,
)
from routing_service.storage.store import (
    Change,
    CursorInvalid,
    SchemaTooNew,
    SessionKey,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
)

PAGE_CHANGES_MAX: Final = 200
"""Changes of one step: some ten milliseconds of counting, and a head that a setting can hold."""

PAUSE_S: Final = 2.0
"""How long the figures may lag behind a log that grows slowly. A request for figures takes the
steps that are due; this bound keeps that work short if requests are rare."""

RETRY_S: Final = 5.0
"""After a store that failed, or a change that only a newer release can read."""

NEWER_RETRY_S: Final = 30.0
"""After a change of a newer release. One of its processes takes the lease meanwhile."""

COUNTED_AT_ONCE: Final = 25
"""Changes counted before other tasks of the process run: about a millisecond."""

REST_FACTOR: Final = 19
"""How much longer the keeper rests than it counts between two steps: it takes at most a twentieth
of the process from callers. That is enough for a thousand changes a second; under a higher
sustained load the figures lag, as their as_of_time shows."""

WALKS_KEPT_MAX: Final = 4_096
"""Sessions whose walk is kept in memory, some 500 bytes each. Others are read again from the
store when they change."""

REPLAY_CHANGES_MAX: Final = 10_000
"""Changes that are read again for one session. In a longer session the earlier changes are left
out: that may change the length of a stay or a handing back, but never a count of events."""

REPLAY_PAGE: Final = 100

AUDITS_PER_STEP_MAX: Final = 8
"""Tenants without new changes whose audit a step checks, in rotation."""

AUDITS_ASKED_MAX: Final = 100
ASKED_PAGES_MAX: Final = 10
"""Tenants whose audit a request for all tenants checks; the others follow in rotation."""

CATCH_UP_STEPS_MAX: Final = 50
"""Steps that one request may take: ten thousand changes. as_of_time shows the rest."""

SWAP_ATTEMPTS_MAX: Final = 8
WRITES_AT_ONCE: Final = 16

LEASE: Final = "analytics"
LEASE_S: Final = 15.0

_NOTHING: Final = decode_change(BLANK_EVENTS)

Watch = Callable[[Collection[str]], Awaitable[None]]
"""Is given tenants whose windows of stuck users have changed."""

_log = structlog.get_logger(__name__)


class StatsKeeper:
    """Folds one store's log. Any number of them may work on a store."""

    def __init__(
        self,
        store: Store,
        home_agent_id: Callable[[], str],
        clock_us: Callable[[], int],
        *,
        holder: str,
        window_part_us: Callable[[], int] = lambda: 0,
        watch: Watch | None = None,
    ) -> None:
        """Take no step yet. clock_us: microseconds since 1970. holder: this process, for the lease.

        home_agent_id: the agent whose calls stickiness saves, from the registry in force.
        window_part_us: of the windows of stuck users; 0 = none are kept. watch: called under the
        lease, while windows are kept, with the tenants whose windows have changed.
        """
        self._store = store
        self._home_agent_id = home_agent_id
        self._clock_us = clock_us
        self._holder = holder
        self._window_part_us = window_part_us
        self._watch = watch
        self._watched: set[str] = set()
        self._walks: OrderedDict[SessionKey, SessionWalk] = OrderedDict()
        self._lock = asyncio.Lock()
        self._applied: bytes | None = None
        self._applied_seq = 0
        self._damaged: set[tuple[str, str]] = set()
        self._audit_after = ""
        self._counting_s = 0.0
        self._writes = asyncio.Semaphore(WRITES_AT_ONCE)
        self.stuck = 0
        """Users found stuck by steps of this process; each is found by one process alone."""

    @property
    def damaged(self) -> int:
        """The damaged settings that this process has met, and that were not counted again since."""
        return len(self._damaged)

    async def run(self) -> None:
        """Take steps until cancelled. Of several processes the one with the lease does."""
        try:
            while True:
                try:
                    there_is_more = await self._has_lease(LEASE_S) and await self._round()
                except SchemaTooNew as error:
                    # A newer release's process counts on; the figures here stand still meanwhile.
                    _log.warning("stats_step_failed", error=str(error))
                    with suppress(StoreError):
                        await self._has_lease(0)
                    await asyncio.sleep(NEWER_RETRY_S)
                except StatsDamaged as error:
                    self._report(ALL_TENANTS, error.where, error)
                    await asyncio.sleep(RETRY_S)
                except StoreError as error:
                    # A request gets the error; the background task only tries again.
                    _log.warning("stats_step_failed", error=str(error))
                    await asyncio.sleep(RETRY_S)
                except Exception:  # noqa: BLE001 - a bug must not end the counting unseen
                    _log.exception("stats_step_failed")
                    await asyncio.sleep(RETRY_S)
                else:
                    await asyncio.sleep(self._rest_s() if there_is_more else PAUSE_S)
        finally:
            with suppress(StoreError):
                await self._has_lease(0)

    async def _round(self) -> bool:
        """Take one step, and show the windows; return whether more may follow."""
        there_is_more = await self.advance()
        if self._watch is not None and self._window_part_us():
            watched, self._watched = self._watched, set()
            await self._watch(watched)
        return there_is_more

    def _rest_s(self) -> float:
        """Return how long to pause after a step."""
        return min(self._counting_s * REST_FACTOR, PAUSE_S)

    async def catch_up(self, tenant: str) -> int | None:
        """Take the steps that are due; return up to when all is counted, None = not all is.

        tenant: its audit is checked too. Raises StoreError.
        """
        after = ""
        for _ in range(ASKED_PAGES_MAX if tenant == ALL_TENANTS else 0):
            asked = await self._store.list_tenants(after, AUDITS_ASKED_MAX)
            await self._steps(asked)
            if len(asked) < AUDITS_ASKED_MAX:
                break
            after = asked[-1]
        return await self._steps((tenant,))

    async def _steps(self, tenants: Sequence[str]) -> int | None:
        for _ in range(CATCH_UP_STEPS_MAX):
            now_us = self._clock_us()
            if not await self.advance(tenants):
                return now_us
        return None

    async def head(self) -> tuple[bytes | None, Head]:
        """Read the fold's head, as stored bytes and decoded."""
        raw = await self._store.get_setting(ALL_TENANTS, HEAD)
        return raw, decode(Head, raw, HEAD)

    async def advance(self, tenants: Iterable[str] = ()) -> bool:
        """Take one step; return whether more may follow. tenants: the audits to check.

        Raises StoreError; the step is then taken whole, or not at all.
        """
        async with self._lock:
            raw, head = await self._begin_step()
            limit = PAGE_CHANGES_MAX
            while True:
                made, after, is_full = await self._make_step(head, limit, tenants)
                if made is None:
                    return False
                data = encode(after)
                if len(data) <= VALUE_BYTES_MAX or limit == 1:
                    break
                limit //= 4
            if not await self._store.swap_setting(ALL_TENANTS, HEAD, raw, data):
                return True  # Another process took a step; more may follow.
            self.stuck += made.stuck
            self._keep(made)
            await self._add(after, data)
            self._watched.update(delta.tenant for delta in after.windows)
            return is_full

    async def finish_step(self) -> None:
        """Add the last step to every setting, whichever process took it. Raises StoreError."""
        async with self._lock:
            await self._begin_step()

    async def begin_recount(self) -> StoredStats:
        """Make the next step, of any process, count from the beginning; return what was stored.

        Damage is no obstacle. Raises StoreError; nothing is changed then.
        """
        async with self._lock:
            for _ in range(SWAP_ATTEMPTS_MAX):
                raw = await self._store.get_setting(ALL_TENANTS, HEAD)
                with suppress(StatsDamaged):
                    # A process that is still adding this step then finds it added.
                    await self._add(decode(Head, raw, HEAD), raw)
                found = await stored_stats(self._store)
                asked = encode(Head(seq=found.seq + SEQ_GAP, recount=True))
                if await self._store.swap_setting(ALL_TENANTS, HEAD, raw, asked):
                    return found
        raise _contended(HEAD)

    async def _begin_step(self) -> tuple[bytes | None, Head]:
        """Return the head after adding its step, and after the recount that it asks for."""
        raw, head = await self._read_head()
        await self._add(head, raw)
        while head.recount:
            _log.warning("stats_recount", step=head.seq)
            await clear_figures(self._store, head.seq)
            await self._store.swap_setting(ALL_TENANTS, HEAD, raw, encode(Head(seq=head.seq)))
            self._damaged.clear()
            self._walks.clear()
            raw, head = await self._read_head()
            await self._add(head, raw)
        return raw, head

    async def _read_head(self) -> tuple[bytes | None, Head]:
        try:
            raw, head = await self.head()
        except StatsDamaged as error:
            self._report(ALL_TENANTS, HEAD, error)
            raise
        if head.seq >= self._applied_seq + SEQ_GAP:
            # Another process has counted all again.
            self._damaged.clear()
        self._damaged.discard((ALL_TENANTS, HEAD))
        return raw, head

    async def _has_lease(self, seconds: float) -> bool:
        """Take the lease for this long; 0 gives it up."""
        now_us = self._clock_us()
        until_us = now_us + int(seconds * 1_000_000)
        return await self._store.acquire_lease(LEASE, self._holder, now_us, until_us)

    async def _make_step(
        self, head: Head, limit: int, tenants: Iterable[str]
    ) -> tuple[Step | None, Head, bool]:
        """Count the next changes; None without any. The last value: whether more may follow."""
        is_moved = False
        try:
            page, cursor = await self._store.read_log(head.cursor, limit)
        except CursorInvalid:
            is_moved = True
            begin = await log_place(self._store, head.as_of_us)
            _log.warning("stats_cursor_moved", list="log", counted_us=head.as_of_us)
            page, cursor = await self._store.read_log(begin, limit)
        made = Step(head, self._home_agent_id(), self._window_part_us())
        with_news = dict.fromkeys((*tenants, *(key.tenant for key, _ in page)))
        audited = dict.fromkeys((*with_news, *await self._in_turn()))
        for tenant in (*audited, ALL_TENANTS):
            raw = await self._store.get_setting(tenant, DIRECTORY)
            try:
                made.known[tenant] = decode(Directory, raw, DIRECTORY)
            except StatsDamaged as error:
                self._report(tenant, DIRECTORY, error)
        self._counting_s = 0.0
        begun_s = time.perf_counter()
        for place, (key, change) in enumerate(page, start=1):
            if not made.is_counted(key, change.revision, change.time_us):
                before = made.walks.get(key)
                if before is None or before.revision != change.revision - 1:
                    before = await self._walk_before(key, change.revision)
                stored = _stored(key, change)
                version = stored.registry_version
                made.count_change(
                    Walked(key, change.revision, change.time_us, stored.events, before, version)
                )
            if place % COUNTED_AT_ONCE == 0:
                self._counting_s += time.perf_counter() - begun_s
                await asyncio.sleep(0)
                begun_s = time.perf_counter()
        is_full = len(page) == limit
        found = len(page)
        for tenant in audited:
            if tenant != ALL_TENANTS and tenant in made.known:
                count = await self._count_audit(made, tenant, limit)
                is_full = is_full or count == limit
                found += count
        if not found and not is_moved:
            return None, head, False
        return made, made.end(cursor), is_full

    async def _in_turn(self) -> list[str]:
        """Return the tenants whose audit is next in the rotation."""
        tenants = await self._store.list_tenants(self._audit_after, AUDITS_PER_STEP_MAX)
        self._audit_after = tenants[-1] if len(tenants) == AUDITS_PER_STEP_MAX else ""
        return tenants

    async def _count_audit(self, made: Step, tenant: str, limit: int) -> int:
        place = made.known[tenant].audit
        is_moved = False
        try:
            entries, cursor = await self._store.read_audit(tenant, None, place, limit)
        except CursorInvalid:
            is_moved = True
            place = await audit_place(self._store, tenant, made.counted_us)
            _log.warning("stats_cursor_moved", list="audit", tenant=tenant)
            entries, cursor = await self._store.read_audit(tenant, None, place, limit)
        for entry in entries:
            if entry.kind == REFUSED_KIND and entry.data:
                channel = await self._channel(SessionKey(tenant, entry.session_id))
                made.count_refusal(Refusal(tenant, entry.time_us, channel, entry.data))
        if entries or is_moved:
            made.end_audit(tenant, cursor)
        return max(len(entries), is_moved)

    async def _channel(self, key: SessionKey) -> str:
        """Return a session's channel as it is now; "" if it is not known."""
        head = await self._store.load(key)
        try:
            return decode_state(head.state).channel if head else ""
        except (StoreCorrupt, SchemaTooNew):
            return ""

    async def _walk_before(self, key: SessionKey, revision: int) -> SessionWalk:
        """Return the walk over a session's changes before a revision."""
        walk = self._walks.get(key)
        if walk is None or walk.revision >= revision:
            walk = SessionWalk()
        if walk.revision == revision - 1:
            return walk
        after = max(walk.revision, revision - 1 - REPLAY_CHANGES_MAX)
        while changes := await self._store.read_changes(
            key, after=after, before=revision, limit=REPLAY_PAGE
        ):
            for change in changes:
                after = change.revision
                walk = step(
                    walk,
                    revision=change.revision,
                    time_us=change.time_us,
                    events=_stored(key, change).events,
                    home_agent_id="",
                    added=Added(),
                )
            await asyncio.sleep(0)
        return walk

    def _keep(self, made: Step) -> None:
        for key, walk in made.walks.items():
            self._walks.pop(key, None)
            self._walks[key] = walk
        while len(self._walks) > WALKS_KEPT_MAX:
            self._walks.popitem(last=False)

    async def _add(self, head: Head, raw: bytes | None) -> None:
        """Add the head's step to the settings that do not have it. raw: the head as stored.

        A damaged setting is left as it is and reported: the others are counted.
        """
        if raw == self._applied:
            return
        if head.seq < self._applied_seq:
            # The store failed over to a copy that lacks steps: their changes may be others now.
            self._walks.clear()
        adding: list[Awaitable[None]] = [
            *(self._add_figures(head.seq, delta) for delta in head.deltas),
            *(self._add_directory(head.seq, delta) for delta in head.directories),
            *(self._add_window(head.seq, delta) for delta in head.windows),
        ]
        await asyncio.gather(*adding)
        self._applied, self._applied_seq = raw, head.seq

    async def _add_figures(self, seq: int, delta: Delta) -> None:
        async with self._writes:
            for _ in range(SWAP_ATTEMPTS_MAX):
                raw = await self._store.get_setting(delta.tenant, delta.name)
                try:
                    figures = decode(Figures, raw, delta.name)
                except StatsDamaged as error:
                    self._report(delta.tenant, delta.name, error)
                    return
                if figures.seq >= seq:
                    return
                figures.seq = seq
                figures.counts.add(delta.counts)
                figures.cursor = figures.cursor or delta.cursor
                if await self._store.swap_setting(
                    delta.tenant, delta.name, raw, encode_figures(figures)
                ):
                    return
        raise _contended(delta.name)

    async def _add_directory(self, seq: int, delta: DirectoryDelta) -> None:
        async with self._writes:
            for _ in range(SWAP_ATTEMPTS_MAX):
                raw = await self._store.get_setting(delta.tenant, DIRECTORY)
                try:
                    directory = decode(Directory, raw, DIRECTORY)
                except StatsDamaged as error:
                    self._report(delta.tenant, DIRECTORY, error)
                    return
                if directory.seq >= seq:
                    return
                directory.seq = seq
                directory.add(delta)
                if await self._store.swap_setting(delta.tenant, DIRECTORY, raw, encode(directory)):
                    return
        raise _contended(DIRECTORY)

    async def _add_window(self, seq: int, delta: WindowDelta) -> None:
        async with self._writes:
            for _ in range(SWAP_ATTEMPTS_MAX):
                raw = await self._store.get_setting(delta.tenant, STUCK_WINDOW)
                try:
                    window = decode(StuckWindow, raw, STUCK_WINDOW)
                except StatsDamaged as error:
                    self._report(delta.tenant, STUCK_WINDOW, error)
                    return
                if window.seq >= seq:
                    return
                window.seq = seq
                window.add(delta, self._clock_us())
                if await self._store.swap_setting(delta.tenant, STUCK_WINDOW, raw, encode(window)):
                    return
        raise _contended(STUCK_WINDOW)

    def _report(self, tenant: str, name: str, error: StatsDamaged) -> None:
        """Log damage, once for each setting."""
        if (tenant, name) not in self._damaged:
            self._damaged.add((tenant, name))
            _log.error("stats_damaged", tenant=tenant, error=str(error))


def _stored(key: SessionKey, change: Change) -> StoredEvents:
    """Return a change's events, none for a damaged change. Raises SchemaTooNew."""
    try:
        return decode_change(change.events)
    except StoreCorrupt as error:
        _log.error(
            "change_not_counted",
            tenant=key.tenant,
            session_id=key.session_id,
            revision=change.revision,
            error=str(error),
        )
        return _NOTHING


def _contended(name: str) -> StoreError:
    return StoreUnavailable(f'the setting "{name}" is being changed by others; try again')
