"""The numbers that were learned: their file, its checks, and the trees as functions."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import msgspec
import pytest

from agent_routing_topics import model as package
from agent_routing_topics.model.forest import Tree, compiled
from agent_routing_topics.model.option_rows import MEANING_FEATURES, WORD_FEATURES
from agent_routing_topics.model.parameters import (
    FILE,
    FORMAT,
    Parameters,
    ParametersInvalid,
    parse_parameters,
    shipped_parameters,
)

ROOT = Path(__file__).parents[4]
CONTENT = files(package).joinpath(FILE).read_bytes()
SHIPPED = shipped_parameters()


def test_file_is_small_and_names_what_trained():
    """One file under the project's licence: share-alike data taught it nothing."""
    assert len(CONTENT) <= 1_500_000
    assert SHIPPED.format == FORMAT
    assert SHIPPED.version.startswith(f"{FORMAT}-")
    assert set(SHIPPED.trained_on) == {"field", "star", "massive", "clinc150"}
    assert not [token for token in SHIPPED.goes_on if len(token) > 60]


def changed(**fields: object) -> bytes:
    """The file with other fields."""
    return msgspec.json.encode(msgspec.structs.replace(SHIPPED, **fields))


def with_tree(tree: Tree) -> bytes:
    """The file with another first tree of words."""
    trees = (tree, *SHIPPED.words.trees[1:])
    return changed(words=msgspec.structs.replace(SHIPPED.words, trees=trees))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{}", "damaged"),
        (CONTENT[:-500], "damaged"),
        (changed(format=FORMAT + 1), f"have format {FORMAT + 1}"),
        (changed(words=SHIPPED.meaning), "words trees are of other features"),
        (changed(goes_on_meaning=(0.5,)), "a number that is none"),
        (CONTENT.replace(b'"temperatures":[', b'"temperatures":[1e999,', 1), "damaged"),
    ],
)
def test_file_that_does_not_fit_is_refused(content, said):
    """Whole, with what is wrong: words do not judge with half a file."""
    with pytest.raises(ParametersInvalid, match=said):
        parse_parameters(content)


LEAF = Tree((), (), (), (), (0.5,))
SPLIT = Tree((0,), (0.5,), (-1,), (-2,), (1.0, 2.0))


@pytest.mark.parametrize(
    "tree",
    [
        Tree((0,), (0.5,), (0,), (-2,), (1.0, 2.0)),
        Tree((0,), (0.5,), (-1,), (-1,), (1.0, 2.0)),
        Tree((0,), (0.5,), (-1,), (-3,), (1.0, 2.0)),
        Tree((len(WORD_FEATURES),), (0.5,), (-1,), (-2,), (1.0, 2.0)),
        Tree((0,), (0.5,), (-1,), (-2,), (1.0,)),
        Tree((-1,), (0.5,), (-1,), (-2,), (1.0, 2.0)),
    ],
    ids=["circle", "leaf twice", "no such leaf", "no such number", "a leaf missing", "negative"],
)
def test_tree_that_leads_nowhere_is_refused(tree):
    """It would be compiled to a function that never ends, or fails at a message."""
    with pytest.raises(ParametersInvalid, match="a tree of words is damaged"):
        parse_parameters(with_tree(tree))


def test_trees_as_functions_say_what_the_trees_say():
    """The sum of the leaves that a row comes to."""
    assert parse_parameters(with_tree(LEAF)).words.trees[0] == LEAF
    assert compiled([LEAF, SPLIT])([0.5]) == 1.5
    assert compiled([LEAF, SPLIT])([0.6]) == 2.5
    chance = random.Random(1)
    trees = SHIPPED.meaning.trees[:40]
    score = compiled(trees)
    for _ in range(50):
        row = [chance.uniform(-1, 3) for _ in MEANING_FEATURES]
        assert score(row) == pytest.approx(sum(walked(tree, row) for tree in trees))


def walked(tree: Tree, row: list[float]) -> float:
    """The leaf that a row comes to, node by node."""
    node = 0
    while node >= 0:
        goes_left = row[tree.features[node]] <= tree.bounds[node]
        node = (tree.lefts if goes_left else tree.rights)[node]
    return tree.leaves[-1 - node]


def test_parameters_survive_their_file():
    """What is written is read again, number by number."""
    assert msgspec.json.decode(msgspec.json.encode(SHIPPED), type=Parameters) == SHIPPED


def test_training_without_the_corpora_says_what_is_missing():
    """It needs files that are not the project's own."""
    done = subprocess.run(
        [sys.executable, "scripts/train_topics.py", "--check"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "ROUTING_DIALOGUES"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "set ROUTING_DIALOGUES" in done.stdout
