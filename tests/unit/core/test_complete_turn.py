"""What an agent's answer moves: who may move anything, and each outcome."""

import itertools

import pytest

from routing_service.core import events as ev
from routing_service.core.commands import Complete, Fail, FollowUp, HandOff, Proceed
from routing_service.core.errors import Reason, RoutingError
from routing_service.core.refusals import HandoffRefused
from routing_service.core.registry import SECOND_US, Agent, AgentKind, Limits, OnComplete, Sticks
from routing_service.core.turn_ids import revision_of_child
from routing_service.core.vocabulary import (
    HandoffMode,
    Initiator,
    OutcomeKind,
    OutcomeStatus,
    RouteReason,
    TurnFate,
)
from tests.simulation.conversation import SUPERVISOR, Conversation, registry_of

AGENTS = (
    Agent("math"),
    Agent("brief", sticks=Sticks.FOLLOW_UP),
    Agent("guest", sticks=Sticks.NEVER),
    Agent("buddy", receives_as_interlude=True, on_complete=OnComplete.RETURN),
    Agent("stays", on_complete=OnComplete.STAY),
    Agent("returns", on_complete=OnComplete.RETURN),
    Agent(
        "lesson",
        on_complete=OnComplete.HOP,
        on_complete_agent_id="exam",
        on_complete_message={"en": "Great work!", "es": "¡Muy bien!"},
    ),
    Agent("exam"),
    Agent("other"),
)
APPLIED, STORED_ONLY, DEGRADED = (
    OutcomeStatus.APPLIED,
    OutcomeStatus.STORED_ONLY,
    OutcomeStatus.DEGRADED,
)
OUTCOMES = (Proceed(), FollowUp(), Complete(), HandOff("other"), HandOff("supervisor"), Fail())


def talk(**settings):
    """Return a conversation in which the supervisor has the user's first message."""
    chat = Conversation(registry_of(*AGENTS, **settings))
    chat.says()
    return chat


def turn_of(agent_id, **settings):
    """Return a conversation in which the agent is active and has a message."""
    chat = Conversation(registry_of(*AGENTS, **settings)).with_agent("math")
    if agent_id != "math":
        chat.hands_to(agent_id)
    chat.says()
    return chat


def ownership(chat):
    """Return all that an answer might move."""
    return chat.state.active, chat.state.stack, chat.state.epoch, chat.state.task.status


def causes(chat, kind):
    """Return the causes of the last decision's events of a kind."""
    return [event.cause for event in chat.last.events if isinstance(event, kind)]


# Who moves anything


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_answer_of_another_agent_is_kept_and_leaves_the_request_open(outcome):
    """The holder still answers it."""
    chat = turn_of("math")
    before = ownership(chat)
    decision = chat.answers(outcome, by="other", text="mine!")
    assert (decision.status, decision.text, decision.dispatch) == (STORED_ONLY, "mine!", None)
    assert ownership(chat) == before
    assert chat.answers(FollowUp()).status is APPLIED
    assert chat.locked


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("how", ["abandoned", "older epoch", "newer message", "reset", "cleared"])
def test_late_answer_is_kept_and_moves_nothing(outcome, how):
    """What happened since counts, not what the agent still believes."""
    chat = turn_of("math", limits=Limits(open_turns=2))
    late = chat.open
    if how == "abandoned":
        chat.says()
        chat.says()
    elif how == "older epoch":
        chat.hands_to("stays", open_turn=TurnFate.LEAVE)
    elif how == "newer message":
        chat.says()
    elif how == "reset":
        chat.says("/reset")
    else:
        chat.clears()
    before = ownership(chat)
    decision = chat.answers(outcome, request=late, by="math", text="late")
    assert (decision.status, decision.text, decision.dispatch) == (STORED_ONLY, "late", None)
    assert ownership(chat) == before
    assert chat.state.find_turn(late) is None


def test_late_answer_to_a_child_request_is_kept_under_its_turn():
    """A handoff's request is as good as the one that opened the turn."""
    chat = talk()
    root = chat.open
    child = chat.answers(HandOff("math")).dispatch.request_id
    chat.says("/reset")
    decision = chat.answers(request=child)
    assert decision.status is STORED_ONLY
    (answer,) = (e for e in decision.events if isinstance(e, ev.TurnCompleted))
    assert (answer.request_id, answer.root_request_id) == (child, root)


def test_answer_to_an_unknown_request_is_not_found():
    """No turn exists that its text could belong to."""
    chat = talk()
    with pytest.raises(RoutingError) as error:
        chat.answers(request=chat.fresh_id(), by="math")
    assert error.value.reason is Reason.UNKNOWN_REQUEST
    with pytest.raises(RoutingError) as error:
        chat.answers(by="nobody")
    assert error.value.reason is Reason.UNKNOWN_AGENT


def test_answer_may_name_its_agent_by_alias():
    """As everywhere."""
    chat = Conversation(registry_of(Agent("math", aliases=("Sums",)))).with_agent("math")
    chat.says()
    assert chat.answers(FollowUp(), by="SUMS").status is APPLIED
    assert chat.locked


@pytest.mark.parametrize("how", ["open", "closed in this change", "forgotten"])
def test_answer_of_an_agent_that_a_reload_dropped_is_kept(how):
    """Its text is not lost with its place in the registry."""
    chat = turn_of("math")
    request = chat.open
    if how == "closed in this change":
        chat.wait(16 * 60)
    elif how == "forgotten":
        chat.says("/reset")
    chat.drop_agent("math")
    decision = chat.answers(FollowUp(), request=request, by="math", text="done")
    assert decision.text == "done"
    assert decision.status is (APPLIED if how == "open" else STORED_ONLY)


def test_answer_after_a_handoff_in_the_turn_belongs_to_the_epoch_that_it_made():
    """A turn that changes ownership itself goes on."""
    chat = talk()
    chat.hands_to("math", turn=chat.open)
    assert chat.answers(FollowUp()).status is APPLIED
    assert chat.locked


# Frameworks hand over in a run and complete at its end, in any order


ANSWERS = tuple(itertools.permutations(("math", "exam", "supervisor")))


@pytest.mark.parametrize("order", ANSWERS, ids="-".join)
def test_two_handoffs_in_one_run_and_every_order_of_the_answers(order):
    """Only the last holder moves anything; the others' texts are kept, and disturb nothing."""
    chat = talk()
    request = chat.open
    chat.hands_to("math", turn=request, by="supervisor")
    chat.hands_to("exam", turn=request, by="math")
    assert chat.active == "exam"
    holders = []
    for agent in order:
        decision = chat.answers(FollowUp(), request=request, by=agent, text=f"from {agent}")
        (answer,) = (e for e in decision.events if isinstance(e, ev.TurnCompleted))
        assert answer.text == f"from {agent}"
        assert answer.agent_id == agent
        assert chat.active == "exam"
        if decision.status is APPLIED:
            holders.append(agent)
            assert chat.state.find_turn(request) is None
        else:
            assert decision.status is STORED_ONLY
        assert chat.locked == ("exam" in holders)
    assert holders == ["exam"]
    assert chat.says().dispatch.reason is RouteReason.FOLLOW_UP_LOCK


def test_handoff_in_a_run_keeps_the_request_and_its_target_completes_it():
    """The framework knows one request id, that of the dispatch."""
    chat = talk()
    request = chat.open
    decision = chat.hands_to("math", turn=request)
    assert decision.dispatch is None
    (turn,) = chat.state.open_turns
    assert (turn.request_id, turn.holder, turn.hops) == (request, "math", 1)
    assert turn.path == ("supervisor", "math")
    decision = chat.answers(HandOff("exam"), request=request)
    assert decision.status is APPLIED
    (turn,) = chat.state.open_turns
    assert turn.request_id == decision.dispatch.request_id != request
    assert turn.root_request_id == request


def test_earlier_holders_of_a_request_are_part_of_its_history():
    """Their late text goes to their own entry; a stranger's text gets a new one."""
    chat = talk()
    request = chat.open
    chat.hands_to("math", turn=request)
    for agent, own_entry in (("supervisor", False), ("other", True), ("math", False)):
        decision = chat.answers(request=request, by=agent)
        (answer,) = (e for e in decision.events if isinstance(e, ev.TurnCompleted))
        assert answer.own_entry is own_entry


def test_child_request_tells_the_revision_that_dispatched_it():
    """A late answer finds its place in the log without an index."""
    chat = talk()
    child = chat.answers(HandOff("math")).dispatch.request_id
    assert revision_of_child(child) == chat.state.revision
    assert chat.state.find_turn(child).dispatch_revision == chat.state.revision


# proceed


@pytest.mark.parametrize(("agent", "stays"), [("math", True), ("brief", False), ("guest", False)])
def test_proceed_keeps_the_agents_that_stick(agent, stays):
    """The others leave with their answer."""
    chat = turn_of(agent)
    assert chat.answers(Proceed()).status is APPLIED
    assert chat.active == (agent if stays else "")
    assert causes(chat, ev.AgentCleared) == ([] if stays else ["proceed"])
    assert chat.task_status == "running"


def test_proceed_of_a_supervisor_leaves_nobody_active():
    """The coordinator may answer by itself."""
    chat = talk()
    assert chat.answers(Proceed()).status is APPLIED
    assert chat.active == ""


def test_proceed_after_a_question_releases_the_lock():
    """An answer without a question: the next message is an ordinary one."""
    for agent in ("math", "brief"):
        chat = turn_of(agent)
        chat.answers(FollowUp())
        chat.says()
        chat.answers(Proceed())
        assert not chat.locked
        assert causes(chat, ev.LockReleased) == ["answered"]


# follow_up


def test_follow_up_locks_over_several_questions():
    """As long as the agent asks, its user answers."""
    chat = turn_of("brief")
    for _ in range(3):
        chat.answers(FollowUp())
        assert chat.locked
        assert chat.says().dispatch.reason is RouteReason.FOLLOW_UP_LOCK
    chat.answers(Proceed())
    assert chat.active == ""


def test_new_question_has_a_time_of_its_own():
    """The latest follow_up says how long it waits, or that it waits for ever."""
    chat = turn_of("math")
    chat.answers(FollowUp(timeout_us=30 * SECOND_US))
    assert chat.state.active.lock_expire_us == chat.now_us + 30 * SECOND_US
    chat.says()
    chat.answers(FollowUp())
    assert chat.state.active.lock_expire_us is None
    assert chat.wait(1e6).says().dispatch.reason is RouteReason.FOLLOW_UP_LOCK


@pytest.mark.parametrize("timeout_us", [None, 5 * SECOND_US])
def test_supervisor_never_locks(timeout_us):
    """Its follow_up is a proceed."""
    chat = talk()
    assert chat.answers(FollowUp(timeout_us)).status is APPLIED
    assert chat.active == ""
    assert chat.says().dispatch.reason is RouteReason.NO_ACTIVE_AGENT


def test_agent_that_never_sticks_never_locks():
    """Not even for its question."""
    chat = turn_of("guest")
    chat.answers(FollowUp())
    assert (chat.active, chat.locked) == ("", False)


def test_default_agent_that_asks_becomes_active():
    """A swarm's default agent may stick; no other agent has the conversation."""
    chat = Conversation(registry_of(Agent("default"), Agent("other"), home="default"))
    chat.says()
    chat.answers(FollowUp())
    assert (chat.active, chat.locked) == ("default", True)
    assert chat.says().dispatch.reason is RouteReason.FOLLOW_UP_LOCK


# complete


@pytest.mark.parametrize(
    ("agent", "active"), [("math", ""), ("stays", "stays"), ("returns", ""), ("buddy", "")]
)
def test_complete_closes_the_task_and_releases_as_the_registry_says(agent, active):
    """Without frames a return is a release."""
    chat = turn_of(agent)
    if chat.stack:
        chat.hands_to("supervisor")
        chat.hands_to(agent)
        chat.says()
    chat.answers(FollowUp())
    chat.says()
    assert chat.answers(Complete(summary="2+2=4")).status is APPLIED
    assert (chat.active, chat.locked, chat.task_status) == (active, False, "completed")
    assert causes(chat, ev.LockReleased) == ["answered"]
    (completed,) = (e for e in chat.last.events if isinstance(e, ev.TaskCompleted))
    assert (completed.agent_id, completed.summary) == (agent, "2+2=4")


def test_complete_hops_to_the_agent_that_follows():
    """In the same task and turn, with the registry's text in the user's language."""
    chat = turn_of("lesson")
    task_id = chat.state.task.task_id
    decision = chat.answers(Complete())
    assert decision.status is APPLIED
    assert decision.dispatch.agent_id == "exam"
    assert decision.dispatch.reason is RouteReason.TASK_COMPLETED
    assert decision.dispatch.handoff.message == "Great work!"
    assert decision.dispatch.handoff.initiator is Initiator.COMPLETION
    assert (chat.active, chat.stack) == ("exam", [])
    assert (decision.dispatch.task_id, chat.task_status) == (task_id, "running")
    chat.answers(Complete())
    assert chat.task_status == "completed"


def test_completing_agents_own_message_comes_before_the_registrys():
    """It knows better what to say."""
    chat = turn_of("lesson")
    assert chat.answers(Complete(message="Bravo")).dispatch.handoff.message == "Bravo"


@pytest.mark.parametrize("why", ["hop limit", "disabled", "dropped entitlement", "ping-pong"])
def test_completion_that_cannot_hop_is_degraded_to_a_release(why):
    """The text is kept, the task is done, and the verdicts say why."""
    limits = Limits(hops_per_message=1 if why == "hop limit" else 20)
    chat = talk(limits=limits)
    if why == "ping-pong":
        chat.answers(HandOff("lesson"))
        chat.answers(HandOff("exam"))
    chat.answers(HandOff("lesson"))
    if why == "disabled":
        chat.change_agent("exam", enabled=False)
    elif why == "dropped entitlement":
        chat.change_agent("exam", requires=frozenset({"plus"}))
    decision = chat.answers(Complete(), text="the end")
    rules = {
        "hop limit": "hop_limit",
        "disabled": "enabled",
        "dropped entitlement": "entitled",
        "ping-pong": "ping_pong",
    }
    assert (decision.status, decision.text, decision.dispatch) == (DEGRADED, "the end", None)
    assert [v.rule for v in decision.verdicts if not v.allowed] == [rules[why]]
    assert (chat.active, chat.task_status) == ("", "completed")
    (answer,) = (e for e in decision.events if isinstance(e, ev.TurnCompleted))
    assert answer.status is DEGRADED


def test_completion_may_go_home():
    """The supervisor gets the same message, and is not active by it."""
    done = Agent("done", on_complete=OnComplete.HOP, on_complete_agent_id="supervisor")
    chat = Conversation(registry_of(done)).with_agent("done")
    chat.says()
    decision = chat.answers(Complete())
    assert decision.dispatch.agent_id == "supervisor"
    assert decision.dispatch.reason is RouteReason.TASK_COMPLETED
    assert (chat.active, chat.task_status) == ("", "running")


def test_completion_home_is_a_hop_too():
    """At the limit it releases; the user's next message is the supervisor's anyway."""
    done = Agent("done", on_complete=OnComplete.HOP, on_complete_agent_id="supervisor")
    chat = Conversation(registry_of(done, limits=Limits(hops_per_message=1)))
    chat.says()
    chat.answers(HandOff("done"))
    decision = chat.answers(Complete())
    assert (decision.status, decision.dispatch) == (DEGRADED, None)
    assert (chat.active, chat.task_status) == ("", "completed")


def test_supervisor_that_completes_closes_the_task():
    """No agent is active, so none is released."""
    chat = talk()
    assert chat.answers(Complete()).status is APPLIED
    assert (chat.active, chat.task_status) == ("", "completed")


# handoff


def test_handoff_goes_on_with_the_message_under_a_request_of_its_own():
    """The target sees who hands over, why, and with what."""
    chat = talk()
    request, revision = chat.open, chat.state.revision
    outcome = HandOff("math", reason="sums", context={"grade": 3}, message="Ask Anna!")
    decision = chat.answers(outcome, text="One moment.")
    dispatch = decision.dispatch
    assert decision.text == "One moment."
    assert dispatch.request_id not in ("", request)
    assert (dispatch.agent_id, dispatch.reason) == ("math", RouteReason.SUPERVISOR_HANDOFF)
    assert (dispatch.reason_detail, dispatch.previous_agent) == ("sums", "supervisor")
    assert dispatch.message_revision == revision
    plan = dispatch.handoff
    assert (plan.from_agent, plan.to_agent, plan.initiator, plan.mode) == (
        "supervisor",
        "math",
        Initiator.SUPERVISOR,
        HandoffMode.TRANSFER,
    )
    assert (plan.reason, plan.context, plan.message) == ("sums", {"grade": 3}, "Ask Anna!")
    assert chat.active == "math"
    decision = chat.answers(HandOff("exam"))
    assert decision.dispatch.reason is RouteReason.AGENT_HANDOFF
    assert decision.dispatch.message_revision == revision


def test_refused_handoff_leaves_everything_for_another_outcome():
    """The turn is open, the lock stays, and the text comes with the next try."""
    chat = turn_of("brief")
    chat.answers(FollowUp())
    chat.says()
    before = chat.state
    with pytest.raises(HandoffRefused):
        chat.answers(HandOff("brief"), text="I cannot")
    assert chat.state is before
    decision = chat.answers(FollowUp(), text="I cannot")
    assert (decision.status, decision.text) == (APPLIED, "I cannot")


def test_handoff_releases_the_lock_of_who_hands_over():
    """Unless it is an interlude, which keeps the question for later."""
    for target, causes_said in (("other", ["handoff"]), ("buddy", [])):
        chat = turn_of("math")
        chat.answers(FollowUp())
        chat.says()
        chat.answers(HandOff(target))
        assert causes(chat, ev.LockReleased) == causes_said


# failure


def test_failure_fails_the_task_and_keeps_the_agent_unlocked():
    """The user may try again with the same agent."""
    chat = turn_of("math")
    chat.answers(FollowUp())
    chat.says()
    assert chat.answers(Fail(message="no database")).status is APPLIED
    assert (chat.active, chat.locked, chat.task_status) == ("math", False, "failed")
    assert causes(chat, ev.LockReleased) == ["failure"]
    assert chat.says().dispatch.reason is RouteReason.STICKY
    assert chat.task_status == "running"


def test_failure_of_an_interlude_returns():
    """The interrupted agent has the conversation back, and the task stays running."""
    chat = turn_of("math")
    chat.answers(HandOff("buddy"))
    assert chat.answers(Fail()).dispatch.agent_id == "math"
    assert (chat.active, chat.stack, chat.task_status) == ("math", [], "running")


# Standing in for an agent that is away


def standing_in(home=SUPERVISOR, *, stack=False):
    """Return a conversation whose active agent asked something, is away, and home has a message."""
    swarm = home.kind is not AgentKind.SUPERVISOR
    agents = (home, *AGENTS)
    registry = registry_of(*agents, home=home.agent_id) if swarm else registry_of(*agents)
    chat = Conversation(registry)
    chat.says()
    chat.answers(HandOff("math"))
    if stack:
        chat.answers(HandOff("other", mode=HandoffMode.INTERLUDE))
    chat.answers(FollowUp())
    chat.change_agent(chat.active, enabled=False)
    assert chat.says().dispatch.reason is RouteReason.AGENT_UNAVAILABLE
    return chat


@pytest.mark.parametrize("outcome", [Proceed(), Complete(), Fail()])
@pytest.mark.parametrize("home", [SUPERVISOR, Agent("default")], ids=lambda agent: agent.agent_id)
@pytest.mark.parametrize("stack", [False, True])
def test_stand_in_leaves_the_conversation_to_whom_it_stands_in_for(outcome, home, stack):
    """Active agent, lock and stack are there when the agent comes back."""
    chat = standing_in(home, stack=stack)
    before = chat.state.active, chat.state.stack, chat.state.epoch
    assert chat.answers(outcome).status is APPLIED
    assert (chat.state.active, chat.state.stack, chat.state.epoch) == before
    if isinstance(outcome, Complete):
        assert chat.task_status == ("running" if stack else "completed")


def test_stand_in_does_not_hop_on_completion():
    """That would take the conversation over."""
    home = Agent("default", on_complete=OnComplete.HOP, on_complete_agent_id="exam")
    chat = standing_in(home)
    decision = chat.answers(Complete())
    assert decision.dispatch is None
    assert chat.active == "math"


@pytest.mark.parametrize("stack", [False, True])
def test_stand_in_that_asks_takes_over(stack):
    """As by a transfer: what was stored of the other is gone, its question too."""
    chat = standing_in(Agent("default"), stack=stack)
    chat.answers(FollowUp())
    assert (chat.active, chat.stack, chat.locked) == ("default", [], True)
    assert causes(chat, ev.LockReleased) == ["handoff"]


def test_supervisor_that_stands_in_and_asks_takes_nothing_over():
    """Its follow_up is a proceed there too."""
    chat = standing_in()
    chat.answers(FollowUp())
    assert (chat.active, chat.locked) == ("math", True)


@pytest.mark.parametrize("target", ["exam", "buddy"])
@pytest.mark.parametrize("home", [SUPERVISOR, Agent("default")], ids=lambda agent: agent.agent_id)
def test_stand_in_that_hands_over_takes_over_by_transfer(target, home):
    """Interludes too become transfers: the stand-in has no conversation to return to."""
    chat = standing_in(home, stack=True)
    decision = chat.answers(HandOff(target, mode=HandoffMode.INTERLUDE))
    assert decision.handoff.mode is HandoffMode.TRANSFER
    assert (chat.active, chat.stack) == (target, [])


def test_answer_counts_for_its_agent():
    """Status shows how much each one did."""
    chat = turn_of("math")
    chat.answers(by="other")
    chat.answers()
    assert chat.state.turns_by_agent == {"math": 2, "other": 1}


def test_recorded_outcome_is_the_one_that_was_reported():
    """The events after it have its effects."""
    for outcome, kind in (
        (Proceed(), OutcomeKind.PROCEED),
        (FollowUp(), OutcomeKind.FOLLOW_UP),
        (Complete(), OutcomeKind.COMPLETE),
        (HandOff("other"), OutcomeKind.HANDOFF),
        (Fail(), OutcomeKind.FAILURE),
    ):
        chat = turn_of("math")
        chat.answers(outcome)
        (answer,) = (e for e in chat.last.events if isinstance(e, ev.TurnCompleted))
        assert answer.outcome is kind
