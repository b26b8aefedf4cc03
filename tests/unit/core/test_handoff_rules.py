"""Which handoffs are allowed: every rule with what it lets pass and what it refuses."""

import pytest

from routing_service.core import events as ev
from routing_service.core.commands import Complete, FollowUp, HandOff, Proceed
from routing_service.core.errors import Reason, RoutingError
from routing_service.core.handoff_rules import HANDOFF_RULES
from routing_service.core.refusals import HandoffRefused
from routing_service.core.registry import Agent, AgentKind, Limits, OnComplete
from routing_service.core.vocabulary import (
    HandoffMode,
    Initiator,
    OutcomeStatus,
    RouteReason,
    TurnFate,
)
from tests.simulation.conversation import Conversation, registry_of

AGENTS = (
    Agent("math", handoff_to=frozenset({"clerk", "buddy"}), user_selectable=True),
    Agent("clerk", aliases=("Office",), user_selectable=True),
    Agent("buddy", receives_as_interlude=True, user_selectable=True),
    Agent("hidden"),
    Agent("gold", requires=frozenset({"plan:gold"}), user_selectable=True),
    Agent("web", channels=frozenset({"web"}), user_selectable=True),
    Agent("off", enabled=False, user_selectable=True),
    Agent("audit", kind=AgentKind.SYSTEM, user_selectable=True),
)
OWNER = Agent("owner", owns_session=True, on_complete=OnComplete.STAY)
BY_CALLERS = (Initiator.SUPERVISOR, Initiator.AGENT, Initiator.USER, Initiator.OPERATOR)
TRANSFER, INTERLUDE = HandoffMode.TRANSFER, HandoffMode.INTERLUDE


def talk(*more, **settings):
    """Return a conversation in which the supervisor has the user's first message."""
    chat = Conversation(registry_of(*AGENTS, *more, **settings))
    chat.says()
    return chat


def rules_against(attempt):
    """Return the names of the rules that refuse an attempt, or () if it is allowed."""
    refused = None
    try:
        attempt()
    except HandoffRefused as error:
        refused = error
    if refused is None:
        return ()
    assert refused.reason is Reason.HANDOFF_REFUSED
    assert refused.violations
    assert all(violation.detail for violation in refused.violations)
    return tuple(violation.subject for violation in refused.violations)


# The rule enabled


@pytest.mark.parametrize("initiator", BY_CALLERS)
def test_disabled_agent_takes_no_handoff_from_anyone(initiator):
    """Not even an operator's."""
    chat = talk()
    assert rules_against(lambda: chat.hands_to("off", initiator=initiator)) == ("enabled",)
    chat.change_agent("off", enabled=True)
    assert rules_against(lambda: chat.hands_to("off", initiator=initiator)) == ()


# The rule not_system


@pytest.mark.parametrize("initiator", BY_CALLERS)
def test_system_agent_takes_no_handoff_but_an_operators(initiator):
    """It runs next to the conversation; an operator may still choose it."""
    chat = talk()
    refused = rules_against(lambda: chat.hands_to("audit", initiator=initiator))
    assert refused == (() if initiator is Initiator.OPERATOR else ("not_system",))


# The rule not_active


@pytest.mark.parametrize("initiator", BY_CALLERS)
def test_active_agent_is_no_target_between_messages(initiator):
    """There is nothing to hand over."""
    chat = talk().with_agent("clerk")
    assert rules_against(lambda: chat.hands_to("clerk", initiator=initiator)) == ("not_active",)
    assert rules_against(lambda: chat.hands_to("buddy", initiator=initiator)) == ()


@pytest.mark.parametrize("initiator", BY_CALLERS)
def test_holder_is_no_target_inside_its_turn(initiator):
    """Inside a turn the active agent is a legal target if another agent holds the turn."""
    chat = talk().with_agent("clerk")
    chat.change_agent("clerk", enabled=False)
    chat.says()
    chat.change_agent("clerk", enabled=True)
    turn = chat.open
    home = "supervisor"
    assert "not_active" in rules_against(
        lambda: chat.hands_to(home, turn=turn, initiator=initiator)
    )
    assert rules_against(lambda: chat.hands_to("clerk", turn=turn, initiator=initiator)) == ()


def test_agent_cannot_hand_its_turn_to_itself():
    """It would get the same message for ever."""
    chat = talk().with_agent("clerk")
    chat.says()
    assert "not_active" in rules_against(lambda: chat.answers(HandOff("clerk")))


# The rule from_agent


def test_handoff_inside_a_turn_comes_from_its_holder():
    """A framework's handoff that arrives twice, or too late, is refused the second time."""
    chat = talk()
    turn = chat.open
    chat.hands_to("math", turn=turn, by="supervisor")
    assert "from_agent" in rules_against(lambda: chat.hands_to("clerk", turn=turn, by="supervisor"))
    assert rules_against(lambda: chat.hands_to("clerk", turn=turn, by="math")) == ()


@pytest.mark.parametrize("by", ["math", "supervisor", ""])
def test_handoff_between_messages_comes_from_the_active_or_the_home_agent(by):
    """A handoff without a source counts as that of the agent that has the conversation."""
    chat = talk().with_agent("math")
    assert rules_against(lambda: chat.hands_to("clerk", by=by)) == ()


@pytest.mark.parametrize("by", ["clerk", "nobody"])
@pytest.mark.parametrize("initiator", [None, Initiator.AGENT, Initiator.SUPERVISOR, Initiator.USER])
def test_stale_handoff_between_messages_is_refused(by, initiator):
    """The agent has lost the conversation since; its handoff would take it from another."""
    chat = talk().with_agent("math")
    assert rules_against(lambda: chat.hands_to("buddy", by=by, initiator=initiator)) == (
        "from_agent",
    )


def test_handoff_may_name_its_agents_by_alias():
    """Frameworks have names of their own, in any case."""
    chat = talk().with_agent("clerk")
    decision = chat.hands_to("MATH", by="office")
    assert (decision.handoff.from_agent, decision.handoff.to_agent) == ("clerk", "math")


# The rule handoff_to


@pytest.mark.parametrize("initiator", BY_CALLERS)
def test_agents_hand_only_to_whom_the_registry_lets_them(initiator):
    """Users and operators are not bound by an agent's list."""
    chat = talk().with_agent("math")
    chat.change_agent("hidden", user_selectable=True)
    refused = rules_against(lambda: chat.hands_to("hidden", initiator=initiator, by="math"))
    is_agents = initiator in (Initiator.SUPERVISOR, Initiator.AGENT)
    assert refused == (("handoff_to",) if is_agents else ())
    if is_agents:
        assert rules_against(lambda: chat.hands_to("clerk", initiator=initiator, by="math")) == ()


def test_agent_without_a_list_hands_to_every_specialist():
    """That is the default."""
    for name in ("math", "buddy", "hidden"):
        chat = talk().with_agent("clerk")
        chat.says()
        assert chat.answers(HandOff(name)).dispatch.agent_id == name


def test_refused_list_names_whom_the_agent_may_hand_to():
    """The model that reads it can choose again."""
    chat = talk().with_agent("math")
    chat.says()
    with pytest.raises(HandoffRefused, match='agent "math" may hand to buddy, clerk'):
        chat.answers(HandOff("hidden"))


def test_interlude_gives_back_whatever_its_list_says():
    """Returning is how an interlude ends."""
    guest = Agent("guest", receives_as_interlude=True, handoff_to=frozenset())
    chat = talk(guest).with_agent("clerk")
    chat.says()
    chat.answers(HandOff("guest"))
    assert "handoff_to" in rules_against(lambda: chat.answers(HandOff("math")))
    decision = chat.answers(HandOff("clerk"))
    assert decision.dispatch.reason is RouteReason.RETURNED


# The rules entitled and channel


@pytest.mark.parametrize("initiator", BY_CALLERS)
def test_user_needs_the_entitlements_of_an_agent(initiator):
    """For every initiator, since the user lacks them. Entitlements in the call count."""
    chat = talk()
    assert rules_against(lambda: chat.hands_to("gold", initiator=initiator)) == ("entitled",)
    assert (
        rules_against(
            lambda: chat.hands_to("gold", initiator=initiator, entitlements=("plan:gold", "x"))
        )
        == ()
    )


@pytest.mark.parametrize(
    ("channel", "said"), [("", "has no channel"), ("whatsapp", 'is on "whatsapp"')]
)
def test_refusal_says_on_which_channel_the_session_is(channel, said):
    """An empty name in quotes named nothing that a caller could mend."""
    with pytest.raises(RoutingError, match=f"channels web; this session {said}"):
        talk().hands_to("web", channel=channel)


@pytest.mark.parametrize("initiator", BY_CALLERS)
def test_agent_takes_users_of_its_channels_only(initiator):
    """A session with no channel is on none of them."""
    for channel in ("", "whatsapp"):
        chat = talk()
        assert rules_against(
            lambda chat=chat, channel=channel: chat.hands_to(
                "web", initiator=initiator, channel=channel
            )
        ) == ("channel",)
        assert (
            rules_against(
                lambda chat=chat: chat.hands_to("web", initiator=initiator, channel="web")
            )
            == ()
        )


# The rule user_selectable


def test_users_choose_only_agents_that_are_for_choosing():
    """Agents and operators may hand to the others."""
    for initiator in BY_CALLERS:
        chat = talk().with_agent("clerk")
        refused = rules_against(
            lambda chat=chat, initiator=initiator: chat.hands_to("hidden", initiator=initiator)
        )
        assert refused == (("user_selectable",) if initiator is Initiator.USER else ())


def test_user_may_not_go_home_where_the_registry_takes_the_command_away():
    """Agents and operators may still do it, so that a user can always get out."""
    for initiator in BY_CALLERS:
        chat = talk(disabled_commands=frozenset({"supervisor"})).with_agent("clerk")
        refused = rules_against(
            lambda chat=chat, initiator=initiator: chat.hands_to("supervisor", initiator=initiator)
        )
        assert refused == (("user_selectable",) if initiator is Initiator.USER else ())


# The rule owns_session


def test_users_cannot_take_over_an_owner_in_the_middle_of_a_task():
    """Its pupils stay until the lesson is done; agents and operators may interrupt it."""
    for initiator in BY_CALLERS:
        chat = talk(OWNER).with_agent("owner")
        refused = rules_against(
            lambda chat=chat, initiator=initiator: chat.hands_to("clerk", initiator=initiator)
        )
        assert refused == (("owns_session",) if initiator is Initiator.USER else ())


def test_owner_on_the_return_stack_counts_too():
    """Its lesson is interrupted, not over."""
    chat = talk(OWNER).with_agent("owner")
    chat.hands_to("buddy")
    assert chat.stack == ["owner"]
    user = Initiator.USER
    assert rules_against(lambda: chat.hands_to("clerk", initiator=user)) == ("owns_session",)


def test_owner_lets_go_once_no_task_is_open():
    """Between lessons the user chooses."""
    chat = talk(OWNER).with_agent("owner")
    chat.says()
    chat.answers(Complete())
    assert chat.active == "owner"
    assert chat.task_status == "completed"
    assert rules_against(lambda: chat.hands_to("clerk", initiator=Initiator.USER)) == ()


def test_task_that_began_with_this_message_does_not_count_as_its_middle():
    """A turn remembers whether a task was open before it."""
    for mid_task in (False, True):
        chat = talk(OWNER)
        chat.hands_to("owner", turn=chat.open)
        chat.answers(Complete())
        if mid_task:
            chat.says()
            chat.answers()
        turn = chat.says().dispatch.request_id
        refused = rules_against(
            lambda chat=chat, turn=turn: chat.hands_to("clerk", turn=turn, initiator=Initiator.USER)
        )
        assert refused == (("owns_session",) if mid_task else ())


# The rule hop_limit


def test_message_goes_through_so_many_handoffs_and_no_more():
    """A loop of agents ends; home is always there."""
    ring = [Agent(f"ring-{number}") for number in range(4)]
    chat = talk(*ring, limits=Limits(hops_per_message=3))
    for number in range(3):
        chat.answers(HandOff(f"ring-{number}"))
    assert rules_against(lambda: chat.answers(HandOff("ring-3"))) == ("hop_limit",)
    assert chat.answers(HandOff("supervisor")).dispatch.agent_id == "supervisor"
    assert rules_against(lambda: chat.answers(HandOff("ring-3"))) == ("hop_limit",)
    chat.answers()
    chat.says()
    assert chat.answers(HandOff("ring-3")).dispatch is not None


def test_handoffs_asked_for_by_themselves_count_as_hops_of_their_turn():
    """The limit is per message, however its handoffs are reported."""
    chat = talk(limits=Limits(hops_per_message=2))
    turn = chat.open
    chat.hands_to("math", turn=turn)
    chat.hands_to("clerk", turn=turn)
    assert rules_against(lambda: chat.hands_to("hidden", turn=turn)) == ("hop_limit",)
    assert rules_against(lambda: chat.answers(HandOff("hidden"))) == ("hop_limit",)
    operator = Initiator.OPERATOR
    assert rules_against(lambda: chat.hands_to("hidden", turn=turn, initiator=operator)) == ()


def test_three_refusals_leave_only_other_outcomes_and_home():
    """A model that insists would loop on the same refusal."""
    chat = talk().with_agent("clerk")
    chat.says()
    for _ in range(3):
        assert rules_against(lambda: chat.answers(HandOff("off"))) == ("enabled",)
    assert rules_against(lambda: chat.answers(HandOff("off"))) == ("enabled", "hop_limit")
    assert rules_against(lambda: chat.answers(HandOff("math"))) == ("hop_limit",)
    assert chat.answers(HandOff("supervisor")).dispatch.agent_id == "supervisor"


def test_refusals_leave_a_completion_its_hop():
    """It is one of the other outcomes."""
    done = Agent("done", on_complete=OnComplete.HOP, on_complete_agent_id="clerk")
    chat = talk(done).with_agent("done")
    chat.says()
    for _ in range(3):
        assert rules_against(lambda: chat.answers(HandOff("off"))) == ("enabled",)
    assert chat.answers(Complete()).dispatch.agent_id == "clerk"


def test_refused_handoff_leaves_the_turn_open_and_its_id_unused():
    """The same request may be completed in another way."""
    chat = talk().with_agent("clerk")
    chat.says()
    before = chat.state
    rules_against(lambda: chat.answers(HandOff("off")))
    assert chat.state is before
    assert chat.answers(Proceed()).status is OutcomeStatus.APPLIED


# The rule ping_pong


def test_message_does_not_go_to_and_fro():
    """A→B→A→B in one message is refused; a third agent, or home, is not."""
    chat = talk(limits=Limits(hops_per_message=20)).with_agent("clerk")
    chat.says()
    chat.answers(HandOff("hidden"))
    chat.answers(HandOff("clerk"))
    assert rules_against(lambda: chat.answers(HandOff("hidden"))) == ("ping_pong",)
    assert chat.answers(HandOff("math")).dispatch.agent_id == "math"
    assert chat.answers(HandOff("clerk")).dispatch.agent_id == "clerk"


def test_ping_pong_counts_within_one_message_only():
    """The next message may go the same way again."""
    chat = talk(limits=Limits(hops_per_message=20)).with_agent("clerk")
    for _ in range(3):
        chat.says()
        chat.answers(HandOff("hidden"))
        chat.answers(HandOff("clerk"))
        chat.answers()


def test_going_home_again_and_again_is_allowed():
    """The way home stays open, but the supervisor cannot send the message back for ever."""
    chat = talk(limits=Limits(hops_per_message=20))
    chat.answers(HandOff("clerk"))
    chat.answers(HandOff("supervisor"))
    assert rules_against(lambda: chat.answers(HandOff("clerk"))) == ("ping_pong",)
    chat.answers(HandOff("hidden"))
    assert chat.answers(HandOff("supervisor")).dispatch.agent_id == "supervisor"


# The rules return_stack and return_depth


@pytest.mark.parametrize("initiator", [None, Initiator.OPERATOR])
def test_interrupted_agent_is_not_interrupted_with_itself(initiator):
    """Agents on the stack are there once; a transfer to one of them empties the stack."""
    guest = Agent("guest", receives_as_interlude=True)
    chat = talk(guest).with_agent("clerk")
    chat.hands_to("buddy")
    chat.hands_to("guest")
    assert chat.stack == ["clerk", "buddy"]
    refused = rules_against(lambda: chat.hands_to("clerk", mode=INTERLUDE, initiator=initiator))
    assert refused == ("return_stack",)
    chat.hands_to("clerk", initiator=initiator)
    assert (chat.active, chat.stack) == ("clerk", [])


def test_completion_does_not_hop_to_an_interrupted_agent():
    """It gives back instead."""
    done = Agent(
        "done",
        receives_as_interlude=True,
        on_complete=OnComplete.HOP,
        on_complete_agent_id="clerk",
    )
    chat = talk(done).with_agent("clerk")
    chat.hands_to("done")
    chat.says()
    decision = chat.answers(Complete())
    assert decision.status is OutcomeStatus.DEGRADED
    assert [v.rule for v in decision.verdicts if not v.allowed] == ["return_stack"]
    assert (chat.active, chat.stack) == ("clerk", [])


@pytest.mark.parametrize("initiator", [None, Initiator.OPERATOR])
def test_only_so_many_agents_are_interrupted_at_once(initiator):
    """The stack is part of the bounded state."""
    guests = [Agent(f"guest-{number}", receives_as_interlude=True) for number in range(3)]
    chat = talk(*guests, limits=Limits(return_depth=2)).with_agent("clerk")
    chat.hands_to("guest-0")
    chat.hands_to("guest-1")
    refused = rules_against(lambda: chat.hands_to("guest-2", initiator=initiator))
    assert refused == ("return_depth",)
    chat.hands_to("math", initiator=initiator)
    assert chat.stack == []


# The rule live_turn


@pytest.mark.parametrize("how", ["newer message", "cleared", "moved", "timed out", "answered"])
@pytest.mark.parametrize("initiator", [None, Initiator.OPERATOR, Initiator.SUPERVISOR])
def test_turn_whose_answer_would_only_be_kept_cannot_be_moved(how, initiator):
    """The home agent included: the turn is over, so its message cannot move."""
    chat = talk().with_agent("clerk")
    turn = chat.says().dispatch.request_id
    if how == "newer message":
        chat.says()
    elif how == "cleared":
        chat.clears()
    elif how == "moved":
        chat.hands_to("math", open_turn=TurnFate.LEAVE)
    elif how == "timed out":
        chat.wait(16 * 60)
    else:
        chat.answers()
    for target in ("hidden", "supervisor"):
        refused = rules_against(
            lambda target=target: chat.hands_to(target, turn=turn, initiator=initiator)
        )
        assert "live_turn" in refused, target


def test_unknown_turn_is_not_found():
    """A request id that was never dispatched here is a caller's mistake, not a refusal."""
    chat = talk()
    with pytest.raises(RoutingError) as error:
        chat.hands_to("math", turn=chat.fresh_id())
    assert error.value.reason is Reason.UNKNOWN_REQUEST


# All together


def test_unknown_target_comes_before_every_rule():
    """The error names the registered agents."""
    chat = talk()
    for attempt in (
        lambda: chat.hands_to("biling", by="nobody"),
        lambda: chat.answers(HandOff("biling")),
    ):
        with pytest.raises(RoutingError, match='agent "biling" is not registered') as error:
            attempt()
        assert error.value.reason is Reason.UNKNOWN_AGENT


def test_all_violations_are_reported_at_once():
    """In the table's order, each with its own detail, so that a caller can fix all at once."""
    hopeless = Agent(
        "hopeless",
        kind=AgentKind.SYSTEM,
        enabled=False,
        requires=frozenset({"gold"}),
        channels=frozenset({"web"}),
        receives_as_interlude=True,
    )
    chat = talk(hopeless, OWNER, limits=Limits(hops_per_message=1, return_depth=1))
    chat.with_agent("owner")
    chat.says()
    chat.answers(HandOff("buddy"))
    assert chat.stack == ["owner"]
    refused = rules_against(
        lambda: chat.hands_to("hopeless", turn=chat.open, by="clerk", initiator=Initiator.USER)
    )
    assert refused == (
        "enabled",
        "not_system",
        "from_agent",
        "entitled",
        "channel",
        "user_selectable",
        "owns_session",
        "hop_limit",
        "return_depth",
    )
    names = [rule.name for rule in HANDOFF_RULES]
    assert [name for name in names if name in refused] == list(refused)


def test_rules_are_the_ones_that_the_contract_names():
    """Programs read these names."""
    assert [rule.name for rule in HANDOFF_RULES] == [
        "enabled",
        "not_system",
        "not_active",
        "from_agent",
        "handoff_to",
        "entitled",
        "channel",
        "user_selectable",
        "owns_session",
        "hop_limit",
        "ping_pong",
        "return_stack",
        "return_depth",
        "approval_pending",
        "live_turn",
    ]


# Home


def test_home_is_a_legal_target_when_every_other_is_refused():
    """A user can always get out: no list, limit or owner applies, and it is a transfer."""
    stuck = Agent("stuck", handoff_to=frozenset(), owns_session=True)
    chat = talk(stuck, limits=Limits(hops_per_message=1)).with_agent("clerk")
    chat.hands_to("buddy")
    chat.says()
    chat.answers(HandOff("stuck"))
    decision = chat.answers(HandOff("supervisor", mode=INTERLUDE))
    assert decision.dispatch.agent_id == "supervisor"
    assert decision.handoff.mode is TRANSFER
    assert (chat.active, chat.stack) == ("", [])


def test_default_agent_of_a_swarm_is_a_legal_target_too():
    """It becomes active, which a supervisor does not."""
    first, default = Agent("first", handoff_to=frozenset()), Agent("default")
    chat = Conversation(registry_of(first, default, home="default"))
    chat.says()
    chat.answers(HandOff("first"))
    decision = chat.answers(HandOff("default"))
    assert decision.handoff.mode is TRANSFER
    assert chat.active == "default"


def test_what_binds_a_handoff_home():
    """It comes from the holder, in a live turn, and not from home itself."""
    chat = talk()
    turn = chat.open
    home = "supervisor"
    assert rules_against(lambda: chat.hands_to(home, turn=turn)) == ("not_active",)
    chat.hands_to("clerk", turn=turn)
    assert rules_against(lambda: chat.hands_to(home, turn=turn, by="math")) == ("from_agent",)
    assert rules_against(lambda: chat.hands_to(home, by="math")) == ("from_agent",)
    chat.says()
    assert rules_against(lambda: chat.hands_to(home, turn=turn)) == ("live_turn",)


# Operators


def test_operator_is_bound_by_what_cannot_be_otherwise_alone():
    """Lists, owners, limits and who speaks do not bind; who is there, and the user's rights, do."""
    closed = Agent("closed", handoff_to=frozenset(), owns_session=True)
    chat = talk(closed, limits=Limits(hops_per_message=1)).with_agent("closed")
    chat.says()
    operator = Initiator.OPERATOR
    for target in ("hidden", "audit", "hidden", "audit", "hidden"):
        decision = chat.hands_to(target, turn=chat.open, by="nobody", initiator=operator)
        assert decision.handoff.initiator is operator
        bound = {verdict.rule for verdict in decision.verdicts}
        assert bound - {"live_turn"} == {
            "enabled",
            "not_active",
            "entitled",
            "channel",
            "return_stack",
            "return_depth",
        }


def test_operator_interrupts_whoever_has_the_conversation():
    """The source in the call is only a claim: that agent must not get onto the stack."""
    first, default = Agent("first"), Agent("default")
    chat = Conversation(registry_of(first, default, home="default"))
    chat.says()
    for claimed in ("first", "nobody"):
        decision = chat.hands_to("first", by=claimed, mode=INTERLUDE, initiator=Initiator.OPERATOR)
        assert decision.handoff.from_agent == "default"
        assert (chat.active, chat.stack) == ("first", ["default"])
        chat.clears()


def test_refusal_is_told_in_full():
    """What, which value, what to do; the values also for programs."""
    chat = talk()
    chat.says()
    with pytest.raises(HandoffRefused) as refusal:
        chat.hands_to("gold", turn=chat.open)
    assert refusal.value.message == (
        'the handoff from "supervisor" to "gold" was refused by entitled: '
        'agent "gold" requires plan:gold, which the user lacks'
    )
    assert {
        "session_id": "chat-1",
        "from_agent_id": "supervisor",
        "agent_id": "gold",
        "initiator": "supervisor",
        "rules": "entitled",
    }.items() <= refusal.value.metadata.items()


def test_allowed_handoff_tells_each_rule_that_had_a_word():
    """The trace of a handoff, or of a dry run."""
    chat = talk()
    verdicts = chat.hands_to("clerk", turn=chat.open).verdicts
    assert all(verdict.allowed and not verdict.detail for verdict in verdicts)
    assert "handoff_to" in {verdict.rule for verdict in verdicts}
    assert "user_selectable" not in {verdict.rule for verdict in verdicts}


@pytest.mark.parametrize(
    ("by", "initiator"), [("", Initiator.SUPERVISOR), ("supervisor", Initiator.SUPERVISOR)]
)
def test_initiator_is_read_off_who_hands_over(by, initiator):
    """A framework's hook knows the agents' names, not the ids of this registry."""
    chat = talk()
    assert chat.hands_to("math", by=by, turn=chat.open).handoff.initiator is initiator
    assert chat.hands_to("clerk", turn=chat.open).handoff.initiator is Initiator.AGENT
    assert chat.hands_to("hidden", by="supervisor").handoff.initiator is Initiator.SUPERVISOR


def test_lock_of_an_agent_that_hands_over_is_released():
    """A reader of the events sees that the question no longer waits."""
    chat = talk().with_agent("clerk")
    chat.says()
    chat.answers(FollowUp())
    chat.hands_to("math")
    causes = [e.cause for e in chat.last.events if isinstance(e, ev.LockReleased)]
    assert causes == ["handoff"]
