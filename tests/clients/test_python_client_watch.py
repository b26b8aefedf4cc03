"""A watch yields every change once and in order, over any number of connections."""

import asyncio
import contextlib
import itertools
import logging
import time

import grpc
import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

import agent_routing
from agent_routing import errors
from agent_routing.calls import CallSettings
from agent_routing.retry import RetryPolicy
from agent_routing.v1.routing_service_pb2 import WatchSessionRequest, WatchSessionResponse
from agent_routing.v1.session_event_pb2 import Change, Heartbeat
from agent_routing.watching import AWAY_S_DEFAULT, Watch
from routing_service.server.server import RoutingServer
from routing_service.settings.settings import Settings
from tests.rpc.live_service import serving
from tests.rpc.registries import DESK


@pytest.fixture
async def desk(tmp_path):
    """A help desk: front routes, sales and support stick."""
    async with serving(tmp_path, DESK) as running:
        yield running


async def take(client, count, *args, **kwargs):
    """Watch until a number of changes arrived; return their revisions and kinds of events."""
    watch = client.client.watch_session(*args, user_id="ana", **kwargs)
    if hasattr(watch, "__aiter__"):
        changes = []
        async with contextlib.aclosing(watch):
            async for change in watch:
                changes.append(change)
                if len(changes) == count:
                    break
    else:

        def block():
            with contextlib.closing(watch):
                return list(itertools.islice(watch, count))

        changes = await asyncio.to_thread(block)
    return [
        (change.revision, [event.WhichOneof("kind") for event in change.events])
        for change in changes
    ]


async def talk(client, count, session_id="chat-42"):
    """Make a number of changes, one at a time."""
    for number in range(count):
        await client.route(f"message {number}", session_id=session_id, user_id="ana")


async def until_watched(desk, count):
    """Wait until the server has this number of watches."""
    async with asyncio.timeout(10):
        while desk.server.watches != count:  # noqa: ASYNC110 - the server does not announce it
            await asyncio.sleep(0.01)


async def test_changes_arrive_as_they_happen(connect, desk):
    """A user interface shows the new agent without polling."""
    client = connect(desk.server.address)
    await talk(client, 1)
    watching = asyncio.create_task(take(client, 2, "chat-42"))
    await until_watched(desk, 1)
    await client.set_active_agent("chat-42", "sales", user_id="ana")
    await client.clear_active_agent("chat-42", user_id="ana")
    changes = await asyncio.wait_for(watching, 10)
    assert [revision for revision, _ in changes] == [2, 3]
    assert "agent_handoff" in changes[0][1]
    assert "agent_cleared" in changes[1][1]


async def test_a_watcher_that_comes_back_gets_what_it_missed(connect, desk):
    """From any revision, including the beginning."""
    client = connect(desk.server.address)
    await talk(client, 5)
    for seen in (0, 1, 4):
        changes = await take(client, 5 - seen, "chat-42", after_revision=seen)
        assert [revision for revision, _ in changes] == list(range(seen + 1, 6))
    assert "session_started" in (await take(client, 1, "chat-42", after_revision=0))[0][1]


async def test_leaving_a_watch_ends_it_on_the_server(connect, desk):
    """A page that was closed must not hold a stream."""
    client = connect(desk.server.address)
    await talk(client, 2)
    await take(client, 1, "chat-42", after_revision=0)
    await until_watched(desk, 0)


async def test_a_watch_outlives_restarts_without_a_gap(tmp_path, connect, caplog):
    """The service restarts twice; each change is yielded once."""
    caplog.set_level(logging.DEBUG, "agent_routing")
    agents = tmp_path / "desk.yaml"
    await asyncio.to_thread(agents.write_text, DESK, encoding="utf-8")

    async def start(port):
        return await RoutingServer.start(
            Settings(
                listen=f"127.0.0.1:{port}",
                store=f"sqlite:///{tmp_path / 'watched.db'}",
                agents=str(agents),
            )
        )

    patience = RetryPolicy(attempts_max=40, backoff_first_s=0.1, backoff_max_s=0.3)
    server = await start(0)
    try:
        client = connect(server.address, retry=patience, timeout=20)
        await talk(client, 2)
        watching = asyncio.create_task(take(client, 8, "chat-42", after_revision=0))
        for _ in range(2):
            await talk(client, 1)
            caplog.clear()
            await server.stop(0)
            async with asyncio.timeout(10):
                while "watch_resumed" not in caplog.text:  # noqa: ASYNC110 - only the log shows it
                    await asyncio.sleep(0.01)
            server = await start(server.port)
            await talk(client, 2)
        changes = await asyncio.wait_for(watching, 20)
        assert [revision for revision, _ in changes] == list(range(1, 9))
    finally:
        await server.stop(0)


async def test_a_refusal_ends_the_watch(connect, desk):
    """Connecting again would not help."""
    client = connect(desk.server.address)
    with pytest.raises(errors.UnknownSession):
        await take(client, 1, "never-seen")
    await talk(client, 1)
    with pytest.raises(errors.InvalidField) as refused:
        await take(client, 1, "chat-42", after_revision=17)
    assert refused.value.fields == ("after_revision",)
    with pytest.raises(errors.InvalidField) as refused:
        await take(client, 1, "chat-42", heartbeat_interval=0.5)
    assert refused.value.fields == ("heartbeat_interval",)
    with pytest.raises(ValueError, match="away_timeout"):
        await take(client, 1, "chat-42", away_timeout=0)


async def test_a_service_that_stays_away_ends_the_watch(connect, service):
    """The watcher must learn that it no longer sees changes."""
    service.stop()
    began = time.monotonic()
    with pytest.raises(errors.Unavailable, match="cannot be reached"):
        await take(connect(), 1, "chat-42", away_timeout=0.5)
    # Well before the default, on a busy machine too.
    assert 0.3 < time.monotonic() - began < AWAY_S_DEFAULT / 2


async def test_closing_the_client_ends_its_watches(connect, desk):
    """With an error, and not as if the task had been cancelled."""
    client = connect(desk.server.address)
    await talk(client, 1)
    watching = asyncio.create_task(take(client, 1, "chat-42"))
    await until_watched(desk, 1)
    await client.close()
    with pytest.raises(RuntimeError, match="is closed"):
        await asyncio.wait_for(watching, 10)


async def test_a_cancelled_task_ends_its_watch(desk):
    """Like any other waiting task."""
    async with agent_routing.AsyncClient(desk.server.address) as client:
        await client.route("hello", session_id="chat-42", user_id="ana")

        async def watch():
            async for _ in client.watch_session("chat-42", user_id="ana"):
                pass

        watching = asyncio.create_task(watch())
        await until_watched(desk, 1)
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
        await until_watched(desk, 0)


class Ended(grpc.RpcError):
    """How a stream ended."""

    def __init__(self, code, reason=""):
        super().__init__()
        self._code = code
        status = Status()
        if reason:
            status.details.add().Pack(ErrorInfo(reason=reason, domain="agent_routing"))
        self._trailing = (("grpc-status-details-bin", status.SerializeToString()),)

    def code(self):
        return self._code

    def details(self):
        return "ended"

    def trailing_metadata(self):
        return self._trailing


class Clock:
    """A clock that the test moves."""

    now_s = 0.0

    def __call__(self):
        """Return the time."""
        return self.now_s


def a_watch(after_revision=None, away_s_max=60.0, clock=time.monotonic):
    """Return a watch that has connected once."""
    settings = CallSettings(
        target="here",
        timeout_s=5,
        metadata=(),
        retry=RetryPolicy(backoff_first_s=0.001),
        known=None,
    )
    watch = Watch(settings, WatchSessionRequest(after_revision=after_revision), away_s_max, clock)
    watch.connect()
    return watch


def heartbeat(revision):
    """A heartbeat."""
    return WatchSessionResponse(heartbeat=Heartbeat(revision=revision))


def change(revision):
    """A change."""
    return WatchSessionResponse(change=Change(revision=revision))


def place(watch):
    """Return the revision of the next connection; None: only new changes."""
    request = watch.connect()
    return request.after_revision if request.HasField("after_revision") else None


def test_the_first_heartbeat_skips_nothing_that_was_asked_for():
    """It carries the session's revision; the changes up to it are still to come."""
    watch = a_watch(after_revision=5)
    assert watch.received(heartbeat(10)) is None
    assert place(watch) == 5
    watch.received(heartbeat(10))
    assert watch.received(change(6)).revision == 6
    assert place(watch) == 6


def test_from_now_on_begins_at_the_first_heartbeat():
    """Changes during a lost connection belong to the watch."""
    watch = a_watch()
    assert place(watch) is None
    watch.received(heartbeat(10))
    assert place(watch) == 10


def test_later_heartbeats_move_the_place_on():
    """Changes that this client may not see are not requested again."""
    watch = a_watch(after_revision=5)
    watch.received(heartbeat(8))
    watch.received(change(6))
    watch.received(heartbeat(8))
    assert place(watch) == 8


def test_what_a_newer_service_sends_is_skipped():
    """An unset kind is one that this release does not know."""
    watch = a_watch(after_revision=5)
    assert watch.received(WatchSessionResponse()) is None
    assert place(watch) == 5


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN"),
        (grpc.StatusCode.UNAVAILABLE, "STORE_UNAVAILABLE"),
        (grpc.StatusCode.UNAVAILABLE, ""),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "WATCH_TOO_SLOW"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED"),
        (grpc.StatusCode.CANCELLED, ""),
    ],
)
def test_a_watch_goes_on_after_whatever_passes(code, reason):
    """The reader was slow, the server full or about to stop: the next connection may work."""
    assert a_watch().wait_after(Ended(code, reason)) < 1


@pytest.mark.parametrize(
    ("code", "reason", "error"),
    [
        (grpc.StatusCode.OUT_OF_RANGE, "REVISION_COMPACTED", errors.RevisionCompacted),
        (grpc.StatusCode.PERMISSION_DENIED, "OWNER_MISMATCH", errors.OwnerMismatch),
        (grpc.StatusCode.DATA_LOSS, "STATE_CORRUPT", errors.StateCorrupt),
        (grpc.StatusCode.UNIMPLEMENTED, "", errors.Unimplemented),
    ],
)
def test_a_watch_ends_with_a_refusal(code, reason, error):
    """The error says what to do instead."""
    with pytest.raises(error) as raised:
        a_watch().wait_after(Ended(code, reason))
    assert raised.value.method == "WatchSession"


def test_streams_that_end_without_a_word_do_not_go_on_for_ever():
    """Otherwise a proxy that cuts every stream would look like a quiet session."""
    clock = Clock()
    watch = a_watch(away_s_max=0.05, clock=clock)

    def go_on():
        for _ in range(1_000):
            # Each connection takes a little time as well.
            clock.now_s += watch.wait_after(None) + 0.001
            watch.connect()

    with pytest.raises(errors.Unavailable, match="is there a proxy"):
        go_on()


def test_the_time_away_is_counted_from_the_last_sign_of_life():
    """Failures of hours ago must not add up."""
    clock = Clock()
    watch = a_watch(away_s_max=0.2, clock=clock)
    for _ in range(6):
        watch.wait_after(Ended(grpc.StatusCode.UNAVAILABLE))
        clock.now_s += 0.05
        watch.connect()
        watch.received(heartbeat(1))
    clock.now_s += 0.25
    watch.wait_after(Ended(grpc.StatusCode.UNAVAILABLE))
    clock.now_s += 0.25
    with pytest.raises(errors.Unavailable):
        watch.wait_after(Ended(grpc.StatusCode.UNAVAILABLE))
