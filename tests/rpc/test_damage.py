"""Rows that were damaged or edited by hand: what each call says of them, and what goes on."""

import sqlite3
from contextlib import closing

import pytest

from agent_routing.v1 import routing_service_pb2
from routing_service.storage.store import StoreCorrupt
from tests.rpc.live_service import fresh_id, hand_to, refusal, serving
from tests.rpc.registries import DESK
from tests.stored_data.command_line import command

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
            refused = await refusal(chat.set_active("ghost"))
            assert refused.code != "OK"
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
