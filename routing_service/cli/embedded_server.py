"""A server for one command, in this process, with a store on this machine's disk.

Owns the settings of such a server and its temporary folder. It must not know what it is for. Its
rule: it is the server that ``agent-routing serve`` starts, reached over the loopback like any
other; nothing is short-circuited for being near.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import tempfile
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from routing_service.server.server import RoutingServer
from routing_service.settings.settings import Settings
from routing_service.telemetry.call_log import configure_logging

T = TypeVar("T")

ENDING: Final = tuple(
    getattr(signal, name)
    for name in ("SIGTERM", "SIGHUP")
    if hasattr(signal, name)  # Windows has no SIGHUP.
)
"""What ends a command beside Ctrl-C: kill, and a terminal that is closed."""


def leave_by_interrupt() -> None:
    """Let SIGTERM, and SIGHUP of a terminal that is closed, end the command as Ctrl-C does.

    Left alone they would end the process where it stands, and its temporary folder would stay.
    """
    # gRPC logs a traceback for a call that the interrupt ends, which says nothing to anybody.
    logging.getLogger("grpc._cython.cygrpc").setLevel(logging.CRITICAL)
    for number in ENDING:
        signal.signal(number, signal.default_int_handler)


async def interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Do what a command with a server is for; the signals that end it cancel it, as Ctrl-C does.

    Elsewhere they are raised wherever the process stands. Here that is in gRPC's code as often as
    not: the signal was lost, or the process crashed. A second one changes nothing: closing a
    terminal sends two.
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


@asynccontextmanager
async def embedded_server(registry: str | Path, store_url: str = "") -> AsyncIterator[str]:
    """Serve a registry file; give the target. store_url: "" = SQLite in a temporary folder.

    Raises what RoutingServer.start does.
    """
    # Of the server's own lines only what went wrong is of interest to whoever runs a command.
    configure_logging("error", "auto")
    with tempfile.TemporaryDirectory(prefix="agent-routing-") as folder:
        settings = Settings(
            listen="127.0.0.1:0",
            store=store_url or f"sqlite:///{Path(folder, 'sessions.db')}",
            agents=str(registry),
            log_level="error",
        )
        server = await RoutingServer.start(settings)
        try:
            yield server.address
        finally:
            stopping = asyncio.ensure_future(server.stop())
            try:
                await asyncio.shield(stopping)
            except asyncio.CancelledError:
                # The folder goes next, and the store is in it.
                await stopping
                raise


@contextmanager
def server_in_thread(registry: str | Path, store_url: str = "") -> Iterator[str]:
    """Serve as embedded_server does, for a program that blocks, such as one that waits for keys."""
    serving: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        stop = asyncio.Event()
        async with embedded_server(registry, store_url) as target:
            serving.set_result((target, asyncio.get_running_loop(), stop))
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
        target, loop, stop = serving.result()
    except BaseException:
        thread.join()
        raise
    try:
        yield target
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
