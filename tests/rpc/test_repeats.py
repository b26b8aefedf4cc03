"""Repeats: a repeated request gets the first answer, and is not applied again."""

import pytest

from agent_routing.v1 import clear_scope_pb2, item_pb2
from tests.rpc.live_service import (
    ask,
    finish,
    fresh_id,
    hand_to,
    is_replayed,
    refusal,
    serving,
    went,
)
from tests.rpc.random_talk import RandomTalk
from tests.rpc.registries import DESK


@pytest.fixture
async def service(tmp_path):
    """A help desk whose agents differ in one thing each."""
    async with serving(tmp_path, DESK) as running:
        yield running


async def moved_on(chat):
    """Change the session, so that a repeat meets another state than the first call did."""
    await chat.clear()
    await chat.set_active("asks_only")
    await chat.say("something else")


async def test_repeated_message_gets_the_first_answer(service):
    """The same bytes, history included, and metadata that marks a repeat; no second turn opens."""
    chat = await service.chat().with_agent("sales", **ask())
    request_id = fresh_id()
    call = chat.say("red", request_id=request_id)
    first = await call
    assert not await is_replayed(call)
    assert len(first.dispatch.history) == 1
    await moved_on(chat)
    async with chat.unchanged():
        again = chat.say("red", request_id=request_id)
        assert (await again).SerializeToString() == first.SerializeToString()
        assert await is_replayed(again)


async def test_repeated_handoff_gets_the_first_answer(service):
    """Although the target is active now, for which a new handoff would be refused."""
    chat = await service.chat().with_agent("sales")
    request_id = fresh_id()
    first = await chat.set_active("support", request_id=request_id, reason="broken")
    for _ in range(2):
        again = chat.set_active("support", request_id=request_id, reason="broken")
        assert (await again).SerializeToString() == first.SerializeToString()
        assert await is_replayed(again)
        await moved_on(chat)


async def test_repeated_clear_gets_the_first_answer(service):
    """It does not clear what happened since."""
    chat = await service.chat().with_agent("sales")
    request_id = fresh_id()
    first = await chat.clear(request_id=request_id)
    await chat.set_active("support")
    again = chat.clear(request_id=request_id)
    assert (await again).SerializeToString() == first.SerializeToString()
    assert await is_replayed(again)
    assert (await chat.status()).active_agent.agent_id == "support"


@pytest.mark.parametrize("ending", [ask(), finish("done"), hand_to("support", message="hi"), {}])
async def test_repeated_answer_gets_the_first_answer(service, ending):
    """For every outcome, and although its turn is closed."""
    chat = await service.chat().with_agent("sales")
    routed = await chat.say("so?")
    first = await chat.answer(routed.dispatch, "well", **ending)
    await moved_on(chat)
    async with chat.unchanged():
        again = chat.answer(routed.dispatch, "well", **ending)
        assert (await again).SerializeToString() == first.SerializeToString()
        assert await is_replayed(again)


@pytest.mark.parametrize(
    "changed",
    [
        {"text": "blue"},
        {"items": [item_pb2.Item(content_type="text/plain", text="x")]},
        {"locale": "es"},
        {"channel": "web"},
        {"entitlements": ["plan:premium"]},
        {"metadata": {"a": "b"}},
        {"literal_text": True},
        {"task_expire_time": {"seconds": 4_000_000_000}},
    ],
)
async def test_message_with_other_content_does_not_get_the_answer(service, changed):
    """A request id stands for one content; the call is refused and changes nothing."""
    chat = await service.chat().with_agent("sales")
    request_id = fresh_id()
    await chat.say("red", request_id=request_id)
    async with chat.unchanged():
        refused = await refusal(chat.say(**{"text": "red", "request_id": request_id} | changed))
    assert tuple(refused) == ("ALREADY_EXISTS", "REQUEST_ID_REUSED")
    assert refused.metadata == {
        "session_id": chat.session_id,
        "request_id": request_id,
        "method": "Route",
    }


async def test_how_to_answer_is_not_what_is_asked(service):
    """Another history_turns or expected_revision is still the same request."""
    chat = await service.chat().with_agent("sales")
    request_id = fresh_id()
    first = await chat.say("red", request_id=request_id, expected_revision=3)
    again = chat.say("red", request_id=request_id, history_turns=-1)
    answer = await again
    assert await is_replayed(again)
    assert not answer.dispatch.history
    assert first.dispatch.history
    del first.dispatch.history[:]
    assert answer == first


async def test_handoff_or_clear_with_other_content_is_refused(service):
    """Every field that changes the meaning is compared."""
    chat = await service.chat().with_agent("sales")
    moved, cleared = fresh_id(), fresh_id()
    await chat.set_active("support", request_id=moved)
    await chat.clear(request_id=cleared)
    for method, request_id, call in (
        ("SetActiveAgent", moved, chat.set_active("sales", request_id=moved)),
        ("SetActiveAgent", moved, chat.set_active("support", request_id=moved, reason="x")),
        ("SetActiveAgent", moved, chat.set_active("support", request_id=moved, message="x")),
        ("SetActiveAgent", moved, chat.set_active("support", request_id=moved, mode=2)),
        ("ClearActiveAgent", cleared, chat.clear(request_id=cleared, reason="x")),
        (
            "ClearActiveAgent",
            cleared,
            chat.clear(request_id=cleared, scope=clear_scope_pb2.CLEAR_SCOPE_SESSION),
        ),
    ):
        refused = await refusal(call)
        assert tuple(refused) == ("ALREADY_EXISTS", "REQUEST_ID_REUSED")
        assert refused.metadata == {
            "session_id": chat.session_id,
            "request_id": request_id,
            "method": method,
        }


async def test_answer_with_other_content_does_not_replace_the_first(service):
    """The first answer stays; the error says so."""
    chat = await service.chat().with_agent("sales")
    routed = await chat.say("so?")
    await chat.answer(routed.dispatch, "yes")
    async with chat.unchanged():
        for changed in ({"text": "no"}, ask(), finish(), hand_to("support")):
            given = {"text": "yes"} | changed
            text = given.pop("text")
            refused = await refusal(chat.answer(routed.dispatch, text, **given))
            assert tuple(refused) == ("FAILED_PRECONDITION", "REQUEST_NOT_OPEN")
            assert refused.metadata["request_id"] == routed.request_id
            assert refused.metadata["agent_id"] == "sales"
            assert refused.metadata["session_id"] == chat.session_id


async def test_each_agent_answers_a_request_once(service):
    """Answers are unique by request and agent, so another agent can answer too."""
    chat = await service.chat().with_agent("sales")
    routed = await chat.say("so?")
    mine = await chat.answer(routed.dispatch, "yes")
    other = chat.answer(routed.dispatch, "no", agent_id="support")
    answered = await other
    assert not await is_replayed(other)
    assert answered.revision == mine.revision + 1
    again = chat.answer(routed.dispatch, "no", agent_id="support")
    assert await again == answered
    assert await is_replayed(again)


async def test_alias_and_id_are_one_agent(service):
    """A repeat under another name of the agent is the same answer."""
    chat = await service.chat().with_agent("sales")
    routed = await chat.say("so?")
    first = await chat.answer(routed.dispatch, "yes", agent_id="SALES")
    again = chat.answer(routed.dispatch, "yes", agent_id="sales")
    assert await again == first
    assert await is_replayed(again)


async def test_one_request_id_may_be_used_by_several_methods(service):
    """Frontend and runtime do not have to coordinate their ids."""
    chat = service.chat()
    request_id = fresh_id()
    routed = await chat.say(request_id=request_id)
    moved = await chat.set_active("sales", request_id=request_id)
    cleared = await chat.clear(request_id=request_id)
    answered = await chat.answer(routed.dispatch, "late")
    assert [a.revision for a in (routed, moved, cleared, answered)] == [1, 2, 3, 4]


async def test_one_request_id_in_two_sessions_is_two_requests(service):
    """A request id is unique within its session."""
    request_id = fresh_id()
    one, two = service.chat(), service.chat()
    await one.say("a", request_id=request_id)
    routed = two.say("b", request_id=request_id)
    assert (await routed).dispatch.text == "b"
    assert not await is_replayed(routed)


async def test_refused_request_is_not_used_up(service):
    """The same id can be used for the corrected request."""
    chat = await service.chat().with_agent("sales")
    request_id = fresh_id()
    refused = await refusal(chat.set_active("premium", request_id=request_id))
    assert refused.rules == ["entitled"]
    await chat.say("I have paid", entitlements=["plan:premium"])
    moved = chat.set_active("premium", request_id=request_id)
    assert (await moved).agent.agent_id == "premium"
    assert not await is_replayed(moved)


async def test_call_that_wrote_nothing_can_be_repeated(service):
    """A clear without effect stores nothing, not even its request id."""
    chat = service.chat()
    routed = await chat.say()
    await chat.answer(routed.dispatch, "hi")
    request_id = fresh_id()
    first = await chat.clear(request_id=request_id)
    again = chat.clear(request_id=request_id)
    assert await again == first
    assert not await is_replayed(again)
    await chat.set_active("sales")
    cleared = await chat.clear(request_id=request_id)
    assert cleared.previous_agent.agent_id == "sales"


async def test_repeats_after_a_restart_get_the_first_answers(tmp_path):
    """Every kind of call, with identical bytes, from a server that has never seen the session."""
    ids = [fresh_id() for _ in range(3)]

    def calls(chat, dispatch):
        return (
            chat.say("red", request_id=ids[0]),
            chat.answer(dispatch, "to support", **hand_to("support", context={"a": [1]})),
            chat.set_active("asks_only", request_id=ids[1]),
            chat.clear(request_id=ids[2]),
        )

    async with serving(tmp_path, DESK) as service:
        chat = await service.chat("kept").with_agent("sales", **ask())
        routed = await chat.say("red", request_id=ids[0])
        first = [await call for call in calls(chat, routed.dispatch)]
        await moved_on(chat)
    async with serving(tmp_path, DESK) as service:
        chat = service.chat("kept")
        before = await chat.snapshot()
        for expected, call in zip(first, calls(chat, routed.dispatch), strict=True):
            assert (await call).SerializeToString() == expected.SerializeToString()
            assert await is_replayed(call)
        assert await chat.snapshot() == before
        refused = await refusal(chat.say("blue", request_id=ids[0]))
        assert tuple(refused) == ("ALREADY_EXISTS", "REQUEST_ID_REUSED")


async def test_repeat_does_not_depend_on_the_registry_of_the_day(tmp_path):
    """The first answer is returned although the agent was renamed or removed."""
    request_id = fresh_id()
    async with serving(tmp_path, DESK) as service:
        chat = await service.chat("kept").with_agent("sales")
        first = await chat.say("red", request_id=request_id)
    renamed = DESK.replace("name: {en: Sales, es: Ventas}", "name: Shop")
    async with serving(tmp_path, renamed) as service:
        again = service.chat("kept").say("red", request_id=request_id)
        assert (await again).SerializeToString() == first.SerializeToString()
        assert went(first.dispatch) == ("sales", "STICKY")
        assert (await again).dispatch.agent.display_name == "Sales"


@pytest.mark.parametrize("seed", range(4))
async def test_every_answer_of_a_conversation_at_random_is_repeated_to_the_byte(tmp_path, seed):
    """By the server that answered first, and by one that has never seen the conversation."""
    async with serving(tmp_path, DESK) as service:
        talk = RandomTalk(service, seed)
        while len(talk.kept) < 60:
            await talk.step()
        assert talk.refused <= {"HANDOFF_REFUSED", "REQUEST_NOT_OPEN"}
        before = await talk.chat.snapshot()
        for rpc, data, answer in talk.kept:
            assert await service.raw(rpc, data) == answer, (rpc, data)
        assert await talk.chat.snapshot() == before
    async with serving(tmp_path, DESK, clock=service.clock) as service:
        for rpc, data, answer in reversed(talk.kept):
            assert await service.raw(rpc, data) == answer, (rpc, data)
        assert await service.chat("talk").snapshot() == before
