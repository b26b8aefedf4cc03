"""A durable Route against a bare echo of the same messages: how much of gRPC's own speed is left.

Both servers keep running and are loaded in turn, by the same client with the same bytes. The client
is that of wire.py; if h2load (Debian: nghttp2-client) is installed it loads both too, and the
figure is the lower of the two ratios. h2load counts every answer with HTTP 200, so its messages are
counted again in the store. It sends the same bytes each time, so each of its messages begins a
session.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sqlite3
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from agent_routing.v1 import routing_service_pb2 as pb
from benchmarks import python_client, service, talk, wire
from benchmarks.figure import Figure, Scale, ratios
from benchmarks.story import USER_TEXT

MESSAGES_PER_SESSION: Final = 4
"""Unanswered messages of a session in a round: users write faster than agents answer."""

RATIO_LEAST: Final = 0.60
CPU_RATIO_LEAST: Final = 0.65
LONE_MS_MOST: Final = 0.3
STREAM_RATIO_LEAST: Final = 1.5
_Server = tuple[str, int]
"""An address and a process id."""
_Subject = tuple[str, _Server]

WAL_FRAME_BYTES: Final = 4096 + 24
"""One page of SQLite's log: the least that a commit syncs."""


@contextlib.contextmanager
def echo_server() -> Iterator[tuple[str, int]]:
    """Run the reference; yield its address and process id."""
    command = [sys.executable, "-m", "benchmarks.echo_server"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().removeprefix(service.READY).strip(), process.pid
    finally:
        process.terminate()
        process.wait(service.STOP_S_MAX)


def measure(scale: Scale) -> list[Figure]:
    """Return the figures of calls and of messages on a stream, and the costs of each."""
    with tempfile.TemporaryDirectory() as name, echo_server() as (echo, echo_pid):
        folder = Path(name)
        store = folder / "routing.db"
        with service.server_process(f"sqlite:///{store}") as (ours, ours_pid):
            figures = [
                *_concurrent(scale, (echo, echo_pid), (ours, ours_pid), store),
                *_lone(scale, echo, ours, folder),
                *_stream(scale, (ours, ours_pid)),
            ]
    return figures


def _concurrent(scale: Scale, echo: _Server, ours: _Server, store: Path) -> list[Figure]:
    rounds: dict[str, list[float]] = {
        "ours /s": [],
        "echo /s": [],
        "ours CPU us": [],
        "echo CPU us": [],
    }
    sessions = scale.turns // MESSAGES_PER_SESSION
    for number in range(scale.rounds_of_calls + 1):
        begun = talk.names(sessions)
        service.converse(ours[0], [talk.turns(n, 1) for n in begun], scale.at_once)
        for who, (address, pid) in _in_turn(number, ("echo", echo), ("ours", ours)):
            load = talk.messages(begun, MESSAGES_PER_SESSION)
            cpu_s = service.cpu_s(pid)
            played = service.converse(address, load, scale.at_once)
            cpu_s = service.cpu_s(pid) - cpu_s
            if number:  # The first round only warms up.
                rounds[f"{who} /s"].append(played.calls_per_s)
                rounds[f"{who} CPU us"].append(cpu_s * 1e6 / len(played.call_seconds))
    per_round = ratios(rounds, "ours /s", "echo /s")
    by_wire = statistics.median(per_round)
    beside: dict[str, Any] = {"wire_client": round(by_wire, 3)}
    by_cpu = Figure.of(
        "route_vs_echo_cpu",
        ratios(rounds, "echo CPU us", "ours CPU us"),
        "of echo",
        CPU_RATIO_LEAST,
        rounds={name: values for name, values in rounds.items() if name.endswith("us")},
        beside={"route_cpu_us": round(statistics.median(rounds["ours CPU us"]))},
    )
    beside["processor_time"] = round(by_cpu.value, 3)
    if shutil.which("h2load"):
        by_h2load = _by_h2load(scale, echo[0], ours[0], store)
        rounds |= by_h2load
        of_h2load = ratios(by_h2load, "ours /s by h2load", "echo /s by h2load")
        beside["h2load"] = round(statistics.median(of_h2load), 3)
        per_round = min(per_round, of_h2load, key=statistics.median)
    else:
        beside["h2load"] = "is not here: apt-get install nghttp2-client"
    return [
        Figure.of("route_vs_echo", per_round, "of echo", RATIO_LEAST, rounds=rounds, beside=beside),
        by_cpu,
    ]


def _in_turn(number: int, *subjects: _Subject) -> tuple[_Subject, ...]:
    """Return the subjects of a round, each first in every second one.

    So a load that rises or falls during a round favours neither.
    """
    return subjects if number % 2 else subjects[::-1]


def _by_h2load(scale: Scale, echo: str, ours: str, store: Path) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {"ours /s by h2load": [], "echo /s by h2load": []}
    for number in range(scale.rounds_of_calls + 1):
        if number % 2:
            echo_rate = _h2load(echo, scale)
        before = _changes(store)
        ours_rate = _h2load(ours, scale)
        done = _changes(store) - before
        if not number % 2:
            echo_rate = _h2load(echo, scale)
        if done != scale.turns:
            message = f"of {scale.turns} messages by h2load {done} were stored"
            raise RuntimeError(message)
        if number:
            rates["echo /s by h2load"].append(echo_rate)
            rates["ours /s by h2load"].append(ours_rate)
    return rates


def _h2load(address: str, scale: Scale) -> float:
    """Let h2load send one message so many times; return how many a second were answered."""
    message = pb.RouteRequest(user_id="user", text=USER_TEXT).SerializeToString()
    with tempfile.NamedTemporaryFile() as body:
        body.write(b"\x00" + struct.pack(">I", len(message)) + message)
        body.flush()
        streams = max(1, scale.at_once // service.CONNECTIONS)
        done = subprocess.run(
            [
                "h2load",
                f"--requests={scale.turns}",
                f"--clients={service.CONNECTIONS}",
                f"--max-concurrent-streams={streams}",
                f"--data={body.name}",
                "--header=content-type: application/grpc",
                "--header=te: trailers",
                f"http://{address}/agent_routing.v1.RoutingService/Route",
            ],
            check=True,
            capture_output=True,
            text=True,
        )
    found = re.search(r"finished in .*, ([\d.]+) req/s", done.stdout)
    if found is None or f" {scale.turns} succeeded, 0 failed" not in done.stdout:
        message_of_it = f"h2load was not answered: {done.stdout}"
        raise RuntimeError(message_of_it)
    return float(found[1])


def _changes(store: Path) -> int:
    with contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
        return int(connection.execute("SELECT max(position) FROM changes").fetchone()[0])


def _lone(scale: Scale, echo: str, ours: str, folder: Path) -> list[Figure]:
    """Measure one call at a time: a user's wait on an idle server."""
    rounds: dict[str, list[float]] = {"ours p50 ms": [], "echo p50 ms": [], "fsync ms": []}
    [session] = talk.names(1)
    for number in range(scale.rounds_of_calls + 1):
        fsync_ms = sync_ms(folder, scale.lone_calls // 2)
        echo_ms = _p50_ms(wire.play(echo, _messages(scale), connections=1, at_once=1).call_seconds)
        # Routes alone, without the cost of their answers.
        seconds: list[float] = []
        heard: list[str] = []
        played = wire.play(
            ours, [talk.turns(session, scale.lone_calls, heard.append)], connections=1, at_once=1
        )
        seconds = [
            taken_s
            for call, taken_s in zip(heard, played.call_seconds, strict=True)
            if call == "route"
        ]
        if number:
            rounds["fsync ms"].append(fsync_ms)
            rounds["echo p50 ms"].append(echo_ms)
            rounds["ours p50 ms"].append(_p50_ms(seconds))
    medians = {name: statistics.median(values) for name, values in rounds.items()}
    over_ms = medians["ours p50 ms"] - medians["echo p50 ms"]
    return [
        Figure(
            "route_p50_over_echo_ms",
            over_ms,
            "ms",
            medians["fsync ms"] + LONE_MS_MOST,
            is_most=True,
            rounds=rounds,
            per_round=[
                one - other
                for one, other in zip(rounds["ours p50 ms"], rounds["echo p50 ms"], strict=True)
            ],
        ),
        Figure("fsync_ms", medians["fsync ms"], "ms"),
    ]


def _messages(scale: Scale) -> list[wire.Next]:
    return talk.messages(talk.names(1), scale.lone_calls)


def _p50_ms(seconds: list[float]) -> float:
    return statistics.median(seconds) * 1e3


def sync_ms(folder: Path, count: int) -> float:
    """Return the median time of a write to the end of a file with its fsync, in milliseconds."""
    taken_s = []
    with (folder / "synced").open("wb", buffering=0) as file:
        for _ in range(count):
            begun_s = time.perf_counter()
            file.write(bytes(WAL_FRAME_BYTES))
            os.fsync(file.fileno())
            taken_s.append(time.perf_counter() - begun_s)
    return _p50_ms(taken_s)


def _stream(scale: Scale, ours: _Server) -> list[Figure]:
    """Compare the Python client's stream with its ordinary calls."""
    address, pid = ours
    kinds = ("unary", ours), ("stream", ours)
    rounds: dict[str, list[float]] = {
        "stream /s": [],
        "unary /s": [],
        "stream CPU us": [],
        "unary CPU us": [],
    }
    messages = scale.sessions * python_client.MESSAGES_PER_SESSION
    for number in range(scale.rounds_of_calls + 1):
        for kind, _ in _in_turn(number, *kinds):
            cpu_s = service.cpu_s(pid)
            names = talk.names(scale.sessions)
            rate = python_client.play(address, names, scale, by_stream=kind == "stream")
            cpu_s = service.cpu_s(pid) - cpu_s
            if number:
                rounds[f"{kind} /s"].append(rate)
                rounds[f"{kind} CPU us"].append(cpu_s * 1e6 / messages)
    of_cpu = ratios(rounds, "unary CPU us", "stream CPU us")
    return [
        Figure.of(
            "stream_vs_unary",
            ratios(rounds, "stream /s", "unary /s"),
            "of unary",
            STREAM_RATIO_LEAST,
            rounds=rounds,
        ),
        Figure.of(
            "stream_vs_unary_cpu",
            of_cpu,
            "of unary",
            rounds={name: values for name, values in rounds.items() if name.endswith("us")},
            beside={
                f"{kind}_cpu_us": round(statistics.median(rounds[f"{kind} CPU us"]))
                for kind in ("stream", "unary")
            },
        ),
    ]
