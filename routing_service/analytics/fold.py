"""One step of the fold: what changes and refusals add to the figures.

fold(head, changes) -> head is pure; a change that was counted already adds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import msgspec

from routing_service.analytics.counts import NEVER, Counts, Pair, add_word
from routing_service.analytics.session_walk import HOUR_US, Added, HourChannel, SessionWalk, step
from routing_service.analytics.stored_forms import (
    ALL_TENANTS,
    HOURS_PER_DAY,
    RECENT_SESSIONS_MAX,
    Delta,
    Directory,
    DirectoryDelta,
    Head,
    day_name,
    hour_name,
)
from routing_service.analytics.stuck_windows import WindowDelta, user_bit
from routing_service.core import events as ev
from routing_service.storage.store import SessionKey

REFUSED_KIND: Final = "handoff_refused"
"""The audit's kind for a refused handoff; entries of other kinds are not counted."""

_HASH_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Walked:
    """One change of the log, with the walk over its session's changes before it.

    registry_version: of the registry that decided it.
    """

    key: SessionKey
    revision: int
    time_us: int
    events: Sequence[ev.Event]
    before: SessionWalk
    registry_version: str = ""


class _RefusalMetadata(msgspec.Struct):
    from_agent_id: str = ""
    agent_id: str = ""
    initiator: str = ""


class _RefusalData(msgspec.Struct):
    metadata: _RefusalMetadata = msgspec.field(default_factory=_RefusalMetadata)
    verdicts: list[tuple[str, bool, str]] = []


@dataclass(frozen=True, slots=True)
class Refusal:
    """One refused handoff of the audit. data: the stored bytes; b"" = erased, not counted."""

    tenant: str
    time_us: int
    channel: str
    data: bytes


class Step:
    """A step of the fold under construction: figures by setting, and directories by tenant."""

    def __init__(self, head: Head, home_agent_id: str, part_us: int = 0) -> None:
        """Begin after a head, which is not changed. part_us: of the tenants' windows; 0 = none."""
        self.figures: dict[tuple[str, str], Counts] = {}
        self.directories: dict[str, DirectoryDelta] = {}
        self.walks: dict[SessionKey, SessionWalk] = {}
        self.known: dict[str, Directory] = {}
        self.stuck = 0
        self.counted_us = head.as_of_us
        self._head = head
        self._home_agent_id = home_agent_id
        self._part_us = part_us
        self._added: dict[str, Added] = {}
        self._recent = dict(head.recent)
        self._as_of_us = head.as_of_us

    def is_counted(self, key: SessionKey, revision: int, time_us: int) -> bool:
        """Whether a change was counted, by this step or an earlier one.

        A session that was purged and started again has low revisions again, at a later time.
        """
        last = self._recent.get(_hash(key))
        return last is not None and revision <= last[0] and time_us <= last[1]

    def count_change(self, change: Walked) -> SessionWalk:
        """Count a change that was not counted before; return the walk after it."""
        walk = step(
            change.before,
            revision=change.revision,
            time_us=change.time_us,
            events=change.events,
            home_agent_id=self._home_agent_id,
            added=self._added.setdefault(change.key.tenant, Added(part_us=self._part_us)),
            session_bit=user_bit(change.key.session_id) if self._part_us else 0,
            registry_version=change.registry_version,
        )
        self._remember(change.key, change.revision, change.time_us)
        self.walks[change.key] = walk
        self._as_of_us = max(self._as_of_us, change.time_us)
        return walk

    def count_refusal(self, refusal: Refusal) -> None:
        """Count a refused handoff."""
        try:
            stored = msgspec.json.decode(refusal.data, type=_RefusalData)
        except msgspec.DecodeError:
            return  # Erased, or of a form that this release does not know.
        rules = [rule for rule, allowed, _ in stored.verdicts if not allowed]
        about = stored.metadata
        pair = Pair(about.from_agent_id, about.agent_id, about.initiator, "")
        counts = Counts(refused=1)
        counts.pair(pair.name).refused += 1
        for rule in rules:
            add_word(counts.refusals, rule)
        place = HourChannel(refusal.time_us // HOUR_US, refusal.channel)
        added = self._added.setdefault(refusal.tenant, Added(part_us=self._part_us))
        added.at(place).add(counts)

    def end_audit(self, tenant: str, cursor: bytes) -> None:
        """Record how far a tenant's audit is counted."""
        self._directory(tenant).audit = cursor

    def end(self, cursor: bytes) -> Head:
        """Return the head after the step, which ends with it."""
        for tenant, added in self._added.items():
            self._add(tenant, added)
        windows = [
            WindowDelta(tenant, added.part_us, added.windows)
            for tenant, added in self._added.items()
            if added.windows
        ]
        self._added.clear()
        return Head(
            seq=self._head.seq + 1,
            cursor=cursor,
            as_of_us=self._as_of_us,
            recent=dict(list(self._recent.items())[-RECENT_SESSIONS_MAX:]),
            deltas=[
                Delta(tenant, name, counts, self._head.cursor if tenant == ALL_TENANTS else b"")
                for (tenant, name), counts in self.figures.items()
            ],
            directories=list(self.directories.values()),
            windows=windows,
        )

    def _remember(self, key: SessionKey, revision: int, time_us: int) -> None:
        name = _hash(key)
        self._recent.pop(name, None)
        self._recent[name] = (revision, time_us)

    def _add(self, tenant: str, added: Added) -> None:
        for place, counts in added.counts.items():
            self.stuck += counts.stuck
            self._count_at(tenant, place.hour, place.channel, counts)
        for place, firsts in added.channel_firsts.items():
            if place.channel:
                self._add_to(tenant, place.hour, place.channel, firsts)

    def _count_at(self, tenant: str, hour: int, channel: str, counts: Counts) -> None:
        self._add_to(tenant, hour, "", counts)
        if channel:
            # Within a channel, sessions are counted by their hours in that channel.
            alone = msgspec.structs.replace(counts, firsts={})
            self._add_to(tenant, hour, channel, alone)

    def _add_to(self, tenant: str, hour: int, channel: str, counts: Counts) -> None:
        day = hour // HOURS_PER_DAY
        begin = day * HOURS_PER_DAY
        # A session with an earlier message on the day has been counted for it.
        first_today = {h: n for h, n in counts.firsts.items() if h < begin}
        of_day = msgspec.structs.replace(counts, firsts=first_today)
        for owner in (tenant, ALL_TENANTS):
            directory = self._directory(owner)
            if channel and not self._is_counted_by_itself(directory, channel):
                continue
            hours = (hour, directory.first_hour, directory.last_hour)
            directory.first_hour = min(h for h in hours if h != NEVER)
            directory.last_hour = max(hours)
            self._figures(owner, hour_name(hour, channel)).add(counts)
            self._figures(owner, day_name(day, channel)).add(of_day)

    def _is_counted_by_itself(self, delta: DirectoryDelta, channel: str) -> bool:
        """Whether a channel has figures of its own: the first channels that a tenant names do."""
        known = self.known.get(delta.tenant, Directory())
        if channel in known.channels or channel in delta.channels:
            return True
        full = Directory(channels=[*known.channels, *delta.channels])
        before = len(full.channels)
        full.add(DirectoryDelta(delta.tenant, channels=[channel]))
        if len(full.channels) == before:
            return False
        delta.channels.append(channel)
        return True

    def _directory(self, tenant: str) -> DirectoryDelta:
        return self.directories.setdefault(tenant, DirectoryDelta(tenant))

    def _figures(self, tenant: str, name: str) -> Counts:
        return self.figures.setdefault((tenant, name), Counts())


def fold(
    head: Head,
    changes: Iterable[Walked],
    cursor: bytes,
    *,
    home_agent_id: str,
) -> Head:
    """Return the head after changes of the log; changes counted before are skipped."""
    made = Step(head, home_agent_id)
    for change in changes:
        if not made.is_counted(change.key, change.revision, change.time_us):
            made.count_change(change)
    return made.end(cursor)


def _hash(key: SessionKey) -> int:
    """Return a 64-bit hash of a session: two of RECENT_SESSIONS_MAX collide once in 10^13 times."""
    name = f"{key.tenant}/{key.session_id}".encode()
    return int.from_bytes(blake2b(name, digest_size=_HASH_BYTES).digest())
