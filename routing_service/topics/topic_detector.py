"""The interface of topic detectors: the question, the verdict, and the protocols between them.

Rule: a detector is a pure function of its registry and the question. The same question has the same
verdict on every replica, and asking changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, runtime_checkable

import msgspec

if TYPE_CHECKING:
    from routing_service.core.registry import Registry

RECENT_TURNS_MAX: Final = 8
"""Turns that a question carries: what a message refers back to is rarely further away."""


_Made = TypeVar("_Made")


class TurnNotes:
    """What a detector made of a turn, kept with the turn in memory, so that it is made once.

    One value, of whoever wrote last; gone after a restart, and made anew where it is not there. It
    is no part of what is asked: turns with other notes are equal.
    """

    __slots__ = ("_note",)

    def __init__(self) -> None:
        """Begin with nothing."""
        self._note: tuple[str, Any] = ("", None)

    def kept(self, maker: str, make: Callable[[], _Made]) -> _Made:
        """Return what was made of the turn, or make it.

        maker: names what makes it, and whatever else it depends on: the model's version, and the
        registry's where it is made for one registry. Another name's value is never returned.
        """
        # Read and written whole: another thread may keep something else meanwhile.
        known, value = self._note
        if known == maker:
            found: _Made = value
            return found
        made = make()
        self._note = (maker, made)
        return made

    def __eq__(self, other: object) -> bool:
        """Say that notes make no difference."""
        return isinstance(other, TurnNotes)

    __hash__ = None  # type: ignore[assignment]


class RecentTurn(msgspec.Struct, frozen=True):
    """One earlier turn of the session.

    agent_id: who answered, or is to. agent_text: "" while the turn is open. outcome: proceed |
    follow_up | complete | handoff | failure | approval_needed; "" while it is open. An answer may
    have no text: is_answered goes by the outcome. notes: a place for the detector.
    """

    agent_id: str
    user_text: str
    agent_text: str = ""
    outcome: str = ""
    notes: TurnNotes = msgspec.field(default_factory=TurnNotes)

    @property
    def is_answered(self) -> bool:
        """Say whether the agent has answered, with or without text."""
        return bool(self.agent_text or self.outcome)


class TopicQuestion(msgspec.Struct, frozen=True):
    """A message, and what is known of its session when it comes.

    text: without its command. active_agent_id: "" where nobody is active, as at a first message or
    after a completion. is_locked: the active agent asked something and waits. is_turn_open: it is
    still working on an earlier message. recent: oldest first, RECENT_TURNS_MAX at most.
    earlier_agent_ids: who had the conversation before, in the whole session, the last one last.
    candidate_ids: whom this user may be given now, besides the active agent.
    """

    text: str
    locale: str = ""
    active_agent_id: str = ""
    is_locked: bool = False
    is_turn_open: bool = False
    recent: tuple[RecentTurn, ...] = ()
    earlier_agent_ids: tuple[str, ...] = ()
    candidate_ids: Collection[str] = ()


class TopicVerdict(msgspec.Struct, frozen=True):
    """For whom a message is, with probabilities that may be taken at their word.

    ranked: agent id and the probability that the message is for it, best first; candidates only, a
    few at most. stay: that it is for the active agent, 0 where nobody is active. What is left to 1:
    for none of them (out of scope, small talk), which is the supervisor's. sureness: how sure the
    detector is of its likeliest option, from 0 to 1; messages are compared by it. None: by the
    probabilities, see how_sure(). second_request: the candidate of another, earlier request in the
    same message, "" for none. model: what judged, if not the model that the detector is of.
    """

    ranked: tuple[tuple[str, float], ...] = ()
    stay: float = 0.0
    sureness: float | None = None
    second_request: str = ""
    model: str = ""

    def how_sure(self) -> float:
        """Return the sureness, or else the lead of the likeliest option over the second.

        Options are the ranked agents, staying, and none of them.
        """
        if self.sureness is not None:
            return self.sureness
        options = [probability for _, probability in self.ranked]
        options += [self.stay, max(0.0, 1.0 - self.stay - sum(options))]
        options.sort(reverse=True)
        return options[0] - options[1]


class TopicDetector(Protocol):
    """Judges messages for one registry. Immutable, so that threads may share it."""

    def judge(self, question: TopicQuestion) -> TopicVerdict:
        """Say for whom a message is."""
        ...


@runtime_checkable
class RemoteTopicDetector(Protocol):
    """A detector that waits for something else than a processor, such as a service.

    fallback: judges in its place when it fails, with the model fallback_version; None = nothing
    does.
    """

    fallback: TopicDetector | None
    fallback_version: str

    async def judge_remotely(self, question: TopicQuestion) -> TopicVerdict:
        """Say for whom a message is, within the detector's own time limit."""
        ...


class TopicModel(Protocol):
    """Makes detectors; loaded once in a process. version: as decisions' logs and events name it."""

    @property
    def version(self) -> str:
        """Name the model and its parameters."""
        ...

    def for_registry(self, registry: Registry) -> TopicDetector:
        """Make the detector of a registry, with all that can be computed before a message comes."""
        ...
