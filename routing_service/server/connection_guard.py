"""Closes connections that keep other callers out: unused ones, too many, or floods of resets.

gRPC has no hook for accepted connections. So they are checked a few times a second, and the kernel
drops the SYNs of a host that floods again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

import structlog

from routing_service.server import own_sockets
from routing_service.server.open_calls import NO_STREAMS, OpenCalls, StreamCounts
from routing_service.server.own_sockets import NO_TRAFFIC, Descriptor, OwnSockets, Traffic, peer_of
from routing_service.settings.settings import Settings

SWEEP_S: Final = 0.25
"""Seconds between two checks. At 20,000 resets a second 5,000 calls begin in this time."""

SWEEP_SHARE: Final = 0.1
SWEEP_MAX_S: Final = 1.0
"""Share of the time that checks may take: with thousands of connections they are less frequent, but
at least once a second."""

SHORT_FROM: Final = 0.75
"""Share of connections_max in use from which unsigned connections are closed."""

HOST_FACTOR: Final = 10
"""A host's limit of resets, as a multiple of a connection's: many users may share one address."""

REFUSAL_BYTES: Final = 24
"""Minimum bytes that the server sends to refuse a stream: a header frame, RST_STREAM. This many
bytes sent count as one stream that failed because the server was full."""

REFUSED_SHARE: Final = 0.2
"""The weight of such a stream. It is above 0 because most calls of a flood are refused before their
reset is read. A caller that repeats more than 1,000 refused calls a second floods too."""

CREDIT_MAX: Final = 2_000
"""Finished calls that a connection may save as credit, for times when the server is full of other
callers' calls and refuses its own."""

BUSY_BYTES: Final = 1_000
"""Bytes received since the last check below which a connection cannot have reset over 40 calls."""

ASKED_MAX: Final = 16
"""Connections whose streams are counted at one check: those that receive most relative to what they
send. One costs 0.1 ms, on an overloaded server 0.4 ms of the event loop."""

TRUSTED_S: Final = 0.75
"""Seconds for which a connection that finishes more than it resets is not counted again, unless it
begins to send more than TRUSTED_FACTOR times as much. Counting all at every check took 2.7 % of an
overloaded server's time with 32 connections."""

TRUSTED_FACTOR: Final = 2.0

DEAF_S: Final = 30.0
"""Seconds for which a connection that flooded is not read before it is reset. A peer that is reset
at once connects again at once."""

STRIKES_MAX: Final = 8
STRIKES_S: Final = 60.0
"""A host is refused if more than this many of its connections flooded within this many seconds.
Fewer may be one bad client among the users behind one address."""

BAN_S: Final = 3.0
"""Seconds for which it is refused. Its open connections stay, and kernels repeat a SYN every second
or two, so that other users behind the address connect later."""

TURNED_AWAY_MAX: Final = 500
TURNED_AWAY_PER_S: Final = 50
"""A host is also refused if more than this many of its connections were closed for exceeding its
share, beyond this many a second: it opens connections as fast as they are closed."""

_LOG_S: Final = 1.0
"""One line for each host and reason in this time."""

_log = structlog.get_logger(__name__)


class SignedPeers:
    """Peers that were let in by sign-in since they were last taken.

    add: notes a peer, as gRPC names it. It is the set's own, since every call calls it.
    """

    def __init__(self) -> None:
        self._peers: set[str] = set()
        self.add: Final = self._peers.add

    def take(self) -> Iterable[str]:
        """Return the peers that were noted, and forget them."""
        taken = self._peers.copy()
        self._peers.clear()
        return taken


@dataclass(slots=True)
class Watched:
    """One connection, from the first check to the last."""

    descriptor: Descriptor
    opened_s: float
    subnet: str
    is_signed: bool = False
    traffic: Traffic = NO_TRAFFIC
    received_bytes: int = 0
    sent_bytes: int = 0
    """Of these, since the previous check."""
    streams: StreamCounts = NO_STREAMS
    sent_counted_bytes: int = 0
    deaf_until_s: float | None = None
    resets: float = 0.0
    """Calls reset minus calls finished; decays at resets_per_s_max."""
    trusted_until_s: float = 0.0
    trusted_bytes_per_s: float = 0.0

    def trust(self, now_s: float, since_s: float) -> None:
        """Do not count it for a while. since_s: the time in which received_bytes came."""
        self.trusted_until_s = now_s + TRUSTED_S
        self.trusted_bytes_per_s = self.received_bytes / max(since_s, SWEEP_S)

    def is_trusted(self, now_s: float, since_s: float) -> bool:
        """Say whether it need not be counted now."""
        most = TRUSTED_FACTOR * self.trusted_bytes_per_s * max(since_s, SWEEP_S)
        return now_s < self.trusted_until_s and self.received_bytes <= most

    def count_resets(self, streams: StreamCounts) -> float:
        """Add the calls that were reset since the last count; return how many."""
        before, self.streams = self.streams, streams
        sent_bytes = self.traffic.sent_bytes - self.sent_counted_bytes
        self.sent_counted_bytes = self.traffic.sent_bytes
        failed = streams.failed - before.failed
        refused = min(failed, sent_bytes / REFUSAL_BYTES)
        added = failed - refused * (1 - REFUSED_SHARE)
        finished = streams.succeeded - before.succeeded
        self.resets = max(self.resets + added - finished, -CREDIT_MAX)
        return max(0.0, added - finished)


class ConnectionGuard:
    """Guards the connections of some listeners."""

    def __init__(
        self,
        settings: Settings,
        ports: Collection[int],
        signed: SignedPeers,
        *,
        deaf_s: float = DEAF_S,
        strikes_max: int = STRIKES_MAX,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Guard the listeners on these ports. signed: peers that were let in."""
        self._deaf_s = deaf_s
        self._strikes_max = strikes_max
        self._per_host_max = settings.connections_per_address_max
        self._silence_s = settings.unsigned_silence_max_s
        self._resets_per_s = settings.resets_per_s_max
        self._short_from = max(1, int(settings.connections_max * SHORT_FROM))
        self._signed = signed
        self._clock_s = clock_s
        self._sockets = OwnSockets(ports)
        self._calls = OpenCalls()
        self._watched: dict[int, Watched] = {}
        self._host_resets: defaultdict[str, float] = defaultdict(float)
        self._strikes_s: defaultdict[str, list[float]] = defaultdict(list)
        self._turned_away: defaultdict[str, float] = defaultdict(float)
        self._banned_until_s: dict[str, float] = {}
        self._refused: frozenset[str] = frozenset()
        self._looked_s = clock_s()
        self._logged_s: dict[tuple[str, str], float] = {}
        self._unlogged: Counter[tuple[str, str]] = Counter()

    async def run(self) -> None:
        """Check until cancelled."""
        took_s = 0.0
        while True:
            await asyncio.sleep(min(max(SWEEP_S, took_s / SWEEP_SHARE), SWEEP_MAX_S))
            begun_s = time.thread_time()
            try:
                self.look()
            except Exception:  # noqa: BLE001 - a bug here must not end the guard
                _log.exception("connection_guard_failed")
            took_s = time.thread_time() - begun_s

    def close(self) -> None:
        """Lift all bans."""
        if self._refused:
            own_sockets.refuse(self._sockets.listeners.items(), ())

    def look(self) -> None:
        """Check every connection once, and close those that keep others out."""
        now_s = self._clock_s()
        since_s, self._looked_s = now_s - self._looked_s, now_s
        self._find(now_s)
        if self._resets_per_s:
            self._close_floods(now_s, since_s)
        if self._silence_s:
            self._close_silent()
        if self._per_host_max:
            self._close_shares()
        self._close_short()
        for subnet in list(self._turned_away):
            self._turned_away[subnet] -= TURNED_AWAY_PER_S * since_s
            if self._turned_away[subnet] > TURNED_AWAY_MAX:
                self._banned_until_s[subnet] = now_s + BAN_S
            if self._turned_away[subnet] <= 0 or subnet in self._banned_until_s:
                del self._turned_away[subnet]
        self._refuse(now_s)

    def _find(self, now_s: float) -> None:
        """Read the open connections, their signed-in callers and their traffic."""
        found = {each.inode: each for each in self._sockets.connections()}
        self._watched = {
            inode: self._watched.get(inode)
            or Watched(each, now_s, own_sockets.subnet_of(each.peer[0]))
            for inode, each in found.items()
        }
        signed = {peer_of(name) for name in self._signed.take()}
        for each in self._watched.values():
            if each.descriptor.peer in signed:
                each.is_signed = True
            traffic = own_sockets.traffic_of(each.descriptor)
            if traffic is not None:
                each.received_bytes = traffic.received_bytes - each.traffic.received_bytes
                each.sent_bytes = traffic.sent_bytes - each.traffic.sent_bytes
                each.traffic = traffic

    def _close_floods(self, now_s: float, since_s: float) -> None:
        """Close connections that reset more calls than they let finish."""
        runs_off = self._resets_per_s * since_s
        busy: list[tuple[int, Watched]] = []
        for each in self._watched.values():
            if each.deaf_until_s is not None:
                if each.deaf_until_s <= now_s:
                    own_sockets.reset(each.descriptor)
                continue
            if each.resets > 0:
                each.resets = max(0.0, each.resets - runs_off)
            if each.received_bytes >= BUSY_BYTES and not each.is_trusted(now_s, since_s):
                busy.append((each.received_bytes - each.sent_bytes, each))
        busy.sort(key=lambda pair: pair[0], reverse=True)
        asked = [each for _, each in busy[:ASKED_MAX]]
        counts = self._calls.counts([each.descriptor.peer for each in asked])
        taken_back = Counter[str]()
        for each in asked:
            streams = counts.get(each.descriptor.peer)
            if streams is not None:
                taken_back[each.subnet] += round(each.count_resets(streams))
                if each.resets <= 0:
                    each.trust(now_s, since_s)
        flooding = [each for each in asked if each.resets > self._resets_per_s]
        for subnet in list(self._host_resets):
            self._host_resets[subnet] -= runs_off * HOST_FACTOR
            if self._host_resets[subnet] <= 0:
                del self._host_resets[subnet]
        for subnet, count in taken_back.items():
            self._host_resets[subnet] += count
        over = {
            subnet
            for subnet, count in self._host_resets.items()
            if count > self._resets_per_s * HOST_FACTOR
        }
        flooding += [
            each for each in asked if each.subnet in over and 0 < each.resets <= self._resets_per_s
        ]
        for each in flooding:
            self._deafen(each, now_s)

    def _deafen(self, each: Watched, now_s: float) -> None:
        """Stop reading a connection; refuse its host if it has flooded often."""
        if not own_sockets.deafen(each.descriptor):
            own_sockets.reset(each.descriptor)
        each.deaf_until_s = now_s + self._deaf_s
        self._unlogged[each.subnet, "resets"] += 1
        strikes_s = [
            struck_s for struck_s in self._strikes_s[each.subnet] if now_s - struck_s < STRIKES_S
        ]
        strikes_s.append(now_s)
        self._strikes_s[each.subnet] = strikes_s[-self._strikes_max - 1 :]
        if len(strikes_s) > self._strikes_max:
            self._banned_until_s[each.subnet] = now_s + BAN_S

    def _close_silent(self) -> None:
        """Close idle connections without a signed-in caller and without calls in flight."""
        silent = [
            each
            for each in self._watched.values()
            if not each.is_signed
            and each.deaf_until_s is None
            and each.traffic.silent_s >= self._silence_s
        ]
        silent = silent[: ASKED_MAX * 4]
        counts = self._calls.counts([each.descriptor.peer for each in silent])
        for each in silent:
            streams = counts.get(each.descriptor.peer)
            # A connection that watches health has a call in flight.
            if streams is None or not streams.open:
                self._close(each, "silence")

    def _close_shares(self) -> None:
        """Close a host's connections beyond its share: unsigned ones first, oldest first."""
        for group in self._by_host(self._watched.values()):
            excess = len(group) - self._per_host_max
            if excess > 0:
                unsigned = [each for each in group if not each.is_signed]
                signed = [each for each in group if each.is_signed]
                for each in (unsigned + signed[::-1])[:excess]:
                    self._close(each, "share")

    def _close_short(self) -> None:
        """Close unsigned connections if slots run short, from the host with the most."""
        by_port: defaultdict[int, list[Watched]] = defaultdict(list)
        for each in self._watched.values():
            by_port[each.descriptor.local_port].append(each)
        for group in by_port.values():
            excess = len(group) - self._short_from
            if excess <= 0:
                continue
            hosts = self._by_host(each for each in group if not each.is_signed)
            hosts.sort(key=len, reverse=True)
            for place, host in enumerate(hosts):
                # Down to the next largest, so that hosts with few are spared longest.
                keep = len(hosts[place + 1]) if place + 1 < len(hosts) else 0
                closing = host[: min(excess, max(1, len(host) - keep))]
                for each in closing:
                    self._close(each, "slots_short")
                excess -= len(closing)
                if excess <= 0:
                    break

    @staticmethod
    def _by_host(connections: Iterable[Watched]) -> list[list[Watched]]:
        """Return the connections of each host, oldest first."""
        hosts: defaultdict[str, list[Watched]] = defaultdict(list)
        for each in connections:
            hosts[each.subnet].append(each)
        for group in hosts.values():
            group.sort(key=lambda each: each.opened_s)
        return list(hosts.values())

    def _close(self, each: Watched, reason: str) -> None:
        if not own_sockets.reset(each.descriptor):
            return
        self._watched.pop(each.descriptor.inode, None)
        self._unlogged[each.subnet, reason] += 1
        if reason in ("share", "slots_short"):
            self._turned_away[each.subnet] += 1

    def _refuse(self, now_s: float) -> None:
        """Have the kernel refuse the hosts that are banned now, and log what was done."""
        self._banned_until_s = {
            subnet: until_s for subnet, until_s in self._banned_until_s.items() if until_s > now_s
        }
        for subnet in list(self._strikes_s):
            if now_s - self._strikes_s[subnet][-1] >= STRIKES_S:
                del self._strikes_s[subnet]
        banned = frozenset(self._banned_until_s)
        if banned != self._refused:
            refused = own_sockets.refuse(self._sockets.listeners.items(), banned)
            for subnet in banned - self._refused:
                _log.warning("host_refused", peer=subnet, seconds=BAN_S, in_kernel=refused)
            self._refused = banned
        self._logged_s = {
            key: logged_s for key, logged_s in self._logged_s.items() if now_s - logged_s < _LOG_S
        }
        for key in self._unlogged.keys() - self._logged_s.keys():
            subnet, reason = key
            _log.warning(
                "connections_closed", peer=subnet, reason=reason, count=self._unlogged.pop(key)
            )
            self._logged_s[key] = now_s
