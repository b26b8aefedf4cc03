"""Three replicas on one store, killed and restarted while 16 clients write the same sessions.

The clients' answers are checked for one order of each session's changes, and against the store.
"""

import asyncio
import os
import random
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from tests.replicas.crowd import Crowd
from tests.replicas.replica_set import serving_replicas
from tests.rpc.registries import DESK
from tests.torture.stored_sessions import violations

SEED = int(os.environ.get("TORTURE_SEED", "20261122"))
REPLICAS = 3
CLIENTS = 16
SESSIONS = 20

ROOMY = DESK.replace("open_turns: 4", "open_turns: 16")


class Killer:
    """Kills one replica after the other, and restarts each."""

    def __init__(self, replicas, dice):
        self.replicas = replicas
        self.dice = dice
        self.kills = 0

    async def run(self, pause_s_max):
        """Kill until cancelled; never two at once, so that one always answers."""
        while True:
            await asyncio.sleep(self.dice.uniform(0.2, pause_s_max))
            replica = self.dice.choice(self.replicas)
            await replica.kill()
            self.kills += 1
            await replica.start()


async def histories_under_kills(store, *, rounds, steps, kills, pause_s_max):
    """Play rounds until there were enough kills; return the figures."""
    dice = random.Random(SEED)
    async with AsyncExitStack() as opened:
        replicas = await opened.enter_async_context(serving_replicas(store.url, ROOMY, REPLICAS))
        clients = []
        for _ in range(CLIENTS):
            # A different order for each, so that they start with different replicas.
            paths = [str(each.path) for each in replicas.replicas]
            dice.shuffle(paths)
            client = replicas.client("unix:" + ",".join(paths), timeout=20)
            clients.append(await opened.enter_async_context(client))
        crowd = Crowd(clients, dice)
        killer = Killer(replicas.replicas, random.Random(SEED + 1))
        killing = asyncio.create_task(killer.run(pause_s_max))
        played = 0
        try:
            while played < rounds or killer.kills < kills:
                await crowd.round(f"{SEED}-{played}", sessions=SESSIONS, steps=steps)
                played += 1
                if killing.done():
                    killing.result()
            # All of them in one session: replicas keep finding each other's changes.
            await crowd.round(f"{SEED}-all", sessions=1, steps=steps)
        finally:
            killing.cancel()
            await asyncio.gather(killing, return_exceptions=True)
    history = crowd.recorder.history
    wrong = await violations(store.url, history)
    figures = {
        "engine": store.engine,
        "seed": SEED,
        "histories": len({call.session for call in history}),
        "calls": len(history),
        "answered": crowd.answered,
        "kills": killer.kills,
        "refused": crowd.refused,
        "repeats_answered": crowd.repeated,
        "calls_sent_again_by_the_client": sum(call.attempts > 1 for call in history),
        "errors_seen": len(crowd.errors),
        "violations": len(wrong),
    }
    print(f"replicas under kills: {figures}")  # noqa: T201 - the figures are what the run is for
    assert crowd.errors == [], Counter(map(repr, crowd.errors)).most_common(5)
    assert wrong == [], wrong[:10]
    return figures


@pytest.mark.timeout(300)
async def test_replicas_killed_under_load_lose_repeat_and_reorder_nothing(shared_store):
    """The short version of the next one."""
    figures = await histories_under_kills(
        shared_store, rounds=2, steps=12, kills=2, pause_s_max=0.4
    )
    assert figures["histories"] >= 2 * SESSIONS
    assert figures["kills"] >= 2


@pytest.mark.torture
@pytest.mark.timeout(3600)
async def test_five_hundred_histories_of_replicas_killed_under_load_are_linearisable(shared_store):
    """500 on each engine, with a kill every second or so: nothing lost, repeated or out of order.

    No client with default retries sees an error.
    """
    figures = await histories_under_kills(
        shared_store, rounds=25, steps=20, kills=25, pause_s_max=2
    )
    assert figures["histories"] >= 25 * SESSIONS
    assert figures["calls_sent_again_by_the_client"] > 0
