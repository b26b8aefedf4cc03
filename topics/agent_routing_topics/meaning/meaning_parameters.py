"""What was learned of vectors, as it is in a file next to the word model's parameters."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

import msgspec

from agent_routing_topics.model.choice_features import MEANING_FEATURES
from agent_routing_topics.model.parameters import (
    Forest,
    ParametersInvalid,
    Temperatures,
    check_choice,
)

FORMAT: Final = 1
_FILE: Final = "meaning.json"
_WORDS: Final = "agent_routing_topics.model"
_SHARE_ALIKE: Final = "sgd"

GOES_ON_BLOCKS: Final = 4
"""The message, the last answer, their product, and the message's with the user's last one."""

GOES_ON_REST: Final = ("to_answer", "to_before", "follow_up", "complete", "manner", "manner_asked")


class GoesOn(msgspec.Struct, frozen=True):
    """What speaks for a message's going on with the active agent, any agent.

    vectors: GOES_ON_BLOCKS lists, a weight a number of a vector. rest: by GOES_ON_REST.
    """

    base: float
    vectors: tuple[tuple[float, ...], ...]
    rest: tuple[float, ...]


class MeaningParameters(msgspec.Struct, frozen=True):
    """Everything that was learned. encoder: the SHA-256 that names the weights of the encoder."""

    format: int
    version: str
    encoder: str
    goes_on: GoesOn
    choice: Forest
    temperatures: Temperatures


def shipped_meaning() -> MeaningParameters | None:
    """Read the file that goes with the word model that ships; None where there is none.

    Raises ParametersInvalid.
    """
    folder = files(_WORDS)
    share_alike = folder.joinpath(_SHARE_ALIKE)
    file = (share_alike if share_alike.is_dir() else folder).joinpath(_FILE)
    return parse_meaning(file.read_bytes()) if file.is_file() else None


def parse_meaning(content: bytes) -> MeaningParameters:
    """Read a file. Raises ParametersInvalid."""
    try:
        found = msgspec.json.decode(content, type=MeaningParameters)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ParametersInvalid(f"no parameters of meaning: {error}") from None
    if found.format != FORMAT or found.choice.features != MEANING_FEATURES:
        raise ParametersInvalid("parameters of meaning of another release; make topics writes them")
    if len(found.goes_on.vectors) != GOES_ON_BLOCKS:
        raise ParametersInvalid("parameters of meaning: goes_on has another number of blocks")
    check_choice(found.choice, found.temperatures)
    return found
