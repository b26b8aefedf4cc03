"""The bound of sureness: for a share of messages, or for a share that is right."""

from __future__ import annotations

import random

import pytest

from routing_service.topics.ask_bound import BINS, Counts, Prior, ask_bound, expected

SHARES = tuple(sorted((2 * place + 1 for place in range(BINS)), reverse=False))
SURE = Prior(
    tuple(share / sum(SHARES) for share in SHARES),
    tuple(0.5 + 0.5 * (place + 0.5) / BINS for place in range(BINS)),
)
"""Most verdicts are sure, and the surest are right."""


def bound_of(counts: Counts, *, share: float = 0.2, right: float | None = None) -> float:
    """The bound by a prior in which most verdicts are sure."""
    return ask_bound(counts, SURE, ask_share=share, right_wanted=right)


def test_first_message_has_the_bound_that_is_expected():
    """A prior of even sureness asked about 7 % of the first fifty messages, where 20 was wanted."""
    asked, right = expected(SURE, bound_of(Counts()))
    assert asked == pytest.approx(0.2)
    assert right > sum(s * r for s, r in zip(SURE.shares, SURE.right, strict=True))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_share_of_asked_messages_follows_what_comes(share):
    """Another spread of sureness than the prior's has the share after some hundred messages."""
    chance, counts, asked = random.Random(1), Counts(), 0
    for number in range(1500):
        sureness = chance.random() ** 2
        asked += number >= 500 and sureness < bound_of(counts, share=share)
        counts.note(sureness, 0.5 + sureness / 2)
    assert asked / 1000 == pytest.approx(share, abs=0.03)


def test_messages_are_asked_about_until_the_wanted_share_is_right():
    """What is asked about counts as right; the others are as right as they are sure."""
    chance, counts, right = random.Random(2), Counts(), 0
    for number in range(3000):
        sureness = chance.random()
        probability = 0.5 + sureness / 2
        is_asked = sureness < bound_of(counts, right=0.95)
        counts.note(sureness, probability)
        right += number >= 1000 and (is_asked or chance.random() < probability)
    assert right / 2000 == pytest.approx(0.95, abs=0.015)


def test_nothing_is_asked_about_where_enough_is_right_anyway():
    """And everything where all is to be right, though no verdict is ever certain."""
    assert bound_of(Counts(), right=0.5) == 0.0
    assert bound_of(Counts(), right=1.0) == pytest.approx(1.0)


def test_old_messages_count_for_less():
    """Traffic changes: ten thousand messages of another kind do not hold the bound for ever."""
    counts = Counts()
    for _ in range(20_000):
        counts.note(0.1, 0.5)
    assert bound_of(counts, share=0.5) < 0.2
    for _ in range(20_000):
        counts.note(0.9, 0.95)
    assert bound_of(counts, share=0.5) > 0.8


def test_prior_of_a_detector_of_others_is_flat():
    """One that offers none, or something else, is expected to be as right as it is sure."""

    class Odd:
        prior = ((0.5, 0.2, 0.3), (0.5, 0.6, 0.7))

    assert Prior.of(object()) == Prior.of(Odd()) == Prior()
    Odd.prior = ((0.25, 0.75), (0.5, 0.9))
    assert ask_bound(Counts(), Prior.of(Odd()), ask_share=0.25, right_wanted=None) == pytest.approx(
        0.5
    )
    assert ask_bound(Counts(), Prior(), ask_share=0.2, right_wanted=None) == pytest.approx(0.2)
