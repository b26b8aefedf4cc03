"""A stream ends as soon as its caller loses the right to it."""

from __future__ import annotations

import asyncio
import json
import shutil
import struct
import time
import urllib.request

import grpc
import pytest

from agent_routing import tls_credentials
from agent_routing.v1 import admin_service_pb2 as admin
from agent_routing.v1 import admin_service_pb2_grpc, routing_service_pb2_grpc
from agent_routing.v1 import routing_service_pb2 as pb
from routing_service.examples import EXAMPLES
from routing_service.server.bounds import Bounds
from routing_service.server.server import RoutingServer
from routing_service.settings.settings import Settings
from tests.rpc.identity_provider import (
    AUDIENCE,
    ISSUER,
    claims,
    ec_key,
    good_set,
    jwk,
    key_set,
    sign,
)
from tests.rpc.live_service import fresh_id, read_refusal, refusal, serving
from tests.rpc.registries import DESK
from tests.rpc.signed_in import Signed, bearer, serving_signed_in, signed
from tests.rpc.tls_files import Authority

PATIENCE_S = 20
LEARNED_S_MAX = 5
"""Within this time of what the server learns, every stream has ended."""


async def ended(stream, *, wait_s=LEARNED_S_MAX):
    """Read a stream to its end; return what came, and the refusal."""
    received = []
    try:
        async with asyncio.timeout(wait_s):
            while (message := await stream.read()) is not grpc.aio.EOF:
                received.append(message)
    except grpc.aio.AioRpcError as error:
        return received, read_refusal(error)
    raise AssertionError("the stream ended without an error")


def hello(session_id):
    """Return a message for a stream."""
    return pb.RouteRequest(session_id=session_id, text="hello", request_id=fresh_id())


def changes(received):
    """Return the revisions of the received changes."""
    return [each.change.revision for each in received if each.WhichOneof("kind") == "change"]


async def test_watch_of_a_session_ends_when_somebody_else_becomes_its_owner(tmp_path):
    """The watcher does not get the new owner's first message."""
    async with serving_signed_in(tmp_path, DESK, store="memory:") as service:
        runtime = signed(service, "agent", agents=("*",))
        await runtime(
            "SetActiveAgent",
            pb.SetActiveAgentRequest(
                session_id="s", agent_id="sales", initiator="INITIATOR_SUPERVISOR"
            ),
        )
        watched = pb.WatchSessionRequest(session_id="s", after_revision=0)
        bob = signed(service, "read", user="bob")("WatchSession", watched)
        operator = signed(service, "admin")("WatchSession", watched)
        assert [(await bob.read()).WhichOneof("kind") for _ in range(2)] == ["heartbeat", "change"]
        ana = signed(service, "route", user="ana")
        await ana("Route", pb.RouteRequest(session_id="s", text="mine", request_id=fresh_id()))
        received, refused = await ended(bob)
        assert (changes(received), tuple(refused)) == ([], ("PERMISSION_DENIED", "OWNER_MISMATCH"))
        assert "ana" not in refused.message
        owner = ana("WatchSession", watched)
        for allowed in (operator, owner):
            seen = [(await asyncio.wait_for(allowed.read(), PATIENCE_S)) for _ in range(3)]
            assert changes(seen) == [1, 2]


@pytest.fixture
async def provided(tmp_path):
    """A server with a provider whose keys are in a file; an unknown key makes it read the file."""
    keys = tmp_path / "jwks.json"
    keys.write_bytes(good_set())
    async with serving(
        tmp_path,
        DESK,
        store="memory:",
        web_listen="127.0.0.1:0",
        sign_in="oidc",
        oidc_issuer=ISSUER,
        oidc_audience=AUDIENCE,
        oidc_jwks=str(keys),
        bounds=Bounds(keys_fetch_every_s=0.05),
    ) as running:
        yield running, keys


def web_watch(url, value):
    """Watch over HTTP until the end; return the error's code and the seconds it took."""
    body = json.dumps({"sessionId": "s"}).encode()
    asked = urllib.request.Request(
        f"{url}/agent_routing.v1.RoutingService/WatchSession",
        struct.pack(">BI", 0, len(body)) + body,
        {"content-type": "application/connect+json", "authorization": f"Bearer {value}"},
    )
    with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
        while True:
            flags, size = struct.unpack(">BI", answer.read(5))
            content = answer.read(size)
            if flags & 2:
                return json.loads(content)["error"]["code"], time.monotonic()


async def test_streams_end_with_the_key_that_signed_their_token(provided):
    """Watches, message streams, watches over HTTP, and unary calls."""
    service, keys = provided
    gone = sign(claims(scope="route read admin"))
    kept = sign(claims(scope="route read"), alg="ES256")
    old, new = Signed(service, *bearer(gone)), Signed(service, *bearer(kept))
    await old("Route", pb.RouteRequest(session_id="s", text="hello", request_id=fresh_id()))
    streams = [
        old("WatchSession", pb.WatchSessionRequest(session_id="s")),
        old("WatchEvents", admin.WatchEventsRequest()),
    ]
    others = new("WatchSession", pb.WatchSessionRequest(session_id="s"))
    for stream in (*streams, others):
        await stream.read()
    messages = service.stub.RouteStream(metadata=old.metadata, timeout=PATIENCE_S)
    await messages.write(
        pb.RouteStreamRequest(
            route=pb.RouteRequest(session_id="s", text="more", request_id=fresh_id())
        )
    )
    assert (await messages.read()).route.session_id == "s"
    over_http = asyncio.create_task(asyncio.to_thread(web_watch, service.server.web_url, gone))
    await asyncio.sleep(0.2)

    keys.write_bytes(key_set(jwk(ec_key("good"), "ec-1")))
    unknown = Signed(service, *bearer(sign(claims(), kid="made-up")))
    await refusal(unknown("ListAgents", pb.ListAgentsRequest()))
    learned_s = time.monotonic()
    assert (await refusal(old("ListAgents", pb.ListAgentsRequest()))).code == "UNAUTHENTICATED"
    for stream, field in zip(streams, ("session_id", "cursor"), strict=True):
        _, refused = await ended(stream)
        assert refused.code == "UNAUTHENTICATED"
        assert field in refused.metadata
    assert (await ended(messages))[1].code == "UNAUTHENTICATED"
    code, ended_s = await over_http
    assert code == "unauthenticated"
    assert ended_s - learned_s < LEARNED_S_MAX
    # The token of the remaining key is still accepted, and its stream stays open.
    said = await new("Route", pb.RouteRequest(session_id="s", text="x", request_id=fresh_id()))
    async with asyncio.timeout(PATIENCE_S):
        while said.revision not in changes([await others.read()]):
            pass


LINES = {
    "removed": '[[caller]]\ncertificate = "cn:removed"\nscopes = ["admin", "route"]\n',
    "narrowed": '[[caller]]\ncertificate = "cn:narrowed"\nscopes = ["admin", "route"]\n',
    "moved": '[[caller]]\ncertificate = "cn:moved"\nscopes = ["admin", "route", "platform"]\n',
    "other": '[[caller]]\ncertificate = "cn:other"\nscopes = ["admin", "route"]\nuser = "sam"\n',
    "kept": '[[caller]]\ncertificate = "cn:kept"\nscopes = ["admin", "route"]\n',
}


async def test_streams_end_with_their_line_of_the_callers_file(tmp_path):
    """Removed, without the scope, without the tenant, or another user: each with its own reason."""
    authority = Authority(tmp_path)
    files = authority.sign("server")
    callers = tmp_path / "callers.toml"
    callers.write_text("\n".join(LINES.values()))
    server = await RoutingServer.start(
        Settings(
            listen="127.0.0.1:0",
            store="memory:",
            agents=str(EXAMPLES["tax"].registry_path),
            tls_certificate_file=str(files.certificate),
            tls_key_file=str(files.key),
            tls_client_authority_file=str(authority.path),
            sign_in="mtls",
            callers_file=str(callers),
        )
    )
    opened, watches, messages = [], {}, {}
    try:
        for name in LINES:
            mine = authority.sign(name)
            channel = grpc.aio.secure_channel(
                server.address,
                tls_credentials(
                    authority_file=authority.path,
                    certificate_file=mine.certificate,
                    key_file=mine.key,
                ),
                options=[("grpc.use_local_subchannel_pool", 1)],
            )
            opened.append(channel)
            tenant = "*" if name == "moved" else ""
            watches[name] = admin_service_pb2_grpc.AdminServiceStub(channel).WatchEvents(
                admin.WatchEventsRequest(tenant=tenant), timeout=PATIENCE_S
            )
            await watches[name].read()
            stub = routing_service_pb2_grpc.RoutingServiceStub(channel)
            messages[name] = stub.RouteStream(timeout=PATIENCE_S)
            await messages[name].write(pb.RouteStreamRequest(route=hello(name)))
            assert await messages[name].read()
        changed = (
            LINES["narrowed"].replace('"admin", "route"', '"read"'),
            LINES["moved"].replace(', "platform"', ""),
            LINES["other"].replace('"sam"', '"tom"'),
            LINES["kept"],
        )
        new = tmp_path / "new.toml"
        new.write_text("\n".join(changed))
        shutil.move(new, callers)
        wanted = {
            "removed": ("UNAUTHENTICATED",) * 2,
            "narrowed": ("SCOPE_MISSING",) * 2,
            "moved": ("SCOPE_MISSING", "UNAUTHENTICATED"),
            "other": ("UNAUTHENTICATED",) * 2,
        }
        found = {}
        for name in wanted:
            reasons = [
                (await ended(stream))[1].reason for stream in (watches[name], messages[name])
            ]
            found[name] = tuple(reasons)
        assert found == wanted
        await messages["kept"].write(pb.RouteStreamRequest(route=hello("kept")))
        assert (await messages["kept"].read()).route.session_id == "kept"
        assert not watches["kept"].done()
    finally:
        for channel in opened:
            await channel.close()
        await server.stop(0.5)
