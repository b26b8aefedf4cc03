"""The words of a text: folded, so that ways of writing are one."""

import pytest

from agent_routing_topics.model.words import split


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Siii, thaaanks!", ["si", "thanks"]),
        ("NOOO obrigadaaa", ["no", "obrigada"]),
        ("ÓÓÓÓ", ["o"]),
        ("book 1000 at 111", ["book", "1000", "at", "111"]),
        ("Phase III, ley VIII", ["phase", "iii", "ley", "viii"]),
        ("coffee, vacuum, lleno", ["coffee", "vacuum", "lleno"]),
    ],
)
def test_stretched_letters_are_one(text, words):
    """People write siii: it was no agreement, and stayed unknown."""
    assert split(text) == words
