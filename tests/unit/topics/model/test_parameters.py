"""The file of trained parameters: its checks, its content, and its reproduction."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from agent_routing_topics.model import load_word_model
from agent_routing_topics.model.compiled_forest import compiled
from agent_routing_topics.model.parameters import (
    FORMAT,
    TREE_DEPTH_MAX,
    Forest,
    Parameters,
    ParametersInvalid,
    Tree,
    parse_parameters,
    permissive_parameters,
    shipped_parameters,
)
from agent_routing_topics.model.trained_model import TrainedModel

ROOT = Path(__file__).parents[4]
SHARE_ALIKE = ROOT / "topics" / "agent_routing_topics" / "model" / "sgd"
needs_share_alike = pytest.mark.skipif(
    not SHARE_ALIKE.is_dir(),
    reason="model/sgd was taken away, as it may be",
)
SHIPPED = parse_parameters(shipped_parameters())
PERMISSIVE = parse_parameters(permissive_parameters())


def known_as(token: bytes) -> bytes:
    """The parameters that ship, with one more token of their first group of senses."""
    first = replace(SHIPPED.groups[0], tokens={"x": token})
    return encoded(groups=(first, *SHIPPED.groups[1:]))


def encoded(**changed: object) -> bytes:
    """The parameters that ship, with some fields changed."""
    return msgspec.json.encode(msgspec.structs.replace(SHIPPED, **changed))


@needs_share_alike
def test_nothing_share_alike_is_in_the_permissive_file():
    """SGD's results are in a separate file under its licence, used if it is present."""
    assert PERMISSIVE.trained_on == ("star", "massive", "clinc150", "field")
    assert SHIPPED.trained_on == ("star", "massive", "clinc150", "sgd", "field")
    assert shipped_parameters() == (SHARE_ALIKE / "parameters.json").read_bytes()


def test_agents_of_the_training_are_known():
    """A file may list them; without a list, all agents of its corpora were used."""
    unnamed = TrainedModel(msgspec.structs.replace(SHIPPED, agents=()))
    assert unnamed.has_seen("star", "any")
    assert not unnamed.has_seen("other", "hotels")
    named = TrainedModel(msgspec.structs.replace(SHIPPED, agents=("star:hotel",)))
    assert named.has_seen("star", "hotel")
    assert not named.has_seen("star", "bank")
    assert not named.has_seen("", "hotel")


@needs_share_alike
def test_share_alike_parameters_say_their_licence():
    """Next to the file and in the distribution's metadata, with the source's authors."""
    licence = (SHARE_ALIKE / "LICENSE").read_text("utf-8")
    assert licence.startswith("Creative Commons Attribution-ShareAlike 4.0 International")
    assert "Section 8" in licence
    said = (SHARE_ALIKE / "README.md").read_text("utf-8")
    for needed in ("CC BY-SA 4.0", "arXiv:1909.05855", "What was changed", f"`{FORMAT}-sgd-`"):
        assert needed in said
    project = tomllib.loads((ROOT / "topics/pyproject.toml").read_text("utf-8"))["project"]
    assert project["license"] == "Apache-2.0 AND CC-BY-SA-4.0"
    assert "agent_routing_topics/model/sgd/LICENSE" in project["license-files"]


def test_service_does_without_the_share_alike_folder(tmp_path):
    """A distributor may remove it; the permissive parameters are used then."""
    package = tmp_path / "agent_routing_topics"
    shutil.copytree(
        SHARE_ALIKE.parents[1],
        package,
        ignore=lambda folder, _: {"sgd"} if Path(folder).name == "model" else set(),
    )
    asked = """
from agent_routing_topics.model import load_word_model
from agent_routing_topics.model.agent_index import AgentText
from routing_service.topics.topic_detector import TopicQuestion

model = load_word_model()
described = {"hotels": "Finds hotel rooms", "banks": "Account balance and transfers"}
agents = [AgentText(name, (name,), (said,)) for name, said in described.items()]
question = TopicQuestion("what is my account balance", candidate_ids=tuple(described))
best, _ = model.for_agents(agents).judge(question).ranked[0]
import agent_routing_topics as topics
print(topics.__file__, model.version, best)
"""
    done = subprocess.run(
        [sys.executable, "-c", asked],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    found = f"{package / '__init__.py'} {PERMISSIVE.version} banks"
    assert done.stdout.split("\n")[0] == found


@pytest.mark.parametrize(
    ("parameters", "before"),
    [
        pytest.param(SHIPPED, "-sgd", marks=needs_share_alike, id="sgd"),
        pytest.param(PERMISSIVE, "", id="permissive"),
    ],
)
def test_version_names_the_content(parameters, before):
    """Two files with one version have the same numbers; logs and events name it."""
    unnamed = msgspec.json.encode(msgspec.structs.replace(parameters, version=""))
    digest = hashlib.sha256(unnamed).hexdigest()[:10]
    assert parameters.version == f"{FORMAT}{before}-{digest}"
    assert load_word_model().version == SHIPPED.version


@pytest.mark.parametrize("content", [shipped_parameters(), permissive_parameters()])
def test_file_is_small(content):
    """It is in every wheel and image, and one is read at every start."""
    assert len(content) < 1792 * 1024


@needs_share_alike
def test_manner_is_learned_of_several_corpora():
    """The wording of one corpus alone would mislead on others."""
    assert len(SHIPPED.manner) > len(PERMISSIVE.manner) > 500
    assert len(SHIPPED.manner_asked) > len(PERMISSIVE.manner_asked) > 400


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no topic parameters"),
        (b"\xff", "no topic parameters"),
        (b"[]", "no topic parameters"),
        (encoded(format=1), "of format 1; this release reads format 3"),
        (encoded(fit={"other": 1.0}), "whose fit features are not this release's"),
        (encoded(target={}), "whose target features are not this release's"),
        (known_as(b""), 'the senses of "x" are not among those of'),
        (known_as(bytes((9, 255, 130))), 'the senses of "x" are not among those of'),
        (known_as(bytes((9, 1))), 'the senses of "x" are not among those of'),
    ],
)
def test_file_that_does_not_fit_is_refused(content, said):
    """Its verdicts would look valid."""
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
    """A cycle would block the first message."""
    with pytest.raises(ParametersInvalid, match="leads nowhere"):
        parse_parameters(encoded(choice=msgspec.structs.replace(SHIPPED.choice, trees=(tree,))))


def test_temperature_that_is_not_above_nothing_is_refused():
    """Scores are divided by it."""
    cold = msgspec.structs.replace(SHIPPED.temperatures, later=(1.0, 0.0, 1.0))
    with pytest.raises(ParametersInvalid, match="temperature"):
        parse_parameters(encoded(temperatures=cold))


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
        parse_parameters(encoded(choice=msgspec.structs.replace(SHIPPED.choice, trees=(tree,))))


def walked(forest: Forest, row: list[float]) -> float:
    """Return the score by walking the trees step by step."""
    odds = 0.0
    for tree in forest.trees:
        node = 0
        while tree.feature[node] >= 0:
            goes_left = row[tree.feature[node]] <= tree.bound[node]
            node = (tree.left if goes_left else tree.right)[node]
        odds += tree.bound[node]
    return odds


def test_compiled_forest_says_what_its_trees_say():
    """Also at the very bounds, and for a tree that is a leaf or as deep as may be."""
    chance = random.Random(5)
    more = (Tree((-1,), (0.25,), (0,), (0,)), chain(TREE_DEPTH_MAX))
    for forest in (
        SHIPPED.choice,
        msgspec.structs.replace(SHIPPED.choice, trees=more),
        msgspec.structs.replace(SHIPPED.choice, trees=()),
    ):
        score = compiled(forest)
        bounds = [bound for tree in forest.trees for bound in tree.bound] or [0.0]
        for _ in range(50):
            row = [
                chance.choice((chance.choice(bounds), chance.uniform(-3, 5)))
                for _ in forest.features
            ]
            assert score(row) == pytest.approx(walked(forest, row), abs=1e-12)


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
