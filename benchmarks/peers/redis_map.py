"""A peer: a hand-written map from thread to agent in Redis.

Runs in an environment of its own (requirements next to it), against the Redis server at the URL in
the environment variable REDIS_URL. The active agent is one key; the turn is appended to a list. It
has no order between concurrent messages, no rules and no repeats, and is as durable as the server
is set up to be.
"""

from __future__ import annotations

import asyncio
import json
import os

import redis.asyncio
from story import (
    AGENT_TEXT,
    SPECIALIST,
    SUPERVISOR,
    USER_TEXT,
    Load,
    Result,
    Stopwatch,
    load_from_arguments,
    tell,
)


async def turn(client: redis.asyncio.Redis, thread: str) -> str:
    """Route one message and store the turn; return the agent that answered."""
    agent = await client.get(f"agent:{thread}") or SUPERVISOR
    if agent == SUPERVISOR:
        agent = SPECIALIST  # The supervisor hands over.
        await client.set(f"agent:{thread}", agent)
    said = json.dumps({"user": USER_TEXT, "agent": agent, "text": AGENT_TEXT})
    await client.rpush(f"turns:{thread}", said)
    return agent


async def play(load: Load) -> Result:
    """Play the load with so many sessions at once."""
    client = redis.asyncio.Redis.from_url(os.environ["REDIS_URL"], decode_responses=True)
    places = asyncio.Semaphore(load.concurrency)
    await client.flushall()

    async def converse(number: int) -> None:
        async with places:
            for _ in range(load.turns_per_session):
                assert await turn(client, str(number)) == SPECIALIST

    with Stopwatch() as watch:
        await asyncio.gather(*(converse(number) for number in range(load.sessions)))
    await client.aclose()
    return Result(load.turns, watch.seconds)


if __name__ == "__main__":
    tell(asyncio.run(play(load_from_arguments())))
