"""Frameworks that do their own handoffs: several per run, with answers in any order.

An agent framework runs its agents on one message until one of them answers. It reports handoffs by
SetActiveAgent with the turn's request id, and its agents' texts by CompleteTurn, in the order in
which its hooks run.
"""

import itertools

import pytest

from tests.rpc.live_service import (
    INTERLUDE,
    ask,
    fail,
    finish,
    hand_to,
    is_replayed,
    mode,
    outcome,
    outcome_status,
    refusal,
    serving,
    stack,
    task_status,
    went,
)
from tests.rpc.registries import DESK, SWARM

RUN = ("front", "sales", "support")
HOLDER = RUN[-1]
ORDERS = list(itertools.permutations(RUN))


@pytest.fixture
async def service(tmp_path):
    """A help desk whose agents differ in one thing each."""
    async with serving(tmp_path, DESK) as running:
        yield running


async def run(chat):
    """Route a message and let the framework hand it over twice; return the dispatch."""
    routed = await chat.say("my lamp is broken")
    first = await chat.set_active("sales", turn_request_id=routed.request_id, from_agent_id="front")
    assert (first.agent.agent_id, first.task_id) == ("sales", routed.task_id)
    second = await chat.set_active(
        "support", turn_request_id=routed.request_id, from_agent_id="sales"
    )
    assert second.agent.agent_id == "support"
    return routed.dispatch


def text_of(agent_id):
    """Return an agent's text."""
    return f"{agent_id} says this"


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
async def test_only_the_last_holder_moves_anything_whatever_the_order(service, order):
    """The other agents' answers are stored; the request stays open until its holder answers."""
    chat = service.chat()
    dispatch = await run(chat)
    is_answered = False
    for agent_id in order:
        outcome_given = ask() if agent_id == HOLDER else finish()
        answered = await chat.answer(
            dispatch, text_of(agent_id), agent_id=agent_id, **outcome_given
        )
        is_answered = is_answered or agent_id == HOLDER
        assert outcome_status(answered) == ("APPLIED" if agent_id == HOLDER else "STORED_ONLY")
        assert answered.text == text_of(agent_id)
        assert not answered.HasField("next")
        status = await chat.status()
        assert status.active_agent.agent_id == HOLDER
        assert status.locked == is_answered
        assert len(status.open_requests) == (0 if is_answered else 1)
        assert task_status(status.task.status) == "RUNNING"
    turns = await chat.turns()
    assert [(turn.agent_id, turn.agent_text) for turn in turns] == [(a, text_of(a)) for a in RUN]
    assert [turn.from_agent_id for turn in turns] == ["", "front", "sales"]
    assert {turn.request_id for turn in turns} == {dispatch.request_id}
    assert [outcome(turn)[1] for turn in turns] == ["STORED_ONLY", "STORED_ONLY", "APPLIED"]
    assert went((await chat.say("yes")).dispatch) == (HOLDER, "FOLLOW_UP_LOCK")


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
async def test_every_answer_of_a_run_can_be_repeated(service, order):
    """Each agent answers once; a repeat gets the first answer again."""
    chat = service.chat()
    dispatch = await run(chat)
    first = {}
    for agent_id in order:
        first[agent_id] = await chat.answer(dispatch, text_of(agent_id), agent_id=agent_id)
    async with chat.unchanged():
        for agent_id in RUN:
            again = chat.answer(dispatch, text_of(agent_id), agent_id=agent_id)
            assert (await again).SerializeToString() == first[agent_id].SerializeToString()
            assert await is_replayed(again)
            refused = await refusal(chat.answer(dispatch, "something else", agent_id=agent_id))
            assert tuple(refused) == ("FAILED_PRECONDITION", "REQUEST_NOT_OPEN")


@pytest.mark.parametrize("given", [ask(), finish(), hand_to("asks_only"), fail("x")])
async def test_outcomes_of_agents_that_handed_over_change_nothing(service, given):
    """A question, an end, a handoff or a failure from an agent that has handed over."""
    for agent_id in RUN[:-1]:
        chat = service.chat()
        dispatch = await run(chat)
        answered = await chat.answer(dispatch, "late", agent_id=agent_id, **given)
        assert outcome_status(answered) == "STORED_ONLY"
        assert task_status(answered.task_status) == "RUNNING"
        assert (answered.active_agent.agent_id, answered.locked) == (HOLDER, False)
        answered = await chat.answer(dispatch, "here", agent_id=HOLDER, **ask())
        assert outcome_status(answered) == "APPLIED"


async def test_answer_of_an_agent_that_was_never_asked_is_kept(service):
    """It gets its own entry in the history and changes nothing."""
    chat = service.chat()
    dispatch = await run(chat)
    answered = await chat.answer(dispatch, "me too", agent_id="asks_only", **ask())
    assert outcome_status(answered) == "STORED_ONLY"
    turns = await chat.turns()
    assert [turn.agent_id for turn in turns] == [*RUN, "asks_only"]
    assert turns[-1].agent_text == "me too"
    assert (await chat.status()).active_agent.agent_id == HOLDER
    refused = await refusal(chat.answer(dispatch, "me too", agent_id="nobody"))
    assert tuple(refused) == ("NOT_FOUND", "UNKNOWN_AGENT")


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
async def test_newer_message_overtakes_a_run(service, order):
    """All answers of the run are stored, none changes anything, and its handoffs are refused."""
    chat = service.chat()
    dispatch = await run(chat)
    newer = await chat.say("hello?")
    assert went(newer.dispatch) == (HOLDER, "STICKY")
    refused = await refusal(chat.set_active("sales", turn_request_id=dispatch.request_id))
    assert refused.rules == ["live_turn"]
    for agent_id in order:
        answered = await chat.answer(dispatch, text_of(agent_id), agent_id=agent_id, **ask())
        assert outcome_status(answered) == "STORED_ONLY"
        assert not answered.locked
    texts = [turn.agent_text for turn in await chat.turns()]
    assert texts == [*map(text_of, RUN), ""]
    answered = await chat.answer(newer.dispatch, "sorry", **ask())
    assert (outcome_status(answered), answered.locked) == ("APPLIED", True)


async def test_answer_before_the_handoffs_ends_the_run(service):
    """A turn that its holder has completed can no longer be handed over."""
    chat = service.chat()
    routed = await chat.say("my lamp is broken")
    await chat.answer(routed.dispatch, "I can tell you that")
    refused = await refusal(chat.set_active("sales", turn_request_id=routed.request_id))
    assert refused.rules == ["live_turn"]
    assert not (await chat.status()).HasField("active_agent")


async def test_run_that_comes_back_to_the_supervisor_leaves_nobody_active(service):
    """The supervisor holds the turn again, completes it, and gets the next message."""
    chat = service.chat()
    routed = await chat.say("my lamp is broken")
    for agent_id in ("sales", "front"):
        await chat.set_active(agent_id, turn_request_id=routed.request_id)
    status = await chat.status()
    assert not status.HasField("active_agent")
    assert [d.agent.agent_id for d in status.open_requests] == ["front"]
    answered = await chat.answer(routed.dispatch, "nobody can help", agent_id="front")
    assert outcome_status(answered) == "APPLIED"
    turns = await chat.turns()
    # One entry for each agent, at its latest dispatch of the request.
    assert [(turn.agent_id, turn.agent_text) for turn in turns] == [
        ("sales", ""),
        ("front", "nobody can help"),
    ]
    assert went((await chat.say()).dispatch) == ("front", "NO_ACTIVE_AGENT")


async def test_run_counts_its_handoffs_against_the_message(service):
    """The limit here is four handoffs, counted over all calls."""
    chat = service.chat()
    dispatch = await run(chat)
    await chat.set_active("asks_only", turn_request_id=dispatch.request_id)
    handed = await chat.answer(dispatch, agent_id="asks_only", **hand_to("narrow"))
    refused = await refusal(chat.answer(handed.next, **hand_to("sales")))
    assert refused.rules == ["hop_limit"]
    assert "has been through 4 handoffs, at most 4 are allowed" in refused.message
    refused = await refusal(chat.set_active("sales", turn_request_id=handed.next.request_id))
    assert refused.rules == ["hop_limit"]
    # A handoff to the home agent is always allowed, and the answer is always stored.
    back = await chat.answer(handed.next, "no idea", **hand_to("front"))
    assert went(back.next) == ("front", "AGENT_HANDOFF")


async def test_request_of_a_run_may_go_on_by_a_completed_handoff(service):
    """A handoff by outcome opens a new request, which the run can hand over again."""
    chat = service.chat()
    dispatch = await run(chat)
    handed = await chat.answer(dispatch, "one moment", agent_id=HOLDER, **hand_to("asks_only"))
    assert handed.next.request_id != dispatch.request_id
    await chat.set_active("narrow", turn_request_id=handed.next.request_id)
    answered = await chat.answer(handed.next, "done", agent_id="narrow")
    assert outcome_status(answered) == "APPLIED"
    late = await chat.answer(handed.next, "too late", agent_id="asks_only")
    assert outcome_status(late) == "STORED_ONLY"
    turns = await chat.turns()
    assert [turn.agent_id for turn in turns] == [*RUN, "asks_only", "narrow"]


async def test_interlude_within_a_run(service):
    """Within a run, too, the interrupted agent is put on the stack with its open question."""
    chat = await service.chat().with_agent("sales", **ask())
    routed = await chat.say("wait")
    moved = await chat.set_active("support", turn_request_id=routed.request_id, mode=INTERLUDE)
    assert mode(moved.handoff) == "INTERLUDE"
    status = await chat.status()
    assert (stack(status), status.return_stack[0].locked) == (["sales"], True)
    back = await chat.answer(routed.dispatch, "done", agent_id="support", **finish())
    assert went(back.next) == ("sales", "RETURNED")
    assert back.next.locked


async def test_run_in_a_swarm(tmp_path):
    """A run works the same way without a supervisor."""
    async with serving(tmp_path, SWARM) as swarm:
        chat = swarm.chat()
        routed = await chat.say("Rome, and a bed")
        assert went(routed.dispatch) == ("greeter", "DEFAULT_AGENT")
        for agent_id in ("flights", "hotels"):
            await chat.set_active(agent_id, turn_request_id=routed.request_id)
        for agent_id in ("greeter", "flights"):
            answered = await chat.answer(routed.dispatch, "hm", agent_id=agent_id, **finish())
            assert outcome_status(answered) == "STORED_ONLY"
        answered = await chat.answer(routed.dispatch, "two nights?", agent_id="hotels", **ask())
        assert (answered.active_agent.agent_id, answered.locked) == ("hotels", True)


async def test_run_while_stickiness_is_off_moves_its_message_only(tmp_path):
    """The handoffs are applied to the message and recorded; the active agent stays the same."""
    async with serving(tmp_path, DESK) as service:
        await service.chat("kept").with_agent("owner")
    async with serving(tmp_path, DESK, stickiness="disabled") as service:
        chat = service.chat("kept")
        dispatch = await run(chat)
        status = await chat.status()
        assert status.active_agent.agent_id == "owner"
        assert [d.agent.agent_id for d in status.open_requests] == [HOLDER]
        for agent_id in RUN:
            answered = await chat.answer(dispatch, "hm", agent_id=agent_id, **ask())
            expected = "APPLIED" if agent_id == HOLDER else "STORED_ONLY"
            assert outcome_status(answered) == expected
            assert not answered.locked
        assert (await chat.status()).active_agent.agent_id == "owner"
