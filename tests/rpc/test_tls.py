"""TLS, client certificates, and the listener for operators."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shutil
import ssl
import urllib.error
import urllib.request
from types import SimpleNamespace

import grpc
import pytest

from agent_routing import tls_credentials
from agent_routing.v1 import admin_service_pb2, admin_service_pb2_grpc, routing_service_pb2_grpc
from agent_routing.v1 import routing_service_pb2 as pb
from routing_service.examples import EXAMPLES
from routing_service.server.server import RoutingServer
from routing_service.server.sign_in import make_sign_in
from routing_service.settings.listen_address import ListenFailed
from routing_service.settings.rules import SettingsInvalid
from routing_service.settings.settings import Settings
from tests.rpc.identity_provider import AUDIENCE, ISSUER, claims, good_set, sign
from tests.rpc.live_service import fresh_id, read_refusal, refusal
from tests.rpc.signed_in import bearer, token, write_key
from tests.rpc.tls_files import Authority

PATIENCE_S = 20

CALLERS = """
[[caller]]
certificate = "uri:spiffe://example.org/runtime/vat"
scopes = ["agent"]
agents = ["vat"]

[[caller]]
certificate = "dns:frontend.example.org"
scopes = ["route", "act_as"]

[[caller]]
certificate = "cn:sam"
user = "sam"
scopes = ["route", "admin"]
"""


@pytest.fixture
def authority(tmp_path):
    """The authority that signed the certificates of the server and its clients."""
    return Authority(tmp_path)


@pytest.fixture
async def start(tmp_path, authority):
    """Start servers with TLS; they are stopped when the test ends."""
    running = []
    files = authority.sign("server")

    async def begin(**settings):
        given = {
            "listen": "127.0.0.1:0",
            "store": "memory:",
            "agents": str(EXAMPLES["tax"].registry_path),
            "tls_certificate_file": str(files.certificate),
            "tls_key_file": str(files.key),
        }
        server = await RoutingServer.start(Settings(**given | settings))
        running.append(server)
        return server

    yield begin
    for server in running:
        await server.stop(0.5)


@pytest.fixture
async def mtls(start, authority, tmp_path):
    """Start a server that knows callers by their certificates."""
    callers = tmp_path / "callers.toml"
    callers.write_text(CALLERS)
    return await start(
        sign_in="mtls",
        tls_client_authority_file=str(authority.path),
        callers_file=str(callers),
    )


def channel(target, authority, client=None):
    """Return a TLS channel with its own connection."""
    credentials = tls_credentials(
        authority_file=authority.path,
        certificate_file=client and client.certificate,
        key_file=client and client.key,
    )
    return grpc.aio.secure_channel(
        target, credentials, options=[("grpc.use_local_subchannel_pool", 1)]
    )


async def call(opened, rpc, request, metadata=()):
    """Call once, on a channel that is closed afterwards."""
    async with opened:
        stub = routing_service_pb2_grpc.RoutingServiceStub(opened)
        if not hasattr(stub, rpc):
            stub = admin_service_pb2_grpc.AdminServiceStub(opened)
        return await getattr(stub, rpc)(request, metadata=metadata, timeout=PATIENCE_S)


async def served(server):
    """Return the certificate that new connections get."""
    host, port = server.address.rsplit(":", 1)
    return await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))


async def test_certificate_is_replaced_while_the_server_serves(start, authority, tmp_path):
    """Connections and servers live longer than a certificate."""
    server = await start()
    before = await served(server)
    async with channel(server.address, authority) as opened:
        stub = routing_service_pb2_grpc.RoutingServiceStub(opened)
        await stub.ListAgents(pb.ListAgentsRequest(), timeout=PATIENCE_S)
        renewed = authority.sign("renewed")
        # The key first: for a moment the two files do not match.
        shutil.copy(renewed.key, tmp_path / "server.key")
        assert await served(server) == before
        shutil.copy(renewed.certificate, tmp_path / "server.pem")
        async with asyncio.timeout(PATIENCE_S):
            while await served(server) == before:  # noqa: ASYNC110 - gRPC reads it
                await asyncio.sleep(0.1)
        assert await served(server) == renewed.certificate.read_text()
        # Open connections were kept.
        await stub.ListAgents(pb.ListAgentsRequest(), timeout=PATIENCE_S)
    await call(channel(server.address, authority), "ListAgents", pb.ListAgentsRequest())


async def test_pair_that_does_not_fit_is_not_taken_over(start, authority, tmp_path, capsys):
    """The old pair stays in use; the log names the mistake."""
    server = await start()
    before = await served(server)
    shutil.copy(authority.sign("other").certificate, tmp_path / "server.pem")
    said = ""
    async with asyncio.timeout(PATIENCE_S):
        while "tls_files_refused" not in said:
            await asyncio.sleep(0.05)
            said += capsys.readouterr().out
    assert await served(server) == before
    await call(channel(server.address, authority), "ListAgents", pb.ListAgentsRequest())


@pytest.mark.parametrize("spoilt", ["server.pem", "server.key"])
async def test_server_does_not_start_with_files_that_make_no_tls(start, tmp_path, spoilt):
    """A missing or wrong file is found at the start, when an operator can correct it."""
    (tmp_path / spoilt).write_text("nothing")
    with pytest.raises(SettingsInvalid, match="PEM files that belong together"):
        await start()
    (tmp_path / spoilt).unlink()
    with pytest.raises(SettingsInvalid, match="No such file"):
        await start()


async def test_caller_in_the_clear_gets_nowhere(start):
    """A port with TLS accepts no plaintext."""
    server = await start()
    async with grpc.aio.insecure_channel(server.address) as opened:
        stub = routing_service_pb2_grpc.RoutingServiceStub(opened)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ListAgents(pb.ListAgentsRequest(), timeout=PATIENCE_S)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_certificate_says_who_a_caller_is(mtls, authority):
    """A runtime by its URI, a frontend by its name, a person by the common name."""
    runtime = authority.sign("vat-1", uris=("spiffe://example.org/runtime/vat",))
    frontend = authority.sign("web-1", dns=("frontend.example.org",))
    route = pb.RouteRequest(session_id="s", user_id="ana", text="hello", request_id=fresh_id())
    routed = await call(channel(mtls.address, authority, frontend), "Route", route)
    assert routed.dispatch.agent.agent_id == "coordinator"
    refused = await refusal(call(channel(mtls.address, authority, runtime), "Route", route))
    assert tuple(refused) == ("PERMISSION_DENIED", "SCOPE_MISSING")
    as_vat = pb.SetActiveAgentRequest(session_id="new", agent_id="invoices")
    answer = await refusal(
        call(channel(mtls.address, authority, runtime), "SetActiveAgent", as_vat)
    )
    # It is signed in as vat, which does not have the conversation: sign-in worked.
    assert answer.rules == ["from_agent"] or answer.reason == "HANDOFF_REFUSED"
    listed = await call(
        channel(mtls.address, authority, authority.sign("sam")),
        "ListSessions",
        admin_service_pb2.ListSessionsRequest(),
    )
    assert [session.owner for session in listed.sessions] == ["ana"]


async def test_certificate_that_names_nobody_or_two_is_refused(mtls, authority):
    """The error does not say which names are accepted."""
    request = pb.ListAgentsRequest()
    strangers = {
        "nobody": authority.sign("stranger"),
        "another path": authority.sign("x", uris=("spiffe://example.org/runtime/vat/2",)),
        "two": authority.sign(
            "y", uris=("spiffe://example.org/runtime/vat",), dns=("frontend.example.org",)
        ),
        "a name of another kind": authority.sign("frontend.example.org"),
    }
    for name, files in strangers.items():
        refused = await refusal(
            call(channel(mtls.address, authority, files), "ListAgents", request)
        )
        assert tuple(refused) == ("UNAUTHENTICATED", "UNAUTHENTICATED"), name


NAMES_WITH_CONTROL_CHARACTERS = {
    "cn": {"common_name": "sam\0.example.org"},
    "dns": {"dns": ("frontend.example.org\0.example.com",)},
    "uri": {"uris": ("spiffe://example.org/runtime/vat\0/x",)},
    "newline": {"common_name": "sam\n"},
    "another name": {"common_name": "sam", "dns": ("a\0b",)},
}


@pytest.mark.parametrize("names", NAMES_WITH_CONTROL_CHARACTERS.values())
async def test_certificate_with_a_nul_in_a_name_is_nobody_s(mtls, authority, names):
    """The name list of gRPC cuts a name at the NUL; a past version signed in the first part."""
    files = authority.sign("forged", **names)
    refused = await refusal(
        call(channel(mtls.address, authority, files), "ListAgents", pb.ListAgentsRequest())
    )
    assert tuple(refused) == ("UNAUTHENTICATED", "UNAUTHENTICATED")


def test_certificates_without_their_extra_are_refused_at_start(monkeypatch, tmp_path):
    """The error names the package to install, and comes before the first call."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "cryptography" else found(name)
    )
    settings = Settings(
        sign_in="mtls",
        callers_file="callers.toml",
        tls_certificate_file="a.pem",
        tls_key_file="a.key",
        tls_client_authority_file="ca.pem",
    )
    with pytest.raises(SettingsInvalid, match=r"agent-routing-service\[mtls\]"):
        make_sign_in(settings)


def post(url, authority, files, metadata=()):
    """Call ListAgents over HTTPS; return the status and the answer."""
    context = ssl.create_default_context(cafile=str(authority.path))
    if files is not None:
        context.load_cert_chain(files.certificate, files.key)
    asked = urllib.request.Request(
        f"{url}/agent_routing.v1.RoutingService/ListAgents",
        b"{}",
        {"content-type": "application/json", **dict(metadata)},
    )
    try:
        with urllib.request.urlopen(asked, timeout=PATIENCE_S, context=context) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


async def test_web_listener_and_console_ask_for_the_certificate_too(start, authority, tmp_path):
    """With an authority set, every connection needs one; it signs in the same as over gRPC."""
    callers = tmp_path / "callers.toml"
    callers.write_text(CALLERS)
    keys = tmp_path / "jwks.json"
    keys.write_bytes(good_set())
    server = await start(
        web_listen="127.0.0.1:0",
        console_listen="127.0.0.1:0",
        sign_in="oidc+mtls",
        tls_client_authority_file=str(authority.path),
        callers_file=str(callers),
        oidc_issuer=ISSUER,
        oidc_audience=AUDIENCE,
        oidc_jwks=str(keys),
    )

    async def asked(*given):
        return await asyncio.to_thread(post, server.web_url, *given)

    with pytest.raises(OSError):  # noqa: PT011 - an alert of TLS, or the connection's end
        await asked(authority, None)
    other = tmp_path / "other"
    other.mkdir()
    forged = Authority(other).sign("sam")
    with pytest.raises(OSError):  # noqa: PT011 - the same
        await asked(authority, forged)
    sam = authority.sign("sam")
    assert (await asked(authority, sam))[0] == 200
    stranger = authority.sign("stranger")
    assert (await asked(authority, stranger))[0] == 401
    nul = authority.sign("nul", common_name="sam\0.example.org")
    assert (await asked(authority, nul))[0] == 401
    with_token = bearer(sign(claims()))
    assert (await asked(authority, stranger, with_token))[0] == 200

    async def asked_of_console(*given):
        return await asyncio.to_thread(post, server.console_url, *given)

    with pytest.raises(OSError):  # noqa: PT011 - the same
        await asked_of_console(authority, None)
    assert (await asked_of_console(authority, sam))[0] == 200
    assert (await asked_of_console(authority, stranger))[0] == 401
    # The browser would show the certificate for any page: one that came without TLS is another's.
    console = server.console_url
    for origin, status in ((console, 200), (console.replace("https:", "http:"), 403)):
        given = await asked_of_console(authority, sam, (("origin", origin),))
        assert given[0] == status, origin

    # From now on another authority is trusted, and this one is not.
    renewed = Authority(other, "renewed")
    old = authority.path.read_bytes()
    authority.path.write_bytes(renewed.path.read_bytes())
    (tmp_path / "old.pem").write_bytes(old)
    trusting = SimpleNamespace(path=tmp_path / "old.pem")  # Of the server's own certificate.
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await asked(trusting, sam)
            except OSError:
                break
            await asyncio.sleep(0.2)
    assert (await asked(trusting, renewed.sign("sam")))[0] == 200


async def test_certificate_of_another_authority_gets_no_connection(mtls, authority, tmp_path):
    """TLS ends the connection before any call, also without a certificate."""
    folder = tmp_path / "other"
    folder.mkdir()
    forged = Authority(folder).sign("vat", uris=("spiffe://example.org/runtime/vat",))
    for files in (forged, None):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(
                channel(mtls.address, authority, files), "ListAgents", pb.ListAgentsRequest()
            )
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_callers_file_is_read_again(mtls, authority, tmp_path):
    """A removed line ends that caller's access; a file with a mistake is not used."""
    files = authority.sign("sam")
    request = pb.ListAgentsRequest()
    await call(channel(mtls.address, authority, files), "ListAgents", request)
    (tmp_path / "callers.toml").write_text("[[caller]]\nscopes = 5\n")
    await mtls.reload()
    await call(channel(mtls.address, authority, files), "ListAgents", request)
    (tmp_path / "callers.toml").write_text(CALLERS.replace("cn:sam", "cn:tom"))
    await mtls.reload()
    refused = await refusal(call(channel(mtls.address, authority, files), "ListAgents", request))
    assert refused.code == "UNAUTHENTICATED"


# --- the listener for operators ---


@pytest.fixture
async def apart(tmp_path):
    """Start a server with a separate listener for operators."""
    server = await RoutingServer.start(
        Settings(
            listen="127.0.0.1:0",
            admin_listen="127.0.0.1:0",
            store="memory:",
            agents=str(EXAMPLES["tax"].registry_path),
            sign_in="development",
            development_key_file=str(write_key(tmp_path)),
        )
    )
    yield server
    await server.stop(0.5)


async def test_operators_have_a_listener_of_their_own(apart):
    """Operators' RPCs are not on the public listener; their own listener has all RPCs."""
    assert apart.admin_address != apart.address
    who = bearer(token("admin", "route", user="sam"))
    sessions = admin_service_pb2.ListSessionsRequest()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(grpc.aio.insecure_channel(apart.address), "ListSessions", sessions, who)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    await call(grpc.aio.insecure_channel(apart.admin_address), "ListSessions", sessions, who)
    for target in (apart.address, apart.admin_address):
        await call(grpc.aio.insecure_channel(target), "ListAgents", pb.ListAgentsRequest(), who)
    refused = await refusal(
        call(grpc.aio.insecure_channel(apart.admin_address), "ListSessions", sessions)
    )
    assert refused.code == "UNAUTHENTICATED"


async def test_operators_address_that_is_taken_is_said_to_be_theirs(apart):
    """Two servers on one machine have the same default address, which no operator typed."""
    with pytest.raises(ListenFailed, match="admin_listen"):
        await RoutingServer.start(
            Settings(
                listen="127.0.0.1:0",
                admin_listen=apart.admin_address,
                store="memory:",
                agents=str(EXAMPLES["tax"].registry_path),
            )
        )


async def test_channelz_is_for_operators_and_with_them_alone(apart):
    """It shows every peer's address."""
    path = "/grpc.channelz.v1.Channelz/GetServers"

    async def ask(target, *scopes):
        metadata = bearer(token(*scopes)) if scopes else ()
        async with grpc.aio.insecure_channel(target) as opened:
            return await opened.unary_unary(path)(b"", metadata=metadata, timeout=PATIENCE_S)

    assert b"chttp2" in await ask(apart.admin_address, "admin")
    for scopes, code in (((), "UNAUTHENTICATED"), (("route",), "PERMISSION_DENIED")):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(apart.admin_address, *scopes)
        assert read_refusal(caught.value).code == code
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(apart.address, "admin")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_where_operators_are_by_default():
    """On loopback it shares the main port, so first steps need one port; else it is separate."""
    near = Settings(listen="127.0.0.1:50051")
    assert near.has_admin_on_main
    assert near.admin_address is None
    far = Settings(listen="0.0.0.0:50051", insecure=True)
    assert not far.has_admin_on_main
    assert str(far.admin_address) == "127.0.0.1:50052"
    off = Settings(admin_listen="off")
    assert (off.has_admin_on_main, off.admin_address) == (False, None)
    main = Settings(listen="0.0.0.0:50051", insecure=True, admin_listen="main")
    assert (main.has_admin_on_main, main.admin_address) == (True, None)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"listen": "0.0.0.0:1"}, "callers do not sign in"),
        ({"listen": "0.0.0.0:1", "sign_in": "development"}, "development key"),
        ({"admin_listen": "0.0.0.0:1"}, "callers do not sign in"),
        ({"sign_in": "oidc"}, "oidc_issuer is missing"),
        ({"sign_in": "mtls"}, "callers_file is missing"),
        ({"tls_key_file": "x"}, "tls_certificate_file is missing"),
        ({"sign_in": "oidc", "oidc_issuer": "http://a.example", "oidc_audience": "a"}, "https"),
        ({"sign_in": "oidc", "oidc_issuer": "https://a/{tid}", "oidc_audience": "a"}, "entra"),
        (
            {
                "sign_in": "oidc",
                "oidc_issuer": "https://a",
                "oidc_audience": "a",
                "oidc_jwks": "http://a",
            },
            "oidc_jwks",
        ),
        (
            {
                "listen": "0.0.0.0:1",
                "sign_in": "oidc",
                "oidc_issuer": "https://a",
                "oidc_audience": "a",
            },
            "in the clear",
        ),
    ],
)
def test_settings_that_would_let_strangers_in_are_refused(settings, named):
    """The error names the remedy."""
    with pytest.raises(SettingsInvalid, match=named):
        Settings(**settings)


@pytest.mark.parametrize("sign_in", ["development", "oidc", "mtls", "oidc+mtls"])
async def test_replay_starts_however_callers_sign_in(start, authority, tmp_path, sign_in):
    """Its process needs the server's settings, and rules tie these together."""
    callers = tmp_path / "callers.toml"
    callers.write_text(CALLERS)
    keys = tmp_path / "jwks.json"
    keys.write_bytes(good_set())
    oidc = {"oidc_issuer": ISSUER, "oidc_audience": AUDIENCE, "oidc_jwks": str(keys)}
    mtls = {"tls_client_authority_file": str(authority.path), "callers_file": str(callers)}
    settings = {"development_key_file": str(write_key(tmp_path))}
    metadata, client = bearer(token("admin")), None
    if sign_in != "development":
        settings = {**(oidc if "oidc" in sign_in else {}), **(mtls if "mtls" in sign_in else {})}
        metadata = bearer(sign(claims(scope="admin"))) if sign_in == "oidc" else ()
        client = authority.sign("sam")
    server = await start(sign_in=sign_in, **settings)
    candidate = EXAMPLES["tax"].registry_path.read_text().replace("mode: auto", 'mode: "off"')
    opened = channel(server.address, authority, client)
    request = admin_service_pb2.StartReplayRequest(candidate=candidate.encode(), reason="trial")
    async with opened:
        stub = admin_service_pb2_grpc.AdminServiceStub(opened)
        begun = await stub.StartReplay(request, metadata=metadata, timeout=PATIENCE_S)
        watched = stub.WatchReplay(
            admin_service_pb2.WatchReplayRequest(replay_id=begun.replay_id),
            metadata=metadata,
            timeout=PATIENCE_S,
        )
        states = [each.progress.state async for each in watched]
    assert states[-1] == admin_service_pb2.REPLAY_STATE_DONE
