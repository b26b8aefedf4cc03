"""What operators do, and what was refused, is in ListEvents: who, why and about what."""

import secrets

import pytest
from google.protobuf import timestamp_pb2

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import handoff_pb2
from agent_routing.v1 import routing_service_pb2 as rpb
from tests.rpc.live_service import finish, hand_to, refusal
from tests.rpc.registries import DESK
from tests.rpc.signed_in import Signed, bearer, serving_signed_in, token

TRACE = secrets.token_hex(16)
TRACED = ("traceparent", f"00-{TRACE}-{secrets.token_hex(8)}-01")


@pytest.fixture
async def service(tmp_path):
    """A help desk whose callers sign in."""
    async with serving_signed_in(tmp_path, DESK) as running:
        yield running


@pytest.fixture
def sam(service):
    """An operator."""
    return Signed(service, *bearer(token("admin", subject="sam"), TRACED))


@pytest.fixture
def ana(service):
    """A user."""
    return Signed(service, *bearer(token("route", user="ana"), TRACED))


def runtime(service, *agents):
    """Return the calls of a runtime of agents."""
    return Signed(service, *bearer(token("agent", subject="runtime", agents=agents), TRACED))


async def events(operator, **filters):
    """List the audit's records."""
    order = {} if "session_id" not in filters else {"order": pb.EVENT_ORDER_OLDEST_FIRST}
    return list((await operator("ListEvents", pb.ListEventsRequest(**filters, **order))).records)


def kind(record):
    """Return what a record is of."""
    return record.event.WhichOneof("kind")


async def talked(service, ana, session_id="chat-1", **fields):
    """Hold a conversation of one turn."""
    routed = await ana("Route", rpb.RouteRequest(session_id=session_id, text="hi", **fields))
    front = runtime(service, "front")
    await front(
        "CompleteTurn",
        rpb.CompleteTurnRequest(
            session_id=session_id,
            request_id=routed.dispatch.request_id,
            agent_id="front",
            text="hello",
            **finish(),
        ),
    )


async def purge_all(service, operator, **fields):
    """Remove every session."""
    service.clock.advance(60)
    when = timestamp_pb2.Timestamp()
    when.FromMicroseconds(service.clock.now_us)
    await operator("PurgeSessions", pb.PurgeSessionsRequest(update_time_before=when, **fields))


async def test_every_act_of_an_operator_is_recorded_with_who_why_and_trace(service, sam, ana):
    """Also those of no session: a reload, an export, an erasure, a purge."""
    await talked(service, ana)
    await sam("ReloadAgents", pb.ReloadAgentsRequest(reason="new agents"))
    export = sam("ExportUser", pb.ExportUserRequest(user_id="ana", reason="asked by mail"))
    assert [part async for part in export]
    await sam("EraseUser", pb.EraseUserRequest(user_id="ana", reason="request 17"))
    await purge_all(service, sam, reason="too old")
    acts = await events(sam, kinds=["operator_act"])
    told = [(each.event.operator_act.method, each.event.operator_act.reason) for each in acts]
    assert told == [
        ("ReloadAgents", "new agents"),
        ("ExportUser", "asked by mail"),
        ("EraseUser", "request 17"),
        ("PurgeSessions", "too old"),
    ]
    assert {each.actor for each in acts} == {"sam"}
    assert {each.trace_id for each in acts} == {TRACE}
    assert [each.method for each in acts] == [
        f"/agent_routing.v1.AdminService/{method}" for method, _ in told
    ]
    reload, export, erase, purge = (each.event.operator_act.target for each in acts)
    assert reload == 'registry "desk-1" to "desk-1"'
    assert purge.startswith("sessions before 20")
    # The user's id must not stay in the audit of its erasure.
    assert export.startswith("user ")
    assert erase.startswith("user ")
    assert "ana" not in export + erase
    assert export != erase
    mine = await events(sam, owner="ana")
    assert [each.event.operator_act.method for each in mine] == ["ExportUser", "EraseUser"]
    assert await events(sam, owner="ben") == []


async def test_no_session_s_name_reaches_the_records_of_acts(service, sam, ana):
    """A session may be called "*"; what an erasure removes of it is not the operators' acts."""
    await sam("ReloadAgents", pb.ReloadAgentsRequest(reason="new agents"))
    await talked(service, ana, session_id="*")
    await sam("EraseUser", pb.EraseUserRequest(user_id="ana", reason="request 17"))
    acts = await events(sam, kinds=["operator_act"])
    assert [each.event.operator_act.reason for each in acts] == ["new agents", "request 17"]
    assert all(kind(each) != "operator_act" for each in await events(sam, session_id="*"))


async def test_trials_are_no_acts(service, sam, ana):
    """A call that only says what it would do leaves no record."""
    await talked(service, ana)
    await sam("ReloadAgents", pb.ReloadAgentsRequest(validate_only=True))
    await sam("EraseUser", pb.EraseUserRequest(user_id="ana", validate_only=True))
    await purge_all(service, sam, validate_only=True)
    assert await events(sam, kinds=["operator_act"]) == []


@pytest.mark.parametrize("request_type", [pb.ReloadAgentsRequest, pb.ExportUserRequest])
async def test_reason_that_is_too_long_is_refused(sam, request_type):
    """As everywhere: at most 1 KiB."""
    request = request_type(reason="x" * 1025)
    if hasattr(request, "user_id"):
        request.user_id = "ana"
    call = sam(request_type.DESCRIPTOR.name.removesuffix("Request"), request)
    refused = await refusal(call if not hasattr(call, "read") else call.read())
    assert refused.metadata["field"] == "reason"


async def test_session_says_who_erased_it_and_who_purged_it(service, sam, ana):
    """With the reasons, also after the session is gone."""
    await talked(service, ana)
    await sam("EraseUser", pb.EraseUserRequest(user_id="ana", reason="request 17"))
    erased = (await events(sam, session_id="chat-1"))[-1]
    assert (kind(erased), erased.actor, erased.trace_id) == ("session_erased", "sam", TRACE)
    assert erased.event.session_erased.reason == "request 17"
    await purge_all(service, sam, reason="too old")
    purged = (await events(sam, session_id="chat-1"))[-1]
    assert (kind(purged), purged.actor, purged.trace_id) == ("session_purged", "sam", TRACE)
    assert purged.event.session_purged.reason == "too old"
    assert purged.event.revision == 3
    assert purged.method.endswith("AdminService/PurgeSessions")
    assert any(kind(each) == "session_purged" for each in await events(sam))
    # A new session of that name comes after the old one's records, in both orders.
    await talked(service, ana)
    both = [kind(each) for each in await events(sam, session_id="chat-1")]
    assert both.index("session_purged") < len(both) - 1 - both[::-1].index("session_started")
    newest = await sam("ListEvents", pb.ListEventsRequest(session_id="chat-1"))
    assert [kind(each) for each in newest.records] == both[::-1]


async def test_records_stay_readable_after_an_erasure_and_after_a_purge(service, sam, ana):
    """Kind, agents, caller, reason and trace stay. Content goes, and the user's id with it."""
    canary = f"canary{secrets.token_hex(8)}"
    user = Signed(service, *bearer(token("route", user=canary), TRACED))
    routed = await user(
        "Route", rpb.RouteRequest(session_id="chat-1", text=canary, metadata={"a": canary})
    )
    front = runtime(service, "front")
    handing = hand_to("sales", reason=canary, message=canary)
    answer = rpb.CompleteTurnRequest(
        session_id="chat-1",
        request_id=routed.dispatch.request_id,
        agent_id="front",
        text=canary,
    )
    answer.handoff.CopyFrom(hand_to("premium", reason=canary)["handoff"])
    service.clock.advance(1)
    await refusal(front("CompleteTurn", answer))
    service.clock.advance(1)
    answer.handoff.CopyFrom(handing["handoff"])
    await front("CompleteTurn", answer)
    operator = rpb.SetActiveAgentRequest(
        session_id="chat-1",
        agent_id="support",
        reason="by hand",
        initiator=handoff_pb2.INITIATOR_OPERATOR,
    )
    await sam("SetActiveAgent", operator)
    before = await events(sam, session_id="chat-1")
    before_ids = {each.event.event_id: place for place, each in enumerate(before)}
    await sam("EraseUser", pb.EraseUserRequest(user_id=canary, reason="request 17"))
    erased = await events(sam, session_id="chat-1")
    of_all = [each for each in await events(sam) if kind(each) != "operator_act"]
    service.clock.advance(3600)
    await purge_all(service, sam, reason="too old")
    purged = await events(sam, session_id="chat-1")
    then = [each for each in await events(sam) if kind(each) != "operator_act"]

    def facts(record):
        told = record.event
        made = [
            told.event_id,
            kind(record),
            record.method,
            record.trace_id,
            told.event_time.seconds,
        ]
        if kind(record) == "agent_handoff":
            handoff = told.agent_handoff.handoff
            made += [getattr(handoff, "from").agent_id, handoff.to.agent_id, handoff.mode]
            made += [told.agent_handoff.route_reason, handoff.initiator]
        if kind(record) == "handoff_refused":
            handoff = told.handoff_refused.handoff
            made += [handoff.to.agent_id, *[each.rule for each in told.handoff_refused.verdicts]]
        if kind(record) == "message_routed":
            made += [told.message_routed.agent.agent_id, told.message_routed.reason]
        return made

    for left in (of_all, then):
        # Without a session the archive's records have their own place.
        left.sort(key=lambda each: before_ids.get(each.event.event_id, len(before)))
    for left in (erased, of_all, purged, then):
        assert [facts(each) for each in left][: len(before)] == [facts(each) for each in before]
        assert not any(canary.encode() in each.SerializeToString() for each in left)
        # Others than the user stay named.
        callers = ["" if each.actor == canary else each.actor for each in before]
        assert [each.actor for each in left][: len(before)] == callers
        by_hand = [each for each in left if each.actor == "sam" and kind(each) == "agent_handoff"]
        assert [each.event.agent_handoff.handoff.reason for each in by_hand] == ["by hand"]
        assert all(each.content_removed for each in left[: len(before)])
    assert [kind(each) for each in purged[len(before) :]] == ["session_erased", "session_purged"]
    assert canary.encode() in b"".join(each.SerializeToString() for each in before)


async def test_pages_of_a_session_have_what_came_before_it_once(service, sam, ana):
    """In both orders and at every size: pages go on before the session's first change."""
    for _ in range(2):
        await talked(service, ana)
        await purge_all(service, sam)
    await talked(service, ana)
    for order in (pb.EVENT_ORDER_OLDEST_FIRST, pb.EVENT_ORDER_NEWEST_FIRST):
        whole = await sam("ListEvents", pb.ListEventsRequest(session_id="chat-1", order=order))
        for size in (1, 2, 3, 50):
            found, page_token = [], ""
            while True:
                request = pb.ListEventsRequest(
                    session_id="chat-1", order=order, page_size=size, page_token=page_token
                )
                page = await sam("ListEvents", request)
                found += [each.event.event_id for each in page.records]
                page_token = page.next_page_token
                if not page_token:
                    break
            assert found == [each.event.event_id for each in whole.records], (order, size)


async def test_events_name_the_trace_of_their_call(service, sam, ana):
    """In a trace that the caller brought; none without one."""
    await talked(service, ana)
    untraced = Signed(service, *bearer(token("route", user="ana")))
    await untraced("Route", rpb.RouteRequest(session_id="chat-1", text="/help"))
    found = await events(sam, session_id="chat-1")
    assert [each.trace_id for each in found[:-1]] == [TRACE] * (len(found) - 1)
    assert (kind(found[-1]), found[-1].trace_id) == ("command_handled", "")


async def test_refused_handoff_keeps_its_reason_and_its_caller(service, sam, ana):
    """A caller who named no user is not recorded as the owner."""
    routed = await ana("Route", rpb.RouteRequest(session_id="chat-1", text="hi"))
    front = runtime(service, "front")
    await refusal(
        front(
            "CompleteTurn",
            rpb.CompleteTurnRequest(
                session_id="chat-1",
                request_id=routed.dispatch.request_id,
                agent_id="front",
                **hand_to("premium", reason="wants gold"),
            ),
        )
    )
    request = rpb.SetActiveAgentRequest(
        session_id="chat-1",
        agent_id="disabled",
        reason="by hand",
        initiator=handoff_pb2.INITIATOR_OPERATOR,
    )
    refused = await refusal(sam("SetActiveAgent", request))
    assert refused.reason == "HANDOFF_REFUSED"
    found = await events(sam, kinds=["handoff_refused"])
    assert [each.event.handoff_refused.handoff.reason for each in found] == [
        "wants gold",
        "by hand",
    ]
    assert [(each.actor, each.acting_for, each.trace_id) for each in found] == [
        ("runtime", "", TRACE),
        ("sam", "", TRACE),
    ]


async def test_refusals_in_sessions_that_never_began_are_exported_and_erased(service, sam, ana):
    """No list of sessions shows them."""
    request = rpb.SetActiveAgentRequest(
        session_id="never",
        agent_id="journal",
        reason="please",
        initiator=handoff_pb2.INITIATOR_USER,
    )
    await refusal(ana("SetActiveAgent", request))

    async def exported():
        parts = sam("ExportUser", pb.ExportUserRequest(user_id="ana"))
        return [each.record async for each in parts if kind(each.record) == "handoff_refused"]

    (refused,) = await exported()
    assert refused.actor == "ana"
    (listed,) = await events(sam, session_id="never")
    assert listed == refused
    answer = await sam("EraseUser", pb.EraseUserRequest(user_id="ana", validate_only=True))
    assert (answer.sessions_erased, answer.records_stripped) == (0, 1)
    await sam("EraseUser", pb.EraseUserRequest(user_id="ana"))
    assert await exported() == []


async def test_export_has_entitlements_profiles_and_commands(service, sam):
    """All that a message said of its user, and commands as they were typed."""
    frontend = Signed(service, *bearer(token("route", "act_as", subject="web")))

    async def say(text, **profile):
        request = rpb.RouteRequest(session_id="chat-1", user_id="ana", text=text, **profile)
        return await frontend("Route", request)

    await say("hi", entitlements=["gold"], locale="es", channel="web")
    await say("/help me now")
    await say("again", entitlements=["gold", "tax"])
    parts = [each async for each in sam("ExportUser", pb.ExportUserRequest(user_id="ana"))]
    assert list(parts[0].session.entitlements) == ["gold", "tax"]
    profiles = [each.profile for each in parts if each.HasField("profile")]
    assert [(p.user_id, list(p.entitlements), p.locale) for p in profiles] == [
        ("ana", ["gold"], "es"),
        ("", ["gold", "tax"], ""),
    ]
    assert [each.command.text for each in parts if each.HasField("command")] == ["/help me now"]
