"""People as agents: their inbox, claims, and how their answers end turns."""

import pytest

from agent_routing.v1 import admin_service_pb2 as admin_pb
from agent_routing.v1 import (
    admin_service_pb2_grpc,
    agent_pb2,
    dispatch_pb2,
    routing_service_pb2,
    turn_pb2,
)
from routing_service.ids import new_uuid7
from tests.rpc.live_service import (
    ask,
    finish,
    hand_to,
    handed_from,
    is_replayed,
    outcome_status,
    proceed,
    reason,
    refusal,
    serving,
    went,
)
from tests.rpc.signed_in import Signed, bearer, serving_signed_in, token

pb = routing_service_pb2

SHOP = """
api_version: agent_routing/v1
version: shop-1
supervisor: front
limits: {turn_timeout: 10m, open_turns: 2, idle_timeout: 30m, hops_per_message: 1}
agents:
  - {id: front, name: Front desk}
  - {id: orders, name: Orders}
  - {id: returns, name: Returns}
  - {id: desk, name: Help desk, kind: human, aliases: [Help desk team], claim_timeout: 2h}
"""


@pytest.fixture
async def service(tmp_path):
    """A shop with a help desk of people."""
    async with serving(tmp_path, SHOP) as running:
        yield running


async def waiting(service, agent_id="desk", **fields):
    """List an inbox."""
    response = await service.call("ListWaiting", pb.ListWaitingRequest(agent_id=agent_id, **fields))
    return list(response.entries)


def claim(chat, who="bea", **fields):
    """Claim a conversation."""
    request = pb.ClaimTurnRequest(
        session_id=chat.session_id, agent_id="desk", claimant=who, **fields
    )
    return chat.service.call("ClaimTurn", request)


def release(chat, who="bea", **fields):
    """Give a claim up."""
    request = pb.ReleaseTurnRequest(
        session_id=chat.session_id, agent_id="desk", claimant=who, **fields
    )
    return chat.service.call("ReleaseTurn", request)


async def at_desk(service, text="My parcel is lost"):
    """Begin a conversation that the supervisor hands to the desk. Return it and the request."""
    chat = service.chat()
    routed = await chat.say(text)
    handed = await chat.answer(routed.dispatch, **hand_to("desk"))
    return chat, handed.next


async def test_a_handoff_to_a_person_puts_the_conversation_into_the_inbox(service):
    """Its message waits there until it is answered."""
    chat, given = await at_desk(service)
    assert given.agent.kind == agent_pb2.AGENT_KIND_HUMAN
    assert given.delivery == dispatch_pb2.DELIVERY_INBOX
    (entry,) = await waiting(service)
    assert (entry.session_id, entry.user_id) == (chat.session_id, "ana")
    assert [r.text for r in entry.open_requests] == ["My parcel is lost"]
    assert not entry.HasField("claim")
    await chat.answer(given, "It is on its way.")
    assert await waiting(service) == []


async def test_what_the_user_writes_meanwhile_waits_with_the_first_and_is_answered_with_it(service):
    """People read a conversation, not one message."""
    chat, given = await at_desk(service)
    first = (await waiting(service))[0].dispatch_time
    service.clock.advance(60)
    second = await chat.say("Order 17")
    third = await chat.say("From Monday")
    assert went(second.dispatch) == ("desk", "STICKY")
    (entry,) = await waiting(service)
    assert [r.text for r in entry.open_requests] == ["My parcel is lost", "Order 17", "From Monday"]
    assert entry.dispatch_time == first  # Its place in the queue is the first one's.
    answered = await chat.answer(third.dispatch, "It arrives today.")
    assert outcome_status(answered) == "APPLIED"
    assert await waiting(service) == []
    turns = await chat.turns(agent_id="desk")
    closed = {turn.request_id: turn for turn in turns}
    for request in (given, second.dispatch):
        turn = closed[request.request_id]
        assert turn.outcome == turn_pb2.TURN_OUTCOME_ANSWERED
        assert turn.answered_by == third.dispatch.request_id
    assert not (await chat.status()).open_requests


async def test_an_answer_to_an_earlier_message_is_stored_and_the_newer_one_waits_on(service):
    """The user wrote while the person did."""
    chat, given = await at_desk(service)
    second = await chat.say("Order 17")
    answered = await chat.answer(given, "Which order?")
    assert outcome_status(answered) == "STORED_ONLY"
    (entry,) = await waiting(service)
    assert [r.request_id for r in entry.open_requests] == [second.dispatch.request_id]


async def test_no_time_out_takes_a_conversation_from_a_person(service):
    """Nobody knows how long a person needs."""
    chat, given = await at_desk(service)
    service.clock.advance(3600)  # Past turn_timeout and idle_timeout.
    status = await chat.status()
    assert status.active_agent.agent_id == "desk"
    assert [r.request_id for r in status.open_requests] == [given.request_id]
    assert reason((await chat.say("Hello?")).dispatch) == "STICKY"


async def test_the_limit_of_open_turns_is_for_agents(service):
    """People read on; 16 are what the state has room for."""
    chat, _ = await at_desk(service)
    for n in range(4):
        await chat.say(f"and {n}")
    assert len((await chat.status()).open_requests) == 5
    for n in range(20):
        await chat.say(f"and again {n}")
    assert len((await chat.status()).open_requests) == 16  # The bound of the state.


async def test_a_handoff_to_a_person_is_no_hop(service):
    """However often agents handed it on, a person can be asked."""
    chat = service.chat()
    routed = await chat.say("orders")
    to_orders = await chat.answer(routed.dispatch, **hand_to("orders"))  # The one hop.
    refused = await refusal(chat.answer(to_orders.next, **hand_to("returns")))
    assert refused.rules == ["hop_limit"]
    to_desk = await chat.answer(to_orders.next, **hand_to("desk"))
    assert to_desk.next.agent.agent_id == "desk"


async def test_a_claim_is_one_persons_until_it_is_given_up(service):
    """Two people must not answer the same user."""
    chat, _ = await at_desk(service)
    claimed = await claim(chat)
    assert (claimed.claim.claimant, claimed.taken_from) == ("bea", "")
    assert claimed.claim.expire_time.seconds - claimed.claim.claim_time.seconds == 7200
    assert (await waiting(service))[0].claim == claimed.claim
    assert (await chat.status()).claim == claimed.claim
    code, why = refused = await refusal(claim(chat, "cem"))
    metadata = refused.metadata
    assert (code, why) == ("FAILED_PRECONDITION", "CLAIMED")
    assert (metadata["claimant"], metadata["agent_id"]) == ("bea", "desk")
    assert (await refusal(release(chat, "cem"))).reason == "CLAIMED"
    again = await claim(chat)  # The same person: nothing is written.
    assert again.revision == claimed.revision
    released = await release(chat)
    assert released.released_from == "bea"
    assert not (await chat.status()).HasField("claim")
    assert (await release(chat)).revision == released.revision
    assert (await claim(chat, "cem")).claim.claimant == "cem"
    assert (await chat.kinds())[-3:] == ["Claimed", "ClaimReleased", "Claimed"]


async def test_a_claim_is_taken_over_only_on_purpose_and_says_from_whom(service):
    """A colleague who is ill does not keep the user waiting."""
    chat, _ = await at_desk(service)
    await claim(chat)
    taken = await claim(chat, "cem", take_over=True, reason="bea is ill")
    assert (taken.claim.claimant, taken.taken_from) == ("cem", "bea")
    stored = (await chat.events())[-1]
    assert (stored.taken_from, stored.reason) == ("bea", "bea is ill")
    stub = admin_service_pb2_grpc.AdminServiceStub(service.channel)
    listing = admin_pb.ListEventsRequest(session_id=chat.session_id, kinds=["claimed"])
    latest = (await stub.ListEvents(listing)).records[0].event
    assert latest.claimed.reason == "bea is ill"
    too_long = claim(chat, "dan", take_over=True, reason="x" * 1025)
    assert (await refusal(too_long)).reason == "INVALID_FIELD"
    code, why = refused = await refusal(release(chat))
    metadata = refused.metadata
    assert (code, why, metadata["claimant"]) == ("FAILED_PRECONDITION", "CLAIMED", "cem")


async def test_a_repeated_claim_gets_its_first_answer(service):
    """An answer may be lost on its way."""
    chat, _ = await at_desk(service)
    request_id = new_uuid7()
    first = await claim(chat, request_id=request_id)
    await claim(chat, "cem", take_over=True)
    again = claim(chat, request_id=request_id)
    assert await again == first
    assert await is_replayed(again)
    assert (await refusal(claim(chat, "cem", request_id=request_id))).reason == "REQUEST_ID_REUSED"


async def test_a_claim_ends_after_its_time_and_is_extended_by_claiming_again(service):
    """A person who went home does not keep it."""
    chat, _ = await at_desk(service)
    first = await claim(chat)
    service.clock.advance(3601)  # Less than half is left.
    extended = await claim(chat)
    assert extended.claim.expire_time.seconds == first.claim.expire_time.seconds + 3601
    assert extended.taken_from == ""
    service.clock.advance(7201)
    assert not (await chat.status()).HasField("claim")
    assert not (await waiting(service))[0].HasField("claim")
    assert (await claim(chat, "cem")).claim.claimant == "cem"
    assert (await chat.kinds())[-2:] == ["ClaimReleased", "Claimed"]


async def test_a_claim_ends_when_the_conversation_leaves_the_person(service):
    """There is nothing left that the person could answer."""
    chat, given = await at_desk(service)
    await claim(chat)
    handed = await chat.answer(given, "Orders takes care of it.", **hand_to("orders"))
    assert handed.next.agent.agent_id == "orders"
    assert handed_from(handed.next.handoff) == "desk"
    assert (await chat.kinds())[-1] == "ClaimReleased"
    assert not (await chat.status()).HasField("claim")
    code, why = refused = await refusal(claim(chat))
    metadata = refused.metadata
    assert (code, why) == ("FAILED_PRECONDITION", "NOTHING_TO_CLAIM")
    assert metadata["agent_id"] == "desk"


@pytest.mark.parametrize("text", ["/supervisor", "/reset"])
async def test_users_leave_a_person_by_command(service, text):
    """Nobody is trapped with a person either."""
    chat, _ = await at_desk(service)
    await claim(chat)
    await chat.say(text)
    assert "ClaimReleased" in await chat.kinds()
    assert await waiting(service) == []
    assert went((await chat.say("hello")).dispatch)[0] == "front"


async def test_a_claim_stays_while_the_person_waits_for_the_user(service):
    """The user answers the person who asked."""
    chat, given = await at_desk(service)
    await claim(chat)
    await chat.answer(given, "Which order?", **ask())
    status = await chat.status()
    assert status.locked
    assert status.claim.claimant == "bea"
    assert await waiting(service) == []
    again = await chat.say("17")
    assert went(again.dispatch) == ("desk", "FOLLOW_UP_LOCK")
    assert (await waiting(service))[0].claim.claimant == "bea"
    await chat.answer(again.dispatch, "Thank you, it is done.", **finish())
    assert not (await chat.status()).HasField("claim")
    assert not (await chat.status()).active_agent.agent_id


async def test_a_switch_off_leaves_conversations_with_people(service):
    """Until the person hands back: then the switch holds."""
    chat, given = await at_desk(service)
    await claim(chat)
    admin = admin_service_pb2_grpc.AdminServiceStub(service.channel)
    await admin.SetStickiness(admin_pb.SetStickinessRequest(enabled=False, reason="trouble"))
    again = await chat.say("Hello?")
    assert went(again.dispatch) == ("desk", "STICKY")
    assert (await chat.status()).next_agent.agent_id == "desk"
    await chat.answer(again.dispatch, "It is solved.", **finish())
    assert given.request_id not in [r.request_id for r in (await chat.status()).open_requests]
    assert went((await chat.say("Thanks")).dispatch) == ("front", "STICKINESS_DISABLED")


async def test_while_stickiness_is_off_a_handoff_to_a_person_is_for_one_message(tmp_path):
    """The switch holds for people too, once they do not have the conversation."""
    registry = SHOP.replace("supervisor: front", "supervisor: front\nstickiness: disabled")
    async with serving(tmp_path, registry) as service:
        chat = service.chat()
        routed = await chat.say("hello")
        given = (await chat.answer(routed.dispatch, **hand_to("desk"))).next
        assert (await waiting(service))[0].open_requests[0].request_id == given.request_id
        assert (await claim(chat)).claim.claimant == "bea"
        await chat.answer(given, "Done.")
        assert await waiting(service) == []
        assert not (await chat.status()).HasField("claim")
        assert went((await chat.say("More")).dispatch)[0] == "front"


@pytest.mark.parametrize("double_text", ["reject", "queue"])
async def test_messages_to_a_person_neither_wait_nor_are_refused(tmp_path, double_text):
    """Users add what they forgot."""
    registry = SHOP.replace("supervisor: front", f"supervisor: front\ndouble_text: {double_text}")
    async with serving(tmp_path, registry) as service:
        chat, _ = await at_desk(service)
        assert went((await chat.say("and more")).dispatch) == ("desk", "STICKY")
        assert len((await waiting(service))[0].open_requests) == 2


async def test_pages_of_an_inbox(service):
    """The longest waiting comes first."""
    chats = []
    for n in range(5):
        chats.append((await at_desk(service, f"question {n}"))[0])
        service.clock.advance(1)
    seen, token_of_page = [], ""
    while True:
        request = pb.ListWaitingRequest(agent_id="desk", page_size=2, page_token=token_of_page)
        page = await service.call("ListWaiting", request)
        seen += [entry.session_id for entry in page.entries]
        token_of_page = page.next_page_token
        if not token_of_page:
            break
    assert seen == [chat.session_id for chat in chats]


async def test_fields_are_checked(service):
    """Each names the field."""
    chat, _ = await at_desk(service)
    assert await waiting(service, "left-the-registry") == []
    assert (await refusal(waiting(service, ""))).reason == "INVALID_FIELD"
    assert (await refusal(waiting(service, page_size=101))).reason == "INVALID_FIELD"
    code, why = refused = await refusal(claim(chat, ""))
    metadata = refused.metadata
    assert (code, why) == ("INVALID_ARGUMENT", "INVALID_FIELD")
    assert metadata["field"] == "claimant"
    wrong = pb.ClaimTurnRequest(session_id=chat.session_id, agent_id="orders", claimant="bea")
    assert (await refusal(service.call("ClaimTurn", wrong))).reason == "INVALID_FIELD"
    unknown = pb.ClaimTurnRequest(session_id="nowhere", agent_id="desk", claimant="bea")
    assert (await refusal(service.call("ClaimTurn", unknown))).reason == "UNKNOWN_SESSION"
    mismatch = await refusal(claim(chat, expected_revision=1))
    assert mismatch.reason == "REVISION_MISMATCH"


async def test_workers_do_not_lease_what_waits_for_people(service):
    """A lease of seconds is not a claim."""
    stream = service.stub.WatchInbox(pb.WatchInboxRequest(agent_ids=["desk"], worker_id="w1"))
    code, why = await refusal(stream.read())
    assert (code, why) == ("INVALID_ARGUMENT", "INVALID_FIELD")


def person(service, subject, *agents, scopes=("agent",)):
    """A signed-in person of agents."""
    return Signed(service, *bearer(token(*scopes, subject=subject, agents=agents or ("desk",))))


async def test_the_claimant_is_the_credentials_subject(tmp_path):
    """Nobody claims in another name, and operators may end a claim."""
    async with serving_signed_in(tmp_path, SHOP) as service:
        frontend = Signed(service, *bearer(token("route", user="ana")))
        runtime = person(service, "front-runtime", "front")
        routed = await frontend("Route", pb.RouteRequest(session_id="s1", text="help"))
        complete = pb.CompleteTurnRequest(
            session_id="s1", request_id=routed.dispatch.request_id, agent_id="front"
        )
        complete.handoff.agent_id = "desk"
        complete.handoff.reason = "ana says: help"
        given = (await runtime("CompleteTurn", complete)).next
        bea, cem = person(service, "bea"), person(service, "cem")
        wish = pb.ClaimTurnRequest(session_id="s1", agent_id="desk")
        assert (await bea("ClaimTurn", wish)).claim.claimant == "bea"
        assert (await refusal(cem("ClaimTurn", wish))).reason == "CLAIMED"
        as_bea = pb.ClaimTurnRequest(session_id="s1", agent_id="desk", claimant="bea")
        assert (await refusal(cem("ClaimTurn", as_bea))).reason == "OWNER_MISMATCH"
        answer = pb.CompleteTurnRequest(
            session_id="s1", request_id=given.request_id, agent_id="desk", text="Hi", **proceed()
        )
        assert (await refusal(cem("CompleteTurn", answer))).reason == "CLAIMED"
        for stranger in (
            person(service, "dan", "orders"),
            Signed(service, *bearer(token("route", user="ana"))),
        ):
            assert (await refusal(stranger("ClaimTurn", wish))).reason == "SCOPE_MISSING"
            listed = stranger("ListWaiting", pb.ListWaitingRequest(agent_id="desk"))
            assert (await refusal(listed)).reason == "SCOPE_MISSING"
        operator = Signed(service, *bearer(token("admin", subject="olga")))
        listing = pb.ListWaitingRequest(agent_id="desk")
        (seen,) = (await bea("ListWaiting", listing)).entries
        assert seen.open_requests[0].text == "help"
        assert seen.open_requests[0].handoff.reason == "ana says: help"
        (seen,) = (await operator("ListWaiting", listing)).entries
        assert (seen.claim.claimant, seen.open_requests[0].text) == ("bea", "")
        assert seen.open_requests[0].agent.display_name == "Help desk"
        assert "help" not in str(seen.open_requests[0].handoff)
        freed = pb.ReleaseTurnRequest(session_id="s1", agent_id="desk")
        assert (await operator("ReleaseTurn", freed)).released_from == "bea"
        over = pb.ClaimTurnRequest(session_id="s1", agent_id="desk", take_over=True)
        assert (await operator("ClaimTurn", over)).claim.claimant == "olga"
        assert (await cem("ClaimTurn", over)).taken_from == "olga"
        assert (await cem("CompleteTurn", answer)).text == "Hi"


async def at_signed_in_desk(service, session_id="s1"):
    """Begin a conversation that the supervisor hands to the desk. Return the desk's request."""
    frontend = Signed(service, *bearer(token("route", user="ana")))
    routed = await frontend("Route", pb.RouteRequest(session_id=session_id, text="help"))
    complete = pb.CompleteTurnRequest(
        session_id=session_id, request_id=routed.dispatch.request_id, agent_id="front"
    )
    complete.handoff.agent_id = "desk"
    runtime = person(service, "front-runtime", "front")
    return (await runtime("CompleteTurn", complete)).next


@pytest.mark.parametrize("in_turn", [True, False], ids=["in the turn", "between turns"])
@pytest.mark.parametrize("initiator", ["UNSPECIFIED", "AGENT"])
async def test_another_person_does_not_hand_over_what_one_has_claimed(tmp_path, in_turn, initiator):
    """A handoff by itself moves as much as an answer, so the same person has to make it."""
    async with serving_signed_in(tmp_path, SHOP) as service:
        given = await at_signed_in_desk(service)
        bea, cem = person(service, "bea"), person(service, "cem")
        if not in_turn:
            answer = pb.CompleteTurnRequest(
                session_id="s1", request_id=given.request_id, agent_id="desk", **ask()
            )
            await bea("CompleteTurn", answer)
        wish = pb.ClaimTurnRequest(session_id="s1", agent_id="desk")
        claimed = await bea("ClaimTurn", wish)
        moved = pb.SetActiveAgentRequest(
            session_id="s1",
            agent_id="orders",
            turn_request_id=given.request_id if in_turn else "",
            initiator=f"INITIATOR_{initiator}",
        )
        for named in ("", "desk", "Help desk team"):
            for is_trial in (True, False):
                moved.from_agent_id, moved.validate_only = named, is_trial
                code, why = refused = await refusal(cem("SetActiveAgent", moved))
                assert (code, why) == ("FAILED_PRECONDITION", "CLAIMED")
                assert refused.metadata["claimant"] == "bea"
                assert refused.metadata["agent_id"] == "desk"
        status = await cem("Status", pb.StatusRequest(session_id="s1"))
        assert (status.revision, status.claim) == (claimed.revision, claimed.claim)
        assert (await bea("SetActiveAgent", moved)).agent.agent_id == "orders"
        assert "ClaimReleased" in await service.chat("s1").kinds()


async def test_what_another_has_claimed_is_not_taken_away_nor_spoken_in(tmp_path):
    """Clearing, cancelling, showing a part of an answer, or answering an earlier message."""
    async with serving_signed_in(tmp_path, SHOP) as service:
        given = await at_signed_in_desk(service)
        frontend = Signed(service, *bearer(token("route", user="ana")))
        later = await frontend("Route", pb.RouteRequest(session_id="s1", text="Order 17"))
        bea, cem = person(service, "bea"), person(service, "cem")
        wish = pb.ClaimTurnRequest(session_id="s1", agent_id="desk")
        claimed = await bea("ClaimTurn", wish)
        desk = {"session_id": "s1", "agent_id": "desk"}
        speaks = {**desk, "request_id": later.request_id}
        calls = (
            ("ClearActiveAgent", pb.ClearActiveAgentRequest(session_id="s1")),
            ("ClearActiveAgent", pb.ClearActiveAgentRequest(session_id="s1", scope=2)),
            ("CancelTask", pb.CancelTaskRequest(session_id="s1", task_id=later.task_id)),
            ("KeepTurn", pb.KeepTurnRequest(**speaks, note="cem looks")),
            ("KeepTurn", pb.KeepTurnRequest(**speaks, delta=pb.AnswerDelta(text="No, "))),
            (
                "CompleteTurn",
                pb.CompleteTurnRequest(
                    **desk, request_id=given.request_id, text="Never mind.", **proceed()
                ),
            ),
        )
        for rpc, request in calls:
            code, why = refused = await refusal(cem(rpc, request))
            assert (code, why) == ("FAILED_PRECONDITION", "CLAIMED"), rpc
            assert refused.metadata["claimant"] == "bea"
        assert (await bea("Status", pb.StatusRequest(session_id="s1"))).revision == claimed.revision
        for rpc, request in calls[3:5]:
            assert (await bea(rpc, request)).status == pb.KEEP_TURN_STATUS_KEPT
        answer = pb.CompleteTurnRequest(**speaks, text="It is on its way.", **proceed())
        assert outcome_status(await bea("CompleteTurn", answer)) == "APPLIED"
        # Both are answered by now: what cem says to the first would be shown all the same.
        assert (await refusal(cem(*calls[5]))).reason == "CLAIMED"
        assert (await bea(*calls[0])).previous_agent.agent_id == "desk"
        assert "ClaimReleased" in await service.chat("s1").kinds()


async def test_operators_the_supervisor_and_a_takeover_move_what_another_has_claimed(tmp_path):
    """A claim keeps the people of one agent apart; it binds no one else."""
    async with serving_signed_in(tmp_path, SHOP) as service:
        bea, cem = person(service, "bea"), person(service, "cem")
        movers = {
            "s1": (Signed(service, *bearer(token("admin", subject="olga"))), "OPERATOR"),
            "s2": (person(service, "front-runtime", "front"), "SUPERVISOR"),
            "s3": (cem, "AGENT"),
        }
        for session_id, (mover, initiator) in movers.items():
            given = await at_signed_in_desk(service, session_id)
            wish = pb.ClaimTurnRequest(session_id=session_id, agent_id="desk")
            await bea("ClaimTurn", wish)
            if mover is cem:
                wish.take_over = True
                assert (await cem("ClaimTurn", wish)).taken_from == "bea"
            moved = pb.SetActiveAgentRequest(
                session_id=session_id,
                agent_id="orders",
                turn_request_id="" if initiator == "SUPERVISOR" else given.request_id,
                initiator=f"INITIATOR_{initiator}",
            )
            assert (await mover("SetActiveAgent", moved)).agent.agent_id == "orders"
            assert "ClaimReleased" in await service.chat(session_id).kinds()
