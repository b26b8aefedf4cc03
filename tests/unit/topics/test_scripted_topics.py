"""The detector that tests script: its verdicts are those that a model may give."""

from __future__ import annotations

import pytest

from routing_service.core.registry import Agent, AgentKind, Registry
from routing_service.topics.topic_detector import TopicModel, TopicQuestion
from tests.scripted_topics import SURE, ScriptedModel

REGISTRY = Registry(
    version="1",
    agents={
        "desk": Agent("desk", kind=AgentKind.SUPERVISOR),
        "billing": Agent("billing"),
        "travel": Agent("travel"),
    },
    home_agent_id="desk",
)


@pytest.mark.parametrize(
    ("text", "active", "ranked", "stay"),
    [
        ("and another thing", "billing", (), SURE),
        ("hello", "", (), 0.0),
        ("#travel please", "billing", (("travel", SURE),), 1 - SURE),
        ("#travel=0.7", "billing", (("travel", 0.7),), 1 - 0.7),
        ("#nobody", "billing", (), 0.0),
        ("#billing", "billing", (), 0.0),
    ],
)
def test_verdict_is_what_the_message_spells(
    text: str, active: str, ranked: tuple[tuple[str, float], ...], stay: float
) -> None:
    """It names candidates only: a message for any other agent is for none of them."""
    model: TopicModel = ScriptedModel()
    question = TopicQuestion(text, active_agent_id=active, candidate_ids={"travel"})

    verdict = model.for_registry(REGISTRY).judge(question)

    assert verdict.ranked == ranked
    assert verdict.stay == pytest.approx(stay)
