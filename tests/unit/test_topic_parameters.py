"""The file of trained parameters: what is refused, what ships, and that it can be made again."""

from __future__ import annotations

import hashlib
import math
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from routing_service.topics import load_topic_model
from routing_service.topics.compiled_forest import compiled
from routing_service.topics.parameters import (
    TREE_DEPTH_MAX,
    Forest,
    Parameters,
    ParametersInvalid,
    Tree,
    parse_parameters,
    shipped_parameters,
)
from routing_service.topics.trained_model import TrainedModel

ROOT = Path(__file__).parents[2]
SHIPPED = parse_parameters(shipped_parameters())


def known_as(token: bytes) -> bytes:
    """The parameters that ship, with one more token of their first group of senses."""
    first = replace(SHIPPED.groups[0], tokens={"x": token})
    return encoded(groups=(first, *SHIPPED.groups[1:]))


def encoded(**changed: object) -> bytes:
    """The parameters that ship, with some fields changed."""
    return msgspec.json.encode(msgspec.structs.replace(SHIPPED, **changed))


def test_what_ships_was_trained_on_what_may_ship():
    """SGD is share-alike: nothing that is made of it is in the file."""
    assert SHIPPED.trained_on == ("star", "massive", "clinc150")


def test_agents_of_the_training_are_known():
    """A file may name them; one that names none had all of its corpora."""
    unnamed = TrainedModel(msgspec.structs.replace(SHIPPED, agents=()))
    assert unnamed.has_seen("star", "any")
    assert not unnamed.has_seen("sgd", "hotels")
    named = TrainedModel(msgspec.structs.replace(SHIPPED, agents=("star:hotel",)))
    assert named.has_seen("star", "hotel")
    assert not named.has_seen("star", "bank")
    assert not named.has_seen("", "hotel")


def test_version_names_the_content():
    """Two files with one version have the same numbers; logs and events name it."""
    unnamed = msgspec.json.encode(msgspec.structs.replace(SHIPPED, version=""))
    assert SHIPPED.version == f"{SHIPPED.format}-{hashlib.sha256(unnamed).hexdigest()[:10]}"
    assert load_topic_model().version == SHIPPED.version


def test_file_is_small():
    """It is in every wheel and image, and read at every start."""
    assert len(shipped_parameters()) < 1024 * 1024


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no topic parameters"),
        (b"\xff", "no topic parameters"),
        (b"[]", "no topic parameters"),
        (encoded(format=1), "of format 1; this release reads format 2"),
        (encoded(fit={"other": 1.0}), "whose fit features are not this release's"),
        (encoded(target={}), "whose target features are not this release's"),
        (known_as(b""), 'the senses of "x" are not among those of'),
        (known_as(bytes((9, 255, 130))), 'the senses of "x" are not among those of'),
        (known_as(bytes((9, 1))), 'the senses of "x" are not among those of'),
    ],
)
def test_file_that_does_not_fit_is_refused(content, said):
    """It would give verdicts that look like any other."""
    with pytest.raises(ParametersInvalid, match=said):
        parse_parameters(content)


@pytest.mark.parametrize(
    "tree",
    [
        Tree((), (), (), ()),
        Tree((0,), (0.5,), (0,), (0,)),
        Tree((0, -1), (0.5, 0.1), (1, 0), (2, 0)),
        Tree((999, -1, -1), (0.5, 0.1, 0.2), (1, 0, 0), (2, 0, 0)),
        Tree((0, -1), (0.5,), (1, 0), (1, 0)),
    ],
    ids=["empty", "circle", "beyond", "feature", "lengths"],
)
def test_tree_that_leads_nowhere_is_refused(tree):
    """A circle would hang the first message that is judged by it."""
    with pytest.raises(ParametersInvalid, match="leads nowhere"):
        parse_parameters(encoded(stay=msgspec.structs.replace(SHIPPED.stay, trees=(tree,))))


def chain(levels: int) -> Tree:
    """A tree of which every left branch is a leaf."""
    feature, bound, left, right = [], [], [], []
    for level in range(levels - 1):
        feature += [0, -1]
        bound += [float(-level), 1.0]
        left += [2 * level + 1, 0]
        right += [2 * level + 2, 0]
    return Tree((*feature, -1), (*bound, 2.0), (*left, 0), (*right, 0))


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        (chain(TREE_DEPTH_MAX + 1), f"a tree of {TREE_DEPTH_MAX + 1} levels"),
        (Tree((0, -1), (0.5, 0.1), (1, 0), (1, 0)), "grows together"),
        (Tree((0, 0, -1), (0.5, 0.1, 0.2), (1, 2, 0), (2, 2, 0)), "grows together"),
    ],
    ids=["deep", "one child twice", "two ways"],
)
def test_tree_that_cannot_be_compiled_is_refused(tree, said):
    """Shared branches would be written out as often as they are reached."""
    with pytest.raises(ParametersInvalid, match=said):
        parse_parameters(encoded(stay=msgspec.structs.replace(SHIPPED.stay, trees=(tree,))))


def walked(forest: Forest, row: list[float]) -> float:
    """The probability as the trees have it, one step after the other."""
    odds = forest.base
    for tree in forest.trees:
        node = 0
        while tree.feature[node] >= 0:
            goes_left = row[tree.feature[node]] <= tree.bound[node]
            node = (tree.left if goes_left else tree.right)[node]
        odds += tree.bound[node]
    return 1 / (1 + math.exp(-odds))


def test_compiled_forest_says_what_its_trees_say():
    """Also at the very bounds, and for a tree that is a leaf or as deep as may be."""
    chance = random.Random(5)
    more = (Tree((-1,), (0.25,), (0,), (0,)), chain(TREE_DEPTH_MAX))
    for forest in (
        SHIPPED.stay,
        SHIPPED.opening,
        msgspec.structs.replace(SHIPPED.stay, trees=more),
        msgspec.structs.replace(SHIPPED.stay, trees=()),
    ):
        probability = compiled(forest)
        bounds = [bound for tree in forest.trees for bound in tree.bound] or [0.0]
        for _ in range(50):
            row = [
                chance.choice((chance.choice(bounds), chance.uniform(-3, 5)))
                for _ in forest.features
            ]
            assert probability(row) == pytest.approx(walked(forest, row), abs=1e-12)


def test_parameters_survive_their_file():
    """What is written is what is read."""
    assert parse_parameters(msgspec.json.encode(SHIPPED)) == SHIPPED
    assert isinstance(SHIPPED, Parameters)


@pytest.mark.torture
@pytest.mark.dialogues
def test_training_makes_the_file_that_ships_byte_for_byte():
    """In the pinned environment, which is installed first; some minutes."""
    folder = Path(os.environ.get("ROUTING_DIALOGUES", "../shared/data/dialogues"))
    if not (ROOT / folder / "agents.json").is_file():
        pytest.skip(f"no corpora in {folder}; set ROUTING_DIALOGUES")
    done = subprocess.run(
        [sys.executable, "scripts/train_topics.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "byte for byte" in done.stdout
