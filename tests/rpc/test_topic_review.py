"""Topic review: the owner of each message is read from the log, to judge thresholds."""

import pytest

from agent_routing.v1 import admin_service_pb2, admin_service_pb2_grpc
from agent_routing_topics.backtest import (
    Labelled,
    always_asked,
    calibration,
    calibration_error,
    labelled_messages,
    outlook,
)
from routing_service.registry.file import parse_registry
from routing_service.topics.detection import TopicJudge
from tests.rpc.live_service import fail, fresh_id, hand_to, serving
from tests.rpc.test_topics import desk
from tests.scripted_topics import SURE, ScriptedModel


def message(active, target, confidence, stay, owner, *, waits=False, supervised=False):
    """Return a message with its verdict and its owner."""
    return Labelled(active, waits, target, confidence, stay, owner, supervised)


async def found_in(service, mode="off"):
    """Return what a review finds in a service's store, by the owner of each message."""
    registry = always_asked(parse_registry(desk(mode), "desk"))
    judge = TopicJudge(ScriptedModel)
    return [message async for message in labelled_messages(service.store, registry, judge)]


async def test_owner_is_who_had_the_message_in_the_end(tmp_path):
    """The agent that got the message by a later handoff, or that answered it; topics may be off."""
    async with serving(tmp_path, desk("off")) as service:
        chat = service.chat()
        first = await chat.say("#sales what does it cost")
        handed = await chat.answer(first.dispatch, **hand_to("sales"))
        await chat.answer(handed.next, "ten")
        second = await chat.say("#support it is broken")
        again = await chat.answer(second.dispatch, **hand_to("support"))
        await chat.answer(again.next, "let us see")
        third = await chat.say("#sales=0.6 hm")
        await chat.answer(third.dispatch, "mine")
        await chat.answer((await chat.say("#sales")).dispatch, **fail())
        await chat.say("/status")
        found = await found_in(service)
    assert found == [
        message("", "sales", SURE, 0.0, "sales", supervised=True),
        message("sales", "support", SURE, pytest.approx(1 - SURE), "support"),
        message("support", "sales", 0.6, pytest.approx(0.4), "support"),
    ]


async def test_answer_to_a_suggestion_is_the_users_own_label(tmp_path):
    """Even if the agent before answered first."""
    async with serving(tmp_path, desk("suggest"), model=ScriptedModel()) as service:
        for press in (0, 1):
            chat = await service.chat().with_agent("sales")
            routed = await chat.say("#support it is broken")
            await chat.answer(routed.dispatch, "I would not know")
            await chat.say("x", quick_reply_id=routed.suggestion.options[press].id)
        found = [m for m in await found_in(service, "suggest") if m.target == "support"]
    assert [message.owner for message in found] == ["support", "sales"]


async def test_question_is_the_one_that_the_server_asked(tmp_path):
    """A review with a different question would say nothing about the server."""
    live, later = ScriptedModel(), ScriptedModel()
    async with serving(tmp_path, desk("auto", "auto"), model=live) as service:
        chat = service.chat()
        chat.profile = {"locale": "es", "entitlements": ["plan:premium"]}
        for text in ("#sales hi", "more", "#support broken", "and?", "#premium please"):
            routed = await chat.say(text, request_id=fresh_id())
            await chat.answer(routed.dispatch, "done")
        registry = always_asked(parse_registry(desk("auto"), "desk"))
        judge = TopicJudge(lambda: later)
        found = [m async for m in labelled_messages(service.store, registry, judge)]
    assert len(found) == 5
    assert later.detector.asked == live.detector.asked


async def test_erased_sessions_are_passed_over(tmp_path):
    """Their messages are gone."""
    async with serving(tmp_path, desk("off")) as service:
        await service.chat().with_agent("sales")
        assert len(await found_in(service)) == 1
        admin = admin_service_pb2_grpc.AdminServiceStub(service.channel)
        request = admin_service_pb2.EraseUserRequest(user_id="ana", reason="asked")
        await admin.EraseUser(request)
        assert await found_in(service) == []


MESSAGES = [
    # Right and due; right, for a first message that cost a supervisor's call.
    message("sales", "support", 0.9, 0.1, "support"),
    message("", "sales", 0.8, 0.0, "sales", supervised=True),
    # False: away from the owner. Wrong: to a third agent. Missed: stay was likelier.
    message("sales", "support", 0.7, 0.3, "sales", waits=True),
    message("sales", "tutor", 0.6, 0.2, "support", supervised=True),
    message("sales", "support", 0.4, 0.6, "support"),
    # A first message that is for none of them.
    message("", "sales", 0.3, 0.0, "front", supervised=True),
]


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [
        (0.0, (5, 2, 2, 1, 1, 1)),
        (0.5, (4, 2, 1, 1, 1, 1)),
        (0.65, (3, 2, 1, 0, 2, 1)),
        (0.85, (1, 1, 0, 0, 3, 0)),
        (1.0, (0, 0, 0, 0, 4, 0)),
    ],
)
def test_threshold_is_held_against_the_owners(threshold, expected):
    """Switches, right, false, wrong, missed and saved, counted by hand."""
    row = outlook(MESSAGES, threshold, "front")
    assert row.messages == len(MESSAGES)
    assert (row.switches, row.right, row.false, row.wrong, row.missed, row.saved) == expected


def test_calibration_holds_confidences_against_what_came_true():
    """In steps of 0.1; an empty review is not an error."""
    assert calibration([]) == []
    assert calibration_error([]) == 0.0
    rows = calibration(MESSAGES)
    assert sum(count for count, _, _ in rows) == len(MESSAGES)
    expected = (0.1 + 0.2 + 0.7 + 0.6 + 0.6 + 0.3) / 6
    assert calibration_error(MESSAGES) == pytest.approx(expected)
