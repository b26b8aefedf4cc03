"""A server for one command, in this process, with a store on the local disk.

Its rule: it is the server that ``agent-routing serve`` starts, called over the loopback interface
like any other, with no short cuts.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import tempfile
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from routing_service.server.server import RoutingServer
from routing_service.settings.settings import Settings
from routing_service.telemetry.call_log import configure_logging
from routing_service.topics.detector_plugin import load_shipped_model
from routing_service.topics.topic_detector import TopicModel

T = TypeVar("T")

ENDING: Final = tuple(
    getattr(signal, name)
    for name in ("SIGTERM", "SIGHUP")
    if hasattr(signal, name)  # Windows has no SIGHUP.
)
"""The signals that end a command like Ctrl-C: from kill, and from a closed terminal."""


def leave_by_interrupt() -> None:
    """Let SIGTERM, and SIGHUP of a terminal that is closed, end the command as Ctrl-C does.

    By default they would end the process at once and leave its temporary folder behind.
    """
    # gRPC logs a traceback for a call that the interrupt ends; it is noise.
    logging.getLogger("grpc._cython.cygrpc").setLevel(logging.CRITICAL)
    for number in ENDING:
        signal.signal(number, signal.default_int_handler)


async def interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's work with a server; the signals that end it cancel the task.

    Raised as exceptions they would often interrupt gRPC's own code: the signal got lost or the
    process crashed. A second signal has no effect, because closing a terminal sends two.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    try:
        for number in ENDING:
            loop.add_signal_handler(number, lambda: task.cancelling() or task.cancel())
    except NotImplementedError:  # Windows, where only Ctrl-C comes.
        return await work
    try:
        return await work
    finally:
        for number in ENDING:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.default_int_handler)


DETECTOR_LIMIT_S: Final = 10.0
"""Time limit of a verdict: no user waits, and a late one would spoil the figures."""


def _patient_model() -> TopicModel:
    """Load the model that ships. All messages are judged alike, from the first one on."""
    return load_shipped_model(waits=True, limit_s=DETECTOR_LIMIT_S)


@asynccontextmanager
async def embedded_server(
    registry: str | Path, store_url: str = "", detector: str = ""
) -> AsyncIterator[str]:
    """Serve a registry file; give the target. store_url: "" = SQLite in a temporary folder.

    detector: as the setting topic_detector, with the time that it needs. Raises what
    RoutingServer.start does.
    """
    async with _served(registry, store_url, detector) as server:
        yield server.address


@asynccontextmanager
async def _served(
    registry: str | Path, store_url: str = "", detector: str = "", console_listen: str = ""
) -> AsyncIterator[RoutingServer]:
    # The person who runs a command needs only the server's errors.
    configure_logging("error", "auto")
    with tempfile.TemporaryDirectory(prefix="agent-routing-") as folder:
        settings = Settings(
            listen="127.0.0.1:0",
            store=store_url or f"sqlite:///{Path(folder, 'sessions.db')}",
            agents=str(registry),
            console_listen=console_listen,
            log_level="error",
            topic_detector=detector,
            topic_detector_limit_s=DETECTOR_LIMIT_S if detector else 0.05,
            topic_detector_fallback="none",
        )
        server = await RoutingServer.start(settings, load_model=_patient_model)
        try:
            yield server
        finally:
            stopping = asyncio.ensure_future(server.stop())
            try:
                await asyncio.shield(stopping)
            except asyncio.CancelledError:
                # The folder with the store is removed next.
                await stopping
                raise


@contextmanager
def server_in_thread(registry: str | Path, store_url: str = "") -> Iterator[str]:
    """Serve as embedded_server does, for a program that blocks, such as on keyboard input."""
    with _in_thread(_served(registry, store_url)) as server:
        yield server.address


@contextmanager
def server_and_console_in_thread(registry: str | Path) -> Iterator[tuple[str, str]]:
    """Serve as server_in_thread does; give the target and the URL of the operators' console."""
    with _in_thread(_served(registry, console_listen="127.0.0.1:0")) as server:
        yield server.address, server.console_url


@contextmanager
def _in_thread(served: AbstractAsyncContextManager[RoutingServer]) -> Iterator[RoutingServer]:
    serving: Future[tuple[RoutingServer, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        stop = asyncio.Event()
        async with served as server:
            serving.set_result((server, asyncio.get_running_loop(), stop))
            await stop.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if serving.done():
                raise
            serving.set_exception(error)

    thread = threading.Thread(target=run, name="embedded server")
    thread.start()
    try:
        server, loop, stop = serving.result()
    except BaseException:
        thread.join()
        raise
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
