"""The cost of many sessions, of a long session and of many watchers.

The large store is made of one session that the server wrote: its rows are copied under other names,
a million times, straight into the file. The server's cache is small in both runs, and sessions are
chosen from the whole store, so nearly every message has to read its session.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from agent_routing.v1 import routing_service_pb2 as pb
from benchmarks import service, talk, wire
from benchmarks.copied_sessions import COPIED
from benchmarks.figure import Figure, Scale, percentile, ratios
from benchmarks.server_start import serving_s
from routing_service.analytics.stored_forms import ALL_TENANTS, HEAD, Head, decode, encode
from routing_service.storage.open_store import open_store

SESSIONS_FEW: Final = 1_000
CACHE_SESSIONS: Final = 16
"""Cache of the compared servers: too small for a session chosen among a thousand to be in it."""

TURNS_TEMPLATE: Final = 3
TURNS_SHORT: Final = 10
TURNS_TIMED: Final = 3
SHORT_SESSIONS: Final = 20
"""Of a round."""

PAGE: Final = 50
SEED: Final = 7

THROUGHPUT_LEAST: Final = 0.6
P99_MOST: Final = 2.0
LENGTH_MOST: Final = 1.10
RSS_MB_MOST: Final = 200.0
START_S_MOST: Final = 2.0


def measure(scale: Scale) -> list[Figure]:
    """Return the figures of a large store, of a long session and of many watchers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        few, many = folder / "few.db", folder / "many.db"
        _copy_sessions(_template(folder), few, SESSIONS_FEW)
        begun_s = time.monotonic()
        _copy_sessions(folder / "template.db", many, scale.sessions_many)
        made_s = time.monotonic() - begun_s
        figures = [
            *_stores(scale, few, many),
            *_one_large_server(scale, many),
        ]
        figures[0].beside.update(  # type: ignore[attr-defined]
            sessions=scale.sessions_many,
            store_mb=round(many.stat().st_size / 1e6),
            made_in_s=round(made_s, 1),
        )
    return [*figures, *_long_session(scale), *_watchers(scale)]


def copied_store(folder: Path, sessions: int) -> Path:
    """Make a SQLite store with this many copies of an ordinary session; return its path."""
    path = folder / "many.db"
    _copy_sessions(_template(folder), path, sessions)
    return path


def _template(folder: Path) -> Path:
    """Let a server write one ordinary session."""
    path = folder / "template.db"
    with service.server(f"sqlite:///{path}") as address:
        wire.play(address, [talk.turns("template", TURNS_TEMPLATE)], connections=1, at_once=1)
    return path


def _copy_sessions(template: Path, path: Path, count: int) -> None:
    """Fill a file with so many copies of the template's session, named "copy-1" and so on."""
    shutil.copyfile(template, path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -400000")
        for table, changed in COPIED.items():
            connection.execute("BEGIN")
            connection.execute(
                f"CREATE TEMP TABLE one AS SELECT * FROM main.{table} WHERE session_no = 1"
            )
            columns = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
            values = ", ".join(changed.get(column, column) for column in columns)
            # The copies are the outer loop, so that a session's rows stay next to each other.
            connection.execute(
                f"WITH RECURSIVE numbers (n) AS "
                f"(SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count}) "
                f"INSERT INTO main.{table} SELECT {values} FROM numbers CROSS JOIN temp.one"
            )
            connection.execute("DROP TABLE temp.one")
            connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = WAL")
    asyncio.run(_pass_over(path))


async def _pass_over(path: Path) -> None:
    """Mark the figures as up to date: a store that grew in use has no such backlog."""
    store = await open_store(f"sqlite:///{path}")
    head = decode(Head, await store.get_setting(ALL_TENANTS, HEAD), HEAD)
    head = msgspec.structs.replace(head, cursor=await store.log_end())
    await store.put_setting(ALL_TENANTS, HEAD, encode(head))
    await store.close()


def _stores(scale: Scale, few: Path, many: Path) -> list[Figure]:
    rounds: dict[str, list[float]] = {
        "many /s": [],
        "few /s": [],
        "many p99 ms": [],
        "few p99 ms": [],
    }
    cache = ("--cache-sessions-max", str(CACHE_SESSIONS))
    chosen = random.Random(SEED)
    with (
        service.server_process(f"sqlite:///{few}", *cache) as (few_address, _),
        service.server_process(f"sqlite:///{many}", *cache) as (many_address, _),
    ):
        for number in range(scale.rounds + 1):
            for who, address, count in (
                ("few", few_address, SESSIONS_FEW),
                ("many", many_address, scale.sessions_many),
            ):
                picked = chosen.sample(range(1, count + 1), min(scale.turns // 2, count))
                load = talk.messages([f"copy-{place}" for place in picked], 1)
                played = service.converse(address, load, scale.at_once // 2)
                if number:
                    rounds[f"{who} /s"].append(played.calls_per_s)
                    rounds[f"{who} p99 ms"].append(percentile(played.call_seconds, 0.99) * 1e3)
    return [
        Figure.of(
            "throughput_1m_over_1k_sessions",
            ratios(rounds, "many /s", "few /s"),
            "of 1k",
            THROUGHPUT_LEAST,
            rounds={name: values for name, values in rounds.items() if name.endswith("/s")},
            beside={},
        ),
        Figure.of(
            "p99_1m_over_1k_sessions",
            ratios(rounds, "many p99 ms", "few p99 ms"),
            "of 1k",
            P99_MOST,
            is_most=True,
            rounds={name: values for name, values in rounds.items() if name.endswith("ms")},
        ),
    ]


def _one_large_server(scale: Scale, many: Path) -> list[Figure]:
    """Start on the large store, as with all defaults, and fill the cache."""
    starts_s = [serving_s(f"sqlite:///{many}") for _ in range(scale.starts)]
    with service.server_process(f"sqlite:///{many}") as (address, pid):
        idle_mb = service.rss_mb(pid)
        picked = random.Random(SEED + 1).sample(
            range(1, scale.sessions_many + 1), min(scale.sessions_many, 12_000)
        )
        load = talk.messages([f"copy-{place}" for place in picked], 1)
        service.converse(address, load, scale.at_once)
        full_mb = service.rss_mb(pid)
    disk_bytes = many.stat().st_size / scale.sessions_many
    in_cache = min(len(picked), 10_000)
    return [
        Figure(
            "rss_mb_1m_sessions",
            full_mb,
            "MB",
            RSS_MB_MOST,
            is_most=True,
            beside={"before a message": round(idle_mb, 1), "sessions talked in": len(picked)},
        ),
        Figure(
            "start_s_1m_sessions",
            statistics.median(starts_s),
            "s",
            START_S_MOST,
            is_most=True,
            rounds={"start s": starts_s},
        ),
        Figure(
            "bytes_per_idle_session",
            disk_bytes,
            "bytes on disk",
            beside={
                "in memory": 0,
                "in memory while it is in the cache": round((full_mb - idle_mb) * 1e6 / in_cache),
                "turns of a session": TURNS_TEMPLATE,
            },
        ),
    ]


def _long_session(scale: Scale) -> list[Figure]:
    """Time a message in a long session and in a short one, and pages deep in a history."""
    rounds: dict[str, list[float]] = {"long p50 ms": [], "short p50 ms": []}
    pages: dict[str, list[float]] = {"first page ms": [], "page in the middle ms": []}
    [long, *short] = talk.names(1 + (scale.rounds + 1) * SHORT_SESSIONS)
    with service.server() as address:
        _play(address, long, scale.turns_long)
        for number in range(scale.rounds + 1):
            seconds: dict[str, list[float]] = {"long": [], "short": []}
            for _ in range(SHORT_SESSIONS):
                # Another for each sample, so that it stays short.
                session = short.pop()
                _play(address, session, TURNS_SHORT)
                seconds["short"] += _route_seconds(address, session, TURNS_TIMED)
                seconds["long"] += _route_seconds(address, long, TURNS_TIMED)
            if number:
                for who, values in seconds.items():
                    rounds[f"{who} p50 ms"].append(statistics.median(values) * 1e3)
        token = _page_token(address, long, scale.turns_long // 2)
        for _ in range(scale.rounds):
            pages["first page ms"].append(_page_ms(address, long, ""))
            pages["page in the middle ms"].append(_page_ms(address, long, token))
    return [
        Figure.of(
            "p50_10k_over_10_turns",
            ratios(rounds, "long p50 ms", "short p50 ms"),
            "of short",
            LENGTH_MOST,
            is_most=True,
            rounds=rounds,
            beside={"turns": scale.turns_long},
        ),
        Figure.of(
            "page_in_the_middle_over_first",
            ratios(pages, "page in the middle ms", "first page ms"),
            "of first",
            rounds=pages,
        ),
    ]


def _play(address: str, session: str, turns: int) -> None:
    wire.play(address, [talk.turns(session, turns)], connections=1, at_once=1)


def _route_seconds(address: str, session: str, turns: int) -> list[float]:
    """Play turns one after another; return what each Route took."""
    heard: list[str] = []
    played = wire.play(
        address, [talk.turns(session, turns, heard.append)], connections=1, at_once=1
    )
    calls = zip(heard, played.call_seconds, strict=True)
    return [taken_s for call, taken_s in calls if call == "route"]


def _page_token(address: str, session: str, turn: int) -> str:
    """Turn pages until about that turn."""
    token = ""
    for _ in range(turn // 500):
        request = pb.ListTurnsRequest(session_id=session, page_size=500, page_token=token)
        token = pb.ListTurnsResponse.FromString(_list(address, request)[1]).next_page_token
    return token


def _page_ms(address: str, session: str, token: str) -> float:
    request = pb.ListTurnsRequest(session_id=session, page_size=PAGE, page_token=token)
    return statistics.median(_list(address, request)[0] for _ in range(5)) * 1e3


def _list(address: str, request: pb.ListTurnsRequest) -> tuple[float, bytes]:
    answers: list[bytes] = []
    calls = iter([(talk.LIST_TURNS, request.SerializeToString())])

    def listing(answer: bytes) -> tuple[bytes, bytes] | None:
        answers.append(answer)
        return next(calls, None)

    played = wire.play(address, [listing], connections=1, at_once=1)
    return played.call_seconds[0], answers[-1]


def _watchers(scale: Scale) -> list[Figure]:
    """Messages a second while sessions are watched, and how soon all watchers of one know."""
    rounds: dict[str, list[float]] = {"watched /s": [], "unwatched /s": []}
    told_ms: list[float] = []
    with service.server() as address:
        _load(address, scale)
        for _ in range(scale.rounds):
            rounds["unwatched /s"].append(_load(address, scale))
            with _watched(address, scale.watchers) as watchers:
                rounds["watched /s"].append(_load(address, scale))
                told_ms.append(_told_ms(watchers))
    return [
        Figure.of(
            "throughput_watched_over_unwatched",
            ratios(rounds, "watched /s", "unwatched /s"),
            "of unwatched",
            rounds=rounds,
            beside={
                "watchers": scale.watchers,
                "all of one session told in ms": statistics.median(told_ms),
            },
        )
    ]


def _load(address: str, scale: Scale) -> float:
    load = talk.messages(talk.names(scale.turns // 4), 4)
    played = service.converse(address, load, scale.at_once)
    return played.calls_per_s


@contextlib.contextmanager
def _watched(address: str, count: int) -> Iterator[subprocess.Popen[str]]:
    """Let a process watch one session so many times; its loop is not in the client's way."""
    command = [sys.executable, "-m", "benchmarks.watchers", address, str(count)]
    pipes = subprocess.PIPE
    root = Path(__file__).parent.parent
    with subprocess.Popen(command, stdin=pipes, stdout=pipes, text=True, cwd=root) as watchers:
        assert watchers.stdout is not None
        line = watchers.stdout.readline()
        if line != "ready\n":
            message = f"the watchers did not start: {line!r}"
            raise RuntimeError(message)
        yield watchers  # Their input ends with the block, and they with it.


def _told_ms(watchers: subprocess.Popen[str]) -> float:
    """Return how long it takes until every watcher of a session has its next change."""
    assert watchers.stdin is not None
    assert watchers.stdout is not None
    watchers.stdin.write("tell\n")
    watchers.stdin.flush()
    return float(watchers.stdout.readline())
