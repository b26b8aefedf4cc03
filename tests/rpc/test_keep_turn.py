"""Turns that take long: deadlines, steps, and delivery to inboxes that a message asks for."""

import asyncio

import pytest
from google.protobuf import duration_pb2

from agent_routing.v1 import dispatch_pb2, routing_service_pb2, turn_pb2
from agent_routing.v1.session_event_pb2 import TURN_ABANDON_CAUSE_OVERTAKEN
from routing_service.core import keep_turn
from routing_service.ids import new_uuid7
from routing_service.sessions.audit_log import Operator
from tests.rpc.live_service import (
    SECOND_US,
    START_US,
    ask,
    hand_to,
    outcome_status,
    refusal,
    serving,
)
from tests.rpc.signed_in import serving_signed_in, signed
from tests.rpc.test_inbox import complete, keep, working

pb = routing_service_pb2

OFFICE = """
api_version: agent_routing/v1
version: office-1
supervisor: front
limits: {turn_timeout: 10m}
agents:
  - {id: front, name: Front desk, delivery: inbox}
  - {id: vat, name: VAT, delivery: inbox, turn_timeout: 40m}
  - {id: carried, name: Carried by the caller}
  - {id: open, name: Open, delivery: inbox, steps: shown}
  - {id: marks, name: Marks, delivery: inbox, markers: true}
"""


@pytest.fixture
async def service(tmp_path):
    """An office with workers."""
    async with serving(tmp_path, OFFICE) as running:
        yield running


def steps(*names):
    """Return steps by their names."""
    return [turn_pb2.Step(name=name, kind="tool", input=f"{name}?", output="!") for name in names]


def request_of(item, **fields):
    """Return a KeepTurnRequest of an item."""
    return pb.KeepTurnRequest(
        **{
            "session_id": item.session_id,
            "request_id": item.dispatch.request_id,
            "agent_id": item.dispatch.agent.agent_id,
            "lease_token": item.lease_token,
        }
        | fields
    )


def said(service, item, **fields):
    """Say something of a turn, without extending its lease."""
    return service.call("KeepTurn", request_of(item, **fields))


def minutes(time_out):
    """Return how many minutes after the test's start a time is."""
    return (time_out.ToMicroseconds() - START_US) / SECOND_US / 60


async def next_item(service, agent_id, chat, **fields):
    """Say something and return the turn as the agent's worker gets it."""
    async with working(service, agent_id, lease_s=600, **fields) as worker:
        await chat.say("hello")
        return await worker.next()


async def test_an_agent_has_a_turn_timeout_of_its_own(service):
    """The registry's holds for the others."""
    front, vat = service.chat(), await service.chat().with_agent("vat")
    first, second = await front.say("hello"), await vat.say("hello")
    service.clock.advance(15 * 60)
    late = await front.answer(first.dispatch, "late")
    assert outcome_status(late) == "STORED_ONLY"
    in_time = await vat.answer(second.dispatch, "in time")
    assert outcome_status(in_time) == "APPLIED"


async def test_extending_moves_the_deadline_once_less_than_half_is_left(service):
    """So that a turn of hours writes a few changes, and its answer still counts."""
    chat = service.chat()
    item = await next_item(service, "front", chat)
    assert minutes(item.deadline) == 10
    async with chat.unchanged():
        service.clock.advance(4 * 60)
        _, kept = await keep(service, item, extend_s=60)
        assert minutes(kept.deadline) == 10
    service.clock.advance(3 * 60)
    _, kept = await keep(service, item, extend_s=60)
    assert minutes(kept.deadline) == 17
    assert (await chat.kinds())[-1] == "TurnExtended"
    service.clock.advance(9 * 60)
    status, kept = await keep(service, item, extend_s=60)
    assert (status, minutes(kept.deadline)) == ("KEPT", 26)
    answered = await complete(service, item, "after 16 minutes")
    assert outcome_status(answered) == "APPLIED"


async def test_a_turn_that_is_not_extended_in_time_is_over(service):
    """KeepTurn says so, and the change that ends it is made at once."""
    chat = service.chat()
    item = await next_item(service, "front", chat)
    service.clock.advance(10 * 60)
    status, kept = await keep(service, item, extend_s=60)
    assert status == "REQUEST_NOT_OPEN"
    assert not kept.HasField("deadline")
    assert "TurnAbandoned" in await chat.kinds()


async def test_no_turn_is_extended_beyond_a_day(service):
    """A worker that extends for ever hangs."""
    chat = service.chat()
    item = await next_item(service, "front", chat)
    kept = None
    for _ in range(24 * 7):
        service.clock.advance(9 * 60)
        status, answer = await keep(service, item, extend_s=60)
        if status != "KEPT":
            break
        kept = answer
    assert minutes(kept.deadline) == 24 * 60
    assert status == "REQUEST_NOT_OPEN"


async def test_the_deadline_of_the_next_agent_is_its_own(service):
    """A handoff begins a new wait."""
    chat = service.chat()
    item = await next_item(service, "front", chat)
    service.clock.advance(6 * 60)
    await keep(service, item, extend_s=60)
    async with working(service, "vat", lease_s=600) as worker:
        await complete(service, item, **hand_to("vat"))
        handed = await worker.next()
    assert minutes(handed.deadline) == 46


async def test_a_caller_extends_the_turn_that_it_carries(service):
    """Without a lease."""
    chat = await service.chat().with_agent("carried")
    routed = await chat.say("hello")
    service.clock.advance(7 * 60)
    request = pb.KeepTurnRequest(
        session_id=chat.session_id,
        request_id=routed.dispatch.request_id,
        agent_id="carried",
        extend=duration_pb2.Duration(seconds=30),
    )
    kept = await service.call("KeepTurn", request)
    assert kept.status == pb.KEEP_TURN_STATUS_KEPT
    assert not kept.HasField("lease")
    assert minutes(kept.deadline) == 17
    service.clock.advance(9 * 60)
    assert outcome_status(await chat.answer(routed.dispatch, "done")) == "APPLIED"


async def test_the_worker_of_an_overtaken_turn_may_take_its_time(service):
    """It is told that its answer moves nothing; the answer is stored and shown."""
    chat = service.chat()
    item = await next_item(service, "front", chat)
    service.clock.advance(7 * 60)
    await keep(service, item, extend_s=60)
    await chat.say("and another thing")
    status, kept = await keep(service, item, extend_s=60)
    assert (status, kept.cause) == ("KEPT", TURN_ABANDON_CAUSE_OVERTAKEN)
    service.clock.advance(5 * 60)
    assert outcome_status(await complete(service, item, "late")) == "STORED_ONLY"
    assert len((await chat.status()).open_requests) == 1


async def test_a_message_for_inboxes_goes_through_them_to_its_end(service):
    """Also to agents without one in the registry, over handoffs, approvals and restarts."""
    chat = await service.chat().with_agent("carried")
    async with working(service, "carried", "vat", lease_s=600) as worker:
        plain = await chat.say("by the caller")
        assert plain.dispatch.delivery == dispatch_pb2.DELIVERY_UNSPECIFIED
        assert await worker.has_none()
        routed = await chat.say("by a worker", deliver=dispatch_pb2.DELIVERY_INBOX)
        assert routed.dispatch.delivery == dispatch_pb2.DELIVERY_INBOX
        item = await worker.next()
        assert item.dispatch.text == "by a worker"
        assert item.dispatch.delivery == dispatch_pb2.DELIVERY_INBOX
        answered = await complete(service, item, **hand_to("vat"))
        assert answered.next.delivery == dispatch_pb2.DELIVERY_INBOX
        item = await worker.next()
        answered = await complete(service, item, **hand_to("carried"))
        assert answered.next.delivery == dispatch_pb2.DELIVERY_INBOX
        item = await worker.next()
        (open_request,) = [
            dispatch
            for dispatch in (await chat.status()).open_requests
            if dispatch.request_id == item.dispatch.request_id
        ]
        assert open_request.delivery == dispatch_pb2.DELIVERY_INBOX
        paused = await complete(
            service,
            item,
            approval_needed=pb.ApprovalNeededOutcome(prompt="Pay?"),
        )
        resumed = await service.call(
            "ResumeTask",
            pb.ResumeTaskRequest(
                session_id=chat.session_id,
                user_id="ana",
                task_id=paused.task_id,
                request_id=item.dispatch.request_id,
                decision=dispatch_pb2.DECISION_APPROVE,
            ),
        )
        assert resumed.dispatch.delivery == dispatch_pb2.DELIVERY_INBOX
        item = await worker.next()
        assert item.dispatch.resume.decision == dispatch_pb2.DECISION_APPROVE
        await complete(service, item, "paid")
        assert await worker.has_none()
    assert await service.store.read_queue("default", "carried", None, 10) == []


async def test_only_inbox_can_be_asked_for(service):
    """A caller cannot take the turns of workers."""
    refused = await refusal(service.chat().say("x", deliver=dispatch_pb2.DELIVERY_CALLER))
    assert refused.rules == ["deliver"]


async def test_steps_are_in_the_history_as_they_are_reported(service):
    """A repeat doubles nothing, and a worker that takes over counts from 0 again."""
    chat = service.chat()
    async with working(service, "front", worker_id="first", lease_s=1) as worker:
        await chat.say("hello")
        item = await worker.next()
    kept = await said(service, item, steps=steps("search", "read"))
    assert (kept.status, kept.steps_known) == (pb.KEEP_TURN_STATUS_KEPT, 2)
    async with chat.unchanged():
        again = await said(service, item, steps=steps("search", "read"))
        assert again.steps_known == 2
    service.clock.advance(5)
    # One of them is known.
    kept = await said(service, item, steps=steps("read", "compute"), first_step=1)
    assert kept.steps_known == 3
    (turn,) = await chat.turns()
    assert [step.name for step in turn.steps] == ["search", "read", "compute"]
    async with working(service, "front", worker_id="second", lease_s=600) as worker:
        taken = await worker.next()
        assert (taken.attempt, taken.steps_known) == (2, 0)
        assert (await said(service, item, steps=steps("x"))).status == (
            pb.KEEP_TURN_STATUS_LEASE_LOST
        )
        kept = await said(service, taken, steps=steps("search"))
        assert kept.steps_known == 1
        await complete(service, taken, "done", steps=steps("answer"))
    (turn,) = await chat.turns()
    assert [(step.name, step.attempt) for step in turn.steps] == [
        ("search", 1),
        ("read", 1),
        ("compute", 1),
        ("search", 2),
        ("answer", 0),
    ]
    newest = await chat.turns(order=pb.TURN_ORDER_NEWEST_FIRST)
    assert newest == [turn]


async def test_steps_come_seldom_and_without_a_gap(service):
    """Each report is a change of the session."""
    chat = service.chat()
    item = await next_item(service, "front", chat)
    await said(service, item, steps=steps("one"))
    service.clock.advance(2)
    async with chat.unchanged():
        refused = await refusal(said(service, item, steps=steps("two"), first_step=1))
        assert tuple(refused) == ("RESOURCE_EXHAUSTED", "OVERLOADED")
        assert refused.metadata["limit"] == "turn_steps_interval"
        assert refused.retry_after_s == pytest.approx(3)
        service.clock.advance(3)
        refused = await refusal(said(service, item, steps=steps("three"), first_step=2))
        assert refused.rules == ["first_step"]
    kept = await said(service, item, steps=steps("two"), first_step=1)
    assert kept.steps_known == 2


async def test_a_turn_keeps_its_first_steps(service, monkeypatch):
    """What comes after the limit is left out, and the worker goes on."""
    monkeypatch.setattr(keep_turn, "TURN_STEPS_MAX", 3)
    chat = service.chat()
    item = await next_item(service, "front", chat)
    kept = await said(service, item, steps=steps("a", "b"))
    service.clock.advance(5)
    kept = await said(service, item, steps=steps("c", "d"), first_step=2)
    assert (kept.status, kept.steps_known) == (pb.KEEP_TURN_STATUS_KEPT, 3)
    service.clock.advance(5)
    async with chat.unchanged():
        kept = await said(service, item, steps=steps("e"), first_step=4)
        assert kept.status == pb.KEEP_TURN_STATUS_KEPT
    (turn,) = await chat.turns()
    assert [step.name for step in turn.steps] == ["a", "b", "c"]


async def test_a_turn_keeps_so_many_bytes_of_steps(service, monkeypatch):
    """Counted over all its reports."""
    monkeypatch.setattr(keep_turn, "TURN_STEPS_BYTES_MAX", 60)
    chat = service.chat()
    item = await next_item(service, "front", chat)
    big = turn_pb2.Step(name="big", output="x" * 40)
    kept = await said(service, item, steps=[big, big])
    assert kept.steps_known == 1
    (turn,) = await chat.turns()
    assert len(turn.steps) == 1


async def test_steps_reach_watchers_that_ask_for_them(service):
    """Input and output only where the watcher, or the registry, may show them."""
    chat = service.chat()
    item = await next_item(service, "front", chat)
    seen = {}

    async def watch(name, **fields):
        request = pb.WatchSessionRequest(
            session_id=chat.session_id, user_id="ana", after_revision=0, **fields
        )
        seen[name] = []
        async for message in service.stub.WatchSession(request):
            seen[name] += list(message.change.events)

    tasks = [
        asyncio.ensure_future(watch("plain")),
        asyncio.ensure_future(watch("steps", include=[pb.WATCH_INCLUDE_STEPS])),
    ]
    await said(service, item, steps=steps("search"))
    await complete(service, item, "done")
    for _ in range(1_000):
        if all(e and e[-1].HasField("turn_completed") for e in seen.values()):
            break
        await asyncio.sleep(0.02)
    for task in tasks:
        task.cancel()
    assert "steps_reported" not in {e.WhichOneof("kind") for e in seen["plain"]}
    (event,) = [e for e in seen["steps"] if e.HasField("steps_reported")]
    reported = event.steps_reported
    assert reported.request_id == item.dispatch.request_id
    assert (reported.agent.agent_id, reported.attempt, reported.first_step) == ("front", 1, 0)
    # There is no sign-in here, so everyone is an operator.
    assert [(s.name, s.input, s.output, s.attempt) for s in reported.steps] == [
        ("search", "search?", "!", 1)
    ]


async def test_users_see_what_an_agent_does_and_not_with_what(tmp_path):
    """Input and output are for operators and the agent itself, unless the registry shows them."""
    async with serving_signed_in(tmp_path, OFFICE) as service:
        user = signed(service, "route", user="ana")
        runtime = signed(service, "agent", agents=("front", "open"))
        other = signed(service, "agent", agents=("front", "vat"))
        admin = signed(service, "admin")
        for agent_id, user_sees in (("front", False), ("open", True)):
            session_id = f"chat-{agent_id}"
            routed = await user("Route", pb.RouteRequest(session_id=session_id, text="hello"))
            dispatch = routed.dispatch
            if agent_id == "open":
                handed = pb.CompleteTurnRequest(
                    session_id=session_id,
                    request_id=dispatch.request_id,
                    agent_id="front",
                    **hand_to("open"),
                )
                dispatch = (await runtime("CompleteTurn", handed)).next
            kept = pb.KeepTurnRequest(
                session_id=session_id,
                request_id=dispatch.request_id,
                agent_id=agent_id,
                steps=steps("search"),
            )
            await runtime("KeepTurn", kept)
            for caller, sees in ((user, user_sees), (runtime, True), (admin, True)):
                request = pb.ListTurnsRequest(session_id=session_id)
                if caller is runtime:
                    request.agent_id = agent_id
                turn = (await caller("ListTurns", request)).turns[-1]
                (step,) = turn.steps
                assert (step.name, step.kind) == ("search", "tool")
                assert (step.input, step.output) == (("search?", "!") if sees else ("", ""))
        refused = await refusal(other("KeepTurn", kept))
        assert tuple(refused) == ("PERMISSION_DENIED", "SCOPE_MISSING")


async def test_steps_of_an_answered_turn_are_not_stored(service):
    """The answer says that the turn is gone."""
    chat = service.chat()
    item = await next_item(service, "front", chat)
    await complete(service, item, "done")
    async with chat.unchanged():
        kept = await said(service, item, steps=steps("late"))
        assert kept.status == pb.KEEP_TURN_STATUS_REQUEST_NOT_OPEN


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"steps": [turn_pb2.Step()]}, "steps[0].name"),
        ({"steps": [turn_pb2.Step(name="s")] * 65}, "steps"),
        ({"steps": [turn_pb2.Step(name="s", input="x" * 49_200)]}, "steps"),
        ({"note": "hi", "first_step": -1}, "first_step"),
        ({"note": "x" * 1025}, "note"),
        ({"note": "x", "release": True}, "release"),
        ({"delta": pb.AnswerDelta()}, "delta.text"),
        ({"delta": pb.AnswerDelta(text="x", offset=-1)}, "delta.offset"),
        ({"delta": pb.AnswerDelta(text="x", offset=3)}, "delta.before"),
        ({"delta": pb.AnswerDelta(text="x", offset=3, before="abcd")}, "delta.before"),
        ({"delta": pb.AnswerDelta(text="x", offset=200, before="a" * 161)}, "delta.before"),
        ({"delta": pb.AnswerDelta(text="x" * 32_769)}, "delta.text"),
        ({}, "act"),
    ],
)
async def test_bad_fields_are_named(service, fields, named):
    """Before anything is looked up."""
    request = pb.KeepTurnRequest(
        session_id="nowhere", request_id=new_uuid7(), agent_id="front", **fields
    )
    refused = await refusal(service.call("KeepTurn", request))
    assert refused.code == "INVALID_ARGUMENT"
    assert named in refused.rules


async def test_an_erased_session_has_no_steps(service):
    """They are content, and go with it."""
    chat = service.chat()
    item = await next_item(service, "front", chat)
    await said(service, item, steps=steps("very-secret-step"))
    await complete(service, item, "done", **ask())
    handler = service.server._parts.handler
    stored = b"".join([change.events for change in await chat.changes()])
    assert b"very-secret-step" in stored
    await handler.erase(chat.key, "asked", Operator("default"))
    stored = b"".join([change.events for change in await chat.changes()])
    assert b"very-secret-step" not in stored


async def test_an_item_continues_the_trace_of_its_message(service):
    """Not that of the worker's stream; without a trace it has none."""
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    traced, plain = service.chat(), service.chat()
    request = pb.RouteRequest(session_id=traced.session_id, user_id="ana", text="hello")
    header = (("traceparent", f"00-{trace_id}-b7ad6b7169203331-01"),)
    await service.stub.Route(request, metadata=header, timeout=20)
    async with working(service, "front", lease_s=600, capacity=2) as worker:
        item = await worker.next()
        _, found, span_id, flags = item.dispatch.traceparent.split("-")
        assert (found, flags) == (trace_id, "01")
        assert int(span_id, 16)
        await plain.say("hello")
        assert not (await worker.next()).dispatch.traceparent


async def test_a_longer_timeout_holds_for_turns_that_were_extended(tmp_path):
    """The later of the two: what a worker was promised, and what the registry says now."""
    async with serving(tmp_path, OFFICE) as service:
        chat = service.chat()
        item = await next_item(service, "front", chat)
        service.clock.advance(6 * 60)
        _, kept = await keep(service, item, extend_s=60)
        assert minutes(kept.deadline) == 16
        clock = service.clock
    longer = OFFICE.replace("turn_timeout: 10m", "turn_timeout: 30m").replace("-1\n", "-2\n")
    async with serving(tmp_path, longer, clock=clock) as service:
        clock.advance(12 * 60)
        chat.service = service
        assert outcome_status(await complete(service, item, "in time")) == "APPLIED"
