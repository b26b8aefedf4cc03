"""Examples that are judged without themselves, and what that says of a registry."""

from agent_routing_topics.left_out import GROUPS, left_out, weak_spots
from routing_service.core.registry import Agent, AgentKind, Registry
from routing_service.topics.topic_detector import TopicVerdict

AGENTS = (
    Agent("supervisor", kind=AgentKind.SUPERVISOR),
    Agent("bills", examples=tuple(f"bill {n}" for n in range(20))),
    Agent("taxes", examples=("tax a", "bill tax", "bill due")),
    Agent("off", examples=("bill off",), enabled=False),
)
REGISTRY = Registry("1", "supervisor", {agent.agent_id: agent for agent in AGENTS})


class ByFirstWord:
    """Sends what begins with "bill" to bills, and the rest to taxes."""

    def __init__(self, registry):
        self.registry = registry

    def judge(self, question):
        held = {text for agent in self.registry.agents.values() for text in agent.examples}
        assert question.text not in held - {"bill off"}
        assert "off" not in question.candidate_ids
        if question.text == "tax a":
            return TopicVerdict((("taxes", 0.3),))
        return TopicVerdict((("bills", 0.9),))


def test_each_example_is_judged_without_itself():
    """Once, in so many passes; agents that are off are no candidates."""
    made = []

    def detector_of(registry):
        made.append(registry)
        return ByFirstWord(registry)

    judged = left_out(REGISTRY, detector_of)
    assert len(judged) == 23
    assert len(made) == GROUPS
    assert {one.text: one.found for one in judged}["tax a"] == ""


def test_weak_spots_are_pairs_and_agents_with_few_examples():
    """And figures to expect: what the least sure fifth costs."""
    spots = weak_spots(REGISTRY, left_out(REGISTRY, ByFirstWord))
    assert (spots.judged, spots.right) == (23, 20)
    assert spots.pairs == (("bills", "taxes", 2),)
    assert spots.few == (("taxes", 3),)
    assert spots.right_at_fifth > spots.right
