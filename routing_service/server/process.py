"""The process of a server: signals, limits of the system, logging, and exit codes."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Final

import structlog

from routing_service import __version__
from routing_service.registry.file import RegistryFileError
from routing_service.server.event_loop import loop_factory
from routing_service.server.exit_watchdog import ExitWatchdog
from routing_service.server.parts import Counts, end_task
from routing_service.server.server import RoutingServer
from routing_service.server.sign_in import log_sign_in
from routing_service.server.signals import STOPPING, Signals
from routing_service.settings.listen_address import ListenFailed
from routing_service.settings.rules import SettingsInvalid
from routing_service.settings.settings import Settings
from routing_service.storage.open_store import StoreUrlInvalid
from routing_service.storage.store import StoreError
from routing_service.telemetry.call_log import CallLog, Logging, configure_logging
from routing_service.telemetry.call_record import CallObserver
from routing_service.telemetry.line_writer import LAST_LINES_S, LineWriter, print_lines
from routing_service.telemetry.log_privacy import IdHashes, LogKeyInvalid, read_key
from routing_service.telemetry.metrics import Metrics
from routing_service.telemetry.otlp import ExporterUnavailable
from routing_service.telemetry.tracing import Tracing, open_exporter

if TYPE_CHECKING:
    from routing_service.telemetry.otlp_metrics import MetricsExport

resource: ModuleType | None
try:
    import resource
except ImportError:  # Windows.
    resource = None

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
"""The machine refused: the store cannot be opened, or the address is taken; or a part of the server
did not stop in time."""
EXIT_USAGE: Final = 2
"""The settings, the registry or the store URL are wrong."""
GC_THRESHOLDS: Final = (20_000, 20, 50)
"""Thresholds of the garbage collector's generations. A call leaves no cycles, and with the
default of 700 the collector took an eighth of a busy server's time."""

DESCRIPTORS_BESIDE: Final = 256
"""Descriptors not used by callers: the store's files and connections, logs, gRPC's own."""

_log = structlog.get_logger(__name__)


async def serve(
    settings: Settings,
    observer: CallObserver | None = None,
    counts: Counts | None = None,
    tracing: Tracing | None = None,
    *,
    signals: Signals,
    shown_id: Callable[[str], str] = str,
) -> None:
    """Serve until SIGTERM or SIGINT, then stop in order. Raises what RoutingServer.start does.

    A SIGINT while it stops ends the process at once; nothing that was answered is lost. signals:
    entered. shown_id: see RoutingServer.start.
    """
    stop_asked = asyncio.Event()
    reload_asked = asyncio.Event()

    def react(number: signal.Signals) -> None:
        is_stop = number in STOPPING
        _log.info("stop_asked" if is_stop else "reload_asked", signal=number.name)
        (stop_asked if is_stop else reload_asked).set()

    signals.deliver_to(react)
    server = await RoutingServer.start(
        settings, observer=observer, counts=counts, tracing=tracing, shown_id=shown_id
    )
    reloading = asyncio.create_task(_reload_when_asked(server, reload_asked), name="reload")
    try:
        if not stop_asked.is_set():
            log_sign_in(settings)
            _freeze_startup_heap()
            _announce(server.address, server.web_url, server.console_url)
        await stop_asked.wait()
    finally:
        await end_task(reloading)
        await server.stop()


def run(settings: Settings, *, is_one_of_several: bool = False) -> int:
    """Serve in this process until a stop signal; print errors to stderr; return the exit code.

    is_one_of_several: other processes write to the same log, so that each line has the process id.
    """
    try:
        key = read_key(settings.log_ids_key_file)
    except LogKeyInvalid as error:
        return _refused(error, EXIT_USAGE, LineWriter(sys.stderr))
    configured = configure_logging(
        settings.log_level,
        settings.log_format,
        hashes=IdHashes(key) if settings.log_ids == "hashed" else None,
        error_words=settings.log_error_words,
        pid=os.getpid() if is_one_of_several else 0,
    )
    writer = configured.writer
    flush = partial(writer.flush, LAST_LINES_S)
    watchdog = ExitWatchdog(settings.drain_s, flush, EXIT_FAILED)
    signals = Signals(["SIGHUP"], stopping=watchdog.begin, ending=flush)
    try:
        # First: a thread that is older than the block of signals would get them.
        with signals:
            writer.start()
            _serve_with(settings, configured, signals)
    except (SettingsInvalid, RegistryFileError, StoreUrlInvalid, ExporterUnavailable) as error:
        return _refused(error, EXIT_USAGE, writer)
    except (StoreError, ListenFailed) as error:
        return _refused(error, EXIT_FAILED, writer)
    finally:
        flush()
    return EXIT_OK


def _serve_with(settings: Settings, configured: Logging, signals: Signals) -> None:
    """Serve until a stop signal, with logs, figures and traces. Raises what serve does."""
    _allow_descriptors(settings.connections_max)
    tracing = _tracing(settings, configured.hashes)
    export = _metrics_export(settings)
    counts = Counts(Metrics(), lambda: configured.writer.lines_lost, export)
    observer: CallObserver = CallLog(configured, counts.metrics)
    if tracing is not None:
        observer = tracing.observing(observer)
    shown_id = str if configured.hashes is None else configured.hashes.hide
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(settings, observer, counts, tracing, signals=signals, shown_id=shown_id))


def _tracing(settings: Settings, hashes: IdHashes | None) -> Tracing | None:
    """Return the tracing that the settings ask for, or None. Raises ExporterUnavailable."""
    if settings.traces == "off":
        return None
    return Tracing(
        open_exporter(settings.traces),
        new_percent=settings.traces_new_percent,
        version=__version__,
        hashes=hashes,
    )


def _metrics_export(settings: Settings) -> MetricsExport | None:
    """Return what sends figures to a collector, or None. Raises ExporterUnavailable."""
    if settings.metrics == "off":
        return None
    from routing_service.telemetry.otlp_metrics import (  # noqa: PLC0415 - a server without it starts faster
        open_metrics_export,
    )

    return open_metrics_export(__version__)


def _refused(error: Exception, exit_code: int, writer: LineWriter) -> int:
    for line in str(error).splitlines():
        writer.write(f"error: {line}".encode("utf-8", "replace"))
    return exit_code


def _allow_descriptors(connections_max: int) -> None:
    """Raise the limit of open files to what the connections need; warn if the system refuses.

    Many systems give a process 1,024 unless it asks for more. A process that runs out can neither
    accept a connection nor open its store.
    """
    if resource is None:  # Windows has no such limit.
        return
    wanted = connections_max + DESCRIPTORS_BESIDE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted or soft == resource.RLIM_INFINITY:
        return
    given = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (given, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        _log.warning(
            "descriptors_few",
            descriptors=soft,
            wanted=wanted,
            remedy="raise the limit of open files (ulimit -n, LimitNOFILE), or lower "
            "connections_max",
        )


def _freeze_startup_heap() -> None:
    """Exempt the objects made at start from collection: they live as long as the process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _announce(address: str, web_url: str, console_url: str) -> None:
    """Print where the server serves: programs wait for the first line."""
    places = {
        "serving on": address,
        "serving browsers on": web_url,
        "console on": console_url,
    }
    print_lines([f"{words} {place}" for words, place in places.items() if place])


async def _reload_when_asked(server: RoutingServer, asked: asyncio.Event) -> None:
    while True:
        await asked.wait()
        asked.clear()
        await server.reload()
