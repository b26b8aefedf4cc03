"""Consults: an agent asks another one a question and keeps the user."""

import pytest

from tests.rpc.live_service import (
    ask,
    fail,
    finish,
    hand_to,
    outcome_status,
    refusal,
    serving,
    stack,
    went,
)
from tests.rpc.registries import DESK

CONSULT = 3


@pytest.fixture
async def service(tmp_path):
    """A help desk whose agents differ in one thing each."""
    async with serving(tmp_path, DESK) as running:
        yield running


def consult(agent_id, question="What do you think?", **fields):
    """Ask another agent one question."""
    return hand_to(agent_id, mode=CONSULT, message=question, **fields)


async def asked(service, **answer):
    """Let support consult sales; return the chat, the user's dispatch and the question."""
    chat = await service.chat().with_agent("support", **answer)
    routed = await chat.say("Is it worth it?")
    handed = await chat.answer(routed.dispatch, **consult("sales", context={"price": 40}))
    return chat, routed.dispatch, handed.next


async def test_consulted_agent_gets_the_question_and_the_asker_gets_the_answer(service):
    """Both dispatches have the reason CONSULTED; the asker keeps the user and its lock."""
    chat, _, question = await asked(service, **ask())
    assert went(question) == ("sales", "CONSULTED")
    assert question.consult.asker.agent_id == "support"
    assert question.consult.question == "What do you think?"
    assert not question.consult.HasField("answer")
    assert question.handoff.context["price"] == 40
    assert question.text == "Is it worth it?"
    status = await chat.status()
    assert (status.active_agent.agent_id, status.locked) == ("support", True)
    answered = await chat.answer(question, "It is.")
    assert outcome_status(answered) == "APPLIED"
    assert answered.text == ""  # The text is for the asker, not for the user.
    assert went(answered.next) == ("support", "CONSULTED")
    assert answered.next.consult.question == "What do you think?"
    assert answered.next.consult.answer == "It is."
    done = await chat.answer(answered.next, "My colleague says it is.")
    assert outcome_status(done) == "APPLIED"
    assert done.active_agent.agent_id == "support"


async def test_consult_pushes_no_frame_and_its_answer_is_no_hop(service):
    """Only the question counts against the limits per message."""
    chat, _, question = await asked(service)
    assert stack(await chat.status()) == []
    back = (await chat.answer(question, "Yes.")).next
    for agent_id in ("narrow", "idles", "owner"):
        question = (await chat.answer(back, **consult(agent_id))).next
        back = (await chat.answer(question, "Yes.")).next
    refused = await refusal(chat.answer(back, **consult("asks_only")))
    assert list(refused.violations) == ["hop_limit"]


async def test_consulted_agent_may_get_the_message_afterwards(service):
    """A consult does not count as ping-pong: support asks sales, then hands the user over."""
    chat, _, question = await asked(service)
    back = (await chat.answer(question, "Yes, with a discount of mine.")).next
    handed = await chat.answer(back, "Sales goes on with it.", **hand_to("sales"))
    assert went(handed.next) == ("sales", "AGENT_HANDOFF")
    returned = await chat.answer(handed.next, **hand_to("support"))
    assert went(returned.next) == ("support", "AGENT_HANDOFF")
    refused = await refusal(chat.answer(returned.next, **hand_to("sales")))
    assert list(refused.violations) == ["ping_pong"]


async def test_same_agent_is_asked_twice_within_a_message(service):
    """This also holds after handoffs in both directions; the hop limit ends a loop of questions."""
    chat, _, question = await asked(service)
    for _ in range(3):
        back = (await chat.answer(question, "Yes.")).next
        question = (await chat.answer(back, **consult("sales", "Are you sure?"))).next
        assert went(question) == ("sales", "CONSULTED")
    back = (await chat.answer(question, "Yes.")).next
    refused = await refusal(chat.answer(back, **consult("sales")))
    assert list(refused.violations) == ["hop_limit"]
    routed = await chat.say("And now?")
    sales = (await chat.answer(routed.dispatch, **hand_to("sales"))).next
    support = (await chat.answer(sales, **hand_to("support"))).next
    question = (await chat.answer(support, **consult("sales"))).next
    back = (await chat.answer(question, "Yes.")).next
    refused = await refusal(chat.answer(back, **hand_to("sales")))
    assert list(refused.violations) == ["ping_pong"]


async def test_consulted_agent_can_only_answer(service):
    """Any other outcome is treated as an answer; its handoffs are refused."""
    for given in (ask(), finish()):
        chat, _, question = await asked(service)
        answered = await chat.answer(question, "Yes.", **given)
        assert outcome_status(answered) == "DEGRADED"
        assert answered.next.consult.answer == "Yes."
    chat, _, question = await asked(service)
    for target in ("narrow", "front", "support"):
        refused = await refusal(chat.answer(question, **hand_to(target)))
        assert "live_turn" in refused.violations
    refused = await refusal(chat.set_active("narrow", turn_request_id=question.request_id))
    assert "live_turn" in refused.violations
    assert (await chat.status()).active_agent.agent_id == "support"


async def test_failed_consult_is_an_empty_answer(service):
    """The asker continues without the answer; the task has not failed."""
    chat, _, question = await asked(service)
    answered = await chat.answer(question, "Sorry.", **fail("no idea"))
    assert outcome_status(answered) == "APPLIED"
    assert answered.next.consult.HasField("answer")
    assert answered.next.consult.answer == ""
    assert answered.task_status == 1


async def test_users_message_overtakes_a_consult(service):
    """The user stays with the asker; the late answer is only stored."""
    chat, _, question = await asked(service)
    routed = await chat.say("never mind")
    assert went(routed.dispatch) == ("support", "STICKY")
    late = await chat.answer(question, "It is.")
    assert outcome_status(late) == "STORED_ONLY"
    assert not late.HasField("next")


async def test_supervisor_may_consult_and_nobody_becomes_active(service):
    """The supervisor answers the user with what the consulted agent said."""
    chat = service.chat()
    routed = await chat.say("hello")
    question = (await chat.answer(routed.dispatch, **consult("sales"))).next
    back = (await chat.answer(question, "Yes.")).next
    assert went(back) == ("front", "CONSULTED")
    await chat.answer(back, "Yes, says sales.")
    assert not (await chat.status()).HasField("active_agent")


async def test_consult_is_bound_by_the_rules(service):
    """Refused: a disabled agent, an agent that the user may not have, and the asker itself."""
    chat = await service.chat().with_agent("support")
    routed = await chat.say("hm")
    for target, rule in (
        ("disabled", "enabled"),
        ("premium", "entitled"),
        ("support", "not_active"),
        ("journal", "not_system"),
    ):
        refused = await refusal(chat.answer(routed.dispatch, **consult(target)))
        assert rule in refused.violations


async def test_consult_survives_a_restart(tmp_path):
    """GetStatus shows the question, and then the answer, as complete dispatches."""
    async with serving(tmp_path, DESK) as service:
        chat, _, question = await asked(service)
    async with serving(tmp_path, DESK) as service:
        chat = service.chat(chat.session_id)
        (found,) = (await chat.status()).open_requests
        assert found.consult == question.consult
        answered = await chat.answer(found, "It is.")
    async with serving(tmp_path, DESK) as service:
        chat = service.chat(chat.session_id)
        (found,) = (await chat.status()).open_requests
        assert found.consult == answered.next.consult


async def test_consulted_agent_sees_its_turn_in_its_history(service):
    """The history has the consulted agent's own turn and no text of other agents."""
    chat, _, question = await asked(service)
    await chat.answer(question, "It is.")
    turns = await chat.turns(agent_id="sales", user_id="")
    assert [(turn.agent_id, turn.agent_text) for turn in turns] == [("sales", "It is.")]
