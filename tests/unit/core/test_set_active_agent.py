"""Handoffs that are asked for by themselves, and the way back."""

import uuid

import pytest

from routing_service.core import events as ev
from routing_service.core.commands import ClearActiveAgent, Complete, FollowUp, HandOff, Proceed
from routing_service.core.decide import decide
from routing_service.core.errors import Reason, RoutingError
from routing_service.core.refusals import HandoffRefused
from routing_service.core.registry import SECOND_US, Agent, Limits, Sticks
from routing_service.core.turn_ids import REVISION_BITS, child_request_id, revision_of_child
from routing_service.core.vocabulary import (
    ClearScope,
    Initiator,
    OutcomeStatus,
    RouteReason,
    TurnFate,
)
from tests.simulation.conversation import SESSION_ID, START_US, Conversation, registry_of, uuid7

AGENTS = (
    Agent("math"),
    Agent("brief", sticks=Sticks.FOLLOW_UP),
    Agent("buddy", receives_as_interlude=True),
    Agent("gold", requires=frozenset({"plan:gold"})),
)


def talk(**settings):
    """Return a conversation that has not begun."""
    return Conversation(registry_of(*AGENTS, **settings))


# SetActiveAgent


def test_first_handoff_makes_the_session():
    """A framework's handoff needs no message before it."""
    chat = talk()
    decision = chat.hands_to("math", by="supervisor")
    assert chat.kinds() == ["SessionStarted", "AgentHandedOff"]
    assert (chat.active, decision.agent_id, chat.state.revision) == ("math", "math", 1)
    assert chat.says().dispatch.reason is RouteReason.STICKY


def test_refused_first_handoff_makes_no_session():
    """A refusal writes nothing."""
    chat = talk()
    with pytest.raises(HandoffRefused):
        chat.hands_to("gold")
    assert chat.state is None
    with pytest.raises(RoutingError) as error:
        chat.hands_to("math", turn=chat.fresh_id())
    assert error.value.reason is Reason.UNKNOWN_REQUEST
    assert chat.state is None


def test_entitlements_that_come_with_a_handoff_are_kept():
    """They are what the next message is judged by."""
    chat = talk()
    chat.hands_to("gold", entitlements=("plan:gold",))
    assert chat.says().dispatch.agent_id == "gold"


def test_handoff_between_messages_says_who_is_next():
    """A turn that is left does not move, and what is under way is overtaken."""
    chat = talk().with_agent("math")
    request = chat.says().dispatch.request_id
    decision = chat.hands_to("brief", open_turn=TurnFate.LEAVE)
    assert decision.dispatch is None
    assert chat.state.find_turn(request).holder == "math"
    assert chat.answers(FollowUp(), request=request).status is OutcomeStatus.STORED_ONLY
    assert (chat.active, chat.locked) == ("brief", False)
    assert chat.says().dispatch.agent_id == "brief"


def test_handoff_in_a_turn_may_come_after_the_lock_has_lapsed():
    """The user answered in time; how long the agent then took does not count."""
    chat = talk()
    chat.says()
    chat.hands_to("brief", turn=chat.open)
    chat.answers(FollowUp(timeout_us=30 * SECOND_US))
    chat.wait(20).says("the answer")
    chat.wait(20)
    chat.hands_to("math", turn=chat.open, by="brief")
    assert chat.answers(Proceed()).status is OutcomeStatus.APPLIED
    assert chat.active == "math"


def test_handoff_in_a_turn_answers_with_the_turns_task():
    """As every mutating answer does."""
    chat = talk()
    task_id = chat.says().task_id
    assert chat.hands_to("math", turn=chat.open).task_id == task_id


def test_handoff_in_a_turn_moves_only_the_turn_while_stickiness_is_off():
    """The target holds and completes it; active agent and stack stay as stored."""
    chat = talk().with_agent("brief")
    chat.hands_to("math")
    chat.stickiness = False
    chat.says()
    chat.hands_to("buddy", turn=chat.open)
    assert chat.state.find_turn(chat.open).holder == "buddy"
    assert (chat.active, chat.stack) == ("math", [])
    assert chat.answers(HandOff("brief")).dispatch.agent_id == "brief"
    assert chat.answers(Complete()).status is OutcomeStatus.APPLIED
    assert (chat.active, chat.stack) == ("math", [])


def test_many_handoffs_by_an_operator_do_not_make_the_state_grow():
    """No limit of hops binds it, yet the state is bounded."""
    chat = talk()
    chat.says()
    for number in range(200):
        target = "math" if number % 2 else "brief"
        chat.hands_to(target, turn=chat.open, initiator=Initiator.OPERATOR)
    (turn,) = chat.state.open_turns
    assert turn.hops == 200
    assert len(turn.path) < 32
    with pytest.raises(HandoffRefused) as refusal:
        chat.hands_to("brief", turn=chat.open)
    assert {"hop_limit", "ping_pong"} <= {v.subject for v in refusal.value.violations}
    assert chat.answers(FollowUp()).status is OutcomeStatus.APPLIED
    assert chat.locked


# ClearActiveAgent


def test_clear_sends_the_next_message_home_and_keeps_the_task():
    """As /supervisor does, for programs."""
    chat = talk().with_agent("math")
    chat.says()
    chat.answers(FollowUp())
    chat.hands_to("buddy")
    decision = chat.clears()
    assert (decision.previous_agent, decision.agent_id) == ("buddy", "supervisor")
    assert (chat.active, chat.stack, chat.task_status) == ("", [], "running")
    assert chat.says().dispatch.reason is RouteReason.NO_ACTIVE_AGENT


@pytest.mark.parametrize("scope", ClearScope)
def test_clear_of_what_is_clear_writes_nothing(scope):
    """It succeeds, and names the agent that gets the next message."""
    chat = talk()
    chat.says()
    chat.answers(Complete())
    before = chat.state
    decision = chat.clears(scope)
    assert decision.events == ()
    assert (decision.previous_agent, decision.agent_id) == ("", "supervisor")
    assert chat.state is before


def test_clear_counts_while_a_turn_is_open():
    """A handoff in flight must not land after it."""
    chat = talk()
    request = chat.says().dispatch.request_id
    assert chat.clears().events
    assert chat.answers(HandOff("math"), request=request).status is OutcomeStatus.STORED_ONLY
    assert chat.active == ""


def test_clear_of_the_session_takes_task_and_turns():
    """As /reset does, for programs."""
    chat = talk().with_agent("math")
    request = chat.says().dispatch.request_id
    chat.clears(ClearScope.SESSION)
    assert (chat.active, chat.state.open_turns, chat.task_status) == ("", (), "cancelled")
    assert [e.cause for e in chat.last.events if isinstance(e, ev.TurnAbandoned)] == ["clear"]
    assert chat.answers(request=request).status is OutcomeStatus.STORED_ONLY


def test_clear_of_the_session_cancels_a_task_that_is_all_there_is():
    """No agent is active and no turn is open, but a task is."""
    chat = talk()
    chat.says()
    chat.answers()
    assert chat.clears().events == ()
    assert chat.clears(ClearScope.SESSION).events
    assert chat.task_status == "cancelled"


@pytest.mark.parametrize("scope", ClearScope)
def test_clear_of_an_unknown_session_is_not_found(scope):
    """Without a session there is nothing to clear."""
    command = ClearActiveAgent("request", scope)
    with pytest.raises(RoutingError) as error:
        decide(None, command, talk().registry, START_US, session_id=SESSION_ID)
    assert error.value.reason is Reason.UNKNOWN_SESSION


def test_reason_of_a_clear_is_kept():
    """Operators read it in the audit."""
    chat = talk().with_agent("math")
    chat.do(ClearActiveAgent(chat.fresh_id(), reason="complaint"))
    (cleared,) = (e for e in chat.last.events if isinstance(e, ev.AgentCleared))
    assert (cleared.agent_id, cleared.cause, cleared.reason) == ("math", "clear", "complaint")


def test_clear_closes_turns_that_have_timed_out():
    """Any change does."""
    chat = talk(limits=Limits(turn_timeout_us=60 * SECOND_US)).with_agent("math")
    chat.says()
    chat.wait(60).clears()
    assert chat.state.open_turns == ()


# Ids of requests that follow


@pytest.mark.parametrize("revision", [1, 2, 1000, 2**REVISION_BITS - 1])
def test_child_id_is_a_uuid7_that_names_its_revision(revision):
    """Callers check that ids are UUIDs, and sort by them."""
    seed = uuid7(12345)
    child = child_request_id(seed, revision)
    assert revision_of_child(child) == revision
    assert uuid.UUID(child).version == 7
    assert uuid.UUID(child).variant == uuid.RFC_4122
    assert child[:18] == seed[:18]


def test_other_ids_name_a_revision_that_is_only_a_guess():
    """The log then shows that no such request was dispatched."""
    assert revision_of_child(str(uuid.UUID(int=0))) == 0
    assert revision_of_child(str(uuid.UUID(int=2**128 - 1))) == 2**REVISION_BITS - 1
