"""A server on a store of a gigabyte starts quickly, also after a kill with a long log."""

import sqlite3
import statistics
import tempfile
import time
from pathlib import Path

import pytest

from benchmarks.copied_sessions import COPIED
from routing_service.ids import new_uuid7
from tests.rpc.registries import DESK
from tests.torture.linearisability import check
from tests.torture.recorder import Recorder
from tests.torture.server_process import ServerProcess

GIGABYTE = 1_000_000_000

START_S_MAX = 2.0
"""From the command to SERVING: what a deployment that restarts may cost its callers."""

START_RATIO_MAX = 1.2
"""Of the start on an empty store, where the machine is too busy for that to take two seconds."""

CHANGES_PER_SESSION = 10


async def template(folder, registry):
    """Let a server make one ordinary session, the template of all copies."""
    server = ServerProcess(folder, registry)
    await server.start()
    client = server.client()
    for number in range(CHANGES_PER_SESSION):
        text = f"message {number}: " + "what about the invoice of last month? " * 6
        await client.route(text, session_id="template", user_id="ana")
    await client.close()
    assert await server.stop() == 0
    return server


def copy_until(path, size_bytes):
    """Copy the session under other names until the file has the wanted size."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA cache_size = -400000")
    columns = {
        table: [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
        for table in ("sessions", "changes", "tasks")
    }
    statements = []
    for table, names in columns.items():
        values = ", ".join(COPIED[table].get(name, name) for name in names)
        statements.append(
            f"WITH RECURSIVE copies(n) AS (SELECT ? UNION ALL SELECT n + 1 FROM copies "
            f"WHERE n + 1 < ?) INSERT INTO {table} ({', '.join(names)}) "
            f"SELECT {values} FROM copies CROSS JOIN {table} WHERE session_no = 1"
        )
    made, batch = 1, 20_000
    while size_of(connection) < size_bytes:
        connection.execute("BEGIN")
        for statement in statements:
            connection.execute(statement, (made, made + batch))
        connection.execute("COMMIT")
        made += batch
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    return made


def size_of(connection):
    """Return the size of the database in bytes, without its log."""
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    return pages * page_bytes


async def starts(server, recorder, sessions):
    """Three times: write until the log is long, kill, start. Return the durations of the starts."""
    logs = []
    for round_number in range(3):
        await server.start()
        plain = server.client()
        client = recorder.wrap(plain)
        for number in range(400):
            # Spread over the file, so that each write dirties different pages.
            name = f"copy-{1 + (number * 7_919 + round_number) % (sessions - 1)}"
            await client.route("once more", session_id=name, user_id="ana", history_turns=-1)
        await plain.close()
        await server.kill()
        logs.append(server.store_path.with_name("routing.db-wal").stat().st_size)
    await server.start()
    return server.start_s[-3:], logs


@pytest.mark.torture
@pytest.mark.timeout(1800)
async def test_server_on_a_gigabyte_serves_within_two_seconds_also_after_a_kill():
    """The start reads neither sessions nor changes; checkpoints limit the log."""
    with tempfile.TemporaryDirectory(prefix="routing-") as name:
        folder = Path(name)
        registry = folder / "agents.yaml"
        registry.write_text(DESK, "utf-8")
        server = await template(folder, registry)
        begun_s = time.monotonic()
        sessions = copy_until(server.store_path, GIGABYTE)
        built_s = time.monotonic() - begun_s
        size = server.store_path.stat().st_size
        assert size >= GIGABYTE

        empty = ServerProcess(Path(tempfile.mkdtemp(dir=name)), registry)
        for _ in range(3):
            await empty.start()
            await empty.kill()

        await server.start()
        assert await server.stop() == 0
        await server.start()
        assert await server.stop() == 0
        clean_s = min(server.start_s[-2:])
        recorder = Recorder()
        killed_s, logs = await starts(server, recorder, sessions)
        client = server.client()
        status = await client.status("copy-1", user_id="ana")
        assert status.revision >= CHANGES_PER_SESSION
        answer = await client.route(
            "and now", session_id=f"copy-{sessions - 1}", user_id="ana", request_id=new_uuid7()
        )
        assert answer.revision > CHANGES_PER_SESSION
        await client.close()
        await server.kill()
        assert [v for v in check(recorder.history) if v.kind != "phantom"] == []
        figures = {
            "bytes": size,
            "sessions": sessions,
            "built_s": round(built_s, 1),
            "empty_start_s": round(statistics.median(empty.start_s), 2),
            "clean_start_s": round(clean_s, 2),
            "starts_after_kill_s": [round(s, 2) for s in killed_s],
            "log_bytes_at_kill": logs,
        }
        print(f"start on a large store: {figures}")  # noqa: T201 - the figures are the result
        # The best of several, and never less than an empty store needs: other load on this
        # machine is not the server's.
        most_s = max(START_S_MAX, START_RATIO_MAX * statistics.median(empty.start_s))
        assert clean_s <= most_s, figures
        assert min(killed_s) <= most_s, figures
