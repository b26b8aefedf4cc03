"""The numbers that were learned, and the check of their file.

Rule: a file that is damaged or of another form is refused whole, with what is wrong.
"""

from __future__ import annotations

import hashlib
import math
from importlib.resources import files
from typing import Final

import msgspec

from agent_routing_topics.model.forest import Tree
from agent_routing_topics.model.option_rows import MEANING_FEATURES, WORD_FEATURES

FORMAT: Final = 4
FILE: Final = "parameters.json"
BINS: Final = 20
PAIR: Final = 3 * 512 + 1


class ParametersInvalid(Exception):
    """A file of parameters that cannot be used; the message says why."""


class Prior(msgspec.Struct, frozen=True):
    """How sure verdicts are in conversations of registries that did not train.

    shares: of messages, by bin of sureness; right: the share of each bin that is right.
    """

    shares: tuple[float, ...]
    right: tuple[float, ...]


EXAMPLES_MANY: Final = 12.0
"""Examples an agent, in the mean, from which on the second prior holds."""


class Forest(msgspec.Struct, frozen=True):
    """Trees over named numbers.

    temperatures: what scores are divided by, at first messages, soon after a change, and later.
    priors: of verdicts for registries with few examples, and with EXAMPLES_MANY an agent or more.
    """

    features: tuple[str, ...]
    trees: tuple[Tree, ...]
    temperatures: tuple[float, float, float]
    priors: tuple[Prior, Prior]


class Parameters(msgspec.Struct, frozen=True):
    """All that was learned. shares: of messages at large, by stem. encoder: names the weights.

    goes_on: by token; goes_on_meaning: of pair_of(). trained_on: names of corpora.
    """

    format: int
    version: str
    trained_on: tuple[str, ...]
    encoder: str
    shares: dict[str, float]
    goes_on: dict[str, float]
    goes_on_meaning: tuple[float, ...]
    words: Forest
    meaning: Forest


def shipped_parameters() -> Parameters:
    """Read the file that ships. Raises ParametersInvalid."""
    return parse_parameters(files(__package__).joinpath(FILE).read_bytes())


def parse_parameters(content: bytes) -> Parameters:
    """Read and check parameters. Raises ParametersInvalid."""
    try:
        found = msgspec.json.decode(content, type=Parameters)
    except msgspec.DecodeError as error:
        raise ParametersInvalid(f"the topic model's parameters are damaged: {error}") from error
    if found.format != FORMAT:
        raise ParametersInvalid(
            f"the parameters of the topic model have format {found.format}, this release reads "
            f"{FORMAT}; install agent-routing-topics again"
        )
    for name, forest, features in (
        ("words", found.words, WORD_FEATURES),
        ("meaning", found.meaning, MEANING_FEATURES),
    ):
        if forest.features != features:
            raise ParametersInvalid(f"the {name} trees are of other features")
        if not all(tree.is_sound(len(features)) for tree in forest.trees):
            raise ParametersInvalid(f"a tree of {name} is damaged")
        for prior in forest.priors:
            if len(prior.shares) != BINS or len(prior.right) != BINS:
                raise ParametersInvalid(f"a prior of {name} has not {BINS} bins")
    numbers = [*found.goes_on_meaning, *found.goes_on.values(), *found.shares.values()]
    for forest in (found.words, found.meaning):
        numbers += forest.temperatures
        numbers += [each for prior in forest.priors for each in (*prior.shares, *prior.right)]
        numbers += [value for tree in forest.trees for value in (*tree.bounds, *tree.leaves)]
    if len(found.goes_on_meaning) != PAIR or not all(map(math.isfinite, numbers)):
        raise ParametersInvalid("the parameters of the topic model have a number that is none")
    return found


def version_of(content: bytes) -> str:
    """Return what names the parameters: the format and the start of the content's SHA-256."""
    return f"{FORMAT}-{hashlib.sha256(content).hexdigest()[:8]}"
