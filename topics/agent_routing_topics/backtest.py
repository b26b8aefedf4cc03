"""What topic detection would have made of conversations that the service has already had.

It finds the messages of a log whose owner is known, and what a threshold would have done with each.
The owner of a message is the agent that it was handed to, or else the agent that answered it. An
agent that answers a message of another agent counts as its owner, so the labels favour staying more
than users do. If a user answered a suggestion, that is the label. Nothing is written.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from routing_service.core import events as ev
from routing_service.core.case import open_case
from routing_service.core.commands import RouteMessage
from routing_service.core.evolve import apply_change
from routing_service.core.facts import topic_asked
from routing_service.core.history import HistoryFold
from routing_service.core.registry import Registry, Topics
from routing_service.core.session import SessionState
from routing_service.core.vocabulary import HandoffMode, Initiator, OutcomeKind, RouteReason
from routing_service.storage.checked_store import Store
from routing_service.storage.event_codec import BLANK_EVENTS, StoredEvents, decode_change
from routing_service.storage.store import CURSOR_START, Change, SessionKey
from routing_service.stored_data.whole_session import (
    SESSIONS_PER_READ,
    pages_of_changes,
    tenants_of,
)
from routing_service.topics.detection import TopicJudge

RECENT_TURNS: Final = 64
RECENT_BYTES: Final = 64 * 1024
"""Of a session, as the server keeps them: a question then reads as it would have read there."""

_NOT_BY_TOPIC: Final = frozenset({HandoffMode.CONSULT, HandoffMode.ANSWER})


class ShownBy(enum.StrEnum):
    """What shows whose a message was."""

    ANSWER = "answered"
    """The agent that it was sent to answered it."""
    HANDOFF = "handed off"
    """The agent that it was sent to, or the supervisor, handed it to its owner."""
    ASKED = "asked"
    """It was unsure and went to the supervisor, which chose."""
    OFFER = "offer"
    """The user accepted or declined a suggestion."""
    COMMAND = "command"
    """After the answer, the user's next act was a command to another agent, the owner."""
    DOUBTFUL = "doubtful"
    """The agent that answered it handed the next message but one on, or the one before that."""


LATER: Final = frozenset({ShownBy.COMMAND, ShownBy.DOUBTFUL})
"""What is learned of a message whose owner was shown before, in another way."""

TURNS_DOUBTED: Final = 2
"""Messages before a handoff that are doubtful, if the agent that hands over answered them."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """A message with a verdict and its owner.

    active: "" where nobody was active. target, confidence: of the likeliest agent, "" where none is
    named. supervised: the supervisor was dispatched for it. ranked: the verdict's agents. shown_by:
    what shows the owner. message: names the message; session_id: its session.
    """

    active: str
    is_locked: bool
    target: str
    confidence: float
    stay: float
    owner: str
    supervised: bool
    ranked: tuple[tuple[str, float], ...] = field(default=(), compare=False)
    shown_by: ShownBy = field(default=ShownBy.ANSWER, compare=False)
    message: str = field(default="", compare=False)
    session_id: str = field(default="", compare=False)
    text: str = field(default="", repr=False, compare=False)

    @property
    def place(self) -> str:
        """Return which of a registry's settings decides about it."""
        if not self.active:
            return "first messages"
        return "while an agent waits" if self.is_locked else "while an agent is active"


PLACES: Final = ("while an agent is active", "while an agent waits", "first messages")


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a threshold would have done.

    right: switches to the owner; false: away from the owner; wrong: from one wrong agent to
    another. missed: messages for another agent that would have stayed. saved: calls of the
    supervisor that a right switch would have made unnecessary.
    """

    threshold: float
    messages: int
    switches: int
    right: int
    false: int
    wrong: int
    missed: int
    saved: int


def outlook(messages: Iterable[Labelled], threshold: float, home: str) -> Outlook:
    """Return what a threshold would have done with messages. home: the home agent's id."""
    counts = dict.fromkeys(
        ("messages", "switches", "right", "false", "wrong", "missed", "saved"), 0
    )
    for message in messages:
        counts["messages"] += 1
        switches = (
            bool(message.target)
            and message.confidence >= threshold
            and message.confidence > message.stay
        )
        present = message.active or home
        if not switches:
            counts["missed"] += message.owner not in (present, home)
            continue
        counts["switches"] += 1
        is_right = message.target == message.owner
        counts["right"] += is_right
        counts["false"] += message.owner == present
        counts["wrong"] += not is_right and message.owner != present
        counts["saved"] += is_right and message.supervised
    return Outlook(threshold, **counts)


def calibration(messages: Sequence[Labelled], bins: int = 10) -> list[tuple[int, float, float]]:
    """Return for each tenth of confidence how many targets had it, its mean, and who was right."""
    rows = []
    for place in range(bins):
        found = [
            m for m in messages if m.target and min(int(m.confidence * bins), bins - 1) == place
        ]
        if found:
            mean = sum(m.confidence for m in found) / len(found)
            right = sum(m.target == m.owner for m in found) / len(found)
            rows.append((len(found), mean, right))
    return rows


def calibration_error(messages: Sequence[Labelled]) -> float:
    """Return how far off the confidences are, 0-1: the expected calibration error in ten bins."""
    rows = calibration(messages)
    total = sum(count for count, _, _ in rows)
    return sum(count * abs(mean - right) for count, mean, right in rows) / total if total else 0.0


def always_asked(registry: Registry) -> Registry:
    """Return the registry with topics that ask about every message that they ever could."""
    topics = Topics("auto", threshold=0.0, lock_threshold=0.0, first_message="auto")
    return replace(registry, topics=topics)


async def labelled_messages(
    store: Store,
    registry: Registry,
    judge: TopicJudge,
    *,
    tenant: str = "",
    since_us: int = 0,
    with_later: bool = False,
) -> AsyncIterator[Labelled]:
    """Judge the messages of a store's sessions whose owner is known.

    registry: as always_asked() returns one. tenant: "" = all. since_us: only messages from then on.
    with_later: yield a message a second time, with something of LATER, if that is shown. Raises
    StoreError.
    """
    tenants = [tenant] if tenant else [name async for name in tenants_of(store)]
    for name in tenants:
        cursor = CURSOR_START
        while True:
            rows, cursor = await store.list_sessions(name, cursor, SESSIONS_PER_READ)
            for row in rows:
                if row.update_us < since_us:
                    continue
                review = _SessionReview(row.key, registry, judge, since_us)
                async for page in pages_of_changes(store, row.key, after=0, upto=row.revision):
                    for change in page:
                        for message in review.take(change):
                            if with_later or message.shown_by not in LATER:
                                yield message
            if len(rows) < SESSIONS_PER_READ:
                break


@dataclass(slots=True)
class _Waiting:
    """A message whose owner is not known yet. holder: who has it."""

    made: Labelled
    holder: str


@dataclass(slots=True)
class _SessionReview:
    """One session while its changes come by."""

    key: SessionKey
    registry: Registry
    judge: TopicJudge
    since_us: int
    state: SessionState | None = None
    fold: HistoryFold = field(
        default_factory=lambda: HistoryFold(records_max=RECENT_TURNS, bytes_max=RECENT_BYTES)
    )
    waiting: dict[str, _Waiting] = field(default_factory=dict)
    offers: dict[str, str] = field(default_factory=dict)
    # The latest messages that were answered, the last one last.
    answered: list[Labelled] = field(default_factory=list)
    is_erased: bool = False

    def take(self, change: Change) -> list[Labelled]:
        """Take the next change; return the messages whose owner it shows."""
        self.is_erased = self.is_erased or change.events == BLANK_EVENTS
        if self.is_erased:
            return []
        stored = decode_change(change.events)
        if change.time_us >= self.since_us:
            self._judge(change, stored)
        found = [labelled for event in stored.events if (labelled := self._label(event))]
        found += self._doubted(stored)
        self.answered = [*self.answered, *(m for m in found if m.shown_by not in LATER)]
        self.answered = self.answered[-TURNS_DOUBTED:]
        self.state = apply_change(
            self.state,
            stored.events,
            session_id=self.key.session_id,
            now_us=change.time_us,
            registry_version=stored.registry_version,
        )
        self.fold.apply(change.revision, change.time_us, stored.events)
        return found

    def _judge(self, change: Change, stored: StoredEvents) -> None:
        """Ask about the message that a change routed, as the server would have been asked."""
        by_command = any(
            isinstance(event, ev.CommandHandled | ev.SwitchAnswered) for event in stored.events
        )
        for event in stored.events:
            if not isinstance(event, ev.MessageRouted) or by_command:
                continue
            profiles = [
                e.profile
                for e in stored.events
                if isinstance(e, ev.SessionStarted | ev.ProfileUpdated)
            ]
            command = RouteMessage(
                event.request_id,
                event.text,
                "",
                profile=profiles[0] if profiles else ev.NO_PROFILE,
                literal_text=True,
                stickiness_enabled=event.reason is not RouteReason.STICKINESS_DISABLED,
            )
            session_id = self.key.session_id
            asked = topic_asked(
                open_case(self.state, command, self.registry, change.time_us, session_id=session_id)
            )
            if asked is None:
                continue
            opinion = self.judge.judge(self.registry, asked, event.text, self.state, self.fold)
            if opinion is None:
                continue
            target, confidence = opinion.ranked[0] if opinion.ranked else ("", 0.0)
            made = Labelled(
                active=asked.active_agent_id,
                is_locked=asked.is_locked,
                target=target,
                confidence=confidence,
                stay=opinion.stay,
                owner="",
                supervised=event.agent_id == self.registry.home_agent_id,
                ranked=tuple(opinion.ranked),
                shown_by=(
                    ShownBy.ASKED
                    if event.shown_reason is RouteReason.TOPIC_UNSURE
                    else ShownBy.ANSWER
                ),
                message=event.request_id,
                session_id=session_id,
                text=event.text,
            )
            self.waiting[event.request_id] = _Waiting(made, event.agent_id)

    def _doubted(self, stored: StoredEvents) -> Iterator[Labelled]:
        """Yield earlier messages of which a change shows something else than was known."""
        for event in stored.events:
            if not isinstance(event, ev.AgentHandedOff) or event.mode in _NOT_BY_TOPIC:
                continue
            if event.initiator is Initiator.USER:
                # A suggestion that was accepted is of its own message, which is labelled by it.
                is_offer = any(isinstance(other, ev.SwitchAnswered) for other in stored.events)
                last = self.answered[-1:]
                if not is_offer and last and last[0].owner == event.from_agent:
                    yield replace(last[0], owner=event.to_agent, shown_by=ShownBy.COMMAND)
            elif event.initiator in (Initiator.AGENT, Initiator.SUPERVISOR) and event.dispatches:
                for message in self.answered:
                    if message.owner == event.from_agent != self.registry.home_agent_id:
                        yield replace(message, shown_by=ShownBy.DOUBTFUL)

    def _label(self, event: ev.Event) -> Labelled | None:
        """Return the message whose owner an event shows."""
        home = self.registry.home_agent_id
        match event:
            case ev.AgentHandedOff() if event.dispatches and event.mode not in _NOT_BY_TOPIC:
                waiting = self.waiting.get(event.root_request_id)
                if waiting is not None and event.initiator is Initiator.COMPLETION:
                    # What follows a finished task is no word on whose the message was.
                    return self._settled(event.root_request_id, waiting.holder)
                if waiting is not None:
                    waiting.holder = event.to_agent
                    supervised = waiting.made.supervised or event.to_agent == home
                    shown_by = waiting.made.shown_by
                    if shown_by is ShownBy.ANSWER:
                        shown_by = ShownBy.HANDOFF
                    waiting.made = replace(waiting.made, supervised=supervised, shown_by=shown_by)
            case ev.TurnCompleted() if event.closes and not event.is_consult:
                if event.root_request_id in self.offers.values():
                    return None  # The user may yet say whose it was.
                if event.outcome is OutcomeKind.FAILURE:
                    self.waiting.pop(event.root_request_id, None)
                else:
                    return self._settled(event.root_request_id, event.agent_id)
            case ev.TurnAbandoned() | ev.TurnAnswered():
                self.waiting.pop(event.root_request_id, None)
            case ev.SwitchSuggested():
                # One is open at a time; of one that nobody answered nothing is known.
                self.offers = {event.suggestion_id: event.request_id}
            case ev.SwitchAnswered():
                request_id = self.offers.pop(event.suggestion_id, "")
                owner = event.agent_id if event.accepted else event.from_agent
                return self._settled(request_id, owner, ShownBy.OFFER)
            case _:
                pass
        return None

    def _settled(
        self, request_id: str, owner: str, shown_by: ShownBy | None = None
    ) -> Labelled | None:
        waiting = self.waiting.pop(request_id, None)
        if waiting is None:
            return None
        return replace(waiting.made, owner=owner, shown_by=shown_by or waiting.made.shown_by)
