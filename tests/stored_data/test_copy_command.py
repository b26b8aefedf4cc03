"""``agent-routing copy`` as a process: on a terminal, killed, and with targets it must refuse."""

import asyncio
import json
import os
import pty
import random
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from routing_service.storage.open_store import open_store
from routing_service.storage.store import Append, AuditEntry, Change, SessionKey
from tests.stored_data.command_line import command

COMMAND = str(Path(sys.executable).with_name("agent-routing"))
SESSIONS = 300


@pytest.fixture
async def many(tmp_path):
    """Return the URL of a store with a few hundred short sessions, and audit between them."""
    url = f"sqlite:///{tmp_path / 'many.db'}"
    store = await open_store(url)

    async def one(number):
        key = SessionKey("acme", f"chat-{number:04}")
        for revision in range(1, 5):
            change = Change(
                revision, revision, "Route", f"r-{revision}", "", b"f", b"e", b"a" * 200
            )
            await store.append(Append(key, revision - 1, change, b"state", "ana", (), revision))

    await asyncio.gather(*map(one, range(SESSIONS)))
    for number in range(150):
        entry = AuditEntry(number, "acme", f"chat-{number % 9:04}", 1, "k", "r", "ana", b"why")
        await store.append_audit(entry)
    await store.close()
    return url


async def whole(url):
    """Return the hash of a whole store; these sessions' bytes fold into no state."""
    _, out, _ = await command("verify", "--quiet", "--json", "--store", url)
    return json.loads(out.splitlines()[-1])["sha256"]


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(3))
async def test_copy_that_is_killed_anywhere_goes_on_when_it_is_run_again(many, tmp_path, seed):
    """Killed with SIGKILL a dozen times; then nothing is missing or duplicated."""
    target = f"sqlite:///{tmp_path / 'target.db'}"
    rng = random.Random(seed)
    killed = 0
    while killed < 12:
        process = await asyncio.create_subprocess_exec(
            COMMAND, "copy", "--from", many, "--to", target, stdout=subprocess.DEVNULL
        )
        try:
            await asyncio.wait_for(process.wait(), rng.uniform(0.4, 2.5))
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        killed += 1
    code, _, err = await command("copy", "--from", many, "--to", target)
    assert (code, err) == (0, "")
    assert await whole(target) == await whole(many)


async def test_terminal_is_shown_how_far_it_is(many, tmp_path):
    """On stderr, and cleared at the end; stdout has only the result."""
    target = f"sqlite:///{tmp_path / 'target.db'}"

    def run():
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [COMMAND, "copy", "--from", many, "--to", target, "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=theirs,
            env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
        )
        os.close(theirs)
        shown = b""
        ends_s = time.monotonic() + 50
        while time.monotonic() < ends_s:
            try:
                part = os.read(ours, 65536)
            except OSError:
                # The end of a pseudo-terminal on Linux.
                break
            if not part:
                break
            shown += part
        out, _ = process.communicate(timeout=50)
        os.close(ours)
        return process.returncode, out, shown.decode()

    code, out, shown = await asyncio.to_thread(run)
    assert code == 0
    assert json.loads(out)["sessions"] == SESSIONS
    assert f"/{SESSIONS}" in shown
    assert "sessions" in shown


async def test_pipe_is_shown_nothing_but_the_result(many, tmp_path):
    """As for a script."""
    code, out, err = await command("copy", "--from", many, "--to", f"sqlite:///{tmp_path / 't.db'}")
    assert (code, err) == (0, "")
    assert out.startswith(f"{SESSIONS} sessions checked, {SESSIONS} written: 1200 changes")
    assert out.count("\n") == 1


@pytest.mark.parametrize(
    ("source", "target", "code", "words"),
    [
        ("{many}", "{many}", 2, "name two"),
        ("{many}", "memory:", 2, "would be lost when this command ends"),
        ("memory:", "sqlite:///{folder}/t.db", 2, "name another store"),
        ("sqlite:///{folder}/none.db", "sqlite:///{folder}/t.db", 1, "there is no store file"),
        ("{many}", "mysql://db", 2, "unknown engine"),
    ],
)
async def test_copy_that_cannot_be_is_refused(many, tmp_path, source, target, code, words):  # noqa: PLR0917 - as the table has it
    """Before anything is created."""
    names = {"many": many, "folder": tmp_path}
    ended = await command("copy", "--from", source.format(**names), "--to", target.format(**names))
    assert ended[0] == code
    assert words in ended[2]
    assert not (tmp_path / "t.db").exists()


async def test_refused_sessions_are_named_and_the_exit_code_says_so(many, tmp_path):
    """One line each for people, all of them for programs."""
    target = f"sqlite:///{tmp_path / 'target.db'}"
    store = await open_store(target)
    for number in range(25):
        change = Change(1, 1, "Route", "other", "", b"", b"other", b"")
        await store.append(Append(SessionKey("acme", f"chat-{number:04}"), 0, change, b"", "bo"))
    await store.close()
    code, out, err = await command("copy", "--from", many, "--to", target, "--json")
    assert code == 1
    assert len(json.loads(out)["refused"]) == 25
    assert json.loads(out)["written"] == SESSIONS - 25
    lines = err.splitlines()
    assert len(lines) == 21
    assert lines[0].startswith(
        'error: session "acme/chat-0000" is in the target with other content'
    )
    assert "and 5 more sessions; --json lists all" in lines[-1]
