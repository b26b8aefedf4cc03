"""Several open tasks in a session: parked while they wait, and brought forward again."""

import pytest

from agent_routing.v1 import dispatch_pb2, session_event_pb2, turn_pb2
from agent_routing.v1 import routing_service_pb2 as pb
from tests.rpc.live_service import (
    ask,
    fail,
    finish,
    fresh_id,
    hand_to,
    outcome_status,
    refusal,
    serving,
    task_status,
    went,
)
from tests.rpc.test_inbox import complete, keep, working
from tests.rpc.test_queued_messages import until

REGISTRY = """\
api_version: agent_routing/v1
version: parks-1
supervisor: front
while_paused: park
approvals: {expires: 2d}
limits: {parked_timeout: 7d}
agents:
  - {id: front, name: Front desk}
  - {id: refunds, name: Refunds, description: Refunds.}
  - {id: orders, name: Orders, description: Orders.}
  - {id: owner, name: Owner, description: Lessons., owns_session: true}
"""

DAY_S = 86_400


@pytest.fixture
async def service(tmp_path):
    """A help desk that parks what waits for an approval."""
    async with serving(tmp_path, REGISTRY) as running:
        yield running


def wants_approval(prompt="Refund 40 EUR?"):
    """The agent needs an approval."""
    return {"approval_needed": pb.ApprovalNeededOutcome(prompt=prompt)}


async def waiting(chat, agent="refunds"):
    """Let a new task wait for an approval; return its agent's answer."""
    routed = await chat.say(f"I need {agent}")
    handed = await chat.answer(routed.dispatch, **hand_to(agent))
    return await chat.answer(handed.next, "I have asked.", **wants_approval())


def resume(chat, task_id, request_id, decision=dispatch_pb2.DECISION_APPROVE):
    """Decide an approval."""
    request = pb.ResumeTaskRequest(
        user_id="ana", task_id=task_id, request_id=request_id, decision=decision
    )
    return chat.service.call("ResumeTask", request)


def numbers(status):
    """Return the parked tasks' numbers, agents, and whether they wait for an approval."""
    return [
        (each.number, each.agent.agent_id, each.HasField("pending_approval"))
        for each in status.parked_tasks
    ]


async def public(chat):
    """Return the session's changes as watchers get them."""
    head = (await chat.status()).revision
    request = pb.WatchSessionRequest(session_id=chat.session_id, user_id="ana", after_revision=0)
    watch = chat.service.stub.WatchSession(request)
    found = []
    while not found or found[-1].revision < head:
        message = await watch.read()
        found += [message.change] if message.HasField("change") else []
    watch.cancel()
    return found


async def kinds(chat):
    """Return the kinds of the last change's events, those of a parked task with a mark."""
    change = (await public(chat))[-1]
    return [
        f"{event.WhichOneof('kind')}{'*' if event.parked_task_id else ''}"
        for event in change.events
    ]


async def test_a_paused_task_is_parked_and_the_conversation_goes_on(service):
    """The user is told once, the next message begins another task with the supervisor."""
    chat = service.chat()
    asked = await waiting(chat)
    assert asked.notice.text.startswith("Refunds is waiting for an approval.")
    assert task_status(asked.task_status) == "PAUSED"
    assert not asked.HasField("active_agent")
    status = await chat.status()
    assert numbers(status) == [(1, "refunds", True)]
    assert status.parked_tasks[0].pending_approval.prompt == "Refund 40 EUR?"
    assert not status.HasField("pending_approval")
    parked = [
        event.task_parked
        for change in await public(chat)
        for event in change.events
        if event.HasField("task_parked")
    ]
    assert [each.cause for each in parked] == [session_event_pb2.TASK_PARK_CAUSE_PAUSED]
    other = await chat.say("something else")
    assert went(other.dispatch) == ("front", "NO_ACTIVE_AGENT")
    assert other.task_id != asked.task_id
    assert not other.HasField("reply")
    tasks = {task.task_id: task_status(task.status) for task in await chat.tasks()}
    assert tasks == {asked.task_id: "PAUSED", other.task_id: "RUNNING"}


async def test_a_decision_about_a_parked_task_leaves_the_conversation_alone(service):
    """Its agent goes on beside it; done, the task is completed and gone."""
    chat = service.chat()
    asked = await waiting(chat)
    other = await chat.say("orders, please")
    with_orders = await chat.answer(other.dispatch, **hand_to("orders"))
    resumed = await resume(chat, asked.task_id, asked.request_id)
    assert went(resumed.dispatch) == ("refunds", "TASK_RESUMED")
    assert resumed.dispatch.task_id == asked.task_id
    status = await chat.status()
    assert status.active_agent.agent_id == "orders"
    assert {each.request_id for each in status.open_requests} == {
        resumed.dispatch.request_id,
        with_orders.next.request_id,
    }
    assert await kinds(chat) == ["approval_decided*", "task_resumed*"]
    done = await chat.answer(resumed.dispatch, "It is paid.")
    assert (done.task_id, task_status(done.task_status)) == (asked.task_id, "COMPLETED")
    assert done.active_agent.agent_id == "orders"
    assert await kinds(chat) == ["turn_completed*", "task_completed*"]
    assert numbers(await chat.status()) == []
    tasks = {task.task_id: task_status(task.status) for task in await chat.tasks()}
    assert tasks == {asked.task_id: "COMPLETED", other.task_id: "RUNNING"}
    await chat.answer(with_orders.next, "Which order?", **ask())
    assert went((await chat.say("17")).dispatch) == ("orders", "FOLLOW_UP_LOCK")


async def test_a_message_that_names_a_parked_task_brings_it_forward(service):
    """It holds that message alone: one that does not name it parks it again."""
    chat = service.chat()
    asked = await waiting(chat)
    other = await chat.say("orders, please")
    handed = await chat.answer(other.dispatch, **hand_to("orders"))
    await chat.answer(handed.next, "Which order?", **ask())
    back = await chat.say("how long will it take?", task_id=asked.task_id)
    assert went(back.dispatch) == ("refunds", "AWAITING_APPROVAL")
    assert back.task_id == asked.task_id
    status = await chat.status()
    assert (status.task.task_id, numbers(status)) == (asked.task_id, [(2, "orders", False)])
    assert status.parked_tasks[0].locked
    elsewhere = await chat.say("and something else")
    assert went(elsewhere.dispatch) == ("front", "NO_ACTIVE_AGENT")
    assert elsewhere.task_id not in (asked.task_id, other.task_id)
    assert not elsewhere.HasField("reply")
    assert numbers(await chat.status()) == [(2, "orders", False), (1, "refunds", True)]


async def test_users_list_their_tasks_and_go_on_with_one(service):
    """By its number, with or without a message; in their language."""
    chat = service.chat()
    await waiting(chat)
    other = await chat.say("orders, please")
    handed = await chat.answer(other.dispatch, **hand_to("orders"))
    await chat.answer(handed.next, "Which order?", **ask())
    listed = (await chat.say("/tasks")).reply.text
    assert "1. Refunds: waits for an approval" in listed
    assert "/task 1" in listed
    moved = await chat.say("/task 1")
    assert not moved.HasField("dispatch")
    assert moved.reply.text.startswith("You are back with Refunds.")
    assert "2. Orders: waits for your answer" in (await chat.say("/tasks")).reply.text
    answered = await chat.say("/task 2 number 17")
    assert went(answered.dispatch) == ("orders", "COMMAND")
    assert (answered.dispatch.text, answered.dispatch.locked) == ("number 17", True)
    assert answered.task_id == other.task_id
    unknown = await chat.say("/tarea 7", locale="es")
    assert "No hay ninguna tarea «7» en espera." in unknown.reply.text
    assert "/tarea 1" in unknown.reply.text
    assert "/tasks" in (await chat.say("/help", locale="en")).reply.text


async def test_where_nothing_is_parked_the_commands_are_ordinary_text(tmp_path):
    """A registry that holds paused tasks behaves as before, its own words included."""
    held = REGISTRY.replace("while_paused: park", "commands: {words: {status: [tasks]}}")
    async with serving(tmp_path, held) as service:
        chat = service.chat()
        assert (await chat.say("/task 1")).dispatch.text == "/task 1"
        assert (await chat.say("/tasks")).reply.command == "/status"
        assert "/task" not in (await chat.say("/help")).reply.text
        asked = await waiting(service.chat("held"))
        assert not asked.HasField("notice")
        again = await service.chat("held").say("hello?")
        assert went(again.dispatch) == ("refunds", "AWAITING_APPROVAL")


async def test_reset_leaves_parked_tasks_and_reset_all_cancels_them(service):
    """Their approvals with them."""
    chat = service.chat()
    asked = await waiting(chat)
    await chat.say("something else")
    await chat.say("/reset")
    assert numbers(await chat.status()) == [(1, "refunds", True)]
    await chat.say("/reset all")
    assert await kinds(chat) == [
        "agent_cleared",
        "approval_withdrawn*",
        "task_cancelled*",
        "agent_cleared*",
        "command_handled",
    ]
    assert numbers(await chat.status()) == []
    assert {task_status(task.status) for task in await chat.tasks()} == {"CANCELLED"}
    refused = await refusal(resume(chat, asked.task_id, asked.request_id))
    assert tuple(refused) == ("FAILED_PRECONDITION", "TASK_NOT_PAUSED")


async def test_a_parked_task_is_cancelled_by_its_id(service):
    """The conversation stays where it is."""
    chat = service.chat()
    asked = await waiting(chat)
    other = await chat.say("orders, please")
    await chat.answer(other.dispatch, **hand_to("orders"))
    request = pb.CancelTaskRequest(task_id=asked.task_id, user_id="ana", request_id=fresh_id())
    cancelled = await service.call("CancelTask", request)
    assert cancelled.previous_agent.agent_id == "refunds"
    status = await chat.status()
    assert (status.active_agent.agent_id, numbers(status)) == ("orders", [])
    assert cancelled == await service.call("CancelTask", request)
    refused = await refusal(chat.say("and now?", task_id=asked.task_id))
    assert tuple(refused) == ("FAILED_PRECONDITION", "TASK_CLOSED")


async def test_a_parked_question_comes_forward_when_the_conversation_is_free(service):
    """Its agent gets the answer; the event says so, that the frontend shows the question again."""
    chat = service.chat()
    asked = await waiting(chat)
    resumed = await resume(chat, asked.task_id, asked.request_id)
    await chat.answer(resumed.dispatch, "To which account?", **ask())
    assert await kinds(chat) == ["turn_completed*", "lock_engaged*", "task_foregrounded"]
    status = await chat.status()
    assert (status.active_agent.agent_id, status.locked, numbers(status)) == ("refunds", True, [])
    assert went((await chat.say("the first")).dispatch) == ("refunds", "FOLLOW_UP_LOCK")


async def test_a_parked_question_waits_while_the_conversation_is_busy(service):
    """It comes forward in the change that ends the other task."""
    chat = service.chat()
    asked = await waiting(chat)
    other = await chat.say("orders, please")
    handed = await chat.answer(other.dispatch, **hand_to("orders"))
    resumed = await resume(chat, asked.task_id, asked.request_id)
    await chat.answer(resumed.dispatch, "To which account?", **ask())
    status = await chat.status()
    assert (status.active_agent.agent_id, status.locked) == ("orders", False)
    assert status.parked_tasks[0].locked
    await chat.answer(handed.next, "All done.", **finish())
    status = await chat.status()
    assert (status.active_agent.agent_id, status.locked, numbers(status)) == ("refunds", True, [])
    assert (await kinds(chat))[-1] == "task_foregrounded"


async def test_time_runs_on_for_parked_tasks(service):
    """An approval that does not come cancels its task; the sweeper applies it."""
    chat = service.chat()
    asked = await waiting(chat)
    await chat.say("something else")
    service.clock.advance(2 * DAY_S + 1)
    assert numbers(await chat.status()) == []
    refused = await refusal(resume(chat, asked.task_id, asked.request_id))
    assert tuple(refused) == ("FAILED_PRECONDITION", "TASK_NOT_PAUSED")
    await chat.say("hello")
    events = [event for change in await public(chat) for event in change.events]
    expired = [event for event in events if event.HasField("approval_expired")]
    assert [event.parked_task_id for event in expired] == [asked.task_id]
    tasks = {task.task_id: task_status(task.status) for task in await chat.tasks()}
    assert tasks[asked.task_id] == "CANCELLED"


async def test_a_lesson_is_held_and_not_left_for_another_task(service):
    """An agent that owns the session keeps it, also while it waits for an approval."""
    chat = service.chat()
    parked = await waiting(chat)
    held = await waiting(chat, "owner")
    assert not held.HasField("notice")
    status = await chat.status()
    assert (status.task.task_id, len(status.parked_tasks)) == (held.task_id, 1)
    refused = await refusal(chat.say("my refund", task_id=parked.task_id))
    assert tuple(refused) == ("FAILED_PRECONDITION", "TASK_OPEN")
    assert refused.metadata["open_task_id"] == held.task_id
    reply = (await chat.say("/task 1")).reply.text
    assert reply == "You cannot leave this conversation for another task at the moment."
    assert (await chat.status()).task.task_id == held.task_id


async def test_at_the_limit_a_paused_task_stays_in_the_foreground(service):
    """Eight are parked; the ninth holds the conversation as without parking."""
    chat = service.chat()
    for _ in range(8):
        await waiting(chat)
    status = await chat.status()
    assert [number for number, _, _ in numbers(status)] == list(range(1, 9))
    ninth = await waiting(chat)
    assert not ninth.HasField("notice")
    assert went((await chat.say("hello?")).dispatch) == ("refunds", "AWAITING_APPROVAL")
    await chat.say("/reset all")
    assert numbers(await chat.status()) == []
    assert {task_status(task.status) for task in await chat.tasks()} == {"CANCELLED"}


async def test_parked_tasks_survive_a_restart_and_a_failed_turn(tmp_path):
    """The state is read back as it was; a failure of a parked task closes that one alone."""
    store = f"sqlite:///{tmp_path}/kept.db"
    async with serving(tmp_path, REGISTRY, store=store) as service:
        chat = service.chat("kept")
        asked = await waiting(chat)
        await chat.say("something else")
        before = await chat.status()
    async with serving(tmp_path, REGISTRY, store=store) as service:
        chat = service.chat("kept")
        assert await chat.status() == before
        resumed = await resume(chat, asked.task_id, asked.request_id)
        failed = await chat.answer(resumed.dispatch, **fail("no such account"))
        assert task_status(failed.task_status) == "FAILED"
        status = await chat.status()
        assert (status.task.task_id, numbers(status)) == (before.task.task_id, [])


async def test_an_id_of_a_parked_turn_is_not_taken_for_a_message(service):
    """An answer to one would close both."""
    chat = service.chat()
    asked = await waiting(chat)
    await chat.say("something else")
    refused = await refusal(chat.say("hello", request_id=asked.request_id))
    assert tuple(refused) == ("ALREADY_EXISTS", "REQUEST_ID_REUSED")


OFFICE = """\
api_version: agent_routing/v1
version: works-1
supervisor: front
while_paused: park
double_text: queue
limits: {turn_timeout: 10m}
agents:
  - {id: front, name: Front desk}
  - {id: refunds, name: Refunds, description: Refunds., delivery: inbox}
  - {id: orders, name: Orders, description: Orders., delivery: inbox}
"""


@pytest.fixture
async def office(tmp_path):
    """A help desk whose specialists are workers."""
    async with serving(tmp_path, OFFICE) as running:
        yield running


async def at_work_in_parked(chat, worker):
    """Let a parked task go on with its worker; return the worker's turn, and what was resumed."""
    routed = await chat.say("I need a refund")
    await chat.answer(routed.dispatch, **hand_to("refunds"))
    item = await worker.next()
    asked = await complete(chat.service, item, "I have asked.", **wants_approval())
    await chat.say("something else")
    resumed = await resume(chat, asked.task_id, asked.request_id)
    item = await worker.next()
    assert item.dispatch.request_id == resumed.dispatch.request_id
    assert item.dispatch.task_id == asked.task_id
    return item, asked


async def test_a_worker_goes_on_with_a_parked_task(office):
    """Its lease, its deadline and its steps are those of any turn."""
    chat = office.chat()
    async with working(office, "refunds", lease_s=3_600) as worker:
        item, asked = await at_work_in_parked(chat, worker)
        assert went(item.dispatch) == ("refunds", "TASK_RESUMED")
        office.clock.advance(7 * 60)
        step = turn_pb2.Step(name="pay", kind="tool", input="40 EUR", output="paid")
        status, kept = await keep(office, item, extend_s=3_600, steps=[step])
        assert (status, kept.steps_known) == ("KEPT", 1)
        assert (await chat.kinds())[-4:] == [
            *("StrandChosen", "StepsReported", "TurnExtended", "StrandChosen")
        ]
        assert await kinds(chat) == ["turn_extended*"]  # Steps are for watchers that ask for them.
        office.clock.advance(9 * 60)
        done = await complete(office, item, "It is paid.")
        assert outcome_status(done) == "APPLIED"
        assert task_status(done.task_status) == "COMPLETED"
        assert await worker.has_none()
    (turn,) = [turn for turn in await chat.turns() if turn.agent_text == "It is paid."]
    assert [each.name for each in turn.steps] == ["pay"]
    assert turn.task_id == asked.task_id
    late = await keep(office, item, extend_s=60)
    assert late[0] == "REQUEST_NOT_OPEN"


async def test_a_parked_turn_ends_at_its_deadline(office):
    """Its task has nothing left to wait for, and is completed; the conversation stays."""
    chat = office.chat()
    async with working(office, "refunds", lease_s=3_600) as worker:
        _, asked = await at_work_in_parked(chat, worker)
        before = (await chat.status()).task.task_id
        office.clock.advance(11 * 60)
        keys = await office.store.due_sessions(office.clock.now_us, 10)
        assert chat.key in keys
        await office.server._parts.handler.expire(chat.key)
        assert {"turn_abandoned*", "task_completed*"} <= set(await kinds(chat))
        assert await worker.has_none()
    status = await chat.status()
    assert (status.task.task_id, numbers(status)) == (before, [])
    tasks = {task.task_id: task_status(task.status) for task in await chat.tasks()}
    assert tasks[asked.task_id] == "COMPLETED"


async def test_messages_wait_behind_the_turn_of_their_own_task(office):
    """One that names the parked task waits for its worker; it goes on there, although parked."""
    chat = office.chat()
    async with working(office, "refunds", lease_s=3_600) as worker:
        item, asked = await at_work_in_parked(chat, worker)
        waits = await chat.say("is it paid?", task_id=asked.task_id)
        assert (waits.queued, waits.task_id) == (True, asked.task_id)
        other = await chat.say("/task 2")
        assert other.reply.text.startswith("You are back with Front desk,")
        status = await chat.status()
        assert not status.queued_request_ids
        assert numbers(status) == [(1, "refunds", False)]
        assert list(status.parked_tasks[0].queued_request_ids) == [waits.request_id]
        await complete(office, item, "It is paid.", **ask())
        item = await worker.next()
        assert item.dispatch.text == "is it paid?"
        assert went(item.dispatch) == ("refunds", "FOLLOW_UP_LOCK")
        assert item.dispatch.task_id == asked.task_id
        await complete(office, item, "Yes.", **finish())
    assert numbers(await chat.status()) == []
    texts = [(turn.user_text, turn.agent_text) for turn in await chat.turns()]
    assert ("is it paid?", "Yes.") in texts


async def test_a_message_after_task_waits_behind_the_worker_of_that_task(office):
    """The task comes forward at once, and what its worker finishes still counts."""
    chat = office.chat()
    async with working(office, "refunds", lease_s=3_600) as worker:
        item, asked = await at_work_in_parked(chat, worker)
        waits = await chat.say("/task 1 is it paid?")
        assert (waits.queued, waits.task_id) == (True, asked.task_id)
        assert waits.reply.text.startswith("You are back with Refunds")
        assert not waits.HasField("dispatch")
        assert list((await chat.status()).queued_request_ids) == [waits.request_id]
        done = await complete(office, item, "It is paid.", **ask())
        assert outcome_status(done) == "APPLIED"
        item = await worker.next()
        assert (item.dispatch.text, item.dispatch.request_id) == ("is it paid?", waits.request_id)
        await complete(office, item, "Yes.", **finish())


async def test_messages_that_wait_in_parked_tasks_count_and_are_named(office):
    """Eight of a session wait at most, wherever they do; the refusal names the first of them."""
    chat = office.chat()
    async with working(office, "refunds", lease_s=3_600) as worker:
        _, asked = await at_work_in_parked(chat, worker)
        waits = [await chat.say(f"message {n}", task_id=asked.task_id) for n in range(8)]
        assert all(each.queued for each in waits)
        await chat.say("/task 2")
        other = await chat.say("I need a refund again")
        await chat.answer(other.dispatch, **hand_to("refunds"))
        refused = await refusal(chat.say("and one more"))
        assert tuple(refused) == ("FAILED_PRECONDITION", "TURN_OPEN")
        assert refused.metadata["request_id"] == waits[0].request_id


async def test_a_message_for_another_task_does_not_wait_behind_this_one(office):
    """It would join this task later without a word, so it is refused at once."""
    chat = office.chat()
    async with working(office, "refunds", lease_s=3_600) as worker:
        routed = await chat.say("I need a refund")
        await chat.answer(routed.dispatch, **hand_to("refunds"))
        item = await worker.next()
        refused = await refusal(chat.say("another matter", task_id=fresh_id()))
        assert tuple(refused) == ("FAILED_PRECONDITION", "TASK_OPEN")
        assert refused.metadata["open_task_id"] == routed.task_id
        await complete(office, item, "It is paid.", **finish())


async def test_what_waits_behind_a_task_that_parks_itself_goes_on(office):
    """The user wrote it in the conversation, which goes on without the task."""
    chat = office.chat()
    async with working(office, "refunds", lease_s=3_600) as worker:
        routed = await chat.say("I need a refund")
        await chat.answer(routed.dispatch, **hand_to("refunds"))
        item = await worker.next()
        waits = await chat.say("and my order?")
        assert waits.queued
        await complete(office, item, "I have asked.", **wants_approval())
        await until(chat, "MessageRouted", 2)
    status = await chat.status()
    assert numbers(status) == [(1, "refunds", True)]
    (dispatch,) = status.open_requests
    assert (dispatch.text, dispatch.agent.agent_id) == ("and my order?", "front")
    assert dispatch.task_id != status.parked_tasks[0].task.task_id
