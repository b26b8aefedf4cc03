"""Chooses the model that ships: by words and meaning where NumPy is installed.

Rule: if anything is wrong with the extra, it is logged, and the word model judges alone.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import structlog

from agent_routing_topics.kept_indexes import KeptIndexes
from agent_routing_topics.model import load_word_model
from agent_routing_topics.model.agent_index import GiveWay, go_on
from agent_routing_topics.model.parameters import ParametersInvalid
from routing_service.topics.topic_detector import TopicModel

BLAS_THREADS: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""For NumPy, unless the operator has set them: a verdict's products are small, and further threads
only take the cores of other calls."""

VECTORS_FILE: Final = "topic-vectors.npz"

_log = structlog.get_logger(__name__)


def load_default_model(
    give_way: GiveWay = go_on,
    folder: str = "",
    *,
    waits: bool = False,
    limit_s: float | None = None,
) -> TopicModel:
    """Return the model that ships. Reads its files: once in a process is enough.

    give_way: called again and again while a registry is taken in. folder: where vectors of
    examples and what is computed of large registries are kept; "" = in memory alone. waits:
    detectors are made once their vectors are there. limit_s: how long a verdict with vectors may
    take; None = as in a server.
    """
    path = Path(folder) if folder else None
    words = load_word_model(give_way, KeptIndexes(path) if path else None)
    for name, threads in BLAS_THREADS.items():
        os.environ.setdefault(name, threads)
    try:
        import agent_routing_topics.sentence_vectors as embeddings  # noqa: PLC0415 - an extra
        from agent_routing_topics.meaning.meaning_model import (  # noqa: PLC0415
            LIMIT_S,
            MeaningModel,
        )
        from agent_routing_topics.meaning.meaning_parameters import (  # noqa: PLC0415
            shipped_meaning,
        )
    except ModuleNotFoundError as error:
        _log.debug("topic_vectors_not_installed", missing=error.name)
        return words
    try:
        parameters = shipped_meaning()
        if parameters is None:
            return words
        if parameters.encoder != embeddings.model_sha256():
            _log.error("topic_vectors_of_another_release", wanted=parameters.encoder[:12])
            return words
        encoder = embeddings.load_encoder()
    except (embeddings.WeightsDamaged, OSError, ParametersInvalid) as error:
        _log.error("topic_vectors_unusable", exc_info=error)
        return words
    return MeaningModel(
        words,
        parameters,
        encoder.encode,
        path / VECTORS_FILE if path else None,
        waits=waits,
        limit_s=LIMIT_S if limit_s is None else limit_s,
    )
