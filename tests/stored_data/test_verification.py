"""verify: each kind of damage is reported by name, and an undamaged store has no report."""

import asyncio
import json
import sqlite3
from contextlib import closing

import pytest
from msgspec import structs

from routing_service.storage.memory_store import MemoryStore
from routing_service.storage.store import Append, AuditEntry, Change, SessionKey, TaskRow
from routing_service.stored_data.verification import verify_store
from tests.rpc.live_service import serving
from tests.rpc.registries import DESK

SESSION = "talk-0"
CHANGES = "changes WHERE session_no = (SELECT session_no FROM sessions WHERE session_id = 'talk-0')"
TASKS = CHANGES.replace("changes", "tasks", 1)


def damage(url, *statements):
    """Change stored data behind the service's back."""
    path = url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


async def verified(run, url, *options):
    """Run the command: its exit code, lines and stderr."""
    code, out, err = await asyncio.to_thread(run, "verify", "--store", url, "--json", *options)
    return code, [json.loads(line) for line in out.splitlines()], err


UPDATE = CHANGES.replace(" WHERE", " SET {} WHERE", 1)


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        (f"DELETE FROM {CHANGES} AND revision = 3", "revision 2 is followed by 4"),
        (
            f"UPDATE {UPDATE.format('time_us = time_us + 1')} AND revision = 1",
            "the session's times are",
        ),
        (
            f"UPDATE {UPDATE.format('events = answer')} AND revision = 2",
            "revision 2: a stored event cannot be read",
        ),
        (
            (
                'UPDATE changes SET events = CAST(replace(events, \'"kind":"\', \'"kind":"new_\') '
                f"AS BLOB) WHERE position IN (SELECT position FROM {CHANGES} AND revision = 1)"
            ),
            "has schema version 2, this release reads up to 1",
        ),
        (
            f"UPDATE {UPDATE.format('method = method || 2')} AND revision = 1",
            "revision 1: a stored event does not fit its checksum",
        ),
        (
            (
                "UPDATE sessions SET state = CAST("
                "replace(state, '\"epoch\":', '\"epoch\":9') AS BLOB) "
                "WHERE session_id = 'talk-0'"
            ),
            "state: a stored state does not fit its checksum",
        ),
        (
            # As an older release writes it, without a checksum.
            (
                "UPDATE sessions SET state = CAST(replace(replace(CAST(state AS TEXT), "
                "substr(CAST(state AS TEXT), -18), '}'), '\"epoch\":', '\"epoch\":9') AS BLOB) "
                "WHERE session_id = 'talk-0'"
            ),
            "the stored state's epoch is not what the changes make it",
        ),
        ("UPDATE sessions SET state = x'00' WHERE session_id = 'talk-0'", "state: a stored state"),
        (
            "UPDATE sessions SET revision = revision - 1 WHERE session_id = 'talk-0'",
            "state: a stored state does not fit its checksum",
        ),
        (
            (
                "UPDATE sessions SET revision = revision - 1, state = CAST(substr(CAST(state AS "
                "TEXT), 1, length(state) - 18) || '}' AS BLOB) WHERE session_id = 'talk-0'"
            ),
            "the stored state's revision",
        ),
        (
            "UPDATE sessions SET user_id = 'eve' WHERE session_id = 'talk-0'",
            "the session's user is not the one",
        ),
        (f"DELETE FROM {TASKS}", "was made by a change and is not stored"),
        (
            "UPDATE " + TASKS.replace(" WHERE", " SET status = 'lost' WHERE", 1),
            "is stored as lost, by the changes it is",
        ),
        (
            "UPDATE "
            + TASKS.replace(" WHERE", " SET task_id = 7 WHERE", 1)
            + f" AND task_id = (SELECT max(task_id) FROM {TASKS})",
            "task 7 is stored and no change made it",
        ),
    ],
)
async def test_damage_is_named_and_does_not_stop_the_rest(run, talked, statement, problem):
    """The session's hash changes; all others stay equal."""
    _, before, _ = await verified(run, talked)
    damage(talked, statement)
    code, after, err = await verified(run, talked)
    assert len(after) == len(before)
    changed = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    names = [now.get("session_id") for _, now in changed]
    # The last line is about the whole store.
    assert names == [SESSION, None]
    assert changed[0][1]["sha256"] != changed[0][0]["sha256"]
    assert changed[1][1]["sha256"] != changed[1][0]["sha256"]
    assert code == 1
    assert any(problem in each for each in changed[0][1]["problems"]), changed[0][1]["problems"]
    assert changed[1][1]["damaged"] == 1
    assert "sessions are damaged" in err


async def test_quiet_prints_what_is_damaged_and_the_whole(run, talked):
    """For a line of a crontab."""
    code, out, err = await asyncio.to_thread(run, "verify", "--quiet", "--store", talked)
    assert (code, len(out.splitlines()), err) == (0, 1, "")
    assert "0 damaged" in out
    damage(talked, f"DELETE FROM {CHANGES} AND revision = 3")
    code, out, err = await asyncio.to_thread(run, "verify", "-q", "--store", talked)
    assert code == 1
    assert "default/talk-0, revision" in out
    assert "damaged: revision 2 is followed by 4" in out
    assert err.startswith("error: 1 of ")


async def test_plain_output_has_a_hash_a_line(run, talked):
    """In the format of sha256sum, so that diff compares two stores."""
    code, out, _ = await asyncio.to_thread(run, "verify", "--store", talked)
    assert code == 0
    for line in out.splitlines():
        sha256, _, name = line.partition("  ")
        assert len(bytes.fromhex(sha256)) == 32
        assert name
    assert out.splitlines()[-1].split()[1] == "all:"


@pytest.mark.parametrize(
    ("url", "code", "words"),
    [
        ("sqlite:///nowhere/routing.db", 1, "there is no store file"),
        ("mysql://db", 2, "unknown engine"),
        ("memory:", 2, "name another store"),
        ("routing.db", 2, "names no engine"),
    ],
)
def test_store_that_cannot_be_read_is_named(run, url, code, words):
    """No store is created in its place."""
    ended = run("verify", "--store", url)
    assert ended[0] == code
    assert words in ended[2]


async def test_store_is_verified_while_a_server_writes_to_it(run, tmp_path):
    """Each session at one revision, despite concurrent writes; the server is not affected."""
    async with serving(tmp_path, DESK) as service:
        stop = asyncio.Event()
        revisions = {}

        async def talk(number):
            chat = service.chat(f"busy-{number}")
            while not stop.is_set():
                routed = await chat.say("hello")
                answered = await chat.answer(routed.dispatch, "yes?")
                revisions[chat.session_id] = answered.revision

        talking = [asyncio.create_task(talk(number)) for number in range(4)]
        url = f"sqlite:///{tmp_path / 'routing.db'}"
        async with asyncio.timeout(30):
            # Four conversations have begun.
            while len(revisions) < len(talking):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        for _ in range(3):
            acknowledged = dict(revisions)
            code, lines, err = await verified(run, url)
            assert (code, err) == (0, ""), lines
            found = {line["session_id"]: line["revision"] for line in lines[:-1]}
            assert found.keys() == acknowledged.keys()
            assert all(found[name] >= revision for name, revision in acknowledged.items())
        stop.set()
        await asyncio.gather(*talking)


async def test_hash_is_the_same_for_ever():
    """It is recorded with backups: another hash in a later release would break comparisons."""
    store = MemoryStore()
    key = SessionKey("acme", "ñ-1")
    task = TaskRow("t-1", key.session_id, "ana", "running", 1, 2, None, b"{}")
    for revision, due_us in ((1, None), (2, 9)):
        change = Change(revision, revision * 5, "Route", f"r-{revision}", "", b"f", b"e", b"\0a")
        tasks = (task,) if revision == 1 else ()
        await store.append(Append(key, revision - 1, change, b"s", "ana", tasks, due_us))
    await store.append_audit(AuditEntry(3, "acme", "ñ-1", 2, "k", "r", "ana", b"why"))
    await store.put_setting("acme", "switch", b"on")
    await store.put_setting("acme", "store.cursor", b"left out")
    await store.put_setting("nobody", "store.cursor", b"left out with its tenant")
    session, tenant, whole = [report async for report in verify_store(store)]
    assert session.sha256 == ("5b0e6a697e64d093b0a5b8ecb033e0f8da15fc0b028a1389491168dbb6e3f730")
    assert tenant.sha256 == ("9164fb448b6da5c7a71af4214b4dad4d078166e17d2fa468e7a57e292c0c6392")
    assert whole.sha256 == ("965f0ed5a98706a50a194800e360a943ca077d71b59973f5ab64a2792f79fd36")
    assert (whole.tenants, whole.sessions, whole.damaged) == (1, 1, 1)


class Forgetful:
    """A store that finds requests incorrectly."""

    def __init__(self, store, finds):
        self._store, self._finds = store, finds

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def find_request(self, *arguments):
        return self._finds(await self._store.find_request(*arguments))


@pytest.mark.parametrize(
    ("finds", "problem"),
    [
        (lambda _: None, "revision 1: request r of Route is not found by its id"),
        (
            lambda found: structs.replace(found, revision=found.revision + 4),
            "revision 1: request r of Route is stored as revision 5 too",
        ),
    ],
)
async def test_request_that_a_repeat_would_not_find_is_named(finds, problem):
    """On engines that store the ids separately from the changes, an id may be lost alone."""
    store = MemoryStore()
    key = SessionKey("acme", "chat-1")
    await store.append(Append(key, 0, Change(1, 1, "Route", "r", "", b"", b"e", b""), b"s", ""))
    session, _ = [report async for report in verify_store(Forgetful(store, finds))]
    assert problem in session.problems
