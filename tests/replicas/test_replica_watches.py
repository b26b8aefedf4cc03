"""Watchers on every replica, with dropped connections: each change arrives exactly once.

The delay is measured from the decision to the watcher, so it includes the commit; all processes run
on one machine with the same clock.
"""

import asyncio
import random
import statistics
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import grpc
import pytest

from agent_routing.v1 import routing_service_pb2, routing_service_pb2_grpc
from routing_service.storage.store import CursorInvalid, SessionKey
from tests.conformance.conftest import ENGINES
from tests.replicas.conftest import SHARED
from tests.replicas.replica_set import serving_replicas
from tests.replicas.stale_pairs import SharedStore
from tests.rpc.live_service import fresh_id, read_refusal, serving
from tests.rpc.registries import DESK

WATCHERS = 8
SESSIONS = 4

WAIT_S = 120
"""For a watcher to have heard of everything, on a machine that many share."""


@pytest.fixture(
    params=[engine for engine in ENGINES if engine.name in ("sqlite", *SHARED)],
    ids=lambda engine: engine.name,
)
async def replicas(request, tmp_path):
    """Two replicas on a shared store, or one server on a file, with each engine in turn."""
    engine = request.param
    server = request.getfixturevalue(engine.server) if engine.server else None
    count = 2 if engine.name in SHARED else 1
    async with serving_replicas(engine.url(tmp_path, server), DESK, count) as running:
        yield running
    engine.clear(tmp_path, server)


@dataclass
class Stream:
    """What one watcher received of one session, over all its connections."""

    session_id: str
    wanted: int
    reconnect_at: set[int]
    revisions: list[int] = field(default_factory=list)
    delays_ms: list[float] = field(default_factory=list)
    connections: int = 0

    async def watch(self, stubs, dice):
        """Watch from the first revision to the last, sometimes reconnecting elsewhere."""
        while len(self.revisions) < self.wanted:
            self.connections += 1
            request = routing_service_pb2.WatchSessionRequest(
                session_id=self.session_id,
                user_id="ana",
                after_revision=self.revisions[-1] if self.revisions else 0,
            )
            call = dice.choice(stubs).WatchSession(request)
            try:
                async for message in call:
                    if message.HasField("change"):
                        self._keep(message.change)
                    if len(self.revisions) == self.wanted:
                        break
                    if len(self.revisions) in self.reconnect_at:
                        self.reconnect_at.discard(len(self.revisions))
                        break
            finally:
                call.cancel()

    def _keep(self, change):
        self.revisions.append(change.revision)
        decided_us = change.events[0].event_time.ToMicroseconds()
        self.delays_ms.append(time.time_ns() / 1e6 - decided_us / 1e3)


async def write(clients, session_id, changes, dice, pause_s):
    """Change a session a number of times, each time through any replica."""
    for _ in range(changes):
        # A command is a change of one event that opens no turn.
        await dice.choice(clients).route("/status", session_id=session_id, user_id="ana")
        if pause_s:
            await asyncio.sleep(pause_s * dice.uniform(0.5, 1.5))


async def watch_while_written(replicas, *, changes, reconnects, pause_s=0.0):
    """Let every watcher watch every session; return the figures."""
    dice = random.Random(11)
    async with AsyncExitStack() as opened:
        clients, stubs = [], []
        for replica in replicas.replicas:
            clients.append(
                await opened.enter_async_context(replicas.client(replica.address, timeout=60))
            )
            channel = grpc.aio.insecure_channel(replica.address)
            await opened.enter_async_context(channel)
            stubs.append(routing_service_pb2_grpc.RoutingServiceStub(channel))
        names = [f"watched-{number}" for number in range(SESSIONS)]
        for name in names:
            await clients[0].route("/status", session_id=name, user_id="ana")
        streams = [Stream(name, changes, set()) for name in names for _ in range(WATCHERS)]
        for _ in range(reconnects):
            dice.choice(streams).reconnect_at.add(dice.randrange(1, changes))
        wanted = len(streams) + sum(len(stream.reconnect_at) for stream in streams)
        watching = [asyncio.create_task(stream.watch(stubs, dice)) for stream in streams]
        begun_s = time.monotonic()
        try:
            await asyncio.gather(*(write(clients, n, changes - 1, dice, pause_s) for n in names))
            written_s = time.monotonic() - begun_s
            await asyncio.wait_for(asyncio.gather(*watching), WAIT_S)
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
    for stream in streams:
        assert stream.revisions == list(range(1, changes + 1))
    assert sum(stream.connections for stream in streams) == wanted
    # Changes from before a connection's start are not measured.
    delays = sorted(delay for stream in streams for delay in stream.delays_ms[changes // 10 :])
    figures = {
        "replicas": len(replicas.replicas),
        "watchers": WATCHERS,
        "sessions": SESSIONS,
        "changes_each": SESSIONS * changes,
        "reconnects": wanted - len(streams),
        "changes_per_s": round(SESSIONS * (changes - 1) / written_s),
        "p50_ms": round(statistics.median(delays), 1),
        "p99_ms": round(delays[int(len(delays) * 0.99)], 1),
    }
    print(f"watches: {figures}")  # noqa: T201 - the figures are what the run is for
    return figures


@pytest.mark.timeout(300)
async def test_watchers_on_all_replicas_hear_every_change_once_and_in_order(replicas):
    """The short version of the next one."""
    figures = await watch_while_written(replicas, changes=60, reconnects=20, pause_s=0.01)
    assert figures["reconnects"] > 0


@pytest.mark.torture
@pytest.mark.timeout(1800)
async def test_eight_watchers_of_twenty_thousand_changes_lose_repeat_and_reorder_nothing(replicas):
    """Each watches all four sessions, as fast as they can be written, with 100 reconnections."""
    figures = await watch_while_written(replicas, changes=5_000, reconnects=100)
    assert figures["changes_each"] >= 20_000
    assert figures["reconnects"] >= 90


@pytest.mark.torture
@pytest.mark.timeout(300)
async def test_watchers_hear_of_a_change_within_a_tenth_of_a_second(replicas):
    """At a human pace: some forty changes a second. For an otherwise idle machine."""
    figures = await watch_while_written(replicas, changes=200, reconnects=0, pause_s=0.1)
    assert figures["p99_ms"] <= 100


async def next_change(watch):
    """Read on to the next change."""
    async with asyncio.timeout(30):
        while not (message := await watch.read()).HasField("change"):
            pass
    return message.change


class FailedOver(SharedStore):
    """A store whose server may be replaced by a copy, which has other cursors of the log."""

    generation = 0

    async def log_end(self):
        return bytes([self.generation]) + await super().log_end()

    async def read_log(self, cursor, limit):
        if cursor and cursor[0] != self.generation:
            raise CursorInvalid("the cursor is ahead of this store")
        entries, after = await super().read_log(cursor[1:], limit)
        return entries, bytes([self.generation]) + after


async def test_watchers_hear_of_other_replicas_after_a_failover_that_ends_all_cursors(tmp_path):
    """With a cursor of the old server, a replica would never see other replicas' changes."""
    store = FailedOver()
    async with (
        serving(tmp_path, DESK, shared=store) as one,
        serving(tmp_path, DESK, shared=store) as two,
    ):
        writer = two.chat("watched")
        await writer.say("hello")
        request = routing_service_pb2.WatchSessionRequest(session_id="watched", user_id="ana")
        watch = one.stub.WatchSession(request)

        assert (await watch.read()).HasField("heartbeat")
        await writer.say("more")
        assert (await next_change(watch)).revision == 2
        store.generation = 1
        await writer.say("more")
        assert (await next_change(watch)).revision == 3
        await writer.say("more")
        assert (await next_change(watch)).revision == 4
        watch.cancel()


async def test_watch_of_a_session_that_another_replica_removed_shows_nothing_of_the_next(tmp_path):
    """Two users had one session id, one after the other: neither gets the other's text."""
    store = SharedStore()
    async with (
        serving(tmp_path, DESK, shared=store) as one,
        serving(tmp_path, DESK, shared=store) as two,
    ):
        await two.chat("reused", user_id="ana").say("ana's first")
        request = routing_service_pb2.WatchSessionRequest(
            session_id="reused", user_id="ana", after_revision=0
        )
        anas = one.stub.WatchSession(request)
        for text in ("ana's second", "ana's third"):
            await two.chat("reused", user_id="ana").say(text)
        heard = [await next_change(anas) for _ in range(3)]
        assert [change.revision for change in heard] == [1, 2, 3]
        await store.delete_session(SessionKey("default", "reused"), 3)
        two.clock.advance(1)
        request_id = fresh_id()
        await two.chat("reused", user_id="bob").say("bob's first", request_id=request_id)
        await two.chat("reused", user_id="bob").say("bob's second")
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await next_change(anas)
        assert tuple(read_refusal(ended.value)) == ("NOT_FOUND", "UNKNOWN_SESSION")
        request = routing_service_pb2.WatchSessionRequest(
            session_id="reused", user_id="bob", after_revision=0
        )
        bobs = one.stub.WatchSession(request)
        change = await next_change(bobs)
        assert (change.revision, change.events[0].request_id) == (1, request_id)
        bobs.cancel()
