"""Interludes: who is interrupted, what is kept for it, and how the conversation goes back."""

import pytest

from routing_service.core import events as ev
from routing_service.core.commands import Complete, FollowUp, HandOff, Proceed
from routing_service.core.registry import SECOND_US, Agent, Limits, OnComplete, Sticks
from routing_service.core.session import Tenure
from routing_service.core.vocabulary import HandoffMode, Initiator, OutcomeStatus, RouteReason
from tests.simulation.conversation import Conversation, registry_of

INTERLUDE, TRANSFER, RETURN = HandoffMode.INTERLUDE, HandoffMode.TRANSFER, HandoffMode.RETURN
MATH = Agent("math")
BUDDY = Agent("buddy", receives_as_interlude=True, on_complete=OnComplete.RETURN)
OTHER = Agent("other")
AGENTS = (
    MATH,
    BUDDY,
    OTHER,
    Agent("stays", on_complete=OnComplete.STAY),
    Agent("brief", sticks=Sticks.FOLLOW_UP),
    Agent("guest", sticks=Sticks.NEVER),
    Agent("twice", turns_max=2),
    Agent("hops", on_complete=OnComplete.HOP, on_complete_agent_id="other"),
)


def turn_of_math(**settings):
    """Return a conversation in which math is active and has a message."""
    chat = Conversation(registry_of(*AGENTS, **settings)).with_agent("math")
    chat.says()
    return chat


def interlude_with(agent_id, *, in_turn=False, asked=False, **settings):
    """Return a conversation in which an agent has interrupted math and has a message.

    in_turn: it interrupted in this very turn. asked: math had asked the user something.
    """
    chat = turn_of_math(**settings)
    if asked:
        chat.answers(FollowUp(timeout_us=3600 * SECOND_US))
        chat.says()
    chat.answers(HandOff(agent_id, mode=INTERLUDE))
    assert (chat.active, chat.stack) == (agent_id, ["math"])
    if not in_turn:
        chat.answers(FollowUp())
        if chat.active != agent_id:
            raise AssertionError("use in_turn for agents that do not stay")
        chat.says()
    return chat


# Modes


def test_transfer_empties_the_stack():
    """The interrupted agents leave the stack."""
    chat = interlude_with("buddy", in_turn=True)
    decision = chat.answers(HandOff("other"))
    assert decision.handoff.mode is TRANSFER
    assert (chat.active, chat.stack) == ("other", [])


def test_interlude_pushes_whom_it_interrupts_with_all_that_is_its():
    """The frame has the lock with its time, the turn of its entry, and its number of turns."""
    chat = turn_of_math()
    chat.answers(FollowUp(timeout_us=3600 * SECOND_US))
    chat.says()
    interrupted = chat.state.active
    assert interrupted.locked
    chat.answers(HandOff("other", mode=INTERLUDE))
    assert chat.state.stack == (interrupted,)
    assert chat.state.active == Tenure("other", entered_turn=chat.state.newest_turn)


@pytest.mark.parametrize("in_turn", [True, False])
def test_target_that_receives_as_interlude_interrupts_whoever_hands_to_it(in_turn):
    """The agent that hands over need not know."""
    chat = turn_of_math()
    chat.hands_to("buddy", turn=chat.open if in_turn else "")
    assert (chat.active, chat.stack) == ("buddy", ["math"])


def test_interludes_nest():
    """Each one goes back to the one before."""
    chat = interlude_with("buddy")
    chat.answers(HandOff("other", mode=INTERLUDE))
    assert (chat.active, chat.stack) == ("other", ["math", "buddy"])
    chat.answers()
    for active, stack in (("buddy", ["math"]), ("math", []), ("", [])):
        chat.says()
        chat.answers(Complete())
        assert (chat.active, chat.stack) == (active, stack)


@pytest.mark.parametrize("in_turn", [True, False])
def test_supervisor_is_never_interrupted(in_turn):
    """Its interlude is a transfer: no agent was active."""
    chat = Conversation(registry_of(*AGENTS))
    chat.says()
    turn = chat.open if in_turn else ""
    decision = chat.hands_to("buddy", turn=turn, mode=INTERLUDE)
    assert decision.handoff.mode is TRANSFER
    assert (chat.active, chat.stack) == ("buddy", [])


def test_supervisor_that_hands_over_between_messages_interrupts_nobody():
    """It takes the conversation from the active agent for good."""
    chat = Conversation(registry_of(*AGENTS)).with_agent("math")
    decision = chat.hands_to("buddy", by="supervisor", mode=INTERLUDE)
    assert decision.handoff.mode is TRANSFER
    assert chat.stack == []


@pytest.mark.parametrize("initiator", [Initiator.USER, Initiator.OPERATOR, Initiator.AGENT])
def test_interlude_may_be_asked_for_by_anyone_else(initiator):
    """It is the active agent that is interrupted."""
    chat = Conversation(registry_of(MATH, Agent("other", user_selectable=True))).with_agent("math")
    chat.hands_to("other", mode=INTERLUDE, initiator=initiator)
    assert (chat.active, chat.stack) == ("other", ["math"])


def test_default_agent_of_a_swarm_may_be_interrupted():
    """It has the conversation though it is not active, and gets it back."""
    chat = Conversation(registry_of(*AGENTS, home="math"))
    chat.says()
    chat.answers(HandOff("buddy"))
    assert (chat.active, chat.stack) == ("buddy", ["math"])
    chat.answers()
    chat.says()
    chat.answers(Complete())
    assert (chat.active, chat.stack) == ("math", [])
    assert chat.says().dispatch.reason is RouteReason.RETURNED


# Completion


@pytest.mark.parametrize("agent", ["buddy", "other", "stays"])
def test_every_completion_with_frames_returns(agent):
    """This includes stay and release; the task stays open, because an interlude cannot close it."""
    chat = interlude_with(agent)
    decision = chat.answers(Complete())
    assert decision.status is OutcomeStatus.APPLIED
    assert decision.dispatch is None
    assert (chat.active, chat.stack, chat.task_status) == ("math", [], "running")


def test_return_brings_the_lock_back_and_the_next_message_says_so():
    """The question that was interrupted still wants its answer."""
    chat = interlude_with("buddy", asked=True)
    expire_us = chat.state.stack[0].lock_expire_us
    chat.answers(Complete())
    assert (chat.active, chat.locked) == ("math", True)
    assert chat.state.active.lock_expire_us == expire_us
    decision = chat.says()
    assert (decision.dispatch.agent_id, decision.dispatch.reason) == ("math", RouteReason.RETURNED)
    assert decision.dispatch.locked
    assert chat.says().dispatch.reason is RouteReason.FOLLOW_UP_LOCK


def test_return_is_told_as_a_handoff():
    """Listeners see who has the conversation again."""
    chat = interlude_with("buddy")
    chat.answers(Complete(message="Cheer up!"))
    (handed_off,) = (e for e in chat.last.events if isinstance(e, ev.AgentHandedOff))
    assert (handed_off.from_agent, handed_off.to_agent) == ("buddy", "math")
    assert (handed_off.mode, handed_off.initiator) == (RETURN, Initiator.COMPLETION)
    assert handed_off.message == "Cheer up!"
    assert not handed_off.dispatches


def test_return_within_the_turn_of_the_interlude_goes_on_with_the_message():
    """The user's text was for the interrupted agent, which now gets it: a hop."""
    chat = interlude_with("buddy", in_turn=True, asked=True)
    hops = chat.state.find_turn(chat.open).hops
    decision = chat.answers(Complete(message="Cheer up!"))
    assert decision.status is OutcomeStatus.APPLIED
    assert (decision.dispatch.agent_id, decision.dispatch.reason) == ("math", RouteReason.RETURNED)
    assert decision.dispatch.handoff.message == "Cheer up!"
    assert decision.dispatch.locked
    assert chat.state.find_turn(chat.open).hops == hops + 1
    chat.answers(Proceed())
    assert not chat.locked
    assert chat.says().dispatch.reason is RouteReason.STICKY


def test_return_at_the_hop_limit_waits_for_the_next_message():
    """Nothing is lost: the agent is back, only later."""
    chat = turn_of_math(limits=Limits(hops_per_message=1))
    chat.answers(HandOff("buddy"))
    decision = chat.answers(Complete(), text="Cheer up!")
    assert (decision.status, decision.text) == (OutcomeStatus.DEGRADED, "Cheer up!")
    assert decision.dispatch is None
    assert [v.rule for v in decision.verdicts if not v.allowed] == ["hop_limit"]
    assert (chat.active, chat.stack) == ("math", [])
    assert chat.says().dispatch.reason is RouteReason.RETURNED


def test_return_to_an_agent_that_is_away_waits_for_it():
    """It has the conversation again, and gets it when it is there."""
    for in_turn in (True, False):
        chat = interlude_with("buddy", in_turn=in_turn)
        chat.change_agent("math", enabled=False)
        decision = chat.answers(Complete())
        expected = OutcomeStatus.DEGRADED if in_turn else OutcomeStatus.APPLIED
        assert (decision.status, decision.dispatch) == (expected, None)
        assert chat.active == "math"
        assert chat.says().dispatch.reason is RouteReason.AGENT_UNAVAILABLE
        chat.change_agent("math", enabled=True)
        assert chat.says().dispatch.reason is RouteReason.RETURNED


def test_completion_hop_keeps_the_frames_and_not_the_completed_agent():
    """The next agent of the interlude gives back in the end."""
    chat = interlude_with("hops", asked=True)
    decision = chat.answers(Complete())
    assert (decision.dispatch.agent_id, decision.dispatch.reason) == (
        "other",
        RouteReason.TASK_COMPLETED,
    )
    assert (chat.active, chat.stack, chat.task_status) == ("other", ["math"], "running")
    chat.answers()
    chat.says()
    chat.answers(Complete())
    assert (chat.active, chat.locked) == ("math", True)


def test_task_is_completed_by_the_one_that_was_interrupted():
    """Only an empty stack lets it."""
    chat = interlude_with("buddy")
    chat.answers(Complete())
    chat.says()
    chat.answers(Complete())
    assert (chat.active, chat.task_status) == ("", "completed")


# Handing back


def test_handoff_to_the_interrupted_agent_is_the_return():
    """Dispatched at once, in any mode that was asked for, with the lock of the frame."""
    for mode in (TRANSFER, INTERLUDE):
        chat = interlude_with("buddy", asked=True)
        decision = chat.answers(HandOff("math", mode=mode))
        assert decision.handoff.mode is RETURN
        assert decision.dispatch.reason is RouteReason.RETURNED
        assert decision.dispatch.locked
        assert (chat.active, chat.stack) == ("math", [])


def test_framework_hands_back_inside_its_run():
    """By itself, under the request that it has."""
    chat = interlude_with("buddy", in_turn=True, asked=True)
    request = chat.open
    chat.hands_to("math", turn=request, by="buddy")
    assert (chat.active, chat.locked, chat.stack) == ("math", True, [])
    assert chat.answers(Proceed(), request=request).status is OutcomeStatus.APPLIED
    assert not chat.locked


def test_agent_hands_back_between_messages():
    """The next message says that the agent is back."""
    chat = interlude_with("buddy")
    chat.answers()
    chat.hands_to("math", by="buddy")
    assert chat.says().dispatch.reason is RouteReason.RETURNED


def test_handoff_to_an_agent_deeper_in_the_stack_is_a_transfer():
    """Only the one that was interrupted last can be returned to."""
    chat = interlude_with("buddy")
    chat.answers(HandOff("other", mode=INTERLUDE))
    decision = chat.answers(HandOff("math"))
    assert decision.handoff.mode is TRANSFER
    assert (chat.active, chat.stack, chat.locked) == ("math", [], False)


# Proceed


@pytest.mark.parametrize("agent", ["brief", "guest"])
@pytest.mark.parametrize("in_turn", [True, False])
def test_agent_that_does_not_stay_returns_with_its_answer(agent, in_turn):
    """With frames on the stack, leaving is returning."""
    if agent == "guest" and not in_turn:
        chat = interlude_with("brief")
        chat.change_agent("brief", sticks=Sticks.NEVER)
    else:
        chat = interlude_with(agent, in_turn=in_turn)
    decision = chat.answers(Proceed())
    assert (chat.active, chat.stack) == ("math", [])
    assert (decision.dispatch is not None) == in_turn


def test_agent_that_stays_keeps_the_interlude_going():
    """A proceed does not end it."""
    chat = interlude_with("buddy")
    for _ in range(3):
        chat.answers(Proceed())
        assert (chat.active, chat.stack) == ("buddy", ["math"])
        chat.says()


def test_interlude_returns_by_itself_after_its_turns():
    """Follow-ups count, and only a proceed returns: a question is not cut off."""
    chat = interlude_with("twice", in_turn=True)
    chat.answers(Proceed())
    assert chat.active == "twice"
    chat.says()
    chat.answers(Proceed())
    assert (chat.active, chat.stack) == ("math", [])

    chat = interlude_with("twice", in_turn=True)
    for _ in range(3):
        chat.answers(FollowUp())
        assert chat.active == "twice"
        chat.says()
    chat.answers(Proceed())
    assert chat.active == "math"


def test_turns_are_counted_for_each_stay():
    """The next interlude begins at none; the interrupted agent's count is kept in its frame."""
    chat = interlude_with("twice", in_turn=True)
    chat.answers(Proceed())
    chat.says()
    chat.answers(Proceed())
    chat.says()
    chat.answers(HandOff("twice", mode=INTERLUDE))
    assert chat.state.active.turns_taken == 0
    assert chat.state.stack[0].turns_taken == 1


def test_limit_of_turns_is_for_interludes():
    """An agent that interrupted no other has none to return to."""
    chat = Conversation(registry_of(*AGENTS)).with_agent("twice")
    for _ in range(4):
        chat.says()
        chat.answers(Proceed())
        assert chat.active == "twice"


# Leaving altogether


@pytest.mark.parametrize("how", ["/supervisor", "/reset", "clear", "supervisor"])
def test_going_home_empties_the_stack(how):
    """Without an active agent there are no frames."""
    chat = interlude_with("buddy")
    if how == "clear":
        chat.clears()
    elif how == "supervisor":
        chat.answers(HandOff("supervisor"))
    else:
        chat.says(how)
    assert (chat.active, chat.stack) == ("", [])
