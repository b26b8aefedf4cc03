"""Conversations that nobody claims go back; what people say and note meanwhile."""

import pytest

from agent_routing.v1 import admin_service_pb2 as admin_pb
from agent_routing.v1 import admin_service_pb2_grpc, routing_service_pb2, turn_pb2
from routing_service.ids import new_uuid7
from routing_service.server.bounds import Bounds
from tests.rpc.live_service import (
    ask,
    hand_to,
    handed_from,
    is_replayed,
    outcome_status,
    refusal,
    serving,
    went,
)
from tests.rpc.signed_in import Signed, bearer, serving_signed_in, token
from tests.rpc.test_expiry import until
from tests.rpc.test_people import at_signed_in_desk, claim, person, release, waiting

pb = routing_service_pb2

SHOP = """
api_version: agent_routing/v1
version: shop-1
supervisor: front
default_locale: en
limits: {hops_per_message: 1}
agents:
  - {id: front, name: Front desk}
  - {id: orders, name: Orders}
  - id: desk
    name: Help desk
    kind: human
    claim_timeout: 2h
    unclaimed_timeout: 10m
    unclaimed_message: {en: Nobody is free right now., es: Ahora no hay nadie libre.}
  - {id: night, name: Night desk, kind: human, unclaimed_timeout: 1h}
"""

SWEEPING = {"expiry_sweep": True, "bounds": Bounds(sweep_interval_s=0.02)}


@pytest.fixture
async def service(tmp_path):
    """A shop with a help desk that does not let users wait for long."""
    async with serving(tmp_path, SHOP, **SWEEPING) as running:
        yield running


async def at_desk(service, text="My parcel is lost", *, by="orders", to="desk", **fields):
    """Begin a conversation that an agent hands to people. Return it and their request."""
    chat = service.chat()
    routed = await chat.say(text, **fields)
    given = routed.dispatch
    if by != "front":
        given = (await chat.answer(given, **hand_to(by))).next
    return chat, (await chat.answer(given, **hand_to(to))).next


async def goes_to(chat, agent_id, seconds):
    """Let time pass, until the service has moved the conversation. Return how it stands."""
    chat.service.clock.advance(seconds)

    async def is_there():
        requests = (await chat.status()).open_requests
        return [r.agent.agent_id for r in requests] == [agent_id]

    await until(is_there)
    return await chat.status()


async def stays(chat, agent_id, seconds):
    """Let time pass that is not enough. What is due exactly when is shown by the simulation."""
    chat.service.clock.advance(seconds)
    assert (await chat.status()).active_agent.agent_id == agent_id


async def test_what_nobody_claims_goes_back_to_who_gave_it_and_the_user_is_told(service):
    """A user must not wait for people who are not there."""
    chat, given = await at_desk(service)
    second = await chat.say("Order 17")
    assert went(second.dispatch) == ("desk", "STICKY")
    await stays(chat, "desk", 599)
    status = await goes_to(chat, "orders", 2)
    assert status.active_agent.agent_id == "orders"
    (request,) = status.open_requests  # What waited is one turn.
    assert (request.text, went(request)) == ("Order 17", ("orders", "RETURNED"))
    assert handed_from(request.handoff) == "desk"
    assert request.handoff.reason == "unclaimed"
    assert await waiting(service) == []
    turns = {turn.request_id: turn for turn in await chat.turns(agent_id="desk")}
    assert turns[given.request_id].answered_by == request.request_id
    assert turns[second.request_id].outcome == turn_pb2.TURN_OUTCOME_HANDOFF
    (said,) = [t for t in turns.values() if t.outcome == turn_pb2.TURN_OUTCOME_SAID]
    assert said.agent_text == "Nobody is free right now."
    # Neither the handoff to people nor the way back was a hop.
    handed = await chat.answer(request, "Let me ask again.", **hand_to("desk"))
    assert handed.next.agent.agent_id == "desk"
    await goes_to(chat, "orders", 601)  # Another wait.


async def test_it_goes_back_to_the_supervisor_in_the_users_language(service):
    """Home gets it where the supervisor gave it."""
    chat, _ = await at_desk(service, by="front", locale="es-MX")
    status = await goes_to(chat, "front", 601)
    assert not status.HasField("active_agent")
    assert [went(each) for each in status.open_requests] == [("front", "RETURNED")]
    assert "Ahora no hay nadie libre." in [turn.agent_text for turn in await chat.turns()]


async def test_a_claim_in_time_keeps_it_and_a_release_begins_another_wait(service):
    """Only what nobody has claimed goes back."""
    chat, _ = await at_desk(service)
    service.clock.advance(500)
    await claim(chat)
    await stays(chat, "desk", 3600)
    assert (await chat.status()).claim.claimant == "bea"
    await release(chat)
    await stays(chat, "desk", 599)
    await goes_to(chat, "orders", 2)


async def test_nothing_goes_back_while_nothing_waits(service):
    """The person has answered without a claim, so the user waits for nobody."""
    chat, given = await at_desk(service)
    await chat.answer(given, "Which order?", **ask())
    await stays(chat, "desk", 86_400)
    assert (await chat.status()).locked
    again = await chat.say("17")
    assert went(again.dispatch) == ("desk", "FOLLOW_UP_LOCK")
    status = await goes_to(chat, "orders", 601)
    assert (status.active_agent.agent_id, status.locked) == ("orders", False)


async def test_an_answer_after_it_went_back_is_stored(service):
    """The person was late; the text is not lost."""
    chat, given = await at_desk(service)
    await goes_to(chat, "orders", 601)
    late = await chat.answer(given, "It is on its way.")
    assert outcome_status(late) == "STORED_ONLY"
    assert (await chat.status()).active_agent.agent_id == "orders"


async def test_people_do_not_pass_it_to_and_fro(service):
    """Each desk gives it back once; the second time it goes home."""
    chat, given = await at_desk(service, to="night")
    handed = await chat.answer(given, **hand_to("desk"))
    assert handed.next.agent.agent_id == "desk"
    await goes_to(chat, "night", 601)
    await goes_to(chat, "front", 3601)


async def test_a_question_to_people_comes_back_without_an_answer(service):
    """The agent that asked goes on."""
    chat = service.chat()
    routed = await chat.say("May I return it?")
    consult = pb.HandoffOutcome(
        agent_id="desk", message="After 40 days?", mode="HANDOFF_MODE_CONSULT"
    )
    asked = await chat.answer(routed.dispatch, handoff=consult)
    assert asked.next.consult.question == "After 40 days?"
    (back,) = (await goes_to(chat, "front", 601)).open_requests
    assert went(back) == ("front", "CONSULTED")
    assert (back.consult.question, back.consult.answer) == ("After 40 days?", "")


def keep(chat, **fields):
    """Say something within a turn."""
    request = pb.KeepTurnRequest(session_id=chat.session_id, agent_id="desk", **fields)
    return chat.service.call("KeepTurn", request)


async def test_what_a_person_says_is_seen_and_the_turn_goes_on(service):
    """A user who waits wants to know that somebody is there."""
    chat, given = await at_desk(service)
    message_id = new_uuid7()
    said = await keep(chat, request_id=given.request_id, say="One moment.", message_id=message_id)
    assert (said.status, said.message_id) == (pb.KEEP_TURN_STATUS_KEPT, message_id)
    again = keep(chat, request_id=given.request_id, say="One moment.", message_id=message_id)
    assert (await again).revision == said.revision
    assert await is_replayed(again)
    other = keep(chat, request_id=given.request_id, say="Now.", message_id=message_id)
    assert (await refusal(other)).reason == "REQUEST_ID_REUSED"
    assert [r.request_id for r in (await chat.status()).open_requests] == [given.request_id]
    watch = service.stub.WatchSession(
        pb.WatchSessionRequest(
            session_id=chat.session_id, user_id="ana", after_revision=said.revision - 1
        )
    )
    await watch.read()  # The heartbeat that comes first.
    (event,) = (await watch.read()).change.events
    watch.cancel()
    assert event.message_said.message_id == message_id
    assert event.message_said.agent.agent_id == "desk"
    (turn,) = [t for t in await chat.turns() if t.request_id == message_id]
    assert (turn.agent_text, turn.outcome) == ("One moment.", turn_pb2.TURN_OUTCOME_SAID)
    assert turn.parent_request_id == given.request_id
    await chat.answer(given, "Solved.")
    gone = await keep(chat, request_id=given.request_id, say="Bye.")
    assert gone.status == pb.KEEP_TURN_STATUS_REQUEST_NOT_OPEN
    by_task = await keep(chat, task_id=given.task_id, say="By the way: it is Tuesday.")
    assert by_task.status == pb.KEEP_TURN_STATUS_KEPT
    assert (await chat.turns())[-1].agent_text == "By the way: it is Tuesday."
    assert not (await chat.status()).open_requests


async def test_fields_of_what_is_said_are_checked(service):
    """Each names the field."""
    chat, given = await at_desk(service)
    at = {"request_id": given.request_id}
    for wrong in (
        {"say": "x"},
        {"message_id": new_uuid7(), **at},
        {"say": "x", "note": "y", **at},
        {"say": "x", "release": True, **at},
        {"say": "x", "task_id": given.task_id, **at},
    ):
        assert (await refusal(keep(chat, **wrong))).reason == "INVALID_FIELD"
    other = await keep(chat, say="x", task_id=new_uuid7())
    assert other.status == pb.KEEP_TURN_STATUS_REQUEST_NOT_OPEN


async def test_only_the_claimant_speaks(tmp_path):
    """Two people must not talk to the same user."""
    async with serving_signed_in(tmp_path, SHOP) as service:
        given = await at_signed_in_desk(service)
        bea, cem = person(service, "bea"), person(service, "cem")
        await bea("ClaimTurn", pb.ClaimTurnRequest(session_id="s1", agent_id="desk"))
        say = pb.KeepTurnRequest(
            session_id="s1", request_id=given.request_id, agent_id="desk", say="Hello"
        )
        assert (await refusal(cem("KeepTurn", say))).reason == "CLAIMED"
        assert (await bea("KeepTurn", say)).status == pb.KEEP_TURN_STATUS_KEPT


def note(chat, text, **fields):
    """Note something."""
    fields = {"agent_id": "desk", "author": "bea", **fields}
    request = pb.AddNoteRequest(session_id=chat.session_id, text=text, **fields)
    return chat.service.call("AddNote", request)


async def test_notes_are_for_people_and_never_for_the_user(tmp_path):
    """What colleagues tell each other about a user stays among them."""
    async with serving_signed_in(tmp_path, SHOP) as service:
        await at_signed_in_desk(service)
        user = Signed(service, *bearer(token("route", user="ana")))
        bea, dan = person(service, "bea"), person(service, "dan", "orders")
        olga = Signed(service, *bearer(token("admin", subject="olga")))
        reader = Signed(service, *bearer(token("admin", "read_words", subject="rita")))
        wish = pb.AddNoteRequest(session_id="s1", agent_id="desk", text="Called twice already.")
        await bea("AddNote", wish)
        await olga("AddNote", pb.AddNoteRequest(session_id="s1", text="Is a reseller."))
        listing = pb.ListNotesRequest(session_id="s1", agent_id="desk")
        first, second = (await bea("ListNotes", listing)).notes
        assert (first.text, first.author) == ("Called twice already.", "bea")
        assert first.agent.agent_id == "desk"
        assert (second.text, second.author, second.HasField("agent")) == (
            "Is a reseller.",
            "olga",
            False,
        )
        every = pb.ListNotesRequest(session_id="s1")
        assert [n.text for n in (await olga("ListNotes", every)).notes] == ["", ""]
        assert (await reader("ListNotes", every)).notes[0].text == "Called twice already."
        for stranger in (user, dan):
            assert (await refusal(stranger("ListNotes", listing))).reason == "SCOPE_MISSING"
            assert (await refusal(stranger("AddNote", wish))).reason == "SCOPE_MISSING"
        forged = pb.AddNoteRequest(session_id="s1", agent_id="desk", text="x", author="cem")
        assert (await refusal(bea("AddNote", forged))).reason == "OWNER_MISMATCH"
        last = await user("Route", pb.RouteRequest(session_id="s1", text="Hello?"))
        turns = await user("ListTurns", pb.ListTurnsRequest(session_id="s1"))
        assert "Called twice" not in str(turns)
        kinds = {}
        for name, caller in (("user", user), ("person", bea)):
            watch = caller(
                "WatchSession", pb.WatchSessionRequest(session_id="s1", after_revision=0)
            )
            kinds[name] = seen = []
            async for response in watch:
                seen += [event.WhichOneof("kind") for event in response.change.events]
                if response.change.revision >= last.revision:
                    break
            watch.cancel()
        assert kinds["person"].count("note_added") == 2
        assert "note_added" not in kinds["user"]
        audit = await olga("ListEvents", admin_pb.ListEventsRequest(session_id="s1"))
        noted = [e.event for e in audit.records if e.event.HasField("note_added")]
        assert {e.note_added.author for e in noted} == {"bea", "olga"}


async def test_notes_are_bounded_repeatable_no_use_of_the_session_exported_and_erased(service):
    """They are content of the session as its messages are."""
    chat, given = await at_desk(service)
    assert (await refusal(note(chat, " "))).reason == "INVALID_FIELD"
    assert (await refusal(note(chat, "x" * 4097))).reason == "INVALID_FIELD"
    assert (await refusal(note(chat, "x", author=""))).reason == "INVALID_FIELD"
    assert (await refusal(note(chat, "x", task_id=new_uuid7()))).reason == "UNKNOWN_TASK"
    note_id = new_uuid7()
    added = await note(chat, "secret one", request_id=note_id, task_id=given.task_id)
    assert (await note(chat, "secret one", request_id=note_id, task_id=given.task_id)) == added
    for n in range(40):
        await note(chat, f"note {n}")
    listing = pb.ListNotesRequest(session_id=chat.session_id, agent_id="desk")
    listed = (await service.call("ListNotes", listing)).notes
    assert [n.text for n in listed] == [f"note {n}" for n in range(8, 40)]
    admin = admin_service_pb2_grpc.AdminServiceStub(service.channel)
    exported = str(
        [part async for part in admin.ExportUser(admin_pb.ExportUserRequest(user_id="ana"))]
    )
    assert "secret one" in exported
    await admin.EraseUser(admin_pb.EraseUserRequest(user_id="ana"))
    assert (await refusal(service.call("ListNotes", listing))).reason == "SESSION_ERASED"


async def test_notes_and_messages_of_a_parked_task_stay_with_it(tmp_path):
    """A person goes on with what the user has put aside, and its wait goes on."""
    registry = SHOP.replace("supervisor: front", "supervisor: front\nwhile_paused: park")
    async with serving(tmp_path, registry, **SWEEPING) as service:
        chat = service.chat()
        routed = await chat.say("Refund")
        paused = await chat.answer(
            routed.dispatch, approval_needed=pb.ApprovalNeededOutcome(prompt="40 EUR?")
        )
        other = await chat.say("My parcel is lost")
        given = (await chat.answer(other.dispatch, **hand_to("desk"))).next
        await chat.say("/task 1")
        assert (
            await note(chat, "about the parcel", task_id=given.task_id)
        ).task_id == given.task_id
        said = await keep(chat, request_id=given.request_id, say="I am looking.")
        assert said.status == pb.KEEP_TURN_STATUS_KEPT
        assert paused.task_id != given.task_id
        await goes_to(chat, "front", 601)
