"""Sessions, tasks and requests by their ids, and the data of a task."""

import uuid

import pytest
from google.protobuf import duration_pb2, timestamp_pb2

from agent_routing.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    dispatch_pb2,
    handoff_pb2,
    item_pb2,
    routing_service_pb2,
    task_pb2,
    turn_pb2,
)
from tests.rpc.live_service import (
    ask,
    fail,
    finish,
    fresh_id,
    hand_to,
    outcome,
    outcome_status,
    refusal,
    serving,
    task_status,
    went,
)
from tests.rpc.registries import DESK

CONSULT = handoff_pb2.HANDOFF_MODE_CONSULT

SECOND_US = 1_000_000


@pytest.fixture
async def service(tmp_path):
    """A help desk whose agents differ in one thing each."""
    async with serving(tmp_path, DESK) as running:
        yield running


def at(time_us):
    """Return a time as a Timestamp."""
    made = timestamp_pb2.Timestamp()
    made.FromMicroseconds(time_us)
    return made


# --- ids ---


async def test_missing_ids_are_made_and_all_three_come_with_every_answer(service):
    """A caller that sends no ids can use the returned ones from then on."""
    chat = service.chat()
    routed = await chat.say(session_id="")
    chat.session_id = routed.session_id
    handed = await chat.answer(routed.dispatch, **hand_to("sales"))
    answers = {
        "Route": routed,
        "CompleteTurn": handed,
        "CompleteTurn, at the end": await chat.answer(handed.next, "hello"),
        "SetActiveAgent": await chat.set_active("support"),
        "ClearActiveAgent": await chat.clear(),
        "Route, a command": await chat.say("/help"),
    }
    for name, answer in answers.items():
        assert answer.session_id == chat.session_id, name
        assert answer.task_id == routed.task_id, name
        assert uuid.UUID(answer.request_id), name
    assert uuid.UUID(routed.task_id).version == 7
    assert uuid.UUID(routed.request_id).version == 7
    assert routed.dispatch.request_id == routed.request_id
    assert routed.dispatch.task_id == routed.task_id
    assert [answer.revision for answer in answers.values()] == [1, 2, 3, 4, 5, 6]


async def test_given_ids_are_kept(service):
    """UUIDs in upper case equal those in lower case; session ids are compared exactly."""
    chat = service.chat("Chat.7:ana@web=1;2+3-x_Y")
    request_id, task_id = fresh_id(), fresh_id()
    routed = await chat.say(request_id=request_id.upper(), task_id=task_id.upper())
    assert routed.session_id == chat.session_id
    assert (routed.request_id, routed.task_id) == (request_id, task_id)
    other = service.chat(chat.session_id.lower())
    assert (await other.say()).revision == 1


@pytest.mark.parametrize(
    "value",
    [
        "42",
        "not-a-uuid",
        "0198a6c0-5f3e-7a51-9c1d-2f6f0a4b7e1",
        "0198a6c05f3e7a519c1d2f6f0a4b7e11",
        "{0198a6c0-5f3e-7a51-9c1d-2f6f0a4b7e11}",
    ],
)
async def test_task_and_request_ids_must_be_uuids(service, value):
    """In every field that holds such an id."""
    chat = await service.chat().with_agent("sales")
    routed = await chat.say()
    dispatch = routed.dispatch
    for field, call in {
        "task_id": chat.say(task_id=value),
        "request_id": chat.say(request_id=value),
        "turn_request_id": chat.set_active("support", turn_request_id=value),
        "suggestion_id": chat.set_active("support", suggestion_id=value),
        "quick_reply_id": chat.say(quick_reply_id=value),
    }.items():
        refused = await refusal(call)
        assert tuple(refused) == ("INVALID_ARGUMENT", "INVALID_FIELD"), field
        assert refused.rules == [field]
        assert "is not a UUID" in refused.message
    for call in (
        chat.set_active("support", request_id=value),
        chat.clear(request_id=value),
        chat.answer(dispatch, request_id=value),
    ):
        assert (await refusal(call)).rules == ["request_id"]
    assert (await refusal(chat.turns(task_id=value))).rules == ["task_id"]


async def test_task_alone_finds_its_session(service):
    """A follow-up request does not have to know the session."""
    chat = await service.chat().with_agent("sales")
    task_id = (await chat.status()).task.task_id
    routed = await service.chat().say("go on", session_id="", task_id=task_id)
    assert routed.session_id == chat.session_id
    assert routed.task_id == task_id
    assert went(routed.dispatch) == ("sales", "STICKY")


async def test_unknown_task_alone_is_not_found(service):
    """No session or task is created."""
    task_id = fresh_id()
    refused = await refusal(service.chat().say(session_id="", task_id=task_id))
    assert tuple(refused) == ("NOT_FOUND", "UNKNOWN_TASK")
    assert refused.metadata == {"task_id": task_id}


async def test_task_not_seen_before_begins_where_none_is_open(service):
    """It begins under the caller's id."""
    chat, task_id = service.chat(), fresh_id()
    assert (await chat.say(task_id=task_id)).task_id == task_id
    assert [task.task_id for task in await chat.tasks()] == [task_id]


async def test_message_without_a_task_joins_the_open_one(service):
    """Until the task is closed, over several agents and commands."""
    chat = await service.chat().with_agent("sales")
    task_id = (await chat.status()).task.task_id
    for text in ("more", "/supervisor and more", "/agent support and more"):
        assert (await chat.say(text)).task_id == task_id


async def test_another_task_while_one_is_open_is_refused(service):
    """A session has at most one open task."""
    chat = await service.chat().with_agent("sales")
    open_id, wanted = (await chat.status()).task.task_id, fresh_id()
    async with chat.unchanged():
        refused = await refusal(chat.say(task_id=wanted))
        assert tuple(refused) == ("FAILED_PRECONDITION", "TASK_OPEN")
        assert refused.metadata == {
            "session_id": chat.session_id,
            "task_id": wanted,
            "open_task_id": open_id,
        }


@pytest.mark.parametrize(
    ("ending", "status"), [(finish(), "completed"), (fail("broken"), "failed")]
)
async def test_closed_task_takes_no_more_messages(service, ending, status):
    """By its id alone or in its session, also after later tasks."""
    chat = await service.chat().with_agent("sales")
    routed = await chat.say()
    await chat.answer(routed.dispatch, "so", **ending)
    for _ in range(2):
        for session_id in (chat.session_id, ""):
            refused = await refusal(chat.say(session_id=session_id, task_id=routed.task_id))
            assert tuple(refused) == ("FAILED_PRECONDITION", "TASK_CLOSED")
            assert refused.metadata == {
                "session_id": chat.session_id,
                "task_id": routed.task_id,
                "status": status,
            }
        await chat.say("a new one")
        await chat.say("/reset")


async def test_late_answer_says_how_its_own_task_stands(service):
    """Not the status of the session's current task."""
    chat = await service.chat().with_agent("sales")
    old = await chat.say("one")
    new = await chat.say("/reset two")
    late = await chat.answer(old.dispatch, "too late")
    assert (late.task_id, task_status(late.task_status)) == (old.task_id, "CANCELLED")
    answered = await chat.answer(new.dispatch, "in time")
    assert (answered.task_id, task_status(answered.task_status)) == (new.task_id, "RUNNING")


async def test_task_of_another_session_is_not_taken_along(service):
    """A task stays in its session; the error names that session to the task's own user only."""
    one, two = service.chat(), service.chat()
    task_id = (await one.say()).task_id
    refused = await refusal(two.say(task_id=task_id))
    assert tuple(refused) == ("INVALID_ARGUMENT", "INVALID_FIELD")
    assert refused.rules == ["task_id"]
    assert one.session_id in refused.message
    assert await two.changes() == []


# --- data of a task ---


async def test_task_has_status_owner_times_and_metadata(service):
    """Created with its first message, updated by each change, expiring at the time set for it."""
    chat = service.chat()
    created = service.clock.now_us
    expires = created + 3600 * SECOND_US
    routed = await chat.say(metadata={"order": "A-17"}, task_expire_time=at(expires))
    service.clock.advance(7)
    await chat.say("more", metadata={"order": "A-18", "colour": "red"})
    (task,) = await chat.tasks()
    assert task == (await chat.status()).task
    assert (task.task_id, task.session_id, task.owner) == (routed.task_id, chat.session_id, "ana")
    assert task_status(task.status) == "RUNNING"
    assert task.create_time.ToMicroseconds() == created
    assert task.update_time.ToMicroseconds() == created + 7 * SECOND_US
    assert task.expire_time.ToMicroseconds() == expires
    assert dict(task.metadata) == {"order": "A-18", "colour": "red"}


async def test_task_s_expiry_can_be_moved(service):
    """The latest message with a time counts; a time in the past is a bad field."""
    chat = service.chat()
    now_us = service.clock.now_us
    await chat.say()
    assert not (await chat.status()).task.HasField("expire_time")
    await chat.say(task_expire_time=at(now_us + 60 * SECOND_US))
    await chat.say(task_expire_time=at(now_us + 120 * SECOND_US))
    (task,) = await chat.tasks()
    assert task.expire_time.ToMicroseconds() == now_us + 120 * SECOND_US
    refused = await refusal(chat.say(task_expire_time=at(now_us)))
    assert tuple(refused) == ("INVALID_ARGUMENT", "INVALID_FIELD")
    assert refused.rules == ["task_expire_time"]


async def test_task_s_metadata_stays_within_its_bounds(service):
    """If messages exceed the limits together, the message that does so is refused completely."""
    chat = service.chat()
    await chat.say(metadata={f"a{number}": "x" for number in range(20)})
    async with chat.unchanged():
        refused = await refusal(chat.say(metadata={f"b{number}": "x" for number in range(20)}))
        assert tuple(refused) == ("INVALID_ARGUMENT", "INVALID_FIELD")
        assert refused.rules == ["metadata"]
        assert "40 entries" in refused.message
    await chat.say(metadata={f"a{number}": "y" for number in range(20)})
    assert set((await chat.status()).task.metadata.values()) == {"y"}


async def test_tasks_are_listed_by_status_and_in_pages(service):
    """Oldest first; each task once for every page size."""
    chat = service.chat()
    chat_ids = []
    for ending in (finish(), fail(), None, finish(), None):
        service.clock.advance(1)
        await chat.set_active("sales")
        routed = await chat.say("do it")
        chat_ids.append(routed.task_id)
        if ending is None:
            await chat.say("/reset")
        else:
            await chat.answer(routed.dispatch, **ending)
            await chat.clear()
    tasks = await chat.tasks()
    assert [task.task_id for task in tasks] == chat_ids
    statuses = ["COMPLETED", "FAILED", "CANCELLED", "COMPLETED", "CANCELLED"]
    assert [task_status(task.status) for task in tasks] == statuses
    closed = [task_pb2.TASK_STATUS_COMPLETED, task_pb2.TASK_STATUS_FAILED]
    found = await chat.tasks(statuses=closed)
    assert [task.task_id for task in found] == [chat_ids[0], chat_ids[1], chat_ids[3]]
    for page_size in (1, 2, 3):
        token, found = "", []
        while not found or token:
            request = routing_service_pb2.ListTasksRequest(
                session_id=chat.session_id, page_size=page_size, page_token=token, statuses=closed
            )
            page = await service.call("ListTasks", request)
            assert len(page.tasks) <= page_size
            found += [task.task_id for task in page.tasks]
            token = page.next_page_token
        assert found == [chat_ids[0], chat_ids[1], chat_ids[3]]
    refused = await refusal(chat.tasks(statuses=[task_pb2.TASK_STATUS_UNSPECIFIED]))
    assert refused.rules == ["statuses"]


# --- data of a turn ---


async def test_turn_keeps_question_answer_times_and_reason(service):
    """The asked agent, who handed over and why, the answer, and how long it took."""
    chat = service.chat()
    asked = service.clock.now_us
    routed = await chat.say("a lamp")
    service.clock.advance(2)
    handed = await chat.answer(routed.dispatch, "one moment", **hand_to("sales", reason="lamps"))
    service.clock.advance(3.5)
    await chat.answer(handed.next, "which?", **ask())
    first, second = await chat.turns()
    assert (first.request_id, first.agent_id) == (routed.request_id, "front")
    assert (second.request_id, second.agent_id) == (handed.next.request_id, "sales")
    assert (first.parent_request_id, second.parent_request_id) == ("", routed.request_id)
    assert (first.from_agent_id, second.from_agent_id) == ("", "front")
    assert first.user_text == second.user_text == "a lamp"
    assert (first.agent_text, second.agent_text) == ("one moment", "which?")
    assert (outcome(first), outcome(second)) == (("HANDOFF", "APPLIED"), ("FOLLOW_UP", "APPLIED"))
    assert first.create_time.ToMicroseconds() == asked
    assert second.create_time.ToMicroseconds() == asked + 2 * SECOND_US
    assert second.complete_time.ToMicroseconds() == asked + int(5.5 * SECOND_US)
    assert second.response_duration.ToMicroseconds() == int(3.5 * SECOND_US)
    assert first.task_id == second.task_id == routed.task_id


async def test_execution_trace_is_kept_as_it_was_reported(service):
    """Steps, tools and intermediate results, in the agent's order; not sent as history."""
    chat = await service.chat().with_agent("sales")
    routed = await chat.say("in stock?")
    steps = [
        turn_pb2.Step(
            name="look_up",
            kind="tool",
            input='{"sku": 7}',
            output='{"stock": 3}',
            start_time=at(service.clock.now_us),
            duration=duration_pb2.Duration(nanos=250_000_000),
        ),
        turn_pb2.Step(name="phrase", kind="model", output="three left — ¡sólo tres!"),
    ]
    await chat.answer(routed.dispatch, "Three left.", steps=steps)
    assert list((await chat.turns())[-1].steps) == steps
    routed = await chat.say("good")
    assert routed.dispatch.history
    assert all(not turn.steps for turn in routed.dispatch.history)


async def test_items_are_kept_as_they_came(service):
    """Text, bytes and addresses, of users and agents, also after the cache is lost."""
    chat = await service.chat().with_agent("sales")
    items = [
        item_pb2.Item(content_type="text/markdown; charset=utf-8", text="*¿qué?*\n"),
        item_pb2.Item(content_type="image/png", data=bytes(range(256))),
        item_pb2.Item(content_type="audio/ogg", uri="https://example.com/a.ogg?x=1#t"),
        item_pb2.Item(content_type="application/octet-stream", data=b""),
    ]
    routed = await chat.say("", items=items)
    assert list(routed.dispatch.items) == items
    assert routed.dispatch.text == ""
    assert list((await chat.status()).open_requests[0].items) == items
    await chat.answer(routed.dispatch, "", items=items[::-1])
    turn = (await chat.turns())[-1]
    assert (list(turn.user_items), list(turn.agent_items)) == (items, items[::-1])
    routed = await chat.say("and?")
    assert list(routed.dispatch.history[-1].agent_items) == items[::-1]


async def test_open_requests_are_told_whole(service):
    """A crashed runtime gets its open requests again from GetStatus."""
    chat = service.chat()
    items = [item_pb2.Item(content_type="image/png", uri="https://example.com/a.png")]
    routed = await chat.say("/supervisor a lamp", items=items, history_turns=-1)
    handed = await chat.answer(
        routed.dispatch, **hand_to("sales", reason="lamps", context={"n": 1}, message="Hello!")
    )
    (found,) = (await chat.status()).open_requests
    assert found == handed.next
    assert found.text == "a lamp"
    locked = await service.chat().with_agent("sales", **ask())
    routed = await locked.say("red", history_turns=-1)
    (found,) = (await locked.status()).open_requests
    del routed.dispatch.history[:]
    assert found == routed.dispatch


async def told_as_it_was(chat, dispatch):
    """Assert that GetStatus returns an open request as it was dispatched, apart from history."""
    told = (await chat.status()).open_requests
    (found,) = [each for each in told if each.request_id == dispatch.request_id]
    given = dispatch_pb2.Dispatch()
    given.CopyFrom(dispatch)
    del given.history[:]
    del found.history[:]
    assert found == given


async def test_every_kind_of_open_request_is_told_as_it_was_given(service):
    """Messages, handoffs, consults, interludes, returns, a user's choice, a person's decision."""
    chat = service.chat()
    routed = await chat.say("hello")
    await told_as_it_was(chat, routed.dispatch)
    given = hand_to("sales", reason="why", context={"n": 1}, message="Over to sales.")
    handed = await chat.answer(routed.dispatch, "one moment", **given)
    await told_as_it_was(chat, handed.next)
    await chat.answer(handed.next, "How many?", **ask())
    routed = await chat.say("three")
    await told_as_it_was(chat, routed.dispatch)
    question = hand_to("support", reason="Do we have three?", mode=CONSULT)
    consulted = await chat.answer(routed.dispatch, **question)
    await told_as_it_was(chat, consulted.next)
    told = await chat.answer(consulted.next, "We do.")
    await told_as_it_was(chat, told.next)
    interrupted = await chat.answer(told.next, **hand_to("interrupts"))
    await told_as_it_was(chat, interrupted.next)
    returned = await chat.answer(interrupted.next, "back to you", **finish("a break", "Go on."))
    await told_as_it_was(chat, returned.next)
    await chat.answer(returned.next, "Three it is.")
    routed = await chat.say("/agent support and now something else")
    assert routed.dispatch.HasField("handoff")
    await told_as_it_was(chat, routed.dispatch)
    completed = await service.chat().with_agent("completes_to_support")
    routed = await completed.say("bye")
    hopped = await completed.answer(routed.dispatch, "done", **finish("all of it"))
    await told_as_it_was(completed, hopped.next)


async def test_resumed_request_is_told_as_it_was_given(service):
    """Also if other messages were routed while the approval was pending."""
    chat = await service.chat().with_agent("sales")
    paused = (await chat.say("pay")).dispatch
    prompt = routing_service_pb2.ApprovalNeededOutcome(prompt="Pay?")
    await chat.answer(paused, approval_needed=prompt)
    admin = admin_service_pb2_grpc.AdminServiceStub(service.channel)
    await admin.SetStickiness(admin_service_pb2.SetStickinessRequest(enabled=False))
    await told_as_it_was(chat, (await chat.say("are you there?")).dispatch)
    request = routing_service_pb2.ResumeTaskRequest(
        session_id=chat.session_id,
        task_id=paused.task_id,
        request_id=paused.request_id,
        decision=dispatch_pb2.DECISION_APPROVE,
        comment="fine",
    )
    resumed = await service.call("ResumeTask", request)
    assert resumed.dispatch.previous_agent_id == "front"
    await told_as_it_was(chat, resumed.dispatch)


async def test_task_s_update_time_moves_with_everything_that_changes_it(service):
    """A message, an answer, a handoff, a clear; no command's reply. Status and ListTasks agree."""
    chat = service.chat()
    routed = await chat.say()
    seen = []

    async def passed():
        (task,) = await chat.tasks()
        assert task == (await chat.status()).task
        seen.append(task.update_time.ToMicroseconds() - task.create_time.ToMicroseconds())

    for change in (
        lambda: chat.answer(routed.dispatch, **hand_to("sales")),
        lambda: chat.set_active("support", initiator=handoff_pb2.INITIATOR_OPERATOR),
        lambda: chat.say("/status"),
        chat.clear,
        lambda: chat.say("again"),
    ):
        service.clock.advance(1)
        await change()
        await passed()
    assert seen == [n * SECOND_US for n in (1, 2, 2, 4, 5)]


# --- by the task's id alone ---


async def test_a_task_s_id_alone_is_enough_to_read(service):
    """Its state, its turns, its changes; upper case is read as lower case."""
    chat = await service.chat().with_agent("sales", **finish())
    task_id = (await chat.status()).task.task_id
    second = await chat.say("another thing")
    await chat.answer(second.dispatch, "done", **finish())
    by_task = service.chat("unused")
    by_task.session_id = ""
    status = await by_task.status(task_id=task_id.upper())
    assert status == await chat.status()
    (task,) = await by_task.tasks(task_id=task_id)
    assert (task.task_id, task_status(task.status)) == (task_id, "COMPLETED")
    assert await by_task.tasks(task_id=task_id, statuses=[task_pb2.TASK_STATUS_RUNNING]) == []
    turns = await by_task.turns(task_id=task_id)
    assert [turn.task_id for turn in turns] == [task_id, task_id]
    assert len(await chat.turns()) == 3
    watch = service.stub.WatchSession(
        routing_service_pb2.WatchSessionRequest(task_id=task_id, user_id="ana", after_revision=0)
    )
    messages = [await watch.read() for _ in range(1 + status.revision)]
    watch.cancel()
    assert [m.change.revision for m in messages[1:]] == list(range(1, status.revision + 1))
    assert {m.change.session_id for m in messages[1:]} == {chat.session_id}


async def test_reads_by_an_unknown_task_or_without_any_id_are_refused(service):
    """As is a task of another session than the named one, and another user's."""
    chat, other = service.chat(), service.chat()
    await chat.say()
    task_id = (await other.say()).task_id
    nameless = service.chat("unused")
    nameless.session_id = ""
    stranger = service.chat("unused", user_id="ben")
    stranger.session_id = ""
    unknown = fresh_id()
    for read in ("status", "tasks"):
        refused = await refusal(getattr(chat, read)(task_id=task_id))
        assert tuple(refused) == ("NOT_FOUND", "UNKNOWN_TASK"), read
        assert refused.metadata == {"session_id": chat.session_id, "task_id": task_id}
    for read in ("status", "tasks", "turns"):
        refused = await refusal(getattr(nameless, read)(task_id=unknown))
        assert tuple(refused) == ("NOT_FOUND", "UNKNOWN_TASK"), read
        refused = await refusal(getattr(nameless, read)())
        assert (refused.reason, refused.rules) == ("INVALID_FIELD", ["session_id"]), read
        refused = await refusal(getattr(stranger, read)(task_id=task_id))
        assert tuple(refused) == ("PERMISSION_DENIED", "OWNER_MISMATCH"), read
        assert other.session_id not in refused.message


async def test_a_task_is_cancelled_by_its_id_alone(service):
    """With all that waits for it: its turn, its lock, its agent. A repeat gets the same answer."""
    chat = await service.chat().with_agent("sales", **ask())
    waiting = await chat.say("blue")
    task_id, request_id = waiting.task_id, fresh_id()
    request = routing_service_pb2.CancelTaskRequest(
        task_id=task_id, user_id="ana", request_id=request_id, reason="ordered twice"
    )
    cancelled = await service.call("CancelTask", request)
    assert cancelled == await service.call("CancelTask", request)
    assert (cancelled.session_id, cancelled.task_id) == (chat.session_id, task_id)
    assert (cancelled.previous_agent.agent_id, cancelled.agent.agent_id) == ("sales", "front")
    status = await chat.status()
    assert (status.revision, status.locked) == (cancelled.revision, False)
    assert task_status(status.task.status) == "CANCELLED"
    assert list(status.open_requests) == []
    late = await chat.answer(waiting.dispatch, "blue it is")
    assert outcome_status(late) == "STORED_ONLY"
    following = await chat.say("hello")
    assert following.task_id != task_id
    assert went(following.dispatch) == ("front", "NO_ACTIVE_AGENT")


async def test_only_an_open_task_of_the_session_is_cancelled(service):
    """A refusal changes nothing; expected_revision holds as everywhere."""
    chat = service.chat()
    routed = await chat.say()

    def cancel(**fields):
        given = {"session_id": chat.session_id, "user_id": "ana", "task_id": routed.task_id}
        return service.call("CancelTask", routing_service_pb2.CancelTaskRequest(**(given | fields)))

    refused = await refusal(cancel(expected_revision=7))
    assert tuple(refused) == ("ABORTED", "REVISION_MISMATCH")
    unknown = fresh_id()
    refused = await refusal(cancel(task_id=unknown))
    assert tuple(refused) == ("NOT_FOUND", "UNKNOWN_TASK")
    assert refused.metadata == {"session_id": chat.session_id, "task_id": unknown}
    assert (await refusal(cancel(task_id=""))).rules == ["task_id"]
    refused = await refusal(cancel(user_id="ben"))
    assert tuple(refused) == ("PERMISSION_DENIED", "OWNER_MISMATCH")
    assert (await chat.status()).revision == 1
    await chat.answer(routed.dispatch, **finish())
    refused = await refusal(cancel())
    assert tuple(refused) == ("FAILED_PRECONDITION", "TASK_CLOSED")
    assert refused.metadata["status"] == "completed"
