"""The service under load: its own process, a store on disk, a client in another process."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from benchmarks import talk, wire
from benchmarks.story import SPECIALIST, SUPERVISOR, Load, Result

REGISTRY: Final = f"""\
api_version: agent_routing/v1
version: benchmark
supervisor: {SUPERVISOR}
agents:
  - id: {SUPERVISOR}
    name: {{en: Coordinator}}
    description: Hands over to the specialist.
    kind: supervisor
  - id: {SPECIALIST}
    name: {{en: Billing}}
    description: Invoices and payments.
"""
READY: Final = "serving on "
CONNECTIONS: Final = 8
STOP_S_MAX: Final = 15


@contextlib.contextmanager
def server(store_url: str = "") -> Iterator[str]:
    """Run `agent-routing serve` with all its defaults; yield its address.

    store_url: "" = a new SQLite store.
    """
    with server_process(store_url) as (address, _pid):
        yield address


@contextlib.contextmanager
def server_process(
    store_url: str = "", *options: str, registry: str = REGISTRY
) -> Iterator[tuple[str, int]]:
    """Run it; yield its address and its process id.

    options: of `agent-routing serve`. registry: the text of its file.
    """
    with tempfile.TemporaryDirectory() as folder:
        agents = Path(folder) / "agents.yaml"
        agents.write_text(registry)
        store = store_url or f"sqlite:///{folder}/routing.db"
        command = [str(Path(sys.executable).parent / "agent-routing"), "serve"]
        command += ["--listen", "127.0.0.1:0", "--store", store, "--agents", str(agents), *options]
        with (Path(folder) / "server.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                if not line.startswith(READY):
                    message = f"the server did not start: {line!r}"
                    raise RuntimeError(message)
                yield line.removeprefix(READY).strip(), process.pid
            finally:
                process.terminate()
                process.wait(STOP_S_MAX)


def cpu_s(pid: int) -> float:
    """Return the processor time of a process so far, all its threads together."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


def rss_mb(pid: int) -> float:
    """Return the memory that a process has now, in 10^6 bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024 / 1e6


def play(address: str, load: Load) -> Result:
    """Play the load: every turn a Route and, for each agent it reaches, a CompleteTurn.

    By the client of wire.py, so that the service is measured and not a client.
    """
    talks = [talk.turns(name, load.turns_per_session) for name in talk.names(load.sessions)]
    return Result(load.turns, converse(address, talks, load.concurrency).seconds)


def converse(address: str, talks: Iterable[wire.Next], at_once: int) -> wire.Played:
    """Hold conversations over the benchmarks' connections, so many of them at a time."""
    return wire.play(address, talks, connections=CONNECTIONS, at_once=at_once)
