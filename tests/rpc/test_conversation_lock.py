"""Locks: an agent that asks gets the answer. How long a lock holds, and what ends it."""

import pytest

from tests.rpc.live_service import (
    INTERLUDE,
    ask,
    fail,
    finish,
    hand_to,
    outcome_status,
    refusal,
    serving,
    stack,
    task_status,
    went,
)
from tests.rpc.registries import DESK

MINUTE_S = 60


@pytest.fixture
async def service(tmp_path):
    """A help desk whose agents differ in one thing each."""
    async with serving(tmp_path, DESK) as running:
        yield running


async def test_agent_that_asks_gets_the_next_message_whatever_it_says(service):
    """The orchestrator is not called for that message."""
    chat = await service.chat().with_agent("asks_only", **ask())
    calls = service.observer.dispatches(chat.session_id)["front"]
    routed = await chat.say("what about my invoice, my order and the weather?")
    assert went(routed.dispatch) == ("asks_only", "FOLLOW_UP_LOCK")
    assert routed.dispatch.locked
    assert routed.supervisor_bypassed
    assert service.observer.dispatches(chat.session_id)["front"] == calls


async def test_lock_holds_over_several_questions(service):
    """Each answer that is a question renews the lock."""
    chat = await service.chat().with_agent("asks_only", **ask())
    for question in ("which one?", "what colour?", "how many?"):
        routed = await chat.say("hm")
        assert went(routed.dispatch) == ("asks_only", "FOLLOW_UP_LOCK")
        asked = await chat.answer(routed.dispatch, question, **ask())
        assert (asked.active_agent.agent_id, asked.locked) == ("asks_only", True)
    assert (await chat.status()).locked


async def test_answer_without_a_question_releases_the_lock(service):
    """The orchestrator routes again; the task stays the same."""
    chat = await service.chat().with_agent("asks_only", **ask())
    routed = await chat.say("the red one")
    answered = await chat.answer(routed.dispatch, "noted")
    assert not answered.locked
    assert not answered.HasField("active_agent")
    assert await chat.kinds(answered.revision) == ["TurnCompleted", "LockReleased", "AgentCleared"]
    next_routed = await chat.say("something else")
    assert went(next_routed.dispatch) == ("front", "NO_ACTIVE_AGENT")
    assert next_routed.task_id == routed.task_id


async def test_sticking_agent_is_unlocked_by_its_answer_and_stays(service):
    """A lock is for one question; stickiness is for the conversation."""
    chat = await service.chat().with_agent("sales", **ask())
    routed = await chat.say("the red one")
    answered = await chat.answer(routed.dispatch, "noted")
    assert (answered.active_agent.agent_id, answered.locked) == ("sales", False)
    assert went((await chat.say("more")).dispatch) == ("sales", "STICKY")


@pytest.mark.parametrize("ending", [finish("done"), fail("no"), hand_to("support")])
async def test_whatever_ends_the_turn_ends_the_lock(service, ending):
    """An agent that has had its answer no longer waits for one."""
    chat = await service.chat().with_agent("sales", **ask())
    routed = await chat.say("the red one")
    answered = await chat.answer(routed.dispatch, "so", **ending)
    assert not answered.locked
    released = [e for e in await chat.events() if type(e).__name__ == "LockReleased"]
    assert len(released) == 1


async def test_lock_ends_at_its_timeout(service):
    """A sticky agent stays; an agent with sticks: follow_up leaves."""
    sticking = await service.chat().with_agent("sales", **ask(timeout_s=90))
    leaving = await service.chat().with_agent("asks_only", **ask(timeout_s=90))
    service.clock.advance(89)
    assert (await sticking.status()).locked
    service.clock.advance(1)
    for chat, active in ((sticking, "sales"), (leaving, "")):
        status = await chat.status()
        # GetStatus shows what the next message would meet, and writes nothing.
        assert not status.locked
        assert status.active_agent.agent_id == active
        assert status.revision == 3
        assert "LockReleased" not in await chat.kinds()
    assert went((await sticking.say("late")).dispatch) == ("sales", "STICKY")
    assert went((await leaving.say("late")).dispatch) == ("front", "EXPIRED")
    assert (await leaving.kinds(4))[:2] == ["LockReleased", "AgentCleared"]


async def test_lock_without_a_timeout_waits_for_as_long_as_it_takes(service):
    """A message that comes a month later still answers the question."""
    chat = await service.chat().with_agent("asks_only", **ask())
    service.clock.advance(30 * 24 * 60 * MINUTE_S)
    assert went((await chat.say("the red one")).dispatch) == ("asks_only", "FOLLOW_UP_LOCK")


async def test_interlude_whose_question_timed_out_gives_the_conversation_back(service):
    """The conversation returns to the interrupted agent, whose question has not timed out."""
    chat = await service.chat().with_agent("sales", **ask())
    routed = await chat.say("wait")
    handed = await chat.answer(routed.dispatch, **hand_to("interrupts_and_asks"))
    await chat.answer(handed.next, "ready?", **ask(timeout_s=60))
    service.clock.advance(61)
    status = await chat.status()
    assert (status.active_agent.agent_id, status.locked, stack(status)) == ("sales", True, [])
    routed = await chat.say("the red one")
    assert went(routed.dispatch) == ("sales", "RETURNED")
    assert routed.dispatch.locked


async def test_timed_out_lock_counts_before_a_handoff_too(service):
    """SetActiveAgent and /agent apply timeouts first, as the next message would."""
    chat = await service.chat().with_agent("asks_only", **ask(timeout_s=60))
    service.clock.advance(61)
    moved = await chat.set_active("asks_only")
    assert (moved.agent.agent_id, getattr(moved.handoff, "from").agent_id) == ("asks_only", "front")


async def test_idle_agent_loses_the_conversation(service):
    """After its idle timeout the supervisor is asked again (EXPIRED).

    GetStatus shows it earlier.
    """
    chat = await service.chat().with_agent("idles")
    service.clock.advance(20 * MINUTE_S - 1)
    assert (await chat.status()).next_agent.agent_id == "idles"
    service.clock.advance(1)
    status = await chat.status()
    assert not status.HasField("active_agent")
    assert status.next_agent.agent_id == "front"
    routed = await chat.say("hello again")
    assert went(routed.dispatch) == ("front", "EXPIRED")
    assert "StickinessExpired" in await chat.kinds(routed.revision)
    assert went((await chat.say("and again")).dispatch) == ("front", "NO_ACTIVE_AGENT")


async def test_every_message_starts_the_idle_time_again(service):
    """Idle time is counted from the session's last change."""
    chat = await service.chat().with_agent("idles")
    for _ in range(3):
        service.clock.advance(19 * MINUTE_S)
        routed = await chat.say("still here")
        assert went(routed.dispatch) == ("idles", "STICKY")
        await chat.answer(routed.dispatch, "good")


async def test_agent_at_work_is_not_idle(tmp_path):
    """Idle time does not count while a turn is open."""
    patient = DESK.replace("turn_timeout: 10m", "turn_timeout: 60m")
    async with serving(tmp_path, patient) as service:
        chat = await service.chat().with_agent("idles")
        working = await chat.say("a long job")
        service.clock.advance(30 * MINUTE_S)
        assert went((await chat.say("and?")).dispatch) == ("idles", "STICKY")
        late = await chat.answer(working.dispatch, "done")
        assert outcome_status(late) == "STORED_ONLY"


async def test_owner_of_a_session_does_not_idle_in_the_middle_of_its_task(service):
    """The user can continue a lesson tomorrow; idle time counts once its task is closed."""
    chat = await service.chat().with_agent("owns_and_idles")
    service.clock.advance(24 * 60 * MINUTE_S)
    routed = await chat.say("good morning")
    assert went(routed.dispatch) == ("owns_and_idles", "STICKY")
    await chat.answer(routed.dispatch, "sorry", **fail("no more"))
    service.clock.advance(21 * MINUTE_S)
    assert went((await chat.say("hello?")).dispatch) == ("front", "EXPIRED")


async def test_turn_that_nobody_answers_is_closed_after_its_timeout(service):
    """A late answer is stored and changes nothing.

    After that GetStatus no longer lists the turn.
    """
    chat = await service.chat().with_agent("sales")
    asked = await chat.say("still there?")
    service.clock.advance(10 * MINUTE_S)
    routed = await chat.say("hello?")
    assert await chat.kinds(routed.revision) == ["TurnAbandoned", "MessageRouted"]
    assert [d.request_id for d in (await chat.status()).open_requests] == [routed.request_id]
    late = await chat.answer(asked.dispatch, "I was busy", **ask())
    assert outcome_status(late) == "STORED_ONLY"
    assert not late.locked
    turns = {turn.request_id: turn for turn in await chat.turns(agent_id="sales")}
    assert turns[asked.request_id].agent_text == "I was busy"


async def test_answer_that_comes_after_the_timeout_itself_closes_the_turn(service):
    """The answer is too late even if no other call came in between."""
    chat = await service.chat().with_agent("sales")
    asked = await chat.say("still there?")
    service.clock.advance(10 * MINUTE_S + 1)
    assert not (await chat.status()).open_requests
    late = await chat.answer(asked.dispatch, "I was busy", **ask())
    assert outcome_status(late) == "STORED_ONLY"
    assert await chat.kinds(late.revision) == ["TurnAbandoned", "TurnCompleted"]


async def test_oldest_turn_makes_room_for_a_new_one(service):
    """The limit here is four open turns, so a runtime's forgotten turns do not grow the session."""
    chat = await service.chat().with_agent("sales")
    routed = [await chat.say(f"message {number}") for number in range(6)]
    status = await chat.status()
    assert [d.request_id for d in status.open_requests] == [r.request_id for r in routed[2:]]
    assert [d.text for d in status.open_requests] == [f"message {n}" for n in range(2, 6)]
    abandoned = [e for e in await chat.events() if type(e).__name__ == "TurnAbandoned"]
    assert [(e.request_id, e.cause) for e in abandoned] == [
        (routed[0].request_id, "limit"),
        (routed[1].request_id, "limit"),
    ]


async def test_second_message_may_be_refused_while_a_turn_is_open(tmp_path):
    """double_text: reject is for frontends that send one message at a time; commands are exempt."""
    strict = DESK.replace("agents:\n", "double_text: reject\nagents:\n", 1)
    async with serving(tmp_path, strict) as service:
        chat = await service.chat().with_agent("sales")
        routed = await chat.say("one")
        async with chat.unchanged():
            refused = await refusal(chat.say("two"))
            assert tuple(refused) == ("FAILED_PRECONDITION", "TURN_OPEN")
            assert refused.metadata == {
                "session_id": chat.session_id,
                "request_id": routed.request_id,
                "agent_id": "sales",
            }
        assert (await chat.say("/status")).HasField("reply")
        await chat.answer(routed.dispatch, "answered")
        assert went((await chat.say("two")).dispatch) == ("sales", "STICKY")
        assert (await chat.say("/supervisor out of here")).HasField("dispatch")


async def test_lock_of_the_interrupted_agent_is_shown_with_its_time(service):
    """GetStatus lists the stack with locks and times, the next to return last."""
    chat = await service.chat().with_agent("sales", **ask(timeout_s=3600))
    routed = await chat.say("wait")
    handed = await chat.answer(routed.dispatch, **hand_to("support", mode=INTERLUDE))
    await chat.answer(handed.next, "there")
    frame = (await chat.status()).return_stack[0]
    assert frame.locked
    assert frame.turns_taken == 1
    assert frame.lock_expire_time.ToMicroseconds() == service.clock.now_us + 3600 * 1_000_000


async def test_agent_further_down_the_stack_comes_back_with_its_question(tmp_path):
    """Sales asks, support asks in between, and the third agent brings the user back to sales."""
    deep = DESK.replace("return_depth: 2", "return_depth: 4")
    async with serving(tmp_path, deep) as service:
        chat = await service.chat().with_agent("owner")
        routed = await chat.say("a quote, please")
        handed = await chat.answer(routed.dispatch, **hand_to("sales", mode=INTERLUDE))
        await chat.answer(handed.next, "For how many people?", **ask(timeout_s=3600))
        routed = await chat.say("wait, my screen is black")
        handed = await chat.answer(routed.dispatch, **hand_to("support", mode=INTERLUDE))
        await chat.answer(handed.next, "Which model?", **ask())
        routed = await chat.say("never mind, and you smell of smoke")
        handed = await chat.answer(routed.dispatch, **hand_to("interrupts", mode=INTERLUDE))
        await chat.answer(handed.next, "Breathe in.")
        assert stack(await chat.status()) == ["owner", "sales", "support"]
        routed = await chat.say("back to my quote")
        back = await chat.answer(routed.dispatch, "Here you go.", **hand_to("sales"))
        assert went(back.next) == ("sales", "AGENT_HANDOFF")
        assert (back.next.locked, back.locked) == (True, True)
        status = await chat.status()
        assert (status.active_agent.agent_id, status.locked) == ("sales", True)
        assert status.lock_expire_time.ToMicroseconds() == service.clock.now_us + 3600 * 1_000_000
        assert stack(status) == ["owner"]
        await chat.answer(back.next, "For how many people was it?", **ask())
        assert went((await chat.say("for five")).dispatch) == ("sales", "FOLLOW_UP_LOCK")


async def test_user_picks_an_agent_further_down_the_stack(service):
    """Its question still waits, so the next message is the answer to it."""
    chat = await service.chat().with_agent("sales", **ask())
    routed = await chat.say("wait")
    handed = await chat.answer(routed.dispatch, **hand_to("support", mode=INTERLUDE))
    await chat.answer(handed.next, "there")
    routed = await chat.say("and?")
    handed = await chat.answer(routed.dispatch, **hand_to("interrupts"))
    await chat.answer(handed.next, "Hm.")
    await chat.say("/agent sales")
    status = await chat.status()
    assert (status.active_agent.agent_id, status.locked, stack(status)) == ("sales", True, [])
    assert went((await chat.say("five")).dispatch) == ("sales", "FOLLOW_UP_LOCK")


async def test_answer_says_of_the_lock_what_status_says(service):
    """The lock of sales expires while support has the conversation, which then comes back."""
    chat = await service.chat().with_agent("sales", **ask(timeout_s=60))
    routed = await chat.say("wait")
    handed = await chat.answer(routed.dispatch, **hand_to("interrupts"))
    await chat.answer(handed.next, "Breathe in.")
    routed = await chat.say("done")
    service.clock.advance(61)
    answered = await chat.answer(routed.dispatch, "Good.", **finish())
    status = await chat.status()
    assert (answered.active_agent.agent_id, answered.locked) == ("sales", False)
    assert (status.active_agent.agent_id, status.locked) == ("sales", False)


async def test_answer_names_the_agent_that_status_names(service):
    """An agent that stays only while it asks is gone once its lock has expired."""
    chat = await service.chat().with_agent("asks_only", **ask(timeout_s=60))
    routed = await chat.say("wait")
    handed = await chat.answer(routed.dispatch, **hand_to("interrupts"))
    await chat.answer(handed.next, "Breathe in.")
    routed = await chat.say("done")
    service.clock.advance(61)
    answered = await chat.answer(routed.dispatch, "Good.", **finish())
    status = await chat.status()
    assert not answered.HasField("active_agent")
    assert not status.HasField("active_agent")
    assert (answered.locked, status.locked) == (False, False)


async def test_task_is_cancelled_when_its_time_is_over(service):
    """The task is cancelled at the next call; GetStatus shows it earlier.

    The agent stays active.
    """
    chat = service.chat()
    expires = service.clock.now_us + 60 * 1_000_000
    routed = await chat.say("quickly", task_expire_time={"seconds": expires // 1_000_000})
    handed = await chat.answer(routed.dispatch, **hand_to("sales"))
    await chat.answer(handed.next, "done")
    assert (await chat.status()).task.expire_time.ToMicroseconds() == expires
    service.clock.advance(60)
    assert task_status((await chat.status()).task.status) == "CANCELLED"
    later = await chat.say("more")
    assert went(later.dispatch) == ("sales", "STICKY")
    assert later.task_id != routed.task_id
    statuses = [task_status(task.status) for task in await chat.tasks()]
    assert statuses == ["CANCELLED", "RUNNING"]
