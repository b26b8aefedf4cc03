"""Asks topic detection about a message, with what it needs to know of the conversation.

Owns: the model, its detector for each registry, and how a session's recent turns become a question.
Must not know: what follows from a verdict, stores, protobuf.
Rule: it costs no read of its own, and its failure costs nobody a message: without a verdict a
message is routed as if topics were off.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import structlog

from routing_service.core.commands import TopicOpinion
from routing_service.core.history import HistoryFold, TurnRecord
from routing_service.core.registry import Registry
from routing_service.core.session import OTHER_AGENTS, SessionState
from routing_service.core.topic_switch import TopicInquiry, topic_targets
from routing_service.core.vocabulary import RouteReason
from routing_service.ids import new_uuid7
from routing_service.topics.topic_detector import (
    RECENT_TURNS_MAX,
    RecentTurn,
    TopicDetector,
    TopicModel,
    TopicQuestion,
    TopicVerdict,
)

DETECTORS_MAX: Final = 3
"""Registries with a detector: the one in force, one that is being tried, and the one before, which
a decision under way may still use."""

CANDIDATE_SETS_MAX: Final = 1_024
"""Kept sets of candidates. Entitlements and channels come from callers, and few combinations of
them are in use; when there are more, all are forgotten."""

TEXT_CHARACTERS_MAX: Final = 2_000
"""Of any one text in a question. What a message is about stands in its beginning, and the time that
a verdict takes grows with the text."""

FAILURE_LOG_S: Final = 60.0
"""A model that fails does so with every message; one line a minute is enough to be seen."""

_log = structlog.get_logger(__name__)


class TopicJudge:
    """Gives opinions on messages. For one thread, but for prepare()."""

    def __init__(
        self, load_model: Callable[[], TopicModel], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Load the model when a registry first wants one. clock_s: for the log's sake alone."""
        self._load_model = load_model
        self._clock_s = clock_s
        self._model: TopicModel | None = None
        self._detectors: list[tuple[Registry, TopicDetector]] = []
        self._candidates: dict[tuple[str, tuple[str, ...], str], frozenset[str]] = {}
        self._candidates_of: Registry | None = None
        self._failed_s: float | None = None

    def prepare(self, registry: Registry) -> None:
        """Make what a registry needs before its first message comes: it may take a while.

        Safe beside judge() from another thread. Does nothing where the registry has topics off. A
        model that cannot be made is logged, and keeps nobody from serving.
        """
        if not registry.topics.is_on or self._known(registry) is not None:
            return
        try:
            self._make(registry)
        except Exception as error:  # noqa: BLE001 - as in judge()
            self._note_failure(error)

    def judge(
        self,
        registry: Registry,
        asked: TopicInquiry,
        text: str,
        state: SessionState | None,
        fold: HistoryFold | None,
    ) -> TopicOpinion | None:
        """Return the model's opinion of a message; None where it has none.

        fold: the session's latest turns; None = there are none.
        """
        candidates = self._candidates_for(registry, asked)
        if not candidates:
            return None
        records = fold.records if fold is not None else []
        question = TopicQuestion(
            text=text[:TEXT_CHARACTERS_MAX],
            locale=asked.locale or registry.default_locale,
            active_agent_id=asked.active_agent_id,
            is_locked=asked.is_locked,
            recent=recent_turns(records),
            earlier_agent_ids=earlier_agents(registry, asked.active_agent_id, state, records),
            candidate_ids=candidates,
        )
        try:
            detector = self._known(registry) or self._make(registry)
            verdict = detector.judge(question)
        except Exception as error:  # noqa: BLE001 - a model's bug must not end a chat
            self._note_failure(error)
            return None
        assert self._model is not None
        return _opinion(verdict, self._model.version)

    def _known(self, registry: Registry) -> TopicDetector | None:
        for known, detector in self._detectors:
            if known is registry:
                return detector
        return None

    def _make(self, registry: Registry) -> TopicDetector:
        if self._model is None:
            self._model = self._load_model()
        detector = self._model.for_registry(registry)
        # One assignment: a reader in another thread sees the one list or the other.
        self._detectors = [(registry, detector), *self._detectors][:DETECTORS_MAX]
        return detector

    def _candidates_for(self, registry: Registry, asked: TopicInquiry) -> frozenset[str]:
        """Return whom this user may be given now, besides the agent they are with."""
        if self._candidates_of is not registry or len(self._candidates) >= CANDIDATE_SETS_MAX:
            self._candidates = {}
            self._candidates_of = registry
        present = asked.active_agent_id or registry.home_agent_id
        key = (asked.channel, asked.entitlements, present)
        found = self._candidates.get(key)
        if found is None:
            targets = topic_targets(registry, asked.channel, asked.entitlements)
            found = self._candidates[key] = frozenset(targets) - {present}
        return found

    def _note_failure(self, error: Exception) -> None:
        now_s = self._clock_s()
        if self._failed_s is None or now_s - self._failed_s >= FAILURE_LOG_S:
            self._failed_s = now_s
            _log.error("topic_detection_failed", exc_info=error)


def recent_turns(records: list[TurnRecord]) -> tuple[RecentTurn, ...]:
    """Return the latest messages and what became of each, oldest first.

    A message that went from one agent to another counts once, with the last of them; so does one
    that a user sent on by accepting a suggestion.
    """
    latest: list[TurnRecord] = []
    seen: set[int] = set()
    for record in reversed(records):
        if not record.has_message or record.message_revision in seen:
            continue
        if latest and _was_sent_on(record, latest[-1]):
            continue
        seen.add(record.message_revision)
        latest.append(record)
        if len(latest) == RECENT_TURNS_MAX:
            break
    return tuple(_recent(record) for record in reversed(latest))


def earlier_agents(
    registry: Registry, active_id: str, state: SessionState | None, records: list[TurnRecord]
) -> tuple[str, ...]:
    """Return who had the conversation before, in the whole session, the last one last.

    Neither the active agent, nor a supervisor: no message is about what it does.
    """
    counted = state.turns_by_agent if state is not None else {}
    order = dict.fromkeys(agent_id for agent_id in counted if agent_id != OTHER_AGENTS)
    for record in records:
        order.pop(record.agent_id, None)
        order[record.agent_id] = None
    order.pop(active_id, None)
    if not registry.is_swarm:
        order.pop(registry.home_agent_id, None)
    return tuple(order)


def _was_sent_on(record: TurnRecord, next_record: TurnRecord) -> bool:
    return (
        next_record.reason is RouteReason.TOPIC_SWITCH
        and record.user_text == next_record.user_text
        and record.agent_id != next_record.agent_id
    )


def _recent(record: TurnRecord) -> RecentTurn:
    """Return a turn as detectors read it: the same one while it is in memory, with their notes."""
    if not record.heard:
        record.heard.append(
            RecentTurn(
                agent_id=record.agent_id,
                user_text=record.user_text[:TEXT_CHARACTERS_MAX],
                agent_text=record.agent_text[:TEXT_CHARACTERS_MAX],
                outcome=record.outcome.value if record.outcome else "",
            )
        )
    turn: RecentTurn = record.heard[0]
    return turn


def _opinion(verdict: TopicVerdict, model: str) -> TopicOpinion:
    return TopicOpinion(verdict.ranked, verdict.stay, model, new_uuid7())
