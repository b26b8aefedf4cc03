"""Which agent gets a user's message: the rules of Route, one by one and in their order."""

import pytest

from routing_service.core import events as ev
from routing_service.core.commands import Complete, Fail, FollowUp, HandOff, Proceed
from routing_service.core.errors import Reason, RoutingError
from routing_service.core.registry import SECOND_US, Agent, AgentKind, Limits, OnComplete, Sticks
from routing_service.core.vocabulary import (
    HandoffMode,
    Initiator,
    OutcomeStatus,
    RouteReason,
    TurnFate,
)
from tests.simulation.conversation import Conversation, registry_of

MATH = Agent("math", user_selectable=True)
CLERK = Agent("clerk", sticks=Sticks.FOLLOW_UP, user_selectable=True)
PREMIUM = Agent("premium", requires=frozenset({"plan:premium"}), user_selectable=True)
WEB = Agent("web", channels=frozenset({"web"}))
BUDDY = Agent("buddy", receives_as_interlude=True, on_complete=OnComplete.RETURN)


def talk(*agents, **settings):
    """Return a conversation under a supervisor with these agents, or the usual ones."""
    return Conversation(registry_of(*(agents or (MATH, CLERK, PREMIUM, WEB, BUDDY)), **settings))


def routed(decision):
    """Return where a message went and why."""
    assert decision.dispatch is not None
    return decision.dispatch.agent_id, decision.dispatch.reason


def test_first_message_goes_to_the_supervisor():
    """No agent is active in a new session."""
    chat = talk()
    assert routed(chat.says()) == ("supervisor", RouteReason.NO_ACTIVE_AGENT)
    assert chat.kinds() == ["SessionStarted", "TaskCreated", "MessageRouted"]
    assert chat.active == ""


def test_first_message_in_a_swarm_goes_to_the_default_agent():
    """A swarm has no supervisor, and the default agent does not become active by it."""
    chat = Conversation(registry_of(MATH, CLERK, home="clerk"))
    assert routed(chat.says()) == ("clerk", RouteReason.DEFAULT_AGENT)
    chat.answers(Proceed())
    assert chat.active == ""
    assert routed(chat.says()) == ("clerk", RouteReason.DEFAULT_AGENT)


def test_active_agent_gets_every_following_message():
    """After a handoff the agent sticks, and the supervisor is not asked again."""
    chat = talk().with_agent("math")
    for _ in range(3):
        assert routed(chat.says()) == ("math", RouteReason.STICKY)
        chat.answers(Proceed())


def test_agent_that_asked_gets_the_answer_whatever_it_says():
    """A lock is named as the reason, and the dispatch says that the agent waits."""
    chat = talk()
    chat.says()
    chat.hands_to("math", turn=chat.open)
    chat.answers(FollowUp())
    decision = chat.says("how about the weather")
    assert routed(decision) == ("math", RouteReason.FOLLOW_UP_LOCK)
    assert decision.dispatch.locked


def test_lock_stays_until_its_turn_is_answered():
    """Neither another message nor a command that only prints information ends the lock."""
    chat = talk()
    chat.says()
    chat.hands_to("math", turn=chat.open)
    chat.answers(FollowUp())
    for text in ("first thought", "/help", "/status", "/agents", "/agent", "/agent nobody"):
        chat.says(text)
        assert chat.locked, text
    chat.says("the answer")
    chat.answers(Proceed())
    assert not chat.locked
    assert chat.active == "math"


def test_dispatch_names_who_had_the_message_before():
    """Frontends show which agent the user comes from."""
    chat = talk()
    assert chat.says().dispatch.previous_agent == ""
    chat.hands_to("math", turn=chat.open)
    chat.answers()
    assert chat.says().dispatch.previous_agent == "math"
    chat.says("/supervisor")
    assert chat.says().dispatch.previous_agent == "math"
    assert chat.says().dispatch.previous_agent == "supervisor"


# Stickiness off


def test_stickiness_off_sends_every_message_to_the_supervisor_and_loses_nothing():
    """The switch is undone as easily: active agent, lock and stack are as they were."""
    chat = talk().with_agent("math")
    chat.says()
    chat.answers(FollowUp())
    before = (chat.state.active, chat.state.stack, chat.state.epoch)
    chat.stickiness = False
    for _ in range(2):
        decision = chat.says()
        assert routed(decision) == ("supervisor", RouteReason.STICKINESS_DISABLED)
        assert not decision.dispatch.locked
        chat.answers(Proceed())
    assert (chat.state.active, chat.state.stack, chat.state.epoch) == before
    chat.stickiness = True
    assert routed(chat.says()) == ("math", RouteReason.FOLLOW_UP_LOCK)


def test_handoffs_are_recorded_but_move_nothing_while_stickiness_is_off():
    """Inside a turn the message goes to the target, and the session keeps its agent."""
    chat = talk()
    chat.stickiness = False
    chat.says()
    decision = chat.answers(HandOff("math", reason="sums"))
    assert routed(decision) == ("math", RouteReason.SUPERVISOR_HANDOFF)
    (handed_off,) = (e for e in chat.last.events if isinstance(e, ev.AgentHandedOff))
    assert handed_off.reason == "sums"
    assert not handed_off.moves
    assert chat.active == ""
    chat.hands_to("clerk", turn=chat.open)
    assert chat.active == ""
    chat.answers(FollowUp())
    assert chat.active == ""
    assert routed(chat.says()) == ("supervisor", RouteReason.STICKINESS_DISABLED)


def test_no_outcome_moves_anything_while_stickiness_is_off():
    """Not the active agent's own either, and not even its count of turns."""
    for outcome in (Proceed(), FollowUp(), Complete(), Fail()):
        chat = talk().with_agent("clerk")
        chat.hands_to("clerk")
        chat.says()
        chat.answers(FollowUp())
        before = (chat.state.active, chat.state.stack, chat.state.epoch)
        chat.stickiness = False
        chat.says()
        chat.hands_to("clerk", turn=chat.open)
        chat.answers(outcome)
        assert (chat.state.active, chat.state.stack, chat.state.epoch) == before


def test_timers_run_while_stickiness_is_off():
    """Who would have left by then has left when stickiness is back."""
    chat = talk(limits=Limits(idle_timeout_us=60 * SECOND_US)).with_agent("math")
    chat.stickiness = False
    chat.wait(61)
    assert routed(chat.says()) == ("supervisor", RouteReason.STICKINESS_DISABLED)
    assert chat.active == ""


def test_handoff_between_messages_is_stored_while_stickiness_is_off():
    """It says who is next once stickiness is back."""
    chat = talk()
    chat.stickiness = False
    chat.says()
    chat.answers()
    chat.hands_to("math")
    assert routed(chat.says()) == ("supervisor", RouteReason.STICKINESS_DISABLED)
    chat.stickiness = True
    assert routed(chat.says()) == ("math", RouteReason.STICKY)


# The active agent is away


@pytest.mark.parametrize("how", ["dropped", "disabled", "entitlement", "channel"])
def test_agent_that_is_away_is_kept_for_when_it_comes_back(how):
    """Another replica may know it still; nothing that was stored is lost."""
    chat = talk(
        Agent("math", requires=frozenset({"plus"}), channels=frozenset({"web", "app"})), CLERK
    )
    chat.says(entitlements=("plus",), channel="web")
    chat.hands_to("math", turn=chat.open)
    chat.answers(FollowUp())
    full = chat.registry
    if how == "dropped":
        chat.drop_agent("math")
    elif how == "disabled":
        chat.change_agent("math", enabled=False)
    elif how == "entitlement":
        chat.change_agent("math", requires=frozenset({"plus", "gold"}))
    else:
        chat.change_agent("math", channels=frozenset({"app"}))
    assert routed(chat.says()) == ("supervisor", RouteReason.AGENT_UNAVAILABLE)
    chat.answers(Proceed())
    assert chat.active == "math"
    assert chat.locked
    chat.reload(full)
    assert routed(chat.says()) == ("math", RouteReason.FOLLOW_UP_LOCK)


def test_user_who_changes_channel_leaves_the_agent_for_as_long():
    """A message's channel is the session's from then on."""
    chat = talk()
    chat.says(channel="web")
    chat.hands_to("web", turn=chat.open)
    chat.answers()
    assert routed(chat.says(channel="whatsapp")) == ("supervisor", RouteReason.AGENT_UNAVAILABLE)
    assert routed(chat.says(channel="web")) == ("web", RouteReason.STICKY)


def test_timers_wait_for_an_agent_that_is_away():
    """The agent being away is noticed before any time that has passed."""
    chat = talk(limits=Limits(idle_timeout_us=60 * SECOND_US)).with_agent("math")
    chat.change_agent("math", enabled=False)
    chat.wait(1000)
    assert routed(chat.says()) == ("supervisor", RouteReason.AGENT_UNAVAILABLE)
    assert chat.active == "math"


def test_handoff_replaces_an_agent_that_is_away():
    """An agent that stands in hands over to an available one."""
    chat = talk().with_agent("math")
    chat.change_agent("math", enabled=False)
    chat.says()
    assert routed(chat.answers(HandOff("clerk"))) == ("clerk", RouteReason.SUPERVISOR_HANDOFF)
    assert chat.active == "clerk"


# Time-outs


def test_idle_session_goes_back_to_the_supervisor():
    """It says so, and the message is not lost on the agent that was there yesterday."""
    chat = talk(limits=Limits(idle_timeout_us=60 * SECOND_US)).with_agent("math")
    chat.wait(59)
    assert routed(chat.says()) == ("math", RouteReason.STICKY)
    chat.answers()
    chat.wait(60)
    assert chat.view().active is None
    assert routed(chat.says()) == ("supervisor", RouteReason.EXPIRED)
    assert "StickinessExpired" in chat.kinds()
    assert routed(chat.says()) == ("supervisor", RouteReason.NO_ACTIVE_AGENT)


def test_idle_session_loses_lock_and_stack_too():
    """A clear ends the wait: no lock without an active agent."""
    chat = talk(limits=Limits(idle_timeout_us=60 * SECOND_US)).with_agent("math")
    chat.says()
    chat.answers(FollowUp())
    chat.hands_to("buddy")
    chat.wait(60)
    assert routed(chat.says()) == ("supervisor", RouteReason.EXPIRED)
    assert chat.stack == []
    assert not chat.locked


def test_idle_timeout_does_not_run_while_a_turn_is_open():
    """The user does not wait by choice: it is the agent that takes its time."""
    limits = Limits(idle_timeout_us=60 * SECOND_US, turn_timeout_us=600 * SECOND_US)
    chat = talk(limits=limits).with_agent("math")
    chat.says()
    chat.wait(300)
    assert routed(chat.says()) == ("math", RouteReason.STICKY)
    chat.wait(600)
    assert routed(chat.says()) == ("supervisor", RouteReason.EXPIRED)


def test_agent_has_an_idle_timeout_of_its_own():
    """It replaces the registry's, even if it is longer."""
    limits = Limits(idle_timeout_us=60 * SECOND_US)
    chat = talk(Agent("math", idle_timeout_us=600 * SECOND_US), limits=limits).with_agent("math")
    chat.wait(599)
    assert routed(chat.says()) == ("math", RouteReason.STICKY)
    chat.answers()
    chat.wait(600)
    assert routed(chat.says()) == ("supervisor", RouteReason.EXPIRED)


def test_owner_of_the_session_is_not_idle_in_the_middle_of_a_task():
    """A pupil who comes back tomorrow finds the lesson where it was."""
    tutor = Agent("tutor", owns_session=True, on_complete=OnComplete.STAY)
    chat = talk(tutor, limits=Limits(idle_timeout_us=60 * SECOND_US)).with_agent("tutor")
    chat.wait(10_000)
    assert routed(chat.says()) == ("tutor", RouteReason.STICKY)
    chat.answers(Complete())
    assert chat.task_status == "completed"
    chat.wait(60)
    assert routed(chat.says()) == ("supervisor", RouteReason.EXPIRED)


def test_owner_that_is_interrupted_is_not_idle_either():
    """A pupil whose break with the motivator lasts a night is still in the lesson."""
    tutor = Agent("tutor", owns_session=True)
    buddy = Agent("buddy", receives_as_interlude=True, on_complete=OnComplete.RETURN)
    chat = talk(tutor, buddy, limits=Limits(idle_timeout_us=60 * SECOND_US)).with_agent("tutor")
    chat.says()
    chat.answers(HandOff("buddy"))
    chat.answers(FollowUp())
    chat.wait(10_000)
    assert routed(chat.says()) == ("buddy", RouteReason.FOLLOW_UP_LOCK)
    chat.answers(Complete())
    assert routed(chat.says()) == ("tutor", RouteReason.RETURNED)


def test_lock_timeout_unlocks_an_agent_that_sticks():
    """It keeps the conversation, and the message is an ordinary one."""
    chat = talk().with_agent("math")
    chat.says()
    chat.answers(FollowUp(timeout_us=30 * SECOND_US))
    chat.wait(29)
    assert routed(chat.says()) == ("math", RouteReason.FOLLOW_UP_LOCK)
    chat.wait(1)
    assert not chat.view().active.locked
    assert routed(chat.says()) == ("math", RouteReason.STICKY)
    assert "LockReleased" in chat.kinds()


def test_lock_timeout_ends_the_stay_of_an_agent_that_sticks_for_its_question_only():
    """It was there for the answer, which did not come."""
    chat = talk()
    chat.says()
    chat.hands_to("clerk", turn=chat.open)
    chat.answers(FollowUp(timeout_us=30 * SECOND_US))
    chat.wait(30)
    assert chat.view().active is None
    assert routed(chat.says()) == ("supervisor", RouteReason.EXPIRED)


def test_lock_timeout_of_an_interlude_returns():
    """It leaves as by proceed: the interrupted agent has the conversation again."""
    short = Agent("short", receives_as_interlude=True, sticks=Sticks.FOLLOW_UP)
    chat = talk(MATH, short).with_agent("math")
    chat.says()
    chat.answers(HandOff("short"))
    chat.answers(FollowUp(timeout_us=30 * SECOND_US))
    assert chat.stack == ["math"]
    chat.wait(30)
    assert routed(chat.says()) == ("math", RouteReason.RETURNED)
    assert chat.stack == []


def test_lock_timeouts_of_interrupted_agents_count_when_they_return():
    """Who gets the conversation back after its own question has lapsed leaves as well."""
    first = Agent("first", sticks=Sticks.FOLLOW_UP)
    second = Agent("second", receives_as_interlude=True, sticks=Sticks.FOLLOW_UP)
    chat = talk(first, second)
    chat.says()
    chat.hands_to("first", turn=chat.open)
    chat.answers(FollowUp(timeout_us=30 * SECOND_US))
    chat.says()
    chat.answers(HandOff("second"))
    chat.answers(FollowUp(timeout_us=30 * SECOND_US))
    chat.wait(30)
    assert routed(chat.says()) == ("supervisor", RouteReason.EXPIRED)
    assert chat.active == ""


def test_lock_timeout_leaves_an_interrupted_agent_that_is_away_as_it_is():
    """It is kept with its lock, as any active agent that is away."""
    first = Agent("first", sticks=Sticks.FOLLOW_UP)
    second = Agent("second", receives_as_interlude=True, sticks=Sticks.FOLLOW_UP)
    chat = talk(first, second)
    chat.says()
    chat.hands_to("first", turn=chat.open)
    chat.answers(FollowUp(timeout_us=30 * SECOND_US))
    chat.says()
    chat.answers(HandOff("second"))
    chat.answers(FollowUp(timeout_us=30 * SECOND_US))
    chat.change_agent("first", enabled=False)
    chat.wait(30)
    assert routed(chat.says()) == ("supervisor", RouteReason.AGENT_UNAVAILABLE)
    assert chat.active == "first"
    assert chat.locked


def test_passed_timeouts_count_before_a_handoff_between_messages():
    """An agent that is no longer active cannot be interrupted."""
    chat = talk(limits=Limits(idle_timeout_us=60 * SECOND_US)).with_agent("math")
    chat.wait(60)
    chat.hands_to("buddy")
    assert chat.active == "buddy"
    assert chat.stack == []


def test_status_shows_passed_timeouts_and_writes_nothing():
    """Only the next message makes them so."""
    chat = talk(limits=Limits(idle_timeout_us=60 * SECOND_US)).with_agent("math")
    chat.wait(60)
    before = chat.state
    seen = chat.view()
    assert seen.active is None
    assert (seen.revision, seen.update_us) == (before.revision, before.update_us)
    assert chat.state is before
    reply = chat.says("/status").reply
    assert reply.variant == "none_active"
    assert chat.active == "math"


def test_clock_that_goes_back_does_not_make_time_run_backwards():
    """The session's last change is the earliest that now can be."""
    chat = talk(limits=Limits(idle_timeout_us=60 * SECOND_US)).with_agent("math")
    before_us = chat.state.update_us
    chat.wait(-3600)
    assert routed(chat.says()) == ("math", RouteReason.STICKY)
    assert chat.state.update_us == before_us


# Open turns


def test_oldest_turns_are_abandoned_when_too_many_are_open():
    """State stays bounded, and a late answer is still kept."""
    chat = talk(limits=Limits(open_turns=2)).with_agent("math")
    requests = [chat.says().dispatch.request_id for _ in range(3)]
    assert [turn.request_id for turn in chat.state.open_turns] == requests[1:]
    assert "TurnAbandoned" in chat.kinds()
    decision = chat.answers(Fail(), request=requests[0], text="late")
    assert decision.status is OutcomeStatus.STORED_ONLY
    assert decision.text == "late"


def test_lower_limit_after_a_reload_abandons_as_many_as_needed():
    """The next message brings the number down at once."""
    chat = talk().with_agent("math")
    for _ in range(5):
        chat.says()
    chat.registry = registry_of(MATH, limits=Limits(open_turns=2))
    chat.says()
    assert len(chat.state.open_turns) == 2


def test_turn_that_nobody_answers_is_closed_in_time():
    """Its answer is kept and moves nothing any more."""
    chat = talk(limits=Limits(turn_timeout_us=60 * SECOND_US)).with_agent("math")
    late = chat.says().dispatch.request_id
    chat.wait(60)
    decision = chat.answers(HandOff("clerk"), request=late, text="sorry")
    assert decision.status is OutcomeStatus.STORED_ONLY
    assert [e.cause for e in decision.events if isinstance(e, ev.TurnAbandoned)] == ["timeout"]
    assert chat.active == "math"


def test_turn_time_counts_from_the_last_dispatch():
    """Each agent in a chain has its own time."""
    chat = talk(limits=Limits(turn_timeout_us=60 * SECOND_US))
    chat.says()
    chat.wait(50)
    chat.answers(HandOff("math"))
    chat.wait(50)
    assert chat.answers(Proceed()).status is OutcomeStatus.APPLIED


def test_two_messages_at_once_are_both_applied():
    """The newer one counts; the older answer is kept for the history."""
    chat = talk().with_agent("math")
    first = chat.says("one").dispatch.request_id
    second = chat.says("two").dispatch.request_id
    assert chat.answers(FollowUp(), request=first).status is OutcomeStatus.STORED_ONLY
    assert not chat.locked
    assert chat.answers(FollowUp(), request=second).status is OutcomeStatus.APPLIED
    assert chat.locked


# Double text


def test_second_message_is_refused_where_the_registry_takes_one_at_a_time():
    """It may be sent again once the first is answered."""
    chat = talk(double_text_rejects=True)
    request = chat.says().dispatch.request_id
    before = chat.state
    with pytest.raises(RoutingError) as refusal:
        chat.says("me again")
    assert refusal.value.reason is Reason.TURN_OPEN
    assert {
        "request_id": request,
        "agent_id": "supervisor",
    }.items() <= refusal.value.metadata.items()
    assert chat.state is before
    chat.answers()
    assert chat.says("me again").dispatch is not None


def test_commands_pass_while_a_turn_is_open():
    """They are how one gets out of it."""
    chat = talk(double_text_rejects=True).with_agent("math")
    chat.says()
    assert chat.says("/status").reply is not None
    assert routed(chat.says("/agent clerk and now")) == ("clerk", RouteReason.USER_SELECTED)
    assert routed(chat.says("/supervisor and now")) == ("supervisor", RouteReason.COMMAND)


def test_literal_text_is_no_command_where_a_turn_is_open():
    """It is a second message like any other."""
    chat = talk(double_text_rejects=True)
    chat.says()
    with pytest.raises(RoutingError) as refusal:
        chat.says("/status", literal_text=True)
    assert refusal.value.reason is Reason.TURN_OPEN


@pytest.mark.parametrize("how", ["cleared", "timed out", "moved away"])
def test_message_is_taken_once_the_open_turn_can_move_nothing(how):
    """An overtaken turn blocks no message."""
    chat = talk(double_text_rejects=True, limits=Limits(turn_timeout_us=60 * SECOND_US))
    chat.with_agent("math")
    chat.says()
    if how == "cleared":
        chat.clears()
    elif how == "timed out":
        chat.wait(60)
    else:
        chat.hands_to("clerk", open_turn=TurnFate.LEAVE)
    assert chat.says().dispatch is not None


# Tasks


def test_messages_join_the_open_task():
    """One task is open at a time, and every answer names it."""
    chat = talk()
    first = chat.says().task_id
    assert first
    assert chat.says().task_id == first
    assert chat.says(task_id=first).task_id == first
    assert chat.says("/help").task_id == first


def test_next_task_begins_when_the_last_is_closed():
    """The message after a completed task is about something new."""
    chat = talk()
    first = chat.says().task_id
    chat.answers(Complete())
    assert chat.task_status == "completed"
    second = chat.says().task_id
    assert second != first
    assert chat.task_status == "running"


def test_task_is_made_under_the_id_that_the_caller_names():
    """Clients mint the ids of their tasks."""
    chat = talk()
    task_id = chat.fresh_id()
    assert chat.says(task_id=task_id).dispatch.task_id == task_id


def test_second_task_is_refused_while_one_is_open():
    """The refusal names both, so that the caller can end the first."""
    chat = talk()
    first = chat.says().task_id
    other = chat.fresh_id()
    with pytest.raises(RoutingError) as refusal:
        chat.says(task_id=other)
    assert refusal.value.reason is Reason.TASK_OPEN
    assert {"open_task_id": first, "task_id": other}.items() <= refusal.value.metadata.items()


@pytest.mark.parametrize("known", [False, True])
def test_closed_task_takes_no_more_messages(known):
    """This holds for the latest task and for one that only the store has, with another one open."""
    chat = talk()
    first = chat.says().task_id
    chat.answers(Complete())
    if known:
        chat.says()
    with pytest.raises(RoutingError) as refusal:
        chat.says(task_id=first, known_task_status="completed" if known else "")
    assert refusal.value.reason is Reason.TASK_CLOSED
    assert {"task_id": first, "status": "completed"}.items() <= refusal.value.metadata.items()


def test_task_past_its_time_is_cancelled_at_the_next_touch():
    """And the message begins another."""
    chat = talk()
    first = chat.says(expire_s=60).task_id
    chat.answers()
    chat.wait(60)
    assert chat.view().open_task is None
    assert chat.says().task_id != first
    assert any(isinstance(e, ev.TaskCancelled) and e.cause == "expired" for e in chat.last.events)


def test_message_may_put_off_the_end_of_its_task():
    """The latest time that was given counts."""
    chat = talk()
    first = chat.says(expire_s=60).task_id
    chat.wait(50)
    chat.says(expire_s=60)
    chat.wait(50)
    assert chat.says().task_id == first


def test_task_time_in_the_past_is_refused():
    """A task that is over before it begins is a mistake of the caller's."""
    with pytest.raises(RoutingError) as refusal:
        talk().says(expire_s=-1)
    assert refusal.value.reason is Reason.INVALID_FIELD
    assert refusal.value.violations[0].subject == "task_expire_time"


def test_refused_message_changes_nothing():
    """Even a timeout that was due before it has no effect."""
    limits = Limits(idle_timeout_us=60 * SECOND_US)
    chat = talk(limits=limits).with_agent("math")
    before = chat.state
    chat.wait(60)
    with pytest.raises(RoutingError):
        chat.says("/supervisor go on", task_id=chat.fresh_id())
    assert chat.state is before


# Order of the rules


def test_stickiness_off_comes_before_an_agent_that_is_away():
    """The first rule that applies names the reason."""
    chat = talk().with_agent("math")
    chat.drop_agent("math")
    chat.stickiness = False
    assert routed(chat.says())[1] is RouteReason.STICKINESS_DISABLED


def test_return_comes_before_the_lock_that_came_with_it():
    """The message after an interlude says that the agent is back, and that it waits."""
    chat = talk().with_agent("math")
    chat.says()
    chat.answers(FollowUp())
    chat.says()
    chat.answers(HandOff("buddy"))
    chat.answers(Proceed())
    chat.says()
    chat.answers(Complete())
    decision = chat.says()
    assert routed(decision) == ("math", RouteReason.RETURNED)
    assert decision.dispatch.locked
    assert routed(chat.says())[1] is RouteReason.FOLLOW_UP_LOCK


def test_command_comes_before_everything():
    """Also while stickiness is off and the agent is away."""
    chat = talk().with_agent("math")
    chat.drop_agent("math")
    chat.stickiness = False
    assert routed(chat.says("/supervisor help me"))[1] is RouteReason.COMMAND


def test_interlude_between_messages_keeps_the_lock_in_its_frame():
    """An operator who steps in does not take the question off the table."""
    chat = talk().with_agent("math")
    chat.says()
    chat.answers(FollowUp(timeout_us=SECOND_US * 1000))
    chat.hands_to("clerk", mode=HandoffMode.INTERLUDE, initiator=Initiator.OPERATOR)
    (frame,) = chat.state.stack
    assert frame.locked
    assert frame.lock_expire_us is not None
    assert routed(chat.says()) == ("clerk", RouteReason.STICKY)


# Reloads that change who is home


@pytest.mark.parametrize("interrupted", [False, True])
def test_agent_that_a_reload_makes_the_supervisor_is_no_longer_active(interrupted):
    """It gets the messages as the supervisor; it has no lock and no frame on the stack."""
    chat = Conversation(registry_of(MATH, CLERK, BUDDY, home="clerk"))
    chat.says()
    chat.answers(FollowUp())
    assert chat.active == "clerk"
    if interrupted:
        chat.hands_to("buddy")
        assert chat.stack == ["clerk"]
    supervisor = Agent("clerk", kind=AgentKind.SUPERVISOR)
    chat.reload(registry_of(supervisor, MATH, BUDDY))
    if interrupted:
        assert routed(chat.says()) == ("buddy", RouteReason.STICKY)
        chat.answers(Complete())
        assert (chat.active, chat.stack) == ("", [])
        assert routed(chat.says()) == ("clerk", RouteReason.NO_ACTIVE_AGENT)
    else:
        assert routed(chat.says()) == ("clerk", RouteReason.AGENT_UNAVAILABLE)
        assert chat.answers(HandOff("buddy")).handoff.mode is HandoffMode.TRANSFER
        assert (chat.active, chat.stack) == ("buddy", [])
