"""Fixtures that the server tests share: servers in this process, server processes, and tools.

The servers in this process come from live_service.py, which also has the conversation helpers.
"""

import asyncio
import dataclasses
import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.rpc.live_service import serving
from tests.tax_without_topics import tax_without_topics

BIN = Path(sys.executable).parent
"""Where the commands of this environment are: agent-routing, grpcurl, buf."""

START_TIMEOUT_S = 20
END_TIMEOUT_S = 20


@pytest.fixture
async def start_server(tmp_path):
    """Start servers in this process, as many as a test needs.

    Takes serving()'s own arguments, without the folder. By default all servers use one SQLite file.
    They are stopped when the test ends.
    """
    async with AsyncExitStack() as running:

        async def start(registry="tax", **options):
            return await running.enter_async_context(serving(tmp_path, registry, **options))

        yield start


@pytest.fixture
async def server(start_server):
    """Run a server with the tax example over SQLite."""
    return await start_server()


@dataclasses.dataclass
class Ran:
    """A command that has ended."""

    exit_code: int
    out: str
    err: str


@pytest.fixture
def run_tool(tmp_path):
    """Run a command of this environment, such as grpcurl, to its end."""
    folder = tmp_path / "tool"
    folder.mkdir()

    async def run(name, *arguments):
        process = await asyncio.create_subprocess_exec(
            str(BIN / name),
            *map(str, arguments),
            cwd=folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), END_TIMEOUT_S)
        return Ran(process.returncode, out.decode(), err.decode())

    return run


@dataclasses.dataclass
class ServerProcess:
    """`agent-routing serve` in a process of its own."""

    process: asyncio.subprocess.Process
    address: str
    log: Path

    @property
    def text(self):
        """What it has logged so far."""
        return self.log.read_text(encoding="utf-8")

    def send(self, signal_number):
        """Send a signal to it, and to no other."""
        self.process.send_signal(signal_number)

    async def end(self):
        """Wait until it ends; return its exit code and the rest of its stdout."""
        out = await asyncio.wait_for(self.process.stdout.read(), END_TIMEOUT_S)
        return await asyncio.wait_for(self.process.wait(), END_TIMEOUT_S), out.decode()

    async def logged(self, event):
        """Wait until it has logged an event."""
        async with asyncio.timeout(END_TIMEOUT_S):
            # Another process writes the log, so the test can only poll.
            while f'"event":"{event}"' not in self.text:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@pytest.fixture
async def serve_process(tmp_path):
    """Start `agent-routing serve` with flags; return once it says that it serves."""
    started = []

    async def serve(**flags):
        given = {
            "listen": "127.0.0.1:0",
            "store": f"sqlite:///{tmp_path / 'routing.db'}",
            "agents": tax_without_topics(tmp_path),
            **flags,
        }
        log = tmp_path / f"process-{len(started)}.log"
        with log.open("wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                str(BIN / "agent-routing"),
                "serve",
                *(f"--{name.replace('_', '-')}={value}" for name, value in given.items()),
                cwd=tmp_path,
                env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
            )
        started.append(process)
        line = await asyncio.wait_for(process.stdout.readline(), START_TIMEOUT_S)
        assert line.startswith(b"serving on "), (line, log.read_text(encoding="utf-8"))
        return ServerProcess(process, line.decode().removeprefix("serving on ").strip(), log)

    yield serve
    for process in started:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()
