"""A person with several names: by token and certificate, by two accounts, and through a frontend.

No rule about people is met by a second name of the same person.
"""

from __future__ import annotations

import json

import pytest

from agent_routing.v1 import routing_service_pb2 as pb
from routing_service.server.server import RoutingServer
from routing_service.settings.settings import Settings
from tests.rpc.identity_provider import AUDIENCE, ISSUER, claims, good_set, sign
from tests.rpc.live_service import hand_to, serving
from tests.rpc.registries import DESK
from tests.rpc.signed_in import Signed, bearer, serving_signed_in, signed
from tests.rpc.test_approval_rules import (
    REJECT,
    decision,
    desk,
    needs,
    paused_signed_in,
    refused_to,
)
from tests.rpc.test_tls import authority, call, channel  # noqa: F401 - authority is a fixture
from tests.rpc.tls_files import Authority

ANA = "ana@bank.example"
BEA = "bea@bank.example"


async def paused_of(user, session_id):
    """Let a user's session pause for an approval; return the paused dispatch."""
    routed = await user("Route", pb.RouteRequest(session_id=session_id, text="my money back"))
    request = {"session_id": session_id, "request_id": routed.dispatch.request_id}
    agent = Signed(user.service, *user.metadata_of("agent", agents=["*"], client_id="runtime"))
    handed = await agent(
        "CompleteTurn", pb.CompleteTurnRequest(**request, agent_id="front", **hand_to("support"))
    )
    request["request_id"] = handed.next.request_id
    await agent("CompleteTurn", pb.CompleteTurnRequest(**request, agent_id="support", **needs()))
    return handed.next


class Employee(Signed):
    """Calls with a token of a provider whose tokens name people by their address too."""

    def __init__(self, service, *scopes, **said):
        self.service = service
        super().__init__(service, *self.metadata_of(*scopes, **said))

    @staticmethod
    def metadata_of(*scopes, **said):
        """Return the metadata of a call. said: claims, next to the address."""
        named = {"scope": " ".join(scopes), "sub": "runtime", **said}
        return bearer(sign(claims(**named)))


@pytest.fixture
async def bank(tmp_path):
    """Start servers where people are known by their address, which is not the subject."""
    path = tmp_path / "jwks.json"
    path.write_bytes(good_set())

    def begin(rule):
        return serving(
            tmp_path,
            desk(rule),
            store="memory:",
            sign_in="oidc",
            oidc_issuer=ISSUER,
            oidc_audience=AUDIENCE,
            oidc_jwks=str(path),
            oidc_tenant_claim="company",
            oidc_user_claim="email",
        )

    return begin


@pytest.mark.parametrize("scopes", [("route", "approve"), ("approve",), ("admin",)])
async def test_user_known_by_an_address_does_not_approve_its_own_refund(bank, scopes):
    """The session belongs to the address, and the decision comes from the subject: one person."""
    async with bank("{by: other_than_owner}") as service:
        paused = await paused_of(Employee(service, "route", sub="111", email=ANA), "s")
        ana = Employee(service, *scopes, sub="111", email=ANA)
        refused = await refused_to(ana("ResumeTask", decision("s", paused)))
        assert tuple(refused) == ("PERMISSION_DENIED", "APPROVER_REFUSED")
        listed = (await ana("ListApprovals", pb.ListApprovalsRequest())).approvals
        assert [each.may_decide for each in listed] == [False]
        assert not (await ana("ListApprovals", pb.ListApprovalsRequest(mine=True))).approvals
        bea = Employee(service, "approve", sub="222", email=BEA)
        assert (await bea("ListApprovals", pb.ListApprovalsRequest(mine=True))).approvals
        assert (await bea("ResumeTask", decision("s", paused))).decisions == 1


async def test_two_accounts_of_one_person_are_one_approval(bank):
    """A provider may give a person another subject for each program, or another address later."""
    async with bank("{needs: 2}") as service:
        paused = await paused_of(Employee(service, "route", sub="111", email=ANA), "s")
        for sub, email in (("b-web", BEA), ("b-phone", BEA), ("b-web", "bea@new.example")):
            bea = Employee(service, "approve", sub=sub, email=email)
            voted = await bea("ResumeTask", decision("s", paused))
            assert (voted.decisions, voted.decisions_needed) == (1, 2), (sub, email)
            (listed,) = (await bea("ListApprovals", pb.ListApprovalsRequest())).approvals
            assert (listed.may_decide, listed.has_approved) == (True, True)
        ana = Employee(service, "route", sub="111", email=ANA)
        rejected = await ana("ResumeTask", decision("s", paused, REJECT))
        assert (rejected.decisions, rejected.decisions_needed) == (2, 2)


@pytest.mark.parametrize("spelled", ["ana", "ANA", "Ana", "\uff21na"])
async def test_another_spelling_of_a_name_is_no_other_person(tmp_path, spelled):
    """Case is not what tells people apart. What a name gives is for its own spelling alone."""
    rule = "{by: other_than_owner, needs: 2}"
    async with serving_signed_in(tmp_path, desk(rule), store="memory:") as service:
        paused = await paused_signed_in(service, "s")
        other = signed(service, "approve", user=spelled)
        assert (await refused_to(other("ResumeTask", decision("s", paused)))).reason == (
            "APPROVER_REFUSED"
        )
        assert not (await other("ListApprovals", pb.ListApprovalsRequest(mine=True))).approvals
        for bea in ("Bea", "BEA", "bea"):
            voter = signed(service, "approve", user=bea)
            assert (await voter("ResumeTask", decision("s", paused))).decisions == 1
        if spelled != "ana":
            stranger = signed(service, "route", user=spelled)
            refused = await refused_to(stranger("Status", pb.StatusRequest(session_id="s")))
            assert refused.reason == "OWNER_MISMATCH"


async def test_user_and_the_frontend_that_acts_for_her_are_one_person(tmp_path):
    """And a frontend is one person, however many users it acts for."""
    async with serving_signed_in(tmp_path, desk("{needs: 2}"), store="memory:") as service:
        paused = await paused_signed_in(service, "s")
        ana = signed(service, "route", user="ana")
        frontend = signed(service, "route", "act_as", subject="web")
        assert (await ana("ResumeTask", decision("s", paused))).decisions == 1
        again = await frontend("ResumeTask", decision("s", paused, user_id="ana"))
        assert (again.decisions, again.decisions_needed) == (1, 2)


async def test_program_is_not_one_of_the_people_who_decide(tmp_path):
    """It may be in anybody's hands, the user's too; a rule for anyone, or for a role, is met."""
    for rule, is_for_people in (
        ("{by: other_than_owner}", True),
        ("{needs: 2}", True),
        ('{by: "role:clerk"}', False),
        ("{by: anyone}", False),
    ):
        async with serving_signed_in(tmp_path, desk(rule), store="memory:") as service:
            paused = await paused_signed_in(service, "s")
            program = signed(service, "approve", "clerk")
            (listed,) = (await program("ListApprovals", pb.ListApprovalsRequest())).approvals
            assert listed.may_decide is not is_for_people
            if is_for_people:
                refused = await refused_to(program("ResumeTask", decision("s", paused)))
                assert refused.reason == "APPROVER_REFUSED"
                assert "names no person" in refused.message
            else:
                assert (await program("ResumeTask", decision("s", paused))).decisions == 1


CALLERS = """
[[caller]]
certificate = "cn:ana-laptop"
user = "ana"
scopes = ["approve"]

[[caller]]
certificate = "cn:bea-laptop"
user = "bea"
scopes = ["approve"]

[[caller]]
certificate = "cn:batch"
scopes = ["approve"]
"""


async def test_certificate_and_token_of_one_person_are_one_person(tmp_path, authority):  # noqa: F811
    """Ana's certificate is hers as her token is, and bea's second credential is no second vote."""
    assert isinstance(authority, Authority)
    (tmp_path / "callers.toml").write_text(CALLERS)
    (tmp_path / "jwks.json").write_bytes(good_set())
    (tmp_path / "agents.yaml").write_text(desk("{by: other_than_owner, needs: 2}"))
    files = authority.sign("server")
    server = await RoutingServer.start(
        Settings(
            listen="127.0.0.1:0",
            store="memory:",
            agents=str(tmp_path / "agents.yaml"),
            sign_in="oidc+mtls",
            oidc_issuer=ISSUER,
            oidc_audience=AUDIENCE,
            oidc_jwks=str(tmp_path / "jwks.json"),
            tls_certificate_file=str(files.certificate),
            tls_key_file=str(files.key),
            tls_client_authority_file=str(authority.path),
            callers_file=str(tmp_path / "callers.toml"),
        )
    )
    certificates = {name: authority.sign(name) for name in ("ana-laptop", "bea-laptop", "batch")}

    def by(certificate, rpc, request, *, bearer_token=""):
        opened = channel(server.address, authority, certificates[certificate])
        return call(opened, rpc, request, bearer(bearer_token) if bearer_token else ())

    try:
        ana = sign(claims(scope="route"))
        agent = sign(claims(scope="agent", sub="runtime", client_id="runtime", agents=["*"]))
        routed = await by(
            "batch", "Route", pb.RouteRequest(session_id="s", text="hello"), bearer_token=ana
        )
        answer = pb.CompleteTurnRequest(
            session_id="s", request_id=routed.dispatch.request_id, agent_id="front", **needs()
        )
        await by("batch", "CompleteTurn", answer, bearer_token=agent)
        decided = decision("s", routed.dispatch)
        for certificate, why in (("ana-laptop", "own user"), ("batch", "names no person")):
            refused = await refused_to(by(certificate, "ResumeTask", decided))
            assert refused.reason == "APPROVER_REFUSED"
            assert why in refused.message
        assert (await by("bea-laptop", "ResumeTask", decided)).decisions == 1
        bea = sign(claims(scope="approve", sub="bea"))
        again = await by("bea-laptop", "ResumeTask", decided, bearer_token=bea)
        assert (again.decisions, again.decisions_needed) == (1, 2)
    finally:
        await server.stop(0.5)


@pytest.mark.parametrize("hidden", ["\u200b", "\u202e", "\u00ad", "\U000e0061", "\ufeff"])
async def test_name_with_a_character_that_is_not_seen_signs_nobody_in(tmp_path, hidden):
    """As no user_id has one: it would look like another person's name."""
    async with serving_signed_in(tmp_path, DESK, store="memory:") as service:
        for named in ({"user": f"ana{hidden}"}, {"user": "ana", "subject": f"{hidden}ana"}):
            caller = signed(service, "route", **named)
            refused = await refused_to(caller("ListAgents", pb.ListAgentsRequest()))
            assert refused.reason == "UNAUTHENTICATED", json.dumps(named)
