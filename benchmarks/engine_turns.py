"""Durable turns a second by engine, against what the engine itself can commit on this machine.

A turn is a Route and, for each agent it reaches, a CompleteTurn, over gRPC: two commits, or three
if the supervisor hands over. The reference is the engine's simplest durable write, of the same
bytes, with as many callers, to the same disk, in the same run. So the figure is the share of the
engine's own speed that is left, and it is comparable between machines. The bare echo answers as
many calls as the turns take, so its rate is what a service in Python would do that stores nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import psycopg
import redis.asyncio

from benchmarks import service, talk
from benchmarks.postgres_appends import (
    ANSWER_BYTES,
    EVENTS_BYTES,
    SETTINGS,
    STATE_BYTES,
    pgbench,
    prepare,
)
from benchmarks.route_speed import echo_server
from benchmarks.story import Load
from tests.engines import redis_server
from tests.engines.postgres_server import PostgresServer, start_server

ROW_BYTES: Final = EVENTS_BYTES + ANSWER_BYTES + STATE_BYTES
ROUND_S: Final = 3.0
WARM: Final = Load(sessions=32, turns_per_session=3, concurrency=32)


@dataclass(frozen=True)
class Engine:
    """An engine that is running, with nothing in it.

    commits: commits rows with so many callers for ROUND_S; returns how many a second.
    stored_bytes: what its data takes now, indexes and all. logged_bytes: what it has written to its
    log so far, which is what a standby is sent. processes: its own, if it is a server.
    """

    store_url: str
    commits: Callable[[int], float]
    stored_bytes: Callable[[], int]
    logged_bytes: Callable[[], int] = int
    processes: Callable[[], list[int]] = list


@contextlib.contextmanager
def _sqlite() -> Iterator[Engine]:
    """Give a file, and one connection that commits row after row: SQLite has one writer."""
    with tempfile.TemporaryDirectory() as folder:
        connection = sqlite3.connect(f"{folder}/reference.db", isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE single (id INTEGER PRIMARY KEY, data BLOB)")

        def commits(_callers: int) -> float:
            count, begun_s = 0, time.perf_counter()
            while time.perf_counter() - begun_s < ROUND_S:
                connection.execute("INSERT INTO single (data) VALUES (?)", (os.urandom(ROW_BYTES),))
                count += 1
            return count / (time.perf_counter() - begun_s)

        try:
            yield Engine(
                store_url=f"sqlite:///{folder}/routing.db",
                commits=commits,
                stored_bytes=lambda: _sqlite_bytes(f"{folder}/routing.db"),
            )
        finally:
            connection.close()


@contextlib.contextmanager
def _postgres() -> Iterator[Engine]:
    """Give a server that waits for its disk, and pgbench with a single-row INSERT."""
    server = start_server(SETTINGS)
    try:
        prepare(server)
        yield Engine(
            store_url=server.socket_url(),
            commits=partial(pgbench, server),
            stored_bytes=lambda: _postgres_bytes(server),
            logged_bytes=lambda: _postgres_logged(server),
            processes=lambda: _family(server.pid),
        )
    finally:
        server.remove()


@contextlib.contextmanager
def _redis() -> Iterator[Engine]:
    """Give a server that syncs each write, and callers who each SET and wait for the disk."""
    server = redis_server.start_server()
    try:
        yield Engine(
            store_url=server.socket_url(),
            commits=lambda callers: asyncio.run(_redis_commits(server, callers)),
            stored_bytes=lambda: _redis_info(server, "memory", "used_memory"),
            logged_bytes=lambda: _redis_info(server, "persistence", "aof_current_size"),
            processes=lambda: [server.pid],
        )
    finally:
        server.remove()


async def _redis_commits(server: redis_server.RedisServer, callers: int) -> float:
    """Write with so many connections: each a SET and a WAITAOF in one round trip.

    Written in Python because the wheel lacks redis-benchmark, so Redis itself could do more.
    """
    counts = [0] * callers
    begun_s = time.perf_counter()

    async def write(number: int) -> None:
        client = redis.asyncio.Redis(
            unix_socket_path=str(server.socket), password=server.password, db=1
        )
        async with client:
            while time.perf_counter() - begun_s < ROUND_S:
                pipeline = client.pipeline(transaction=False)
                pipeline.set(f"single-{number}-{counts[number] % 1000}", os.urandom(ROW_BYTES))
                pipeline.execute_command("WAITAOF", 1, 0, 10_000)
                _, (synced, _) = await pipeline.execute()
                assert synced == 1
                counts[number] += 1

    await asyncio.gather(*map(write, range(callers)))
    return sum(counts) / (time.perf_counter() - begun_s)


def _redis_info(server: redis_server.RedisServer, section: str, name: str) -> int:
    with server.client() as client:
        return int(client.info(section)[name])


def _sqlite_bytes(path: str) -> int:
    """Return the size of a file and its log."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        (free,) = connection.execute("PRAGMA freelist_count").fetchone()
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    return int((pages - free) * page_bytes)


def _postgres_bytes(server: PostgresServer) -> int:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("VACUUM")
        row = connection.execute(
            "SELECT sum(pg_total_relation_size(oid)) FROM pg_class "
            "WHERE relkind IN ('r', 'p') AND relnamespace = 'agent_routing'::regnamespace"
        ).fetchone()
    assert row is not None
    return int(row[0])


def _postgres_logged(server: PostgresServer) -> int:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        query = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')"
        row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


ENGINES: Final = {"sqlite": _sqlite, "postgres": _postgres, "redis": _redis}


def turns_vs_commits(engine: str, load: Load, rounds: int) -> dict[str, list[float]]:
    """Play durable turns on an engine, and commit rows to it, in turn."""
    rates: dict[str, list[float]] = {"ours": [], "reference": [], "an echo's": []}
    calls = load.turns * 2 + load.sessions
    with (
        ENGINES[engine]() as running,
        service.server(running.store_url) as address,
        echo_server() as (echo, _pid),
    ):
        service.play(address, WARM)
        for _ in range(rounds):
            rates["reference"].append(running.commits(load.concurrency))
            rates["ours"].append(service.play(address, load).turns_per_s)
            rates["an echo's"].append(_echoed(echo, calls, load) * load.turns / calls)
    return rates


def _echoed(address: str, calls: int, load: Load) -> float:
    """Play so many calls to the bare echo; return how many it answered a second."""
    talks = talk.messages(talk.names(load.sessions), calls // load.sessions)
    return service.converse(address, talks, load.concurrency).calls_per_s


FIGURES: Final[dict[str, Callable[[Load, int], dict[str, list[float]]]]] = {
    f"turns_vs_{engine}_commits": partial(turns_vs_commits, engine) for engine in ENGINES
}
