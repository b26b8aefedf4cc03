"""How well a detector routes recorded dialogues, without a server.

Rule: the loop is closed: the active agent follows from the decisions before, as in a session, and
never from the record alone.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from routing_service.topics.topic_detector import (
    RECENT_TURNS_MAX,
    RecentTurn,
    TopicDetector,
    TopicQuestion,
    TopicVerdict,
)

SUPERVISOR: Final = ""
"""Stands for the supervisor, wherever an agent may stand."""

_SUPERVISOR_ID: Final = "(supervisor)"


class Recorded(Protocol):
    """A turn as it was recorded, see the replay. agent: the owner; None: the supervisor's."""

    @property
    def speaker(self) -> str:
        """User or agent."""
        ...

    @property
    def text(self) -> str:
        """What was said."""
        ...

    @property
    def agent(self) -> str | None:
        """Its true owner."""
        ...

    @property
    def requires_follow_up(self) -> bool:
        """The agent asked something."""
        ...

    @property
    def task_complete(self) -> bool:
        """The agent said that it was done."""
        ...

    @property
    def uncertain(self) -> bool:
        """The record does not show the owner."""
        ...


class Mends(enum.StrEnum):
    """What becomes of a message that went to an agent which does not own it."""

    AGENT = "agent"
    """That agent hands it to its owner."""
    NOBODY = "nobody"
    """Nothing: that agent keeps the conversation and says nothing."""


@dataclass(frozen=True, slots=True)
class Policy:
    """When a verdict is acted on.

    threshold: the probability from which the conversation goes to another agent; None: the
    likeliest option has the message, and the other two bounds are not looked at. lock_threshold:
    the same while the active agent waits for an answer; None: never then. first_threshold: the same
    where nobody is active; None: the supervisor gets those. releases: an agent that says it is done
    is no longer active.
    """

    threshold: float | None = 0.5
    lock_threshold: float | None = 0.5
    first_threshold: float | None = 0.5
    releases: bool = False
    mends: Mends = Mends.AGENT

    def dispatch(self, question: TopicQuestion, verdict: TopicVerdict) -> str:
        """Return who gets the message."""
        agent_id, probability = verdict.ranked[0] if verdict.ranked else ("", 0.0)
        if self.threshold is None:
            none_of_them = 1.0 - verdict.stay - sum(share for _, share in verdict.ranked)
            is_likeliest = probability > max(verdict.stay, none_of_them)
            return agent_id if is_likeliest else question.active_agent_id
        bound: float | None = self.threshold
        if not question.active_agent_id:
            bound = self.first_threshold
        elif question.is_locked:
            bound = self.lock_threshold
        if agent_id and bound is not None and probability >= bound:
            return agent_id
        return question.active_agent_id


@dataclass(slots=True)
class Session:
    """What a session would know, turn by turn."""

    locale: str
    candidate_ids: Collection[str]
    releases: bool = False
    active: str = SUPERVISOR
    is_locked: bool = False
    recent: list[RecentTurn] = field(default_factory=list)
    earlier: list[str] = field(default_factory=list)

    def question(self, text: str) -> TopicQuestion:
        """Return what is asked of the detector when a message comes."""
        return TopicQuestion(
            text=text,
            locale=self.locale,
            active_agent_id=self.active,
            is_locked=self.is_locked,
            recent=tuple(self.recent[-RECENT_TURNS_MAX:]),
            earlier_agent_ids=tuple(agent for agent in self.earlier if agent != self.active),
            candidate_ids=self.candidate_ids,
        )

    def answered(self, user_text: str, agent_id: str, text: str, outcome: str) -> None:
        """Note that an agent, or the supervisor, has answered."""
        self.recent.append(RecentTurn(agent_id or _SUPERVISOR_ID, user_text, text, outcome))
        del self.recent[:-RECENT_TURNS_MAX]
        if agent_id:
            if agent_id in self.earlier:
                self.earlier.remove(agent_id)
            self.earlier.append(agent_id)
        self.active = SUPERVISOR if self.releases and outcome == "complete" else agent_id
        self.is_locked = bool(self.active) and outcome == "follow_up"


@dataclass(frozen=True, slots=True)
class Judged:
    """One user's message and what became of it.

    owner: who should have it. is_no_agents: the record names no agent, so the message should stay
    with the active one, or with SUPERVISOR where no agent is active.
    """

    turn: int
    question: TopicQuestion
    verdict: TopicVerdict
    dispatched: str
    owner: str
    is_scored: bool
    is_no_agents: bool = False

    @property
    def is_right(self) -> bool:
        """Tell whether it went to its owner."""
        return self.dispatched == self.owner

    @property
    def should_switch(self) -> bool:
        """Tell whether it is for another agent than the active one."""
        return bool(self.question.active_agent_id) and self.owner != self.question.active_agent_id

    @property
    def switched(self) -> bool:
        """Tell whether it was taken from the active agent."""
        active = self.question.active_agent_id
        return bool(active) and self.dispatched != active


def play(
    turns: Sequence[Recorded],
    detector: TopicDetector,
    candidate_ids: Collection[str],
    policy: Policy,
    locale: str = "",
) -> Iterator[Judged]:
    """Play one record against a detector, and yield each user's message."""
    session = Session(locale, candidate_ids, policy.releases)
    said = ""
    holder = owner = SUPERVISOR
    for number, turn in enumerate(turns):
        if turn.speaker == "user":
            said, owner = turn.text, turn.agent or session.active
            question = session.question(said)
            verdict = detector.judge(question)
            holder = policy.dispatch(question, verdict)
            yield Judged(
                number, question, verdict, holder, owner, not turn.uncertain, not turn.agent
            )
            if holder != owner and (policy.mends is Mends.AGENT or holder == SUPERVISOR):
                holder = owner
        else:
            answerer = turn.agent or SUPERVISOR
            if answerer != owner and policy.mends is Mends.AGENT:
                holder = answerer
            if holder == answerer:
                session.answered(said, holder, turn.text, _outcome(turn))
            else:
                # Misled, it has nothing to say, and still waits if it did.
                waits = session.is_locked and session.active == holder
                session.answered(said, holder, "", "follow_up" if waits else "proceed")


def _outcome(turn: Recorded) -> str:
    if turn.requires_follow_up:
        return "follow_up"
    return "complete" if turn.task_complete else "proceed"
