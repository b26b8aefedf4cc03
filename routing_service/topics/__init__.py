"""Is this message for another agent? The question, the verdict, and what answers it.

Owns: the interface and its models. Must not know: sessions' rules, thresholds, stores, clocks.
Rule: a detector says how sure it is; what follows from that is decided elsewhere.
"""

from __future__ import annotations

from routing_service.topics.agent_index import GiveWay, go_on
from routing_service.topics.parameters import parse_parameters, shipped_parameters
from routing_service.topics.topic_detector import TopicModel
from routing_service.topics.trained_model import TrainedModel


def load_topic_model(give_way: GiveWay = go_on) -> TopicModel:
    """Return the model that ships. Reads its files: once in a process is enough.

    give_way: called again and again while a registry is taken in.
    """
    return TrainedModel(parse_parameters(shipped_parameters()), give_way=give_way)
