"""A message that waits while its conversation is moved: nobody waits for what cannot come."""

import asyncio

import pytest

from agent_routing.v1 import (
    clear_scope_pb2,
    dispatch_pb2,
    handoff_pb2,
    moved_turn_pb2,
    session_event_pb2,
    turn_pb2,
)
from agent_routing.v1 import routing_service_pb2 as pb
from routing_service.ids import new_uuid7
from routing_service.server.bounds import Bounds
from routing_service.sessions import expiry_sweeper
from tests.rpc.live_service import (
    ask,
    hand_to,
    initiator,
    outcome_status,
    proceed,
    refusal,
    serving,
    struct,
)
from tests.rpc.signed_in import serving_signed_in, signed
from tests.rpc.test_inbox import complete, keep, working

OPERATOR = handoff_pb2.INITIATOR_OPERATOR
USER = handoff_pb2.INITIATOR_USER
TAKE_ALONG = moved_turn_pb2.MovedTurn.OPEN_TURN_TAKE_ALONG
LEAVE = moved_turn_pb2.MovedTurn.OPEN_TURN_LEAVE
ABANDON = moved_turn_pb2.MovedTurn.OPEN_TURN_ABANDON

SHOP = """
api_version: agent_routing/v1
version: shop-1
supervisor: front
limits: {turn_timeout: 10m}
agents:
  - {id: front, name: Front desk, delivery: inbox}
  - {id: orders, name: Orders, delivery: inbox, user_selectable: true}
  - {id: returns, name: Returns, delivery: inbox, user_selectable: true}
  - {id: clerk, name: Clerk, delivery: inbox, sticks: follow_up}
  - {id: web, name: Web shop, user_selectable: true}
  - {id: nurse, name: Nurse, kind: human}
"""


@pytest.fixture
async def service(tmp_path):
    """A shop whose agents have workers, and people."""
    async with serving(tmp_path, SHOP) as running:
        yield running


async def waiting(service, agent_id="orders", text="where is my parcel?", **fields):
    """Return a conversation with an agent, in which a message waits for it."""
    chat = service.chat()
    await chat.set_active(agent_id)
    routed = await chat.say(text, **fields)
    return chat, routed.dispatch.request_id or routed.request_id


async def move(chat, agent_id, **fields):
    """Let an operator move a conversation."""
    return await chat.set_active(agent_id, **({"initiator": OPERATOR} | fields))


async def clear_by_operator(chat, **fields):
    """Let an operator clear a conversation: a call that names no user."""
    return await chat.clear(**({"user_id": "", "reason": "stuck"} | fields))


def cause(turn):
    """Return why a turn was abandoned."""
    return turn_pb2.AbandonCause.Name(turn.abandon_cause).removeprefix("ABANDON_CAUSE_")


async def open_with(chat):
    """Return which agents have an open request, with its id."""
    status = await chat.status()
    return [(turn.agent.agent_id, turn.request_id) for turn in status.open_requests]


async def ended(chat, request_id):
    """Wait until a turn is open no more, and return why. The server's clock goes on."""
    for _ in range(200):
        turn = next(turn for turn in await chat.turns() if turn.request_id == request_id)
        if turn.outcome:
            return cause(turn)
        await asyncio.sleep(0.1)
        chat.service.clock.advance(0.1)
    return "OPEN"


# Operators and people: the message goes along


async def test_a_message_in_an_inbox_goes_along_with_the_operators_move(service):
    """The trial says so before, and the new agent's worker gets it under the same id."""
    chat, request_id = await waiting(service)
    async with chat.unchanged():
        trial = await move(chat, "returns", validate_only=True)
    assert trial.moved_turn.request_id == request_id
    assert trial.moved_turn.agent.agent_id == "returns"
    assert trial.moved_turn.open_turn == TAKE_ALONG
    assert trial.moved_turn.HasField("waiting_since")
    moved = await move(chat, "returns", reason="stuck", expected_revision=trial.revision)
    assert moved.moved_turn == trial.moved_turn
    assert await open_with(chat) == [("returns", request_id)]
    async with working(service, "returns", "orders") as worker:
        item = await worker.next()
        assert (item.dispatch.request_id, item.dispatch.text) == (request_id, "where is my parcel?")
        assert item.dispatch.agent.agent_id == "returns"
        assert initiator(item.dispatch.handoff) == "OPERATOR"
        assert item.dispatch.handoff.reason == "stuck"
        await complete(service, item, "on its way")
        assert await worker.has_none()
    assert [turn.agent_text for turn in await chat.turns()] == ["", "on its way"]


async def test_a_message_in_an_inbox_goes_home_with_the_operators_clear(service):
    """Nobody is active then, and the supervisor's answer counts."""
    chat, request_id = await waiting(service)
    trial = await clear_by_operator(chat, validate_only=True)
    cleared = await clear_by_operator(chat)
    assert trial.moved_turn == cleared.moved_turn
    assert cleared.moved_turn.request_id == request_id
    assert cleared.moved_turn.agent.agent_id == "front"
    assert await open_with(chat) == [("front", request_id)]
    async with working(service, "front") as worker:
        item = await worker.next()
        assert item.dispatch.handoff.reason == "stuck"
        answered = await complete(service, item, "let me see")
        assert outcome_status(answered) == "APPLIED"


async def test_a_message_that_is_moved_to_people_is_on_their_desk(service):
    """With the request that waits."""
    chat, request_id = await waiting(service)
    await move(chat, "nurse")
    waits = await service.call("ListWaiting", pb.ListWaitingRequest(agent_id="nurse"))
    [conversation] = waits.entries
    assert [dispatch.request_id for dispatch in conversation.open_requests] == [request_id]


async def test_what_a_person_has_not_answered_goes_along_as_one(service):
    """The newest message goes on, the earlier ones are answered with it."""
    chat = service.chat()
    await chat.set_active("nurse")
    first, second = await chat.say("help"), await chat.say("please")
    await move(chat, "returns")
    assert await open_with(chat) == [("returns", second.request_id)]
    [earlier, *_] = await chat.turns()
    assert earlier.request_id == first.request_id
    assert earlier.answered_by == second.request_id


async def test_the_worker_that_had_it_can_no_longer_answer(service):
    """Its lease went with the turn; the new agent's answer is the only one."""
    chat, _ = await waiting(service)
    async with working(service, "orders") as stuck, working(service, "returns") as fresh:
        lost = await stuck.next()
        await move(chat, "returns")
        status, _ = await keep(service, lost, extend_s=30)
        assert status == "LEASE_LOST"
        assert (await refusal(complete(service, lost, "too late"))).reason == "LEASE_LOST"
        await complete(service, await fresh.next(), "here")
    assert [turn.agent_text for turn in await chat.turns()] == ["", "here"]


async def test_an_answer_that_was_committed_first_wins(service):
    """The operator's act names the revision of its trial, and finds nothing that waits."""
    chat, _ = await waiting(service)
    trial = await move(chat, "returns", validate_only=True)
    async with working(service, "orders") as worker:
        await complete(service, await worker.next(), "here")
    refused = await refusal(move(chat, "returns", expected_revision=trial.revision))
    assert refused.reason == "REVISION_MISMATCH"
    moved = await move(chat, "returns")
    assert not moved.HasField("moved_turn")


async def test_the_former_agents_answer_says_where_its_caller_carries_the_message(tmp_path):
    """The new agent has no inbox, so nobody else would bring it; a repeat says the same."""
    async with serving(
        tmp_path, SHOP.replace("orders, name: Orders, delivery: inbox", "orders, name: Orders")
    ) as service:
        chat = await service.chat().with_agent("web")
        routed = await chat.say("my size is 42")
        await move(chat, "orders", reason="wrong shop", context=struct({"order": "A-17"}))
        [waits] = (await chat.status()).open_requests
        assert (waits.agent.agent_id, waits.text) == ("orders", "my size is 42")
        for _ in range(2):
            late = await chat.answer(routed.dispatch, "which one?")
            assert outcome_status(late) == "STORED_ONLY"
            assert late.next.request_id == routed.dispatch.request_id
            assert (late.next.agent.agent_id, late.next.text) == ("orders", "my size is 42")
            assert late.next.handoff.context["order"] == "A-17"
        answered = await chat.answer(late.next, "42 it is")
        assert outcome_status(answered) == "APPLIED"


@pytest.mark.parametrize("how", ["not said", "LEAVE"])
async def test_an_agent_that_does_not_have_the_turn_leaves_it(service, how):
    """As ever: the answer is stored, and moves nothing."""
    chat = await service.chat().with_agent("web")
    routed = await chat.say("hello")
    fields = {"open_turn": LEAVE} if how == "LEAVE" else {"from_agent_id": "front"}
    moved = await chat.set_active("orders", **fields)
    assert moved.moved_turn.open_turn == LEAVE
    assert moved.moved_turn.agent.agent_id == "web"
    late = await chat.answer(routed.dispatch, "late")
    assert outcome_status(late) == "STORED_ONLY"
    assert not late.HasField("next")


async def test_a_turn_in_an_inbox_is_not_left_where_nobody_gets_it(service):
    """The error says what to do instead, and nothing is changed."""
    chat, request_id = await waiting(service)
    async with chat.unchanged():
        refused = await refusal(move(chat, "returns", open_turn=LEAVE))
    assert (refused.code, refused.reason) == ("INVALID_ARGUMENT", "INVALID_FIELD")
    assert request_id in refused.message
    assert "orders" in refused.message


async def test_an_operator_may_abandon_what_waits(service):
    """The answer names it without an agent, and history says why it ended."""
    chat, request_id = await waiting(service)
    moved = await move(chat, "returns", open_turn=ABANDON)
    assert moved.moved_turn.request_id == request_id
    assert not moved.moved_turn.HasField("agent")
    assert await open_with(chat) == []
    [turn] = await chat.turns()
    assert (turn.outcome, cause(turn)) == (turn_pb2.TURN_OUTCOME_ABANDONED, "COMMAND")


async def test_an_agent_that_has_the_message_takes_it_along(service):
    """A handoff between turns, by the agent that works on one."""
    chat, request_id = await waiting(service)
    moved = await chat.set_active("returns", from_agent_id="orders")
    assert moved.moved_turn.open_turn == TAKE_ALONG
    assert await open_with(chat) == [("returns", request_id)]


async def test_a_question_between_agents_is_dropped_and_the_message_goes_along(service):
    """The operator moves what the user asked, not what an agent asked another."""
    chat, _ = await waiting(service, text="can I get a refund?")
    async with working(service, "orders") as worker:
        consult = hand_to("returns", mode=handoff_pb2.HANDOFF_MODE_CONSULT, message="possible?")
        await complete(service, await worker.next(), **consult)
        await move(chat, "clerk")
    [waits] = (await chat.status()).open_requests
    assert (waits.agent.agent_id, waits.text) == ("clerk", "can I get a refund?")
    assert not waits.HasField("consult")


async def test_messages_that_wait_behind_it_stay_in_order(tmp_path):
    """They go on after the moved one is answered, to the new agent."""
    queued = SHOP.replace("agent_routing/v1", "agent_routing/v1.1")
    async with serving(tmp_path, queued) as service:
        chat, _ = await waiting(service, text="one")
        assert (await chat.say("two")).queued
        await move(chat, "returns")
        async with working(service, "returns") as worker:
            for text in ("one", "two"):
                item = await worker.next()
                assert item.dispatch.text == text
                await complete(service, item, f"re: {text}")


@pytest.mark.parametrize("how", ["move", "clear"])
async def test_a_message_that_waits_for_an_approval_goes_along_without_it(service, how):
    """The approval is withdrawn; the new agent gets the message as a request of its own."""
    chat, request_id = await waiting(service, text="pay them all")
    async with working(service, "orders") as worker:
        asked = {"approval_needed": pb.ApprovalNeededOutcome(prompt="Pay 900?")}
        await complete(service, await worker.next(), **asked)
    target = "returns" if how == "move" else "front"
    if how == "move":
        moved = (await move(chat, target, reason="stuck")).moved_turn
    else:
        moved = (await clear_by_operator(chat)).moved_turn
    assert (moved.request_id, moved.agent.agent_id) == (request_id, target)
    async with working(service, target) as worker:
        item = await worker.next()
        assert item.dispatch.text == "pay them all"
        assert item.dispatch.request_id != request_id
        assert item.dispatch.handoff.reason == "stuck"
        await complete(service, item, "not today")
    *_, last = await chat.turns()
    assert (last.parent_request_id, last.agent_text) == (request_id, "not today")
    assert not (await chat.status()).HasField("pending_approval")


async def test_an_operator_moves_what_is_there(service):
    """A typo in a session's id makes no session; an agent's first handoff still does."""
    chat = service.chat()
    refused = await refusal(move(chat, "orders"))
    assert (refused.code, refused.reason) == ("NOT_FOUND", "UNKNOWN_SESSION")
    await chat.set_active("orders")
    assert (await chat.status()).active_agent.agent_id == "orders"


# Users: what they leave is over


LEAVING = {
    "/supervisor": ("COMMAND", lambda chat: chat.say("/supervisor")),
    "/agent": ("COMMAND", lambda chat: chat.say("/agent Returns")),
    "handoff": ("COMMAND", lambda chat: chat.set_active("returns", initiator=USER)),
    "/reset": ("RESET", lambda chat: chat.say("/reset")),
    "clear": ("CLEARED", lambda chat: chat.clear()),
    "clear all": (
        "CLEARED",
        lambda chat: chat.clear(scope=clear_scope_pb2.CLEAR_SCOPE_SESSION),
    ),
}


@pytest.mark.parametrize("how", LEAVING)
async def test_what_the_user_leaves_is_abandoned_in_the_same_change(service, how):
    """The event, the history and the worker say why; a late answer is only stored."""
    why, leave = LEAVING[how]
    chat, request_id = await waiting(service)
    async with working(service, "orders") as worker:
        item = await worker.next()
        left = await leave(chat)
        assert await open_with(chat) == []
        kinds = await chat.kinds(left.revision)
        assert "TurnAbandoned" in kinds
        status, kept = await keep(service, item, extend_s=30)
        assert status == "REQUEST_NOT_OPEN"
        name = session_event_pb2.TurnAbandonCause.Name(kept.cause)
        assert name == f"TURN_ABANDON_CAUSE_{why}"
        late = await complete(service, item, "late")
        assert outcome_status(late) == "STORED_ONLY"
    turn = next(turn for turn in await chat.turns() if turn.request_id == request_id)
    assert cause(turn) == why


async def test_a_cancelled_task_takes_its_turns_with_it(service):
    """Of that cause."""
    chat, request_id = await waiting(service)
    task_id = (await chat.status()).task.task_id
    await service.call("CancelTask", pb.CancelTaskRequest(task_id=task_id, user_id="ana"))
    [turn] = await chat.turns()
    assert (turn.request_id, cause(turn)) == (request_id, "CANCELLED")


async def test_choosing_the_present_agent_leaves_its_turn_alone(service):
    """The user only takes back the answer that the agent waited for."""
    chat, request_id = await waiting(service)
    await chat.say("/agent Orders")
    assert await open_with(chat) == [("orders", request_id)]


async def test_a_watcher_hears_why_a_turn_ended(service):
    """With the change that ended it."""
    chat, request_id = await waiting(service)
    revision = (await chat.status()).revision
    await chat.say("/supervisor")
    request = pb.WatchSessionRequest(
        session_id=chat.session_id, user_id="ana", after_revision=revision
    )
    stream = service.stub.WatchSession(request)
    async for message in stream:
        ended = [e.turn_abandoned for e in message.change.events if e.HasField("turn_abandoned")]
        if ended:
            break
    stream.cancel()
    assert ended[0].request_id == request_id
    assert ended[0].cause == session_event_pb2.TURN_ABANDON_CAUSE_COMMAND


# The user wrote again


async def test_what_is_overtaken_before_a_worker_had_it_is_abandoned(service):
    """In the change of the newer message, which is the only one that waits."""
    chat, first = await waiting(service, text="one")
    second = await chat.say("two")
    assert await open_with(chat) == [("orders", second.request_id)]
    [turn, _] = await chat.turns()
    assert (turn.request_id, cause(turn)) == (first, "OVERTAKEN")
    async with working(service, "orders", capacity=5) as worker:
        assert (await worker.next()).dispatch.text == "two"
        assert await worker.has_none()


async def test_a_worker_that_loses_an_overtaken_turn_loses_it_for_good(service):
    """When its lease ends nobody else gets it, and the history says why."""
    chat, first = await waiting(service, text="one")
    async with working(service, "orders", worker_id="slow", lease_s=1, capacity=5) as worker:
        await worker.next()
        await chat.say("two")
        await worker.next()
        assert await ended(chat, first) == "OVERTAKEN"


async def test_an_overtaken_turn_ends_though_no_worker_is_left(tmp_path, monkeypatch):
    """The sweeper looks for it, so that nobody waits for the turn's own time-out."""
    monkeypatch.setattr(expiry_sweeper, "POSTPONE_S", 0.5)
    sweeping = {"expiry_sweep": True, "bounds": Bounds(sweep_interval_s=0.05)}
    async with serving(tmp_path, SHOP, **sweeping) as service:
        chat, first = await waiting(service, text="one")
        async with working(service, "orders", worker_id="gone", lease_s=1) as worker:
            await worker.next()
            await chat.say("two")
        assert await ended(chat, first) == "OVERTAKEN"
        assert [text for _, text in await open_with(chat)] != [first]


async def test_a_worker_that_reconnects_goes_on_with_its_overtaken_turn(service):
    """Its lease is still good, so the turn is sent to it again, and to nobody else."""
    chat, first = await waiting(service, text="one")
    async with working(service, "orders", worker_id="w", lease_s=600, capacity=5) as worker:
        item = await worker.next()
        await chat.say("two")
        await worker.next()
    again = {"worker_id": "w", "lease_s": 600, "capacity": 5}
    async with working(service, "orders", resume_token=worker.resume_token, **again) as worker:
        texts = {(await worker.next()).dispatch.text for _ in range(2)}
        assert texts == {"one", "two"}
        late = await complete(service, item, "re: one")
        assert outcome_status(late) == "STORED_ONLY"
    turn = next(turn for turn in await chat.turns() if turn.request_id == first)
    assert (turn.agent_text, turn.abandon_cause) == ("re: one", 0)


async def test_a_turn_that_a_caller_carries_stays_open_when_it_is_overtaken(service):
    """Its caller is at work on it, and its text is stored and shown."""
    chat = await service.chat().with_agent("web")
    first = await chat.say("one")
    await chat.say("two")
    late = await chat.answer(first.dispatch, "re: one")
    assert outcome_status(late) == "STORED_ONLY"
    assert [turn.agent_text for turn in await chat.turns()][-2:] == ["re: one", ""]


async def test_a_decision_that_brings_a_turn_back_overtakes_as_a_message_does(service):
    """What the user wrote while the approval was pending ends with a cause, or is finished."""
    chat, _ = await waiting(service, text="pay them all")
    async with working(service, "orders") as worker:
        asked = {"approval_needed": pb.ApprovalNeededOutcome(prompt="Pay 900?")}
        await complete(service, await worker.next(), **asked)
    meanwhile = await chat.say("hello?")
    status = await chat.status()
    decided = pb.ResumeTaskRequest(
        session_id=chat.session_id,
        user_id="ana",
        task_id=status.task.task_id,
        request_id=status.pending_approval.request_id,
        decision=dispatch_pb2.DECISION_APPROVE,
    )
    await service.call("ResumeTask", decided)
    turn = next(turn for turn in await chat.turns() if turn.request_id == meanwhile.request_id)
    assert cause(turn) == "OVERTAKEN"
    [waits] = (await chat.status()).open_requests
    assert waits.resume.decision == dispatch_pb2.DECISION_APPROVE


async def test_an_agent_keeps_what_the_user_answered_in_time(service):
    """Its question had a time; the answer came within it, and must not be lost by the agent's."""
    chat = service.chat()
    await chat.set_active("clerk")
    await chat.say("a passport, please")
    async with working(service, "clerk") as worker:
        await complete(service, await worker.next(), "Your name?", **ask(timeout_s=30))
        routed = await chat.say("Ana")
        item = await worker.next()
        service.clock.advance(60)
        assert await open_with(chat) == [("clerk", routed.request_id)]
        assert outcome_status(await complete(service, item, "Thanks")) == "APPLIED"


# A handoff outside a turn


@pytest.mark.parametrize("target", ["web", "returns", "front"])
async def test_what_a_handoff_between_turns_says_reaches_its_target(service, target):
    """With the next message, also for an agent that gets it from its inbox, and after a repeat."""
    chat = await service.chat().with_agent("orders")
    await chat.set_active(
        target,
        initiator=OPERATOR,
        reason="customer phoned",
        context=struct({"order": "A-17"}),
        message="Returns will look after you.",
    )
    request_id = new_uuid7()
    routed = await chat.say("and now?", request_id=request_id)
    again = await chat.say("and now?", request_id=request_id)
    [waits] = (await chat.status()).open_requests
    dispatches = [waits, routed.dispatch, again.dispatch]
    if target != "web":
        async with working(service, target) as worker:
            dispatches.append((item := await worker.next()).dispatch)
            await complete(service, item, "I see")
    else:
        await chat.answer(routed.dispatch, "I see")
    for dispatch in dispatches:
        assert dispatch.handoff.reason == "customer phoned"
        assert dispatch.handoff.context["order"] == "A-17"
        assert initiator(dispatch.handoff) == "OPERATOR"
    later = await chat.say("thanks")
    assert not later.dispatch.HasField("handoff")


async def test_the_message_of_a_handoff_between_turns_is_said_to_the_user(service):
    """It is in the history and on the watch, in the name of who had the conversation."""
    chat = await service.chat().with_agent("orders")
    moved = await move(chat, "nurse", message="A nurse will be with you.")
    *_, said = await chat.turns()
    assert said.outcome == turn_pb2.TURN_OUTCOME_SAID
    assert (said.agent_id, said.agent_text) == ("orders", "A nurse will be with you.")
    assert "MessageSaid" in await chat.kinds(moved.revision)
    # From people to an agent: not in the name of the people, who did not say it.
    await move(chat, "orders", message="We are back.")
    *_, said = await chat.turns()
    assert (said.agent_id, said.agent_text) == ("front", "We are back.")


async def test_an_agents_message_between_turns_is_its_own(service):
    """Not the operator's."""
    chat = await service.chat().with_agent("orders")
    await chat.set_active("returns", from_agent_id="orders", message="I connect you.")
    *_, said = await chat.turns()
    assert (said.agent_id, said.agent_text) == ("orders", "I connect you.")


async def test_the_message_of_a_handoff_that_takes_a_turn_along_is_in_that_turn(service):
    """As of a handoff within it, and said once."""
    chat, request_id = await waiting(service)
    await move(chat, "returns", message="Returns takes over.")
    turns = await chat.turns()
    assert [turn.request_id for turn in turns] == [request_id, request_id]
    assert turns[0].handoff_message == "Returns takes over."


@pytest.mark.parametrize("field", ["context", "message"])
async def test_a_user_briefs_nobody(service, field):
    """The user's words are the reason; what agents are told as facts comes from agents."""
    chat = await service.chat().with_agent("orders")
    given = {"context": struct({"refund": "approved"})} if field == "context" else {"message": "x"}
    refused = await refusal(chat.set_active("returns", initiator=USER, **given))
    assert (refused.code, refused.reason) == ("INVALID_ARGUMENT", "INVALID_FIELD")
    assert field in refused.message
    await chat.set_active("returns", initiator=USER, reason="they know me")
    routed = await chat.say("hello")
    assert routed.dispatch.handoff.reason == "they know me"


async def test_what_an_agent_was_handed_is_not_told_twice(service):
    """Once it has answered, its history has the rest."""
    chat = await service.chat().with_agent("web")
    await chat.set_active("orders", reason="parcel")
    async with working(service, "orders") as worker:
        await chat.say("hello")
        await complete(service, await worker.next(), "Hi", **proceed())
        await chat.say("again")
        assert not (await worker.next()).dispatch.HasField("handoff")


async def test_a_runtime_without_a_part_in_the_session_still_ends_its_turn(tmp_path):
    """Its agent never answered, and the user left: the late text is stored, and it learns why."""
    async with serving_signed_in(tmp_path, SHOP) as service:
        ana = signed(service, "route", user="ana")
        front = signed(service, "agent", agents=("front",))
        web = signed(service, "agent", agents=("web",))
        said = {"session_id": "s", "user_id": "ana"}
        routed = await ana("Route", pb.RouteRequest(**said, text="hello"))
        given = {"session_id": "s", "agent_id": "front", **hand_to("web")}
        handed = await front(
            "CompleteTurn", pb.CompleteTurnRequest(request_id=routed.request_id, **given)
        )
        await ana("Route", pb.RouteRequest(**said, text="/supervisor"))
        await ana("Route", pb.RouteRequest(**said, text="somebody else, please"))
        its = {"session_id": "s", "agent_id": "web", "request_id": handed.next.request_id}
        other = its | {"request_id": new_uuid7()}
        refused = await refusal(web("KeepTurn", pb.KeepTurnRequest(**other, note="let me in")))
        assert refused.reason == "SCOPE_MISSING"
        kept = await web("KeepTurn", pb.KeepTurnRequest(**its, note="one moment"))
        assert kept.cause == session_event_pb2.TURN_ABANDON_CAUSE_COMMAND
        late = await web("CompleteTurn", pb.CompleteTurnRequest(**its, text="late", **proceed()))
        assert outcome_status(late) == "STORED_ONLY"
