"""The check of ``agent-routing doctor`` on the topic detector: it loads, and answers in time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Final

from routing_service.cli.doctor_checks import Finding
from routing_service.core.registry import Registry
from routing_service.registry.file import RegistryFileError, load_registry
from routing_service.rpc.remote_judge import RemoteModel, load_detector, probe
from routing_service.settings.settings import Settings
from routing_service.topics.detector_plugin import DetectorUnavailable, load_shipped_model
from routing_service.topics.topic_detector import TopicModel, TopicQuestion

WHAT: Final = "topic detector"
PROBE_S: Final = 5.0


def topic_detector(settings: Settings) -> Iterator[Finding]:
    """Check the detector that the registry's topics would use."""
    name = settings.topic_detector
    try:
        registry = load_registry(settings.agents) if settings.agents else None
    except RegistryFileError:
        return  # The check of the registry says it.
    if registry is None or not registry.topics.is_on:
        if name:
            yield Finding(
                WHAT,
                "warning",
                f"{name} is named, and the registry's topics are off",
                "set topics.mode in the registry, or leave topic_detector out",
            )
        return
    try:
        limit_s = settings.topic_detector_limit_s
        model = load_detector(name, PROBE_S) if name else load_shipped_model(waits=True)
        version, took_s = _asked(model, registry)
    except DetectorUnavailable as error:
        yield Finding(WHAT, "problem", str(error), "name another, or leave topic_detector out")
        return
    except Exception as error:  # noqa: BLE001 - a detector of others may raise anything
        yield Finding(
            WHAT,
            "problem",
            f"{name or 'the one that ships'} gives no verdict: {type(error).__name__}: {error}",
            "start the service that judges, or mend the detector",
        )
        return
    said = f"{version} answers in {took_s * 1000:.1f} ms"
    if name and took_s > limit_s:
        yield Finding(
            WHAT,
            "warning",
            f"{said}, its limit is {limit_s * 1000:.0f} ms: its verdicts are too late",
            "raise topic_detector_limit_s, or make the detector faster",
        )
    elif isinstance(model, RemoteModel) and model.is_plaintext:
        yield Finding(
            WHAT,
            "warning",
            f"{said}; users' messages go to {name} unencrypted",
            "use grpcs:// with a certificate",
        )
    else:
        yield Finding(WHAT, "ok", said)


def _asked(model: TopicModel, registry: Registry) -> tuple[str, float]:
    """Ask about one message; return the model's name and the seconds that it took."""
    if isinstance(model, RemoteModel):
        return asyncio.run(_probed(model, registry))
    detector = model.for_registry(registry)
    candidates = [agent.agent_id for agent in registry.specialists if agent.enabled]
    question = TopicQuestion(text="hello", candidate_ids=candidates)
    detector.judge(question)
    begin_s = time.monotonic()
    detector.judge(question)
    return model.version, time.monotonic() - begin_s


async def _probed(model: RemoteModel, registry: Registry) -> tuple[str, float]:
    try:
        return await probe(model, registry, 2 * PROBE_S)
    finally:
        await model.close()
