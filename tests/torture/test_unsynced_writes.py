"""After a power failure every acknowledged write is on disk, not only in the system's cache.

Two checks. By the order of the system calls: a request's frame in the log, then a sync of the log,
then its answer. And by its effect: a server is killed, all that it had not synced is dropped, torn
or kept at random, and a server that starts on what is left has everything that was acknowledged.
Each is shown to find a server that does not sync.
"""

import asyncio
import os
import random
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from routing_service.ids import new_uuid7
from tests.rpc.registries import DESK
from tests.torture import disk_journal
from tests.torture.recorder import Recorder
from tests.torture.server_process import SPOILT, ServerProcess
from tests.torture.stored_sessions import violations
from tests.torture.talkers import Talker

SEED = int(os.environ.get("TORTURE_SEED", "20260731"))

needs_shared_sqlite = pytest.mark.skipif(
    not disk_journal.is_possible(),
    reason="this Python's sqlite3 has no shared libsqlite3: what it syncs cannot be journalled",
)


@pytest.fixture
def folder():
    """A folder with a short name, for the socket."""
    with tempfile.TemporaryDirectory(prefix="routing-") as name:
        yield Path(name)


def server_of(folder, **environment):
    """A server whose disk is journalled."""
    registry = folder / "agents.yaml"
    registry.write_text(DESK.replace("open_turns: 4", "open_turns: 16"), "utf-8")
    given = {"TORTURE_JOURNAL": str(folder / "journal"), **environment}
    return ServerProcess(folder, registry, SPOILT, given)


def on_disk(folder):
    """Return the content of the store's files while they are not in use."""
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.name.startswith("routing.db") and not path.name.endswith(("-shm", ".lock"))
    }


async def fail_the_power(folder, server, *, failures, writes, talkers_count):
    """Talk, kill, keep what was synced, start again; return the history and the figures."""
    dice = random.Random(SEED)
    recorder = Recorder()
    stopping = False
    client = server.client()
    dropped = syncs = 0
    talkers = [
        Talker(recorder.wrap(client, f"client-{n}"), f"chat-{n // 2}", f"{SEED}-{n}")
        for n in range(talkers_count)
    ]
    before = on_disk(folder)
    await server.start()
    talks = [asyncio.create_task(talker.talk(lambda: stopping)) for talker in talkers]
    try:
        for _ in range(failures):
            wanted = sum(t.answered for t in talkers) + 1 + dice.randrange(2 * writes // failures)
            while sum(t.answered for t in talkers) < wanted:  # noqa: ASYNC110 - many may set it
                await asyncio.sleep(0.002)
            await asyncio.sleep(dice.random() * 0.02)
            await server.kill()
            failure = disk_journal.after_power_failure(folder / "journal", before, folder, dice)
            dropped += failure.unsynced
            syncs += failure.syncs
            before = on_disk(folder)
            await server.start()
        stopping = True
        await asyncio.gather(*talks)
        await asyncio.gather(*(talker.repeat_all() for talker in talkers))
    finally:
        for task in talks:
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)
        await client.close()
        await server.kill()
    found = await violations(f"sqlite:///{server.store_path}", recorder.history)
    figures = {
        "seed": SEED,
        "power_failures": failures,
        "acknowledged_writes": sum(talker.answered for talker in talkers),
        "syncs": syncs,
        "unsynced_writes_dropped_or_torn": dropped,
    }
    print(f"power failures: {figures}")  # noqa: T201 - the figures are what the run is for
    return found, figures


@needs_shared_sqlite
@pytest.mark.timeout(300)
async def test_acknowledged_writes_survive_a_power_failure(folder):
    """The short version of the test after the next."""
    server = server_of(folder)
    found, figures = await fail_the_power(folder, server, failures=2, writes=200, talkers_count=8)
    assert found == [], found[:10]
    assert figures["syncs"] > 0


@needs_shared_sqlite
@pytest.mark.timeout(300)
async def test_server_that_does_not_sync_would_be_found_by_a_power_failure(folder):
    """With synchronous=OFF planted acknowledged writes are lost; a kill alone would lose none."""
    server = server_of(folder, TORTURE_BUG="no_sync")
    found, _ = await fail_the_power(folder, server, failures=1, writes=100, talkers_count=4)
    assert {violation.kind for violation in found} & {"lost_write", "two_answers", "stale_read"}


@needs_shared_sqlite
@pytest.mark.torture
@pytest.mark.timeout(1800)
async def test_acknowledged_writes_survive_many_power_failures(folder):
    """Forty failures, each with a random part of the unsynced writes on disk."""
    server = server_of(folder)
    found, figures = await fail_the_power(
        folder, server, failures=40, writes=12_000, talkers_count=24
    )
    assert found == [], found[:10]
    assert figures["unsynced_writes_dropped_or_torn"] > 0


async def test_journal_replayed_in_full_is_the_files_themselves(folder):
    """The journal is complete: with everything kept it reproduces SQLite's files."""
    if not disk_journal.is_possible():
        pytest.skip("this Python's sqlite3 has no shared libsqlite3")
    server = server_of(folder)
    await server.start()
    client = server.client()
    for number in range(20):
        await client.route(f"message {number}", session_id=f"chat-{number % 3}")
    await client.close()
    await server.kill()
    real = on_disk(folder)
    made = {}
    for what, name, place, data in disk_journal._read(folder / "journal"):
        file = made.setdefault(name, disk_journal._OnDisk(bytearray()))
        if what == disk_journal.DELETE:
            del made[name]
        elif what != disk_journal.SYNC:
            file.apply(what, place, data)
    assert {name: bytes(file.content) for name, file in made.items()} == real
    assert any(len(content) > 4096 for content in real.values())


# --- by the order of the system calls ---


def strace_command():
    """Return strace's path, or skip if it is missing or not allowed."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed: the order of log, sync and answer is not shown")
    if subprocess.run([strace, "-o", "/dev/null", "true"], check=False).returncode != 0:
        pytest.skip("tracing is not permitted here: the order of log, sync and answer is not shown")
    return strace


async def traced_requests(folder, **environment):
    """Run a server under strace, send requests one by one, and return their ids and the trace."""
    trace = folder / "trace"
    calls = "trace=pwrite64,fsync,fdatasync,sendmsg,sendto,write,writev"
    tracing = (strace_command(), "-f", "-y", "-s", "8192", "-e", calls, "-o", str(trace))
    server = server_of(folder, **environment)
    server.command, server.is_traced = (*tracing, *SPOILT), True
    server.environment.pop("TORTURE_JOURNAL")
    await server.start()
    ids = [new_uuid7() for _ in range(6)]
    client = server.client()
    for number, request_id in enumerate(ids):
        await client.route(f"message {number}", session_id="chat-1", request_id=request_id)
    await client.close()
    await server.kill()
    return ids, trace.read_text("utf-8", "replace")


def order_of(request_id, trace):
    """Return the events of one request in a trace: frames of the log, syncs, the answer."""
    seen = ""
    syncing = set()
    for line in trace.splitlines():
        process, _, call = line.partition(" ")
        call = call.strip()
        if re.match(r"pwrite64\(\d+<[^>]*routing\.db-wal>", call) and request_id in call:
            seen += "w"
        elif re.match(r"f(data)?sync\(\d+<[^>]*routing\.db-wal>", call):
            if call.endswith("<unfinished ...>"):
                syncing.add(process)
            else:
                seen += "s"
        elif process in syncing and re.match(r"<\.\.\. f(data)?sync resumed>", call):
            syncing.discard(process)
            seen += "s"
        elif re.match(r"(sendmsg|sendto|write|writev)\(\d+<(socket|UNIX)", call):
            seen += "a" * (request_id in call)
    begun = seen.find("w")
    return re.sub(r"(.)\1+", r"\1", seen[begun:]) if begun >= 0 else ""


@pytest.mark.timeout(300)
async def test_log_is_synced_between_a_request_s_frame_and_its_answer(folder):
    """For each request in this order: its frame in the log, a sync of the log, its answer."""
    ids, trace = await traced_requests(folder)
    for request_id in ids:
        assert order_of(request_id, trace).startswith("wsa"), order_of(request_id, trace)


@pytest.mark.timeout(300)
async def test_missing_sync_before_an_answer_would_be_found(folder):
    """With synchronous=OFF planted the same check finds no sync there."""
    ids, trace = await traced_requests(folder, TORTURE_BUG="no_sync")
    for request_id in ids:
        assert order_of(request_id, trace).startswith("wa"), order_of(request_id, trace)
