"""Is this message for another agent? The question, the verdict, and what answers it.

Owns: the interface and its models. Must not know: sessions' rules, thresholds, stores, clocks.
Rule: a detector says how sure it is; what follows from that is decided elsewhere.
"""

from __future__ import annotations

from routing_service.topics.parameters import parse_parameters, shipped_parameters
from routing_service.topics.topic_detector import TopicModel
from routing_service.topics.trained_model import TrainedModel


def load_topic_model() -> TopicModel:
    """Return the model that ships. Reads its files: once in a process is enough."""
    return TrainedModel(parse_parameters(shipped_parameters()))
