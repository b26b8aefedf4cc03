"""The wording of messages: its features, which do not depend on the subject."""

from __future__ import annotations

import pytest

from agent_routing_topics.model import load_word_model
from agent_routing_topics.model.manner import WORDS_MAX, Manner, last_sentence, phrases_of
from agent_routing_topics.model.word_knowledge import WordKnowledge

EVERYDAY = dict.fromkeys(("now", "find", "i", "need", "a"), 0.1)
KNOWLEDGE = WordKnowledge(EVERYDAY | {"hotel": 0.5}, (), {"taxi": ("@taxi",)})


def test_words_that_tell_what_a_text_is_about_are_blanks():
    """Known words, unknown words, and every word of a concept, even a common one."""
    assert phrases_of(("now", "find", "hotel"), KNOWLEDGE) == (
        *("now", "find", "*"),
        *("^ now", "now find", "find *", "* $"),
        *("^ now find", "now find *"),
    )
    common = WordKnowledge(EVERYDAY | {"taxi": 0.1}, (), KNOWLEDGE.concepts)
    assert phrases_of(("taxi",), common) == ("*", "^ *", "* $")


@pytest.mark.parametrize(("one", "other"), [("hotel", "zeppelin"), ("taxi", "hotels"), ("4", "17")])
def test_same_wording_of_other_things_is_the_same(one, other):
    """An unseen agent is switched to with the same wording."""
    told = [phrases_of(("i", "need", "a", word), KNOWLEDGE) for word in (one, other)]
    assert told[0] == told[1]


def test_long_text_costs_no_more_than_its_beginning():
    """A pasted page is not a turn of a dialogue."""
    words = ("now", "find") * 10 * WORDS_MAX
    assert phrases_of(words, KNOWLEDGE) == phrases_of(words[:WORDS_MAX], KNOWLEDGE)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("Done. Anything else?", ("anything", "else")),
        ("Anything else? 😀", ("anything", "else")),
        ("For how many nights", ("for", "how", "many", "nights")),
        ("...", ()),
        ("", ()),
        ("x" * 10_000 + ". Anything else?", ("anything", "else")),
    ],
)
def test_what_an_answer_asks_stands_at_its_end(answer, words):
    """The last sentence with a word in it."""
    assert last_sentence(answer) == words


def test_phrases_add_up():
    """Each phrase counts once, unknown ones count nothing."""
    manner = Manner({"now": -1.0, "now find": -0.5}, {"^ need": 2.0}, KNOWLEDGE)
    assert manner.of(("now", "find", "now"), "I see. Need a hotel?") == (-1.5, 2.0)
    assert manner.of(("now",), "") == (-1.0, 0.0)
    assert Manner({}, {}, KNOWLEDGE).of(("now",), "Need a hotel?") == (0.0, 0.0)


def test_change_of_subject_is_worded_unlike_an_answer():
    """For the built-in parameters, any request and any question."""
    model = load_word_model()
    if "sgd" not in model.version:
        pytest.skip("topics/agent_routing_topics/model/sgd was taken away, as it may be")
    manner = model._manner
    asked = "For how many nights?"
    leaves, _ = manner.of(("thanks", "now", "i", "need", "to", "find", "a", "zeppelin"), asked)
    stays, _ = manner.of(("two", "nights", "please"), asked)
    assert leaves < stays
    _, waits = manner.of((), asked)
    _, is_done = manner.of((), "All done. Is there anything else I can help you with?")
    assert is_done < waits
