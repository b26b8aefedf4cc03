"""Specialists: who answers a pupil, how a lesson ends, and what an interlude does."""

import pytest

from agent_routing.v1 import dispatch_pb2, routing_service_pb2
from tests.rpc.live_service import (
    INTERLUDE,
    ask,
    fail,
    finish,
    hand_to,
    handed_from,
    initiator,
    mode,
    outcome,
    outcome_status,
    reason,
    refusal,
    serving,
    stack,
    task_status,
    went,
)
from tests.rpc.registries import DESK


@pytest.fixture
async def tutor(tmp_path):
    """The school tutor example."""
    async with serving(tmp_path, "tutor") as running:
        yield running


@pytest.fixture
async def service(tmp_path):
    """A help desk whose agents differ in one thing each."""
    async with serving(tmp_path, DESK) as running:
        yield running


async def test_coordinator_is_not_called_while_a_specialist_is_active(tutor):
    """The first message goes to the coordinator; ordinary messages after the handoff do not."""
    chat = tutor.chat()
    first = await chat.say("I want to practise fractions")
    assert went(first.dispatch) == ("coordinator", "NO_ACTIVE_AGENT")
    handed = await chat.answer(first.dispatch, **hand_to("math_specialist"))
    assert went(handed.next) == ("math_specialist", "SUPERVISOR_HANDOFF")
    assert handed.next.text == "I want to practise fractions"
    await chat.answer(handed.next, "1/2 + 1/4?", **ask())
    for text in ("3/4", "2/5", "what?"):
        routed = await chat.say(text)
        assert routed.dispatch.agent.agent_id == "math_specialist"
        await chat.answer(routed.dispatch, "and now?", **ask())
    assert tutor.observer.dispatches(chat.session_id) == {"coordinator": 1, "math_specialist": 4}


@pytest.mark.parametrize(
    ("locale", "words"),
    [
        ("en", "Great work! Let us see what you have learned."),
        ("es-MX", "¡Buen trabajo! Veamos qué has aprendido."),
    ],
)
async def test_completed_lesson_goes_on_to_the_assessor_by_itself(tutor, locale, words):
    """In the same task and message, with the registry's text in the pupil's language."""
    chat = tutor.chat()
    chat.profile = {"locale": locale}
    await chat.with_agent("math_specialist", **ask())
    routed = await chat.say("1/2")
    done = await chat.answer(routed.dispatch, "Right!", **finish("fractions: 3 exercises"))
    assert outcome_status(done) == "APPLIED"
    assert done.text == "Right!"
    assert went(done.next) == ("assessor", "TASK_COMPLETED")
    assert done.next.text == "1/2"
    assert done.next.task_id == routed.task_id
    assert task_status(done.task_status) == "RUNNING"
    handoff = done.next.handoff
    assert (initiator(handoff), mode(handoff)) == ("COMPLETION", "COMPLETION")
    assert (handed_from(handoff), handoff.to.agent_id) == ("math_specialist", "assessor")
    assert (handoff.message, handoff.reason) == (words, "fractions: 3 exercises")
    assert (done.active_agent.agent_id, done.locked) == ("assessor", False)
    await chat.answer(done.next, "a question", **ask())
    assert went((await chat.say("3/5")).dispatch) == ("assessor", "FOLLOW_UP_LOCK")


async def test_agent_s_own_words_go_before_the_registry_s(tutor):
    """The completing agent may say more than the registry's text."""
    chat = await tutor.chat().with_agent("math_specialist")
    routed = await chat.say("1/2")
    done = await chat.answer(routed.dispatch, **finish("done", "You did it, Ana!"))
    assert done.next.handoff.message == "You did it, Ana!"


async def test_completed_task_releases_the_conversation(tutor):
    """The assessor is last: the task completes, and the coordinator gets the next message."""
    chat = await tutor.chat().with_agent("assessor", **ask())
    routed = await chat.say("1/4")
    done = await chat.answer(routed.dispatch, "All right.", **finish("2 of 2"))
    assert not done.HasField("next")
    assert not done.HasField("active_agent")
    assert task_status(done.task_status) == "COMPLETED"
    status = await chat.status()
    assert task_status(status.task.status) == "COMPLETED"
    later = await chat.say("now verbs")
    assert went(later.dispatch) == ("coordinator", "NO_ACTIVE_AGENT")
    assert later.task_id != routed.task_id
    tasks = await chat.tasks()
    assert [task_status(task.status) for task in tasks] == ["COMPLETED", "RUNNING"]


async def test_completed_agent_that_stays_closes_the_task_and_keeps_the_user(service):
    """on_complete: stay is for an agent with more than one job."""
    chat = await service.chat().with_agent("completes_and_stays")
    routed = await chat.say("do it")
    done = await chat.answer(routed.dispatch, "done", **finish())
    assert task_status(done.task_status) == "COMPLETED"
    assert done.active_agent.agent_id == "completes_and_stays"
    later = await chat.say("one more")
    assert went(later.dispatch) == ("completes_and_stays", "STICKY")
    assert later.task_id != routed.task_id


async def test_completion_may_lead_to_the_supervisor(service):
    """The supervisor gets the same message, and no agent is active."""
    chat = await service.chat().with_agent("completes_to_front")
    routed = await chat.say("finish")
    done = await chat.answer(routed.dispatch, "finished", **finish())
    assert went(done.next) == ("front", "TASK_COMPLETED")
    assert not done.HasField("active_agent")


async def test_specialist_hands_over_by_a_field(tutor):
    """The target gets the message with the outcome's reason and context."""
    chat = await tutor.chat().with_agent("math_specialist")
    routed = await chat.say("test me")
    handed = await chat.answer(
        routed.dispatch,
        "As you like.",
        **hand_to("assessor", reason="asked for", context={"level": 3}, message="Here is Ms Lee."),
    )
    assert went(handed.next) == ("assessor", "AGENT_HANDOFF")
    assert handed.next.request_id != routed.request_id
    assert handed.text == "As you like."
    handoff = handed.next.handoff
    assert (handoff.reason, handoff.message) == ("asked for", "Here is Ms Lee.")
    assert handoff.context["level"] == 3
    assert handed.active_agent.agent_id == "assessor"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("Have a break. [HANDOFF_TO:motivator]", "Have a break."),
        ("Have a break [handoff_to: Motivator ].", "Have a break."),
        ("[Handoff_To:MOTIVATOR] Have a break.", "Have a break."),
        ("[HANDOFF_TO:motivator]", ""),
        ("Have [HANDOFF_TO:motivator] a break. [HANDOFF_TO:assessor]", "Have a break."),
    ],
)
async def test_marker_hands_over_and_is_never_seen(tutor, written, shown):
    """In any case, by id or alias; the first marker counts and all of them are removed."""
    chat = await tutor.chat().with_agent("math_specialist", **ask())
    routed = await chat.say("I give up")
    answered = await chat.answer(routed.dispatch, written)
    assert answered.text == shown
    assert outcome_status(answered) == "APPLIED"
    assert went(answered.next) == ("motivator", "AGENT_HANDOFF")
    assert mode(answered.next.handoff) == "INTERLUDE"
    turns = await chat.turns()
    assert turns[-2].agent_text == shown
    assert outcome(turns[-2]) == ("HANDOFF", "APPLIED")


@pytest.mark.parametrize(
    ("marker", "rule"),
    [
        ("language_specialist", "handoff_to"),
        ("nobody", "unknown_agent"),
        ("math_specialist", "not_active"),
    ],
)
async def test_marker_that_is_refused_is_done_without(tutor, marker, rule):
    """The answer is shown without it, the given outcome applies, and the verdicts say why."""
    chat = await tutor.chat().with_agent("math_specialist")
    routed = await chat.say("I give up")
    answered = await chat.answer(routed.dispatch, f"One more? [HANDOFF_TO:{marker}]", **ask())
    assert answered.text == "One more?"
    assert outcome_status(answered) == "DEGRADED"
    assert not answered.HasField("next")
    assert answered.locked
    assert rule in [v.rule for v in answered.verdicts if not v.allowed]
    assert outcome((await chat.turns())[-1]) == ("FOLLOW_UP", "DEGRADED")


async def test_marker_beside_an_outcome_that_moves_does_not_count(tutor):
    """An explicit handoff or completion wins; the marker is still removed."""
    chat = await tutor.chat().with_agent("math_specialist")
    routed = await chat.say("test me")
    answered = await chat.answer(
        routed.dispatch, "Yes [HANDOFF_TO:motivator]", **hand_to("assessor")
    )
    assert (answered.text, answered.next.agent.agent_id) == ("Yes", "assessor")
    chat = await tutor.chat().with_agent("math_specialist")
    routed = await chat.say("1/2")
    answered = await chat.answer(routed.dispatch, "Right [HANDOFF_TO:motivator]", **finish())
    assert (answered.text, went(answered.next)) == ("Right", ("assessor", "TASK_COMPLETED"))


async def test_agent_without_markers_keeps_its_text(tutor):
    """For an agent without markers they are plain text; an agent with them may turn them off."""
    text = "Write [HANDOFF_TO:motivator] to get help."
    chat = await tutor.chat().with_agent("assessor")
    routed = await chat.say("how?")
    answered = await chat.answer(routed.dispatch, text, parse_markers=True)
    assert answered.text == text
    assert not answered.HasField("next")
    chat = await tutor.chat().with_agent("math_specialist")
    routed = await chat.say("how?")
    answered = await chat.answer(routed.dispatch, text, parse_markers=False)
    assert answered.text == text
    assert answered.active_agent.agent_id == "math_specialist"


async def test_interlude_ends_by_returning_to_the_one_it_interrupted(tutor):
    """Its question is open again: the next message goes to the interrupted agent, RETURNED."""
    chat = await tutor.chat().with_agent("math_specialist", **ask())
    routed = await chat.say("I give up")
    handed = await chat.answer(routed.dispatch, "Oh. [HANDOFF_TO:motivator]")
    asked = await chat.answer(handed.next, "What is hardest?", **ask())
    assert asked.active_agent.agent_id == "motivator"
    status = await chat.status()
    assert stack(status) == ["math_specialist"]
    assert status.return_stack[0].locked
    assert status.return_stack[0].agent.display_name == "Math specialist"
    routed = await chat.say("the bottom")
    back = await chat.answer(routed.dispatch, "You can do it.", **finish("a break"))
    assert not back.HasField("next")
    assert (back.active_agent.agent_id, back.locked) == ("math_specialist", True)
    assert task_status(back.task_status) == "RUNNING"
    assert not (await chat.status()).return_stack
    routed = await chat.say("5/6")
    assert went(routed.dispatch) == ("math_specialist", "RETURNED")
    assert routed.dispatch.locked
    assert routed.dispatch.previous_agent_id == "motivator"
    await chat.answer(routed.dispatch, "Right. Next?", **ask())
    assert reason((await chat.say("1/2")).dispatch) == "FOLLOW_UP_LOCK"


async def test_interlude_within_one_message_goes_there_and_back(tutor):
    """The interrupted agent gets the message during which it was interrupted."""
    chat = await tutor.chat().with_agent("math_specialist", **ask())
    routed = await chat.say("this is boring")
    handed = await chat.answer(routed.dispatch, "A break. [HANDOFF_TO:motivator]")
    back = await chat.answer(handed.next, "Stretch!", **finish("short break", "Back to work."))
    assert went(back.next) == ("math_specialist", "RETURNED")
    assert back.next.text == "this is boring"
    assert back.next.locked
    assert mode(back.next.handoff) == "RETURN"
    assert back.next.handoff.message == "Back to work."
    assert back.next.previous_agent_id == "motivator"
    assert len({routed.request_id, handed.next.request_id, back.next.request_id}) == 3
    (open_request,) = (await chat.status()).open_requests
    unread = dispatch_pb2.Dispatch.FromString(back.next.SerializeToString())
    del unread.history[:]
    assert open_request == unread
    done = await chat.answer(back.next, "So: 1/3 + 1/2?", **ask())
    assert done.locked


async def test_handing_back_to_the_interrupted_agent_is_the_return(service):
    """A handoff to the interrupted agent ends the interlude; the stack does not grow."""
    chat = await service.chat().with_agent("sales", **ask())
    routed = await chat.say("wait")
    handed = await chat.answer(routed.dispatch, **hand_to("interrupts"))
    await chat.answer(handed.next, "how are you?", **ask())
    routed = await chat.say("fine")
    back = await chat.answer(routed.dispatch, **hand_to("sales", reason="ready"))
    assert went(back.next) == ("sales", "RETURNED")
    assert mode(back.next.handoff) == "RETURN"
    assert back.next.locked
    assert not (await chat.status()).return_stack


async def test_interlude_returns_by_itself_after_so_many_turns(service):
    """turns_max: questions count as turns, but only an answer returns the conversation."""
    chat = await service.chat().with_agent("sales", **ask())
    routed = await chat.say("wait")
    handed = await chat.answer(routed.dispatch, **hand_to("interrupts_briefly"))
    await chat.answer(handed.next, "one?", **ask())
    for question in ("two?", "three?"):
        routed = await chat.say("hm")
        kept = await chat.answer(routed.dispatch, question, **ask())
        assert kept.active_agent.agent_id == "interrupts_briefly"
    routed = await chat.say("hm")
    back = await chat.answer(routed.dispatch, "enough")
    assert back.active_agent.agent_id == "sales"
    assert went((await chat.say("so")).dispatch) == ("sales", "RETURNED")


async def test_interlude_that_keeps_only_its_questions_returns_when_it_answers(service):
    """With sticks: follow_up an agent leaves after its answer, which ends its interlude."""
    chat = await service.chat().with_agent("sales")
    routed = await chat.say("wait")
    handed = await chat.answer(routed.dispatch, **hand_to("interrupts_and_asks"))
    await chat.answer(handed.next, "ready?", **ask())
    routed = await chat.say("yes")
    back = await chat.answer(routed.dispatch, "good")
    assert back.active_agent.agent_id == "sales"


async def test_interludes_nest_and_unwind_in_order(service):
    """Each interlude returns to the agent that it interrupted."""
    chat = await service.chat().with_agent("sales", **ask())
    for agent_id in ("interrupts", "interrupts_briefly"):
        routed = await chat.say("wait")
        handed = await chat.answer(routed.dispatch, **hand_to(agent_id))
        await chat.answer(handed.next, "ready?", **ask())
    assert stack(await chat.status()) == ["sales", "interrupts"]
    for back_to in ("interrupts", "sales"):
        routed = await chat.say("yes")
        back = await chat.answer(routed.dispatch, **finish())
        assert (back.active_agent.agent_id, back.locked) == (back_to, True)


async def test_plain_handoff_forgets_whom_an_interlude_interrupted(service):
    """A transfer is final: agents below it on the stack do not return."""
    chat = await service.chat().with_agent("sales", **ask())
    routed = await chat.say("wait")
    handed = await chat.answer(routed.dispatch, **hand_to("interrupts"))
    handed = await chat.answer(handed.next, **hand_to("support"))
    assert mode(handed.next.handoff) == "TRANSFER"
    status = await chat.status()
    assert (status.active_agent.agent_id, stack(status)) == ("support", [])


async def test_any_specialist_may_interrupt_where_it_is_asked_to(service):
    """The mode INTERLUDE turns a transfer into an interlude."""
    chat = await service.chat().with_agent("sales", **ask())
    routed = await chat.say("is it in stock?")
    handed = await chat.answer(routed.dispatch, **hand_to("support", mode=INTERLUDE))
    assert mode(handed.next.handoff) == "INTERLUDE"
    assert stack(await chat.status()) == ["sales"]
    back = await chat.answer(handed.next, "it is", **finish())
    assert went(back.next) == ("sales", "RETURNED")


async def test_supervisor_s_interlude_is_a_transfer(service):
    """A supervisor is never put on the stack."""
    chat = service.chat()
    routed = await chat.say()
    handed = await chat.answer(routed.dispatch, **hand_to("interrupts", mode=INTERLUDE))
    assert mode(handed.next.handoff) == "TRANSFER"
    assert not (await chat.status()).return_stack
    done = await chat.answer(handed.next, "done", **finish())
    assert not done.HasField("active_agent")
    assert task_status(done.task_status) == "COMPLETED"


async def test_off_topic_questions_stay_with_the_lesson(tutor):
    """No topic switches the pupil to another agent: the specialist owns the session."""
    chat = await tutor.chat().with_agent("math_specialist", **ask())
    for text in ("who was king of France?", "let us do verbs", "math is nothing for me"):
        routed = await chat.say(text)
        assert routed.dispatch.agent.agent_id == "math_specialist"
        await chat.answer(routed.dispatch, "later; 1/2 + 1/4?", **ask())


async def test_pupil_cannot_pick_another_agent_in_the_middle_of_a_lesson(tutor):
    """By command or by the frontend's buttons, also while the lesson is interrupted."""
    chat = await tutor.chat().with_agent("math_specialist", **ask())
    routed = await chat.say("/agent language_specialist")
    assert "has to be finished first" in routed.reply.text
    by_user = {"initiator": 3}
    refused = await refusal(chat.set_active("language_specialist", **by_user))
    assert tuple(refused) == ("FAILED_PRECONDITION", "HANDOFF_REFUSED")
    assert refused.rules == ["owns_session"]
    routed = await chat.say("I give up")
    handed = await chat.answer(routed.dispatch, "[HANDOFF_TO:motivator]")
    await chat.answer(handed.next, "What is hardest?", **ask())
    refused = await refusal(chat.set_active("language_specialist", **by_user))
    assert refused.rules == ["owns_session"]
    # The supervisor can always be reached, unless the registry disables the command.
    assert (await chat.say("/supervisor")).HasField("reply")
    assert not (await chat.status()).HasField("active_agent")


async def test_coordinator_may_answer_by_itself(tutor):
    """Then no specialist is active."""
    chat = tutor.chat()
    routed = await chat.say("when does school begin?")
    answered = await chat.answer(routed.dispatch, "At eight.")
    assert not answered.HasField("active_agent")
    assert not answered.HasField("next")
    assert went((await chat.say("thanks")).dispatch) == ("coordinator", "NO_ACTIVE_AGENT")


async def test_coordinator_s_question_does_not_lock(tutor):
    """It gets the next message anyway; a supervisor never becomes active."""
    chat = tutor.chat()
    routed = await chat.say("help")
    asked = await chat.answer(routed.dispatch, "with what?", **ask())
    assert outcome_status(asked) == "APPLIED"
    assert not asked.locked
    assert not asked.HasField("active_agent")
    assert went((await chat.say("verbs")).dispatch) == ("coordinator", "NO_ACTIVE_AGENT")


async def test_warm_words_of_a_handoff_reach_the_user(tutor):
    """In the next dispatch and in the handoff's answer, also after a crash."""
    chat = tutor.chat()
    routed = await chat.say("fractions")
    words = "Mr Gauss will help you."
    handed = await chat.answer(routed.dispatch, **hand_to("math_specialist", message=words))
    assert handed.next.handoff.message == words
    status = await chat.status()
    assert [d.handoff.message for d in status.open_requests] == [words]
    moved = await chat.set_active(
        "motivator", turn_request_id=handed.next.request_id, message="Here comes Mia."
    )
    assert moved.handoff.message == "Here comes Mia."
    assert (await chat.status()).open_requests[0].handoff.message == "Here comes Mia."


async def test_every_dispatch_says_why_and_who_had_the_one_before(tutor):
    """For each step within one message, and from one message to the next."""
    chat = tutor.chat()
    routed = await chat.say("fractions")
    assert (reason(routed.dispatch), routed.dispatch.previous_agent_id) == ("NO_ACTIVE_AGENT", "")
    handed = await chat.answer(
        routed.dispatch, **hand_to("math_specialist", reason="it is about fractions")
    )
    assert reason(handed.next) == "SUPERVISOR_HANDOFF"
    assert handed.next.reason_detail == "it is about fractions"
    assert handed.next.previous_agent_id == "coordinator"
    handed = await chat.answer(handed.next, "[HANDOFF_TO:motivator]")
    assert (reason(handed.next), handed.next.previous_agent_id) == (
        "AGENT_HANDOFF",
        "math_specialist",
    )
    await chat.answer(handed.next, "well?", **ask())
    routed = await chat.say("/supervisor verbs")
    assert (reason(routed.dispatch), routed.dispatch.previous_agent_id) == ("COMMAND", "motivator")
    turns = await chat.turns()
    assert [(turn.agent_id, turn.from_agent_id) for turn in turns] == [
        ("coordinator", ""),
        ("math_specialist", "coordinator"),
        ("motivator", "math_specialist"),
        ("coordinator", ""),
    ]


async def test_failed_answer_fails_the_task_and_keeps_the_agent(service):
    """The agent stays for another attempt in a new task; there is no lock."""
    chat = await service.chat().with_agent("sales", **ask())
    routed = await chat.say("two")
    failed = await chat.answer(routed.dispatch, "Something broke.", **fail("timeout of the shop"))
    assert task_status(failed.task_status) == "FAILED"
    assert failed.text == "Something broke."
    assert (failed.active_agent.agent_id, failed.locked) == ("sales", False)
    again = await chat.say("try again")
    assert went(again.dispatch) == ("sales", "STICKY")
    assert again.task_id != routed.task_id
    events = [e for e in await chat.events() if type(e).__name__ == "TaskFailed"]
    assert [event.message for event in events] == ["timeout of the shop"]


async def test_agent_that_never_sticks_leaves_even_when_it_asks(service):
    """Its question counts like any other answer."""
    chat = service.chat()
    routed = await chat.say()
    handed = await chat.answer(routed.dispatch, **hand_to("never_sticks"))
    answered = await chat.answer(handed.next, "or not?", **ask())
    assert not answered.locked
    assert not answered.HasField("active_agent")


async def test_registry_describes_the_agents(tutor):
    """Id, name and description in the caller's language, icon, colour, and who may be picked."""
    response = await tutor.call("ListAgents", routing_service_pb2.ListAgentsRequest(locale="es"))
    assert response.home_agent_id == "coordinator"
    cards = {agent.agent_id: agent for agent in response.agents}
    assert list(cards) == [
        "coordinator",
        "math_specialist",
        "language_specialist",
        "motivator",
        "assessor",
    ]
    math = cards["math_specialist"]
    assert math.display_name == "Especialista en matemáticas"
    assert math.description == "Enseña fracciones paso a paso."
    assert (math.icon, math.color) == ("calculator", "#3366ff")
    assert math.user_selectable
    assert math.enabled
    assert not cards["motivator"].user_selectable


async def test_list_of_agents_says_what_each_alias_stands_for(service):
    """Frameworks have their own agent names; aliases of agents not in the list are omitted."""
    listed = await service.call("ListAgents", routing_service_pb2.ListAgentsRequest())
    assert dict(listed.agent_id_by_alias) == {"Sales Team": "sales"}
    assert (await service.chat().set_active("sales team")).agent.agent_id == "sales"
    chat = await service.chat().with_agent("owner")
    others = routing_service_pb2.ListAgentsRequest(
        session_id=chat.session_id, user_id=chat.user_id, from_agent_id="sales team"
    )
    assert not (await service.call("ListAgents", others)).agent_id_by_alias
