"""How close texts are: by stems, and by pieces of words."""

import pytest

from agent_routing_topics.model.agent_index import EXAMPLES_MAX, AgentText, go_on
from agent_routing_topics.model.closeness import (
    SEGMENTS_MAX,
    ClosenessIndex,
    by_examples,
    closeness,
    segments_of,
    tokens_of,
)
from agent_routing_topics.model.word_knowledge import WordKnowledge
from agent_routing_topics.model.words import split

KNOWLEDGE = WordKnowledge(weights={}, groups=(), concepts={})
AGENTS = (
    AgentText("invoices", ("Invoices",), ("Issues invoices",), ("cancel an invoice", "my bill")),
    AgentText("payroll", ("Payroll",), ("Pays salaries",), ("when is payday",)),
)
INDEX = ClosenessIndex(AGENTS, KNOWLEDGE, go_on)


def close(text: str, place: int):
    """How close a text is to one of AGENTS."""
    return INDEX.closest(INDEX.bag(split(text)), place)


def test_example_is_closest_to_itself():
    """And to no text of another agent."""
    found = close("cancel an invoice", 0)
    assert found.examples[0] == pytest.approx(1, abs=0.01)
    assert found.examples[0] > found.examples[1]
    assert close("cancel an invoice", 1).best < 0.2


def test_pieces_of_words_find_other_forms():
    """A compound, or a word with another ending, has no stem in common."""
    assert close("reinvoicing", 0).described > 0.1
    assert close("reinvoicing", 1).described == 0


def test_texts_are_compared_both_ways_alike():
    """A closeness has no direction; a text without words is close to nothing."""
    one, other = INDEX.bag(split("cancel my invoice")), INDEX.bag(split("my invoice please"))
    assert closeness(one, other) == pytest.approx(closeness(other, one))
    assert closeness(INDEX.bag([]), one) == 0
    assert sum(weight * weight for weight in one.values()) == pytest.approx(1)


def test_parts_of_a_message_are_its_sentences():
    """Each may ask for something; a message of one sentence has no parts."""
    assert segments_of("cancel my invoice") == []
    assert segments_of("ok, thanks. And when is payday?") == ["And when is payday"]
    assert len(segments_of("one two three. " * 9)) == SEGMENTS_MAX


def test_examples_count_together():
    """The best, the best three, and all; an agent without examples has none of them."""
    found = by_examples((0.1, 0.9, 0.5, 0.3))
    assert (found.best, found.best_few) == (0.9, pytest.approx(1.7 / 3))
    assert found.mean == pytest.approx(0.45)
    assert by_examples(()).best == 0


def test_many_examples_are_compared_in_part():
    """Time and memory are bounded."""
    many = AgentText("many", (), (), tuple(f"example number {n} of many" for n in range(500)))
    assert ClosenessIndex((many,), KNOWLEDGE, go_on).examples(0) == EXAMPLES_MAX


def test_pieces_of_a_short_word_are_its_stem():
    """Numbers too."""
    assert tokens_of(["ir", "12345"]) == {"ir": 1, "#": 1}
    assert tokens_of(["rent"]) == {"rent": 1, "~<ren": 1, "~rent": 1, "~ent>": 1}
