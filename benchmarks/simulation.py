"""A model of the service in discrete events, fed by measured costs: processes, engine and callers.

Owns the model. A call takes processor time of its caller, of one server process (one loop, so one
at a time) and of the engine, and its change waits for the next group of its process and for the
disk, as in storage/postgres/writer.py. Rule: the same arguments give the same result, by the seed.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Final

import simpy

SLICE_S: Final = 0.0005
"""Work takes turns on a core in slices of this, as a fair scheduler has it."""

GROUP_WRITES_MAX: Final = 256
WAITING_WRITES_MAX: Final = 8_192
"""As the service's own limits: more waiting writes are refused as UNAVAILABLE."""

ATTEMPTS_MAX: Final = 4
RETRY_FIRST_S: Final = 0.1
RETRY_MAX_S: Final = 2.0
"""As the clients' policy for UNAVAILABLE."""

Steps = Generator[simpy.Event, Any, Any]


@dataclass(frozen=True)
class Costs:
    """What one call takes. A turn is two calls."""

    service_s: float
    engine_s: float
    sync_s: float
    """Of the engine's disk, once for a group."""
    client_s: float = 0.0
    """Of the caller's process; 0 = callers are on other machines."""


@dataclass(frozen=True)
class Layout:
    """Where things run.

    engine_cores: 0 = the engine shares the service's machine. others: how many cores of it other
    programs take, less than cores.
    """

    processes: int
    cores: int
    engine_cores: int = 0
    others: float = 0.0
    connections: int = 64


@dataclass(frozen=True)
class Traffic:
    """What callers do.

    callers: each plays turn after turn; 0 = turns arrive by themselves, turns_per_s of them.
    inbox_share: of turns that a worker takes from an inbox, which is a third call. hot_share: of
    turns in one session. away_at_s, away_s: when the engine is away, and for how long.
    """

    callers: int = 0
    turns_per_s: float = 0.0
    inbox_share: float = 0.0
    hot_share: float = 0.0
    away_at_s: float = 0.0
    away_s: float = 0.0


@dataclass
class Outcome:
    """What happened after the start-up time."""

    seconds: float
    turns: int = 0
    failed_turns: int = 0
    latencies_s: list[float] = field(default_factory=list)
    """Of calls, retries included."""
    ended_late_s: float = 0.0
    """How long after the engine's return a call still took over a second."""

    @property
    def turns_per_s(self) -> float:
        """The rate."""
        return self.turns / self.seconds

    def quantile_ms(self, share: float) -> float:
        """Return the latency that this share of the calls has at most."""
        ordered = sorted(self.latencies_s)
        return 1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class _Process:
    """A server process: its loop, and the writes that wait for the next group."""

    def __init__(self, env: simpy.Environment) -> None:
        self.loop = simpy.Resource(env, 1)
        self.waiting: deque[simpy.Event] = deque()
        self.wake = env.event()


class _Run:
    def __init__(self, costs: Costs, layout: Layout, traffic: Traffic, seed: int) -> None:
        self.env = simpy.Environment()
        self.random = random.Random(seed)
        self.costs, self.layout, self.traffic = costs, layout, traffic
        self.cores = simpy.Resource(self.env, layout.cores)
        self.engine_cores = (
            simpy.Resource(self.env, layout.engine_cores) if layout.engine_cores else self.cores
        )
        self.client = simpy.Resource(self.env, 1)
        self.processes = [_Process(self.env) for _ in range(layout.processes)]
        # The system gives each connection to a process by a hash of its address.
        self.connections = [self.random.choice(self.processes) for _ in range(layout.connections)]
        self.hot = simpy.Resource(self.env, 1)
        self.hot_last: _Process | None = None
        self.outcome = Outcome(0.0)
        self.counts_from_s = 0.0

    def work(self, cores: simpy.Resource, seconds: float) -> Steps:
        while seconds > 0:
            with cores.request() as core:
                yield core
                part = min(seconds, SLICE_S)
                yield self.env.timeout(part)
            seconds -= part

    def others(self) -> Steps:
        """Take cores for other programs: slices at random times, as many as they took."""
        while True:
            yield self.env.timeout(self.random.expovariate(self.layout.others / SLICE_S))
            self.env.process(self.work(self.cores, SLICE_S))

    def is_away(self) -> bool:
        from_s = self.traffic.away_at_s
        return bool(self.traffic.away_s) and from_s <= self.env.now < from_s + self.traffic.away_s

    def writer(self, process: _Process) -> Steps:
        """Commit group after group; what waits meanwhile is the next one."""
        while True:
            if not process.waiting:
                process.wake = self.env.event()
                yield process.wake
            if self.is_away():
                yield self.env.timeout(self.traffic.away_at_s + self.traffic.away_s - self.env.now)
            count = min(len(process.waiting), GROUP_WRITES_MAX)
            group = [process.waiting.popleft() for _ in range(count)]
            yield from self.work(self.engine_cores, self.costs.engine_s * count)
            yield self.env.timeout(self.costs.sync_s)
            for written in group:
                written.succeed()

    def write(self, process: _Process) -> Steps:
        """Wait for a commit; return whether the write was accepted."""
        if len(process.waiting) >= WAITING_WRITES_MAX:
            return False
        written = self.env.event()
        process.waiting.append(written)
        if not process.wake.triggered:
            process.wake.succeed()
        yield written
        return True

    def serve(self, process: _Process, times: int = 1) -> Steps:
        with process.loop.request() as turn:
            yield turn
            yield from self.work(self.cores, times * self.costs.service_s)

    def attempt(self, process: _Process, *, is_hot: bool) -> Steps:
        """Serve a call once; return whether it was answered."""
        yield from self.serve(process)
        if not is_hot:
            return (yield from self.write(process))
        with self.hot.request() as turn:  # One change of a session at a time.
            yield turn
            if self.hot_last not in {None, process}:
                # Another process was first: read the session and decide again.
                yield from self.serve(process)
            self.hot_last = process
            return (yield from self.write(process))

    def call(self, *, is_hot: bool) -> Steps:
        """Play a call with its retries; return whether it was answered."""
        begun_s, wait_s = self.env.now, RETRY_FIRST_S
        process = self.random.choice(self.connections)
        if self.costs.client_s:
            with self.client.request() as turn:
                yield turn
                yield from self.work(self.cores, self.costs.client_s)
        for _ in range(ATTEMPTS_MAX):
            if (yield from self.attempt(process, is_hot=is_hot)):
                self.count(begun_s)
                return True
            yield self.env.timeout(self.random.uniform(0.2, 1) * wait_s)
            wait_s = min(2 * wait_s, RETRY_MAX_S)
        return False

    def count(self, begun_s: float) -> None:
        took_s = self.env.now - begun_s
        if self.env.now >= self.counts_from_s:
            self.outcome.latencies_s.append(took_s)
        back_s = self.traffic.away_at_s + self.traffic.away_s
        if self.traffic.away_s and self.env.now > back_s and took_s > 1:
            self.outcome.ended_late_s = self.env.now - back_s

    def turn(self) -> Steps:
        is_hot = self.random.random() < self.traffic.hot_share
        calls = 3 if self.random.random() < self.traffic.inbox_share else 2
        for _ in range(calls):
            if not (yield from self.call(is_hot=is_hot)):
                self.outcome.failed_turns += 1
                return
        if self.env.now >= self.counts_from_s:
            self.outcome.turns += 1

    def caller(self) -> Steps:
        while True:
            yield from self.turn()

    def arrivals(self) -> Steps:
        while True:
            yield self.env.timeout(self.random.expovariate(self.traffic.turns_per_s))
            self.env.process(self.turn())


def simulate(
    costs: Costs, layout: Layout, traffic: Traffic, *, seconds: float, seed: int = 1
) -> Outcome:
    """Run the model for so long after a fifth of that to start up."""
    run = _Run(costs, layout, traffic, seed)
    for process in run.processes:
        run.env.process(run.writer(process))
    if layout.others:
        run.env.process(run.others())
    for _ in range(traffic.callers):
        run.env.process(run.caller())
    if traffic.turns_per_s:
        run.env.process(run.arrivals())
    run.counts_from_s = seconds / 5
    run.outcome.seconds = seconds
    run.env.run(until=run.counts_from_s + seconds)
    return run.outcome
