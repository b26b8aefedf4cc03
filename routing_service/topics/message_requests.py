"""Two requests in one message: the newer one decides, the earlier one is named with the verdict.

A message is cut where its last sentence begins, and each part is judged by itself. Only where both
parts are clearly for different agents does that replace the verdict on the whole message.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec.structs import replace

from routing_service.topics.topic_detector import TopicDetector, TopicQuestion, TopicVerdict

CLEAR: Final = 0.85
"""The least probability with which a part counts as a request: below it parts are asides. Of 1,047
field messages, 0.7 changed nine verdicts, seven of them to a wrong agent; 0.85 changes one."""

WORDS_LEAST: Final = 3
"""Words of a part. Shorter ones greet, thank or answer."""

_ENDS: Final = re.compile(r"(?:[.!?;]+|\n)\s+")


def judge_requests(detector: TopicDetector, question: TopicQuestion) -> TopicVerdict:
    """Judge a message that may have two requests."""
    whole = detector.judge(question)
    parts = _parts(question.text)
    if parts is None or whole.second_request:
        return whole
    judge_part = getattr(detector, "judge_part", detector.judge)
    # The newer part first: where it is no request, the earlier one need not be judged.
    newer = judge_part(replace(question, text=parts[1]))
    last = _request(question, newer)
    if not last:
        return whole
    first = _request(question, judge_part(replace(question, text=parts[0])))
    if not first or first == last:
        return whole
    return replace(newer, second_request=first)


def _parts(text: str) -> tuple[str, str] | None:
    """Return what stands before the last sentence, and the last sentence; None for one part."""
    cuts = list(_ENDS.finditer(text.strip()))
    if not cuts:
        return None
    cut, text = cuts[-1], text.strip()
    parts = text[: cut.end()].strip(), text[cut.end() :]
    return parts if all(len(part.split()) >= WORDS_LEAST for part in parts) else None


def _request(question: TopicQuestion, verdict: TopicVerdict) -> str:
    """Return the agent that a part is clearly for; "" for none."""
    agent_id, probability = verdict.ranked[0] if verdict.ranked else ("", 0.0)
    if question.active_agent_id and verdict.stay > probability:
        agent_id, probability = question.active_agent_id, verdict.stay
    return agent_id if probability >= CLEAR else ""
