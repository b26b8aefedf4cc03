"""Acknowledged writes are on disk: after kill -9, and by the order of system calls.

A kill leaves the operating system's cache alive, so it proves nothing about the disk; for that the
system calls are read: no acknowledgement while the log holds bytes that were not synced.
"""

import asyncio
import random
import re
import shutil
import signal
import subprocess
import sys
from collections import defaultdict

import pytest

from routing_service.storage.open_store import open_store
from routing_service.storage.store import CURSOR_START, SessionKey

SESSIONS = 12

# Appends to many sessions at once and says of each append that returned: session, revision.
WRITE = """
import asyncio, os, sys
from routing_service.storage.open_store import open_store
from routing_service.storage.store import Append, Change, SessionKey, TaskRow

async def write(store, number):
    key = SessionKey("acme", f"chat-{number}")
    revision = await store.head_revision(key)
    while True:
        change = Change(revision + 1, 1, "Route", f"r-{revision}", "", b"", os.urandom(300), b"a")
        task = TaskRow(f"t-{number}", key.session_id, "ana", "running", 1, revision + 1, None, b"")
        await store.append(Append(key, revision, change, b"%d" % (revision + 1), "ana", (task,)))
        revision += 1
        os.write(1, b"%d %d\\n" % (number, revision))
        if sys.argv[3] == "exit" and revision % 50 == 0:
            os._exit(7)

async def main():
    store = await open_store(sys.argv[1])
    await asyncio.gather(*(write(store, number) for number in range(int(sys.argv[2]))))

asyncio.run(main())
"""

# One append after the other, each acknowledged by one line; argv[2] spoils durability on purpose.
ACKNOWLEDGE = """
import asyncio, os, sys
from routing_service.storage.open_store import open_store
from routing_service.storage.store import Append, Change, SessionKey

async def main():
    store = await open_store(sys.argv[1])
    if sys.argv[2] == "spoilt":
        await store._engine._writer._connection.run(lambda c: c.execute("PRAGMA synchronous = OFF"))
    key = SessionKey("acme", "chat-1")
    os.write(1, b"begin\\n")
    for base in range(10):
        await store.append(Append(key, base, Change(base + 1, 1, "Route", f"r-{base}", "", b"",
            b"e" * 500, b"a"), b"state", "ana"))
        os.write(1, b"acknowledged append\\n")
    await store.put_setting("acme", "name", b"value")
    os.write(1, b"acknowledged setting\\n")
    await store.probe_write()
    os.write(1, b"acknowledged probe\\n")
    os.write(1, b"end\\n")
    await store.close()

asyncio.run(main())
"""


async def run_until_killed(url, mode, acknowledged, acks_wanted):
    """Run the writer, record its acknowledgements, and end it with kill -9 or let it finish."""
    writer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITE, url, str(SESSIONS), mode, stdout=subprocess.PIPE
    )
    heard = 0
    async for line in writer.stdout:
        if not line.endswith(b"\n"):
            break  # A line cut off by the kill does not count.
        number, revision = map(int, line.split())
        acknowledged[number] = max(acknowledged[number], revision)
        heard += 1
        if mode == "kill" and heard == acks_wanted:
            writer.send_signal(signal.SIGKILL)
    code = await writer.wait()
    assert code == (-signal.SIGKILL if mode == "kill" else 7)


async def check_all_there(url, acknowledged):
    """Assert that every acknowledged write is stored, and that the data is consistent."""
    store = await open_store(url)
    log, cursor = [], CURSOR_START
    while True:
        page, cursor = await store.read_log(cursor, 1_000)
        if not page:
            break
        log += [(key, change.revision) for key, change in page]
    for number in range(SESSIONS):
        key = SessionKey("acme", f"chat-{number}")
        head = await store.load(key)
        revision = 0 if head is None else head.revision
        assert revision >= acknowledged[number], (number, acknowledged[number])
        assert [found for of, found in log if of == key] == list(range(1, revision + 1))
        if head is not None:
            # State, task and request belong to the head: no append is half stored.
            assert head.state == b"%d" % revision
            task = await store.find_task("acme", f"t-{number}")
            assert task is not None
            assert task.update_us == revision
            assert await store.find_request(key, "Route", f"r-{revision - 1}")
    await store.close()


@pytest.mark.parametrize("mode", ["kill", "exit"])
async def test_acknowledged_appends_survive_a_dead_process(tmp_path, mode):
    """Several kills in a row on one file, each at another moment."""
    url = f"sqlite:///{tmp_path}/store.db"
    acknowledged = defaultdict(int)
    dice = random.Random(11)
    for _ in range(4):
        await run_until_killed(url, mode, acknowledged, dice.randrange(30, 400))
        await check_all_there(url, acknowledged)
    assert sum(acknowledged.values()) > 100


def traced(tmp_path, spoil):
    """Run ACKNOWLEDGE under strace and return its system calls."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed: the order of sync and acknowledgement is not shown")
    may_trace = subprocess.run([strace, "-o", "/dev/null", "true"], check=False).returncode == 0
    if not may_trace:
        pytest.skip("tracing is not permitted here: the order of sync and answer is not shown")
    trace = tmp_path / "trace"
    calls = "trace=write,pwrite64,pwritev,writev,fsync,fdatasync,msync"
    command = [sys.executable, "-c", ACKNOWLEDGE, f"sqlite:///{tmp_path}/store.db", spoil]
    subprocess.run(
        [strace, "-f", "-y", "-e", calls, "-o", str(trace), *command], check=True, timeout=50
    )
    return trace.read_text()


def acknowledged_too_early(trace):
    """Read a trace: acknowledgements, and those made while the log had unsynced bytes."""
    begun = False
    dirty = False
    synced = 0
    total = early = 0
    pending = {}
    for line in trace.splitlines():
        process, _, call = line.partition(" ")
        call = call.strip()
        if call.endswith("<unfinished ...>"):
            pending[process] = call
            if not re.match(r"pwrite|pwritev", call):
                continue
        elif call.startswith("<..."):
            resumed = pending.pop(process, "")
            if re.match(r"f(data)?sync", resumed):
                call = f"{resumed} {call}"
        if '"begin' in call:
            begun, dirty, synced = True, False, 0
        elif '"end' in call:
            return total, early
        elif not begun:
            continue
        elif re.match(r"p?writev?(64)?\(\d+<[^>]*store\.db-wal>", call):
            dirty = True
        elif re.match(r"f(data)?sync\(\d+<[^>]*store\.db-wal>", call) and call.endswith("= 0"):
            dirty = False
            synced += 1
        elif '"acknowledged' in call:
            total += 1
            early += dirty or synced == 0
            synced = 0
    pytest.fail("the traced process did not come to its end")


def test_nothing_is_acknowledged_before_it_is_synced(tmp_path):
    """Appends, settings and probes: each has its own sync of the log before its answer."""
    assert acknowledged_too_early(traced(tmp_path, "sound")) == (12, 0)


def test_missing_sync_would_be_found(tmp_path):
    """The check above finds a planted fault."""
    total, early = acknowledged_too_early(traced(tmp_path, "spoilt"))
    assert total == 12
    assert early == 12
