"""What one agent asks another is for these two and for operators, whoever reads and however."""

from __future__ import annotations

import pytest

from agent_routing.v1 import admin_service_pb2 as admin
from agent_routing.v1 import handoff_pb2
from agent_routing.v1 import routing_service_pb2 as pb
from tests.rpc.live_service import hand_to, refusal, serving
from tests.rpc.registries import DESK
from tests.rpc.signed_in import bearer, serving_signed_in, signed, token
from tests.rpc.test_consults import consult, went
from tests.rpc.test_web_listener import Connect, Json

QUESTION, WHY, CONTEXT = "Does she pay her bills?", "credit check", "three unpaid bills"
ANSWER, ITEM, TOOL = "No: suspected of fraud.", "report of the collectors", "look_up_debts"
SECRETS = (QUESTION, WHY, CONTEXT, ANSWER, ITEM, TOOL)
SAID = "Let me see."


async def complete(service, request_id, agent_id, **outcome):
    """Answer as an agent; return the response."""
    agent = signed(service, "agent", agents=("*",))
    request = {"session_id": "s", "request_id": request_id, "agent_id": agent_id}
    return await agent("CompleteTurn", pb.CompleteTurnRequest(**request, **outcome))


async def asks(service):
    """Let support, which has ana's conversation, ask sales; return the question's dispatch."""
    ana = signed(service, "route", user="ana")
    routed = await ana("Route", pb.RouteRequest(session_id="s", text="ten instalments, please"))
    handed = await complete(service, routed.dispatch.request_id, "front", **hand_to("support"))
    about = consult("sales", QUESTION, reason=WHY, context={"why": CONTEXT})
    asked = await complete(service, handed.next.request_id, "support", text=SAID, **about)
    return asked.next


async def answers(service, question):
    """Let sales answer the question; return support's dispatch."""
    agent = signed(service, "agent", agents=("sales",))
    steps = [{"name": TOOL, "kind": "tool"}]
    request = {"session_id": "s", "request_id": question.request_id, "agent_id": "sales"}
    await agent("KeepTurn", pb.KeepTurnRequest(**request, steps=steps))
    answered = await complete(
        service,
        question.request_id,
        "sales",
        text=ANSWER,
        items=[{"content_type": "text/plain", "text": ITEM}],
        proceed=pb.ProceedOutcome(),
    )
    return answered.next


async def watched(caller, head, user_id=""):
    """Return the changes of a watch from the beginning, as bytes."""
    request = pb.WatchSessionRequest(
        session_id="s", user_id=user_id, after_revision=0, include=["WATCH_INCLUDE_STEPS"]
    )
    call, found = caller("WatchSession", request), b""
    async for message in call:
        found += message.SerializeToString()
        if message.change.revision == head:
            break
    call.cancel()
    return found


READERS = {
    "the user": (("route",), {"user": "ana"}, {}, False),
    "a reader of the user's": (("read",), {"user": "ana"}, {}, False),
    "a frontend for the user": (("route", "act_as"), {}, {"user_id": "ana"}, False),
    "a reader of all": (("read", "act_as"), {}, {}, False),
    "the supervisor": (("agent",), {"agents": ("front",)}, {}, False),
    "the agent that asks": (("agent",), {"agents": ("support",)}, {"agent_id": "support"}, True),
    "the agent asked": (("agent",), {"agents": ("sales",)}, {"agent_id": "sales"}, True),
    "a runtime of all": (("agent",), {"agents": ("*",)}, {}, True),
    "an operator": (("admin",), {"user": "sam"}, {}, True),
}


@pytest.mark.parametrize("reader", READERS)
async def test_consult_is_read_by_its_two_agents_and_operators(tmp_path, reader):
    """In Status while it is asked and answered, in the history, and in each watch."""
    scopes, claims, named, reads = READERS[reader]
    async with serving_signed_in(tmp_path, DESK, store="memory:") as service:
        caller = signed(service, *scopes, **claims)
        user_id = named.get("user_id", "")
        status = pb.StatusRequest(session_id="s", user_id=user_id)
        question = await asks(service)
        asked = await caller("Status", status)
        back = await answers(service, question)
        answered = await caller("Status", status)
        turns = await caller("ListTurns", pb.ListTurnsRequest(session_id="s", **named))
        newest = pb.ListTurnsRequest(session_id="s", order="TURN_ORDER_NEWEST_FIRST", **named)
        backwards = await caller("ListTurns", newest)
        changes = await watched(caller, answered.revision, user_id)
        statuses = asked.SerializeToString() + answered.SerializeToString()
        for reading in (statuses, turns.SerializeToString(), changes):
            assert any(secret.encode() in reading for secret in SECRETS) is reads
        assert list(backwards.turns) == list(turns.turns)[::-1]
        # It is there for all, and what the agent said to the user before it too.
        if not named.get("agent_id"):
            assert [turn.agent_id for turn in turns.turns].count("sales") == 1
            assert SAID in [turn.agent_text for turn in turns.turns]
        open_for_all = [each.request_id for each in answered.open_requests]
        assert open_for_all == ([] if reader == "the agent asked" else [back.request_id])


async def test_consult_is_in_no_answer_to_the_users_own_token(tmp_path):
    """Neither in the history of a dispatch, nor in /history, nor over HTTP or in the export."""
    async with serving_signed_in(
        tmp_path, DESK, store="memory:", web_listen="127.0.0.1:0", console_listen="127.0.0.1:0"
    ) as service:
        back = await answers(service, await asks(service))
        await complete(service, back.request_id, "support", **hand_to("sales"))
        ana = signed(service, "route", user="ana")
        routed = await ana("Route", pb.RouteRequest(session_id="s", text="and now?"))
        assert went(routed.dispatch)[0] == "sales"
        assert "sales" in [turn.agent_id for turn in routed.dispatch.history]
        told = await ana("Route", pb.RouteRequest(session_id="s", text="/history"))
        readings = [routed.SerializeToString(), told.SerializeToString()]
        headers = dict(bearer(token("route", user="ana")))
        for wire in (
            Json(service.server.web_url),
            Connect(service.server.web_url),
            Json(service.server.console_url),
        ):
            found = await wire.call(
                "ListTurns", pb.ListTurnsRequest(session_id="s"), pb.ListTurnsResponse, headers
            )
            assert "sales" in [turn.agent_id for turn in found.message.turns]
            readings.append(found.message.SerializeToString())
        exported = [
            part
            async for part in signed(service, "admin", user="sam")(
                "ExportUser", admin.ExportUserRequest(user_id="ana")
            )
        ]
        assert any(part.HasField("turn") for part in exported)
        readings.append(b"".join(part.SerializeToString() for part in exported))
        for place, reading in enumerate(readings):
            assert not [secret for secret in SECRETS if secret.encode() in reading], place
        # The agents' own runtime still gets it.
        agent = signed(service, "route", "agent", user="ana", agents=("*",))
        routed = await agent("Route", pb.RouteRequest(session_id="s", text="well?"))
        assert ANSWER in [turn.agent_text for turn in routed.dispatch.history]


async def test_supervisor_reads_all_turns_but_no_consult(tmp_path):
    """In memory, and after a restart from the log; a repeat gets the same."""
    kept = []
    for is_restarted in (False, True):
        async with serving(tmp_path, DESK) as service:
            chat = service.chat("s")
            if not is_restarted:
                await chat.with_agent("support")
                routed = await chat.say("ten instalments")
                asked = await chat.answer(routed.dispatch, SAID, **consult("sales", QUESTION))
                back = await chat.answer(asked.next, ANSWER)
                await chat.answer(back.next, "Not today.")
                await chat.clear()
            routed = await chat.say("hello again")
            assert went(routed.dispatch)[0] == "front"
            history = routed.dispatch.history
            assert {"front", "support", "sales"} == {turn.agent_id for turn in history}
            assert not [s for s in SECRETS if s.encode() in routed.SerializeToString()]
            assert SAID in [turn.agent_text for turn in history]
            again = await chat.say("hello again", request_id=routed.request_id)
            assert again.dispatch.history == history
            kept.append(len(history))
    assert kept[1] == kept[0] + 1


async def test_reason_of_a_refused_question_is_not_exported(tmp_path):
    """The audit has it."""
    async with serving_signed_in(tmp_path, DESK, store="memory:") as service:
        ana = signed(service, "route", user="ana")
        routed = await ana("Route", pb.RouteRequest(session_id="s", text="hello"))
        await refusal(
            complete(
                service, routed.dispatch.request_id, "front", **consult("disabled", reason=WHY)
            )
        )
        sam = signed(service, "admin", user="sam")
        listed = await sam("ListEvents", admin.ListEventsRequest(session_id="s"))
        events = [record.event for record in listed.records]
        refused = [e.handoff_refused for e in events if e.HasField("handoff_refused")]
        assert [each.handoff.reason for each in refused] == [WHY]
        assert refused[0].handoff.mode == handoff_pb2.HANDOFF_MODE_CONSULT
        parts = sam("ExportUser", admin.ExportUserRequest(user_id="ana"))
        exported = b"".join([part.SerializeToString() async for part in parts])
        assert WHY.encode() not in exported


async def test_question_to_the_home_agent_is_a_question(tmp_path):
    """It is answered once, the user stays with the asker, and the limit per message holds."""
    async with serving(tmp_path, DESK) as service:
        chat = await service.chat().with_agent("support")
        routed = await chat.say("is that so?")
        asked = await chat.answer(routed.dispatch, **consult("front", QUESTION))
        assert went(asked.next) == ("front", "CONSULTED")
        assert asked.next.consult.question == QUESTION
        assert (await chat.status()).active_agent.agent_id == "support"
        refused = await refusal(chat.answer(asked.next, **hand_to("sales")))
        assert "live_turn" in refused.violations
        back = (await chat.answer(asked.next, "It is.")).next
        assert went(back) == ("support", "CONSULTED")
        assert back.consult.answer == "It is."
        for _ in range(3):
            asked = await chat.answer(back, **consult("front", QUESTION))
            back = (await chat.answer(asked.next, "It is.")).next
        refused = await refusal(chat.answer(back, **consult("front", QUESTION)))
        assert list(refused.violations) == ["hop_limit"]
        done = await chat.answer(back, "It is so.")
        assert done.active_agent.agent_id == "support"
