"""What the policies save on public dialogues, beside what an oracle says that they must.

The oracle is computed here from the labels alone, without a server; the replay asks the real one.
"""

from __future__ import annotations

import gzip
import itertools
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

CORPORA = ("sgd_train", "star_train")

# (policy, switch) -> supervisor calls saved, in percent of the user turns, as published with the
# corpora (rows 1 to 3 of their oracle's table, and all but first messages for the second).
PUBLISHED = {
    ("sticky", "supervisor"): {"sgd_train": 77.9, "star_train": 74.3},
    ("sticky", "agent"): {"sgd_train": 90.4, "star_train": 91.3},
    ("follow_up", "supervisor"): {"sgd_train": 62.8, "star_train": 47.1},
    ("supervisor", "supervisor"): {"sgd_train": 0.0, "star_train": 0.0},
}
# As published: users left with the wrong agent, where only a finished task frees them.
PUBLISHED_STUCK = {"sgd_train": 32.6, "star_train": 39.6}
# As published: messages that a lock took to the wrong agent.
PUBLISHED_MISLED_BY_LOCK = {"sgd_train": 4.8, "star_train": 3.9}

POINTS_MAX = 0.5
SAMPLE = 40


@dataclass
class Oracle:
    """What the labels say, counted over user turns."""

    turns: int = 0
    # No agent had the conversation yet.
    first: int = 0
    # The topic was another agent's than the one that had the conversation.
    switched: int = 0
    # The agent before had asked something.
    locked: int = 0
    # It had, and the message was for another.
    misled: int = 0
    # The user was with the wrong agent, where only a finished task frees.
    stuck: int = 0
    # No agent had the conversation, where only a finished task frees.
    stuck_free: int = 0

    def saved(self, policy: str, switch: str) -> float:
        """Return the share of user turns without a supervisor call."""
        match policy, switch:
            case "sticky", "supervisor":
                return 1 - (self.first + self.switched) / self.turns
            case "sticky", "agent":
                return 1 - self.first / self.turns
            case "sticky", "stuck":
                return 1 - self.stuck_free / self.turns
            case "follow_up", _:
                return self.locked / self.turns
            case _:
                return 0.0


def ask_oracle(path: Path, limit: int | None = None) -> Oracle:
    """Count what the labels of a corpus say."""
    oracle = Oracle()
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in itertools.islice(lines, limit):
            _count(json.loads(line)["turns"], oracle)
    return oracle


def _count(turns: list[dict], oracle: Oracle) -> None:
    active = waiting = kept = None
    owner = None
    for turn in turns:
        if turn["speaker"] == "user":
            owner = turn["agent"]
            oracle.turns += 1
            oracle.first += active is None
            oracle.switched += active is not None and owner != active
            oracle.locked += waiting is not None
            oracle.misled += waiting is not None and owner != waiting
            oracle.stuck_free += kept is None
            oracle.stuck += kept is not None and owner != kept
            kept = kept or owner
            active = owner or active
        else:
            waiting = turn["agent"] if turn["requires_follow_up"] else None
            if turn["task_complete"] and kept == owner:
                kept = None


def options(corpora, name, policy, switch):
    """Return the options of a replay over a registry made for a corpus."""
    agents = ("--corpus", name, "--corpus-agents", corpora.agents)
    return (*agents, "--policy", policy, "--switch", switch)


@pytest.mark.dialogues
@pytest.mark.parametrize("name", CORPORA)
def test_oracle_of_these_tests_is_the_published_one(corpora, name):
    """Otherwise the other tests would hold the service to figures of their own making."""
    oracle = ask_oracle(corpora.file(name))
    for (policy, switch), published in PUBLISHED.items():
        assert 100 * oracle.saved(policy, switch) == pytest.approx(published[name], abs=0.05)
    assert 100 * oracle.stuck / oracle.turns == pytest.approx(PUBLISHED_STUCK[name], abs=0.05)
    misled = 100 * oracle.misled / oracle.turns
    assert misled == pytest.approx(PUBLISHED_MISLED_BY_LOCK[name], abs=0.05)


@pytest.mark.dialogues
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CORPORA)
@pytest.mark.parametrize(
    ("policy", "switch"), [*PUBLISHED, ("sticky", "stuck"), ("follow_up", "agent")]
)
def test_policy_saves_on_a_sample_what_the_oracle_says(corpora, replay, name, policy, switch):
    """To the turn: the service, its store and its registry do what the labels call for."""
    path = corpora.file(name)
    oracle = ask_oracle(path, SAMPLE)
    found = replay([path], *options(corpora, name, policy, switch), "--limit", SAMPLE)
    assert found["user_turns"] == oracle.turns
    assert found["errors"] == found["bad_lines"] == found["handoffs_refused"] == 0
    assert found["supervisor_calls_saved"] == pytest.approx(oracle.saved(policy, switch), abs=1e-6)
    match policy, switch:
        case "sticky", "stuck":
            assert found["stuck_turns"] == oracle.stuck
        case "sticky", _:
            assert found["misrouted_turns"] == oracle.switched
        case "follow_up", _:
            assert found["misrouted_turns"] == oracle.misled
        case _:
            assert found["misrouted_turns"] == 0


@pytest.mark.dialogues
@pytest.mark.torture
@pytest.mark.parametrize("name", CORPORA)
@pytest.mark.parametrize(("policy", "switch"), [*PUBLISHED, ("sticky", "stuck")])
def test_policy_saves_on_all_dialogues_what_was_published(corpora, replay, name, policy, switch):
    """Every dialogue of the corpus, over SQLite with synchronous=FULL."""
    path = corpora.file(name)
    oracle = ask_oracle(path)
    found = replay([path], *options(corpora, name, policy, switch))
    assert found["user_turns"] == oracle.turns
    assert found["errors"] == found["bad_lines"] == 0
    assert found["supervisor_calls_saved"] == pytest.approx(oracle.saved(policy, switch), abs=1e-6)
    if (policy, switch) in PUBLISHED:
        published = PUBLISHED[policy, switch][name]
        assert 100 * found["supervisor_calls_saved"] == pytest.approx(published, abs=POINTS_MAX)
    else:
        assert 100 * found["stuck_turns"] / found["user_turns"] == pytest.approx(
            PUBLISHED_STUCK[name], abs=POINTS_MAX
        )


@pytest.mark.dialogues
@pytest.mark.parametrize("name", ["massive_es_train", "clinc150_train"])
def test_single_messages_all_go_to_the_supervisor(corpora, replay, name):
    """A session's first message has no agent yet, in Spanish as in English."""
    found = replay([corpora.file(name)], *options(corpora, name, "sticky", "agent"), "--limit", 100)
    assert (found["dialogues"], found["user_turns"], found["errors"]) == (100, 100, 0)
    assert found["supervisor_calls_saved"] == 0
    assert found["misrouted"] == 0
