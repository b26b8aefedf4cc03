"""A message that is an example of one agent alone is that agent's."""

import pytest

from agent_routing_topics.model import load_word_model
from agent_routing_topics.model.agent_index import AgentText
from routing_service.topics.topic_detector import RecentTurn, TopicQuestion

AGENTS = (
    AgentText(
        "invoices", ("Invoices",), (), ("Show me the last invoice", "yes", "what is due now")
    ),
    AgentText("f29", ("F29",), (), ("Ahora muéstrame el F29", "what is due now")),
)
DETECTOR = load_word_model().for_agents(AGENTS)
IDS = ("invoices", "f29")


def asked(text: str, candidates=IDS) -> TopicQuestion:
    """A message after an ordinary turn with invoices, which has asked something."""
    turns = [
        RecentTurn("invoices", "hola, la última factura", "¿De qué mes?", "follow_up"),
        RecentTurn("invoices", "marzo", "Es de 40 €. ¿La envío?", "follow_up"),
    ]
    return TopicQuestion(
        text=text,
        active_agent_id="invoices",
        is_locked=True,
        recent=tuple(turns),
        candidate_ids=candidates,
    )


@pytest.mark.parametrize("text", ["Ahora muéstrame el F29", "ahora muestrame el f29!"])
def test_example_of_another_agent_is_that_agents_whatever_came_before(text):
    """However the conversation went, and however it is written."""
    verdict = DETECTOR.judge(asked(text))
    assert verdict.ranked[0] == ("f29", 0.99)
    assert verdict.sureness == 1
    assert verdict.stay < 0.02


def test_example_of_the_active_agent_stays():
    """Nothing is offered."""
    assert DETECTOR.judge(asked("show me the last invoice")).stay == 0.99


def test_example_of_two_agents_or_of_one_word_decides_nothing():
    """The one is ambiguous, and the other may answer any question."""
    for text in ("what is due now", "yes"):
        assert DETECTOR.judge(asked(text)).sureness < 1


def test_agent_that_the_user_may_not_have_is_not_given():
    """Its example is a message like any other."""
    assert dict(DETECTOR.judge(asked("Ahora muéstrame el F29", ("invoices",))).ranked) == {}
