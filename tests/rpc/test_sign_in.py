"""The life of a credential: first use, repeats, expiry, and its audit records."""

from __future__ import annotations

import asyncio
import base64
import json

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from structlog.testing import capture_logs

from agent_routing.v1 import admin_service_pb2 as admin
from agent_routing.v1 import handoff_pb2
from agent_routing.v1 import routing_service_pb2 as pb
from routing_service.auth.bearer import BearerSignIn
from routing_service.auth.caller import Caller, SignInRefused
from routing_service.auth.development import DevelopmentTokens, KeyUnusable, read_or_make_key
from routing_service.server.sign_in import make_sign_in
from routing_service.settings.rules import SettingsInvalid
from routing_service.settings.settings import Settings
from tests.rpc.identity_provider import (
    CLIENT_ID,
    OTHER_TENANT_ID,
    TENANT_ID,
    entra_claims,
    good_set,
    sign,
)
from tests.rpc.live_service import (
    fresh_id,
    hand_to,
    is_replayed,
    proceed,
    read_refusal,
    refusal,
    serving,
)
from tests.rpc.registries import DESK
from tests.rpc.signed_in import (
    KEY,
    WRONG_KEY,
    Signed,
    bearer,
    serving_signed_in,
    signed,
    token,
    write_key,
)

PATIENCE_S = 20
LIFE_S = 1.5
"""Of a token that expires during a test."""


@pytest.fixture
async def service(tmp_path):
    """A help desk where callers sign in."""
    async with serving_signed_in(tmp_path, DESK, store="memory:") as running:
        yield running


def message(session_id="s", **fields):
    """Return a message."""
    return pb.RouteRequest(**{"session_id": session_id, "text": "hello", **fields})


async def test_user_comes_from_the_credential(service):
    """Callers do not have to send the user, and cannot send another one."""
    ana = signed(service, "route", user="ana")
    await ana("Route", message())
    assert (await ana("Status", pb.StatusRequest(session_id="s"))).owner == "ana"
    await ana("Route", message(user_id="ana"))
    refused = await refusal(ana("Route", message(user_id="ben")))
    assert tuple(refused) == ("PERMISSION_DENIED", "OWNER_MISMATCH")
    assert "ana" not in refused.message
    assert "ben" not in refused.message


async def test_repeat_of_another_user_s_request_gives_nothing(service):
    """The error is the same as for a new id, so it does not show whether there was an answer."""
    ana, ben = (signed(service, "route", user=name) for name in ("ana", "ben"))
    request = message(request_id=fresh_id())
    await ana("Route", request)
    repeated = await refusal(ben("Route", request))
    anew = await refusal(ben("Route", message(request_id=fresh_id())))
    assert tuple(repeated) == ("PERMISSION_DENIED", "OWNER_MISMATCH")
    assert (repeated.message, repeated.metadata) == (anew.message, anew.metadata)
    # Without the session's id, the message goes to a session of the caller's own.
    own = await ben("Route", message(session_id="", request_id=request.request_id))
    assert own.session_id != "s"
    again = ana("Route", request)
    await again
    assert await is_replayed(again)


async def test_repeat_of_another_runtime_s_handoff_gives_nothing(service):
    """The signed-in agent is part of what repeats are compared by."""
    front, sales, support = (
        signed(service, "agent", agents=(name,)) for name in ("front", "sales", "support")
    )
    request = pb.SetActiveAgentRequest(session_id="s", agent_id="sales", request_id=fresh_id())
    await front("SetActiveAgent", request)
    again = front("SetActiveAgent", request)
    await again
    assert await is_replayed(again)
    for other in (sales, support):
        refused = await refusal(other("SetActiveAgent", request))
        assert refused.reason in ("REQUEST_ID_REUSED", "SCOPE_MISSING")


async def test_repeat_of_another_runtime_s_answer_gives_nothing(service):
    """Answers are unique by request and agent."""
    ana = signed(service, "route", user="ana")
    routed = await ana("Route", message())
    front = signed(service, "agent", agents=("front",))
    answer = pb.CompleteTurnRequest(
        session_id="s", request_id=routed.request_id, agent_id="front", text="a", **proceed()
    )
    await front("CompleteTurn", answer)
    refused = await refusal(signed(service, "agent", agents=("sales",))("CompleteTurn", answer))
    assert tuple(refused) == ("PERMISSION_DENIED", "SCOPE_MISSING")
    assert refused.metadata["scope"] == "agent:front"


async def test_entitlements_are_the_credential_s(service):
    """The token decides about premium agents, from its first message until it is replaced."""
    premium = pb.SetActiveAgentRequest(
        session_id="s", agent_id="premium", initiator=handoff_pb2.INITIATOR_USER
    )
    with_plan = signed(service, "route", user="ana", entitlements=("plan:premium",))
    without = signed(service, "route", user="ana", entitlements=())
    await without("Route", message())
    refused = await refusal(without("SetActiveAgent", premium))
    assert refused.rules == ["entitled"]
    assert (await with_plan("SetActiveAgent", premium)).agent.agent_id == "premium"
    # The next token has no entitlements: stored ones do not replace the token's.
    await without("Route", message())
    status = await without("Status", pb.StatusRequest(session_id="s"))
    assert status.next_agent.agent_id == "front"


async def test_entitlements_in_a_message_need_trust(service):
    """Users cannot entitle themselves; a frontend that signs in its users may entitle them."""
    refused = await refusal(
        signed(service, "route", user="ana")("Route", message(entitlements=["plan:premium"]))
    )
    assert (refused.reason, refused.metadata["scope"]) == ("SCOPE_MISSING", "act_as")
    frontend = signed(service, "route", "act_as")
    await frontend("Route", message("t", user_id="ana", entitlements=["plan:premium"]))
    chosen = await frontend(
        "SetActiveAgent",
        pb.SetActiveAgentRequest(
            session_id="t",
            user_id="ana",
            agent_id="premium",
            initiator=handoff_pb2.INITIATOR_USER,
        ),
    )
    assert chosen.agent.agent_id == "premium"


async def test_user_cannot_leave_where_the_registry_says_so(tmp_path):
    """If /supervisor is not allowed, neither is ClearActiveAgent; trusted callers may."""
    registry = DESK.replace(
        "default_locale: en", "default_locale: en\ncommands: {disabled: [supervisor]}"
    )
    async with serving_signed_in(tmp_path, registry, store="memory:") as service:
        ana = signed(service, "route", user="ana")
        routed = await ana("Route", message())
        front = signed(service, "agent", agents=("front",))
        await front(
            "CompleteTurn",
            pb.CompleteTurnRequest(
                session_id="s",
                request_id=routed.request_id,
                agent_id="front",
                **hand_to("sales"),
            ),
        )
        refused = await refusal(ana("ClearActiveAgent", pb.ClearActiveAgentRequest(session_id="s")))
        assert tuple(refused) == ("PERMISSION_DENIED", "SCOPE_MISSING")
        sam = signed(service, "admin", user="sam")
        cleared = await sam("ClearActiveAgent", pb.ClearActiveAgentRequest(session_id="s"))
        assert cleared.agent.agent_id == "front"


async def test_audit_says_who_signed_in_and_for_whom(service):
    """Also for a platform's calls in several tenants, and for refusals."""
    frontend = signed(service, "route", "act_as", subject="web-frontend")
    await frontend("Route", message(user_id="ana"))
    runtime = signed(service, "agent", agents=("front",), subject="front-1")
    await runtime("SetActiveAgent", pb.SetActiveAgentRequest(session_id="s", agent_id="sales"))
    refused = pb.SetActiveAgentRequest(session_id="s", agent_id="disabled")
    await refusal(runtime("SetActiveAgent", refused))
    sam = signed(service, "admin", "platform", user="sam", tenant="head-office")
    listed = await Signed(service, *sam.metadata, ("agent-routing-tenant", "default"))(
        "ListEvents", admin.ListEventsRequest(session_id="s", order=2)
    )
    found = {(record.actor, record.acting_for) for record in listed.records}
    assert found == {("web-frontend", "ana"), ("front-1", "")}
    kinds = {record.event.WhichOneof("kind"): record.actor for record in listed.records}
    assert kinds["handoff_refused"] == "front-1"


async def test_runtime_sees_its_own_requests_alone(service):
    """It does not get texts for other agents."""
    ana = signed(service, "route", user="ana")
    routed = await ana("Route", message())
    front = signed(service, "agent", agents=("front",))
    handed = await front(
        "CompleteTurn",
        pb.CompleteTurnRequest(
            session_id="s", request_id=routed.request_id, agent_id="front", **hand_to("sales")
        ),
    )
    # Back to the front desk between turns: sales may still answer what it has.
    home = pb.SetActiveAgentRequest(session_id="s", agent_id="front", from_agent_id="front")
    await front("SetActiveAgent", home)
    open_to_front = await ana("Route", message(text="for front"))
    status = pb.StatusRequest(session_id="s")
    sales = signed(service, "agent", agents=("sales",))
    seen = {request.request_id for request in (await sales("Status", status)).open_requests}
    assert seen <= {handed.next.request_id}
    seen = {request.request_id for request in (await front("Status", status)).open_requests}
    assert open_to_front.request_id in seen


# --- expiry ---


async def until_the_end(watch):
    """Return a stream's messages, and the error that ended it."""
    received = []
    try:
        async with asyncio.timeout(PATIENCE_S):
            async for each in watch:
                received.append(each)  # noqa: PERF401 - kept where the stream breaks off
    except grpc.aio.AioRpcError as error:
        return received, read_refusal(error)
    raise AssertionError("the stream ended without an error")


async def test_watch_ends_when_its_token_expires_and_says_where_to_go_on(service):
    """A watch does not outlast its token."""
    await signed(service, "route", user="ana")("Route", message())
    brief = signed(service, "read", user="ana", lasts_s=LIFE_S)
    watch = brief("WatchSession", pb.WatchSessionRequest(session_id="s", after_revision=0))
    received, refused = await until_the_end(watch)
    assert [each.WhichOneof("kind") for each in received] == ["heartbeat", "change"]
    assert tuple(refused) == ("UNAUTHENTICATED", "UNAUTHENTICATED")
    assert refused.metadata == {"session_id": "s", "revision": "1"}
    assert "expired at" in refused.message


async def test_watch_of_all_sessions_ends_when_its_token_expires(service):
    """The error has the cursor to resume from."""
    brief = signed(service, "admin", lasts_s=LIFE_S)
    watch = brief("WatchEvents", admin.WatchEventsRequest())
    _, refused = await until_the_end(watch)
    assert refused.metadata.keys() == {"cursor"}


async def test_message_stream_ends_when_its_token_expires(service):
    """Messages sent before are answered; later ones need a new token."""
    metadata = bearer(token("route", user="ana", lasts_s=LIFE_S))
    stream = service.stub.RouteStream(metadata=metadata, timeout=PATIENCE_S)
    route = message(request_id=fresh_id())
    await stream.write(pb.RouteStreamRequest(route=route))
    assert (await stream.read()).route.request_id == route.request_id
    refused = await refusal(stream.read())
    assert refused.code == "UNAUTHENTICATED"


async def test_token_that_is_known_is_refused_once_it_expires():
    """The cache of accepted tokens does not extend a token's life."""
    now_s = [1000.0]
    sign_in = BearerSignIn(DevelopmentTokens(KEY, lambda: now_s[0]), now_s=lambda: now_s[0])
    from routing_service.auth.development import make_token  # noqa: PLC0415 - with a clock

    good = bearer(make_token(KEY, subject="ana", user="ana", lasts_s=60, now_s=now_s[0]))
    for now_s[0] in (1000.0, 1030.0, 1059.9):
        assert (await sign_in.caller(good, dict)).user == "ana"
    for now_s[0] in (1060.0, 1061.0):
        with pytest.raises(SignInRefused) as caught:
            await sign_in.caller(good, dict)
        assert caught.value.problem == "expired"


# --- tokens that are known ---


class CountingVerifier:
    """Accepts every token, and counts its calls."""

    def __init__(self) -> None:
        self.asked = 0

    async def verify(self, _token: str) -> Caller:
        self.asked += 1
        return Caller("default", subject="ana")


async def test_token_is_checked_once(service):
    """Checking a signature costs as much as routing a message."""
    verifier = CountingVerifier()
    sign_in = BearerSignIn(verifier)
    good = bearer("a.b.c")
    callers = {id(await sign_in.caller(good, dict)) for _ in range(10)}
    assert (verifier.asked, len(callers)) == (1, 1)


async def test_known_tokens_are_bounded():
    """For any number and size of tokens; the oldest are dropped."""
    verifier = CountingVerifier()
    sign_in = BearerSignIn(verifier, known_max=3, known_chars_max=1000)
    for name in "abcd":
        await sign_in.caller(bearer(f"{name}.b.c"), dict)
    await sign_in.caller(bearer("d.b.c"), dict)
    assert verifier.asked == 4
    await sign_in.caller(bearer("a.b.c"), dict)
    assert verifier.asked == 5
    await sign_in.caller(bearer(f"{'x' * 995}.b.c"), dict)
    await sign_in.caller(bearer("a.b.c"), dict)
    assert verifier.asked == 7


async def test_refused_token_replaces_no_accepted_one():
    """The cache holds accepted tokens only."""
    sign_in = BearerSignIn(DevelopmentTokens(KEY))
    good = bearer(token("route", user="ana"))
    await sign_in.caller(good, dict)
    for _ in range(50):
        with pytest.raises(SignInRefused):
            await sign_in.caller(bearer(token("route", user="ben", key=WRONG_KEY)), dict)
    assert len(sign_in._known) == 1


# --- development tokens ---


def altered(value: str, **changed: object) -> str:
    """Return a development token with other claims and the same signature."""
    head, body, mark = value.split(".")
    said = json.loads(base64.urlsafe_b64decode(body + "=="))
    made = base64.urlsafe_b64encode(json.dumps(said | changed).encode()).decode().rstrip("=")
    return f"{head}.{made}.{mark}"


async def test_forged_development_tokens_are_refused():
    """One header, one algorithm, one spelling of the signature."""
    verifier = DevelopmentTokens(KEY)
    good = token("route", user="ana")
    assert (await verifier.verify(good)).user == "ana"
    head, body, mark = good.split(".")
    none = base64.urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=")
    kinds = {
        "another key": token("route", user="ana", key=WRONG_KEY),
        "more rights": altered(good, scope="admin platform"),
        "another user": altered(good, user="ben"),
        "a longer life": altered(good, exp=9e9),
        "no algorithm": f"{none}.{body}.",
        "another header": f"{none}.{body}.{mark}",
        "no signature": f"{head}.{body}.",
        "padding": f"{good}=",
        "another letter at the end": good[:-1] + ("A" if good[-1] != "A" else "B"),
        "expired": token("route", user="ana", lasts_s=-1),
    }
    for name, forged in kinds.items():
        with pytest.raises(SignInRefused) as caught:
            await verifier.verify(forged)
        assert caught.value.problem, name


def test_key_is_made_once_and_for_its_owner_alone(tmp_path):
    """The first process makes it; a file without a valid key is refused."""
    path = tmp_path / "var" / "development.key"
    made = read_or_make_key(path)
    assert read_or_make_key(path) == made
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("short")
    with pytest.raises(KeyUnusable, match="another one is made"):
        read_or_make_key(path)
    with pytest.raises(KeyUnusable, match="name a file"):
        read_or_make_key(tmp_path)


async def test_reflection_needs_a_credential_and_health_does_not(service, run_tool):
    """Strangers cannot list the services; probes have no credential."""
    address = service.server.address
    listed = ("-plaintext", address, "list")
    refused = await run_tool("grpcurl", *listed)
    assert refused.exit_code != 0
    assert "Unauthenticated" in refused.err
    header = ("-H", f"authorization: Bearer {token('read', user='ana')}")
    shown = await run_tool("grpcurl", *header, *listed)
    assert "agent_routing.v1.RoutingService" in shown.out
    for version in ("v1", "v1alpha"):
        path = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
        stream = service.channel.stream_stream(path)(timeout=PATIENCE_S)
        assert (await refusal(stream.read())).code == "UNAUTHENTICATED"
    health = health_pb2_grpc.HealthStub(service.channel)
    checked = await health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
    assert checked.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, True), (0o604, True)])
async def test_development_key_that_others_can_read_is_a_warning(tmp_path, mode, warned):
    """Any reader of the key can act as any user."""
    write_key(tmp_path).chmod(mode)
    with capture_logs() as lines:
        make_sign_in(
            Settings(sign_in="development", development_key_file=str(tmp_path / "development.key"))
        )
    found = [line["mode"] for line in lines if line["event"] == "development_key_readable"]
    assert found == ([f"{mode:04o}"] if warned else [])


@pytest.mark.parametrize("shared", ["common", "organizations", "consumers"])
@pytest.mark.parametrize("profile", ["entra", "standard"])
async def test_shared_endpoint_of_entra_needs_its_tenants(tmp_path, shared, profile):
    """No token has the shared endpoint as issuer, so the server would accept none or all."""
    keys = tmp_path / "jwks.json"
    keys.write_bytes(good_set())
    given = {
        "sign_in": "oidc",
        "oidc_profile": profile,
        "oidc_issuer": f"https://login.microsoftonline.com/{shared}/v2.0",
        "oidc_audience": CLIENT_ID,
        "oidc_jwks": str(keys),
    }
    with pytest.raises(SettingsInvalid, match=f'"{shared}" is no tenant.*--oidc-tenants'):
        Settings(**given)
    if profile == "standard":
        return
    async with serving(tmp_path, DESK, store="memory:", oidc_tenants=TENANT_ID, **given) as service:
        good, other = entra_claims(), OTHER_TENANT_ID
        foreign = entra_claims(tid=other, iss=good["iss"].replace(TENANT_ID, other))
        route = pb.RouteRequest(session_id="s", text="hello", request_id=fresh_id())
        await Signed(service, *bearer(sign(good)))("Route", route)
        refused = await refusal(Signed(service, *bearer(sign(foreign)))("Route", route))
        assert refused.code == "UNAUTHENTICATED"
