"""Rows that are damaged in their form: each stands alone in its place, and hides no other."""

import sqlite3
from contextlib import closing

import pytest
from msgspec import structs
from structlog.testing import capture_logs

from routing_service.storage.dynamodb.keys import HEAD, audit_name, log_name, sequence_pk
from routing_service.storage.event_codec import decode_change, decode_state
from routing_service.storage.row_content import decode_audit
from routing_service.storage.store import CURSOR_START, DAMAGED, SessionKey, StoreCorrupt

AUDIT_DATA = b'{"actor":"ana"}'
EVENTS = b'{"v":1,"events":[]}'
STATE = b'{"v":1,"state":{"session_id":"chat-1","revision":1,"create_us":5,"update_us":5}}'


async def spoil_sqlite(engine, store):
    """Invalid UTF-8, and a text where a number belongs, each in a column of its own."""
    await store.close()
    with closing(sqlite3.connect(engine.folder / "store.db")) as file, file:
        hurt = "WHERE session_id = 'chat-1'"
        assert file.execute(f"UPDATE audit SET kind = CAST(x'ff' AS TEXT) {hurt}").rowcount == 1
        hurt = "WHERE session_no = (SELECT session_no FROM sessions WHERE session_id = 'chat-1')"
        found = file.execute(f"UPDATE changes SET time_us = 'noon' {hurt} AND revision = 2")
        assert found.rowcount == 1


async def spoil_postgres(engine, _store):
    """A column of PostgreSQL has its type: only its content can be damaged."""
    schema, run = engine.server.schema(engine.folder), engine.server.execute
    where = "session_id = 'chat-1'"
    run(f"UPDATE {schema}.audit SET time_us = time_us + 1 WHERE {where}")
    run(f"UPDATE {schema}.changes SET method = 'x' WHERE {where} AND revision = 2")


async def spoil_redis(_engine, store):
    """One row is cut short, one is longer in its head than in its bytes."""
    engine = store._engine
    await engine._write(("LSET", engine._keys.audit("acme", "chat-1").entries, 1, b"short"))
    names = engine._keys.session(SessionKey("acme", "chat-1"))
    row = await engine._read("LINDEX", names.changes, 1)
    await engine._write(("LSET", names.changes, 1, row[:50]))


async def spoil_dynamodb(_engine, store):
    """Attributes that are gone, or have another type."""
    api = store._engine._api
    for prefix, update in (
        ("a/", "REMOVE time_us"),
        ("c/", "SET method_name = :five REMOVE write_id"),
    ):
        found = await api.query("s/4:acme/chat-1", prefix, prefix + "~", limit=10)
        key = {name: found[-1][name] for name in ("pk", "sk")}
        values = {"ExpressionAttributeValues": {":five": {"N": "5"}}} if ":five" in update else {}
        await api.on_table("update_item", Key=key, UpdateExpression=update, **values)


SPOIL = {
    "sqlite": spoil_sqlite,
    "postgres": spoil_postgres,
    "redis": spoil_redis,
    "dynamodb": spoil_dynamodb,
}


async def behead_sqlite(engine, store):
    """A text where a number belongs."""
    await store.close()
    with closing(sqlite3.connect(engine.folder / "store.db")) as file, file:
        hurt = "UPDATE sessions SET update_us = 'noon' WHERE session_id = 'chat-1'"
        assert file.execute(hurt).rowcount == 1


async def behead_redis(_engine, store):
    """A head that is cut short."""
    names = store._engine._keys.session(SessionKey("acme", "chat-1"))
    await store._engine._write(("SET", names.head, b"short"))


async def behead_dynamodb(_engine, store):
    """A head without its owner and its state."""
    await store._engine._api.on_table(
        "update_item",
        Key={"pk": {"S": "s/4:acme/chat-1"}, "sk": {"S": HEAD}},
        UpdateExpression="REMOVE user_id, state_data",
    )


BEHEAD = {"sqlite": behead_sqlite, "redis": behead_redis, "dynamodb": behead_dynamodb}


async def test_session_whose_head_is_damaged_in_its_form_stands_alone(lasting_engine, make):
    """One of them failed ListSessions, exports, erasures and purges of the whole tenant."""
    name = lasting_engine.engine.name
    if name not in BEHEAD:
        pytest.skip(f"{name}'s columns have types: a head cannot lose its form")
    store = await lasting_engine.open()
    for session_id in ("chat-0", "chat-1", "chat-2"):
        await store.append(make.append(make.key(session_id), state=STATE))
    await BEHEAD[name](lasting_engine, store)
    await store.close()
    store = await lasting_engine.open()
    rows, _ = await store.list_sessions("acme", CURSOR_START, 10)
    assert [row.key.session_id for row in rows] == ["chat-0", "chat-1", "chat-2"]
    assert [row.revision for row in rows] == [1, 0, 1]
    assert rows[1] == await store.find_session(make.key())
    assert isinstance(rows[1].update_us, int)
    if name != "sqlite":  # Its state is in a column of its own, which is whole.
        with pytest.raises(StoreCorrupt):
            decode_state((await store.load(make.key())).state)
    assert (await store.load(make.key("chat-2"))).revision == 1


@pytest.fixture
async def spoilt(lasting_engine, make):
    """Return a store with three audit entries and three sessions, one row of each damaged."""
    store = await lasting_engine.open()
    for name in ("chat-0", "chat-1", "chat-2"):
        await store.append_audit(make.audit(name, data=AUDIT_DATA))
        for base in range(2):
            await store.append(make.append(make.key(name), base, events=EVENTS))
    await SPOIL[lasting_engine.engine.name](lasting_engine, store)
    await store.close()
    return await lasting_engine.open()


async def test_audit_entry_damaged_in_its_form_stands_alone(spoilt, make):
    """On Redis and DynamoDB one such row failed the whole page, and so the tenant's audit."""
    whole = [make.audit(name, data=AUDIT_DATA) for name in ("chat-0", "chat-2")]
    for limit in (1, 2, 10):
        found, cursor = [], CURSOR_START
        while True:
            page, cursor = await spoilt.read_audit("acme", None, cursor, limit)
            if not page:
                break
            found += page
        assert [found[0], found[2]] == whole, limit
        assert (found[1].tenant, found[1].data) == ("acme", DAMAGED), limit
        assert isinstance(found[1].time_us, int)
        with pytest.raises(StoreCorrupt, match="restore it from a backup"):
            decode_audit(found[1])
    (alone,), _ = await spoilt.read_audit("acme", "chat-1", CURSOR_START, 10)
    assert (alone.session_id, alone.data) == ("chat-1", DAMAGED)
    assert (await spoilt.read_audit("acme", "chat-2", CURSOR_START, 10))[0] == whole[1:]


async def test_change_damaged_in_its_form_stands_alone(spoilt, make):
    """In its session by its revision, in both orders, and in the log of all sessions."""
    whole = make.change(1, events=EVENTS)
    for is_newest_first in (False, True):
        found = await spoilt.read_changes(make.key(), limit=10, newest_first=is_newest_first)
        assert [change.revision for change in found] == ([2, 1] if is_newest_first else [1, 2])
        by_revision = {change.revision: change for change in found}
        assert by_revision[1] == whole
        assert by_revision[2].events == DAMAGED
        assert isinstance(by_revision[2].time_us, int)
        with pytest.raises(StoreCorrupt):
            decode_change(by_revision[2].events)
    only = await spoilt.read_changes(make.key(), limit=1, newest_first=True)
    assert [(change.revision, change.events) for change in only] == [(2, DAMAGED)]
    log, _ = await spoilt.read_log(CURSOR_START, 10)
    places = sorted((key.session_id, change.revision) for key, change in log)
    assert places == [(f"chat-{n}", revision) for n in range(3) for revision in (1, 2)]
    hurt = [key.session_id for key, change in log if change.events == DAMAGED]
    assert hurt == ["chat-1"]


async def test_erasing_takes_the_content_of_a_damaged_audit_entry(spoilt, make):
    """What a damaged row has of a user is not known, so nothing of it may stay."""
    await spoilt.erase_before(make.key(), 2, EVENTS)
    (entry,), _ = await spoilt.read_audit("acme", "chat-1", CURSOR_START, 10)
    assert entry.user_id == ""
    assert entry.data in (b"", DAMAGED)
    found, _ = await spoilt.read_audit("acme", None, CURSOR_START, 10)
    assert [entry.data for entry in found if entry.session_id != "chat-1"][-1] == AUDIT_DATA


async def unname_redis(engine, key):
    """Entries of the log and of the due sessions that are too short to name a session."""
    names = engine._keys.session(key)
    position = 1 + int(await engine._read("GET", names.counter))
    await engine._write(("XADD", names.log, f"0-{position}", "e", b"short"))
    await engine._write(("SET", names.counter, position))
    await engine._write(("ZADD", names.due, 0, b"\0"))


async def unname_dynamodb(engine, key):
    """Places of the log and of the audit that have lost their session."""
    for name in (log_name(key), audit_name(key.tenant)):
        last = (await engine._api.query(sequence_pk(name), "!", "~", limit=10))[-1]
        await engine._api.on_table(
            "update_item",
            Key={attribute: last[attribute] for attribute in ("pk", "sk")},
            UpdateExpression="REMOVE session_id",
        )


UNNAME = {"redis": unname_redis, "dynamodb": unname_dynamodb}


async def test_entry_that_names_no_session_stands_alone(lasting_engine, make):
    """One in the log failed every watch, one among the due sessions every sweep."""
    name = lasting_engine.engine.name
    if name not in UNNAME:
        pytest.skip(f"{name} reads the log from the changes themselves")
    store = await lasting_engine.open()
    appended = []
    for session_id in ("chat-0", "chat-1", "chat-2"):
        key = make.key(session_id)
        await store.append_audit(make.audit(session_id, data=AUDIT_DATA))
        await store.append(structs.replace(make.append(key, events=EVENTS), due_us=7))
        appended.append(key)
        if session_id == "chat-1":
            await UNNAME[name](store._engine, key)
    left = {key for key in appended if (name, key.session_id) != ("dynamodb", "chat-1")}
    with capture_logs() as logs:
        for limit in (1, 10):
            found, cursor = [], CURSOR_START
            while True:
                page, cursor = await store.read_log(cursor, limit)
                if not page:
                    break
                found += page
            assert {key for key, _ in found} == left, limit
        assert set(await store.due_sessions(10, 10)) == set(appended)
        entries, _ = await store.read_audit("acme", None, CURSOR_START, 10)
    # The change that the log has lost is still in its session.
    assert (await store.load(make.key("chat-1"))).revision == 1
    assert [entry.data for entry in entries].count(AUDIT_DATA) == len(left)
    assert len(entries) == len(appended)
    said = {line["event"] for line in logs if line["log_level"] == "error"}
    assert said == {"log_entry_damaged"} | ({"due_entry_damaged"} if name == "redis" else set())
