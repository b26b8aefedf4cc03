"""Several `agent-routing serve` processes on one store, which can be killed and restarted.

Owns the processes, their addresses (a unix socket, the same after each start, since another process
could take a free port; another one if options say so) and their logs. It ends only the processes
that it started.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import agent_routing

COMMAND: Final = Path(sys.executable).parent / "agent-routing"

START_TIMEOUT_S: Final = 60
"""A start takes a second; this is for a machine that many share."""

END_TIMEOUT_S: Final = 60


@dataclass
class Replica:
    """One server process."""

    number: int
    folder: Path
    store_url: str
    registry: Path
    options: Mapping[str, str] = field(default_factory=dict)
    """Further settings of `agent-routing serve`, and other values of those below."""
    starts: int = 0
    process: asyncio.subprocess.Process | None = None

    @property
    def path(self) -> Path:
        """Its socket."""
        return self.folder / f"r{self.number}"

    @property
    def address(self) -> str:
        """Its address, as a gRPC target."""
        return self.options.get("listen") or f"unix:{self.path}"

    @property
    def log(self) -> str:
        """Its log lines, over all starts."""
        path = self.folder / f"log-{self.number}"
        return path.read_text("utf-8") if path.exists() else ""

    async def start(self) -> None:
        """Start it; return once it serves."""
        assert self.process is None
        flags = {
            "listen": self.address,
            "store": self.store_url,
            "agents": self.registry,
            "log_level": "warning",
            **self.options,
        }
        with (self.folder / f"log-{self.number}").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                str(COMMAND),
                "serve",
                *(f"--{name.replace('_', '-')}={value}" for name, value in flags.items()),
                cwd=self.folder,
                env={"PATH": os.environ["PATH"], "HOME": str(self.folder)},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), START_TIMEOUT_S)
        assert line.startswith(b"serving on "), (line, self.log[-3_000:])
        self.starts += 1

    async def kill(self) -> None:
        """Kill it with SIGKILL."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """Stop it gracefully: it drains."""
        await self._end(signal.SIGTERM)

    async def _end(self, number: signal.Signals) -> None:
        process, self.process = self.process, None
        if process is not None:
            if process.returncode is None:
                process.send_signal(number)
            await asyncio.wait_for(process.wait(), END_TIMEOUT_S)


@dataclass
class ReplicaSet:
    """All replicas of one store."""

    replicas: list[Replica] = field(default_factory=list)

    @property
    def target(self) -> str:
        """All of them, as one target of a client."""
        return "unix:" + ",".join(str(replica.path) for replica in self.replicas)

    def client(self, target: str = "", **settings: object) -> agent_routing.AsyncClient:
        """Return the project's client with default settings, except for the fallback."""
        return agent_routing.AsyncClient(target or self.target, **({"fallback": None} | settings))


@asynccontextmanager
async def serving_replicas(store_url: str, registry: str, count: int) -> AsyncIterator[ReplicaSet]:
    """Start replicas of a store; stop them all when the block ends."""
    # Its own folder: a socket's path has at most 107 bytes.
    with TemporaryDirectory(prefix="routing-") as name:
        folder = Path(name)
        file = folder / "agents.yaml"
        file.write_text(registry, "utf-8")
        replicas = [Replica(number, folder, store_url, file) for number in range(count)]
        try:
            # One after the other: the first one creates the tables.
            for replica in replicas:
                await replica.start()
            yield ReplicaSet(replicas)
        finally:
            for replica in replicas:
                await replica.kill()
