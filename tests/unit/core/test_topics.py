"""Topics: who may be switched to or suggested, how sure one must be, what answers an offer."""

from __future__ import annotations

import pytest

from routing_service.core import events as ev
from routing_service.core.case import open_case
from routing_service.core.commands import Complete, FollowUp, Proceed, RouteMessage, TopicOpinion
from routing_service.core.errors import Reason, RoutingError
from routing_service.core.facts import Facts, TopicVerdict, facts_needed, topic_asked
from routing_service.core.registry import Agent, AgentTopics, OnComplete, Topics
from routing_service.core.suggestion_fold import SUGGESTION_REST_MESSAGES
from routing_service.core.suggestions import stay_option_id
from routing_service.core.vocabulary import (
    ClearScope,
    HandoffMode,
    Initiator,
    RouteReason,
    TaskStatus,
    TopicOutcome,
)
from tests.simulation.conversation import SESSION_ID, Conversation, registry_of, routed_text, uuid7

AUTO = Topics("auto", threshold=0.8, first_message="auto")
SUGGEST = Topics("suggest", threshold=0.8)
VAT, PAYROLL = Agent("vat"), Agent("payroll")


def talk(topics: Topics = AUTO, *agents: Agent, home: str = "") -> Conversation:
    """Return a conversation without any message."""
    return Conversation(registry_of(*(agents or (VAT, PAYROLL)), home=home, topics=topics))


def outcome(chat: Conversation) -> TopicOutcome | None:
    """Return the topic outcome of the last message."""
    return chat.last.topic.outcome if chat.last.topic else None


# --- auto ---


def test_message_for_another_agent_goes_there():
    """The service hands over by itself: initiator TOPIC, reason TOPIC_SWITCH."""
    chat = talk().with_agent("vat")

    decision = chat.says("my wages", about="payroll")

    assert decision.dispatch.agent_id == "payroll"
    assert decision.dispatch.reason is RouteReason.TOPIC_SWITCH
    assert decision.dispatch.previous_agent == "vat"
    assert decision.dispatch.handoff.initiator is Initiator.TOPIC
    assert routed_text(decision) == "my wages"
    assert chat.active == "payroll"
    assert outcome(chat) is TopicOutcome.SWITCHED
    routed = chat.last_events[-1]
    assert (routed.confidence, routed.topic_model) == (0.95, "test-1")
    # The next message, about nothing in particular, stays there.
    assert chat.says("and then?").dispatch.reason is RouteReason.STICKY


@pytest.mark.parametrize(
    ("confidence", "stay"), [(0.79, 0.21), (0.85, 0.85), (0.85, 0.9)], ids=["low", "tie", "stay"]
)
def test_unsure_topic_leaves_the_message_where_it_is(confidence: float, stay: float):
    """Below the threshold, or no likelier than staying."""
    chat = talk().with_agent("vat")

    decision = chat.says("hm", about="payroll", confidence=confidence, stay=stay)

    assert (decision.dispatch.agent_id, decision.dispatch.reason) == ("vat", RouteReason.STICKY)
    assert outcome(chat) is TopicOutcome.UNSURE


def test_switch_ends_an_ordinary_lock_only_over_lock_threshold():
    """A fifth to two fifths of the topic changes come right after a question."""
    hard = talk().with_agent("vat")
    soft = talk(Topics("auto", 0.8, lock_threshold=0.9)).with_agent("vat")
    for chat in (hard, soft):
        chat.says("how much?")
        chat.answers(FollowUp())

    assert hard.says("x", about="payroll", confidence=0.99).dispatch.agent_id == "vat"
    assert outcome(hard) is TopicOutcome.LOCKED
    assert soft.says("x", about="payroll", confidence=0.89).dispatch.agent_id == "vat"
    assert soft.last.dispatch.reason is RouteReason.FOLLOW_UP_LOCK

    decision = soft.says("x", about="payroll", confidence=0.9)
    assert decision.dispatch.agent_id == "payroll"
    assert ev.LockReleased(agent_id="vat", cause="handoff") in soft.last_events


def test_agent_that_owns_the_session_keeps_its_user():
    """Even a certain verdict does not move the user; this holds only during the agent's task."""
    owner = Agent("vat", owns_session=True, on_complete=OnComplete.STAY)
    chat = talk(AUTO, owner, PAYROLL).with_agent("vat")

    assert chat.says("x", about="payroll", confidence=1.0, stay=0).dispatch.agent_id == "vat"
    assert outcome(chat) is TopicOutcome.OWNED
    chat.answers(Complete())
    assert chat.state.task.status is TaskStatus.COMPLETED
    assert chat.says("x", about="payroll").dispatch.agent_id == "payroll"


def test_owner_that_was_interrupted_keeps_its_user_too():
    """It waits on the return stack, and the task is still its own."""
    owner = Agent("vat", owns_session=True)
    aside = Agent("aside", receives_as_interlude=True)
    chat = talk(AUTO, owner, PAYROLL, aside).with_agent("vat")
    chat.says("a break")
    chat.hands_to("aside", turn=chat.open)
    chat.answers(Proceed())

    assert chat.says("x", about="payroll").dispatch.agent_id == "aside"
    assert outcome(chat) is TopicOutcome.OWNED


@pytest.mark.parametrize(
    "target",
    [
        Agent("payroll", enabled=False),
        Agent("payroll", requires=frozenset({"plan:premium"})),
        Agent("payroll", channels=frozenset({"whatsapp"})),
        Agent("payroll", topics=AgentTopics(mode="off")),
    ],
    ids=["disabled", "not entitled", "other channel", "no topics"],
)
def test_agent_that_this_user_may_not_have_is_never_switched_to(target: Agent):
    """No agent in the verdict may be switched to or suggested if the user may not have it."""
    for topics in (AUTO, SUGGEST):
        chat = talk(topics, VAT, target).with_agent("vat")
        decision = chat.says("x", about="payroll")
        assert decision.dispatch.agent_id == "vat"
        assert decision.suggestion is None


def test_selectable_and_handoff_to_are_other_initiators_affairs():
    """user_selectable and handoff_to do not bind topics."""
    narrow = Agent("vat", handoff_to=frozenset())
    chat = talk(AUTO, narrow, PAYROLL).with_agent("vat")

    assert chat.says("x", about="payroll").dispatch.agent_id == "payroll"


def test_agents_own_settings_come_before_those_of_all():
    """A payment agent may want more certainty, and to be asked for."""
    careful = Agent("payroll", topics=AgentTopics(mode="suggest", threshold=0.97))
    chat = talk(AUTO, VAT, careful).with_agent("vat")

    assert chat.says("x", about="payroll", confidence=0.96).suggestion is None
    decision = chat.says("x", about="payroll", confidence=0.98)

    assert decision.dispatch.agent_id == "vat"
    assert decision.suggestion.agent_id == "payroll"


def test_interlude_target_interrupts_and_gives_back():
    """receives_as counts for topics as for every other handoff."""
    aside = Agent("aside", receives_as_interlude=True, on_complete=OnComplete.RETURN)
    chat = talk(Topics("auto", 0.8, lock_threshold=0.8), VAT, aside).with_agent("vat")
    chat.says("vat")
    chat.answers(FollowUp())

    decision = chat.says("x", about="aside")

    assert decision.dispatch.handoff.mode is HandoffMode.INTERLUDE
    assert (chat.active, chat.stack) == ("aside", ["vat"])
    chat.answers(Complete())
    assert chat.says("4,200").dispatch.agent_id == "vat"
    assert chat.state.active.locked


def test_swarms_default_agent_is_switched_to_and_from():
    """It is a specialist like the others."""
    chat = talk(AUTO, VAT, PAYROLL, home="vat")

    assert chat.says("my wages", about="payroll").dispatch.agent_id == "payroll"
    chat.answers()
    decision = chat.says("and my VAT", about="vat")

    assert decision.dispatch.agent_id == "vat"
    assert chat.active == "vat"
    assert chat.says("wages again", about="payroll").dispatch.agent_id == "payroll"


@pytest.mark.parametrize("home", ["", "vat"], ids=["supervised", "swarm"])
def test_home_agent_is_no_topic_of_its_own(home: str):
    """A verdict for who has the conversation anyway changes nothing."""
    chat = talk(AUTO, VAT, PAYROLL, home=home)
    target = home or "supervisor"

    decision = chat.says("hello", about=target)

    assert decision.dispatch.agent_id == target
    assert decision.dispatch.reason is not RouteReason.TOPIC_SWITCH


# --- first messages ---


def test_first_message_goes_straight_to_its_agent_where_the_registry_says_so():
    """Confident ones; the others are the supervisor's, and so are all with the default."""
    assert talk().says("my wages", about="payroll").dispatch.agent_id == "payroll"
    assert talk().says("hm", about="payroll", confidence=0.5).dispatch.agent_id == "supervisor"
    assert talk().says("what is love").dispatch.agent_id == "supervisor"
    usual = talk(Topics("auto", 0.8))
    assert usual.says("my wages", about="payroll").dispatch.agent_id == "supervisor"
    assert outcome(usual) is TopicOutcome.HOME_FIRST


def test_first_messages_are_dispatched_in_suggest_mode_too():
    """No agent is active that would lose its user."""
    decision = talk(Topics("suggest", 0.8, first_message="auto")).says("x", about="payroll")

    assert decision.dispatch.agent_id == "payroll"
    assert decision.suggestion is None


def test_message_after_a_finished_task_is_a_first_one_again():
    """No agent is active, as at the beginning."""
    chat = talk().with_agent("vat")
    chat.says("thanks")
    chat.answers(Complete())
    assert chat.active == ""

    assert chat.says("my wages", about="payroll").dispatch.agent_id == "payroll"


@pytest.mark.parametrize("way", ["/supervisor", "/reset", "clear", "clear session", "handoff"])
def test_whoever_asked_for_the_home_agent_gets_it(way: str):
    """Else a wrong verdict would be a trap: the next message would be taken away again."""
    chat = talk().with_agent("vat")
    match way:
        case "clear":
            chat.clears()
        case "clear session":
            chat.clears(ClearScope.SESSION)
        case "handoff":
            chat.hands_to("supervisor")
        case _:
            chat.says(way)

    decision = chat.says("x", about="payroll")

    assert decision.dispatch.agent_id == "supervisor"
    assert decision.dispatch.reason is RouteReason.NO_ACTIVE_AGENT
    assert outcome(chat) is TopicOutcome.SENT_HOME
    # From the second message on topics count again.
    chat.answers()
    assert chat.says("x", about="payroll").dispatch.agent_id == "payroll"


def test_lines_of_route_before_topics_decide():
    """Stickiness off, an agent that is away, an approval, an idle timeout, a command."""
    chat = talk(AUTO, Agent("vat", idle_timeout_us=60_000_000), PAYROLL).with_agent("vat")
    assert chat.says("/status", about="payroll").dispatch is None
    chat.stickiness = False
    assert chat.says("x", about="payroll").dispatch.reason is RouteReason.STICKINESS_DISABLED
    assert outcome(chat) is None
    chat.answers()
    chat.stickiness = True
    chat.wait(120)
    assert chat.says("x", about="payroll").dispatch.reason is RouteReason.EXPIRED
    assert outcome(chat) is TopicOutcome.OTHER_RULE


# --- what is asked ---


def inquiry(chat: Conversation, text: str = "x", **fields: object):
    """Return what topic detection would be asked about a message."""
    command = RouteMessage(uuid7(900), text, uuid7(901), **fields)  # type: ignore[arg-type]
    case = open_case(chat.state, command, chat.registry, chat.now_us, session_id=SESSION_ID)
    asked = [fact.asked for fact in facts_needed(case) if isinstance(fact, TopicVerdict)]
    assert asked == ([] if topic_asked(case) is None else [topic_asked(case)])
    return asked[0] if asked else None


def test_nothing_is_asked_where_nothing_could_follow():
    """Detection costs time: it is asked only where its answer may count."""
    off = talk(Topics()).with_agent("vat")
    assert inquiry(off) is None
    chat = talk().with_agent("vat")
    assert inquiry(chat) is not None
    assert inquiry(chat, "/status") is None
    assert inquiry(chat, "/status", literal_text=True) is not None
    assert inquiry(chat, "  ") is None
    assert inquiry(chat, stickiness_enabled=False) is None
    assert inquiry(chat, quick_reply_id=uuid7(5)) is None
    chat.says("how much?")
    chat.answers(FollowUp())
    assert inquiry(chat) is None
    assert inquiry(talk(Topics("auto", 0.8))) is None


def test_question_is_of_the_session_as_the_decision_meets_it():
    """A lock that expired before the message does not count."""
    chat = talk().with_agent("vat")
    chat.says("how much?")
    chat.answers(FollowUp(timeout_us=10_000_000))
    assert inquiry(chat) is None
    chat.wait(20)

    asked = inquiry(chat)

    assert asked is not None
    assert (asked.active_agent_id, asked.is_locked) == ("vat", False)
    assert chat.says("x", about="payroll").dispatch.agent_id == "payroll"


# --- suggestions ---


def suggested() -> Conversation:
    """Return a conversation with vat in which payroll was suggested to the user."""
    chat = talk(SUGGEST).with_agent("vat")
    chat.says("my wages", about="payroll")
    assert chat.last.suggestion is not None
    return chat


def test_suggestion_is_made_beside_an_ordinary_dispatch():
    """The message goes to the same agent as without it; the suggestion has its own event."""
    chat = suggested()

    assert chat.last.dispatch.agent_id == "vat"
    assert chat.last.dispatch.reason is RouteReason.STICKY
    offer = chat.state.suggestion
    assert offer.agent_id == "payroll"
    assert offer.message_revision == chat.state.revision
    event = chat.last_events[-1]
    assert isinstance(event, ev.SwitchSuggested)
    assert (event.agent_id, event.from_agent, event.confidence) == ("payroll", "vat", 0.95)
    assert chat.active == "vat"


@pytest.mark.parametrize("answered_first", [False, True], ids=["at once", "after the answer"])
def test_accepted_suggestion_brings_the_message_to_the_other_agent(answered_first: bool):  # noqa: FBT001
    """The stored text, not the button's label."""
    chat = suggested()
    if answered_first:
        chat.answers()

    decision = chat.picks(chat.state.suggestion.suggestion_id)

    assert decision.dispatch.agent_id == "payroll"
    assert decision.dispatch.reason is RouteReason.TOPIC_SWITCH
    assert routed_text(decision) == "my wages"
    assert decision.dispatch.handoff.initiator is Initiator.TOPIC
    assert chat.active == "payroll"
    assert chat.state.suggestion is None
    (said,) = [e for e in chat.last_events if isinstance(e, ev.SwitchAnswered)]
    assert said.accepted


def test_accepted_by_handoff_outside_a_turn_it_is_dispatched_as_well():
    """SetActiveAgent with the suggestion's id; its rules are those for topics."""
    chat = suggested()
    chat.answers()

    decision = chat.hands_to(
        "payroll", initiator=Initiator.USER, suggestion_id=chat.state.suggestion.suggestion_id
    )

    assert decision.handoff.initiator is Initiator.TOPIC
    assert decision.dispatch.agent_id == "payroll"
    assert routed_text(decision) == "my wages"
    chat.answers(FollowUp())
    assert chat.locked


def test_accepted_by_handoff_in_its_turn_the_turn_moves():
    """A frontend that knows the open request may say so."""
    chat = suggested()

    decision = chat.hands_to(
        "payroll", turn=chat.open, suggestion_id=chat.state.suggestion.suggestion_id
    )

    assert decision.dispatch is None
    assert chat.state.find_turn(chat.open).holder == "payroll"
    assert chat.state.suggestion is None


def test_handoff_that_takes_another_agents_suggestion_is_refused():
    """It must name the agent that was offered."""
    chat = suggested()
    with pytest.raises(RoutingError) as refused:
        chat.hands_to("supervisor", suggestion_id=chat.state.suggestion.suggestion_id)
    assert refused.value.reason is Reason.INVALID_FIELD


def test_declined_suggestion_rests_for_some_messages():
    """Nothing is dispatched, because the agent that got the message has answered it."""
    chat = suggested()
    chat.answers()

    decision = chat.picks(stay_option_id(chat.state.suggestion.suggestion_id))

    assert decision.dispatch is None
    assert (decision.reply.variant, decision.reply.agent_id) == ("stays", "vat")
    assert chat.active == "vat"
    for _ in range(SUGGESTION_REST_MESSAGES):
        assert chat.says("my wages", about="payroll").suggestion is None
        assert outcome(chat) is TopicOutcome.RESTING
        chat.answers()
    assert chat.says("my wages", about="payroll").suggestion is not None


def test_plain_yes_accepts_and_plain_no_declines_and_goes_on():
    """A no may be meant for the agent as well, so it reaches it."""
    assert suggested().says("yes", says_yes=True).dispatch.agent_id == "payroll"
    chat = suggested()
    decision = chat.says("no", says_yes=False)
    assert (decision.dispatch.agent_id, routed_text(decision)) == ("vat", "no")
    assert chat.state.suggestion is None
    assert [rest.agent_id for rest in chat.state.rests] == ["payroll"]


def test_plain_yes_answers_the_agents_own_question_first():
    """A locked agent waits for just such a word; and it is about what was said last."""
    chat = suggested()
    chat.answers(FollowUp())
    assert chat.says("yes", says_yes=True).dispatch.agent_id == "vat"
    late = suggested()
    late.answers()
    late.says("something else")
    late.answers()
    assert late.says("yes", says_yes=True).dispatch.agent_id == "vat"
    # The button still says what is meant.
    assert late.picks(late.state.suggestion.suggestion_id).dispatch.agent_id == "payroll"


def test_plain_yes_after_an_idle_timeout_is_a_message():
    """The suggestion goes with the ownership; the home agent gets the message, with the reason."""
    chat = talk(SUGGEST, Agent("vat", idle_timeout_us=60_000_000), PAYROLL).with_agent("vat")
    chat.says("my wages", about="payroll")
    chat.answers()
    chat.wait(90)

    decision = chat.says("yes", says_yes=True)

    assert decision.dispatch.agent_id == "supervisor"
    assert decision.dispatch.reason is RouteReason.EXPIRED


@pytest.mark.parametrize(
    "change",
    [
        lambda chat: chat.says("/supervisor"),
        lambda chat: chat.clears(),
        lambda chat: chat.hands_to("payroll"),
        lambda chat: chat.answers(Complete()),
        lambda chat: chat.picks(chat.state.suggestion.suggestion_id),
    ],
    ids=["supervisor", "clear", "handoff", "complete", "accept"],
)
def test_suggestion_is_gone_with_any_change_of_ownership(change):
    """And its button is then refused as unknown."""
    chat = suggested()
    option = chat.state.suggestion.suggestion_id
    change(chat)

    assert chat.state.suggestion is None
    with pytest.raises(RoutingError) as gone:
        chat.picks(option)
    assert gone.value.reason is Reason.UNKNOWN_SUGGESTION


def test_new_suggestion_replaces_the_one_before():
    """The latest message is what the user looks at."""
    chat = suggested()
    first = chat.state.suggestion.suggestion_id
    chat.says("really, my wages", about="payroll")

    assert chat.state.suggestion.suggestion_id != first
    assert routed_text(chat.picks(chat.state.suggestion.suggestion_id)) == "really, my wages"


def test_nothing_is_suggested_that_would_be_refused_when_it_is_accepted():
    """The message that begins an owner's task is in the middle of it once it is answered."""
    chat = talk(SUGGEST, Agent("vat", owns_session=True), PAYROLL)
    chat.hands_to("vat")

    assert chat.says("x", about="payroll").suggestion is None
    assert outcome(chat) is TopicOutcome.REFUSED


def test_accepting_while_an_approval_is_awaited_is_refused():
    """While a task is paused nothing moves the session, and the offer stays."""
    from routing_service.core.commands import AskApproval  # noqa: PLC0415
    from routing_service.core.refusals import HandoffRefused  # noqa: PLC0415

    chat = suggested()
    chat.answers(AskApproval("deploy?"))
    with pytest.raises(HandoffRefused) as refused:
        chat.picks(chat.state.suggestion.suggestion_id)
    assert [v.rule for v in refused.value.verdicts if not v.allowed] == ["approval_pending"]
    assert chat.state.suggestion is not None


def test_message_that_the_log_no_longer_has_cannot_be_sent_on():
    """Without the stored message there is nothing to dispatch."""
    chat = suggested()
    command = RouteMessage(
        uuid7(900), "", uuid7(901), quick_reply_id=chat.state.suggestion.suggestion_id
    )
    with pytest.raises(RoutingError) as gone:
        chat.do(command)
    assert gone.value.reason is Reason.UNKNOWN_SUGGESTION


def test_verdict_for_an_agent_that_a_reload_took_away_is_none():
    """An opinion may be of the registry before."""
    chat = talk().with_agent("vat")
    opinion = TopicOpinion((("gone", 0.99),), 0.0, "test-1", uuid7(902))
    message = RouteMessage(uuid7(900), "x", uuid7(901))
    decision = chat.do(message, Facts({TopicVerdict: opinion}))
    assert decision.dispatch.agent_id == "vat"
