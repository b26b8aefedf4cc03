import asyncio
import contextlib
import json
import resource
import signal
import socket
import sqlite3
import time
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from agent_routing.v1 import routing_service_pb2, routing_service_pb2_grpc
from routing_service.examples import EXAMPLES
from routing_service.ids import new_uuid7
from routing_service.registry.file import RegistryFileError
from routing_service.rpc.health import READINESS
from routing_service.server.server import RoutingServer
from routing_service.settings.listen_address import ListenFailed
from routing_service.settings.rules import SettingsInvalid
from routing_service.settings.settings import Settings
from routing_service.storage.memory_store import MemoryStore
from routing_service.storage.store import StoreError, StoreUnavailable
from routing_service.telemetry.log_privacy import IdHashes, read_key
from tests.rpc.live_service import refusal, went

TAX = str(EXAMPLES["tax"].registry_path)

# The statuses of calls that a stopping server did not take. gRPC's core sends CANCELLED for calls
# that had arrived but were not yet read.
NOT_TAKEN = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}


class HeldStore(MemoryStore):
    """A store that holds appends until the test releases them."""

    def __init__(self):
        super().__init__()
        self.waiting = 0
        self.go = asyncio.Event()
        self.closed = False

    async def append(self, append):
        self.waiting += 1
        await self.go.wait()
        await super().append(append)

    async def held(self, count):
        """Wait until this many appends are held."""
        async with asyncio.timeout(10):
            while self.waiting < count:  # noqa: ASYNC110 - counted by the server's own calls
                await asyncio.sleep(0.005)

    async def close(self):
        self.closed = True
        await super().close()


async def start(tmp_path, store=None, **settings):
    """Start a server, over the given store if there is one."""

    async def opener(_url):
        return store

    given = {"listen": "127.0.0.1:0", "agents": TAX, "store": f"sqlite:///{tmp_path}/r.db"}
    options = {} if store is None else {"store_opener": opener}
    return await RoutingServer.start(Settings(**(given | settings)), **options)


def route(channel, session_id, text="hola"):
    """Send a message."""
    stub = routing_service_pb2_grpc.RoutingServiceStub(channel)
    request = routing_service_pb2.RouteRequest(session_id=session_id, user_id="ana", text=text)
    return stub.Route(request, timeout=20)


# --- starting ---


async def test_port_0_takes_a_free_port_and_says_which(tmp_path):
    """So tests and development servers can run side by side."""
    server = await start(tmp_path)
    try:
        assert server.port > 0
        assert server.address == f"127.0.0.1:{server.port}"
        async with grpc.aio.insecure_channel(server.address) as channel:
            assert (await route(channel, "chat-1")).revision == 1
    finally:
        await server.stop()


async def test_a_second_server_on_the_same_port_is_refused_and_leaves_nothing_open(tmp_path):
    """By default gRPC shares the port without an error, and each server gets half of the calls."""
    server = await start(tmp_path)
    try:
        with pytest.raises(ListenFailed) as caught:
            await start(tmp_path, MemoryStore(), listen=server.address)
        assert str(caught.value) == (
            f"cannot listen on {server.address}: another program listens there; stop it, or "
            "choose another port (0 takes a free one)"
        )
    finally:
        await server.stop()


async def test_a_port_that_is_taken_leaves_the_store_free(tmp_path):
    """The next attempt must not find its own store locked."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for _ in range(2):
            with pytest.raises(ListenFailed, match="another program listens there"):
                await start(tmp_path, listen=address)
    server = await start(tmp_path, listen=address)
    await server.stop()


@pytest.mark.parametrize(
    ("listen", "said"),
    [
        ("192.0.2.1:0", "does not have that address"),
        ("name.invalid:0", 'the host "name.invalid" is not known'),
        ("unix:/nowhere/at/all.sock", 'there is no folder "/nowhere/at"'),
    ],
)
async def test_an_address_that_cannot_be_had_says_why(tmp_path, listen, said):
    """The error of gRPC itself says only that binding failed."""
    with pytest.raises(ListenFailed, match=said):
        await start(tmp_path, listen=listen, insecure=True)


async def test_a_unix_socket_serves_and_is_not_taken_from_whoever_serves_on_it(tmp_path):
    """By default gRPC removes a socket in use; a socket that a killed server left is replaced."""
    path = tmp_path / "r.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    server = await start(tmp_path, listen=f"unix:{path}")
    try:
        assert (server.address, server.port) == (f"unix:{path}", 0)
        with pytest.raises(ListenFailed, match="another program listens there"):
            await start(tmp_path, MemoryStore(), listen=server.address)
        async with grpc.aio.insecure_channel(server.address) as channel:
            assert (await route(channel, "chat-1")).revision == 1
    finally:
        await server.stop()


async def test_a_file_in_the_place_of_a_unix_socket_stays(tmp_path):
    """The file may be a user's data."""
    path = tmp_path / "data"
    path.write_bytes(b"kept")
    with pytest.raises(ListenFailed, match="something that is no socket"):
        await start(tmp_path, listen=f"unix:{path}")
    assert path.read_bytes() == b"kept"


async def test_a_server_without_a_registry_does_not_start(tmp_path):
    """Without a registry there are no agents to route to."""
    with pytest.raises(SettingsInvalid, match="no registry file is named; give --agents FILE"):
        await start(tmp_path, agents="")
    with pytest.raises(RegistryFileError, match="there is no such file"):
        await start(tmp_path, agents=str(tmp_path / "agents.yaml"))
    assert not (tmp_path / "r.db").exists()


async def test_a_store_that_cannot_be_written_does_not_start(tmp_path):
    """Otherwise the first caller would get the error."""

    class Unwritable(HeldStore):
        async def probe_write(self):
            raise StoreUnavailable("the disk is full")

    store = Unwritable()
    with pytest.raises(StoreError, match="the disk is full"):
        await start(tmp_path, store)
    assert store.closed


async def test_stickiness_can_be_off_from_the_start(start_server):
    """The setting overrides the registry file."""
    for setting, expected in (("registry", "STICKY"), ("disabled", "STICKINESS_DISABLED")):
        service = await start_server(store="memory:", stickiness=setting)
        chat = await service.chat().with_agent("income_tax")
        assert went((await chat.say("and now?")).dispatch)[1] == expected


# --- stopping ---


async def test_calls_in_flight_finish_before_the_server_stops(tmp_path):
    """Accepted calls are answered; later ones are refused, so that clients go elsewhere."""
    store = HeldStore()
    server = await start(tmp_path, store)
    async with grpc.aio.insecure_channel(server.address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(service=READINESS)
        )
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        calls = [asyncio.ensure_future(route(channel, f"chat-{n}")) for n in range(40)]
        await store.held(40)
        stopping = asyncio.create_task(server.stop(10))
        # The status changes before the calls are done, because load balancers act on it.
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        async with grpc.aio.insecure_channel(server.address) as late:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await route(late, "chat-late")
        assert caught.value.code() in NOT_TAKEN
        assert not stopping.done()
        assert not store.closed
        store.go.set()
        answers = await asyncio.gather(*calls)
        assert [answer.session_id for answer in answers] == [f"chat-{n}" for n in range(40)]
        await asyncio.wait_for(stopping, 5)
    assert store.closed
    assert store.waiting == 40


async def test_streams_end_when_the_server_stops_and_what_they_took_is_answered(tmp_path):
    """Streams never end on their own; waiting for them would use up the time of other calls."""
    store = HeldStore()
    server = await start(tmp_path, store)
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = routing_service_pb2_grpc.RoutingServiceStub(channel)
        store.go.set()
        await route(channel, "chat-0")
        store.go.clear()
        watch = stub.WatchSession(
            routing_service_pb2.WatchSessionRequest(session_id="chat-0", user_id="ana")
        )
        assert (await watch.read()).heartbeat.revision == 1
        idle, busy = stub.RouteStream(), stub.RouteStream()
        for number in range(3):
            message = routing_service_pb2.RouteRequest(
                session_id=f"chat-{number}", user_id="ana", text="hola", request_id=new_uuid7()
            )
            await busy.write(routing_service_pb2.RouteStreamRequest(route=message))
        await store.held(4)
        started_s = time.monotonic()
        stopping = asyncio.create_task(server.stop(10))
        assert (await refusal(idle.read())).reason == "SHUTTING_DOWN"
        assert not stopping.done()
        store.go.set()
        answers = [await busy.read() for _ in range(3)]
        assert sorted(answer.route.session_id for answer in answers) == [
            "chat-0",
            "chat-1",
            "chat-2",
        ]
        told = await refusal(busy.read())
        assert (told.code, told.reason) == ("UNAVAILABLE", "SHUTTING_DOWN")
        await stopping
        assert time.monotonic() - started_s < 3
        assert (await refusal(watch.read())).reason == "SHUTTING_DOWN"


async def test_a_call_that_does_not_finish_is_cut_off_after_the_grace(tmp_path):
    """Otherwise the platform kills the server; the caller may repeat the call elsewhere."""
    store = HeldStore()
    server = await start(tmp_path, store)
    async with grpc.aio.insecure_channel(server.address) as channel:
        call = asyncio.ensure_future(route(channel, "chat-1"))
        await store.held(1)
        started_s = time.monotonic()
        await server.stop(0.3)
        assert 0.25 < time.monotonic() - started_s < 3
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
    assert caught.value.code() in NOT_TAKEN
    assert store.closed


async def test_the_grace_is_the_setting_unless_told_otherwise(tmp_path):
    """Operators set `drain_s` to match their platform's own kill timeout."""
    store = HeldStore()
    server = await start(tmp_path, store, drain_s=0.2)
    async with grpc.aio.insecure_channel(server.address) as channel:
        call = asyncio.ensure_future(route(channel, "chat-1"))
        await store.held(1)
        async with asyncio.timeout(5):
            await asyncio.gather(server.stop(), server.stop())
        with pytest.raises(grpc.aio.AioRpcError):
            await call


async def test_a_stopped_server_frees_its_port_and_its_store(tmp_path):
    """A restart can follow immediately."""
    first = await start(tmp_path)
    await first.stop()
    await first.stop()
    second = await start(tmp_path, listen=first.address)
    await second.stop()


async def test_sticky_agent_survives_restart(start_server, tmp_path):
    """The active agent is stored, not kept in the process."""
    first = await start_server()
    chat = await first.chat("chat-42").with_agent("income_tax")
    revision = (await chat.status()).revision
    await first.server.stop()
    second = await start_server()
    again = second.chat("chat-42")
    routed = await again.say("and the next one?")
    assert went(routed.dispatch) == ("income_tax", "STICKY")
    assert routed.revision == revision + 1


# --- the process ---


async def test_a_process_announces_itself_once_it_answers_and_says_nothing_else(serve_process):
    """Scripts wait for that line and read the address from it."""
    server = await serve_process()
    async with grpc.aio.insecure_channel(server.address) as channel:
        assert (await route(channel, "chat-1")).revision == 1
    server.send(signal.SIGTERM)
    assert await server.end() == (0, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_process_under_load_stops_within_its_time_and_loses_nothing(serve_process, number):
    """Each call is answered or refused, and none is applied without an answer.

    A refusal is one of NOT_TAKEN.
    """
    server = await serve_process(drain_s=5)
    answered, refused = [], []

    async def caller(channel, name):
        for turn in range(1_000_000):
            session_id = f"{name}-{turn}"
            try:
                await route(channel, session_id)
            except grpc.aio.AioRpcError as error:
                refused.append(error.code())
                return
            answered.append(session_id)

    async with grpc.aio.insecure_channel(server.address) as channel:
        callers = [asyncio.create_task(caller(channel, f"c{n}")) for n in range(16)]
        async with asyncio.timeout(20):
            while len(answered) < 200:  # noqa: ASYNC110 - counted by the callers
                await asyncio.sleep(0.01)
        server.send(number)
        started_s = time.monotonic()
        assert await server.end() == (0, "")
        assert time.monotonic() - started_s < 5
        await asyncio.gather(*callers)
    assert set(refused) <= NOT_TAKEN
    lines = [json.loads(line) for line in server.text.splitlines()]
    carried_out = [line["session_id"] for line in lines if line["event"] == "decision"]
    assert sorted(carried_out) == sorted(answered)
    assert {line["event"] for line in lines if line["level"] != "info"} == {"nobody_signs_in"}

    again = await serve_process()
    async with grpc.aio.insecure_channel(again.address) as channel:
        stub = routing_service_pb2_grpc.RoutingServiceStub(channel)
        for session_id in answered:
            status = await stub.Status(routing_service_pb2.StatusRequest(session_id=session_id))
            assert status.revision == 1, session_id


async def test_a_killed_process_loses_nothing_that_it_answered(serve_process):
    """An answer is sent only after the disk has it."""
    server = await serve_process()
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = routing_service_pb2_grpc.RoutingServiceStub(channel)
        await route(channel, "chat-42")
        handoff = routing_service_pb2.SetActiveAgentRequest(
            session_id="chat-42", user_id="ana", agent_id="income_tax", initiator="INITIATOR_USER"
        )
        await stub.SetActiveAgent(handoff)
        server.send(signal.SIGKILL)
        assert (await server.end())[0] == -signal.SIGKILL
    again = await serve_process()
    async with grpc.aio.insecure_channel(again.address) as channel:
        routed = await route(channel, "chat-42", "and now?")
    assert went(routed.dispatch) == ("income_tax", "STICKY")
    assert routed.revision == 3


async def test_a_second_interrupt_ends_the_process_at_once(serve_process, tmp_path):
    """A second Ctrl-C means that the user does not want to wait."""
    server = await serve_process(drain_s=60)
    database = sqlite3.connect(tmp_path / "routing.db", isolation_level=None)
    try:
        # Another program locks the file, so that a call in flight delays the stop.
        database.execute("BEGIN IMMEDIATE")
        async with grpc.aio.insecure_channel(server.address) as channel:
            call = asyncio.ensure_future(route(channel, "chat-1"))
            await asyncio.sleep(0.3)
            server.send(signal.SIGINT)
            await server.logged("server_draining")
            assert server.process.returncode is None
            started_s = time.monotonic()
            server.send(signal.SIGINT)
            assert (await server.end())[0] == 130
            assert time.monotonic() - started_s < 2
            with pytest.raises(grpc.aio.AioRpcError):
                await call
    finally:
        database.close()


async def test_a_hangup_reads_the_registry_again(serve_process, tmp_path):
    """SIGHUP reloads the registry, as operators' tools expect."""
    agents = tmp_path / "agents.yaml"
    text = EXAMPLES["tax"].registry_path.read_text(encoding="utf-8")
    agents.write_text(text, encoding="utf-8")
    server = await serve_process(agents=agents)
    agents.write_text(text.replace("version: 1", "version: after-hangup"), encoding="utf-8")
    server.send(signal.SIGHUP)
    await server.logged("registry_reloaded")
    assert "after-hangup" in server.text
    server.send(signal.SIGTERM)
    exit_code, _ = await server.end()
    assert exit_code == 0


@pytest.mark.parametrize(
    ("flags", "exit_code", "said"),
    [
        (["--agents=nowhere.yaml"], 2, "error: nowhere.yaml:"),
        ([], 2, "error: no registry file is named; give --agents FILE"),
        (["--listen=0.0.0.0:1"], 2, 'error: listen is "0.0.0.0:1" (flag --listen), which others'),
        ([f"--agents={TAX}", "--store=mysql://db"], 2, 'names the unknown engine "mysql"'),
        ([f"--agents={TAX}", "--store=sqlite:////proc/x/r.db"], 1, "cannot be made ready"),
        ([f"--agents={TAX}", "--listen=192.0.2.1:1", "--insecure"], 1, "cannot listen on"),
    ],
)
async def test_a_process_that_cannot_serve_says_why_and_exits(run_tool, flags, exit_code, said):
    """Exit code 2 for wrong settings, 1 for failures of the machine; stdout stays empty."""
    ran = await run_tool("agent-routing", "serve", *flags)
    assert (ran.exit_code, ran.out) == (exit_code, "")
    assert said in ran.err
    assert "Traceback" not in ran.err


async def test_a_store_in_use_by_another_server_is_refused(serve_process, run_tool, tmp_path):
    """Two writers of one file would each rely on an outdated cache."""
    server = await serve_process()
    store = f"sqlite:///{tmp_path / 'routing.db'}"
    ran = await run_tool("agent-routing", "serve", f"--agents={TAX}", f"--store={store}")
    assert ran.exit_code == 1
    assert f"is in use by process {server.process.pid}" in ran.err


async def test_a_process_asks_for_the_descriptors_that_its_connections_need(serve_process):
    """Many systems allow 1,024 by default; without descriptors the store cannot open either."""
    running = await serve_process(connections_max=1_500)
    limits = await asyncio.to_thread(
        Path(f"/proc/{running.process.pid}/limits").read_text, encoding="ascii"
    )
    (line,) = [line for line in limits.splitlines() if line.startswith("Max open files")]
    assert int(line.split()[3]) >= 1_756


async def test_a_process_whose_descriptors_do_not_suffice_says_so(serve_process):
    """The warning comes at the start, before the first caller is affected."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= 1_000_000:
        pytest.skip("this system gives as many descriptors as can be asked for")
    running = await serve_process(connections_max=1_000_000)
    await running.logged("descriptors_few")


async def test_a_key_file_that_is_not_there_is_refused(run_tool):
    """Otherwise the hashes could not be compared, which would be noticed too late."""
    agents = EXAMPLES["tax"].registry_path
    ran = await run_tool(
        "agent-routing", "serve", "--agents", agents, "--log-ids-key-file", "none.key"
    )
    assert ran.exit_code == 2
    assert 'error: the key file "none.key" of log_ids cannot be read' in ran.err


async def test_a_process_that_hashes_ids_logs_none_of_them(serve_process, tmp_path):
    """In no line of a whole conversation, including refusals and the shutdown."""
    key = tmp_path / "ids.key"
    key.write_text("0123456789abcdef0123456789abcdef")
    running = await serve_process(log_ids="hashed", log_ids_key_file=key, log_level="debug")
    async with grpc.aio.insecure_channel(running.address) as channel:
        stub = routing_service_pb2_grpc.RoutingServiceStub(channel)
        for user in ("+34600000001", "+34600000002"):
            request = routing_service_pb2.RouteRequest(
                session_id="whatsapp:34600000001", user_id=user, text="my salary is 100"
            )
            with contextlib.suppress(grpc.aio.AioRpcError):
                await stub.Route(request, timeout=20)
    running.send(signal.SIGTERM)
    await running.end()
    lines = [json.loads(line) for line in running.text.splitlines()]
    hashes = IdHashes(read_key(str(key)))
    calls = [line for line in lines if "session_id" in line]
    assert {line["session_id"] for line in calls} == {hashes.hide("whatsapp:34600000001")}
    assert [line["event"] for line in calls] == ["decision", "call_refused"]
    assert calls[1]["user_id"] == hashes.hide("+34600000002")
    assert "3460000000" not in running.text
    assert "salary" not in running.text
