"""Handoff markers: how they are written, how they are cut out, and what they count for."""

import time

import pytest

from routing_service.core import events as ev
from routing_service.core.commands import Complete, Fail, FollowUp, HandOff, Proceed
from routing_service.core.markers import cut_markers
from routing_service.core.registry import Agent, OnComplete
from routing_service.core.vocabulary import OutcomeKind, OutcomeStatus, RouteReason
from tests.simulation.conversation import Conversation, registry_of, routed_text
from tests.typed_inputs import field_inputs, own_inputs

MATH = Agent("math", markers=True)
MOTIVATOR = Agent("motivator", aliases=("Cheer Leader",), receives_as_interlude=True, markers=True)
GATED = Agent("gated", requires=frozenset({"plus"}))
PLAIN = Agent("plain")
REGISTRY = registry_of(MATH, MOTIVATOR, GATED, PLAIN, Agent("machine"))


@pytest.mark.parametrize(
    ("text", "left", "name"),
    [
        ("", "", ""),
        ("nothing here", "nothing here", ""),
        ("  kept as it is ", "  kept as it is ", ""),
        ("Well done! [HANDOFF_TO:motivator]", "Well done!", "motivator"),
        ("Well done! [handoff_to: Motivator ] Bye.", "Well done! Bye.", "Motivator"),
        ("[Handoff_To:motivator]\nWell done!", "Well done!", "motivator"),
        ("a [HANDOFF_TO:x] b [HANDOFF_TO:y] c", "a b c", "x"),
        ("[ HANDOFF_TO : cheer leader ]", "", "cheer leader"),
        ("line\n[HANDOFF_TO:x]\nline", "line\nline", "x"),
        ("[HANDOFF TO:x]", "", "x"),
        ("[HANDOFF_TO:]", "", ""),
        ("[HANDOFF_TO:x", "", "x"),
        ("[HANDOFF_TO:a\nb]", "", "a b"),
        ("[HANDOFF]", "[HANDOFF]", ""),
        ("HANDOFF_TO:x", "HANDOFF_TO:x", ""),
    ],
)
def test_marker_is_cut_out_and_named(text, left, name):
    """The sentence around it closes; all other text stays unchanged."""
    assert cut_markers(text) == (left, name)


@pytest.mark.parametrize("inputs", [own_inputs, field_inputs])
def test_markers_are_found_as_models_write_them(inputs):
    """In code, bold, other brackets, with spaces and line breaks, unclosed; without debris."""
    names = {"math_specialist", "math specialist"}

    def is_name(name):
        return name.lower() in names

    wrong = []
    for text, agent_id, left in inputs("marker"):
        found = cut_markers(text, is_name)
        if found[0] != left or is_name(found[1]) != (agent_id is not None):
            wrong.append((text, found))
    assert wrong == []


def test_no_marker_is_left_when_cutting_one_out_spells_another():
    """Users see none, however the text was written."""
    assert cut_markers("[HAND[HANDOFF_TO:a]OFF_TO:b] hi") == ("hi", "a")
    assert cut_markers("[HANDOFF_TO:[HANDOFF_TO:a]b]") == ("", "a")
    deep = "[HANDOFF_TO:" * 50 + "a" + "]" * 50
    assert "handoff_to:a" not in cut_markers(deep)[0].lower()


@pytest.mark.parametrize(
    "text",
    [
        " " * 200_000,
        "[HANDOFF_TO:" + " " * 200_000,
        "`" * 100_000 + "[HANDOFF_TO:a]" + "`" * 100_000,
        "[" * 200_000,
        "[HANDOFF_TO:a\n" * 16_000,
        "[" + " " * 200_000,
        "[HANDOFF_TO:" * 16_000,
        " [HANDOFF_TO:a]" * 16_000,
        "[HAND" * 16_000 + "[HANDOFF_TO:a]" + "OFF_TO:a]" * 16_000,
    ],
    ids=[
        "spaces",
        "spaces in a marker",
        "ticks",
        "brackets",
        "unclosed",
        "spaces before",
        "openings",
        "markers",
        "nested",
    ],
)
def test_long_text_is_searched_in_linear_time(text):
    """An agent's text of that length stopped the server for minutes."""
    started_s = time.process_time()
    cut_markers(text)
    assert time.process_time() - started_s < 2


def lesson():
    """Return a lesson with the math agent in which the user has just said something."""
    chat = Conversation(REGISTRY).with_agent("math")
    chat.says()
    return chat


@pytest.mark.parametrize("name", ["motivator", "MOTIVATOR", "cheer leader", " Cheer Leader "])
@pytest.mark.parametrize("outcome", [Proceed(), FollowUp()])
def test_marker_hands_over_beside_proceed_and_follow_up(name, outcome):
    """Ids and aliases match in any case, and receives_as makes it an interlude."""
    chat = lesson()
    decision = chat.answers(outcome, text=f"You are tired. [HANDOFF_TO:{name}]")
    assert decision.text == "You are tired."
    assert decision.status is OutcomeStatus.APPLIED
    assert decision.dispatch.agent_id == "motivator"
    assert decision.dispatch.reason is RouteReason.AGENT_HANDOFF
    assert chat.stack == ["math"]
    (answer,) = (e for e in decision.events if isinstance(e, ev.TurnCompleted))
    assert answer.outcome is OutcomeKind.HANDOFF


@pytest.mark.parametrize(
    "outcome", [Complete(), Fail(), HandOff("plain")], ids=["complete", "failure", "handoff"]
)
def test_other_outcomes_win_over_a_marker_which_is_removed(outcome):
    """An explicit word of the runtime counts more than one in the text."""
    chat = lesson()
    decision = chat.answers(outcome, text="Bye. [HANDOFF_TO:motivator]")
    assert decision.text == "Bye."
    assert decision.status is OutcomeStatus.APPLIED
    assert chat.active != "motivator"
    assert (decision.dispatch.agent_id if decision.dispatch else "") in ("", "plain")


@pytest.mark.parametrize(
    ("name", "rule"), [("gated", "entitled"), ("math", "not_active"), ("nobody", "unknown_agent")]
)
@pytest.mark.parametrize("outcome", [Proceed(), FollowUp()])
def test_refused_marker_leaves_the_outcome_that_was_given(name, rule, outcome):
    """The text is shown, the answer says what was refused, and so does the stored event."""
    chat = lesson()
    decision = chat.answers(outcome, text=f"Hm. [HANDOFF_TO:{name}]")
    assert decision.status is OutcomeStatus.DEGRADED
    assert decision.text == "Hm."
    assert rule in [verdict.rule for verdict in decision.verdicts if not verdict.allowed]
    assert chat.active == "math"
    assert chat.locked == isinstance(outcome, FollowUp)
    (answer,) = (e for e in decision.events if isinstance(e, ev.TurnCompleted))
    assert answer.status is OutcomeStatus.DEGRADED
    assert answer.closes


def test_first_marker_counts_even_where_it_is_refused():
    """The second is removed and no second try."""
    chat = lesson()
    decision = chat.answers(text="Hm. [HANDOFF_TO:gated] [HANDOFF_TO:motivator]")
    assert decision.status is OutcomeStatus.DEGRADED
    assert decision.text == "Hm."
    assert chat.active == "math"


def test_agent_without_markers_keeps_its_text():
    """It may well explain what a marker looks like."""
    chat = Conversation(REGISTRY).with_agent("plain")
    chat.says()
    text = "Write [HANDOFF_TO:motivator] for that."
    for parse_markers in (None, True):
        decision = chat.answers(text=text, parse_markers=parse_markers)
        assert decision.text == text
        assert chat.active == "plain"
        chat.says()


def test_runtime_may_switch_markers_off_for_one_answer():
    """The text is then not an instruction, and is kept."""
    chat = lesson()
    text = "Say [HANDOFF_TO:motivator]"
    assert chat.answers(text=text, parse_markers=False).text == text
    assert chat.active == "math"


def test_marker_of_a_late_answer_is_removed_and_not_followed():
    """A text that is only kept shows no marker either."""
    chat = lesson()
    late = chat.open
    chat.says()
    decision = chat.answers(request=late, text="Late. [HANDOFF_TO:motivator]")
    assert decision.status is OutcomeStatus.STORED_ONLY
    assert decision.text == "Late."
    assert chat.active == "math"


def test_marker_back_to_the_interrupted_agent_is_the_return():
    """The motivator ends its interlude by naming the agent that it interrupted."""
    chat = lesson()
    chat.answers(text="[HANDOFF_TO:motivator]")
    decision = chat.answers(text="Go on! [HANDOFF_TO:math]")
    assert decision.dispatch.agent_id == "math"
    assert decision.dispatch.reason is RouteReason.RETURNED
    assert chat.stack == []


def test_marker_in_a_user_message_is_ordinary_text():
    """Only agents write markers."""
    chat = lesson()
    decision = chat.says("[HANDOFF_TO:motivator]")
    assert decision.dispatch.agent_id == "math"
    assert routed_text(decision) == "[HANDOFF_TO:motivator]"


def test_completion_hop_wins_over_a_marker():
    """The registry says who follows the one that has finished."""
    done = Agent("done", markers=True, on_complete=OnComplete.HOP, on_complete_agent_id="plain")
    chat = Conversation(registry_of(done, MOTIVATOR, PLAIN)).with_agent("done")
    chat.says()
    decision = chat.answers(Complete(), text="Finished. [HANDOFF_TO:motivator]")
    assert decision.dispatch.agent_id == "plain"


def test_marker_may_name_an_agent_as_users_see_it():
    """Models copy the shown name rather than the id."""
    shown = Agent("cheers", name={"es": "Motivadora"})
    chat = Conversation(registry_of(MATH, shown)).with_agent("math")
    chat.says()
    assert chat.answers(text="Vamos [HANDOFF_TO: motivadora]").dispatch.agent_id == "cheers"


def test_failure_of_an_interlude_gives_the_conversation_back():
    """The task goes on with the agent that was interrupted."""
    chat = lesson()
    chat.answers(text="[HANDOFF_TO:motivator]")
    decision = chat.answers(Fail("no words"))
    assert decision.dispatch.agent_id == "math"
    assert decision.dispatch.reason is RouteReason.RETURNED
    assert chat.stack == []
    assert chat.state.open_task is not None
