"""A topic detector whose verdicts the messages spell out, for tests that are not of the model.

A word ``#agent_id`` in a message is a verdict for that agent, ``#agent_id=0.7`` one with that
probability; ``#nobody`` says that it is for none of them. Of two such words the last one decides,
and the first is the other request. Everything else is for the active agent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from routing_service.core.registry import Registry
from routing_service.topics.topic_detector import TopicDetector, TopicQuestion, TopicVerdict

SURE = 0.97

_CUE = re.compile(r"#([A-Za-z0-9._:@;+-]+)(?:=([0-9.]+))?")


@dataclass(frozen=True)
class ScriptedDetector:
    """Reads the verdict off the message. asked: every question, in order."""

    asked: list[TopicQuestion] = field(default_factory=list)

    def judge(self, question: TopicQuestion) -> TopicVerdict:
        """Do as the message says."""
        self.asked.append(question)
        cues = list(_CUE.finditer(question.text))
        if not cues:
            return TopicVerdict(stay=SURE if question.active_agent_id else 0.0)
        cue, second = cues[-1], cues[0][1] if len(cues) > 1 else ""
        agent_id, probability = cue[1], float(cue[2] or SURE)
        if agent_id not in question.candidate_ids:
            return TopicVerdict()
        stay = 1 - probability if question.active_agent_id else 0.0
        return TopicVerdict(((agent_id, probability),), stay, second_request=second)


@dataclass(frozen=True)
class ScriptedModel:
    """Gives every registry the same detector."""

    detector: ScriptedDetector = field(default_factory=ScriptedDetector)
    version: str = "scripted-1"

    def for_registry(self, registry: Registry) -> TopicDetector:
        """Need nothing of the registry."""
        del registry
        return self.detector
