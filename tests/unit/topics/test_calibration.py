"""Probabilities adapted to one registry: what changes, what never does, and what is found."""

import random

import pytest

from agent_routing_topics.backtest import Labelled, ShownBy
from agent_routing_topics.learning import evidence, learn, proposed
from routing_service.registry.file import parse_registry
from routing_service.topics.calibration import (
    NONE,
    STAY,
    Calibration,
    Sample,
    fit,
    off_by,
    option_of,
)
from routing_service.topics.topic_detector import TopicVerdict
from tests.rpc.registries import DESK

REGISTRY = parse_registry(DESK, "desk")
VERDICT = TopicVerdict((("sales", 0.5), ("support", 0.1)), stay=0.3)


def test_nothing_changes_until_something_was_learned():
    """Nor does a verdict that is wholly sure, such as of an example word for word."""
    assert Calibration().applied(VERDICT) is VERDICT
    sure = TopicVerdict((("sales", 0.99),), stay=0.01, sureness=1.0)
    assert Calibration(2.0, 1.0).applied(sure) is sure


def test_agents_keep_their_order():
    """A calibration says how sure a verdict is, and how readily a message stays."""
    colder = Calibration(2.0, 0.0).applied(VERDICT)
    assert [name for name, _ in colder.ranked] == ["sales", "support"]
    assert colder.ranked[0][1] < 0.5
    assert colder.how_sure() < VERDICT.how_sure()
    staying = Calibration(1.0, 1.0).applied(VERDICT)
    assert staying.stay > staying.ranked[0][1]
    total = staying.stay + sum(share for _, share in staying.ranked)
    assert total == pytest.approx(0.934, abs=1e-3)


def test_option_is_the_one_that_the_detector_named():
    """An owner that it did not name counts as none of them."""
    assert option_of(VERDICT.ranked, "billing", "billing") == STAY
    assert option_of(VERDICT.ranked, "billing", "sales") == "sales"
    assert option_of(VERDICT.ranked, "billing", "tutor") == NONE


def test_fit_finds_what_probabilities_are_off_by():
    """Of verdicts that are far too sure, on both sides."""
    chance = random.Random(1)
    samples = []
    for number in range(200):
        is_right = chance.random() < 0.7
        stays = number % 2 == 0
        ranked = (("sales", 0.03 if stays else 0.96),)
        samples.append(
            Sample(ranked, 0.96 if stays else 0.03, STAY if stays == is_right else "sales")
        )
    found = fit(samples)
    assert found.temperature > 1.0
    assert off_by(samples, found) < 0.05 < off_by(samples, Calibration())
    assert fit([]).is_idle


def message(number, owner, shown_by=ShownBy.ANSWER, text="", *, target="sales"):
    """A message to billing that the detector gives to a target, at 0.6."""
    return Labelled(
        active="billing",
        is_locked=False,
        target=target,
        confidence=0.6,
        stay=0.3,
        owner=owner,
        supervised=False,
        ranked=((target, 0.6),),
        shown_by=shown_by,
        message=str(number),
        session_id=str(number),
        text=text,
    )


def test_what_people_show_later_replaces_the_answer():
    """A command right after it; a handoff makes it doubtful, unless the user had said it."""
    found = evidence(
        [
            message(1, "billing"),
            message(1, "sales", ShownBy.COMMAND),
            message(2, "billing"),
            message(2, "billing", ShownBy.DOUBTFUL),
            message(3, "billing", ShownBy.OFFER),
            message(3, "billing", ShownBy.DOUBTFUL),
        ]
    )
    assert [(one.message, one.owner, one.shown_by) for one in found] == [
        ("1", "sales", ShownBy.COMMAND),
        ("3", "billing", ShownBy.OFFER),
    ]


def test_gain_is_measured_on_other_sessions():
    """Nine of ten users decline; the offers are no longer the likeliest option then."""
    messages = [
        message(number, "sales" if number % 10 == 0 else "billing", ShownBy.OFFER)
        for number in range(100)
    ]
    learned = learn(messages, Calibration())
    assert learned.before.right == 10
    assert learned.after.right == 90
    assert learned.helps
    assert learned.shown_by == {"offer": 100}
    assert learned.calibration.stay > 0


def test_nothing_helps_where_nothing_is_wrong():
    """Then no calibration is proposed."""
    messages = [message(number, "sales") for number in range(100)]
    learned = learn(messages, Calibration(0.5, 0.0))
    assert learned.before.right == learned.after.right == 100
    assert not learned.helps or learned.after.off_by < learned.before.off_by


def test_examples_are_what_people_showed_and_the_detector_missed():
    """Not what it knew, what two agents got, what is too short, or what is an example already."""
    found = proposed(
        [
            message(1, "support", ShownBy.OFFER, "it  does not start at all"),
            message(2, "sales", ShownBy.OFFER, "what does the big one cost"),
            message(3, "support", ShownBy.COMMAND, "and now what then"),
            message(4, "sales", ShownBy.HANDOFF, "and now what then", target="support"),
            message(5, "support", ShownBy.OFFER, "broken"),
            message(6, "support", ShownBy.ANSWER, "my machine makes a noise"),
            message(7, "front", ShownBy.OFFER, "who are you all really"),
        ],
        REGISTRY,
    )
    assert found == {"support": ["it does not start at all"]}
