"""Histories: which agent sees which turns, with a message and in ListTurns."""

import pytest
from msgspec.structs import replace

from agent_routing.v1 import routing_service_pb2, turn_pb2
from routing_service.core.evolve import apply_change
from routing_service.core.history import HistoryFold
from routing_service.server.bounds import Bounds
from routing_service.storage.event_codec import decode_events, decode_state
from tests.rpc.live_service import (
    ask,
    fresh_id,
    hand_to,
    is_replayed,
    outcome,
    refusal,
    serving,
)
from tests.rpc.random_talk import RandomTalk, TasksAtRandom
from tests.rpc.registries import DESK

NEWEST_FIRST = routing_service_pb2.TURN_ORDER_NEWEST_FIRST


@pytest.fixture
async def service(tmp_path):
    """A help desk whose agents differ in one thing each."""
    async with serving(tmp_path, DESK) as running:
        yield running


async def talked(service, session_id=""):
    """Return a conversation in which front, sales and support each gave an answer."""
    chat = service.chat(session_id)
    routed = await chat.say("I want a lamp")
    handed = await chat.answer(routed.dispatch, "front: to sales", **hand_to("sales"))
    await chat.answer(handed.next, "sales: which lamp?", **ask())
    routed = await chat.say("the broken one")
    handed = await chat.answer(routed.dispatch, "sales: to support", **hand_to("support"))
    await chat.answer(handed.next, "support: how broken?", **ask())
    routed = await chat.say("very")
    await chat.answer(routed.dispatch, "support: a new one is on its way")
    return chat


def words(turns):
    """Return each turn's agent, question and answer."""
    return [(turn.agent_id, turn.user_text, turn.agent_text) for turn in turns]


WHOLE = [
    ("front", "I want a lamp", "front: to sales"),
    ("sales", "I want a lamp", "sales: which lamp?"),
    ("sales", "the broken one", "sales: to support"),
    ("support", "the broken one", "support: how broken?"),
    ("support", "very", "support: a new one is on its way"),
]


async def test_orchestrator_sees_every_turn(service):
    """Its message brings every turn, with the texts of all agents."""
    chat = await talked(service)
    await chat.say("/supervisor")
    routed = await chat.say("and now?")
    assert routed.dispatch.agent.agent_id == "front"
    assert words(routed.dispatch.history) == WHOLE


async def test_specialist_sees_its_own_turns_and_no_other_agent_s_words(service):
    """It gets the turns in which it took part: it answered or handed over."""
    chat = await talked(service)
    await chat.set_active("sales")
    routed = await chat.say("another lamp")
    assert words(routed.dispatch.history) == [turn for turn in WHOLE if turn[0] == "sales"]
    said = routed.dispatch.SerializeToString()
    assert b"front:" not in said
    assert b"support:" not in said


async def test_next_agent_of_a_message_gets_its_history_along(service):
    """The agent that hands over does not have to fetch it."""
    chat = await talked(service)
    routed = await chat.say("one more lamp")
    handed = await chat.answer(routed.dispatch, **hand_to("sales"))
    assert words(handed.next.history) == [turn for turn in WHOLE if turn[0] == "sales"]
    # The agent's own request is the message, not history.
    assert handed.next.text == "one more lamp"


async def test_locked_agent_always_gets_its_history(service):
    """Even if the caller asks for no history.

    The agent needs its own question to read the answer.
    """
    chat = await service.chat().with_agent("sales", **ask())
    routed = await chat.say("red", history_turns=-1)
    assert routed.dispatch.locked
    assert words(routed.dispatch.history) == [("sales", "I need sales", "sales here")]
    await chat.answer(routed.dispatch, "noted")
    routed = await chat.say("more", history_turns=-1)
    assert not routed.dispatch.locked
    assert not routed.dispatch.history


async def test_as_many_turns_go_along_as_are_asked_for(service):
    """The newest turns, oldest first; the default is twenty."""
    for asked, sent in ((3, 3), (0, 20), (100, 26)):
        chat = await service.chat().with_agent("sales")
        for number in range(25):
            routed = await chat.say(f"message {number}")
            await chat.answer(routed.dispatch, f"answer {number}")
        routed = await chat.say("and?", history_turns=asked)
        texts = [turn.agent_text for turn in routed.dispatch.history]
        assert len(texts) == sent
        assert texts[-1] == "answer 24"


async def test_history_does_not_depend_on_what_the_server_remembers(tmp_path):
    """A server that has never seen the session sends the same history as one that has."""
    async with serving(tmp_path, DESK) as service:
        chat = await talked(service, "kept")
        warm = await chat.say("more", validate_only=False)
        await chat.answer(warm.dispatch, "support: yes?")
    async with serving(tmp_path, DESK) as service:
        cold = await service.chat("kept").say("more still")
        expected = [turn for turn in WHOLE if turn[0] == "support"]
        assert words(cold.dispatch.history) == [*expected, ("support", "more", "support: yes?")]
        assert words(warm.dispatch.history) == expected


async def test_repeat_gets_the_history_of_the_first_answer(service):
    """Identical bytes although the session has moved on: by Route and by CompleteTurn's next."""
    chat = await talked(service)
    request_id = fresh_id()
    first = await chat.say("again", request_id=request_id, history_turns=5)
    handed = await chat.answer(first.dispatch, "support: to sales", **hand_to("sales"))
    await chat.answer(handed.next, "sales: here", **ask())
    await chat.say("later", request_id=fresh_id())
    repeated = chat.say("again", request_id=request_id, history_turns=5)
    assert (await repeated).SerializeToString() == first.SerializeToString()
    assert first.dispatch.history
    assert await is_replayed(repeated)
    repeated = chat.answer(first.dispatch, "support: to sales", **hand_to("sales"))
    assert (await repeated).SerializeToString() == handed.SerializeToString()
    assert handed.next.history
    assert await is_replayed(repeated)


async def test_repeat_gets_the_same_history_where_the_turns_lie_far_back(service):
    """The search has a limit; a question that waits for its answer is always found."""
    for ending, sent in (({}, 0), (ask(), 1)):
        chat = await service.chat().with_agent("sales", **ending)
        for _ in range(420):
            await chat.say("/status")
        request_id = fresh_id()
        first = await chat.say("red", request_id=request_id)
        repeated = chat.say("red", request_id=request_id)
        assert len(first.dispatch.history) == sent
        assert (await repeated).SerializeToString() == first.SerializeToString()
        assert await is_replayed(repeated)


async def test_late_words_are_in_their_turn_s_place_however_late_they_come(service):
    """The same holds for an overtaken turn, whose holder the session has forgotten."""
    chat = service.chat()
    routed = await chat.say("one")
    await chat.set_active("sales", turn_request_id=routed.request_id)
    await chat.say("two")
    for _ in range(110):
        await chat.say("/status")
    await chat.answer(routed.dispatch, "at last", agent_id="front")
    expected = [("front", "one", "at last"), ("sales", "one", ""), ("sales", "two", "")]
    assert words(await chat.turns()) == expected
    assert words(await chat.turns(order=NEWEST_FIRST)) == expected[::-1]
    request_id = fresh_id()
    first = await chat.say("/supervisor go", request_id=request_id, history_turns=1)
    repeated = chat.say("/supervisor go", request_id=request_id, history_turns=1)
    assert words(first.dispatch.history) == expected[-1:]
    assert (await repeated).SerializeToString() == first.SerializeToString()


async def test_list_of_turns_by_agent_shows_what_that_agent_may_see(service):
    """The home agent sees all turns, another agent its own; by id or alias."""
    chat = await talked(service)
    assert words(await chat.turns()) == WHOLE
    assert words(await chat.turns(agent_id="front")) == WHOLE
    for name in ("sales", "Sales"):
        assert words(await chat.turns(agent_id=name)) == [t for t in WHOLE if t[0] == "sales"]
    assert await chat.turns(agent_id="premium") == []


async def test_list_of_turns_by_task_shows_that_task_only(service):
    """The tasks of one session are kept apart."""
    chat = await talked(service)
    task_id = (await chat.status()).task.task_id
    await chat.say("/reset")
    other = await chat.say("a new thing")
    assert words(await chat.turns(task_id=task_id)) == WHOLE
    assert words(await chat.turns(task_id=other.task_id)) == [("front", "a new thing", "")]
    assert await chat.turns(task_id=fresh_id()) == []


async def test_turns_come_in_pages_both_ways(service):
    """Following the tokens returns each turn once, in order, for every page size."""
    chat = await talked(service)
    for order, expected in ((0, WHOLE), (NEWEST_FIRST, WHOLE[::-1])):
        for page_size in (1, 2, 5, 1000):
            token, found, pages = "", [], 0
            while pages == 0 or token:
                request = routing_service_pb2.ListTurnsRequest(
                    session_id=chat.session_id,
                    user_id="ana",
                    page_size=page_size,
                    page_token=token,
                    order=order,
                )
                page = await service.call("ListTurns", request)
                assert len(page.turns) <= page_size
                found += words(page.turns)
                token, pages = page.next_page_token, pages + 1
            assert found == expected


async def test_page_token_of_another_list_is_a_bad_field(service):
    """An invalid token is named as a bad field."""
    chat = await talked(service)
    for rpc in (chat.turns, chat.tasks):
        for token in ("nonsense", "bm9uc2Vuc2U", "é", "=" * 40):
            refused = await refusal(rpc(page_token=token))
            assert tuple(refused) == ("INVALID_ARGUMENT", "INVALID_FIELD")
            assert refused.rules == ["page_token"]


async def test_open_and_abandoned_turns_are_listed_as_such(service):
    """An open turn has no outcome yet; an abandoned one will never have one."""
    chat = service.chat()
    await chat.say("one")
    await chat.say("/reset two")
    turns = await chat.turns()
    assert [turn_pb2.TurnOutcome.Name(turn.outcome) for turn in turns] == [
        "TURN_OUTCOME_ABANDONED",
        "TURN_OUTCOME_UNSPECIFIED",
    ]
    assert not turns[0].HasField("complete_time")


async def test_long_history_tells_open_answered_and_abandoned_turns_apart(service):
    """Also if many turns lie between a request and its outcome, and pages end in between."""
    chat = await service.chat().with_agent("sales")
    fates = {}
    for number in range(130):
        routed = await chat.say(f"message {number}")
        if number % 13 == 0:
            fates[f"message {number}"] = "ABANDONED"
        else:
            await chat.answer(routed.dispatch, f"answer {number}")
            fates[f"message {number}"] = "PROCEED"
    open_ids = {d.request_id for d in (await chat.status()).open_requests}
    assert len(open_ids) == 3
    for order in (0, NEWEST_FIRST):
        for page_size in (7, 1000):
            token, seen = "", {}
            while not seen or token:
                request = routing_service_pb2.ListTurnsRequest(
                    session_id=chat.session_id,
                    user_id="ana",
                    page_size=page_size,
                    page_token=token,
                    order=order,
                )
                page = await service.call("ListTurns", request)
                for turn in page.turns:
                    if turn.user_text.startswith("message"):
                        is_open = turn.request_id in open_ids
                        seen[turn.user_text] = outcome(turn)[0], is_open
                token = page.next_page_token
            for text, fate in fates.items():
                found, is_open = seen[text]
                assert found == ("UNSPECIFIED" if is_open else fate), (text, order, page_size)


@pytest.mark.parametrize("order", [0, NEWEST_FIRST])
async def test_turn_taken_back_long_after_it_was_asked_is_not_shown_as_open(service, order):
    """The log has both, more than one read apart."""
    chat = service.chat()
    await chat.say("one")
    handed = await chat.set_active("sales", turn_request_id=(await chat.turns())[0].request_id)
    for _ in range(230):
        await chat.say("/status")
    reset = await chat.say("/reset and two")
    turns = await chat.turns(order=order)
    turns = turns if order == 0 else turns[::-1]
    fates = [(turn.agent_id, outcome(turn)[0], turn.revision) for turn in turns]
    assert fates == [
        ("front", "HANDOFF", handed.revision),
        ("sales", "ABANDONED", reset.revision),
        ("front", "UNSPECIFIED", reset.revision),
    ]
    assert [turn.user_text for turn in turns] == ["one", "one", "and two"]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.torture) for seed in (1, 2, 3, 4))]
)
async def test_pages_of_any_size_list_a_conversation_at_random_as_its_log_has_it(service, seed):
    """Every turn once, in order, with its outcome, for every page and read size."""
    talk = RandomTalk(service, seed)
    while len(talk.kept) < 240:
        await talk.step()
    await check_pages(service, talk)


TASKS = """\
api_version: agent_routing/v1
version: talk-1
supervisor: front
tasks: new
while_paused: park
agents:
  - {id: front, name: Front desk}
  - {id: refunds, name: Refunds, description: Refunds.}
  - {id: orders, name: Orders, description: Orders., receives_as: interlude}
  - {id: anna, name: Anna, kind: human, description: A person.}
"""


ALL_KINDS = frozenset(
    {"TaskParked", "TaskForegrounded", "TaskCompleted", "TaskCancelled", "TaskResumed"}
    | {"MessageSaid", "StepsReported", "NoteAdded", "Claimed", "ClaimReleased"}
)
"""What each conversation has to have had."""


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.torture) for seed in range(1, 9))]
)
async def test_pages_list_a_conversation_of_tasks_and_people_as_its_log_has_it(tmp_path, seed):
    """Tasks begin, park and come forward, people claim and release; the state is its log's."""
    async with serving(tmp_path, TASKS) as service:
        talk = TasksAtRandom(service, seed)
        kinds = set()
        while ALL_KINDS - kinds:
            assert len(talk.kept) < 600, ALL_KINDS - kinds
            for _ in range(40):
                await talk.step()
            kinds = {kind for change in await talk.chat.changes() for kind in change_kinds(change)}
        await check_pages(service, talk)
        state = None
        for change in await talk.chat.changes():
            state = apply_change(
                state,
                decode_events(change.events),
                session_id=talk.chat.session_id,
                now_us=change.time_us,
                registry_version=state.registry_version if state else "",
            )
        stored = decode_state((await service.store.load(talk.chat.key)).state)
        assert replace(state, registry_version=stored.registry_version) == stored
        for rpc, data, answer in talk.kept[-40:]:
            assert await service.raw(rpc, data) == answer, "a repeat got another answer"


def change_kinds(change):
    """Return the kinds of a stored change's events."""
    return [type(event).__name__ for event in decode_events(change.events)]


async def check_pages(service, talk):
    """Read all turns in pages of any size, and compare them with the log's."""
    fold = HistoryFold()
    for change in await talk.chat.changes():
        fold.apply(change.revision, change.time_us, decode_events(change.events))
    expected = [(r.request_id, r.agent_id, r.agent_text, r.is_open) for r in fold.records]
    for order in (0, NEWEST_FIRST):
        for page_size in (1, 7, 50, 1000):
            found, token = [], ""
            while not found or token:
                request = routing_service_pb2.ListTurnsRequest(
                    session_id=talk.chat.session_id,
                    page_size=page_size,
                    page_token=token,
                    order=order,
                )
                page = await service.call("ListTurns", request)
                found += [
                    (turn.request_id, turn.agent_id, turn.agent_text, turn.outcome == 0)
                    for turn in page.turns
                ]
                token = page.next_page_token
            found = found if order == 0 else found[::-1]
            assert found == expected, (order, page_size)


@pytest.mark.parametrize("is_answered", [False, True])
@pytest.mark.parametrize("order", [0, NEWEST_FIRST])
async def test_request_given_back_long_after_it_was_sent_is_listed_once(
    service, order, is_answered
):
    """It is listed once, at its agent's latest dispatch of it, for every page size."""
    chat = service.chat()
    routed = await chat.say("one")
    for _ in range(150):
        await chat.say("/status")
    for agent_id in ("sales", "front"):
        await chat.set_active(agent_id, turn_request_id=routed.request_id)
    if is_answered:
        await chat.answer(routed.dispatch, "at last")
    found, token = [], ""
    while not found or token:
        request = routing_service_pb2.ListTurnsRequest(
            session_id=chat.session_id, page_size=1, page_token=token, order=order
        )
        page = await service.call("ListTurns", request)
        found += [(turn.agent_id, outcome(turn)[0]) for turn in page.turns]
        token = page.next_page_token
    found = found if order == 0 else found[::-1]
    ending = "PROCEED" if is_answered else "UNSPECIFIED"
    assert found == [("sales", "HANDOFF"), ("front", ending)]


async def test_turn_says_at_which_revision_it_last_changed(service):
    """The revision of its answer or, before that, of its request."""
    chat = service.chat()
    routed = await chat.say("one")
    assert (await chat.turns())[0].revision == routed.revision == 1
    answered = await chat.answer(routed.dispatch, "answer")
    assert (await chat.turns())[0].revision == answered.revision == 2


async def test_turns_that_were_dropped_from_memory_come_back(tmp_path):
    """Memory holds the recent turns of some sessions.

    Dispatches have the same history without it.
    """
    async with serving(tmp_path, DESK, bounds=Bounds(folds_max=1)) as service:
        chats = [await talked(service) for _ in range(3)]
        seen = []
        for _ in range(2):
            for chat in chats:
                routed = await chat.say("and then?", history_turns=100)
                seen.append(words(routed.dispatch.history))
    first, second = seen[:3], seen[3:]
    assert first == [first[0]] * 3
    assert second == [second[0]] * 3
    assert len(second[0]) == len(first[0]) + 1
