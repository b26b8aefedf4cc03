"""What clients decided alone while the service was away, reported once it is back."""

import pytest

from agent_routing.v1 import route_reason_pb2
from agent_routing.v1 import routing_service_pb2 as pb
from tests.rpc.live_service import fresh_id, hand_to, refusal, serving
from tests.rpc.registries import DESK

STORED, CONFLICT = pb.DEGRADED_TURN_STATUS_STORED, pb.DEGRADED_TURN_STATUS_CONFLICT


@pytest.fixture
async def service(tmp_path):
    """A help desk whose agents differ in one thing each."""
    async with serving(tmp_path, DESK) as running:
        yield running


def turn(chat, agent_id="sales", text="and April?", **fields):
    """Return a turn as a client reports it."""
    given = {"session_id": chat.session_id, "user_id": chat.user_id, "request_id": fresh_id()}
    told = {"agent_id": agent_id, "text": text, "agent_text": "13 euros"}
    return pb.DegradedTurn(**(given | told | fields))


async def report(service, *turns):
    """Report turns; return their results."""
    response = await service.call("ReportDegraded", pb.ReportDegradedRequest(turns=turns))
    assert [each.request_id for each in response.results] == [each.request_id for each in turns]
    return list(response.results)


async def test_reported_turns_are_in_the_history_and_move_nothing(service):
    """The next message goes to the same agent as without the reports."""
    chat = await service.chat().with_agent("sales")
    before = await chat.status()
    base = before.revision
    results = await report(
        service,
        turn(chat, base_revision=base, decide_time={"seconds": 1_700_000_000}),
        turn(chat, "front", "the second", base_revision=base),
    )
    assert [each.status for each in results] == [STORED, STORED]
    assert [each.revision for each in results] == [base + 1, base + 2]
    first, second = (await chat.turns())[-2:]
    assert (first.user_text, first.agent_text) == ("and April?", "13 euros")
    assert first.create_time.seconds == 1_700_000_000
    assert {first.reason, second.reason} == {route_reason_pb2.ROUTE_REASON_DEGRADED}
    assert (second.agent_id, second.user_text) == ("front", "the second")
    after = await chat.status()
    assert after.active_agent == before.active_agent
    assert not after.open_requests
    routed = await chat.say("next")
    assert routed.dispatch.agent.agent_id == "sales"
    assert "and April?" in [past.user_text for past in routed.dispatch.history]


async def test_a_report_is_stored_once(service):
    """A repeat gets the first answer, even in a changed session; other content is a conflict."""
    chat = await service.chat().with_agent("sales")
    told = turn(chat, base_revision=(await chat.status()).revision)
    [first] = await report(service, told)
    await chat.say("something else")
    await chat.clear()
    async with chat.unchanged():
        assert await report(service, told) == [first]
        other = pb.DegradedTurn()
        other.CopyFrom(told)
        other.text = "something else"
        [refused] = await report(service, other)
        assert (refused.status, refused.revision) == (CONFLICT, 0)


async def test_a_turn_that_the_service_routed_itself_is_a_conflict(service):
    """The deadline had passed, but the call arrived."""
    chat = await service.chat().with_agent("sales")
    base = (await chat.status()).revision
    request_id = fresh_id()
    await chat.say("and April?", request_id=request_id)
    async with chat.unchanged():
        for known in ({"base_revision": base}, {}):
            [result] = await report(service, turn(chat, request_id=request_id, **known))
            assert result.status == CONFLICT
            assert "routed this message itself" in result.detail


async def test_a_session_that_was_moved_meanwhile_is_a_conflict(service):
    """A client that reached the service moved it, and its decision stands."""
    chat = await service.chat().with_agent("sales")
    base = (await chat.status()).revision
    await chat.clear()
    async with chat.unchanged():
        [moved] = await report(service, turn(chat, base_revision=base))
        [elsewhere] = await report(service, turn(chat))
        assert [moved.status, elsewhere.status] == [CONFLICT, CONFLICT]
        assert "moved after revision" in moved.detail
        assert 'the conversation is with "front"' in elsewhere.detail
    [home] = await report(service, turn(chat, "front"))
    assert home.status == STORED


async def test_a_session_that_began_while_the_service_was_away_is_made(service):
    """Its id may be the client's or the service's; no agent is active in it."""
    chat = service.chat()
    [named] = await report(service, turn(chat, "front", base_revision=0))
    assert (named.status, named.revision) == (STORED, 1)
    assert not (await chat.status()).HasField("active_agent")
    told = turn(chat, "front", session_id="")
    [made] = await report(service, told)
    assert made.status == STORED
    assert made.session_id not in ("", chat.session_id)
    routed = await service.call(
        "Route", pb.RouteRequest(user_id="ana", text="hi", request_id=told.request_id)
    )
    assert routed.session_id == made.session_id


async def test_a_turn_of_another_user_is_a_conflict_and_the_others_are_stored(service):
    """One turn that cannot be stored does not hold up the rest."""
    hers, his = await service.chat().with_agent("sales"), service.chat(user_id="ben")
    results = await report(
        service, turn(hers, user_id="ben"), turn(his, "front"), turn(hers, "sales")
    )
    assert [each.status for each in results] == [CONFLICT, STORED, STORED]


async def test_bad_fields_are_named_with_their_turn(service):
    """Nothing is stored then."""
    chat = await service.chat().with_agent("sales")
    async with chat.unchanged():
        asked = pb.ReportDegradedRequest(turns=[turn(chat), turn(chat, request_id="7")])
        refused = await refusal(service.call("ReportDegraded", asked))
        assert refused.metadata["field"] == "turns[1].request_id"
        empty = await refusal(service.call("ReportDegraded", pb.ReportDegradedRequest()))
        assert empty.metadata["field"] == "turns"


async def test_a_late_answer_of_an_open_turn_is_no_conflict(service):
    """It moved nothing, and the client's decision stands."""
    chat = service.chat()
    routed = await chat.say()
    handed = await chat.answer(routed.dispatch, **hand_to("sales"))
    base = (await chat.status()).revision
    await chat.answer(handed.next, "late")
    [result] = await report(service, turn(chat, base_revision=base))
    assert result.status == STORED
