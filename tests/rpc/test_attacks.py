"""Unusual but legal calls that an earlier version answered wrongly; each test names the fault."""

import asyncio
import contextlib
import sqlite3

import pytest

from agent_routing.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    item_pb2,
    routing_service_pb2,
    turn_pb2,
)
from routing_service.storage.store import StoreCorrupt
from tests.rpc.live_service import (
    ask,
    finish,
    fresh_id,
    hand_to,
    is_replayed,
    outcome_status,
    refusal,
    serving,
    struct,
    went,
)
from tests.rpc.registries import DESK

CLIENT_BYTES_MAX = 4 * 1024 * 1024
"""The default limit of a gRPC client for one message, in bytes."""

METADATA_FULL = {f"key{place:02}": "v" * 122 for place in range(32)}
TASKS = 1_000


@pytest.fixture
async def desk(start_server):
    """Run a help desk."""
    return await start_server(DESK)


async def test_message_under_the_id_of_an_open_request_is_refused(desk):
    """Frontends see the request ids that the service makes.

    One answer must not close two requests.
    """
    chat = desk.chat()
    routed = await chat.say("one")
    handed = await chat.answer(routed.dispatch, **hand_to("sales"))
    async with chat.unchanged():
        refused = await refusal(chat.say("two", request_id=handed.next.request_id))
    assert tuple(refused) == ("ALREADY_EXISTS", "REQUEST_ID_REUSED")
    answered = await chat.answer(handed.next, "done", **ask())
    assert outcome_status(answered) == "APPLIED"
    assert went((await chat.say("three")).dispatch) == ("sales", "FOLLOW_UP_LOCK")


async def test_message_under_the_id_of_an_answered_request_is_refused(desk):
    """The agent has already answered that id, so the new message could never be answered."""
    chat = desk.chat()
    routed = await chat.say("one")
    handed = await chat.answer(routed.dispatch, **hand_to("sales"))
    await chat.answer(handed.next, "done")
    async with chat.unchanged():
        refused = await refusal(chat.say("two", request_id=handed.next.request_id))
    assert tuple(refused) == ("ALREADY_EXISTS", "REQUEST_ID_REUSED")


async def test_message_under_the_id_of_a_request_that_waits_for_approval_is_refused(desk):
    """A decision is made once per request id, and so is the answer that asked for it."""
    chat = desk.chat()
    routed = await chat.say("one")
    handed = await chat.answer(routed.dispatch, **hand_to("sales"))
    paused = routing_service_pb2.ApprovalNeededOutcome(prompt="really?")
    await chat.answer(handed.next, approval_needed=paused)
    async with chat.unchanged():
        refused = await refusal(chat.say("two", request_id=handed.next.request_id))
    assert tuple(refused) == ("ALREADY_EXISTS", "REQUEST_ID_REUSED")


async def test_repeat_gets_its_first_answer_though_its_metadata_would_fit_no_more(desk):
    """Metadata is merged; later metadata may leave no room for that of the repeat."""
    chat = desk.chat()
    request_id = fresh_id()
    first = await chat.say("one", request_id=request_id, metadata={"key": "v" * 4000})
    await chat.say("two", metadata={"key": "short", "other": "v" * 3900})
    call = chat.say("one", request_id=request_id, metadata={"key": "v" * 4000})
    assert await call == first
    assert await is_replayed(call)


async def test_repeat_may_write_the_same_otherwise(desk):
    """Entitlements are a set, and a UUID in upper case is the same UUID."""
    chat = desk.chat()
    request_id, task_id = fresh_id(), fresh_id()
    first = await chat.say(request_id=request_id, task_id=task_id, entitlements=["a", "b"])
    call = chat.say(
        request_id=request_id.upper(), task_id=task_id.upper(), entitlements=["b", "a", "b"]
    )
    assert await call == first
    assert await is_replayed(call)
    fewer = chat.say(request_id=request_id, task_id=task_id, entitlements=["a"])
    assert tuple(await refusal(fewer)) == ("ALREADY_EXISTS", "REQUEST_ID_REUSED")


async def test_race_for_a_task_tells_the_loser_nothing_of_the_winner(desk):
    """Another user learns that the task is taken, but not in which session."""
    for _ in range(10):
        task_id = fresh_id()
        chats = [desk.chat(user_id=user) for user in ("ana", "ben", "eve")]
        calls = [chat.say("hello", task_id=task_id) for chat in chats]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        lost = [call for call, outcome in zip(calls, outcomes, strict=True) if _failed(outcome)]
        assert len(lost) == len(chats) - 1
        for call in lost:
            refused = await refusal(call)
            assert tuple(refused) == ("PERMISSION_DENIED", "OWNER_MISMATCH")
            told = refused.message + "".join(refused.metadata.values())
            assert not any(chat.session_id in told for chat in chats)


def _failed(outcome):
    return isinstance(outcome, Exception)


async def test_one_user_is_told_in_which_session_a_task_is(desk):
    """The task's own user learns which session has it."""
    first, second = desk.chat(), desk.chat()
    task_id = fresh_id()
    await first.say("hello", task_id=task_id)
    refused = await refusal(second.say("hello", task_id=task_id))
    assert tuple(refused) == ("INVALID_ARGUMENT", "INVALID_FIELD")
    assert first.session_id in refused.message


async def test_watchers_hear_of_a_change_whose_caller_left_while_it_was_written(desk):
    """The caller was gone before the answer; the change is stored and watchers soon get it."""
    told_late, committed = 0, 0
    for attempt in range(60):
        chat = desk.chat()
        await chat.say("hello")
        request = routing_service_pb2.WatchSessionRequest(
            session_id=chat.session_id, user_id=chat.user_id
        )
        watch = desk.stub.WatchSession(request, timeout=20)
        await watch.read()  # The heartbeat that opens the stream.
        call = chat.say("anybody?")
        await asyncio.sleep(attempt % 12 * 0.0003)
        if not call.cancel():
            watch.cancel()
            continue
        await asyncio.sleep(0.05)
        if len(await chat.changes()) > 1:
            committed += 1
            try:
                message = await asyncio.wait_for(watch.read(), 1)
            except TimeoutError:
                told_late += 1
            else:
                assert message.change.revision == 2
        watch.cancel()
    assert committed
    assert not told_late


@pytest.mark.parametrize(
    "item",
    [
        item_pb2.Item(content_type="image/png", uri="https://example.org/" + "a" * 2000),
        item_pb2.Item(content_type="text/plain", text="\N{GRINNING FACE}" * 1000),
    ],
    ids=["uris", "characters of four bytes"],
)
async def test_history_weighs_what_it_weighs_on_the_wire(desk, item):
    """A hundred turns of large items are cut to a size every client accepts, oldest first."""
    chat = desk.chat()
    items = [item] * 15
    for number in range(100):
        routed = await chat.say(f"message {number}", items=items, history_turns=-1)
        await chat.answer(routed.dispatch, "answer", items=items)
    routed = await chat.say("and now?", history_turns=100)
    assert routed.ByteSize() < CLIENT_BYTES_MAX / 2
    assert routed.dispatch.history[-1].user_text == "message 99"
    assert len(routed.dispatch.history) >= 5


async def test_full_page_of_tasks_fits_into_one_message(desk):
    """A thousand tasks with the maximum metadata come in pages, each task once."""
    chat = desk.chat()
    made = [(await chat.say("/reset next", metadata=METADATA_FULL)).task_id for _ in range(TASKS)]
    found, token = [], ""
    while True:
        request = routing_service_pb2.ListTasksRequest(
            session_id=chat.session_id, user_id=chat.user_id, page_size=TASKS, page_token=token
        )
        page = await desk.call("ListTasks", request)
        assert page.ByteSize() < CLIENT_BYTES_MAX / 2
        found += [task.task_id for task in page.tasks]
        token = page.next_page_token
        if not token:
            break
    assert found == made


@pytest.mark.parametrize("order", ["NEWEST_FIRST", "OLDEST_FIRST"])
async def test_full_page_of_events_fits_into_one_message(desk, order):
    """Handoffs with the maximum context come in several pages, each event once."""
    chat = desk.chat()
    context = struct({f"key{place}": "v" * 100 for place in range(140)})
    for number in range(250):
        agent_id = ("sales", "support")[number % 2]
        await chat.set_active(agent_id, context=context, message="m" * 4096)
    admin = admin_service_pb2_grpc.AdminServiceStub(desk.channel)
    found, token = [], ""
    while True:
        page = await admin.ListEvents(
            admin_service_pb2.ListEventsRequest(
                session_id=chat.session_id,
                page_size=1000,
                page_token=token,
                order=f"EVENT_ORDER_{order}",
            )
        )
        assert page.ByteSize() < CLIENT_BYTES_MAX / 2
        found += [record.event.event_id for record in page.records]
        token = page.next_page_token
        if not token:
            break
    in_order = sorted(found, key=lambda name: [int(part) for part in name.split(".")])
    assert len(set(found)) == len(found)
    assert {int(name.split(".")[0]) for name in found} == set(range(1, 251))
    assert found == (in_order if order == "OLDEST_FIRST" else in_order[::-1])


async def test_damage_of_one_session_leaves_lists_and_streams_of_all_others(tmp_path):
    """Reading the damaged row fails with DATA_LOSS; every other call works."""
    store = f"sqlite:///{tmp_path / 'routing.db'}"
    async with serving(tmp_path, DESK, store=store) as desk:
        for session_id in ("a", "damaged-change", "damaged-state", "other-revision", "z"):
            await desk.chat(session_id=session_id).say("hello")
    with contextlib.closing(sqlite3.connect(tmp_path / "routing.db")) as file, file:
        set_state = "UPDATE sessions SET state = ? WHERE session_id = ?"
        file.execute(set_state, (b'{"v":1,"state":{', "damaged-state"))
        get_state = "SELECT state FROM sessions WHERE session_id = 'other-revision'"
        state = file.execute(get_state).fetchone()[0]
        newer = state.replace(b'"revision":1,', b'"revision":7,')
        file.execute(set_state, (newer, "other-revision"))
        file.execute(
            "UPDATE changes SET events = ? WHERE session_no = "
            "(SELECT session_no FROM sessions WHERE session_id = 'damaged-change')",
            (b'{"v":1,"events":[{',),
        )
    async with serving(tmp_path, DESK, store=store) as desk:
        for session_id in ("damaged-state", "other-revision"):
            for call in (desk.chat(session_id).say("again"), desk.chat(session_id).status()):
                refused = await refusal(call)
                assert tuple(refused) == ("DATA_LOSS", "STATE_CORRUPT")
                assert session_id in refused.message
        admin = admin_service_pb2_grpc.AdminServiceStub(desk.channel)
        events = admin_service_pb2.ListEventsRequest(session_id="damaged-change")
        (record,) = (await admin.ListEvents(events)).records
        entry = record.unreadable
        assert (entry.session_id, entry.revision) == ("damaged-change", 1)
        assert entry.reason == "STATE_CORRUPT"
        refused = await refusal(desk.chat("damaged-change").status())
        assert tuple(refused) == ("DATA_LOSS", "STATE_CORRUPT")
        assert "damaged-change" in refused.message
        listed = await admin.ListSessions(admin_service_pb2.ListSessionsRequest())
        names = ["a", "damaged-change", "damaged-state", "other-revision", "z"]
        assert [row.session_id for row in listed.sessions] == names
        assert {row.owner for row in listed.sessions} == {"ana"}
        watch = admin.WatchEvents(admin_service_pb2.WatchEventsRequest(from_beginning=True))
        found, unreadable = [], []
        async with asyncio.timeout(10):
            while "z" not in found:
                message = await watch.read()
                found.append(message.change.session_id)
                unreadable.append(message.unreadable.session_id)
        watch.cancel()
        assert unreadable.count("damaged-change") == 1
        assert "damaged-change" not in found
        assert (await desk.chat("z").say("again")).revision == 2
        assert {type(failure) for failure in desk.observer.failures} == {StoreCorrupt}
        desk.observer.failures.clear()  # This test causes those failures.


async def test_the_largest_legal_calls_are_kept(desk):
    """Every field at its limit, with the characters that JSON escapes longest."""
    chat = desk.chat()
    items = [
        item_pb2.Item(content_type="a/b", data=bytes([place % 32]) * 3900) for place in range(16)
    ]
    for text in ("x" * 32_768, "\x01" * 32_768, '"' * 32_768):
        routed = await chat.say(text, items=items)
        assert routed.dispatch.text == text
        assert list(routed.dispatch.items) == items
        steps = [turn_pb2.Step(name="s", input="i" * 700) for _ in range(60)]
        handed = await chat.answer(
            routed.dispatch,
            "\x02" * 32_768,
            items=items,
            steps=steps,
            **hand_to("support", message="m" * 4096, context={"k": "v" * 16_000}),
        )
        assert handed.next.text == text
        assert list(handed.next.items) == items
        await chat.answer(handed.next, "done", **finish())
    assert max(change.size_bytes for change in await chat.changes()) < 300_000
