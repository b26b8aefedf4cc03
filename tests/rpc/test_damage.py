"""Rows that were damaged or edited by hand: what each call says of them, and what goes on."""

import sqlite3
from contextlib import closing

import pytest
from google.protobuf import timestamp_pb2

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import admin_service_pb2_grpc, routing_service_pb2
from routing_service.storage.store import SessionKey, StoreCorrupt
from tests.rpc.live_service import fresh_id, hand_to, refusal, serving
from tests.rpc.registries import DESK
from tests.stored_data.command_line import command
from tests.stored_data.conftest import place_on  # noqa: F401 - a fixture

OF = "(SELECT session_no FROM sessions WHERE session_id = 'hurt')"
CORRUPT = ("DATA_LOSS", "STATE_CORRUPT")


def edit(tmp_path, statement):
    """Change the stored data by hand; return how many rows changed."""
    with closing(sqlite3.connect(tmp_path / "routing.db", isolation_level=None)) as file:
        return file.execute(statement).rowcount


async def talked(tmp_path):
    """Serve a session to be damaged and one to stay, each with a task and a refusal, and stop."""
    request_id = fresh_id()
    async with serving(tmp_path, DESK) as service:
        for name in ("hurt", "whole"):
            chat = service.chat(name)
            routed = await chat.say("hello", request_id=request_id, metadata={"k": "v"})
            await chat.answer(routed.dispatch, "over to sales", **hand_to("sales"))
            refused = await refusal(chat.set_active("disabled"))
            assert refused.reason == "HANDOFF_REFUSED"
    return request_id


def forgive(service):
    """Hold that the operator was told of damage, and of nothing else."""
    assert service.observer.failures
    assert {type(failure) for failure in service.observer.failures} == {StoreCorrupt}
    service.observer.failures.clear()


async def verify(tmp_path):
    """Return the exit code and the output of verify."""
    code, out, err = await command("verify", "--store", f"sqlite:///{tmp_path / 'routing.db'}")
    return code, out + err


async def test_session_whose_owner_was_edited_is_given_to_nobody(tmp_path):
    """The edited state gave it away: every call of either user is DATA_LOSS now."""
    await talked(tmp_path)
    edited = edit(
        tmp_path,
        "UPDATE sessions SET user_id = 'eve', state = CAST(replace(state, '\"owner\":\"ana\"', "
        "'\"owner\":\"eve\"') AS BLOB) WHERE session_id = 'hurt'",
    )
    assert edited == 1
    async with serving(tmp_path, DESK) as service:
        for user in ("eve", "ana"):
            chat = service.chat("hurt", user_id=user)
            for call in (chat.status(), chat.say("mine?"), chat.set_active("sales"), chat.clear()):
                refused = await refusal(call)
                assert tuple(refused) == CORRUPT
                assert refused.metadata["session_id"] == "hurt"
        forgive(service)
        assert (await service.chat("whole").say("more")).revision == 3
    code, out = await verify(tmp_path)
    assert code == 1
    assert "a stored state does not fit its checksum" in out
    assert "1 of 2 sessions are damaged" in out


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE changes SET answer = substr(answer, 2) WHERE revision = 1 AND session_no = " + OF,
        "UPDATE changes SET answer = 'text' WHERE revision = 1 AND session_no = " + OF,
        "UPDATE changes SET fingerprint = x'00' WHERE revision = 1 AND session_no = " + OF,
        "UPDATE changes SET events = 'text' WHERE revision = 1 AND session_no = " + OF,
    ],
)
async def test_damaged_stored_answer_is_data_loss_for_its_repeat_alone(tmp_path, statement):
    """A repeat gets no half answer and no other request's; the session goes on."""
    request_id = await talked(tmp_path)
    assert edit(tmp_path, statement) == 1
    async with serving(tmp_path, DESK) as service:
        hurt, whole = service.chat("hurt"), service.chat("whole")
        again = {"request_id": request_id, "metadata": {"k": "v"}}
        assert tuple(await refusal(hurt.say("hello", **again))) == CORRUPT
        forgive(service)
        assert (await whole.say("hello", **again)).revision == 1
        assert (await whole.say("more")).revision == 3
    code, out = await verify(tmp_path)
    assert code == 1
    assert "revision 1" in out
    assert "1 of 2 sessions are damaged" in out


@pytest.mark.parametrize(
    "change",
    ["data = x'ff'", "status = 'lost'", "data = 'text'", "user_id = 'eve'", "expire_us = 9"],
)
async def test_damaged_task_row_is_data_loss_for_its_session_alone(tmp_path, change):
    """It was INTERNAL, or a task of another user."""
    await talked(tmp_path)
    assert edit(tmp_path, f"UPDATE tasks SET {change} WHERE session_no = {OF}") == 1
    async with serving(tmp_path, DESK) as service:
        hurt = service.chat("hurt")
        assert tuple(await refusal(hurt.service.call("ListTasks", tasks_of(hurt)))) == CORRUPT
        forgive(service)
        assert len(await service.chat("whole").tasks()) == 1
        assert (await hurt.set_active("support")).revision == 3
    code, out = await verify(tmp_path)
    assert code == 1
    assert 'of session "hurt" cannot be read' in out
    assert "1 of 2 sessions are damaged" in out


def tasks_of(chat):
    """Return the request for a session's tasks."""
    return routing_service_pb2.ListTasksRequest(session_id=chat.session_id, user_id=chat.user_id)


async def listed(service):
    """Return the sessions of a list by id, and whether each can be read."""
    admin = admin_service_pb2_grpc.AdminServiceStub(service.channel)
    page = await admin.ListSessions(pb.ListSessionsRequest())
    return {each.session_id: each.unreadable.reason for each in page.sessions}


async def audited(service, session_id=""):
    """Return the unreadable entries of the audit, and how many records it has."""
    admin = admin_service_pb2_grpc.AdminServiceStub(service.channel)
    order = pb.EVENT_ORDER_OLDEST_FIRST
    page = await admin.ListEvents(pb.ListEventsRequest(session_id=session_id, order=order))
    return [each.unreadable for each in page.records if each.HasField("unreadable")], page.records


async def watched(service):
    """Watch all from the beginning; return the changes and the unreadable entries."""
    admin = admin_service_pb2_grpc.AdminServiceStub(service.channel)
    changes, entries = [], []
    stream = admin.WatchEvents(pb.WatchEventsRequest(from_beginning=True))
    async for message in stream:
        if message.HasField("change"):
            changes.append((message.change.session_id, message.change.revision))
        if message.HasField("unreadable"):
            entries.append(message.unreadable)
        if len(changes) + len(entries) == 4:
            break
    stream.cancel()
    return changes, entries


async def exported(service):
    """Export the user; return the kinds of parts by session, and the unreadable ones."""
    admin = admin_service_pb2_grpc.AdminServiceStub(service.channel)
    parts = [part async for part in admin.ExportUser(pb.ExportUserRequest(user_id="ana"))]
    kinds = {part.session_id: set() for part in parts}
    for part in parts:
        kinds[part.session_id].add(part.WhichOneof("part"))
    return kinds, [part.unreadable for part in parts if part.HasField("unreadable")]


NEWER_STATE = (
    "UPDATE sessions SET state = CAST(replace(state, '{\"v\":1', '{\"v\":9') AS BLOB) "
    "WHERE session_id = 'hurt'"
)
NEWER_EVENT = (
    'UPDATE changes SET events = CAST(replace(events, \'"kind":"message_routed"\', '
    '\'"kind":"message_teleported"\') AS BLOB) WHERE revision = 1 AND session_no = ' + OF
)
BROKEN_STATE = "UPDATE sessions SET state = x'00' WHERE session_id = 'hurt'"
BROKEN_EVENT = "UPDATE changes SET events = x'00' WHERE revision = 1 AND session_no = " + OF


@pytest.mark.parametrize(
    ("statement", "reason"), [(NEWER_STATE, "SCHEMA_TOO_NEW"), (BROKEN_STATE, "STATE_CORRUPT")]
)
async def test_unreadable_state_stands_in_lists_and_exports_and_stops_neither(
    tmp_path, statement, reason
):
    """One session of a newer release made ListSessions fail for all, as during a roll-out."""
    await talked(tmp_path)
    assert edit(tmp_path, statement) == 1
    async with serving(tmp_path, DESK) as service:
        assert await listed(service) == {"hurt": reason, "whole": ""}
        parts, unreadable = await exported(service)
        assert {"session", "task", "turn", "record"} <= parts["whole"]
        assert [(entry.session_id, entry.reason) for entry in unreadable] == [("hurt", reason)]
        assert (await audited(service))[0] == []
        service.observer.failures.clear()


@pytest.mark.parametrize(
    ("statement", "reason"), [(NEWER_EVENT, "SCHEMA_TOO_NEW"), (BROKEN_EVENT, "STATE_CORRUPT")]
)
async def test_unreadable_change_stands_in_the_audit_and_in_watches(tmp_path, statement, reason):
    """A watcher was not told of the change that it missed; the statistics failed for all."""
    await talked(tmp_path)
    assert edit(tmp_path, statement) == 1
    async with serving(tmp_path, DESK) as service:
        changes, entries = await watched(service)
        expected = [("default", "hurt", 1, reason)]
        assert sorted(changes) == [("hurt", 2), ("whole", 1), ("whole", 2)]
        for found in (entries, (await audited(service))[0], (await audited(service, "hurt"))[0]):
            ids = [(e.tenant, e.session_id, e.revision, e.reason) for e in found]
            assert ids == expected
        parts, _ = await exported(service)
        assert {"session", "task", "turn", "record"} <= parts["whole"]
        assert {"session", "task", "record"} <= parts["hurt"]
        admin = admin_service_pb2_grpc.AdminServiceStub(service.channel)
        stats = await admin.GetRoutingStats(pb.GetRoutingStatsRequest())
        assert stats.HasField("as_of_time")
        service.observer.failures.clear()


@pytest.mark.parametrize(
    ("change", "revision"),
    [
        ("data = x'ff'", 2),
        ("kind = 'other'", 2),
        ("user_id = 'eve'", 2),
        ("request_id = CAST(x'ff' AS TEXT)", 2),
        ("time_us = 'noon'", 0),
    ],
)
async def test_damaged_audit_entry_stands_in_the_audit_and_hides_no_other(
    tmp_path, change, revision
):
    """One of them broke ListEvents for the whole tenant. revision: 0 = it is not known either."""
    await talked(tmp_path)
    assert edit(tmp_path, f"UPDATE audit SET {change} WHERE session_id = 'hurt'") == 1
    async with serving(tmp_path, DESK) as service:
        unreadable, records = await audited(service)
        ids = [(e.tenant, e.session_id, e.revision, e.reason) for e in unreadable]
        assert ids == [("default", "hurt", revision, "STATE_CORRUPT")]
        refused = [each.event for each in records if each.event.HasField("handoff_refused")]
        assert [event.session_id for event in refused] == ["whole"]
        assert len((await audited(service, "hurt"))[0]) == 1
        parts, _ = await exported(service)
        assert {"session", "task", "turn", "record"} <= parts["hurt"]
        assert service.observer.failures == []
    code, out = await verify(tmp_path)
    assert code == 1
    assert 'of session "hurt"' in out


async def test_state_of_a_purged_session_is_not_written_over_the_next_one(tmp_path, place_on):  # noqa: F811
    """Two replicas: one has the session in memory, the other purges it and begins it again."""
    url = place_on("postgres")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with (
        serving(tmp_path / "a", DESK, store=url) as one,
        serving(tmp_path / "b", DESK, store=url) as two,
    ):
        old = await one.chat("again").say("old")
        two.clock.advance(60)
        key = SessionKey("default", "again")
        await two.store.delete_session(key, 1)
        new = await two.chat("again", user_id="bo").say("new")
        assert (old.revision, new.revision) == (1, 1)
        refused = await refusal(one.chat("again").say("mine still?"))
        assert tuple(refused) == ("PERMISSION_DENIED", "OWNER_MISMATCH")
        assert (await two.chat("again", user_id="bo").say("on")).revision == 2


async def test_head_that_is_cut_short_stops_no_list_and_no_operator(tmp_path, place_on):  # noqa: F811
    """On Redis it failed ListSessions, exports, erasures and purges of the whole tenant."""
    async with serving(tmp_path, DESK, store=place_on("redis")) as service:
        for name in ("hurt", "whole"):
            await service.chat(name).say("hello")
        engine = service.store._engine
        head = engine._keys.session(SessionKey("default", "hurt")).head
        await engine._write(("SET", head, b"short"))
        assert await listed(service) == {"hurt": "STATE_CORRUPT", "whole": ""}
        parts, unreadable = await exported(service)
        assert {"session", "task", "turn", "record"} <= parts.pop("whole")
        # Its owner is unknown: an export without a word of it would look complete, and one that
        # names it may name another user's session.
        assert parts == {"": {"unreadable"}}
        assert [entry.session_id for entry in unreadable] == [""]
        for call in (service.chat("hurt").status(), service.chat("hurt").say("more")):
            assert tuple(await refusal(call)) == CORRUPT
        admin = admin_service_pb2_grpc.AdminServiceStub(service.channel)
        service.clock.advance(3600)
        before = timestamp_pb2.Timestamp()
        before.FromMicroseconds(service.clock.now_us)
        trial = pb.PurgeSessionsRequest(update_time_before=before, validate_only=True)
        assert (await admin.PurgeSessions(trial)).sessions_purged == 1
        erasing = pb.EraseUserRequest(user_id="ana")
        assert tuple(await refusal(admin.EraseUser(erasing))) == CORRUPT
        whole = service.chat("whole")
        assert (await refusal(whole.say("more"))).reason == "SESSION_ERASED"
        forgive(service)
