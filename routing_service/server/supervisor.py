"""The supervisor of several server processes that share their addresses (setting processes).

Rule: it takes no calls and opens no store, so it keeps running when a process fails. A process that
ends without having been asked to is replaced; the others serve meanwhile.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import structlog

from routing_service.server.replica_process import ReplicaProcess
from routing_service.server.shared_ports import hold_ports
from routing_service.server.signals import STOPPING, Signals
from routing_service.settings.listen_address import ListenFailed
from routing_service.settings.settings import Settings
from routing_service.telemetry.call_log import configure_logging
from routing_service.telemetry.line_writer import LAST_LINES_S, print_lines
from routing_service.telemetry.page_listener import MakePage, Page, PageListener
from routing_service.telemetry.summed_metrics import SummedPages

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
"""As those of a server in one process."""

RESTART_FIRST_S: Final = 0.1
RESTART_MAX_S: Final = 5.0
"""The wait before a process that ended is replaced doubles from the one to the other, so that one
that ends at once, as for a registry that is wrong by now, does not take a core."""

SETTLED_S: Final = 30.0
"""A process that served for this long is replaced after RESTART_FIRST_S again."""

_log = structlog.get_logger(__name__)


class Supervisor:
    """Keeps as many server processes running as the settings say."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        """Start nothing yet. settings: with real ports. folder: for the processes' sockets."""
        self._settings = settings
        self._folder = folder
        self._numbers = 0
        self._serving: dict[int, ReplicaProcess] = {}
        """By place, 0 to processes - 1."""
        self._running: set[ReplicaProcess] = set()
        """All that have not ended, also those that start, and that end."""
        self._pages = SummedPages()
        self._tasks: set[asyncio.Task[None]] = set()
        self._watches: dict[int, asyncio.Task[None]] = {}
        self._stop_asked = asyncio.Event()
        self._restarting = asyncio.Lock()
        self._is_up = False

    async def run(self, signals: Signals) -> int:
        """Serve until SIGTERM or SIGINT; return the exit code. signals: entered."""
        signals.deliver_to(self._react)
        listeners: list[PageListener] = []
        try:
            # Before the processes: while they start, the probes say that this one lives.
            listeners = await self._listen()
            # The first one alone: what is wrong with the settings or the store is said once, and
            # the store's tables are made once.
            for places in (range(1), range(1, self._settings.processes)):
                codes = await asyncio.gather(*map(self._start_first, places))
                if self._stop_asked.is_set():
                    return EXIT_OK
                if failed := [code for code in codes if code]:
                    return failed[0]
            self._is_up = True
            self._announce()
            await self._stop_asked.wait()
        finally:
            code = await self._stop()
            for listener in listeners:
                await listener.close()
        return code

    async def _start_first(self, place: int) -> int:
        """Start the process of a place; return its exit code if it cannot start, else 0."""
        process = self._new()
        if await process.start():
            self._serve(place, process)
            return EXIT_OK
        code = await self._ended(process)
        return code if code > 0 else EXIT_FAILED

    async def _ended(self, process: ReplicaProcess) -> int:
        """Wait for a process's end; return its exit code."""
        code = await process.ended()
        self._running.discard(process)
        self._pages.end(process.number)
        return code

    def _new(self) -> ReplicaProcess:
        self._numbers += 1
        process = ReplicaProcess(self._settings, self._folder, self._numbers)
        self._running.add(process)
        return process

    def _serve(self, place: int, process: ReplicaProcess) -> None:
        """Count a process as serving, and replace it when it ends."""
        self._serving[place] = process
        self._pages.processes = len(self._serving)
        _log.info("process_serving", place=place, pid=process.pid)
        self._watches[place] = asyncio.create_task(self._watch(place, process), name="process")

    async def _watch(self, place: int, process: ReplicaProcess) -> None:
        """Wait for a process's end; replace it unless it was asked to end."""
        loop = asyncio.get_running_loop()
        since_s, wait_s = loop.time(), RESTART_FIRST_S
        while True:
            code = await self._ended(process)
            if process.is_ending:
                return
            if loop.time() - since_s > SETTLED_S:
                wait_s = RESTART_FIRST_S
            _log.error("process_ended", place=place, pid=process.pid, exit_code=code, wait_s=wait_s)
            self._serving.pop(place, None)
            self._pages.processes = len(self._serving)
            self._pages.restarts += 1
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, RESTART_MAX_S)
            process = self._new()
            has_served = await process.start()
            since_s = loop.time()
            if has_served:
                self._serving[place] = process
                self._pages.processes = len(self._serving)
                _log.info("process_serving", place=place, pid=process.pid)

    async def _restart_all(self) -> None:
        """Replace the processes one after the other; each new one serves before its old one ends.

        A new process that cannot start ends the restart, and the old ones go on.
        """
        if self._restarting.locked():
            _log.warning("restart_under_way", meaning="the signal is ignored")
            return
        async with self._restarting:
            for place, old in sorted(self._serving.items()):
                new = self._new()
                if not await new.start():
                    _log.error(
                        "restart_given_up",
                        place=place,
                        exit_code=await self._ended(new),
                        remedy="the lines above say why; the processes before it were replaced",
                    )
                    return
                await self._read_page(old)
                if self._serving.get(place) is not old:
                    # It ended meanwhile, and its own replacement is on the way.
                    await self._retire(new)
                    continue
                self._watches[place].cancel()
                self._serve(place, new)
                await self._retire(old)
        _log.info("restarted", processes=len(self._serving))

    async def _retire(self, process: ReplicaProcess) -> None:
        """Have a process drain and end."""
        await process.stop()
        await self._ended(process)

    async def _stop(self) -> int:
        """Have all processes drain and end; return the exit code."""
        for task in (*self._watches.values(), *self._tasks):
            task.cancel()
        codes = await asyncio.gather(*(process.stop() for process in self._running))
        return EXIT_FAILED if any(codes) else EXIT_OK

    async def _listen(self) -> list[PageListener]:
        """Open the listeners of metrics and probes that the settings name. Raises ListenFailed."""
        opened: list[PageListener] = []
        if (address := self._settings.metrics_address) is not None:
            pages: dict[str, MakePage] = {"/metrics": self._metrics_page}
            opened.append(await PageListener.start(address, pages, name="metrics"))
        if (address := self._settings.probe_address) is not None:
            probes: dict[str, MakePage] = {
                "/livez": lambda _accept: Page("ok\n"),
                "/readyz": self._readyz,
            }
            opened.append(await PageListener.start(address, probes, name="probes"))
        return opened

    async def _metrics_page(self, accept: str) -> Page:
        await asyncio.gather(*(self._read_page(each) for each in self._serving.values()))
        return Page(*self._pages.page(accept))

    async def _read_page(self, process: ReplicaProcess) -> None:
        page = await process.metrics_page() if self._settings.metrics_listen else None
        if page is not None and process in self._serving.values():
            self._pages.read(process.number, page)

    async def _readyz(self, _accept: str) -> Page:
        """Say whether a process is ready: clients reach the others only through new connections."""
        ready = await asyncio.gather(*(each.is_ready() for each in self._serving.values()))
        if any(ready) and not self._stop_asked.is_set():
            return Page(f"ok: {sum(ready)} of {self._settings.processes}\n")
        return Page("not ready\n", status="503 Service Unavailable")

    def _announce(self) -> None:
        _log.info("processes_serving", processes=len(self._serving))
        first = self._serving.get(0) or next(iter(self._serving.values()), None)
        if first is not None:
            print_lines(first.announced)

    def kill(self) -> None:
        """End all processes at once; nothing that was answered is lost."""
        for process in self._running:
            process.kill()

    def _react(self, number: signal.Signals) -> None:
        if number in STOPPING:
            _log.info("stop_asked", signal=number.name)
            self._stop_asked.set()
            if not self._is_up:
                # The start waits for one of these.
                for process in self._running:
                    self._begin(_stopped(process))
        elif number is signal.SIGHUP:
            _log.info("reload_asked", signal=number.name)
            for process in self._serving.values():
                process.reload()
        else:
            _log.info("restart_asked", signal=number.name)
            self._begin(self._restart_all())

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work, name="supervisor")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _stopped(process: ReplicaProcess) -> None:
    await process.stop()


def run(settings: Settings) -> int:
    """Supervise until a stop signal; print errors to stderr; return the exit code."""
    writer = configure_logging(settings.log_level, settings.log_format).writer
    supervisors: list[Supervisor] = []

    def end() -> None:
        for supervisor in supervisors:
            supervisor.kill()
        writer.flush(LAST_LINES_S)

    signals = Signals(["SIGHUP", "SIGUSR2"], ending=end)
    try:
        with signals, ExitStack() as held, TemporaryDirectory(prefix="agent-routing-") as folder:
            writer.start()
            supervisors.append(Supervisor(hold_ports(settings, held), Path(folder)))
            return asyncio.run(supervisors[0].run(signals))
    except ListenFailed as error:
        writer.write(f"error: {error}".encode("utf-8", "replace"))
        return EXIT_FAILED
    finally:
        writer.flush(LAST_LINES_S)
