"""Approvals and consults: which turns wait, which continue, and what does not change."""

import pytest

from routing_service.core import events as ev
from routing_service.core.commands import (
    AskApproval,
    Complete,
    Fail,
    FollowUp,
    HandOff,
    Proceed,
)
from routing_service.core.errors import Reason, RoutingError
from routing_service.core.refusals import HandoffRefused
from routing_service.core.registry import SECOND_US, Agent, Limits, Sticks
from routing_service.core.vocabulary import (
    ApprovalDecision,
    HandoffMode,
    Initiator,
    OutcomeStatus,
    RouteReason,
)
from tests.simulation.conversation import Conversation, registry_of

CONSULT = HandoffMode.CONSULT
AGENTS = (
    Agent("payer", user_selectable=True),
    Agent("brief", sticks=Sticks.FOLLOW_UP),
    Agent("expert", markers=True, user_selectable=True),
    Agent("other"),
)


def turn_of(agent_id="payer", **settings):
    """Return a conversation in which an agent is active and has a message."""
    chat = Conversation(registry_of(*AGENTS, **settings)).with_agent("payer")
    if agent_id != "payer":
        chat.hands_to(agent_id)
    chat.says("pay it")
    return chat


def paused(agent_id="payer", **settings):
    """Return a conversation in which an agent waits for an approval."""
    chat = turn_of(agent_id, **settings)
    assert chat.answers(AskApproval("pay 10?"), text="One moment.").status is OutcomeStatus.APPLIED
    assert chat.task_status == "paused"
    return chat


def ownership(chat):
    """Return all that an outcome might move."""
    return chat.state.active, chat.state.stack, chat.state.epoch, chat.state.task.status


# While the task is paused


def test_messages_go_to_the_agent_that_waits_for_an_approval():
    """Even if another agent is active: the paused agent knows what it waits for."""
    chat = paused()
    decision = chat.says("well?")
    assert decision.dispatch.agent_id == "payer"
    assert decision.dispatch.reason is RouteReason.AWAITING_APPROVAL
    chat.answers()
    chat = Conversation(registry_of(*AGENTS))
    chat.says()
    chat.answers(AskApproval())
    decision = chat.says("well?")
    assert decision.dispatch.agent_id == "supervisor"
    assert decision.dispatch.reason is RouteReason.AWAITING_APPROVAL


@pytest.mark.parametrize(
    "outcome",
    [Proceed(), Fail(), FollowUp(), Complete(), AskApproval()],
    ids=lambda o: type(o).__name__,
)
@pytest.mark.parametrize("agent", ["payer", "brief"])
def test_no_outcome_moves_anything_while_the_task_is_paused(outcome, agent):
    """The task included; what would have moved it is degraded."""
    chat = paused(agent)
    request = chat.state.paused.request_id
    chat.says("well?")
    before = ownership(chat)
    decision = chat.answers(outcome, text="still waiting")
    is_plain = isinstance(outcome, Proceed | Fail)
    assert decision.status is (OutcomeStatus.APPLIED if is_plain else OutcomeStatus.DEGRADED)
    assert decision.text == "still waiting"
    assert ownership(chat) == before
    assert chat.state.paused.request_id == request


@pytest.mark.parametrize("target", ["expert", "supervisor"])
@pytest.mark.parametrize("mode", [HandoffMode.TRANSFER, CONSULT])
def test_handoffs_are_refused_while_the_task_is_paused(target, mode):
    """Home too, inside a turn."""
    chat = paused()
    chat.says("well?")
    with pytest.raises(HandoffRefused) as refusal:
        chat.answers(HandOff(target, mode=mode))
    assert "approval_pending" in [v.subject for v in refusal.value.violations]
    with pytest.raises(HandoffRefused):
        chat.hands_to(target, turn=chat.open)


def test_ways_out_of_a_pause():
    """Going home, an operator's handoff, and clearing take the pending approval away."""
    for way_out in (
        lambda chat: chat.hands_to("supervisor"),
        lambda chat: chat.hands_to("expert", initiator=Initiator.OPERATOR),
        lambda chat: chat.says("/supervisor"),
        lambda chat: chat.clears(),
    ):
        chat = paused()
        way_out(chat)
        assert (chat.state.paused, chat.task_status) == (None, "running")
    chat = paused()
    chat.says("/reset")
    assert (chat.state.paused, chat.task_status) == (None, "cancelled")


def test_no_timer_ends_a_pause_but_the_tasks_own():
    """A person may sleep over it."""
    limits = Limits(idle_timeout_us=60 * SECOND_US, turn_timeout_us=60 * SECOND_US)
    chat = paused(limits=limits)
    chat.wait(10_000)
    assert chat.says().dispatch.reason is RouteReason.AWAITING_APPROVAL
    chat = turn_of()
    chat.says(expire_s=60)
    chat.answers(AskApproval())
    chat.wait(60)
    assert chat.says().dispatch.reason is RouteReason.STICKY


def test_approval_for_a_closed_task_is_degraded_in_answer_and_history_alike():
    """There is nothing to pause; the text is kept."""
    chat = Conversation(registry_of(*AGENTS))
    chat.says(expire_s=5)
    chat.wait(5)
    decision = chat.answers(AskApproval(), text="pay?")
    assert (decision.status, decision.text) == (OutcomeStatus.DEGRADED, "pay?")
    (answer,) = (e for e in decision.events if isinstance(e, ev.TurnCompleted))
    assert answer.status is OutcomeStatus.DEGRADED


# The decision


@pytest.mark.parametrize("decided", ApprovalDecision)
def test_either_decision_brings_the_paused_agent_back(decided):
    """With a request of its own, which is the newest turn."""
    chat = paused()
    waiting = chat.state.paused.request_id
    late = chat.says("well?").dispatch.request_id
    decision = chat.resumes(decided)
    dispatch = decision.dispatch
    assert (dispatch.agent_id, dispatch.reason) == ("payer", RouteReason.TASK_RESUMED)
    assert dispatch.resume.decision is decided
    assert dispatch.request_id not in (waiting, late)
    assert (chat.state.paused, chat.task_status) == (None, "running")
    assert chat.answers(FollowUp(), request=late).status is OutcomeStatus.STORED_ONLY
    assert chat.answers(FollowUp(), request=dispatch.request_id).status is OutcomeStatus.APPLIED
    assert chat.locked


def test_only_the_paused_request_can_be_decided_and_only_once():
    """A second decision finds nothing that waits."""
    chat = paused()
    waiting = chat.state.paused.request_id
    with pytest.raises(RoutingError) as error:
        chat.resumes(request=chat.fresh_id())
    assert error.value.reason is Reason.REQUEST_NOT_OPEN
    chat.resumes()
    with pytest.raises(RoutingError) as error:
        chat.resumes(request=waiting)
    assert error.value.reason is Reason.TASK_NOT_PAUSED


def test_paused_agent_that_is_away_stays_paused():
    """The decision can be made when it is back."""
    chat = paused()
    chat.change_agent("payer", enabled=False)
    with pytest.raises(RoutingError) as error:
        chat.resumes()
    assert error.value.reason is Reason.AGENT_UNAVAILABLE
    assert chat.task_status == "paused"
    assert chat.says().dispatch.reason is RouteReason.AGENT_UNAVAILABLE
    chat.change_agent("payer", enabled=True)
    assert chat.resumes().dispatch.agent_id == "payer"


# Consults


def consulting():
    """Return a conversation in which the payer has asked the expert something."""
    chat = turn_of()
    chat.answers(FollowUp())
    chat.says("yes")
    decision = chat.answers(HandOff("expert", mode=CONSULT, message="Is this deductible?"))
    assert decision.dispatch.agent_id == "expert"
    assert decision.dispatch.reason is RouteReason.CONSULTED
    assert decision.dispatch.consult.asker == "payer"
    return chat


@pytest.mark.parametrize("outcome", [Proceed(), Fail()], ids=["answer", "failure"])
def test_answer_goes_to_the_agent_that_asked_and_the_user_never_left_it(outcome):
    """Its lock stays, and the user sees no word of the other's."""
    chat = turn_of()
    chat.answers(FollowUp())
    chat.says("yes")
    before = chat.state.active, chat.state.stack, chat.state.epoch
    hops = chat.state.find_turn(chat.open).hops
    chat.answers(HandOff("expert", mode=CONSULT, message="Is this deductible?"))
    decision = chat.answers(outcome, text="Only half of it.")
    assert (chat.state.active, chat.state.stack, chat.state.epoch) == before
    dispatch = decision.dispatch
    assert (dispatch.agent_id, dispatch.reason) == ("payer", RouteReason.CONSULTED)
    told = "" if isinstance(outcome, Fail) else "Only half of it."
    assert dispatch.consult.answer == told
    assert decision.text == ""
    assert chat.state.find_turn(dispatch.request_id).hops == hops + 1
    assert chat.answers(Proceed()).status is OutcomeStatus.APPLIED
    assert (chat.active, chat.locked, chat.task_status) == ("payer", False, "running")


@pytest.mark.parametrize(
    "outcome", [FollowUp(), Complete(), AskApproval()], ids=lambda o: type(o).__name__
)
def test_consulted_agent_can_only_answer(outcome):
    """Anything more is degraded to that."""
    chat = consulting()
    decision = chat.answers(outcome, text="Only half of it.")
    assert decision.status is OutcomeStatus.DEGRADED
    assert decision.dispatch.consult.answer == "Only half of it."
    assert (chat.active, chat.task_status) == ("payer", "running")


@pytest.mark.parametrize("target", ["other", "payer", "supervisor"])
@pytest.mark.parametrize("mode", [HandoffMode.TRANSFER, HandoffMode.INTERLUDE, CONSULT])
def test_consulted_agent_hands_over_to_nobody(target, mode):
    """To the home agent too, by SetActiveAgent, and by a marker."""
    chat = consulting()
    with pytest.raises(HandoffRefused):
        chat.answers(HandOff(target, mode=mode))
    if mode is not CONSULT:
        with pytest.raises(HandoffRefused):
            chat.hands_to(target, turn=chat.open, mode=mode)
    decision = chat.answers(text=f"Half. [HANDOFF_TO:{target}]")
    assert decision.status is OutcomeStatus.DEGRADED
    assert decision.dispatch.consult.answer == "Half."


def test_message_of_the_user_overtakes_a_consult():
    """The answer is kept, for the agent that asked rather than for the user to see."""
    chat = consulting()
    asked = chat.open
    assert chat.says("forget it").dispatch.agent_id == "payer"
    decision = chat.answers(request=asked, by="expert", text="Only half of it.")
    assert (decision.status, decision.dispatch) == (OutcomeStatus.STORED_ONLY, None)
    assert decision.text == ""
    (answer,) = (e for e in decision.events if isinstance(e, ev.TurnCompleted))
    assert answer.is_consult
    assert answer.text == "Only half of it."


def test_answer_for_an_agent_that_went_away_goes_nowhere():
    """It is kept, and the verdicts say why."""
    chat = consulting()
    chat.change_agent("payer", enabled=False)
    decision = chat.answers(text="Only half of it.")
    assert (decision.status, decision.dispatch) == (OutcomeStatus.DEGRADED, None)
    assert [v.rule for v in decision.verdicts if not v.allowed] == ["enabled"]
    assert chat.state.open_turns == ()
