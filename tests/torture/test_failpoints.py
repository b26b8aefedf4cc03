"""A failure at each point of a write: the write happened completely or not at all, and once.

Each test sends a few writes. One of them meets the failpoint and is repeated with its request id
until it is answered; a reader and a watcher run all the time. Checked: the history is linearisable,
the store equals its replay, the watcher saw each revision once and in order, and the repeat was a
repeat only if the first attempt had been committed.
"""

import asyncio
import tempfile
from contextlib import aclosing
from pathlib import Path

import pytest

import agent_routing
from routing_service.ids import new_uuid7
from tests.rpc.live_service import serving
from tests.rpc.registries import DESK
from tests.torture import failpoints
from tests.torture.linearisability import check
from tests.torture.recorder import REFUSALS, Recorder, stored_changes
from tests.torture.server_process import SPOILT, ServerProcess
from tests.torture.stored_sessions import contradictions, violations

COMMITTED = ("append.committed", "acknowledge", "publish", "published", "answer")
"""Whoever comes here has committed: a repeat finds the first answer."""

HIT = 3
"""The write that meets the failpoint, counted from 1 once the server serves."""

SESSION = "chat-1"


def quick_client(address):
    """A client that reconnects quickly, and does not repeat calls."""
    return agent_routing.AsyncClient(
        address,
        timeout=20,
        retry=agent_routing.RetryPolicy(attempts_max=1),
        fallback=None,
        options=[("grpc.max_reconnect_backoff_ms", 200)],
    )


async def settle(send, again):
    """Send until answered; again is awaited before each repeat."""
    while True:
        try:
            return await send()
        except agent_routing.RoutingError as error:
            if error.code in REFUSALS:
                raise
        await again()


async def writes(client, again, count=5):
    """Make a session's writes one after the other, each until it is answered."""
    for number in range(count):
        request_id = new_uuid7()

        async def send(number=number, request_id=request_id):
            return await client.route(
                f"message {number}", session_id=SESSION, request_id=request_id
            )

        answer = await settle(send, again)
        assert answer.revision == number + 1


async def reads(client, done):
    """Read the session until stopped; the answers are checked later."""
    while not done.is_set():
        try:
            await client.status(SESSION)
        except agent_routing.RoutingError:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.001)


async def watched(client, last):
    """Watch the session from its first to its last change, over reconnections."""
    seen = []
    while True:
        try:
            async with aclosing(
                client.client.watch_session(SESSION, after_revision=seen[-1] if seen else 0)
            ) as changes:
                async for change in changes:
                    seen.append(change.revision)
                    if change.revision >= last:
                        return seen
        except agent_routing.RoutingError:
            await asyncio.sleep(0.02)


async def talk_and_look(address, again, count=5):
    """Write, read and watch concurrently; return the history."""
    recorder = Recorder()
    done = asyncio.Event()
    async with quick_client(address) as plain:
        client = recorder.wrap(plain)
        reading = asyncio.create_task(reads(client, done))
        watching = asyncio.create_task(watched(client, count))
        try:
            await writes(client, again, count)
            done.set()
            await reading
            assert await asyncio.wait_for(watching, 30) == list(range(1, count + 1))
        finally:
            reading.cancel()
            watching.cancel()
            await asyncio.gather(reading, watching, return_exceptions=True)
    return recorder.history


def repeats(history):
    """Return whether the repeated write was answered as a repeat, or None."""
    tries = [call for call in history if call.request_id]
    by_id = {}
    for call in tries:
        by_id.setdefault(call.request_id, []).append(call)
    repeated = [calls for calls in by_id.values() if len(calls) > 1]
    assert len(repeated) <= 1
    return repeated[0][-1].replayed if repeated else None


async def nothing():
    """Repeat at once."""
    await asyncio.sleep(0)


@pytest.mark.parametrize("point", failpoints.POINTS)
async def test_error_at_a_point_leaves_the_write_whole_or_undone(tmp_path, point):
    """A disk failure, a store failure or a bug: the caller repeats and gets the result."""
    with failpoints.installed(f"{point}=error@{HIT}") as points:
        async with serving(tmp_path, DESK) as service:
            points.armed = True
            history = await talk_and_look(service.server.address, nothing)
            assert check(history, await stored_changes(service.store)) == []
            assert await contradictions(service.store) == []
            assert len(service.observer.failures) == 1
            # The test caused this failure; serving() must see no other.
            service.observer.failures.clear()
            service.observer.calls[:] = [c for c in service.observer.calls if c.code == "OK"]
    assert points.met[point] >= HIT
    assert repeats(history) is (point in COMMITTED)


@pytest.mark.parametrize("point", failpoints.POINTS)
async def test_delay_at_a_point_delays_and_does_no_more(tmp_path, point):
    """Readers and watchers see what is committed; the checker compares."""
    with failpoints.installed(f"{point}=delay:0.15@{HIT}") as points:
        async with serving(tmp_path, DESK) as service:
            points.armed = True
            history = await talk_and_look(service.server.address, nothing)
            assert check(history, await stored_changes(service.store)) == []
    assert points.met[point] >= HIT
    assert repeats(history) is None
    slowest = max(
        (call for call in history if call.request_id),
        key=lambda call: call.response_ns - call.invoke_ns,
    )
    assert slowest.response_ns - slowest.invoke_ns >= 0.15e9


@pytest.mark.parametrize("point", ["append.begin", "append.insert", "append.commit"])
async def test_nothing_is_told_of_a_write_before_its_commit(tmp_path, point):
    """While the commit is blocked there is no answer, and no reader or watcher sees the write."""
    with failpoints.installed(f"{point}=delay:50@2") as points:
        async with (
            serving(tmp_path, DESK) as service,
            quick_client(service.server.address) as client,
        ):
            # With an owner: a watch of a session without one first reads who owns it.
            await client.route("first", session_id=SESSION, user_id="ana")
            heard = []

            async def listen():
                async for change in client.watch_session(SESSION, after_revision=0):
                    heard.append(change.revision)
                    if change.revision == 2:
                        return

            listening = asyncio.create_task(listen())
            await until(lambda: heard == [1])
            points.armed, points.met[point] = True, 1
            writing = asyncio.create_task(client.route("second", session_id=SESSION, user_id="ana"))
            try:
                await until(lambda: points.met[point] == 2)
                # Time for a message that must not come.
                await asyncio.sleep(0.1)
                assert not writing.done()
                assert heard == [1]
                assert await service.store.head_revision(service.chat(SESSION).key) == 1
            finally:
                points.released.set()
            assert (await writing).revision == 2
            await asyncio.wait_for(listening, 30)
            assert heard == [1, 2]


async def until(condition):
    """Poll for something that another thread does."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - there is no event that it could set
            await asyncio.sleep(0.001)


async def crash_at(points):
    """Let servers die at a point, one after the other; return store and history checks."""
    with tempfile.TemporaryDirectory(prefix="routing-") as name:
        for number, point in enumerate(points):
            folder = Path(name) / str(number)
            folder.mkdir()
            (folder / "agents.yaml").write_text(DESK, "utf-8")
            spec = {"TORTURE_FAILPOINTS": f"{point}=crash@{HIT}"}
            server = ServerProcess(folder, folder / "agents.yaml", SPOILT, spec)
            await server.start()
            crashes = []

            async def again(server=server, crashes=crashes):
                if await has_died(server):
                    crashes.append(await server.wait())
                    server.environment = {}
                    await server.start()

            try:
                history = await talk_and_look(server.address, again)
            finally:
                await server.kill()
            assert crashes == [-9]
            assert await violations(f"sqlite:///{server.store_path}", history) == []
            assert repeats(history) is (point in COMMITTED), point


async def has_died(server):
    """Say whether a server has died; a call may fail a moment before its process ends."""
    for _ in range(50):
        if not server.is_running:
            return True
        await asyncio.sleep(0.01)
    return False


@pytest.mark.timeout(300)
async def test_server_that_dies_around_the_commit_has_the_write_or_not():
    """The short version: just before the commit, and just after."""
    await crash_at(["append.commit", "append.committed"])


@pytest.mark.torture
@pytest.mark.timeout(900)
async def test_server_that_dies_at_any_point_has_the_write_or_not():
    """At each point: the repeat learns the result, and nothing is lost or applied twice."""
    await crash_at(failpoints.POINTS)


def test_specification_that_cannot_be_read_is_refused():
    """A misspelt point would test nothing."""
    assert failpoints.parse("append.commit=crash@3;publish=delay:0.2") == (
        failpoints.Failpoint("append.commit", "crash", 0.0, 3),
        failpoints.Failpoint("publish", "delay", 0.2, 1),
    )
    for text in ("commit=crash", "publish=explode", "publish", "publish=error@x"):
        with pytest.raises(ValueError, match="is no failpoint"):
            failpoints.parse(text)
