"""kill -9 of workers in four languages: every turn is answered once, and soon by the next worker.

Two workers of each language serve the same inboxes; they are the programs that test_workers.py
plays. A message says what the functions do: answer, write for longer than a lease, hand over.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.clients.test_workers import PROGRAMS, Programs
from tests.torture.server_process import ROOT, TcpServer
from tests.torture.test_inbox_kills import inbox_kills, store_url

__all__ = ["store_url"]

SECONDS = float(os.environ.get("TORTURE_SECONDS", "180"))
CONCURRENCY = 4
LEASE_S = 4.0
"""A turn is abandoned after five leases, whatever ended them. With 2 s, on a busy machine,
leases lapsed whose workers lived: on Redis 2 of 256 turns were abandoned, most of their leases
without a kill. In a later run calls that extend leases timed out, as the server was slow."""
PAUSES_S = (1.0, 4.0)
"""Between two kills: a JVM and Node take seconds to start on a busy machine."""
PARTS_LONG = 12
"""Parts 0.4 s apart: longer than a lease, which the worker has to extend."""


class ScriptedProcess:
    """A worker of a language that can be killed and started again."""

    def __init__(self, folder: Path, address: str, programs: Programs, name: str) -> None:
        self.log = folder / name
        self.log.touch()
        self.killed_s: list[float] = []
        self._programs = programs
        options = {
            "agents": ["front", "vat"],
            "number": 1,
            "lease_ms": int(LEASE_S * 1000),
            "concurrency": CONCURRENCY,
        }
        self._command = [*map(str, programs.scripted), "work", address, json.dumps(options)]
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start it."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            cwd=ROOT,
            env=self._programs.environ,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        self._reading = asyncio.create_task(self._read(self._process))

    async def kill(self) -> None:
        """Kill it with SIGKILL."""
        if self._process is not None and self._reading is not None:
            if self._process.returncode is None:
                self._process.kill()
            self.killed_s.append(time.monotonic())
            await self._process.wait()
            await self._reading
            self._process = None

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Log what it began, as the workers of test_inbox_kills do."""
        assert process.stdout is not None
        with self.log.open("a", encoding="utf-8") as log:
            async for line in process.stdout:
                said = json.loads(line)
                if said["event"] == "began":
                    log.write(f"{time.monotonic()} {said['request_id']} {said['attempt']}\n")


def message(number: int, dice: random.Random) -> str:
    """Return a message that says what the functions do; its answer has the number."""
    said = f"question {number}"
    kind = dice.random()
    if kind < 0.2:
        acts = {"front": [{"say": said}]}
    elif kind < 0.25:
        acts = {"front": [{"write": [said, *(" and" for _ in range(PARTS_LONG))]}]}
    elif kind < 0.6:
        acts = {"front": [{"handoff": "vat"}], "vat": [{"write": [said]}]}
    else:
        acts = {"front": [{"write": [said, " it is"]}]}
    # An agent that keeps the conversation gets the next message as well.
    acts.setdefault("vat", acts["front"])
    return json.dumps(acts)


@pytest.mark.torture
@pytest.mark.timeout(SECONDS * 2 + 900)
async def test_every_turn_is_answered_once_by_workers_of_four_languages(
    store_url,
    tmp_path_factory,
):
    """Killed at random; a turn that one had begun waits for the lease's end and a second."""
    languages = {
        name: await asyncio.to_thread(made, tmp_path_factory.mktemp(name))
        for name, made in PROGRAMS.items()
    }

    def fleet(folder: Path, address: str) -> list[ScriptedProcess]:
        return [
            ScriptedProcess(folder, address, programs, f"{name}-{number}")
            for name, programs in languages.items()
            for number in (1, 2)
        ]

    figures: dict[str, Any] = await inbox_kills(
        store_url,
        SECONDS,
        kills_servers=False,
        fleet=fleet,
        message=message,
        pauses_s=PAUSES_S,
        server_kind=TcpServer,  # Not every client knows sockets of a file system.
    )
    assert figures["violations"] == []
    assert figures["answers"] >= figures["asked"] > 0
    assert set(figures["begun"]) == set(languages), "a language has begun no turn"
    # The median: a machine that is short of time makes single waits longer.
    assert figures["after_a_kill_s_median"] <= LEASE_S + 1
