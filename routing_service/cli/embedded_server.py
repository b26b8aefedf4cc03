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
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from routing_service.config import Settings
from routing_service.server import RoutingServer
from routing_service.telemetry import configure_logging


def leave_by_interrupt() -> None:
    """Let SIGTERM, and SIGHUP of a terminal that is closed, end the command as Ctrl-C does.

    Left alone they would end the process where it stands, and its temporary folder would stay.
    """
    # gRPC logs a traceback for a call that the interrupt ends, which says nothing to anybody.
    logging.getLogger("grpc._cython.cygrpc").setLevel(logging.CRITICAL)
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):  # Windows has no SIGHUP.
            signal.signal(getattr(signal, name), signal.default_int_handler)


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
            await asyncio.shield(server.stop())


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
