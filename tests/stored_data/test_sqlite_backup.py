"""Backups of a SQLite store: taken under load, complete, and restored."""

import asyncio
import json
import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from routing_service.storage.open_store import open_store
from routing_service.storage.sqlite.backup import backup_sqlite
from routing_service.storage.store import (
    CURSOR_START,
    Append,
    AuditEntry,
    Change,
    SessionKey,
)
from tests.rpc.conftest import serve_process  # noqa: F401 - a fixture
from tests.rpc.live_service import serving
from tests.rpc.registries import DESK
from tests.stored_data.command_line import command


def path_of(url):
    """Return the file of a SQLite URL."""
    return Path(url.removeprefix("sqlite:///"))


async def test_backup_under_load_holds_all_that_was_acknowledged_before_it(tmp_path):
    """Three backups during four conversations: each opens, verifies, and is complete."""
    acknowledged: dict[str, int] = {}
    async with serving(tmp_path, DESK) as service:
        stop = asyncio.Event()

        async def talk(number):
            chat = service.chat(f"busy-{number}")
            while not stop.is_set():
                routed = await chat.say("hello " * 200)
                answered = await chat.answer(routed.dispatch, "yes?")
                acknowledged[chat.session_id] = answered.revision

        talking = [asyncio.create_task(talk(number)) for number in range(4)]
        url = f"sqlite:///{tmp_path / 'routing.db'}"
        for number in range(3):
            file = tmp_path / f"backup-{number}.db"
            before = dict(acknowledged)
            code, out, err = await command("backup", "--store", url, "--to", file, "--json")
            assert (code, err) == (0, "")
            code, lines, err = await command("verify", "--store", f"sqlite:///{file}", "--json")
            assert (code, err) == (0, ""), lines
            found = {}
            for line in map(json.loads, lines.splitlines()):
                if "session_id" in line:
                    found[line["session_id"]] = line["revision"]
            assert all(found[name] >= revision for name, revision in before.items())
            assert json.loads(out)["changes"] == sum(found.values())
            # The conversations continued meanwhile.
            async with asyncio.timeout(30):
                while any(acknowledged.get(name, 0) <= found[name] for name in found):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        stop.set()
        await asyncio.gather(*talking)
    # The last backup as a server's store: the conversations continue in it.
    async with serving(tmp_path, DESK, store=f"sqlite:///{tmp_path / 'backup-2.db'}") as service:
        for name, revision in found.items():
            chat = service.chat(name)
            assert (await chat.status()).revision == revision
            assert (await chat.say("back again")).revision == revision + 1


def test_backup_is_one_file_that_only_its_owner_can_read(run, talked, tmp_path):
    """The log cannot be forgotten, and other users cannot read the conversations."""
    path_of(talked).chmod(0o640)
    target = tmp_path / "elsewhere.db"
    assert run("backup", "--store", talked, "--to", str(target))[0] == 0
    assert [file.name for file in tmp_path.glob("elsewhere*")] == ["elsewhere.db"]
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with closing(sqlite3.connect(f"file:{target}?mode=ro&immutable=1", uri=True)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert connection.execute("SELECT count(*) FROM sessions").fetchone()[0] > 0


def test_erased_content_is_not_in_the_backup(run, talked, tmp_path):
    """The store's free pages may still contain it; the backup does not."""
    secret = b"unmistakable-secret"
    with closing(sqlite3.connect(path_of(talked), isolation_level=None)) as connection:
        connection.execute("PRAGMA secure_delete = OFF")
        connection.execute("UPDATE changes SET answer = ?", (secret * 500,))
        connection.execute("UPDATE changes SET answer = x''")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert secret in path_of(talked).read_bytes()
    assert run("backup", "--store", talked, "--to", str(tmp_path / "b.db"))[0] == 0
    assert secret not in (tmp_path / "b.db").read_bytes()


def test_backup_leaves_no_half_file_and_no_existing_one_is_lost(run, talked, tmp_path, monkeypatch):
    """After a full disk or a damaged page, the earlier file is still there."""
    target = tmp_path / "backup.db"
    target.write_bytes(b"last night's")
    code, _, err = run("backup", "--store", talked, "--to", str(target))
    assert code == 1
    assert "is there already; name another, or say --overwrite" in err
    page = path_of(talked).read_bytes()
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(page[:20_000] + os.urandom(20_000) + page[40_000:])
    options = ("--to", str(target), "--overwrite")
    code, _, err = run("backup", "--store", f"sqlite:///{damaged}", *options)
    assert code == 1
    assert "damaged" in err
    assert target.read_bytes() == b"last night's"
    assert [file.name for file in tmp_path.glob("*.partial*")] == []
    code, out, _ = run("backup", "--store", talked, *options)
    assert code == 0
    assert "sessions" in out


@pytest.mark.parametrize(
    ("store", "to", "code", "words"),
    [
        ("sqlite:///nowhere.db", "b.db", 1, "there is no store file"),
        ("postgres://ana:secret@db/chat", "b.db", 2, "pg_dump"),
        ("sqlite:///{talked}", "no/such/folder/b.db", 1, "there is no folder"),
        ("sqlite:///{talked}", "{talked}", 1, "is the store itself"),
        ("sqlite:///{other}", "b.db", 1, "of another application"),
    ],
)
def test_backup_that_cannot_be_is_refused_with_the_reason(  # noqa: PLR0917 - as the table has it
    run, talked, tmp_path, monkeypatch, store, to, code, words
):
    """No file is left behind."""
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE theirs (a)")
    names = {"talked": path_of(talked), "other": other}
    ended = run("backup", "--store", store.format(**names), "--to", to.format(**names))
    assert ended[0] == code
    assert words in ended[2]
    assert "secret" not in ended[2]
    assert not (tmp_path / "b.db").exists()


async def test_restored_store_is_what_was_backed_up(run, talked, tmp_path):
    """Later changes are gone from the store, and kept in a file next to it."""
    backup = tmp_path / "backup.db"
    await asyncio.to_thread(run, "backup", "--store", talked, "--to", str(backup))
    _, before, _ = await asyncio.to_thread(run, "verify", "--store", talked)
    async with serving(tmp_path, DESK, store=talked) as service:
        await service.chat("after-the-backup").say("hello")
    restore = ("restore", "--from", str(backup), "--store", talked)
    code, _, err = await asyncio.to_thread(run, *restore)
    assert code == 1
    assert "--overwrite" in err
    code, out, err = await asyncio.to_thread(run, *restore, "--overwrite")
    assert (code, err) == (0, "")
    assert (await asyncio.to_thread(run, "verify", "--store", talked))[1] == before
    kept = f"{talked}.before-restore"
    code, out, _ = await asyncio.to_thread(run, "verify", "--store", kept)
    assert code == 0
    assert "after-the-backup" in out


async def test_restoring_is_refused_while_a_server_uses_the_store(run, talked, tmp_path):
    """The server would lose its file."""
    backup = tmp_path / "backup.db"
    await asyncio.to_thread(run, "backup", "--store", talked, "--to", str(backup))
    async with serving(tmp_path, DESK, store=talked) as service:
        routed = await service.chat("goes-on").say("hello")
        restore = ("restore", "--from", backup, "--store", talked, "--overwrite")
        code, _, err = await command(*restore)
        assert code == 1
        assert f"is in use by process {os.getpid()}; stop it before restoring" in err
        assert (await service.chat("goes-on").say("still here")).revision == routed.revision + 1


async def test_log_of_the_old_store_does_not_get_into_the_restored_one(run, talked, tmp_path):
    """A killed server leaves a log, which would damage another file next to it."""
    backup = tmp_path / "backup.db"
    await asyncio.to_thread(run, "backup", "--store", talked, "--to", str(backup))
    _, before, _ = await asyncio.to_thread(run, "verify", "--store", talked)
    file = path_of(talked)
    with closing(sqlite3.connect(file, isolation_level=None)) as killed:
        killed.execute("PRAGMA journal_mode = WAL")
        killed.execute("UPDATE sessions SET user_id = 'nobody'")
        log = file.with_name(f"{file.name}-wal").read_bytes()
    file.with_name(f"{file.name}-wal").write_bytes(log)
    restore = ("restore", "--from", str(backup), "--store", talked, "--overwrite")
    assert (await asyncio.to_thread(run, *restore))[0] == 0
    assert not file.with_name(f"{file.name}-wal").exists()
    assert (await asyncio.to_thread(run, "verify", "--store", talked))[1] == before


async def test_cursors_from_after_the_backup_pass_over_nothing_in_the_restored_store(run, talked):
    """They name positions that it has not reached; new changes come after all of them."""
    file = path_of(talked)
    backup = file.with_name("backup.db")
    backup_sqlite(file, backup)
    store = await open_store(talked)
    early = await store.log_end()
    key = SessionKey("default", "talk-0")
    for _ in range(5):
        await append_again(store, key)
    late = await store.log_end()
    await store.append_audit(AuditEntry(1, "default", "talk-0", 1, "k", "r", "ana", b"lost"))
    _, audit = await store.read_audit("default", None, CURSOR_START, 1000)
    await store.close()
    restore = ("restore", "--from", str(backup), "--store", talked, "--overwrite")
    assert (await asyncio.to_thread(run, *restore))[0] == 0
    store = await open_store(talked)
    for cursor in (early, late):
        assert (await store.read_log(cursor, 10))[0] == []
    await append_again(store, key)
    kept = AuditEntry(1, "default", "talk-0", 1, "k", "r", "ana", b"new")
    await store.append_audit(kept)
    revision = await store.head_revision(key)
    for cursor in (early, late):
        page, _ = await store.read_log(cursor, 10)
        assert [(found, change.revision) for found, change in page] == [(key, revision)]
    assert (await store.read_audit("default", None, audit, 10))[0] == [kept]
    await store.close()


async def append_again(store, key):
    """Append a change to a session at its current revision."""
    head = await store.load(key)
    change = Change(head.revision + 1, 1, "", "", "", b"", b"", b"")
    await store.append(Append(key, head.revision, change, head.state, "ana"))


async def test_restoring_makes_a_store_where_there_is_none(run, talked, tmp_path):
    """On a new machine, from the backup alone."""
    backup = path_of(talked)
    url = f"sqlite:///{tmp_path / 'new' / 'machine' / 'routing.db'}"
    code, _, err = await asyncio.to_thread(run, "restore", "--from", str(backup), "--store", url)
    assert (code, err) == (0, "")
    async with serving(tmp_path, DESK, store=url) as service:
        assert (await service.chat("talk-0").status()).revision > 0


@pytest.mark.parametrize("damage", ["torn", "foreign"])
def test_bad_backup_is_not_restored(run, talked, tmp_path, damage):
    """The store stays unchanged, even if it was damaged."""
    backup = tmp_path / "backup.db"
    if damage == "torn":
        whole = path_of(talked).read_bytes()
        backup.write_bytes(whole[: len(whole) // 2])
    else:
        with closing(sqlite3.connect(backup)) as connection:
            connection.execute("CREATE TABLE theirs (a)")
    before = path_of(talked).read_bytes()
    code, _, err = run("restore", "--from", str(backup), "--store", talked, "--overwrite")
    assert code == 1
    assert "damaged" in err or "another application" in err
    assert path_of(talked).read_bytes() == before
    assert [file.name for file in tmp_path.glob("*.partial*")] == []


async def test_store_of_a_server_that_was_killed_is_backed_up_whole(run, serve_process, tmp_path):  # noqa: F811
    """Its log is still next to the file, and no process merges it."""
    server = await serve_process()
    code, out, _ = await command(
        "route", "chat-1", "hello", "--user", "ana", "--json", "--target", server.address
    )
    assert code == 0, out
    server.process.kill()
    await server.process.wait()
    url = f"sqlite:///{tmp_path / 'routing.db'}"
    code, _, err = await asyncio.to_thread(
        run, "backup", "--store", url, "--to", str(tmp_path / "backup.db")
    )
    assert (code, err) == (0, "")
    store = await open_store(f"sqlite:///{tmp_path / 'backup.db'}")
    assert await store.head_revision(SessionKey("default", "chat-1")) == 1
    await store.close()
