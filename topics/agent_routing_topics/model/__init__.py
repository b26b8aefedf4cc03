"""The model that ships: pure functions of its parameters, the registry and the question."""

from __future__ import annotations

from agent_routing_topics.model.agent_index import GiveWay, go_on
from agent_routing_topics.model.parameters import parse_parameters, shipped_parameters
from agent_routing_topics.model.trained_model import Kept, TrainedModel


def load_word_model(give_way: GiveWay = go_on, kept: Kept | None = None) -> TrainedModel:
    """Return the word model that ships. Reads its files: once in a process is enough.

    give_way: called again and again while a registry is taken in. kept: what was computed of
    registries before.
    """
    return TrainedModel(parse_parameters(shipped_parameters()), give_way=give_way, kept=kept)
