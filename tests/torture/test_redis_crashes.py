"""Three replicas on one Redis that is killed and hung during writes.

Checked: every acknowledged write is there once, a task id has one session, and a reader that
followed the log has every change, in order within a session.
"""

import asyncio
import random
import signal

import pytest

from routing_service.storage.open_store import open_store, redis_place
from routing_service.storage.redis.bounds import RedisBounds
from routing_service.storage.redis.keys import Keys
from routing_service.storage.redis.store import open_redis_store
from routing_service.storage.store import (
    CURSOR_START,
    RequestSeen,
    RevisionConflict,
    StoreUnavailable,
    TaskTaken,
)
from tests.engines.appends import append, key, task

pytestmark = [pytest.mark.torture, pytest.mark.timeout(600)]

SESSIONS = 24
WANTED_TIMES = 12
"""How often a task id is wanted before it is the next one's turn: by several at once, while it is
new."""

WRITERS = 8
"""Of each replica."""
BLOWS = 8
PREFIX = "agent-routing"


class World:
    """The replicas' answers, for the comparison at the end."""

    def __init__(self, seed):
        self.dice = random.Random(seed)
        self.stored = {}
        """Request id: session and revision, of each append that was acknowledged."""
        self.owners = {}
        """Task id: session, of each task that an acknowledged append has."""
        self.outcomes = {}
        self._wanted = 0
        self.over = False
        """No new work is begun."""
        self.written = False
        """All writers have ended."""

    def next_task(self):
        """Return the task id that other writers request now, too."""
        self._wanted += 1
        return f"task-{self._wanted // WANTED_TIMES}"


async def write(world, store, name):
    """Append to any of the sessions, some with a shared task id; repeat failed appends."""
    count = 0
    while not world.over:
        count += 1
        number, has_task = world.dice.randrange(SESSIONS), world.dice.random() < 0.5
        request_id = f"{name}-{count}"
        tasks = (task(number, world.next_task()),) if has_task else ()
        while not world.over:
            try:
                base = await store.head_revision(key(number))
                new = append(number, base, request_id=request_id, tasks=tasks)
                await store.append(new)
                revision = base + 1
            except RevisionConflict:
                continue
            except TaskTaken:
                world.outcomes["taken"] = world.outcomes.get("taken", 0) + 1
                break
            except RequestSeen as seen:
                world.outcomes["found"] = world.outcomes.get("found", 0) + 1
                revision = seen.change.revision
            except StoreUnavailable:
                world.outcomes["away"] = world.outcomes.get("away", 0) + 1
                await asyncio.sleep(0.05)
                continue
            world.stored[request_id] = (number, revision)
            if has_task:
                owner = world.owners.setdefault(tasks[0].task_id, number)
                assert owner == number, tasks
            break


async def follow(world, store, found):
    """Follow the log to its end."""
    cursor = CURSOR_START
    while True:
        done = world.written
        try:
            page, cursor = await store.read_log(cursor, 50)
        except StoreUnavailable:
            await asyncio.sleep(0.05)
            continue
        found += [(name, change.revision, change.request_id) for name, change in page]
        if done and not page:
            return
        if not page:
            await asyncio.sleep(0.01)


async def strike(world, server):
    """Repeatedly kill the server, or hang it for longer than any timeout."""
    for _ in range(BLOWS):
        await asyncio.sleep(world.dice.uniform(0.5, 2))
        blow = world.dice.choice(["kill", "end", "hang", "flush scripts"])
        match blow:
            case "kill":
                await asyncio.to_thread(server.restart, signal.SIGKILL)
            case "end":
                await asyncio.to_thread(server.restart, signal.SIGTERM)
            case "hang":
                server.freeze()
                await asyncio.sleep(world.dice.uniform(0.5, 4))
                server.thaw()
            case _:
                with server.client() as client:
                    client.script_flush()
    await asyncio.sleep(1)


@pytest.mark.parametrize(("seed", "claim_wait_s"), [(1, 0.25), (2, 0.25), (3, 0.0), (4, 0.0)])
async def test_nothing_is_lost_doubled_or_shared_over_crashes(own_redis, seed, claim_wait_s):
    """A failure prints its seed. Without a wait, every incomplete claim is fenced off."""
    with own_redis.client() as client:
        client.flushall()
    world = World(seed)
    place = redis_place(own_redis.url("call_timeout_s=1&connect_timeout_s=1"))
    bounds = RedisBounds(claim_wait_s=claim_wait_s)
    replicas = [await open_redis_store(place, bounds=bounds) for _ in range(3)]
    followed = []
    following = asyncio.create_task(follow(world, replicas[0], followed))
    writing = [
        asyncio.create_task(write(world, store, f"{place}-{number}"))
        for place, store in enumerate(replicas)
        for number in range(WRITERS)
    ]
    await strike(world, own_redis)
    world.over = True
    await asyncio.gather(*writing)
    world.written = True
    await following
    for store in replicas:
        await store.close()
    assert len(world.stored) > 100
    assert world.outcomes["away"] > 0

    await asyncio.to_thread(own_redis.restart, signal.SIGKILL)
    store = await open_store(own_redis.url())
    all_tasks = {}
    for number in range(SESSIONS):
        changes, after = [], 0
        while page := await store.read_changes(key(number), after=after, limit=1_000):
            changes += page
            after = page[-1].revision
        head = await store.load(key(number))
        assert [change.revision for change in changes] == list(range(1, len(changes) + 1))
        assert head is None or head.revision == len(changes)
        assert head is None or head.state == b"state %d" % len(changes)
        requests = {change.request_id: change.revision for change in changes}
        assert len(requests) == len(changes), "a request was stored twice"
        for request_id, (owner, revision) in world.stored.items():
            assert owner != number or requests[request_id] == revision
        in_log = [(rev, request) for name, rev, request in followed if name == key(number)]
        assert in_log == [(change.revision, change.request_id) for change in changes]
        for row in await store.list_tasks(key(number), limit=1_000):
            assert row.task_id not in all_tasks, "a task id has two sessions"
            all_tasks[row.task_id] = number
            assert await store.find_task("acme", row.task_id) == row
    assert world.owners.items() <= all_tasks.items()
    await store.close()
    with own_redis.client() as client:
        counted = sum(int(client.get(name) or 0) for name in Keys(PREFIX).counters)
    assert counted == len(followed)
