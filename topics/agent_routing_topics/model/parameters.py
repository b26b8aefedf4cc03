"""The trained parameters in a file: its form and its checks.

Rule: a file of another form, or made for other features than this code has, is refused. Its
verdicts would look like any other.
"""

from __future__ import annotations

from importlib.resources import files
from itertools import pairwise
from typing import Final

import msgspec

from agent_routing_topics.model.agent_index import FIT_WEIGHTS
from agent_routing_topics.model.choice_features import CHOICE_FEATURES
from agent_routing_topics.model.dialogue_features import TARGET_FEATURES
from agent_routing_topics.model.word_knowledge import SenseGroup

FORMAT: Final = 3
TREE_DEPTH_MAX: Final = 32
"""Levels of a tree, its leaves among them: those that are learned have eight. Python compiles no
expression of more than some two hundred."""
_FILE: Final = "parameters.json"
_SHARE_ALIKE: Final = "sgd"
"""The folder of what is made of share-alike data: under its own licence, and removed as one."""


class ParametersInvalid(Exception):
    """A file of parameters that cannot be used; the message says why."""


class Tree(msgspec.Struct, frozen=True):
    """A decision tree as lists, one entry a node. The first node is the root.

    feature: what is compared, -1 at a leaf. bound: up to it the way goes left; at a leaf, its
    value. left, right: where the way goes on, always further down the lists.
    """

    feature: tuple[int, ...]
    bound: tuple[float, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]


class Forest(msgspec.Struct, frozen=True):
    """Trees whose leaves add up to an option's score. features: named, in order."""

    features: tuple[str, ...]
    trees: tuple[Tree, ...]


class Temperatures(msgspec.Struct, frozen=True):
    """What scores are divided by, so that the probabilities mean what they say.

    Of openings and of later messages; each where agents have few examples in the mean, some, and
    many. bounds: the means from which on there are some, and many.
    """

    bounds: tuple[float, float]
    opening: tuple[float, float, float]
    later: tuple[float, float, float]

    def of(self, examples_mean: float, *, is_opening: bool) -> float:
        """Return the temperature of a message. examples_mean: of the options' agents."""
        place = sum(examples_mean >= bound for bound in self.bounds)
        return (self.opening if is_opening else self.later)[place]


class Parameters(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that was learned. words: how much each word tells.

    trained_on: the corpora. agents: those of theirs that training had, as corpus:id; none named:
    all of them. manner, manner_asked: by phrase of a message, and of the end of the answer before
    it, how much it speaks for staying.
    """

    format: int
    version: str
    trained_on: tuple[str, ...]
    fit: dict[str, float]
    target: dict[str, float]
    choice: Forest
    temperatures: Temperatures
    manner: dict[str, float]
    manner_asked: dict[str, float]
    words: dict[str, float]
    groups: tuple[SenseGroup, ...]
    agents: tuple[str, ...] = ()


def shipped_parameters() -> bytes:
    """Return the file that messages are judged by.

    The share-alike one, which has learned most, where it is there; else the permissive one.
    """
    share_alike = files(__package__).joinpath(_SHARE_ALIKE, _FILE)
    return share_alike.read_bytes() if share_alike.is_file() else permissive_parameters()


def permissive_parameters() -> bytes:
    """Return the file that nothing share-alike went into."""
    return files(__package__).joinpath(_FILE).read_bytes()


def parse_parameters(content: bytes) -> Parameters:
    """Read a file of parameters. Raises ParametersInvalid."""
    try:
        parameters = msgspec.json.decode(content, type=Parameters)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ParametersInvalid(f"no topic parameters: {error}; make topics writes them") from None
    if parameters.format != FORMAT:
        raise ParametersInvalid(
            f"topic parameters of format {parameters.format}; this release reads format {FORMAT}: "
            "make topics writes it"
        )
    for name, there, wanted in (
        ("fit", tuple(parameters.fit), FIT_WEIGHTS),
        ("target", tuple(parameters.target), TARGET_FEATURES),
        ("choice", parameters.choice.features, CHOICE_FEATURES),
    ):
        if there != wanted:
            raise ParametersInvalid(
                f"topic parameters whose {name} features are not this release's; "
                "make topics trains them anew"
            )
    check_choice(parameters.choice, parameters.temperatures)
    for group in parameters.groups:
        _check_group(group)
    return parameters


def check_choice(forest: Forest, temperatures: Temperatures) -> None:
    """Refuse trees that lead nowhere, and temperatures that are not above 0."""
    for tree in forest.trees:
        _check_tree(tree, len(forest.features))
    if min(*temperatures.opening, *temperatures.later) <= 0:
        raise ParametersInvalid("topic parameters: a temperature that is not above 0")


def _check_tree(tree: Tree, features: int) -> None:
    """Refuse a tree that leads nowhere, in a circle, or too deep, or together again."""
    size = len(tree.feature)
    lists = (tree.feature, tree.bound, tree.left, tree.right)
    is_tree = size > 0 and all(len(one) == len(other) for one, other in pairwise(lists))
    if not is_tree or not all(
        tree.feature[node] == -1
        or (
            0 <= tree.feature[node] < features
            and node < tree.left[node] < size
            and node < tree.right[node] < size
        )
        for node in range(size)
    ):
        raise ParametersInvalid("topic parameters: a tree that leads nowhere")
    depth = [1] + [0] * (size - 1)
    for node in range(size):
        if tree.feature[node] >= 0:
            for below in (tree.left[node], tree.right[node]):
                if depth[below]:
                    raise ParametersInvalid("topic parameters: a tree that grows together again")
                depth[below] = depth[node] + 1
    if max(depth) > TREE_DEPTH_MAX:
        raise ParametersInvalid(
            f"topic parameters: a tree of {max(depth)} levels; {TREE_DEPTH_MAX} at most"
        )


def _check_group(group: SenseGroup) -> None:
    """Refuse tokens whose senses are not the group's: they would be other agents' tomorrow."""
    senses = len(group.biases)
    for token, known in group.tokens.items():
        if len(known) % 2 == 0 or any(sense >= senses for sense in known[1::2]):
            raise ParametersInvalid(
                f'topic parameters: the senses of "{token}" are not among those of {group.name}'
            )
