"""Limits of handoffs: hops, ping-pong, refused attempts, and the depth of interludes."""

import pytest

from tests.rpc.live_service import (
    INTERLUDE,
    ask,
    finish,
    fresh_id,
    hand_to,
    outcome,
    outcome_status,
    refusal,
    serving,
    stack,
    task_status,
    went,
)
from tests.rpc.registries import DESK

# A hop limit high enough for the ping-pong rule to refuse first.
LONG = DESK.replace("hops_per_message: 4", "hops_per_message: 12")


@pytest.fixture
async def service(tmp_path):
    """A help desk whose agents differ in one thing each."""
    async with serving(tmp_path, DESK) as running:
        yield running


async def handed_on(chat, *agent_ids):
    """Route a message and let each agent hand it to the next; return the last dispatch."""
    dispatch = (await chat.say("whose is it?")).dispatch
    for agent_id in agent_ids:
        dispatch = (await chat.answer(dispatch, **hand_to(agent_id))).next
    return dispatch


async def test_message_is_handed_on_only_so_often(service):
    """Four hops are allowed here; the fifth is refused by name, and the turn stays open."""
    chat = service.chat()
    dispatch = await handed_on(chat, "sales", "support", "asks_only", "narrow")
    async with chat.unchanged():
        refused = await refusal(chat.answer(dispatch, **hand_to("sales")))
    assert tuple(refused) == ("FAILED_PRECONDITION", "HANDOFF_REFUSED")
    assert refused.rules == ["hop_limit"]
    answered = await chat.answer(dispatch, "then I do it", **ask())
    assert outcome_status(answered) == "APPLIED"
    routed = await chat.say("thanks")
    assert went((await chat.answer(routed.dispatch, **hand_to("sales"))).next)[0] == "sales"


async def test_completion_at_the_hop_limit_is_degraded_and_the_text_is_kept(service):
    """No hop is left for the next agent: the conversation is released, and the verdict says why."""
    chat = service.chat()
    dispatch = await handed_on(chat, "sales", "support", "asks_only", "completes_to_support")
    done = await chat.answer(dispatch, "It is done.", **finish("done"))
    assert outcome_status(done) == "DEGRADED"
    assert not done.HasField("next")
    assert not done.HasField("active_agent")
    assert done.text == "It is done."
    assert task_status(done.task_status) == "COMPLETED"
    assert [v.rule for v in done.verdicts if not v.allowed] == ["hop_limit"]
    turn = (await chat.turns())[-1]
    assert (turn.agent_text, outcome(turn)) == ("It is done.", ("COMPLETE", "DEGRADED"))


async def test_return_at_the_hop_limit_waits_for_the_next_message(service):
    """The interlude ends, but its return has no hop left for a dispatch."""
    chat = service.chat()
    dispatch = await handed_on(chat, "support", "asks_only", "sales", "interrupts")
    assert stack(await chat.status()) == ["sales"]
    back = await chat.answer(dispatch, "breathe", **finish())
    assert outcome_status(back) == "DEGRADED"
    assert not back.HasField("next")
    assert back.active_agent.agent_id == "sales"
    assert went((await chat.say("so")).dispatch) == ("sales", "RETURNED")


async def test_completion_to_an_agent_that_is_away_is_degraded(service):
    """The next agent is disabled here; the answer is stored anyway."""
    chat = await service.chat().with_agent("completes_to_disabled")
    routed = await chat.say("finish")
    done = await chat.answer(routed.dispatch, "It is done.", **finish())
    assert outcome_status(done) == "DEGRADED"
    assert [v.rule for v in done.verdicts if not v.allowed] == ["enabled"]
    assert not done.HasField("active_agent")
    assert task_status(done.task_status) == "COMPLETED"


async def test_message_does_not_go_back_and_forth(tmp_path):
    """A to B to A to B: the fourth step is refused; a handoff to a third agent is allowed."""
    async with serving(tmp_path, LONG) as service:
        chat = service.chat()
        dispatch = await handed_on(chat, "sales", "support", "sales")
        refused = await refusal(chat.answer(dispatch, **hand_to("support")))
        assert refused.rules == ["ping_pong"]
        assert 'between "sales" and "support" and back already' in refused.message
        handed = await chat.answer(dispatch, **hand_to("asks_only"))
        assert went(handed.next) == ("asks_only", "AGENT_HANDOFF")


async def test_ping_pong_is_seen_over_both_ways_of_handing_over(tmp_path):
    """Handoffs may come from a framework's calls, from outcomes, or from both in turn."""
    async with serving(tmp_path, LONG) as service:
        chat = service.chat()
        dispatch = await handed_on(chat, "sales", "support")
        await chat.set_active("sales", turn_request_id=dispatch.request_id)
        refused = await refusal(chat.set_active("support", turn_request_id=dispatch.request_id))
        assert refused.rules == ["ping_pong"]


async def test_supervisor_may_always_have_the_message_back(service):
    """Even after ping-pong and without a hop left, the way to the supervisor is open."""
    chat = await service.chat().with_agent("sales")
    dispatch = await handed_on(chat, "front", "sales")
    assert went((await chat.answer(dispatch, **hand_to("front"))).next) == (
        "front",
        "AGENT_HANDOFF",
    )
    chat = service.chat()
    dispatch = await handed_on(chat, "sales", "support", "asks_only", "narrow", "front")
    assert went(dispatch) == ("front", "AGENT_HANDOFF")


async def test_next_message_begins_to_count_again(service):
    """Limits count per message."""
    chat = service.chat()
    for _ in range(2):
        dispatch = await handed_on(chat, "sales", "support", "asks_only", "narrow")
        await chat.answer(dispatch, "mine")
        await chat.clear()


async def test_third_refusal_in_a_turn_leaves_only_other_outcomes(service):
    """A model that repeats a refused handoff is stopped; home stays legal, the answer is stored."""
    chat = await service.chat().with_agent("sales")
    routed = await chat.say("premium please")
    for _ in range(3):
        refused = await refusal(chat.answer(routed.dispatch, **hand_to("premium")))
        assert refused.rules == ["entitled"]
    # A handoff that would be legal is refused as well now.
    refused = await refusal(chat.answer(routed.dispatch, **hand_to("support")))
    assert refused.rules == ["hop_limit"]
    assert "3 handoffs of this turn were refused; end it another way" in refused.message
    refused = await refusal(chat.set_active("support", turn_request_id=routed.request_id))
    assert refused.rules == ["hop_limit"]
    assert [entry.kind for entry in await chat.audit()] == ["handoff_refused"] * 5
    answered = await chat.answer(routed.dispatch, "not with your plan", **ask())
    assert outcome_status(answered) == "APPLIED"
    routed = await chat.say("then support")
    assert went((await chat.answer(routed.dispatch, **hand_to("support"))).next)[0] == "support"


async def test_supervisor_is_a_way_out_after_three_refusals(service):
    """The way to the supervisor stays open for a model that repeats refused handoffs."""
    chat = await service.chat().with_agent("sales")
    routed = await chat.say("premium please")
    for _ in range(3):
        await refusal(chat.answer(routed.dispatch, **hand_to("premium")))
    back = await chat.answer(routed.dispatch, **hand_to("front"))
    assert went(back.next) == ("front", "AGENT_HANDOFF")


async def test_refused_handoff_leaves_the_turn_open_and_its_id_unused(service):
    """The same request can be completed with another outcome."""
    chat = await service.chat().with_agent("sales")
    routed = await chat.say("premium please")
    async with chat.unchanged():
        await refusal(chat.answer(routed.dispatch, "to premium", **hand_to("premium")))
    assert [d.request_id for d in (await chat.status()).open_requests] == [routed.request_id]
    answered = await chat.answer(routed.dispatch, "sorry")
    assert outcome_status(answered) == "APPLIED"


async def test_refusals_of_a_trial_do_not_count(service):
    """Trials (validate_only) have no cost."""
    chat = await service.chat().with_agent("sales")
    routed = await chat.say("premium please")
    for _ in range(5):
        tried = await chat.set_active(
            "premium", turn_request_id=routed.request_id, validate_only=True
        )
        assert [v.rule for v in tried.verdicts if not v.allowed] == ["entitled"]
    assert await chat.audit() == []
    handed = await chat.answer(routed.dispatch, **hand_to("support"))
    assert handed.HasField("next")


async def test_interludes_go_only_so_deep(service):
    """Two interrupted agents are the limit here; a third interlude is refused."""
    chat = await service.chat().with_agent("sales")
    for agent_id in ("support", "asks_only"):
        await chat.set_active(agent_id, mode=INTERLUDE)
    assert stack(await chat.status()) == ["sales", "support"]
    async with chat.unchanged():
        refused = await refusal(chat.set_active("narrow", mode=INTERLUDE))
    assert refused.rules == ["return_depth"]
    assert "2 agents are interrupted already, at most 2 may be" in refused.message


async def test_agent_that_waits_is_not_interrupting(service):
    """The agent is on the stack and gets the conversation back after the interludes above it."""
    chat = await service.chat().with_agent("sales")
    await chat.set_active("support", mode=INTERLUDE)
    await chat.set_active("asks_only", mode=INTERLUDE)
    async with chat.unchanged():
        refused = await refusal(chat.set_active("sales", mode=INTERLUDE))
    assert refused.rules == ["return_stack", "return_depth"]
    refused = await refusal(chat.set_active("sales", mode=INTERLUDE, initiator=4))
    assert refused.rules == ["return_stack", "return_depth"]


async def test_doubled_outcome_of_one_turn_hands_over_once(service):
    """A runtime that reports twice gets one dispatch with one id."""
    chat = await service.chat().with_agent("sales")
    routed = await chat.say("support please")
    first = await chat.answer(routed.dispatch, **hand_to("support"))
    second = await chat.answer(routed.dispatch, **hand_to("support"))
    assert first == second
    assert len((await chat.status()).open_requests) == 1
    moved = await chat.kinds()
    assert moved.count("AgentHandedOff") == 2


async def test_trial_of_a_handoff_in_a_turn_knows_its_limits(service):
    """A trial has the same verdicts as the handoff."""
    chat = service.chat()
    dispatch = await handed_on(chat, "sales", "support", "asks_only", "narrow")
    tried = await chat.set_active(
        "sales", turn_request_id=dispatch.request_id, validate_only=True, request_id=fresh_id()
    )
    assert [v.rule for v in tried.verdicts if not v.allowed] == ["hop_limit"]
    assert not tried.HasField("agent")
