"""Notes on a turn, kept from one message to the next: computed once, and dropped with the turn."""

from __future__ import annotations

import pytest

from agent_routing_topics.default_model import load_word_model
from agent_routing_topics.model import option_rows
from routing_service.core import events as ev
from routing_service.core.history import HistoryFold
from routing_service.core.registry import Agent, AgentKind, Registry
from routing_service.core.vocabulary import OutcomeKind, OutcomeStatus, RouteReason
from routing_service.topics.detection import recent_turns
from routing_service.topics.topic_detector import RecentTurn, TopicQuestion, TurnNotes

AGENTS = {
    "desk": Agent("desk", kind=AgentKind.SUPERVISOR),
    "hotels": Agent("hotels", description={"en": "Books hotel rooms"}),
    "trains": Agent("trains", description={"en": "Train tickets"}),
}
REGISTRY = Registry(version="1", home_agent_id="desk", agents=AGENTS)


def routed(number: int, text: str) -> ev.MessageRouted:
    """A message that went to hotels."""
    return ev.MessageRouted(
        request_id=f"request-{number}",
        task_id="task",
        agent_id="hotels",
        reason=RouteReason.STICKY,
        text=text,
    )


def answered(number: int, text: str) -> ev.TurnCompleted:
    """The answer to it."""
    return ev.TurnCompleted(
        request_id=f"request-{number}",
        root_request_id=f"request-{number}",
        task_id="task",
        agent_id="hotels",
        outcome=OutcomeKind.FOLLOW_UP,
        status=OutcomeStatus.APPLIED,
        text=text,
    )


@pytest.fixture
def fold() -> HistoryFold:
    """Two turns, of which the second is open."""
    fold = HistoryFold(records_max=8)
    fold.apply(1, 1, [routed(1, "a room in Leeds")])
    fold.apply(2, 2, [answered(1, "For how many nights?")])
    fold.apply(3, 3, [routed(2, "two nights")])
    return fold


@pytest.fixture
def readings(monkeypatch) -> list[RecentTurn]:
    """The turns whose text was read, in order."""
    found: list[RecentTurn] = []
    read = option_rows._read_turn

    def counted(turn: RecentTurn) -> option_rows.TurnReading:
        found.append(turn)
        return read(turn)

    monkeypatch.setattr(option_rows, "_read_turn", counted)
    return found


def question(fold: HistoryFold) -> TopicQuestion:
    """The next message."""
    return TopicQuestion(
        text="a train ticket please",
        active_agent_id="hotels",
        recent=recent_turns(fold.records),
        candidate_ids=("hotels", "trains"),
    )


def test_turn_is_read_once_however_many_messages_follow(fold, readings):
    """Reading recent turns again took half of a verdict's time."""
    detector = load_word_model().for_registry(REGISTRY)
    first = detector.judge(question(fold))
    assert len(readings) == 2
    assert detector.judge(question(fold)) == first
    assert len(readings) == 2
    fold.apply(4, 4, [answered(2, "Done. Anything else?")])
    detector.judge(question(fold))
    assert [turn.agent_text for turn in readings[2:]] == ["Done. Anything else?"]


def test_verdict_does_not_depend_on_what_is_kept(fold):
    """It is the same after a restart, on another replica and with another registry."""
    model = load_word_model()
    one, other = model.for_registry(REGISTRY), model.for_registry(REGISTRY)
    fresh = list(recent_turns(fold.records))
    before = one.judge(question(fold))
    assert other.judge(question(fold)) == before
    again = [RecentTurn(t.agent_id, t.user_text, t.agent_text, t.outcome) for t in fresh]
    assert again == fresh
    asked = TopicQuestion(
        text="a train ticket please",
        active_agent_id="hotels",
        recent=tuple(again),
        candidate_ids=("hotels", "trains"),
    )
    assert other.judge(asked) == before


def test_what_is_kept_goes_with_the_turn_it_was_made_of(fold):
    """The notes are dropped when the turn is answered or removed."""
    (first, second) = recent_turns(fold.records)
    assert recent_turns(fold.records)[1] is second
    fold.apply(4, 4, [answered(2, "Booked.")])
    now = recent_turns(fold.records)
    assert now[0] is first
    assert now[1] is not second
    assert now[1].agent_text == "Booked."
    fold.apply(5, 5, [routed(3, "thanks")])
    given_up = ev.TurnAbandoned("request-3", "request-3", "hotels", cause="timeout")
    fold.apply(6, 6, [given_up])
    assert len(recent_turns(fold.records)) == 3


def test_notes_are_for_whoever_made_them():
    """Another version's or registry's detector makes its own."""
    notes = TurnNotes()
    assert notes.kept("one 1", lambda: "made") == "made"
    assert notes.kept("one 1", lambda: "again") == "made"
    assert notes.kept("one 2", lambda: "newer") == "newer"
    assert notes.kept("one 1", lambda: "again") == "again"


def test_nothing_is_kept_of_what_could_not_be_made():
    """The error is raised to the caller, and the next call tries again."""
    notes = TurnNotes()
    with pytest.raises(ZeroDivisionError):
        notes.kept("one", lambda: 1 // 0)
    assert notes.kept("one", lambda: 2) == 2


def test_notes_make_no_difference_between_turns():
    """Notes are not part of the question."""
    one, other = RecentTurn("hotels", "hi"), RecentTurn("hotels", "hi")
    one.notes.kept("one", lambda: "made")
    assert one == other
    assert one != RecentTurn("hotels", "bye")
