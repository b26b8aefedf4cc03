"""Which facts from outside a command needs: what is asked for, and what never is."""

import pytest

from routing_service.core import facts as fc
from routing_service.core.case import open_case
from routing_service.core.commands import (
    ClearActiveAgent,
    CompleteTurn,
    Erase,
    Expire,
    FollowUp,
    HandOff,
    Proceed,
    ResumeTask,
    RouteMessage,
    SetActiveAgent,
)
from routing_service.core.registry import Agent, Topics
from routing_service.core.turn_ids import child_request_id
from routing_service.core.vocabulary import ApprovalDecision
from routing_service.ids import new_uuid7
from routing_service.sessions.decision_inputs import DecisionInputs
from tests.simulation.conversation import SESSION_ID, Conversation, registry_of, uuid7

NEW = new_uuid7()
"""Its random bits name, read as one of the service's ids, a revision far beyond the last."""


def talk(topics=None):
    """A session in which an agent has the conversation."""
    agents = (Agent("vat"), Agent("payroll"))
    registry = registry_of(*agents, topics=topics) if topics else registry_of(*agents)
    return Conversation(registry).with_agent("vat")


def needed(chat, command, found=fc.NO_FACTS):
    """The facts that a command needs in a session."""
    case = open_case(chat.state, command, chat.registry, chat.now_us, session_id=SESSION_ID)
    return fc.facts_needed(case, found)


def message(text="hello", **fields):
    """A message of the user."""
    return RouteMessage(NEW, text, uuid7(901), **fields)


def test_an_ordinary_turn_needs_no_fact():
    """Neither the message nor its answer needs a read of the store."""
    chat = talk()
    assert needed(chat, message()) == []
    chat.says()
    assert needed(chat, CompleteTurn(chat.open, "vat", Proceed(), NEW, text="done")) == []
    for command in (ClearActiveAgent(NEW), Expire(), Erase()):
        assert needed(chat, command) == []


def test_message_needs_to_know_what_its_ids_are():
    """An id that could be one of the service's, and a task that is not the latest."""
    chat = talk()
    child = child_request_id(NEW, 1)
    assert needed(chat, RouteMessage(child, "hello", NEW)) == [fc.IsServiceRequest(child)]
    latest = chat.state.task.task_id
    assert needed(chat, message(task_id=latest)) == []
    assert needed(chat, message(task_id=NEW)) == [fc.StoredTaskStatus(NEW)]


def test_answer_needs_to_know_a_turn_that_the_state_has_forgotten():
    """The facts are the turn's holder, and whether this agent ever had it."""
    chat = talk()
    late = CompleteTurn(NEW, "vat", Proceed(), uuid7(902))
    assert needed(chat, late) == [fc.PastTurn(NEW), fc.WasAsked(NEW, "vat")]
    chat.says()
    stranger = CompleteTurn(chat.open, "payroll", Proceed(), NEW)
    assert needed(chat, stranger) == [fc.WasAsked(chat.open, "payroll")]


@pytest.mark.parametrize(("outcome", "text"), [(HandOff("payroll"), ""), (Proceed(), "[x]")])
def test_refusals_are_counted_only_for_what_may_be_a_handoff(outcome, text):
    """A marker is one as well."""
    chat = talk()
    chat.says()
    command = CompleteTurn(chat.open, "vat", outcome, NEW, text=text)
    assert needed(chat, command) == [fc.RefusedHandoffs(chat.open)]


def test_handoff_in_a_turn_needs_its_refusals_and_the_turn_if_it_is_over():
    """Between turns it needs nothing."""
    chat = talk()
    assert needed(chat, SetActiveAgent(NEW, "payroll")) == []
    chat.says()
    inside = SetActiveAgent(NEW, "payroll", turn_request_id=chat.open)
    assert needed(chat, inside) == [fc.RefusedHandoffs(chat.open)]
    over = SetActiveAgent(NEW, "payroll", turn_request_id=NEW)
    assert needed(chat, over) == [fc.RefusedHandoffs(NEW), fc.PastTurn(NEW)]


def test_resumption_needs_the_status_of_another_task():
    """That of the latest is in the state."""
    chat = talk()
    approve = ApprovalDecision.APPROVE
    assert needed(chat, ResumeTask(NEW, chat.state.task.task_id, approve, NEW)) == []
    assert needed(chat, ResumeTask(NEW, NEW, approve, NEW)) == [fc.StoredTaskStatus(NEW)]


def test_what_a_plain_word_answers_decides_what_is_asked_next():
    """A yes needs the message that was asked about; anything else is a message with a topic."""
    chat = talk(Topics("suggest", 0.8))
    chat.says("my wages", about="payroll")
    offered = chat.state.suggestion.message_revision
    word = message("yes")
    asked = fc.PlainAnswer("yes", chat.state.locale)
    assert needed(chat, word) == [asked]
    assert needed(chat, word, fc.Facts({fc.PlainAnswer: True})) == [fc.OfferedMessage(offered)]
    (topic,) = needed(chat, word, fc.Facts({fc.PlainAnswer: None}))
    assert isinstance(topic, fc.TopicVerdict)
    assert (topic.text, topic.asked.active_agent_id) == ("yes", "vat")
    all_found = fc.Facts({fc.PlainAnswer: None, fc.TopicVerdict: None})
    assert needed(chat, word, all_found) == []
    button = message("", quick_reply_id=chat.state.suggestion.suggestion_id)
    assert needed(chat, button) == [fc.OfferedMessage(offered)]


def test_locked_agent_gets_its_yes():
    """While an agent waits for an answer, a plain word is for it."""
    chat = talk(Topics("suggest", 0.8))
    chat.says("my wages", about="payroll")
    chat.answers(FollowUp())
    assert needed(chat, message("yes")) == []


def test_every_fact_has_a_resolver():
    """A fact that nothing fetches would fail in the call that first needs it."""
    inputs = DecisionInputs(None, None, None, None, None, reads=None)
    assert set(inputs._resolvers) == set(fc.Fact.__subclasses__())
