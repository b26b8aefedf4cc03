"""An `agent-routing serve` process that can be killed and started again.

Owns the process, its address (a unix socket, the same after each start) and its log. It ends only
the process that it started.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import agent_routing

ROOT: Final = Path(__file__).parents[2]
COMMAND: Final = (str(Path(sys.executable).parent / "agent-routing"),)

SPOILT: Final = (sys.executable, "-m", "tests.torture.spoilt_server")
"""The same, with faults that the environment names; see spoilt_server.py."""

PLANTED: Final = "TORTURE_BUG"

START_TIMEOUT_S: Final = 60
"""A start takes a second; this is for a machine that many share."""


@dataclass
class ServerProcess:
    """A server on one store. folder: of its socket, store and log; short, for the socket's path.

    is_traced: the command is a tracer with the server as its one child. start_s: the duration of
    each start, from the command to SERVING. announced: the address that it printed.
    """

    folder: Path
    registry: Path
    command: Sequence[str] = COMMAND
    environment: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, object] = field(default_factory=dict)
    is_traced: bool = False
    start_s: list[float] = field(default_factory=list)
    announced: str = ""
    _process: asyncio.subprocess.Process | None = None

    @property
    def address(self) -> str:
        """Its address."""
        return f"unix:{self.folder / 'serve'}"

    @property
    def pid(self) -> int:
        """The process id of the server."""
        assert self._process is not None
        return self._process.pid

    @property
    def store_path(self) -> Path:
        """The SQLite file."""
        return self.folder / "routing.db"

    @property
    def log(self) -> str:
        """Its log lines, over all starts."""
        path = self.folder / "log"
        return path.read_text("utf-8") if path.exists() else ""

    def send(self, number: signal.Signals) -> None:
        """Send it a signal that does not end it."""
        assert self._process is not None
        self._process.send_signal(number)

    async def launch(self) -> None:
        """Start the process without waiting until it serves."""
        assert self._process is None
        given = {
            "listen": self.address,
            "store": f"sqlite:///{self.store_path}",
            "agents": self.registry,
            "log_level": "warning",
            **self.flags,
        }
        flags = (f"--{name.replace('_', '-')}={value}" for name, value in given.items())
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder), **self.environment}
        command = self.command
        if PLANTED in os.environ:
            # This very test is to find a bug: see planted_bugs.py.
            environment[PLANTED] = os.environ[PLANTED]
            command = SPOILT if command is COMMAND else command
        with (self.folder / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                "serve",
                *flags,
                cwd=ROOT,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )

    async def start(self) -> None:
        """Start the process; return once it serves."""
        begun_s = time.monotonic()
        await self.launch()
        assert self._process is not None
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), START_TIMEOUT_S)
        assert line.startswith(b"serving on "), (line, self.log[-3_000:])
        self.announced = line.decode().removeprefix("serving on ").strip()
        self.start_s.append(time.monotonic() - begun_s)

    async def kill(self) -> None:
        """Kill it with SIGKILL."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> int:
        """Stop it gracefully, and return its exit code."""
        return await self._end(signal.SIGTERM)

    async def wait(self, timeout_s: float = START_TIMEOUT_S) -> int:
        """Wait until it ends, and return its exit code."""
        assert self._process is not None
        code = await asyncio.wait_for(self._process.wait(), timeout_s)
        self._process = None
        return code

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    async def _end(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        if self._process.returncode is None:
            if self.is_traced:
                # The tracer does not forward signals, and ends with its child.
                os.kill(_child_of(self._process.pid), number)
            else:
                self._process.send_signal(number)
        return await self.wait()

    def client(self, **settings: object) -> agent_routing.AsyncClient:
        """Return a client that reconnects quickly after a kill."""
        given = {
            "timeout": 20,
            "retry": agent_routing.RetryPolicy(
                attempts_max=5, backoff_first_s=0.02, backoff_max_s=0.3
            ),
            "fallback": None,
            "options": [("grpc.max_reconnect_backoff_ms", 200)],
        }
        return agent_routing.AsyncClient(self.address, **(given | settings))


class TcpServer(ServerProcess):
    """The same on a TCP port, for hand-made frames."""

    @property
    def address(self) -> str:
        """Its address; before its start, any free port."""
        return self.announced or "127.0.0.1:0"

    @property
    def port(self) -> int:
        """Its port."""
        return int(self.announced.rpartition(":")[2])


def _child_of(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text("utf-8").split()
    return int(child)
