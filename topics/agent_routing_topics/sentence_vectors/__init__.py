"""Sentence vectors: the multilingual Universal Sentence Encoder in NumPy.

Owns the weights, their check and the two steps from a text to its vector. Nothing is downloaded.
"""

from __future__ import annotations

from agent_routing_topics.sentence_vectors.encoder import DIMENSIONS, Encoder
from agent_routing_topics.sentence_vectors.weight_files import (
    WeightsDamaged,
    load_encoder,
    model_sha256,
)

__all__ = ["DIMENSIONS", "Encoder", "WeightsDamaged", "load_encoder", "model_sha256"]
