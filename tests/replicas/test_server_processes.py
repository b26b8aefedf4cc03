"""`serve --processes 2`: kills, a rolling restart and an orderly stop, under load."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import agent_routing
from agent_routing import outcomes
from routing_service.examples import EXAMPLES

COMMAND = Path(sys.executable).parent / "agent-routing"
START_S = 240
"""Three processes start on a machine that many share."""


@dataclass
class Supervised:
    """A supervisor and what it serves."""

    process: subprocess.Popen[str]
    target: str
    folder: Path
    ports: dict[str, int]

    @property
    def children(self) -> list[int]:
        """The process ids of its server processes."""
        pid = self.process.pid
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    @staticmethod
    def runs(pid: int) -> bool:
        """Whether a process has not ended."""
        return Path(f"/proc/{pid}").exists()

    def page(self, name: str, path: str) -> str:
        """Read a page of its metrics or probes."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[name]}{path}") as page:
            return page.read().decode()

    def figures(self) -> dict[str, float]:
        """The metrics, summed over the labels."""
        sums: dict[str, float] = defaultdict(float)
        for family in text_string_to_metric_families(self.page("metrics", "/metrics")):
            for sample in family.samples:
                sums[sample.name] += sample.value
        return sums

    async def until(self, log_event: str, count: int = 1) -> None:
        """Wait until its log has an event so often."""
        async with asyncio.timeout(START_S):
            while self._logged(log_event) < count:  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.1)

    def log_lines(self) -> list[str]:
        """The lines of its log, and of its processes', that are JSON."""
        lines = (self.folder / "log").read_text().splitlines()
        return [line for line in lines if line[:1] == "{"]

    def _logged(self, log_event: str) -> int:
        return sum(json.loads(line)["event"] == log_event for line in self.log_lines())


def free_ports(count):
    """Ports that nothing listens on."""
    socks = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in socks]
    for sock in socks:
        sock.close()
    return ports


@pytest.fixture
def supervised(own_postgres, tmp_path):
    """Two server processes on PostgreSQL."""
    metrics, probes = free_ports(2)
    flags = {
        "listen": "127.0.0.1:0",
        "store": own_postgres.url(),
        "agents": EXAMPLES["tax"].registry_path,
        "processes": 2,
        "metrics-listen": f"127.0.0.1:{metrics}",
        "probe-listen": f"127.0.0.1:{probes}",
        "log-format": "json",
        "traces": f"file:{tmp_path / 'spans.jsonl'}",
        "traces-new-percent": 100,
    }
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [COMMAND, "serve", *(f"--{name}={value}" for name, value in flags.items())],
            # The processes after the first one need not compile again.
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path),
                "PYTHONPYCACHEPREFIX": str(tmp_path / "compiled"),
            },
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        line = process.stdout.readline()
        assert line.startswith("serving on "), (tmp_path / "log").read_text()[-3_000:]
        target = line.removeprefix("serving on ").strip()
        ports = {"metrics": metrics, "probes": probes}
        yield Supervised(process, target, tmp_path, ports)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)
        process.stdout.close()


@dataclass
class Load:
    """Callers with a connection and sessions of their own, and what they were answered."""

    target: str
    turns: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    errors: list[BaseException] = field(default_factory=list)
    calls: int = 0
    stopped: bool = False

    async def caller(self, number: int) -> None:
        """Play turn after turn until stopped."""
        settings = {"fallback": None, "timeout": 30}
        # A subchannel pool of its own: otherwise all callers would share one connection.
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with agent_routing.AsyncClient(self.target, options=options, **settings) as client:
            while not self.stopped:
                session_id = f"{id(self)}-{number}-{self.calls % 3}"
                try:
                    turn = await client.route("tax?", session_id=session_id, user_id="ana")
                    text = f"answer to {turn.request_id}"
                    await client.complete_turn(
                        session_id,
                        turn.request_id,
                        turn.agent_id,
                        outcomes.proceed(),
                        text=text,
                        user_id="ana",
                    )
                except agent_routing.RoutingError as error:
                    self.errors.append(error)
                    continue
                self.turns[session_id].append(turn.request_id)
                self.calls += 2

    async def wrong_answers(self) -> list[str]:
        """What the stored sessions lack, or have twice, of what was answered."""
        wrong: list[str] = []
        async with agent_routing.AsyncClient(self.target, fallback=None, timeout=30) as client:
            for session_id, answered in self.turns.items():
                stored = {
                    turn.request_id: turn.agent_text
                    async for turn in client.list_turns(session_id, user_id="ana")
                }
                counted = Counter(answered)
                wrong += [each for each, times in counted.items() if times > 1]
                wrong += [each for each in answered if stored.get(each) != f"answer to {each}"]
                status = await client.status(session_id, user_id="ana")
                if not self.errors and status.revision != 2 * len(answered):
                    wrong.append(f"{session_id}: {status.revision} changes, {len(answered)} turns")
        return wrong


@pytest.mark.skipif(not hasattr(signal, "SIGUSR2"), reason="signals of Unix")
async def test_kills_and_a_rolling_restart_give_no_wrong_answer_and_no_failed_call(supervised):
    """One process is killed and replaced, then both are restarted in turn, then all stop."""
    load = Load(supervised.target)
    callers = [asyncio.create_task(load.caller(number)) for number in range(8)]
    await asyncio.sleep(2)
    first = supervised.children
    assert len(first) == 2

    os.kill(first[0], signal.SIGKILL)
    await supervised.until("process_ended")
    before = await asyncio.to_thread(supervised.figures)
    await supervised.until("process_serving", 3)
    killed_errors, load.errors = load.errors, []
    assert {type(error) for error in killed_errors} <= {agent_routing.errors.Unavailable}

    second = supervised.children
    assert len(second) == 2
    assert first[0] not in second
    supervised.process.send_signal(signal.SIGUSR2)
    await supervised.until("restarted")
    assert load.errors == []
    third = supervised.children
    assert set(third).isdisjoint(second)
    await asyncio.sleep(1)

    load.stopped = True
    await asyncio.gather(*callers)
    assert load.errors == []
    assert load.calls > 50
    if killed_errors:
        load.errors = killed_errors
    assert await load.wrong_answers() == []

    figures = await asyncio.to_thread(supervised.figures)
    assert figures["agent_routing_processes"] == 2
    assert figures["agent_routing_process_restarts_total"] == 1
    duration = "agent_routing_call_duration_seconds_count"
    # What the killed process had counted since its last page is lost, and no more.
    assert figures[duration] >= before[duration] > 0
    assert (await asyncio.to_thread(supervised.page, "probes", "/readyz")).startswith("ok: 2 of 2")

    supervised.process.terminate()
    assert await asyncio.to_thread(supervised.process.wait, 60) == 0

    # Each line of the log says which process wrote it.
    lines = [json.loads(line) for line in supervised.log_lines()]
    served = {line["pid"] for line in lines if line["event"] == "process_serving"}
    # A process that replaced another one may have got no connection.
    assert {line["pid"] for line in lines if line["event"] == "decision"} <= served
    assert served == {*first, *second, *third}
    # All processes append to one file of spans, and no line is broken by another.
    spans = (supervised.folder / "spans.jsonl").read_text().splitlines()
    assert {json.loads(span)["name"].rpartition("/")[2] for span in spans} >= {
        "Route",
        "CompleteTurn",
    }


async def test_processes_end_with_their_supervisor(supervised):
    """However it ends: nothing would restart them, and they would hold the port."""
    children = supervised.children
    supervised.process.kill()
    supervised.process.wait()
    until_s = time.monotonic() + 60
    while any(map(supervised.runs, children)):
        assert time.monotonic() < until_s
        await asyncio.sleep(0.1)
    with pytest.raises(agent_routing.errors.Unavailable):
        async with agent_routing.AsyncClient(supervised.target, fallback=None) as client:
            await client.list_agents(timeout=2)


def test_what_keeps_the_first_process_from_starting_is_said_once(tmp_path):
    """The exit code is that of one process, and the others are not tried."""
    registry = tmp_path / "agents.yaml"
    registry.write_text("api_version: agent_routing/v1\nversion: 1\n")
    flags = ["--processes=2", "--store=postgres://127.0.0.1:1/chat", f"--agents={registry}"]
    done = subprocess.run(
        [COMMAND, "serve", "--listen=127.0.0.1:0", *flags],
        capture_output=True,
        check=False,
        cwd=tmp_path,
        text=True,
        timeout=START_S,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("agents is missing") == 1
    assert str(registry) in done.stderr
