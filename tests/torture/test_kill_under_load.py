"""kill -9 during writes: every acknowledged write is stored exactly once.

A kill keeps the operating system's cache, so it does not test the disk; test_unsynced_writes.py
does. It does test that a write is given to the store before it is acknowledged, and that a start
after any kill finds a consistent store.
"""

import asyncio
import itertools
import os
import random
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.rpc.registries import DESK
from tests.torture.linearisability import Outcome
from tests.torture.recorder import Recorder
from tests.torture.server_process import PLANTED, SPOILT, ServerProcess
from tests.torture.stored_sessions import violations
from tests.torture.talkers import Talker

SEED = int(os.environ.get("TORTURE_SEED", "20260731"))

KILLED_AT_START = 0.08
"""Share of the kills that hit a server before it serves: migrations, recovery of the log."""


@dataclass
class Lane:
    """A server with its own store and talkers, which is killed repeatedly."""

    number: int
    folder: Path
    kills: int
    writes: int
    talkers_count: int = 20
    bug: str = ""
    kills_done: int = 0

    def __post_init__(self):
        self.folder.mkdir()
        registry = self.folder / "agents.yaml"
        registry.write_text(DESK.replace("open_turns: 4", "open_turns: 16"), "utf-8")
        self.server = ServerProcess(self.folder, registry)
        if self.bug:
            self.server.command, self.server.environment = SPOILT, {PLANTED: self.bug}
        self.recorder = Recorder()
        self.dice = random.Random(f"{SEED}-{self.number}")
        self.talkers = []
        self.names = itertools.count()
        self.stopping = False

    @property
    def answered(self):
        return sum(talker.answered for talker in self.talkers)

    def new_talker(self, client):
        """Every third talker shares the session of the one before."""
        name = next(self.names)
        session_id = f"chat-{name - 1 if name % 3 == 2 else name}"
        wrapped = self.recorder.wrap(client, f"client-{name}")
        return Talker(wrapped, session_id, f"{SEED}-{self.number}-{name}")

    async def run(self):
        """Kill as often as asked while the talkers talk, then let them finish."""
        await self.server.start()
        clients = [self.server.client() for _ in range(4)]
        self.talkers = [
            self.new_talker(clients[n % len(clients)]) for n in range(self.talkers_count)
        ]
        talks = [asyncio.create_task(t.talk(lambda: self.stopping)) for t in self.talkers]
        try:
            while self.kills_done < self.kills or self.answered < self.writes:
                share = self.writes / max(self.kills, 1)
                await self.answers(self.answered + self.dice.randrange(int(2 * share)), talks)
                # Between two system calls, rather than just after an answer.
                await asyncio.sleep(self.dice.random() * 0.02)
                await self.server.kill()
                self.kills_done += 1
                while self.dice.random() < KILLED_AT_START:
                    await self.server.launch()
                    await asyncio.sleep(self.dice.random() * 1.5)
                    await self.server.kill()
                    self.kills_done += 1
                await self.server.start()
            self.stopping = True
            await asyncio.gather(*talks)
            await asyncio.gather(*(talker.repeat_all() for talker in self.talkers))
        finally:
            for task in talks:
                task.cancel()
            await asyncio.gather(*talks, return_exceptions=True)
            for client in clients:
                await client.close()
            await self.server.kill()

    async def answers(self, wanted, talks):
        """Wait for a number of answered writes."""
        while self.answered < wanted:
            done = [talk for talk in talks if talk.done()]
            for talk in done:
                talk.result()
            await asyncio.sleep(0.002)


async def kill_under_load(*, kills, writes, lanes, talkers_count, bug=""):
    """Run lanes concurrently; return their figures, and lost or repeated writes."""
    begun_s = time.monotonic()
    # Its own folder: a socket's path has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="routing-") as name:
        running = [
            Lane(n, Path(name) / str(n), kills // lanes, writes // lanes, talkers_count, bug)
            for n in range(lanes)
        ]
        await asyncio.gather(*(lane.run() for lane in running))
        load_s = time.monotonic() - begun_s
        found = []
        for lane in running:
            found += await violations(f"sqlite:///{lane.server.store_path}", lane.recorder.history)
            # A killed server logs nothing; its other log lines are not failures.
            assert '"level":"error"' not in lane.server.log, lane.server.log
    history = [call for lane in running for call in lane.recorder.history]
    outcomes = Counter(call.outcome for call in history)
    figures = {
        "seed": SEED,
        "kills": sum(lane.kills_done for lane in running),
        "acknowledged_writes": sum(lane.answered for lane in running),
        "calls": len(history),
        "unanswered_calls": outcomes[Outcome.UNKNOWN],
        "repeats_answered": sum(call.replayed for call in history),
        "start_s_median": round(statistics.median(s for x in running for s in x.server.start_s), 2),
        "start_s_max": round(max(s for x in running for s in x.server.start_s), 2),
        "load_s": round(load_s),
        "seconds": round(time.monotonic() - begun_s),
    }
    print(f"kill -9 under load: {figures}")  # noqa: T201 - the figures are what the run is for
    return figures, found


@pytest.mark.timeout(300)
async def test_nothing_acknowledged_is_lost_or_done_twice_over_a_few_kills():
    """The short version of the next one."""
    figures, found = await kill_under_load(kills=4, writes=600, lanes=1, talkers_count=10)
    assert found == [], found[:10]
    assert figures["kills"] >= 4
    assert figures["acknowledged_writes"] >= 600


@pytest.mark.torture
@pytest.mark.timeout(600)
async def test_acknowledgement_before_the_commit_would_be_found_by_kills():
    """With that bug planted, a dozen kills lose writes, and the checks report it."""
    _, found = await kill_under_load(
        kills=12, writes=1_200, lanes=2, talkers_count=24, bug="acknowledged_before_commit"
    )
    assert {violation.kind for violation in found} & {"lost_write", "two_answers", "stale_read"}


@pytest.mark.torture
@pytest.mark.timeout(3600)
async def test_nothing_acknowledged_is_lost_or_done_twice_over_two_hundred_kills():
    """200 kills, 100,000 acknowledged writes: 0 lost, 0 repeated."""
    figures, found = await kill_under_load(kills=200, writes=100_000, lanes=2, talkers_count=24)
    assert found == [], found[:10]
    assert figures["kills"] >= 200
    assert figures["acknowledged_writes"] >= 100_000
    assert figures["unanswered_calls"] > 0
