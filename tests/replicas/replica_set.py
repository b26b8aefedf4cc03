"""Several `agent-routing serve` processes on one store, each to be killed and started again.

Owns: the processes, where each listens (a unix socket, the same after each start, since a free port
may be somebody else's by then) and their logs. Must not know: what is said to them.
Rule: it ends no process but those that it started.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
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
    starts: int = 0
    process: asyncio.subprocess.Process | None = None

    @property
    def path(self) -> Path:
        """Its socket."""
        return self.folder / f"r{self.number}"

    @property
    def address(self) -> str:
        """Where it listens, as a gRPC target."""
        return f"unix:{self.path}"

    @property
    def log(self) -> str:
        """All that it has logged, over all starts."""
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
        """End it by SIGKILL, wherever it is."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """End it in order: it drains."""
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
        """Return the project's own client, as it comes but for the fallback."""
        return agent_routing.AsyncClient(target or self.target, **({"fallback": None} | settings))


@asynccontextmanager
async def serving_replicas(store_url: str, registry: str, count: int) -> AsyncIterator[ReplicaSet]:
    """Start so many replicas of a store; end them all when the block ends."""
    # A folder of its own: a socket's path has at most 107 bytes.
    with TemporaryDirectory(prefix="routing-") as name:
        folder = Path(name)
        file = folder / "agents.yaml"
        file.write_text(registry, "utf-8")
        replicas = [Replica(number, folder, store_url, file) for number in range(count)]
        try:
            # One after the other: the first makes the tables.
            for replica in replicas:
                await replica.start()
            yield ReplicaSet(replicas)
        finally:
            for replica in replicas:
                await replica.kill()
