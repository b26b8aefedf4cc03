"""The project's clients with several replicas as target: one failing replica fails no call."""

import asyncio
import itertools
import statistics
import time
from collections import Counter

import pytest

import agent_routing
from agent_routing import outcomes
from tests.conformance.conftest import ENGINES
from tests.replicas.replica_set import serving_replicas
from tests.rpc.registries import DESK

CALLERS = 8
ROLLS = 5
DRAIN_S_MAX = 10

on_one_engine = pytest.mark.parametrize(
    "shared_store",
    [engine for engine in ENGINES if engine.name == "postgres"],
    ids=lambda engine: engine.name,
    indirect=True,
)
"""What a client does about replicas has nothing to do with what is below them."""


class Chats:
    """Callers that make calls without a pause, each in its own sessions, until stopped."""

    def __init__(self, client):
        self.client = client
        self.calls = 0
        self.stopping = False
        self.attempts = Counter()
        self.names = itertools.count()
        self.talking = []

    async def __aenter__(self):
        self.talking = [asyncio.create_task(self.talk()) for _ in range(CALLERS)]
        return self

    async def __aexit__(self, *_):
        self.stopping = True
        await asyncio.gather(*self.talking)

    async def talk(self):
        """Route and answer, each with the request id that makes its repeat the same call."""
        while not self.stopping:
            session_id = f"chat-{next(self.names)}"
            for _ in range(5):
                info = agent_routing.CallInfo()
                turn = await self.client.route(
                    "hello", session_id=session_id, user_id="ana", info=info
                )
                assert not turn.degraded
                self.attempts[info.attempts] += 1
                await self.client.complete_turn(
                    session_id,
                    turn.request_id,
                    turn.agent_id,
                    outcomes.proceed(),
                    text="good day",
                    user_id="ana",
                )
                self.calls += 2
            status = await self.client.status(session_id, user_id="ana")
            # Each message and each answer once, including retries.
            assert status.revision == 10

    async def more(self, calls):
        """Wait for a number of further answered calls."""
        wanted = self.calls + calls
        async with asyncio.timeout(60):
            while self.calls < wanted:
                for each in self.talking:
                    if each.done():
                        each.result()
                await asyncio.sleep(0.01)


@on_one_engine
@pytest.mark.timeout(180)
async def test_no_call_fails_while_one_replica_drains_and_one_is_killed(shared_store):
    """With the client's defaults: calls in flight are retried on another replica."""
    async with (
        serving_replicas(shared_store.url, DESK, 3) as replicas,
        replicas.client(timeout=30) as client,
        Chats(client) as chats,
    ):
        await chats.more(50)
        draining = asyncio.create_task(replicas.replicas[0].stop())
        await chats.more(50)
        await draining
        await replicas.replicas[1].kill()
        await chats.more(50)
        await replicas.replicas[0].start()
        await replicas.replicas[1].start()
        await chats.more(50)
        # The restarted ones are used again, so the one that never stopped may stop.
        await replicas.replicas[2].stop()
        await chats.more(50)
    assert max(chats.attempts) <= agent_routing.RetryPolicy().attempts_max


async def roll(chats, replica):
    """Replace a replica under load as an orchestrator does; return its drain time."""
    await chats.more(30)
    begun_s = time.monotonic()
    await replica.stop()
    drained_s = time.monotonic() - begun_s
    await chats.more(30)
    await replica.start()
    return drained_s


@on_one_engine
@pytest.mark.torture
@pytest.mark.timeout(900)
async def test_no_call_fails_while_all_replicas_are_replaced_again_and_again(shared_store):
    """A roll-out under load with the client's defaults: no caller sees an error or a pause."""
    drained_s = []
    async with (
        serving_replicas(shared_store.url, DESK, 3) as replicas,
        replicas.client(timeout=30) as client,
        Chats(client) as chats,
    ):
        for replica in replicas.replicas * ROLLS:
            drained_s += [await roll(chats, replica)]
    assert max(chats.attempts) <= agent_routing.RetryPolicy().attempts_max
    assert max(drained_s) <= DRAIN_S_MAX
    attempts = dict(sorted(chats.attempts.items()))
    print(  # noqa: T201 - the figures
        f"\nrolling restart: {len(drained_s)} replicas replaced under {CALLERS} callers, "
        f"{chats.calls:,} calls, 0 failed; messages by attempts {attempts}; drain at most "
        f"{max(drained_s):.2f} s, median {statistics.median(drained_s):.2f} s"
    )


@on_one_engine
@pytest.mark.timeout(180)
async def test_watch_goes_on_at_another_replica_where_its_own_was_killed(shared_store):
    """Every change once and in order, from any replica."""
    seen = []
    async with (
        serving_replicas(shared_store.url, DESK, 2) as replicas,
        replicas.client(timeout=30) as writer,
        replicas.client(timeout=30) as reader,
    ):
        await writer.route("hello", session_id="watched", user_id="ana")

        async def watch():
            async for change in reader.watch_session("watched", user_id="ana", after_revision=0):
                seen.append(change.revision)
                if change.revision == 30:
                    return

        watching = asyncio.create_task(watch())
        for revision in range(2, 31):
            await writer.route("more", session_id="watched", user_id="ana")
            if revision in (10, 20):
                replica = replicas.replicas[revision // 10 - 1]
                await replica.kill()
                await replica.start()
        await asyncio.wait_for(watching, 60)
    assert seen == list(range(1, 31))
