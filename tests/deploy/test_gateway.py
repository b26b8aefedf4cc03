"""HAProxy itself, with the gateway that ships, before shards: no tenant is ever on two of them.

Everything runs on a loopback address of this test's own, so the shipped ports are free.
"""

import asyncio
import contextlib
import random
import shutil
import signal
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import jwt
import pytest

import agent_routing
from agent_routing.v1 import admin_service_pb2 as admin_pb
from agent_routing.v1 import admin_service_pb2_grpc, routing_service_pb2, routing_service_pb2_grpc
from agent_routing.worker import Worker
from routing_service.ids import new_uuid7
from tests import toolchains
from tests.replicas.replica_set import COMMAND, Replica

pytestmark = pytest.mark.timeout(300)

GATEWAY = Path(__file__).parents[2] / "deploy" / "gateway"
WAIT_S = 120
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4" + bytes(5)
"""What an HTTP/2 client sends first, with empty SETTINGS."""
CALL_WITHOUT_END = b"\0\0\1\1\0\0\0\0\1\x82"
"""The first header of a call (:method GET), and more to come."""
TENANTS = [f"tenant-{number}" for number in range(12)]
REGISTRY = """\
api_version: agent_routing/v1
version: gateway
supervisor: front
agents: [{id: front, name: Front, delivery: inbox}]
"""


@dataclass
class Gateway:
    """HAProxy with a copy of the shipped files, in which a test may change lines."""

    folder: Path
    host: str
    process: asyncio.subprocess.Process | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:50050"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text("utf-8")

    def change(self, name: str, old: str, new: str) -> None:
        """Replace a text that is there once."""
        file = self.folder / name
        text = file.read_text("utf-8")
        assert text.count(old) == 1, (old, text)
        file.write_text(text.replace(old, new), "utf-8")

    async def start(self) -> None:
        program = str(toolchains.require("haproxy").programs["haproxy"])
        with (self.folder / "log").open("wb") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(program, "-W", "-db", "-f", "haproxy.cfg"), cwd=self.folder, stderr=log
            )
        await self.says("Loading success", 1)

    async def says(self, text: str, times: int) -> None:
        """Wait until its log has a text so many times."""
        async with asyncio.timeout(WAIT_S):
            while self.log.count(text) < times:
                assert self.process.returncode is None, self.log
                await asyncio.sleep(0.05)

    async def reload(self) -> None:
        """Take the changed files: open streams go on in the old process until they end."""
        loaded = self.log.count("Loading success")
        self.process.send_signal(signal.SIGUSR2)
        await self.says("Loading success", loaded + 1)

    async def stop(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.terminate()
            await asyncio.wait_for(self.process.wait(), WAIT_S)


@dataclass
class Tenant:
    """What one tenant's users and worker do through the gateway, and what they were answered."""

    name: str
    client: agent_routing.AsyncClient
    said: list[str] = field(default_factory=list)
    """Texts that were acknowledged, in order."""
    watched: list[int] = field(default_factory=list)
    """Revisions that a WatchSession has shown, in order."""
    ends: list[asyncio.Task] = field(default_factory=list)
    failed: int = 0
    """Calls that failed after all the client's attempts."""

    async def patiently(self, call, text, **fields):
        """Repeat a call, with its request id, while the tenant's shard is away."""
        fields |= {"session_id": "chat", "user_id": "ana", "request_id": new_uuid7()}
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    return await call(text, **fields)
                except (agent_routing.errors.Unavailable, agent_routing.errors.Overloaded):
                    self.failed += 1
                    await asyncio.sleep(0.2)

    async def begin(self) -> None:
        worker = Worker(self.client, worker_id=f"worker-{self.name}", lease=10)
        worker.agent("front")(self.answer)
        await self.talk(1)
        self.ends = [asyncio.create_task(worker.serve()), asyncio.create_task(self.watch())]

    @staticmethod
    async def answer(turn) -> str:
        return f"You said {turn.text}."

    async def watch(self) -> None:
        changes = self.client.watch_session(
            "chat", user_id="ana", after_revision=0, away_timeout=WAIT_S
        )
        async for change in changes:
            self.watched.append(change.revision)

    async def talk(self, messages: int) -> None:
        """Send messages on a RouteStream, each until it is answered."""
        async with self.client.stream() as stream:
            for _ in range(messages):
                text = f"message {len(self.said)} of {self.name}"
                await self.patiently(stream.route, text)
                self.said.append(text)

    async def ask(self) -> None:
        """Send a message and wait for its worker's answer."""
        text = f"question {len(self.said)} of {self.name}"
        asked = await self.patiently(self.client.ask, text, wait=WAIT_S)
        assert asked.text == f"You said {text}."
        self.said.append(text)

    async def end(self) -> None:
        for task in self.ends:
            task.cancel()
        await asyncio.gather(*self.ends, return_exceptions=True)
        await self.client.close()


@pytest.fixture
async def gateway(tmp_path):
    """HAProxy, not started, with the shipped files for an address of this test's own."""
    toolchains.require("haproxy")
    folder = tmp_path / "gateway"
    shutil.copytree(GATEWAY, folder)
    host = f"127.{random.randint(10, 250)}.{random.randint(0, 250)}.{random.randint(1, 250)}"
    file = folder / "haproxy.cfg"
    file.write_text(file.read_text("utf-8").replace("127.0.0.1", host), "utf-8")
    running = Gateway(folder, host)
    yield running
    await running.stop()


def server(gateway, tmp_path, number, store_url):
    """Return a server on the ports of a line of the shipped file: 5006n, and 5007n for probes."""
    registry = tmp_path / "agents.yaml"
    registry.write_text(REGISTRY, "utf-8")
    options = {
        "listen": f"{gateway.host}:5006{number}",
        "probe_listen": f"{gateway.host}:5007{number}",
    }
    return Replica(number, tmp_path, store_url, registry, options)


@contextlib.asynccontextmanager
async def tenants_of(gateway):
    """Give the tenants, each with a worker, a watch and one message so far."""
    tenants = [
        Tenant(
            name,
            agent_routing.AsyncClient(gateway.address, tenant=name, timeout=60, fallback=None),
        )
        for name in TENANTS
    ]
    try:
        await asyncio.gather(*(each.begin() for each in tenants))
        yield tenants
    finally:
        await asyncio.gather(*(each.end() for each in tenants))


async def tenants_at(address) -> set[str]:
    """Return the tenants with a session in the store of a server, asked without the gateway."""
    async with grpc.aio.insecure_channel(address) as channel:
        operator = admin_service_pb2_grpc.AdminServiceStub(channel)

        async def has_a_session(tenant):
            request = admin_pb.ListSessionsRequest(tenant=tenant)
            return bool((await operator.ListSessions(request, timeout=WAIT_S)).sessions)

        return {tenant for tenant in TENANTS if await has_a_session(tenant)}


async def check_all(tenants, shards) -> None:
    """Each tenant is on one shard, and has all it was promised, once and in order."""
    found = [await tenants_at(shard) for shard in shards]
    assert all(found), found
    assert sum(map(len, found)) == len(TENANTS), found
    assert set.union(*found) == set(TENANTS)
    for each in tenants:
        turns = [turn async for turn in each.client.list_turns("chat", user_id="ana")]
        assert sorted(turn.user_text for turn in turns) == sorted(each.said)
        status = await each.client.status("chat", user_id="ana")
        async with asyncio.timeout(WAIT_S):
            while not each.watched or each.watched[-1] < status.revision:
                assert not each.ends[1].done(), each.ends[1]
                await asyncio.sleep(0.05)
        assert each.watched == list(range(1, each.watched[-1] + 1))


async def everybody(tenants, messages=2) -> None:
    """All talk and ask at the same time; every message is answered."""

    async def one(tenant):
        await tenant.talk(messages)
        await tenant.ask()

    await asyncio.gather(*map(one, tenants))


async def test_no_tenant_is_split_while_servers_are_killed_added_and_moved(
    gateway, postgres_database, tmp_path
):
    """Two shards: two servers on PostgreSQL, and one with SQLite whose store then moves away.

    WatchSession, RouteStream and WatchInbox go through the gateway all the time.
    """
    gateway.change(
        "haproxy.cfg",
        f"    server a1 {gateway.host}:50061 proto h2 check-proto h1 port 50071\n",
        f"    server a1 {gateway.host}:50061 proto h2 check-proto h1 port 50071\n"
        f"    server a2 {gateway.host}:50063 proto h2 check-proto h1 port 50073\n",
    )
    shared = postgres_database.store_url(tmp_path)
    a1 = server(gateway, tmp_path, 1, shared)
    a2 = server(gateway, tmp_path, 3, shared)
    b1 = server(gateway, tmp_path, 2, f"sqlite:///{tmp_path}/b.db")
    c1 = server(gateway, tmp_path, 4, f"sqlite:///{tmp_path}/c.db")
    shard_a, shard_b = a1.address, b1.address
    async with contextlib.AsyncExitStack() as stack:
        for each in (a1, a2, b1, c1):
            stack.push_async_callback(each.kill)
        await a1.start()
        await b1.start()
        await gateway.start()
        async with tenants_of(gateway) as tenants:
            await everybody(tenants)
            await check_all(tenants, [shard_a, shard_b])
            home = await tenants_at(shard_a)
            at_a = [each for each in tenants if each.name in home]
            at_b = [each for each in tenants if each.name not in home]

            # A server is added to a shard, and another one is killed: nobody notices.
            await a2.start()
            await gateway.says("Server shard_a/a2 is UP", 1)
            talking = asyncio.create_task(everybody(tenants, 10))
            await asyncio.sleep(0.2)
            await a1.kill()
            await talking
            await check_all(tenants, [a2.address, shard_b])
            assert {each.failed for each in tenants} == {0}
            await a1.start()

            # The only server of a shard is killed: its tenants wait, and no other shard takes them.
            await b1.kill()
            waiting = asyncio.create_task(everybody(at_b))
            await everybody(at_a)
            assert await tenants_at(shard_a) == home
            assert {each.failed for each in at_a} == {0}
            await b1.start()
            await waiting
            await check_all(tenants, [shard_a, shard_b])

            await moved(gateway, tenants, at_b, b1, c1)
            await check_all(tenants, [shard_a, c1.address])
    postgres_database.drop(tmp_path)


async def moved(gateway, tenants, at_b, b1, c1) -> None:
    """Move a shard's store to another server, as docs/scaling.md says, while its tenants talk."""
    talking = asyncio.create_task(everybody(tenants, 5))
    copy = (str(COMMAND), "copy", "--from", b1.store_url, "--to", c1.store_url)
    for is_last in (False, True):
        if is_last:
            await b1.stop()
        copying = await asyncio.create_subprocess_exec(*copy, stdout=asyncio.subprocess.DEVNULL)
        assert await asyncio.wait_for(copying.wait(), WAIT_S) == 0
    await c1.start()
    gateway.change("haproxy.cfg", f"b1 {gateway.host}:50062", f"b1 {gateway.host}:50064")
    gateway.change("haproxy.cfg", "port 50072", "port 50074")
    await gateway.reload()
    await talking
    await everybody(at_b)


async def route(gateway, *metadata):
    """Send a message with metadata; return its answer."""
    request = routing_service_pb2.RouteRequest(session_id="chat", user_id="ana", text="hello")
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        stub = routing_service_pb2_grpc.RoutingServiceStub(channel)
        return await stub.Route(request, metadata=metadata, timeout=WAIT_S)


async def refusal(gateway, *metadata):
    """Return the error of a message with metadata."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await route(gateway, *metadata)
    return caught.value


async def test_what_the_gateway_answers_itself_is_grpc(gateway, tmp_path):
    """Two tenants in one call, a bucket in no shard, a shard without a server."""
    gateway.change("buckets.map", "512:1023 shard_b\n", "")
    b1 = server(gateway, tmp_path, 2, "memory:")
    gateway.change("tenants.map", "bucket is\n", "bucket is\nacme shard_a\nglobex shard_b\n")
    try:
        await b1.start()
        await gateway.start()
        error = await refusal(gateway, ("agent-routing-tenant", "x"), ("agent-routing-tenant", "y"))
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "agent-routing-tenant once" in error.details()
        error = await refusal(gateway, ("agent-routing-tenant", "acme"))
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        errors = [
            await refusal(gateway, ("agent-routing-tenant", name))
            for name in (f"tenant-{number}" for number in range(8))
        ]
        assert {each.code() for each in errors} == {grpc.StatusCode.UNAVAILABLE}
        assert any("buckets.map" in each.details() for each in errors)
        assert (await route(gateway, ("agent-routing-tenant", "globex"))).session_id == "chat"
        # The claim of a token is believed here: the shard checks the token.
        key = "of nobody, and long enough to sign with"
        for tenant, is_there in (("globex", True), ("acme", False)):
            token = ("authorization", f"Bearer {jwt.encode({'tenant': tenant}, key)}")
            if is_there:
                assert (await route(gateway, token)).session_id == "chat"
            else:
                assert (await refusal(gateway, token)).code() == grpc.StatusCode.UNAVAILABLE
    finally:
        await b1.kill()


@contextlib.asynccontextmanager
async def held_open(gateway, tmp_path, sent, source):
    """Hold 20 connections on which this is sent, as many as the gateway may have."""
    gateway.change("haproxy.cfg", "maxconn 8000", "maxconn 20")
    gateway.change("haproxy.cfg", "gt 1000", "gt 15")
    gateway.change("haproxy.cfg", "http-request 10s", "http-request 2s")
    gateway.change("haproxy.cfg", "http-keep-alive 10s", "http-keep-alive 2s")
    gateway.change("tenants.map", "bucket is\n", "bucket is\nglobex shard_b\n")
    b1 = server(gateway, tmp_path, 2, "memory:")
    opened = []
    try:
        await b1.start()
        await gateway.start()
        for number in range(20):
            local = (source or f"127.0.1.{number + 1}", 0)
            with contextlib.suppress(ConnectionResetError):
                opened.append(await asyncio.open_connection(gateway.host, 50050, local_addr=local))
                opened[-1][1].write(sent)
        yield opened
    finally:
        for _, writer in opened:
            writer.close()
        await b1.kill()


@pytest.mark.parametrize(
    "sent",
    [PREFACE[:10], PREFACE, PREFACE + CALL_WITHOUT_END],
    ids=["half a preface", "no call", "half a call"],
)
async def test_connections_without_a_call_do_not_keep_callers_out(gateway, tmp_path, sent):
    """Each is of another address, so only their time ends them."""
    async with held_open(gateway, tmp_path, sent, ""):
        assert (await route(gateway, ("agent-routing-tenant", "globex"))).session_id == "chat"


async def test_one_address_does_not_take_all_connections(gateway, tmp_path):
    """It sends nothing at all, which the times of HAProxy 2.6 do not end."""
    async with held_open(gateway, tmp_path, b"", "127.0.1.1") as opened:
        assert (await route(gateway, ("agent-routing-tenant", "globex"))).session_id == "chat"
        assert len(opened) >= 15
        assert not any(reader.at_eof() for reader, _ in opened[:15])
