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
from structlog.testing import capture_logs

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import admin_service_pb2_grpc
from routing_service.server.bounds import Bounds
from routing_service.settings.rules import SettingsInvalid
from routing_service.storage.audit_seals import read_seals
from routing_service.storage.open_store import open_store, open_store_to_read
from routing_service.stored_data.audit_verification import verify_audit
from tests.rpc.live_service import Clock, finish, hand_to, refusal, serving
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


LAST_SEAL = "(SELECT max(position) FROM audit WHERE kind = 'audit_sealed')"
OF_STAYS = (
    f"DELETE FROM changes WHERE session_no = {SESSION}",
    "DELETE FROM sessions WHERE session_id = 'stays'",
)


@pytest.mark.parametrize(
    "statements",
    [
        ("DELETE FROM audit",),
        ("DELETE FROM audit WHERE kind = 'audit_sealed'",),
        (f"DELETE FROM audit WHERE position = {LAST_SEAL}",),
        # With what it sealed.
        (f"DELETE FROM audit WHERE position >= {LAST_SEAL} - 1", *OF_STAYS),
    ],
    ids=["emptied", "without-seals", "without-the-last-seal", "without-what-it-sealed"],
)
async def test_audit_without_the_last_seal_is_broken(stored, statements):
    """An emptied audit was whole, and so was one without its last seal and what that sealed."""
    noted = (await proved(stored)).last_seal
    change(stored, *statements)
    found = await proved(stored)
    assert any(
        problem.startswith(f"seal {noted}: the store has noted it as the last one")
        for problem in found.problems
    )
    code, out, _ = await command("audit", "verify", "--store", url(stored))
    assert code == 1
    assert "tenant default: BROKEN" in out


async def test_change_that_lost_its_hash_is_named_though_no_seal_is_left(stored):
    """As if an earlier release had written it: the store knows since when hashes are written."""
    with sqlite3.connect(stored / "routing.db") as connection:
        connection.execute("DELETE FROM audit WHERE kind = 'audit_sealed'")
        connection.execute("DELETE FROM settings WHERE name = 'store.audit_seal'")
        strip_hashes(connection, "SELECT rowid, events FROM changes")
    connection.close()
    found = await proved(stored)
    assert found.seals == 0
    assert any(
        problem.startswith("session stays, revision 1: has no hash") for problem in found.problems
    )


def strip_hashes(connection, query):
    """Take the hashes and salts out of changes."""
    for row, events in connection.execute(query).fetchall():
        stripped = json.loads(events)
        stripped.pop("salt", None)
        stripped.pop("prev", None)
        connection.execute(
            "UPDATE changes SET events = ? WHERE rowid = ?",
            (json.dumps(stripped, separators=(",", ":")).encode(), row),
        )


async def test_entry_without_a_place_in_a_chain_is_named(stored):
    """An act that was never done, added by hand."""
    change(
        stored,
        "INSERT INTO audit (tenant, session_id, time_us, revision, kind, request_id, user_id, data)"
        " SELECT tenant, session_id, time_us, revision, kind, request_id, user_id,"
        " CAST('{\"method\":\"ReloadAgents\"}' AS BLOB) FROM audit WHERE kind = 'operator_act'"
        " AND length(data) > 0 LIMIT 1",
    )
    found = await proved(stored)
    assert any("has no place in a chain" in problem for problem in found.problems)


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
        query = f"SELECT rowid, events FROM changes WHERE session_no = {SESSION}"
        strip_hashes(connection, query)
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


def put_back(folder, earlier):
    """Replace a server's file by an earlier copy."""
    for file in folder.glob("routing.db*"):
        file.unlink()
    for file in earlier.glob("routing.db*"):
        shutil.copy(file, folder)


async def exported(service, file):
    """Write the audit to a file; return its seals as number and hash."""
    target = ("--target", service.server.address, "--output", file)
    code, _, err = await command("audit", "export", *target)
    assert code == 0, err
    records = [json.loads(line)["event"] for line in file.read_text().splitlines()]
    seals = [event["audit_sealed"] for event in records if "audit_sealed" in event]
    return [(int(seal["seal"]), seal["hash"]) for seal in seals]


def sealing(folder, notes, starts):
    """Start a server once more, when the lease of the one before has lapsed."""
    clock = Clock()
    clock.advance(starts * 200)
    return serving(folder, DESK, bounds=OFTEN, audit_seals_file=str(notes), clock=clock)


@pytest.fixture
async def rolled_back(tmp_path):
    """A folder with the file of a minute ago, and what was noted elsewhere since.

    export.jsonl: the audit; seals.jsonl: the server's notes; log.jsonl: its log.
    """
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    notes = tmp_path / "seals.jsonl"
    async with sealing(tmp_path, notes, 0) as service:
        await talked(service, "before")
        await sealed(service)
    for file in tmp_path.glob("routing.db*"):
        shutil.copy(file, earlier)
    with capture_logs() as logs:
        async with sealing(tmp_path, notes, 1) as service:
            await talked(service, "after")
            await sealed(service)
            seals = await exported(service, tmp_path / "export.jsonl")
    lines = [line for line in logs if line["event"] == "audit_sealed"]
    assert {(line["seal"], line["hash"]) for line in lines} <= set(seals)
    assert lines[-1]["seal"] == seals[-1][0]
    assert all(line["tenant"] == "default" for line in lines)
    (tmp_path / "log.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    put_back(tmp_path, earlier)
    return tmp_path


@pytest.mark.parametrize("anchor", ["export.jsonl", "seals.jsonl", "log.jsonl", "seal"])
async def test_store_put_back_to_an_earlier_state_lacks_a_seal_noted_elsewhere(rolled_back, anchor):
    """By itself it is whole: all of its chains are."""
    assert (await proved(rolled_back)).problems == []
    note = json.loads((rolled_back / "seals.jsonl").read_text())
    given = f"{note['seal']}:{note['hash']}" if anchor == "seal" else rolled_back / anchor
    code, out, _ = await command("audit", "verify", "--store", url(rolled_back), "--expect", given)
    assert code == 1
    assert f"broken: seal {note['seal']}, hash {note['hash']}: is expected and missing" in out
    assert "put back to an earlier state" in out


async def test_server_on_a_store_older_than_its_noted_seal_says_so_at_each_start(rolled_back):
    """As an error, until an operator removes the note; the note stays as it is."""
    notes = rolled_back / "seals.jsonl"
    noted = json.loads(notes.read_text())

    async def started(times):
        """Run a server until it has sealed; return what it says of the store."""
        with capture_logs() as logs:
            async with sealing(rolled_back, notes, times) as service:
                await sealed(service)
        return [line for line in logs if line["event"] == "audit_rolled_back"]

    for times in (2, 3):
        (line,) = await started(times)
        assert line["log_level"] == "error"
        assert (line["tenant"], line["noted_seal"]) == ("default", noted["seal"])
        # By the second start the store may have as many seals: others than the noted one.
        assert line["last_seal"] < noted["seal"] or times == 3
        assert line["last_hash"] != noted["hash"]
        assert "--expect" in line["remedy"]
    after = json.loads(notes.read_text())
    assert (after["seal"], after["hash"]) == (noted["seal"], noted["hash"])
    assert after["missing_us"] > 0
    notes.write_text("")
    assert await started(4) == []
    assert json.loads(notes.read_text())["hash"] != noted["hash"]
    assert notes.stat().st_mode & 0o777 == 0o600


async def test_expected_seal_that_is_there_is_no_break_and_another_in_its_place_is(stored):
    """The same seal has the same hash for ever."""
    found = await proved(stored)
    right = f"{found.last_seal}:{found.last_seal_hash}"
    verify = ("audit", "verify", "--store", url(stored))
    code, _, err = await command(*verify, "--expect", right, "--expect", right)
    assert code == 0, err
    code, out, _ = await command(*verify, "--expect", right, "--expect", f"1:{'0' * 64}")
    assert code == 1
    assert "the store has other seals in its place: they were replaced" in out
    code, _, err = await command(*verify, "--expect", "3:abc")
    assert code == 2
    assert '"3:abc" is not the number of a seal and its hash' in err


async def test_verify_audit_compares_with_seals_of_its_caller(tmp_path):
    """As the command does, over gRPC."""
    async with serving(tmp_path, DESK, bounds=OFTEN) as service:
        await sealed(service)
        found = await operators(service).VerifyAudit(pb.VerifyAuditRequest())
        last = pb.ExpectedSeal(seal=found.last_seal, hash=found.last_seal_hash)
        later = pb.ExpectedSeal(seal=9_999, hash="0" * 64)
        same = await operators(service).VerifyAudit(pb.VerifyAuditRequest(expected=[last]))
        assert list(same.problems) == []
        lacks = await operators(service).VerifyAudit(pb.VerifyAuditRequest(expected=[later]))
        assert lacks.problems[0].startswith(f"seal 9999, hash {later.hash}: is expected")
        wrong = pb.VerifyAuditRequest(expected=[pb.ExpectedSeal(seal=0, hash="x")])
        refused = await refusal(operators(service).VerifyAudit(wrong))
        assert (refused.reason, refused.metadata["field"]) == ("INVALID_FIELD", "expected[0]")


@pytest.mark.parametrize("content", ["not json", '{"tenant":"t","seal":1,"hash":"?"}'])
async def test_file_of_seals_that_cannot_be_read_refuses_the_start(tmp_path, content):
    """With the line: a damaged anchor is no anchor."""
    notes = tmp_path / "seals.jsonl"
    notes.write_text(content)
    with pytest.raises(SettingsInvalid, match=r'audit_seals_file ".*": line 1 '):
        async with serving(tmp_path, DESK, audit_seals_file=str(notes)):
            pass
    with pytest.raises(SettingsInvalid, match="cannot be written"):
        async with serving(tmp_path, DESK, audit_seals_file=str(tmp_path / "none" / "seals")):
            pass
