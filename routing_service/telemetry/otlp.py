"""What traces and metrics share to reach an OpenTelemetry collector: the extra, resource, threads.

Its rule: an export runs in a daemon thread of its own, so that a collector that hangs delays no
call and no exit.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from routing_service.ids import new_uuid7

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

LAST_EXPORT_S: Final = 2.0
"""Time for the last spans and figures when the server stops; what is not sent by then is lost."""

MODULES: Final = (
    "opentelemetry.sdk",
    "opentelemetry.exporter.otlp.proto.grpc",
)
"""What the extra otel installs."""

SERVICE_NAME: Final = "agent-routing"


class ExporterUnavailable(Exception):
    """The exporter that a setting asks for cannot be used; the message says what to do."""


def has_opentelemetry() -> bool:
    """Return whether the extra otel is installed: the SDK, and the exporter to collectors."""
    try:
        return all(find_spec(module) is not None for module in MODULES)
    except (ModuleNotFoundError, ValueError):
        # find_spec imports the packages above the module, which may be missing.
        return False


def require_opentelemetry(setting: str, value: str) -> None:
    """Raise ExporterUnavailable, which names the extra, if OpenTelemetry is not installed."""
    if not has_opentelemetry():
        raise ExporterUnavailable(
            f'{setting} "{value}" needs OpenTelemetry: pip install "agent-routing-service[otel]"'
        )


@cache
def process_resource(version: str) -> Resource:
    """Return who sends: service name, version and an instance id made for this process.

    OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over all three. Without an id of each
    process, a collector could not tell apart the counters of two replicas.
    """
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415 - an extra

    ours = {
        "service.name": SERVICE_NAME,
        "service.version": version,
        "service.instance.id": new_uuid7(),
    }
    return Resource.create(ours).merge(OTELResourceDetector().detect())


def is_refused(result: object) -> bool:
    """Return whether an exporter's result says that nothing was sent.

    OpenTelemetry's exporters report a collector that fails by their result and raise nothing.
    """
    return getattr(result, "name", "") == "FAILURE"


def milliseconds_from(variable: str, default_ms: float, *, least_ms: float) -> float:
    """Return the value of an OTEL_… variable. Raises ExporterUnavailable."""
    given = os.environ.get(variable, "").strip()
    try:
        value = float(given) if given else default_ms
    except ValueError:
        value = 0.0
    if not least_ms <= value < float("inf"):
        raise ExporterUnavailable(
            f'{variable} is "{given}"; give milliseconds, {least_ms:.0f} or more'
        )
    return value


async def in_daemon_thread(work: Callable[[], None], name: str) -> None:
    """Run work to its end. A thread of a pool would delay the exit while a collector hangs."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def run() -> None:
        try:
            work()
        finally:
            # A loop that has ended awaits nothing.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run, name=name, daemon=True).start()
    await done.wait()
