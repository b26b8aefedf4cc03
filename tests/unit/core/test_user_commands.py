"""What a user's slash commands do to a session, and what they leave alone."""

import pytest

from routing_service.core import events as ev
from routing_service.core.commands import Complete, FollowUp, HandOff, Proceed
from routing_service.core.errors import RoutingError
from routing_service.core.registry import SECOND_US, Agent, AgentKind, Limits, OnComplete
from routing_service.core.vocabulary import Initiator, OutcomeStatus, RouteReason
from tests.simulation.conversation import Conversation, registry_of, routed_text

AGENTS = (
    Agent("math", user_selectable=True, name={"en": "Mathematics", "es": "Matemáticas"}),
    Agent("clerk", aliases=("Office",), user_selectable=True),
    Agent("buddy", receives_as_interlude=True, user_selectable=True, on_complete=OnComplete.RETURN),
    Agent("hidden"),
    Agent("gold", requires=frozenset({"plan:gold"}), user_selectable=True),
    Agent("off", enabled=False, user_selectable=True),
    Agent("audit", kind=AgentKind.SYSTEM),
)
IMAGE = ev.Item(content_type="image/png", uri="https://example.com/a.png")


def talk(*more, **settings):
    """Return a conversation with the math agent."""
    return Conversation(registry_of(*AGENTS, *more, **settings)).with_agent("math")


def locked(chat):
    """Let the active agent ask something."""
    chat.says()
    chat.answers(FollowUp())
    assert chat.locked
    return chat


def ownership(chat):
    """Return all that a command might move."""
    return chat.state.active, chat.state.stack, chat.state.epoch, chat.state.open_turns


# /supervisor


def test_supervisor_command_leaves_agent_lock_and_stack_but_not_the_task():
    """It is the way out; what was being done can be gone on with."""
    chat = locked(talk())
    chat.hands_to("buddy")
    task_id = chat.state.task.task_id
    decision = chat.says("/supervisor")
    assert decision.dispatch is None
    assert (decision.reply.variant, decision.reply.agent_id) == ("done", "buddy")
    assert (chat.active, chat.stack, chat.locked) == ("", [], False)
    assert (chat.task_status, decision.task_id) == ("running", task_id)
    assert chat.says().dispatch.reason is RouteReason.NO_ACTIVE_AGENT


def test_supervisor_command_lists_whom_one_can_ask():
    """Agents that this user could not be with are not named."""
    chat = talk()
    assert chat.says("/supervisor").reply.agent_ids == ("math", "clerk", "buddy", "hidden")
    chat.says("hello", entitlements=("plan:gold",))
    assert "gold" in chat.says("/supervisor").reply.agent_ids


def test_supervisor_command_without_anyone_active_says_so():
    """It succeeds, and still overtakes the open turns."""
    chat = talk()
    chat.clears()
    epoch = chat.state.epoch
    assert chat.says("/supervisor").reply.variant == "none_active"
    assert chat.state.epoch > epoch


def test_rest_of_a_supervisor_command_goes_to_the_supervisor():
    """The user need not say it twice."""
    chat = talk()
    decision = chat.says("  /SUPERVISOR   show me  taxes ")
    assert decision.reply.variant == "done"
    assert decision.dispatch.agent_id == "supervisor"
    assert decision.dispatch.reason is RouteReason.COMMAND
    assert routed_text(decision) == "show me  taxes "
    assert chat.answers().status is OutcomeStatus.APPLIED


def test_items_of_a_command_go_along_though_no_text_is_left():
    """A picture is a message of its own."""
    decision = talk().says("/supervisor", items=(IMAGE,))
    assert (decision.dispatch.agent_id, routed_text(decision)) == ("supervisor", "")


def test_supervisor_command_in_a_swarm_returns_to_the_default_agent():
    """A swarm has no supervisor to go back to."""
    chat = Conversation(registry_of(*AGENTS, home="clerk"))
    chat.says()
    chat.answers(HandOff("math"))
    decision = chat.says("/supervisor hello")
    assert decision.dispatch.agent_id == "clerk"
    assert chat.active == ""


def test_answer_that_is_under_way_does_not_undo_a_supervisor_command():
    """A handoff in flight lands nowhere."""
    chat = talk()
    late = chat.says().dispatch.request_id
    chat.says("/supervisor")
    assert chat.answers(HandOff("clerk"), request=late).status is OutcomeStatus.STORED_ONLY
    assert chat.active == ""


# /reset


def test_reset_cancels_the_task_and_closes_every_turn():
    """A fresh start: nothing that was asked before is answered into it."""
    chat = locked(talk())
    chat.hands_to("buddy")
    late = [chat.says().dispatch.request_id for _ in range(2)]
    decision = chat.says("/reset")
    assert decision.reply.variant == "done"
    assert (chat.active, chat.stack, chat.task_status) == ("", [], "cancelled")
    assert chat.state.open_turns == ()
    for request in late:
        assert chat.answers(FollowUp(), request=request).status is OutcomeStatus.STORED_ONLY
    assert chat.active == ""


def test_rest_of_a_reset_begins_another_task():
    """This also holds if the message names the task that the reset has just cancelled."""
    for named in (False, True):
        chat = talk()
        first = chat.state.task.task_id
        decision = chat.says("/reset now the taxes", task_id=first if named else "")
        assert decision.dispatch.agent_id == "supervisor"
        assert routed_text(decision) == "now the taxes"
        assert decision.task_id != first
        assert chat.task_status == "running"


# /agent


def test_user_picks_an_agent():
    """It is a handoff by the user, and the next message is the agent's."""
    chat = talk()
    decision = chat.says("/agent clerk")
    assert decision.dispatch is None
    assert (decision.reply.variant, decision.reply.agent_id) == ("done", "clerk")
    (handed_off,) = (e for e in decision.events if isinstance(e, ev.AgentHandedOff))
    assert (handed_off.from_agent, handed_off.to_agent) == ("math", "clerk")
    assert handed_off.initiator is Initiator.USER
    assert chat.says().dispatch.agent_id == "clerk"


def test_rest_of_an_agent_command_goes_to_the_agent():
    """With the selection as its reason."""
    decision = talk().says("/agent clerk what do I owe")
    assert decision.dispatch.agent_id == "clerk"
    assert decision.dispatch.reason is RouteReason.USER_SELECTED
    assert routed_text(decision) == "what do I owe"
    assert decision.dispatch.handoff.to_agent == "clerk"


@pytest.mark.parametrize("name", ["clerk", "CLERK", "office", '"Office"'])
def test_agent_is_picked_by_id_or_alias_in_any_case(name):
    """Users type as they like."""
    chat = talk()
    assert chat.says(f"/agent {name}").reply.variant == "done"
    assert chat.active == "clerk"


def test_agent_is_picked_by_the_name_that_users_see():
    """In any of the registry's languages."""
    chat = talk()
    chat.says("/supervisor")
    assert chat.says("/agent matemáticas").reply.agent_id == "math"


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("hidden", "user_selectable"),
        ("gold", "entitled"),
        ("off", "enabled"),
        ("audit", "not_system"),
    ],
)
def test_refused_selection_says_why_and_moves_nothing(name, rule):
    """Nothing is dispatched either, so that no agent answers what was meant for another."""
    chat = locked(talk())
    before = ownership(chat)
    decision = chat.says(f"/agent {name} and now this")
    assert decision.dispatch is None
    assert decision.reply.variant == "refused"
    assert decision.reply.agent_id == name
    assert rule in decision.reply.detail
    assert decision.reply.agent_ids == ("math", "clerk", "buddy")
    assert ownership(chat) == before
    assert chat.kinds() == ["CommandHandled"]


@pytest.mark.parametrize(
    ("text", "variant", "detail"),
    [("/agent", "no_argument", ()), ("/agent Nobody here", "unknown_agent", ("Nobody",))],
)
def test_selection_of_nobody_says_whom_one_can_pick(text, variant, detail):
    """And moves nothing."""
    chat = locked(talk())
    before = ownership(chat)
    decision = chat.says(text)
    assert decision.dispatch is None
    assert (decision.reply.variant, decision.reply.detail) == (variant, detail)
    assert decision.reply.agent_ids == ("math", "clerk", "buddy")
    assert ownership(chat) == before


def test_picking_the_active_agent_unlocks_it():
    """What is said next is a message of its own, not the answer to its question."""
    chat = locked(talk())
    decision = chat.says("/agent math and something else")
    assert decision.reply.variant == "already_active"
    assert not chat.locked
    assert decision.dispatch.agent_id == "math"
    assert decision.dispatch.reason is RouteReason.USER_SELECTED
    assert not decision.dispatch.locked
    assert [e.cause for e in decision.events if isinstance(e, ev.LockReleased)] == ["command"]


def test_active_agent_need_not_be_selectable_to_be_asked_for_again():
    """The user is with it already."""
    chat = talk()
    chat.hands_to("hidden")
    assert chat.says("/agent hidden").reply.variant == "already_active"


def test_active_agent_that_is_away_cannot_be_picked():
    """It would not get the message."""
    chat = talk()
    chat.change_agent("math", enabled=False)
    reply = chat.says("/agent math hello").reply
    assert (reply.variant, reply.detail) == ("refused", ("enabled",))


def test_picking_another_agent_ends_the_wait_of_the_one_before():
    """And the events say so."""
    chat = locked(talk())
    chat.says("/agent clerk")
    assert not chat.locked
    assert [e.cause for e in chat.last.events if isinstance(e, ev.LockReleased)] == ["command"]


def test_picking_an_interlude_interrupts_as_any_handoff_to_it():
    """By the registry, the agent that hands to it goes on the stack, with its question."""
    chat = locked(talk())
    chat.says("/agent buddy")
    assert (chat.active, chat.stack) == ("buddy", ["math"])
    assert chat.state.stack[0].locked


def test_user_goes_home_by_name_too():
    """It is a transfer, and the supervisor does not become active."""
    chat = talk()
    decision = chat.says("/agent supervisor help me")
    assert decision.reply.variant == "done"
    assert decision.dispatch.agent_id == "supervisor"
    assert chat.active == ""
    assert chat.says("/agent supervisor").reply.variant == "already_active"


def test_home_by_name_is_refused_where_its_command_is_disabled():
    """Students who may not leave a lesson may not leave it by another word either."""
    chat = talk(disabled_commands=frozenset({"supervisor"}))
    reply = chat.says("/agent supervisor").reply
    assert (reply.variant, reply.detail) == ("refused", ("user_selectable",))
    assert chat.active == "math"


def test_owner_keeps_the_session_from_users_in_the_middle_of_a_task():
    """If no task was open before the message, the user may leave."""
    tutor = Agent("tutor", owns_session=True, on_complete=OnComplete.STAY)
    chat = talk(tutor)
    chat.hands_to("tutor")
    assert chat.says("/agent clerk").reply.detail == ("owns_session",)
    chat.says()
    chat.answers(Complete())
    assert chat.says("/agent clerk").reply.variant == "done"


def test_passed_timeouts_count_before_a_selection():
    """An agent that has left by then is not interrupted."""
    chat = talk(limits=Limits(idle_timeout_us=60 * SECOND_US))
    chat.wait(60)
    chat.says("/agent buddy")
    assert (chat.active, chat.stack) == ("buddy", [])


def test_selection_moves_the_session_while_stickiness_is_off():
    """The message goes to the selected agent; later ones go there once stickiness is on again."""
    chat = talk()
    chat.stickiness = False
    assert chat.says("/agent clerk hello").dispatch.agent_id == "clerk"
    assert chat.says().dispatch.reason is RouteReason.STICKINESS_DISABLED
    chat.stickiness = True
    assert chat.says().dispatch.agent_id == "clerk"


# Commands that only tell something


@pytest.mark.parametrize("text", ["/agents", "/status", "/help", "/HELP me", "/agents all"])
def test_other_commands_change_nothing_and_call_nobody(text):
    """This also holds for a command with further text."""
    chat = locked(talk())
    chat.says()
    before = ownership(chat)
    decision = chat.says(text)
    assert decision.dispatch is None
    assert decision.reply is not None
    assert ownership(chat) == before
    assert chat.kinds() == ["CommandHandled"]


def test_agents_command_lists_whom_this_user_may_reach():
    """Others would only be refused."""
    reply = talk().says("/agents").reply
    assert reply.agent_id == "math"
    assert reply.agent_ids == ("math", "clerk", "buddy", "hidden")


def test_status_command_tells_how_the_session_stands():
    """As the next message would meet it."""
    chat = talk()
    assert chat.says("/status").reply.detail == ("task_running",)
    locked(chat)
    assert chat.says("/status").reply.detail == ("locked", "task_running")
    chat.hands_to("buddy")
    reply = chat.says("/status").reply
    assert (reply.variant, reply.agent_id) == ("active", "buddy")
    assert reply.detail == ("task_running", "returns_to:math")
    chat.change_agent("buddy", enabled=False)
    chat.stickiness = False
    assert chat.says("/status").reply.detail[:2] == ("stickiness_off", "unavailable")


@pytest.mark.parametrize(
    "text", ["/supervisor help", "/reset now", "/agent clerk hi", "/status", "/agents", "/help"]
)
def test_disabled_command_only_replies(text):
    """The rest of the message goes nowhere: it was not meant for this agent."""
    name = text.split()[0][1:]
    chat = locked(talk(disabled_commands=frozenset({name})))
    before = ownership(chat)
    decision = chat.says(text)
    assert decision.dispatch is None
    assert (decision.reply.command, decision.reply.variant) == (name, "disabled")
    assert ownership(chat) == before


@pytest.mark.parametrize("text", ["/supervisors", "a /status page", "/ help", "//help", "/nothing"])
def test_ordinary_text_is_never_taken_for_a_command(text):
    """It goes to the agent to the letter."""
    decision = talk().says(text)
    assert decision.reply is None
    assert routed_text(decision) == text


def test_literal_text_is_not_parsed():
    """For texts that come from somewhere else than a keyboard."""
    chat = talk()
    decision = chat.says("/reset", literal_text=True)
    assert decision.reply is None
    assert (decision.dispatch.agent_id, routed_text(decision)) == ("math", "/reset")


def test_command_in_an_item_is_not_parsed():
    """Only what a user typed is."""
    chat = talk()
    items = (ev.Item(content_type="text/plain", text="/reset"),)
    assert chat.says("look", items=items).reply is None
    assert chat.active == "math"


def test_command_of_a_refused_message_is_undone_with_it():
    """Half a message is not applied."""
    chat = locked(talk())
    before = chat.state
    with pytest.raises(RoutingError):
        chat.says("/supervisor go on", task_id=chat.fresh_id())
    assert chat.state is before


def test_command_can_be_the_first_message():
    """The session begins with it."""
    chat = Conversation(registry_of(*AGENTS))
    decision = chat.says("/agents")
    assert decision.reply.variant == "done"
    assert chat.kinds()[0] == "SessionStarted"
    assert chat.says("/agent clerk").reply.variant == "done"
    assert chat.says().dispatch.agent_id == "clerk"


def test_command_does_not_overtake_the_open_turn():
    """Asking for the status does not cost the answer that is under way."""
    chat = talk()
    request = chat.says().dispatch.request_id
    for text in ("/status", "/help", "/agents", "/agent math"):
        chat.says(text)
    assert chat.answers(Proceed(), request=request).status is OutcomeStatus.APPLIED
