"""The audit is proved by its chains and seals, and every kind of tampering is named.

A real server writes to a SQLite file, which is then changed by hand.
"""

import asyncio
import json
import re
import shutil
import sqlite3

import pytest
from google.protobuf import timestamp_pb2

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import admin_service_pb2_grpc
from routing_service.server.bounds import Bounds
from routing_service.storage.audit_seals import read_seals
from routing_service.storage.open_store import open_store, open_store_to_read
from routing_service.stored_data.audit_verification import verify_audit
from tests.rpc.live_service import finish, hand_to, refusal, serving
from tests.rpc.registries import DESK
from tests.stored_data.command_line import command

CHECKSUM = re.compile(rb',"crc":"[0-9a-f]{8}"}\Z')
OFTEN = Bounds(audit_seal_s=0.05)
WAIT_S = 20


def operators(service):
    """Return the stub of AdminService."""
    return admin_service_pb2_grpc.AdminServiceStub(service.channel)


async def talked(service, name, **who):
    """Hold a conversation with a handoff, and one that is refused."""
    chat = service.chat(name, **who)
    routed = await chat.say(f"I am {name}")
    await refusal(chat.answer(routed.dispatch, **hand_to("premium", reason="wants gold")))
    service.clock.advance(1)
    handed = await chat.answer(routed.dispatch, **hand_to("sales"))
    await chat.answer(handed.next, "bye", **finish())
    service.clock.advance(1)
    return chat


async def sealed(service):
    """Wait until everything so far is sealed."""

    async def last():
        seals = await read_seals(service.store, "default")
        return max((seal.n for seal in seals), default=0)

    before = await last()
    await service.chat("sealer").say("hello")
    async with asyncio.timeout(WAIT_S):
        while await last() <= before:  # noqa: ASYNC110 - only the store says so
            await asyncio.sleep(0.02)
    # The seal may have begun before that message: the next one has it for certain.
    await asyncio.sleep(0.2)


async def purge(service):
    """Remove all sessions that are closed."""
    service.clock.advance(3600)
    when = timestamp_pb2.Timestamp()
    when.FromMicroseconds(service.clock.now_us)
    request = pb.PurgeSessionsRequest(update_time_before=when, reason="too old")
    return await operators(service).PurgeSessions(request)


async def story(service):
    """Leave a session as it was, one erased, one purged, and one erased and purged."""
    await talked(service, "gone")
    await talked(service, "both", user_id="ben")
    await sealed(service)
    await operators(service).EraseUser(pb.EraseUserRequest(user_id="ben", reason="asked"))
    await purge(service)
    await talked(service, "stays")
    await talked(service, "erased", user_id="eve")
    await sealed(service)
    await operators(service).EraseUser(pb.EraseUserRequest(user_id="eve", reason="asked"))
    await talked(service, "gone")
    await sealed(service)


def url(folder):
    """Return the URL of the server's store."""
    return f"sqlite:///{folder / 'routing.db'}"


async def proved(folder):
    """Return what verify_audit says of the tenant "default"."""
    store = await open_store_to_read(url(folder))
    try:
        (found,) = [found async for found in verify_audit(store, "default")]
    finally:
        await store.close()
    return found


def change(folder, *statements):
    """Change the file by hand; each statement has to change something."""
    with sqlite3.connect(folder / "routing.db") as connection:
        for statement in statements:
            done = connection.execute(statement)
            assert done.rowcount > 0, statement
    connection.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder of a server that has stopped after its story; no test changes it."""
    folder = tmp_path_factory.mktemp("written")

    async def write():
        async with serving(folder, DESK, bounds=OFTEN) as service:
            await story(service)

    asyncio.run(write())
    return folder


@pytest.fixture
def stored(written, tmp_path):
    """A copy of that folder, to change, without checksums: who changes a row mends them too."""
    for file in written.glob("routing.db*"):
        shutil.copy(file, tmp_path)
    with sqlite3.connect(tmp_path / "routing.db") as connection:
        for table, column in (("changes", "events"), ("audit", "data"), ("sessions", "state")):
            connection.create_function("plain", 1, lambda value: CHECKSUM.sub(b"}", value))
            connection.execute(f"UPDATE {table} SET {column} = plain({column})")
    connection.close()
    return tmp_path


async def test_audit_is_whole_after_erasures_and_purges(stored):
    """Nothing that the service does itself breaks a chain, and all of it is sealed."""
    found = await proved(stored)
    assert found.problems == []
    assert found.sessions >= 6
    assert found.changes >= 18
    # Refusals, acts of operators, archives, purges.
    assert found.entries >= 12
    assert (found.unchained, found.unsealed) == (0, 0)
    assert found.seals >= 3
    assert len(found.last_seal_hash) == 64


SESSION = "(SELECT session_no FROM sessions WHERE session_id = 'stays')"
HERE = f"WHERE session_no = {SESSION}"


def replacing(column, one, other):
    """Return the SQL that replaces a text in a column of bytes."""
    return f"{column} = CAST(replace(CAST({column} AS TEXT), '{one}', '{other}') AS BLOB)"


TAMPERED = {
    "a text": f"UPDATE changes SET {replacing('events', 'I am', 'I was')} {HERE} AND revision = 1",
    "an agent": (
        f"UPDATE changes SET {replacing('events', 'sales', 'front')} {HERE} AND revision = 2"
    ),
    "a time": f"UPDATE changes SET time_us = time_us + 1 {HERE} AND revision = 2",
    "the last answer": f"UPDATE changes SET answer = x'00' {HERE} AND revision = 3",
    "a change that is left out": f"DELETE FROM changes {HERE} AND revision = 2",
}


@pytest.mark.parametrize("what", TAMPERED)
async def test_changed_history_of_a_session_is_named(stored, what):
    """The session and the revision."""
    change(stored, TAMPERED[what])
    found = await proved(stored)
    assert found.problems
    assert all(problem.startswith("session stays") for problem in found.problems)
    assert any("revision" in problem for problem in found.problems)


async def test_session_that_is_removed_without_a_purge_is_named(stored):
    """It was sealed."""
    change(
        stored,
        f"DELETE FROM changes WHERE session_no = {SESSION}",
        "DELETE FROM sessions WHERE session_id = 'stays'",
    )
    found = await proved(stored)
    assert any(
        problem.startswith("session stays, revision 3: is sealed") for problem in found.problems
    )


@pytest.mark.parametrize(
    ("kind", "statement"),
    [
        ("operator_act", f"UPDATE audit SET {replacing('data', 'asked', 'bored')}"),
        ("operator_act", "DELETE FROM audit"),
        ("handoff_refused", "UPDATE audit SET user_id = 'eve'"),
        ("session_archived", "DELETE FROM audit"),
        ("session_archived", f"UPDATE audit SET {replacing('data', 'gone', 'gene')}"),
        ("session_purged", "UPDATE audit SET time_us = time_us + 1"),
    ],
)
async def test_changed_entry_is_named(stored, kind, statement):
    """Also in the archive of what was erased and purged."""
    where = f" WHERE kind = '{kind}' AND length(data) > 0"
    change(stored, f"{statement}{where}")
    found = await proved(stored)
    assert any("entry" in problem and "chain" in problem for problem in found.problems)


async def test_seal_that_is_replaced_or_left_out_is_named(stored):
    """A seal carries the hash of the one before."""
    change(
        stored,
        "DELETE FROM audit WHERE position = "
        "(SELECT min(position) FROM audit WHERE kind = 'audit_sealed')",
    )
    found = await proved(stored)
    assert any(problem.startswith("seal 2: does not follow") for problem in found.problems)


async def test_whole_rewritten_history_is_found_by_the_seals(stored):
    """Who recomputes a session's chain still has to replace all seals since."""
    store = await open_store(url(stored))
    try:
        seals = await read_seals(store, "default")
    finally:
        await store.close()
    assert any(head.session_id == "stays" for seal in seals for head in seal.heads)
    # The session's changes all lose their chain, as if an earlier release had written them.
    with sqlite3.connect(stored / "routing.db") as connection:
        rows = connection.execute(
            f"SELECT rowid, revision, events FROM changes WHERE session_no = {SESSION}"
        ).fetchall()
        for row, _, events in rows:
            stripped = json.loads(events)
            del stripped["salt"]
            stripped.pop("prev", None)
            connection.execute(
                "UPDATE changes SET events = ? WHERE rowid = ?",
                (json.dumps(stripped, separators=(",", ":")).encode(), row),
            )
    connection.close()
    found = await proved(stored)
    assert any("is sealed" in problem for problem in found.problems)


async def test_the_command_proves_and_names_the_break(stored):
    """Exit code 0 with the last seal; 1 with the break."""
    code, out, err = await command("audit", "verify", "--store", url(stored))
    assert code == 0, err
    assert "tenant default: whole" in out
    assert "sealed until 2025-" in out
    change(stored, TAMPERED["an agent"])
    code, out, _ = await command("audit", "verify", "--store", url(stored))
    assert code == 1
    assert "broken: session stays, revision" in out


async def test_export_writes_each_record_once_over_several_runs(tmp_path):
    """As JSON lines; with a state each run goes on where the last one ended."""
    async with serving(tmp_path, DESK) as service:
        state, output = tmp_path / "state.json", tmp_path / "audit.jsonl"
        target = ("--target", service.server.address)

        async def export(*options):
            code, out, err = await command("audit", "export", *target, *options)
            assert code == 0, err
            return out

        for name in ("one", "two"):
            await talked(service, name)
            await export("--state", state, "--output", output)
        await export("--state", state, "--output", output)
        lines = [json.loads(line) for line in output.read_text().splitlines()]
        everything = (await export()).splitlines()
        assert [json.loads(line) for line in everything] == lines
        assert {line["event"]["session_id"] for line in lines} == {"one", "two"}
        assert any("handoff_refused" in line["event"] for line in lines)
        assert output.stat().st_mode & 0o777 == 0o600


async def test_export_writes_acts_of_one_microsecond_and_damaged_entries_once_each(tmp_path):
    """They have the same id and time: all but the first were left out for good."""
    reasons = ["first", "second", "third"]
    async with serving(tmp_path, DESK) as service:
        for reason in (*reasons, "damaged", "damaged too"):
            await operators(service).ReloadAgents(pb.ReloadAgentsRequest(reason=reason))
    change(
        tmp_path,
        "UPDATE audit SET time_us = 'noon' WHERE instr(data, CAST('damaged' AS BLOB)) > 0",
    )
    state, output = tmp_path / "state.json", tmp_path / "audit.jsonl"
    async with serving(tmp_path, DESK) as service:
        for _ in range(2):
            target = ("--target", service.server.address)
            options = ("--state", state, "--output", output)
            code, _, err = await command("audit", "export", *target, *options)
            assert code == 0, err
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    acts = [line["event"]["operator_act"] for line in lines if "operator_act" in line["event"]]
    assert [act["reason"] for act in acts] == reasons
    assert sum("unreadable" in line for line in lines) == 2
