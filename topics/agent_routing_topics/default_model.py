"""The model that ships: its parameters, and the vectors of registries' texts.

Rule: if anything is wrong with the vectors, it is logged, and words judge alone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from agent_routing_topics.model.agent_text import AgentText, agent_texts
from agent_routing_topics.model.detector import Detector, Known
from agent_routing_topics.model.forest import compiled
from agent_routing_topics.model.parameters import Parameters, shipped_parameters
from agent_routing_topics.model.registry_words import GiveWay

if TYPE_CHECKING:
    from agent_routing_topics.example_vectors import ExampleVectors
    from routing_service.core.registry import Registry

BLAS_THREADS: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""For NumPy, unless the operator has set them: a verdict's products are small, and further threads
only take the cores of other calls."""

VECTORS_FILE: Final = "topic-vectors.npz"

LIMIT_S: Final = 2.0
"""Hundreds of times of what a verdict takes: only a machine without a free core is late, and its
messages are routed as if topics were off."""

_log = structlog.get_logger(__name__)


def load_default_model(
    give_way: GiveWay = lambda: None,
    folder: str = "",
    *,
    waits: bool = False,
    limit_s: float | None = None,
) -> TopicModel:
    """Return the model that ships. Reads its files: once in a process is enough.

    give_way: called again and again while a registry is read. folder: where vectors of a registry's
    texts are kept; "" = in memory alone. waits: detectors are made once their vectors are there.
    limit_s: how long a verdict with vectors may take; None = as in a server.
    """
    parameters = shipped_parameters()
    vectors = _vectors(parameters, Path(folder) / VECTORS_FILE if folder else None)
    limit_s = LIMIT_S if limit_s is None else limit_s
    return TopicModel(parameters, vectors, give_way=give_way, waits=waits, limit_s=limit_s)


def load_word_model() -> TopicModel:
    """Return the model that ships, with words alone."""
    return TopicModel(shipped_parameters())


def _vectors(parameters: Parameters, path: Path | None) -> ExampleVectors | None:
    """Return what makes vectors; None, and a line in the log, where they cannot be had."""
    for name, threads in BLAS_THREADS.items():
        os.environ.setdefault(name, threads)
    try:
        from agent_routing_topics import sentence_vectors  # noqa: PLC0415 - needs NumPy
        from agent_routing_topics.example_vectors import ExampleVectors  # noqa: PLC0415
    except ModuleNotFoundError as error:
        _log.warning("topic_vectors_not_installed", missing=error.name)
        return None
    if parameters.encoder != sentence_vectors.model_sha256():
        _log.error("topic_vectors_of_another_release", wanted=parameters.encoder[:12])
        return None
    try:
        encoder = sentence_vectors.load_encoder()
    except (sentence_vectors.WeightsDamaged, OSError) as error:
        _log.error("topic_vectors_unusable", exc_info=error)
        return None
    return ExampleVectors(path, encoder.encode, parameters.encoder)


class TopicModel:
    """Makes detectors from parameters. Loaded once in a process."""

    def __init__(
        self,
        parameters: Parameters,
        vectors: ExampleVectors | None = None,
        *,
        give_way: GiveWay = lambda: None,
        waits: bool = False,
        limit_s: float = LIMIT_S,
    ) -> None:
        """Take over parameters that have been checked. vectors: None = words alone.

        waits: a detector is made once its vectors are there, rather than before. limit_s: how long
        a verdict may take, off the event loop; words alone judge on it.
        """
        self.version = f"{parameters.version}{'-use' if vectors else ''}"
        self.limit_s = limit_s if vectors else None
        self._known = Known(
            parameters,
            compiled(parameters.words.trees),
            compiled(parameters.meaning.trees) if vectors else None,
            vectors.encode if vectors else None,
        )
        self._vectors = vectors
        self._give_way = give_way
        self._waits = waits

    def has_seen(self, corpus: str, _agent_id: str) -> bool:
        """Tell whether an agent of a corpus was in what the model was trained on."""
        return corpus in self._known.parameters.trained_on

    def for_registry(self, registry: Registry) -> Detector:
        """Make the detector of a registry: of those agents that a conversation may be with."""
        return self.for_agents(agent_texts(registry))

    def for_agents(self, agents: Sequence[AgentText]) -> Detector:
        """Make the detector of agents, whose order does not matter."""
        in_order = sorted(agents, key=lambda agent: agent.agent_id)
        detector = Detector(self._known, in_order, self._give_way)
        texts = [text for agent in in_order for text in agent.texts]
        if self._vectors is None or not texts:
            return detector
        if self._waits or not self._vectors.missing(texts):
            detector.take(self._vectors.of(texts))
        else:
            threading.Thread(
                target=self._fill, args=(detector, texts), name="topic vectors", daemon=True
            ).start()
        return detector

    def _fill(self, detector: Detector, texts: Sequence[str]) -> None:
        assert self._vectors is not None
        try:
            detector.take(self._vectors.of(texts))
        except Exception as error:  # noqa: BLE001 - words go on judging
            _log.error("topic_vectors_failed", exc_info=error)
