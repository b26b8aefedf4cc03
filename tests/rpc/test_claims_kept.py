"""Claims where a conversation is more than one task, in older stores, and in operators' lists."""

from pathlib import Path

import pytest

from agent_routing.v1 import admin_service_pb2 as admin_pb
from agent_routing.v1 import admin_service_pb2_grpc
from agent_routing.v1 import routing_service_pb2 as pb
from tests.rpc.live_service import hand_to, outcome_status, refusal, serving, went
from tests.rpc.signed_in import Signed, bearer, serving_signed_in, token
from tests.rpc.test_people import at_desk, claim, person, release, waiting

PARKS = """
api_version: agent_routing/v1
version: shop-1
supervisor: front
while_paused: park
agents:
  - {id: front, name: Front desk}
  - {id: refunds, name: Refunds}
  - {id: desk, name: Help desk, kind: human, claim_timeout: 2h}
"""

GOLDEN = Path(__file__).parent.parent / "compatibility" / "golden" / "0.1.0" / "store.db.gz"


@pytest.fixture
async def service(tmp_path):
    """A shop that parks tasks, with a help desk of people."""
    async with serving(tmp_path, PARKS) as running:
        yield running


async def begin(chat, agent_id, text):
    """Begin a task that the supervisor hands over. Return the agent's request."""
    routed = await chat.say(text)
    assert went(routed.dispatch)[0] == "front"
    return (await chat.answer(routed.dispatch, **hand_to(agent_id))).next


async def with_a_parked_task(service):
    """Begin a conversation with a task that waits for an approval. Return it and the task's id."""
    chat = service.chat()
    given = await begin(chat, "refunds", "Refund order 17")
    await chat.answer(given, approval_needed=pb.ApprovalNeededOutcome(prompt="40 EUR?"))
    return chat, given.task_id


async def claimants(service):
    """Return who has claimed each task that waits at the desk, "" for nobody."""
    return [entry.claim.claimant for entry in await waiting(service)]


async def test_a_claim_travels_with_its_parked_task(service):
    """The user looks at another task, comes back, and is with the same person."""
    chat, paused_id = await with_a_parked_task(service)
    given = await begin(chat, "desk", "My parcel is lost")
    first = (await claim(chat)).claim
    assert (await chat.status()).claim == first
    await chat.say("What of my refund?", task_id=paused_id)
    status = await chat.status()
    assert [each.agent.agent_id for each in status.parked_tasks] == ["desk"]
    assert not status.HasField("claim")  # It is the parked task's.
    refused = await refusal(claim(chat, "cem", take_over=True))
    assert refused.reason == "NOTHING_TO_CLAIM"
    assert (await release(chat, "cem")).released_from == ""
    again = await chat.say("And my parcel?", task_id=given.task_id)
    assert went(again.dispatch) == ("desk", "STICKY")
    assert (await chat.status()).claim == first
    assert (await refusal(claim(chat, "cem"))).reason == "CLAIMED"
    assert await claimants(service) == ["bea"]
    kinds = await chat.kinds()
    assert (kinds.count("Claimed"), kinds.count("ClaimReleased")) == (1, 0)
    await chat.answer(again.dispatch, "It arrives today.")
    assert (await release(chat)).released_from == "bea"


async def test_each_task_has_one_claimant_at_most(service):
    """Two tasks of a session may be with two people, each its own."""
    chat, paused_id = await with_a_parked_task(service)
    parcel = await begin(chat, "desk", "My parcel is lost")
    await claim(chat, "bea")
    await chat.say("What of my refund?", task_id=paused_id)
    invoice = await begin(chat, "desk", "My invoice is wrong")
    assert invoice.task_id != parcel.task_id
    assert not (await chat.status()).HasField("claim")
    await claim(chat, "cem")
    await chat.say("The parcel, please", task_id=parcel.task_id)
    assert (await chat.status()).claim.claimant == "bea"
    await chat.say("The invoice, please", task_id=invoice.task_id)
    assert (await chat.status()).claim.claimant == "cem"
    assert (await refusal(claim(chat, "bea"))).metadata["claimant"] == "cem"
    taken = await claim(chat, "bea", take_over=True)
    assert (taken.claim.claimant, taken.taken_from) == ("bea", "cem")
    await chat.say("The parcel again", task_id=parcel.task_id)
    assert (await release(chat)).released_from == "bea"
    assert not (await chat.status()).HasField("claim")
    await chat.say("The invoice again", task_id=invoice.task_id)
    assert (await chat.status()).claim.claimant == "bea"  # Releasing one leaves the other.


async def test_a_claim_runs_out_while_its_task_is_parked(service):
    """Its time goes on: the person does not get it back hours later."""
    chat, paused_id = await with_a_parked_task(service)
    given = await begin(chat, "desk", "My parcel is lost")
    await claim(chat)
    await chat.say("What of my refund?", task_id=paused_id)
    service.clock.advance(7201)
    await chat.say("And my parcel?", task_id=given.task_id)
    assert not (await chat.status()).HasField("claim")
    assert (await claim(chat, "cem")).taken_from == ""
    assert (await chat.kinds())[-2:] == ["ClaimReleased", "Claimed"]


async def test_only_the_claimant_answers_or_hands_on_a_parked_task(tmp_path):
    """The claim is its task's, wherever the conversation is."""
    async with serving_signed_in(tmp_path, PARKS) as service:
        frontend = Signed(service, *bearer(token("route", user="ana")))
        runtime = person(service, "runtime", "front", "refunds")
        bea, cem = person(service, "bea"), person(service, "cem")

        async def says(text, task_id="", agent_id=""):
            """Send the user's message; the supervisor hands it over."""
            request = pb.RouteRequest(session_id="s1", text=text, task_id=task_id)
            dispatch = (await frontend("Route", request)).dispatch
            if not agent_id:
                return dispatch
            answer = pb.CompleteTurnRequest(
                session_id="s1", request_id=dispatch.request_id, agent_id="front"
            )
            answer.handoff.agent_id = agent_id
            return (await runtime("CompleteTurn", answer)).next

        paused = await says("Refund order 17", agent_id="refunds")
        asked = pb.CompleteTurnRequest(
            session_id="s1", request_id=paused.request_id, agent_id="refunds"
        )
        asked.approval_needed.prompt = "40 EUR?"
        await runtime("CompleteTurn", asked)
        given = await says("My parcel is lost", agent_id="desk")
        await bea("ClaimTurn", pb.ClaimTurnRequest(session_id="s1", agent_id="desk"))
        await says("What of my refund?", task_id=paused.task_id)
        answer = pb.CompleteTurnRequest(
            session_id="s1", request_id=given.request_id, agent_id="desk", text="Today."
        )
        answer.proceed.SetInParent()
        moved = pb.SetActiveAgentRequest(
            session_id="s1", agent_id="refunds", turn_request_id=given.request_id
        )
        note = pb.KeepTurnRequest(
            session_id="s1", request_id=given.request_id, agent_id="desk", note="cem looks"
        )
        cancelled = pb.CancelTaskRequest(session_id="s1", task_id=given.task_id)
        for rpc, request in (
            ("CompleteTurn", answer),
            ("SetActiveAgent", moved),
            ("KeepTurn", note),
            ("CancelTask", cancelled),
        ):
            refused = await refusal(cem(rpc, request))
            assert (refused.reason, refused.metadata["claimant"]) == ("CLAIMED", "bea")
        assert outcome_status(await bea("CompleteTurn", answer)) == "APPLIED"


async def test_operators_find_a_persons_entry_by_its_first_turn(tmp_path):
    """One entry per conversation, at the place where its wait began."""
    async with serving(tmp_path, PARKS) as service:
        admin = admin_service_pb2_grpc.AdminServiceStub(service.channel)
        chat, given = await at_desk(service)
        service.clock.advance(60)
        await chat.say("Order 17")
        last = await chat.say("From Monday")
        for agent_id in ("desk", ""):
            listed = await admin.ListInbox(admin_pb.ListInboxRequest(agent_id=agent_id))
            (entry,) = listed.entries
            assert (entry.session_id, entry.user_id) == (chat.session_id, "ana")
            assert (entry.request_id, entry.agent.agent_id) == (given.request_id, "desk")
            assert entry.dispatch_time == (await waiting(service))[0].dispatch_time
            assert (entry.worker_id, entry.attempt) == ("", 0)
        await claim(chat)
        assert len((await admin.ListInbox(admin_pb.ListInboxRequest())).entries) == 1
        await chat.answer(last.dispatch, "It arrives today.")
        assert not (await admin.ListInbox(admin_pb.ListInboxRequest())).entries
