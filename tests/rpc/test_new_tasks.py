"""Messages that begin tasks of their own (tasks: new), and those that join the open one."""

import pytest
import pytest_asyncio

from agent_routing.v1 import routing_service_pb2 as pb
from tests.rpc.live_service import (
    ask,
    finish,
    fresh_id,
    hand_to,
    refusal,
    serving,
    task_status,
    went,
)
from tests.rpc.test_parked_tasks import kinds, numbers, resume, waiting, wants_approval
from tests.scripted_topics import ScriptedModel

REGISTRY = """\
api_version: agent_routing/v1
version: new-1
supervisor: front
tasks: new
while_paused: park
agents:
  - {id: front, name: Front desk}
  - {id: refunds, name: Refunds, description: Refunds., user_selectable: true}
  - {id: orders, name: Orders, description: Orders., receives_as: interlude}
  - {id: owner, name: Owner, description: Lessons., owns_session: true}
  - {id: anna, name: Anna, kind: human, description: A person.}
"""


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory):
    """A help desk where each message is a matter of its own. One server for all tests here."""
    async with serving(tmp_path_factory.mktemp("tasks"), REGISTRY) as running:
        yield running


async def with_agent(chat, agent, **outcome):
    """Let an agent answer a new message; return what the message was answered with."""
    routed = await chat.say(f"I need {agent}")
    handed = await chat.answer(routed.dispatch, **hand_to(agent))
    await chat.answer(handed.next, "Here is what I know.", **outcome)
    return routed


async def statuses(chat):
    """Return the status of each of the session's tasks, by id."""
    return {task.task_id: task_status(task.status) for task in await chat.tasks()}


async def test_a_message_begins_a_task_and_the_one_before_is_completed(service):
    """Nothing of the task before waits: it ends, and the supervisor gets the next message."""
    chat = service.chat()
    first = await with_agent(chat, "refunds")
    assert (await chat.status()).active_agent.agent_id == "refunds"
    second = await chat.say("when do you open?")
    assert went(second.dispatch) == ("front", "NO_ACTIVE_AGENT")
    assert second.task_id != first.task_id
    assert await kinds(chat) == [
        "task_completed",
        "agent_cleared",
        "task_created",
        "message_routed",
    ]
    assert await statuses(chat) == {first.task_id: "COMPLETED", second.task_id: "RUNNING"}
    status = await chat.status()
    assert (status.task.task_id, numbers(status)) == (second.task_id, [])


async def test_what_an_agent_waits_for_joins_its_task(service):
    """An open turn, an open question, and a person each get the next message."""
    chat = service.chat()
    first = await chat.say("I need refunds")
    assert (await chat.say("soon, please")).task_id == first.task_id
    again = await chat.say("today")
    handed = await chat.answer(again.dispatch, **hand_to("refunds"))
    await chat.answer(handed.next, "To which account?", **ask())
    answered = await chat.say("the first")
    assert went(answered.dispatch) == ("refunds", "FOLLOW_UP_LOCK")
    assert answered.task_id == first.task_id
    await chat.answer(answered.dispatch, "Done.", **finish())
    with_anna = await with_agent(chat, "anna")
    assert with_anna.task_id != first.task_id
    more = await chat.say("and another thing")
    assert (more.dispatch.agent.agent_id, more.task_id) == ("anna", with_anna.task_id)


async def test_an_agent_that_owns_the_session_keeps_its_task(service):
    """In mid-task messages join it, and no other task begins, whichever id is named."""
    chat = service.chat()
    lesson = await with_agent(chat, "owner")
    assert (await chat.say("go on")).task_id == lesson.task_id
    refused = await refusal(chat.say("another matter", task_id=fresh_id()))
    assert tuple(refused) == ("FAILED_PRECONDITION", "TASK_OPEN")
    assert refused.metadata["open_task_id"] == lesson.task_id
    assert numbers(await chat.status()) == []


async def test_an_interrupted_agent_is_parked_with_its_interlude(service):
    """Something is still to come back to, so the task waits; /task goes on with it."""
    chat = service.chat()
    routed = await chat.say("I need refunds")
    handed = await chat.answer(routed.dispatch, **hand_to("refunds"))
    inner = await chat.answer(handed.next, "First your order.", **hand_to("orders"))
    await chat.answer(inner.next, "It is on its way.")
    second = await chat.say("when do you open?")
    assert went(second.dispatch) == ("front", "NO_ACTIVE_AGENT")
    assert await statuses(chat) == {routed.task_id: "RUNNING", second.task_id: "RUNNING"}
    assert numbers(await chat.status()) == [(1, "orders", False)]
    await chat.answer(second.dispatch, "At nine.")
    back = await chat.say("/task 1 and when does it arrive?")
    assert went(back.dispatch) == ("orders", "COMMAND")
    assert back.task_id == routed.task_id
    assert [frame.agent.agent_id for frame in (await chat.status()).return_stack] == ["refunds"]
    assert await statuses(chat) == {routed.task_id: "RUNNING", second.task_id: "COMPLETED"}


async def test_a_new_id_begins_a_task_at_once(service):
    """Though an agent has asked something: its task is parked with the question."""
    chat = service.chat()
    first = await with_agent(chat, "refunds", **ask())
    task_id = fresh_id()
    second = await chat.say("something else", task_id=task_id)
    assert (went(second.dispatch), second.task_id) == (("front", "NO_ACTIVE_AGENT"), task_id)
    status = await chat.status()
    assert numbers(status) == [(1, "refunds", False)]
    assert status.parked_tasks[0].locked
    await chat.answer(second.dispatch, "All done.", **finish())
    status = await chat.status()
    assert (status.task.task_id, status.locked) == (first.task_id, True)
    closed = await refusal(chat.say("once more", task_id=task_id))
    assert tuple(closed) == ("FAILED_PRECONDITION", "TASK_CLOSED")
    command = await refusal(chat.say("/agent refunds hello", task_id=fresh_id()))
    assert tuple(command) == ("FAILED_PRECONDITION", "TASK_OPEN")


async def test_a_message_that_was_written_before_is_no_answer_to_a_question(service):
    """The question came forward by itself meanwhile, so it is parked again; later it is shown."""
    chat = service.chat()
    asked = await waiting(chat)
    other = await chat.say("something else")
    resumed = await resume(chat, asked.task_id, asked.request_id)
    await chat.answer(resumed.dispatch, "To which account?", **ask())
    shown = (await chat.status()).revision
    await chat.answer(other.dispatch, "All done.", **finish())
    assert (await kinds(chat))[-1] == "task_foregrounded"
    late = await chat.say("and the weather?", shown_revision=shown)
    assert went(late.dispatch) == ("front", "NO_ACTIVE_AGENT")
    assert late.task_id not in (asked.task_id, other.task_id)
    assert await kinds(chat) == ["task_parked", "task_created", "message_routed"]
    await chat.answer(late.dispatch, "Sunny.", **finish())
    status = await chat.status()
    assert (status.task.task_id, status.locked) == (asked.task_id, True)
    answer = await chat.say("the first", shown_revision=status.revision)
    assert went(answer.dispatch) == ("refunds", "FOLLOW_UP_LOCK")
    negative = await refusal(chat.say("hello", shown_revision=-1))
    assert tuple(negative) == ("INVALID_ARGUMENT", "INVALID_FIELD")


async def with_a_question(chat):
    """Let a task ask while another one has the conversation; return both ids."""
    asked = await waiting(chat)
    other = await chat.say("orders, please", task_id=fresh_id())
    resumed = await resume(chat, asked.task_id, asked.request_id)
    await chat.answer(resumed.dispatch, "To which account?", **ask())
    assert numbers(await chat.status()) == [(1, "refunds", False)]
    return asked.task_id, other


@pytest.mark.parametrize("how", ["clear", "cancel", "hand over", "time"])
async def test_a_question_comes_forward_by_whatever_leaves_the_conversation_free(service, how):
    """By a clear, a cancelled task, a handoff to the supervisor, or a turn that ran out of time."""
    chat = service.chat()
    task_id, other = await with_a_question(chat)
    named = {"session_id": chat.session_id, "user_id": "ana"}
    if how in ("clear", "hand over"):
        handed = await chat.answer(other.dispatch, **hand_to("orders"))
        await chat.answer(handed.next, "Here they are.")
        assert (await chat.status()).active_agent.agent_id == "orders"
    if how == "clear":
        cleared = await service.call("ClearActiveAgent", pb.ClearActiveAgentRequest(**named))
        assert (cleared.agent.agent_id, cleared.task_id) == ("refunds", other.task_id)
    elif how == "cancel":
        wish = pb.CancelTaskRequest(task_id=other.task_id, user_id="ana")
        assert (await service.call("CancelTask", wish)).agent.agent_id == "refunds"
    elif how == "hand over":
        wish = pb.SetActiveAgentRequest(**named, agent_id="front")
        await service.call("SetActiveAgent", wish)
    else:
        service.clock.advance(16 * 60)
        await service.server._parts.handler.expire(chat.key)
    assert (await kinds(chat))[-1] == "task_foregrounded"
    status = await chat.status()
    assert (status.task.task_id, status.active_agent.agent_id) == (task_id, "refunds")
    assert (status.locked, numbers(status)) == (True, [])


async def test_a_users_own_command_for_the_supervisor_brings_no_question_forward(service):
    """Who asks for the supervisor is not to answer another agent's question next."""
    chat = service.chat()
    task_id, _ = await with_a_question(chat)
    await chat.say("/reset")
    status = await chat.status()
    assert not status.HasField("active_agent")
    assert [each.task.task_id for each in status.parked_tasks] == [task_id]
    assert went((await chat.say("hello")).dispatch) == ("front", "NO_ACTIVE_AGENT")


async def test_a_parked_task_is_handed_over_and_cleared_by_its_id(service):
    """It stays parked and open, and the conversation stays as it is."""
    chat = service.chat()
    task_id, other = await with_a_question(chat)
    before = await chat.status()
    wish = pb.SetActiveAgentRequest(user_id="ana", task_id=task_id, agent_id="orders")
    moved = await service.call("SetActiveAgent", wish)
    assert (moved.session_id, moved.task_id) == (chat.session_id, task_id)
    assert "agent_handoff*" in await kinds(chat)
    status = await chat.status()
    assert numbers(status) == [(1, "orders", False)]
    assert (status.active_agent, status.task.task_id) == (before.active_agent, other.task_id)
    clear = pb.ClearActiveAgentRequest(
        session_id=chat.session_id, user_id="ana", task_id=task_id, request_id=fresh_id()
    )
    cleared = await service.call("ClearActiveAgent", clear)
    assert (cleared.task_id, cleared.previous_agent.agent_id) == (task_id, "orders")
    assert cleared == await service.call("ClearActiveAgent", clear)
    assert numbers(await chat.status()) == [(1, "front", False)]
    wish = pb.ClearActiveAgentRequest(
        user_id="ana", task_id=task_id, scope="CLEAR_SCOPE_SESSION", request_id=fresh_id()
    )
    await service.call("ClearActiveAgent", wish)
    assert await statuses(chat) == {task_id: "CANCELLED", other.task_id: "RUNNING"}
    assert (await chat.status()).task.task_id == other.task_id


async def test_a_handoff_and_a_clear_name_an_open_task_of_the_session(service):
    """As everywhere: unknown, closed, another user's, and a turn of another task."""
    chat = service.chat()
    task_id, other = await with_a_question(chat)
    closed = await service.chat().say("hello")
    await service.call("CancelTask", pb.CancelTaskRequest(task_id=closed.task_id, user_id="ana"))
    cases = (
        (fresh_id(), "ana", ("NOT_FOUND", "UNKNOWN_TASK")),
        (closed.task_id, "ana", ("FAILED_PRECONDITION", "TASK_CLOSED")),
        (task_id, "bob", ("PERMISSION_DENIED", "OWNER_MISMATCH")),
        ("17", "ana", ("INVALID_ARGUMENT", "INVALID_FIELD")),
    )
    for named, user_id, expected in cases:
        handoff = pb.SetActiveAgentRequest(user_id=user_id, task_id=named, agent_id="orders")
        clear = pb.ClearActiveAgentRequest(user_id=user_id, task_id=named)
        assert tuple(await refusal(service.call("SetActiveAgent", handoff))) == expected
        assert tuple(await refusal(service.call("ClearActiveAgent", clear))) == expected
    resumed = await chat.say("/task 1 the first")
    parked = await chat.say("orders?", task_id=other.task_id)
    for named, turn in ((task_id, parked), (other.task_id, resumed)):
        handoff = pb.SetActiveAgentRequest(user_id="ana", task_id=named, agent_id="orders")
        handoff.turn_request_id = turn.request_id
        mixed = await refusal(service.call("SetActiveAgent", handoff))
        assert tuple(mixed) == ("INVALID_ARGUMENT", "INVALID_FIELD")
    assert (await chat.status()).task.task_id == other.task_id


async def test_at_the_limit_a_message_joins_and_a_new_id_is_refused(service):
    """Eight are parked: what would be the ninth joins the open task unless its id is named."""
    chat = service.chat()
    for _ in range(8):
        await with_agent(chat, "refunds", **wants_approval())
    open_task = await with_agent(chat, "refunds", **ask())
    refused = await refusal(chat.say("one more", task_id=fresh_id()))
    assert tuple(refused) == ("FAILED_PRECONDITION", "TASKS_OPEN")
    assert refused.metadata["tasks_max"] == "8"
    joined = await chat.say("the first")
    assert (went(joined.dispatch), joined.task_id) == (
        ("refunds", "FOLLOW_UP_LOCK"),
        open_task.task_id,
    )


async def test_while_stickiness_is_off_messages_join(tmp_path):
    """The switch leaves what is stored as it is, the open task included; a new id still begins."""
    off = REGISTRY.replace("tasks: new", "tasks: new\nstickiness: disabled")
    async with serving(tmp_path, off) as service:
        chat = service.chat()
        first = await with_agent(chat, "refunds")
        joined = await chat.say("when do you open?")
        assert (went(joined.dispatch), joined.task_id) == (
            ("front", "STICKINESS_DISABLED"),
            first.task_id,
        )
        await chat.answer(joined.dispatch, "At nine.")
        assert (await chat.say("else", task_id=fresh_id())).task_id != first.task_id


async def test_a_claim_ends_when_the_person_who_stood_in_is_done(tmp_path):
    """While stickiness is off a person has one message alone, so the claim goes with it."""
    off = REGISTRY.replace("tasks: new", "tasks: new\nstickiness: disabled")
    async with serving(tmp_path, off) as service:
        for outcome in (ask(), finish(), wants_approval()):
            chat = service.chat()
            routed = await chat.say("I need anna")
            handed = await chat.answer(routed.dispatch, **hand_to("anna"))
            wish = pb.ClaimTurnRequest(session_id=chat.session_id, agent_id="anna", claimant="bea")
            await service.call("ClaimTurn", wish)
            await chat.answer(handed.next, "Done.", **outcome)
            assert "claim_released" in await kinds(chat)
            assert not (await chat.status()).HasField("claim")


def texts(dispatch):
    """Return what a dispatch's history holds of the user's messages."""
    return [turn.user_text for turn in dispatch.history]


async def test_a_dispatch_is_sent_with_the_turns_of_its_own_task(service):
    """From the moment at which two tasks are open until it is closed; repeats get the same."""
    chat = service.chat()
    await with_agent(chat, "refunds")  # Completed by the next message.
    first = await chat.say("my invoice")
    assert texts(first.dispatch) == ["I need refunds"] * 2
    handed = await chat.answer(first.dispatch, **hand_to("refunds"))
    asked = await chat.answer(handed.next, "I have asked.", **wants_approval())

    hello = {"text": "when do you open?", "request_id": fresh_id()}
    second = await chat.say(**hello)
    assert second.dispatch.history == []
    resumed = await resume(chat, asked.task_id, asked.request_id)
    assert texts(resumed.dispatch) == ["my invoice"]
    await chat.answer(resumed.dispatch, "It is paid.", **finish())
    assert await statuses(chat) == {
        **{task.task_id: "COMPLETED" for task in await chat.tasks()},
        second.task_id: "RUNNING",
    }
    handed = await chat.answer(second.dispatch, **hand_to("refunds"))
    assert texts(handed.next) == []
    await chat.answer(handed.next, "Which of our shops?", **ask())
    third = await chat.say("the old town's")
    assert texts(third.dispatch) == ["when do you open?"]
    await chat.answer(third.dispatch, "At nine.", **finish())

    last = await chat.say("thank you")
    assert texts(last.dispatch)[-3:] == ["my invoice", "when do you open?", "the old town's"]
    assert len(texts(last.dispatch)) == 8
    assert (await chat.say(**hello)).dispatch.history == []
    again = await resume(chat, asked.task_id, asked.request_id)
    assert again.dispatch.history == resumed.dispatch.history


async def test_a_task_that_is_brought_forward_has_its_own_turns(service):
    """What was said in the other one meanwhile is not sent along, from memory and from the log."""
    chat = service.chat()
    asked = await waiting(chat)
    meanwhile = await chat.say("when do you open?")
    await chat.answer(meanwhile.dispatch, "At nine.", **finish())
    named = {"text": "and my money?", "task_id": asked.task_id, "request_id": fresh_id()}
    forward = await chat.say(**named)
    assert went(forward.dispatch) == ("refunds", "AWAITING_APPROVAL")
    assert texts(forward.dispatch) == ["I need refunds"]
    assert (await chat.say(**named)).dispatch.history == forward.dispatch.history


async def test_the_notice_of_parking_is_shown_also_where_a_question_comes_forward(service):
    """The same answer parks its task and leaves the conversation to another one's question."""
    chat = service.chat()
    asked = await waiting(chat)
    routed = await chat.say("where is my parcel?")
    handed = await chat.answer(routed.dispatch, **hand_to("orders"))
    resumed = await resume(chat, asked.task_id, asked.request_id)
    await chat.answer(resumed.dispatch, "To which account?", **ask())
    parked = await chat.answer(handed.next, "I have asked too.", **wants_approval())
    assert parked.notice.text.startswith("Orders is waiting for an approval.")
    assert (parked.active_agent.agent_id, parked.locked) == ("refunds", True)
    notices = {turn.agent_text: turn.notice for turn in await chat.turns() if turn.notice}
    assert notices.keys() == {"I have asked.", "I have asked too."}
    assert notices["I have asked too."] == parked.notice.text
    newest = await chat.turns(order=pb.TURN_ORDER_NEWEST_FIRST, page_size=1)
    assert newest[0].notice == ""


async def test_a_message_is_judged_by_the_turns_of_its_own_task(tmp_path):
    """The first message of a task next to others has none before it."""
    model = ScriptedModel()
    text = REGISTRY.replace("tasks: new\n", "topics: {mode: auto, first_message: auto}\n")
    async with serving(tmp_path, text.replace("new-1", "judged-1"), model=model) as service:
        chat = service.chat()
        asked = await waiting(chat)
        first = await chat.say("#orders where is my parcel?")
        assert first.task_id != asked.task_id
        (before, question) = model.detector.asked[-2:]
        assert [turn.user_text for turn in before.recent] == []
        assert (question.recent, question.earlier_agent_ids) == ((), ())
        await chat.answer(first.dispatch, "In Lisbon.")
        await chat.say("and when?")
        question = model.detector.asked[-1]
        assert [turn.user_text for turn in question.recent] == [first.dispatch.text]
        back = await chat.say("and my money?", task_id=asked.task_id)
        await chat.answer(back.dispatch, "Soon.")
        assert back.task_id == asked.task_id


async def test_history_says_which_messages_are_of_a_parked_task(service):
    """By the number that /task takes."""
    chat = service.chat()
    await waiting(chat)
    routed = await chat.say("when do you open?")
    await chat.answer(routed.dispatch, "At nine.")
    for locale, typed, line in (
        ("en", "/history", "- “I need refunds” (task 1): Front desk → Refunds"),
        ("es", "/historial", "- «I need refunds» (tarea 1): Front desk → Refunds"),
        ("pt", "/histórico", "- “I need refunds” (tarefa 1): Front desk → Refunds"),
    ):
        lines = (await chat.say(typed, locale=locale)).reply.text.splitlines()
        assert lines[-2] == line
        assert lines[-1].endswith(": Front desk")
        assert "(" not in lines[-1]


async def test_what_waits_for_people_in_a_parked_task_is_listed_with_its_claim(service):
    """Both of its requests, so that the person who has claimed it finds it again."""
    chat = service.chat()
    asked = await waiting(chat)
    with_anna = await chat.say("I need a person")
    await chat.answer(with_anna.dispatch, **hand_to("anna"))
    await chat.say("it is urgent")
    wish = pb.ClaimTurnRequest(session_id=chat.session_id, agent_id="anna", claimant="bea")
    await service.call("ClaimTurn", wish)
    front = await waiting_of(service, "anna", chat)
    back = await chat.say("/task 1")
    assert back.task_id == asked.task_id
    parked = await waiting_of(service, "anna", chat)
    assert [each.text for each in parked.open_requests] == ["I need a person", "it is urgent"]
    assert {each.task_id for each in parked.open_requests} == {with_anna.task_id}
    assert parked.claim == front.claim
    assert parked.claim.claimant == "bea"


async def waiting_of(service, agent_id, chat):
    """Return what waits for people of a session."""
    listed = await service.call("ListWaiting", pb.ListWaitingRequest(agent_id=agent_id))
    (found,) = (each for each in listed.entries if each.session_id == chat.session_id)
    return found
