"""What messages ask for: how tokens are read, and how a registry weighs what was learned."""

from __future__ import annotations

import math

import pytest

from agent_routing_topics.model.agent_index import (
    FIT_FEATURES,
    FIT_WEIGHTS,
    AgentIndex,
    AgentText,
)
from agent_routing_topics.model.sense_index import SenseIndex
from agent_routing_topics.model.word_knowledge import (
    LEANING_STEPS,
    LEANING_ZERO,
    SenseGroup,
    WordKnowledge,
)


def token(*leanings: tuple[int, float], square: int = 1) -> bytes:
    """A token as it is kept: senses with what it speaks for them."""
    pairs = [(sense, LEANING_ZERO + round(LEANING_STEPS * value)) for sense, value in leanings]
    return bytes((square, *(number for pair in pairs for number in pair)))


WEATHER, MONEY = 0, 1
KNOWING = SenseGroup(
    "knowing",
    (0.0, 0.0),
    {"rain": token((WEATHER, 4)), "sun": token((WEATHER, 4)), "bank": token((MONEY, 4))},
)
BLIND = SenseGroup("blind", (0.0, 0.0), {word: token() for word in ("rain", "sun", "bank")})
SAID = (("rain", "sun", "rain"), ("bank", "bank", "bank"))


def no_pause() -> None:
    """No other work runs during a test."""


def index_of(*groups: SenseGroup, said=SAID, described=((), ())) -> SenseIndex:
    """Two agents: one for the weather, one for money."""

    def read(texts):
        return [[tuple(group.senses([text]) for group in groups) for text in own] for own in texts]

    return SenseIndex(groups, read(said), read(described), no_pause)


def test_tokens_add_up_by_their_length():
    """Three words with the same meaning are stronger evidence than one, but not three times."""
    one = dict(KNOWING.senses(["rain"]))[WEATHER]
    two = dict(KNOWING.senses(["rain", "sun"]))[WEATHER]
    assert one == pytest.approx(1 / (1 + math.exp(-4)))
    assert two == pytest.approx(1 / (1 + math.exp(-8 / math.sqrt(2))))


def test_unknown_tokens_ask_for_nothing():
    """The model has no evidence for them, and the commonest sense would be a guess."""
    assert KNOWING.senses(["xyzzy"]) == ()
    assert KNOWING.senses([]) == ()


def test_token_that_speaks_for_none_changes_how_sure_the_others_are():
    """It is known, and says that the message may be about something else."""
    alone = dict(KNOWING.senses(["rain"]))[WEATHER]
    group = SenseGroup("more", KNOWING.biases, {**KNOWING.tokens, "the": token(square=9)})
    assert 0.5 < dict(group.senses(["rain", "the"]))[WEATHER] < alone


def test_registry_relies_on_the_group_that_tells_its_examples_apart():
    """This works for any corpus, without naming it."""
    index = index_of(BLIND, KNOWING)
    blind, knowing = index.shares
    assert knowing > 2 * blind
    senses = index.senses(["sun"])
    weather, money = index.fits(senses)
    assert weather > 2 * money


def test_trust_is_high_only_where_examples_are_told_apart():
    """The agents' shared vocabulary counts less there, see FIT_WEIGHTS."""
    assert index_of(KNOWING).trust > 0.7
    assert index_of(BLIND).trust == pytest.approx(0.5, abs=0.01)
    assert index_of(KNOWING, said=((), ())).trust == 0.0


def test_example_is_judged_without_itself():
    """Examples without anything in common do not set an agent apart."""
    alone = index_of(KNOWING, said=(("rain",), ("bank",)))
    assert alone.trust < 0.4


def test_descriptions_count_where_there_are_no_examples():
    """Their sentences say what is asked for, too."""
    index = index_of(KNOWING, said=((), ()), described=(("rain",), ("bank",)))
    weather, money = index.fits(index.senses(["sun"]))
    assert weather > 2 * money
    assert index.trust > 0.7


def test_message_that_no_group_knows_fits_all_alike():
    """Its score is the same for every agent."""
    index = index_of(KNOWING)
    assert index.fits(index.senses(["xyzzy"])) == [0.5, 0.5]


def test_what_no_agent_is_asked_for_is_nobodys():
    """Out of scope: the shares do not add up to one."""
    sure = {word: token((sense, 8)) for word, sense in (("rain", WEATHER), ("bank", MONEY))}
    index = index_of(
        SenseGroup("sure", (0.0, 0.0), sure), said=(("rain", "rain"), ("rain", "rain"))
    )
    assert sum(index.fits(index.senses(["bank"]))) < 0.7 < sum(index.fits(index.senses(["rain"])))


def test_many_examples_are_judged_by_some_of_them():
    """Thousands of examples give the same result as hundreds, in the same time."""
    many = index_of(KNOWING, said=(("rain", "sun") * 600, ("bank",) * 1200))
    few = index_of(KNOWING, said=(("rain", "sun") * 60, ("bank",) * 120))
    assert many.trust == pytest.approx(few.trust, abs=0.02)


def test_weights_gain_with_the_trust_of_a_registry():
    """A learned weight has two parts: a constant one, and one that grows with the trust."""
    knowledge = WordKnowledge({}, (KNOWING,), {})
    agents = [AgentText("a", examples=("rain", "sun rain")), AgentText("b", examples=("bank",) * 2)]
    index = AgentIndex(agents, knowledge)
    trust = index.message("rain").trust
    assert 0 < trust <= 1
    count = len(FIT_FEATURES)
    assert len(FIT_WEIGHTS) == 2 * count
    assert index.weights_here([1.0] * count + [2.0] * count) == [1 + 2 * trust] * count


def test_message_says_how_much_of_it_is_known():
    """To the registry or to the trained model: an unknown word is not evidence."""
    knowledge = WordKnowledge({}, (KNOWING,), {})
    index = AgentIndex([AgentText("a", examples=("wibble",)), AgentText("b")], knowledge)
    assert index.message("rain wibble").known == 1.0
    assert index.message("xyzzy").known < 0.2
    assert index.message("").known == 1.0
