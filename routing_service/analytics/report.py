"""The figures of a time span, read from what the fold has written.

A span is read as hours at its edges and days between them, so the work grows with the days of the
span and not with the traffic in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from routing_service.analytics.counts import NEVER, Counts
from routing_service.analytics.keeper import StatsKeeper
from routing_service.analytics.session_walk import HOUR_US
from routing_service.analytics.stored_forms import (
    DIRECTORY,
    HOURS_PER_DAY,
    Directory,
    Figures,
    day_name,
    decode,
    hour_name,
)
from routing_service.storage.checked_store import Store
from routing_service.storage.store import SchemaTooNew

_log = structlog.get_logger(__name__)

HOURLY_HOURS_MAX: Final = 7 * HOURS_PER_DAY
"""The longest span that is reported hour by hour."""

PERIODS_MAX: Final = 1_100
"""Periods in an answer: three years of days."""

READS_AT_ONCE: Final = 32

SAME_HEAD_ATTEMPTS_MAX: Final = 3
"""Attempts to read a span without a concurrent change of its settings. After these the last reading
counts: it may contain part of a step that another process is taking."""


@dataclass(frozen=True, slots=True)
class Period:
    """An hour or a day with its own figures. start_hour: since 1970."""

    start_hour: int
    hours: int
    counts: Counts


@dataclass(slots=True)
class Report:
    """The figures of a span. start_us None: no data yet."""

    as_of_us: int
    start_us: int | None
    end_us: int
    counts: Counts = field(default_factory=Counts)
    sessions: int = 0
    periods: list[Period] = field(default_factory=list)


async def read_report(
    store: Store,
    keeper: StatsKeeper,
    *,
    tenant: str,
    start_us: int | None,
    end_us: int | None,
    channel: str,
) -> Report:
    """Take the steps that are due, and read a span's figures. Raises StoreError.

    tenant: ALL_TENANTS = all together. start_us is rounded down to the hour, end_us up.
    """
    try:
        caught_up_us = await keeper.catch_up(tenant)
    except SchemaTooNew as error:
        # A change of a newer release stops the counting here: as_of_time says where.
        _log.warning("stats_behind", error=str(error))
        caught_up_us = None
    raw, head = await keeper.head()
    as_of_us = head.as_of_us if caught_up_us is None else caught_up_us
    reader = _Reader(store, tenant, channel)
    report = await reader.read(as_of_us, start_us, end_us)
    for _ in range(SAME_HEAD_ATTEMPTS_MAX - 1):
        raw_after, head = await keeper.head()
        if raw_after == raw:
            break
        # Another process took a step meanwhile, so only some of these settings may contain it.
        raw = raw_after
        await keeper.finish_step()
        report = await reader.read(as_of_us, start_us, end_us)
    return report


class _Reader:
    """Reads the settings of one tenant and channel."""

    def __init__(self, store: Store, tenant: str, channel: str) -> None:
        self._store = store
        self._tenant = tenant
        self._channel = channel

    async def read(self, as_of_us: int, start_us: int | None, end_us: int | None) -> Report:
        raw = await self._store.get_setting(self._tenant, DIRECTORY)
        directory = decode(Directory, raw, DIRECTORY)
        end_us = as_of_us if end_us is None else min(end_us, as_of_us)
        report = Report(as_of_us, _whole_hour(start_us), end_us)
        if directory.first_hour == NEVER:
            return report
        if report.start_us is None:
            report.start_us = min(directory.first_hour * HOUR_US, end_us)
        begin = max(report.start_us // HOUR_US, directory.first_hour)
        # The current hour is counted up to now.
        end = min(-(-end_us // HOUR_US), directory.last_hour + 1)
        if end_us == as_of_us:
            end = directory.last_hour + 1
        if self._channel and self._channel not in directory.channels:
            return report
        is_hourly = end - begin <= HOURLY_HOURS_MAX
        periods = await self._periods(begin, end, is_hourly=is_hourly)
        start = report.start_us // HOUR_US
        for period in periods:
            report.counts.add(period.counts)
            report.sessions += sum(
                count for earlier, count in period.counts.firsts.items() if earlier < start
            )
        report.counts.firsts = {}
        report.periods = _merged(periods, 1 if is_hourly else HOURS_PER_DAY)[-PERIODS_MAX:]
        return report

    async def _periods(self, begin: int, end: int, *, is_hourly: bool) -> list[Period]:
        """Read the hours and days of a span that have figures."""
        first_day = -(-begin // HOURS_PER_DAY)
        last_day = end // HOURS_PER_DAY
        if is_hourly or first_day >= last_day:
            return await self._read_all([(hour, 1) for hour in range(begin, end)])
        hours_before = range(begin, first_day * HOURS_PER_DAY)
        hours_after = range(last_day * HOURS_PER_DAY, end)
        days = [(day * HOURS_PER_DAY, HOURS_PER_DAY) for day in range(first_day, last_day)]
        return await self._read_all(
            [*((hour, 1) for hour in hours_before), *days, *((hour, 1) for hour in hours_after)]
        )

    async def _read_all(self, wanted: Sequence[tuple[int, int]]) -> list[Period]:
        found = []
        for place in range(0, len(wanted), READS_AT_ONCE):
            some = wanted[place : place + READS_AT_ONCE]
            read = await asyncio.gather(*(self._read_one(start, hours) for start, hours in some))
            found += [period for period in read if period is not None]
        return found

    async def _read_one(self, start: int, hours: int) -> Period | None:
        if hours == 1:
            name = hour_name(start, self._channel)
        else:
            name = day_name(start // HOURS_PER_DAY, self._channel)
        raw = await self._store.get_setting(self._tenant, name)
        return None if raw is None else Period(start, hours, decode(Figures, raw, name).counts)


def _whole_hour(time_us: int | None) -> int | None:
    return None if time_us is None else time_us // HOUR_US * HOUR_US


def _merged(periods: Sequence[Period], hours: int) -> list[Period]:
    """Return periods of one length, the oldest first."""
    merged: dict[int, Counts] = {}
    for period in periods:
        start = period.start_hour // hours * hours
        merged.setdefault(start, Counts()).add(period.counts)
    return [Period(start, hours, counts) for start, counts in sorted(merged.items())]
