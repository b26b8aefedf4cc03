"""One server process of a supervisor, from its start to its end."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from routing_service.server.exit_watchdog import EXIT_BEYOND_DRAIN_S
from routing_service.settings.settings import Settings

KILL_AFTER_S: Final = 2.0
"""A process ends itself this much earlier (ExitWatchdog); one that does not is killed."""

PAGE_S_MAX: Final = 2.0
"""For a page of a process: a scrape as a whole has five seconds."""

PAGE_BYTES_MAX: Final = 8 * 1024 * 1024

_log = structlog.get_logger(__name__)


class ReplicaProcess:
    """One process. Its pages are on sockets in a folder of the supervisor."""

    def __init__(self, settings: Settings, folder: Path, number: int) -> None:
        """Start nothing yet. number: counts all processes of this supervisor."""
        self.number = number
        self.announced: list[str] = []
        """What it has printed: where it serves."""
        self._drain_s = settings.drain_s
        self._lines = 1 + bool(settings.web_listen) + bool(settings.console_listen)
        self._metrics = folder / f"{number}.metrics"
        self._probes = folder / f"{number}.probes"
        self._settings = dataclasses.replace(
            settings,
            metrics_listen=f"unix:{self._metrics}" if settings.metrics_listen else "",
            probe_listen=f"unix:{self._probes}",
        )
        self._process: asyncio.subprocess.Process | None = None
        self.is_ending = False

    @property
    def pid(self) -> int:
        """Its process id; 0 before it was started."""
        return 0 if self._process is None else self._process.pid

    async def start(self) -> bool:
        """Start it; return True once it serves, False if it ended before."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "routing_service.server.replica_main",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # A Ctrl-C in the terminal reaches the supervisor alone, which then stops it in order.
            start_new_session=True,
        )
        if self.is_ending:  # Asked to stop meanwhile.
            self._send(signal.SIGTERM)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.write(json.dumps(dataclasses.asdict(self._settings)).encode())
            self._process.stdin.write(b"\n")
            await self._process.stdin.drain()
        while len(self.announced) < self._lines:
            line = await self._process.stdout.readline()
            if not line:
                return False
            self.announced.append(line.decode().rstrip("\n"))
        return True

    async def ended(self) -> int:
        """Wait for its end; return its exit code, negative for a signal."""
        assert self._process is not None
        code = await self._process.wait()
        for page in (self._metrics, self._probes):
            page.unlink(missing_ok=True)
        return code

    def reload(self) -> None:
        """Have it read its registry and callers files again."""
        self._send(signal.SIGHUP)

    def kill(self) -> None:
        """End it at once; nothing that was answered is lost."""
        self.is_ending = True
        self._send(signal.SIGKILL)

    async def stop(self) -> int:
        """Have it drain and end; kill it if it does not. Return its exit code."""
        self.is_ending = True
        if self._process is None:
            return 0
        self._send(signal.SIGTERM)
        try:
            async with asyncio.timeout(self._drain_s + EXIT_BEYOND_DRAIN_S + KILL_AFTER_S):
                return await self.ended()
        except TimeoutError:
            _log.error("process_killed", pid=self.pid, meaning="it did not end when asked to")
            self.kill()
            return await self.ended()

    async def metrics_page(self) -> str | None:
        """Return its metrics as OpenMetrics text; None if it does not answer."""
        accept = b"Accept: application/openmetrics-text; version=1.0.0\r\n"
        page = await _page(self._metrics, b"/metrics", accept)
        return page if page is None else page.partition("\r\n\r\n")[2]

    async def is_ready(self) -> bool:
        """Whether it is ready for calls."""
        page = await _page(self._probes, b"/readyz", b"")
        return page is not None and page.startswith("HTTP/1.1 200 ")

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


async def _page(socket: Path, path: bytes, header: bytes) -> str | None:
    """Return a page with its head; None if the process does not answer."""
    try:
        async with asyncio.timeout(PAGE_S_MAX):
            reader, writer = await asyncio.open_unix_connection(str(socket), limit=PAGE_BYTES_MAX)
            try:
                writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: process\r\n" + header + b"\r\n")
                return (await reader.read(-1)).decode()
            finally:
                writer.close()
    except (OSError, TimeoutError, UnicodeDecodeError):
        return None
