"""The examples: registries without warnings, agents that follow scripts, exact stories.

The stories are played against the pure core here: given the story's messages, when they are routed
and answered, then every agent, reason and lock must equal the story's.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing_service.core import commands as core
from routing_service.core.decide import decide
from routing_service.core.errors import Reason, RoutingError
from routing_service.core.events import Item, Profile
from routing_service.core.registry import AgentKind, Registry, Sticks
from routing_service.core.session import SessionState
from routing_service.core.vocabulary import ApprovalDecision, HandoffMode, OutcomeStatus
from routing_service.examples import EXAMPLES
from routing_service.examples.agent_reply import (
    AgentReply,
    AgentTurn,
    AskApproval,
    Complete,
    Fail,
    FollowUp,
    HandOff,
    Outcome,
    Proceed,
)
from routing_service.examples.ask_user import AskUser
from routing_service.examples.scripted_agents import (
    CONTINUES,
    ScriptedAgents,
    load_lines,
    plain,
    read_number,
)
from routing_service.examples.stories import STORIES, Story, StoryTurn
from routing_service.registry.file import check_registry_file, load_registry
from routing_service.texts import render_reply
from tests.simulation.conversation import routed_text

SECOND_US = 1_000_000


def to_core(outcome: Outcome) -> core.Outcome:
    """Map an agent's outcome to the core's, as a runtime maps it to the contract."""
    match outcome:
        case Proceed():
            return core.Proceed()
        case FollowUp(timeout_s=timeout_s):
            return core.FollowUp(None if timeout_s is None else int(timeout_s * SECOND_US))
        case Complete(summary=summary, message=message):
            return core.Complete(summary, message)
        case HandOff(agent_id, reason, context, message, mode):
            return core.HandOff(agent_id, reason, context, message, HandoffMode(mode))
        case AskApproval(prompt=prompt):
            return core.AskApproval(prompt)
        case Fail(message=message):
            return core.Fail(message)


@dataclass
class Played:
    """The result of one message."""

    agent_ids: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    reply: str = ""
    command: str = ""
    refused_rules: tuple[str, ...] = ()


class Conversation:
    """One session of an example, played through the pure core."""

    def __init__(self, story: Story, *, stickiness_enabled: bool = True) -> None:
        example = EXAMPLES[story.example]
        self.story = story
        self.registry: Registry = load_registry(example.registry_path)
        self.agents = example.make_agents()
        self.stickiness_enabled = stickiness_enabled
        self.state: SessionState | None = None
        self.now_us = 1_700_000_000 * SECOND_US
        self.requests = 0

    def fresh_id(self) -> str:
        self.requests += 1
        return str(uuid.UUID(int=(7 << 76) | (2 << 62) | self.requests))

    def decide(self, command: core.Command) -> core.Decision:
        self.now_us += SECOND_US
        decided = decide(self.state, command, self.registry, self.now_us, session_id="story")
        self.state = decided.state
        return decided.decision

    def play(self, turn: StoryTurn) -> Played:
        """Play one turn of the story."""
        if turn.decision:
            return self.resume(turn.decision, turn.user_text)
        return self.say(turn.user_text, tuple(item.content_type for item in turn.items))

    def resume(self, decision: str, comment: str) -> Played:
        """Decide the pending approval."""
        assert self.state is not None
        assert self.state.paused is not None
        played = Played()
        resumed = self.decide(
            core.ResumeTask(
                request_id=self.state.paused.request_id,
                task_id=self.state.paused.task_id,
                decision=ApprovalDecision(decision),
                child_seed=self.fresh_id(),
                comment=comment,
            )
        )
        self.follow(resumed, "", (), played)
        return played

    def say(self, text: str, item_types: tuple[str, ...] = ()) -> Played:
        """Send one user message and let the agents answer until there is no next dispatch."""
        played = Played()
        decision = self.decide(
            core.RouteMessage(
                request_id=self.fresh_id(),
                text=text,
                items=tuple(Item(name, text="") for name in item_types),
                new_task_id=self.fresh_id(),
                profile=Profile(
                    user_id="ana",
                    locale=self.story.locale,
                    channel=self.story.channel,
                    entitlements=self.story.entitlements,
                ),
                stickiness_enabled=self.stickiness_enabled,
            )
        )
        if decision.reply is not None:
            played.command = decision.reply.command
            if decision.reply.variant == "refused":
                played.refused_rules = decision.reply.detail
            played.reply = render_reply(decision.reply, self.registry, self.story.locale).text
        message = routed_text(decision) if decision.dispatch else ""
        self.follow(decision, message, item_types, played)
        return played

    def follow(
        self, decision: core.Decision, message: str, item_types: tuple[str, ...], played: Played
    ) -> None:
        """Let the agents answer until there is no next dispatch."""
        while (dispatch := decision.dispatch) is not None:
            if dispatch.handoff is not None and dispatch.handoff.message:
                played.texts.append(dispatch.handoff.message)
            decision = self.answer(dispatch, message, item_types, played)

    def answer(
        self,
        dispatch: core.DispatchPlan,
        message: str,
        item_types: tuple[str, ...],
        played: Played,
    ) -> core.Decision:
        played.agent_ids.append(dispatch.agent_id)
        played.reasons.append(dispatch.reason.name)
        turn = AgentTurn(
            agent_id=dispatch.agent_id,
            text=message,
            locale=self.story.locale,
            reason=dispatch.reason.value,
            handoff_reason=dispatch.handoff.reason if dispatch.handoff else "",
            handoff_context=(dispatch.handoff.context if dispatch.handoff else None) or {},
            item_types=item_types,
            decision=dispatch.resume.decision.value if dispatch.resume else "",
            decision_comment=dispatch.resume.comment if dispatch.resume else "",
            locked=dispatch.locked,
        )
        try:
            decision = self.complete(dispatch, self.agents.answer(turn))
        except RoutingError as error:
            if error.reason is not Reason.HANDOFF_REFUSED:
                raise
            played.refused_rules = tuple(v.subject for v in error.violations)
            again = AgentTurn(
                dispatch.agent_id,
                message,
                self.story.locale,
                refused_rules=played.refused_rules,
            )
            decision = self.complete(dispatch, self.agents.answer(again))
        if self.stickiness_enabled:
            assert decision.status is OutcomeStatus.APPLIED
        if decision.text:
            played.texts.append(decision.text)
        return decision

    def complete(self, dispatch: core.DispatchPlan, reply: AgentReply) -> core.Decision:
        return self.decide(
            core.CompleteTurn(
                request_id=dispatch.request_id,
                agent_id=dispatch.agent_id,
                outcome=to_core(reply.outcome),
                child_seed=self.fresh_id(),
                text=reply.text,
                stickiness_enabled=self.stickiness_enabled,
            )
        )

    def as_story_turn(self, turn: StoryTurn, played: Played) -> StoryTurn:
        """Return the result of a turn in the story's format."""
        assert self.state is not None
        active = self.state.active
        return StoryTurn(
            turn.user_text,
            tuple(played.agent_ids),
            played.reasons[0] if played.reasons else "",
            expect_locked_after=active is not None and active.locked,
            expect_command=played.command,
            expect_refused_rules=played.refused_rules,
            expect_active_after=active.agent_id if active else "",
            expect_paused_after=self.state.paused is not None,
            items=turn.items,
            decision=turn.decision,
            comes_twice=turn.comes_twice,
        )


@pytest.mark.parametrize("name", STORIES)
def test_story_plays_exactly_as_written(name):
    """Agents, reasons, locks, commands and refusals of each message are the story's."""
    conversation = Conversation(STORIES[name])
    for turn in STORIES[name].turns:
        played = conversation.play(turn)
        assert conversation.as_story_turn(turn, played) == turn
        # Every message gets a reply.
        assert played.reply or played.texts
        assert bool(played.reply) == bool(turn.expect_command)


@pytest.mark.parametrize("name", STORIES)
def test_story_plays_the_same_again(name):
    """Scripts are deterministic: every text is the same the second time."""
    first, second = Conversation(STORIES[name]), Conversation(STORIES[name])
    for turn in STORIES[name].turns:
        assert first.play(turn) == second.play(turn)


@pytest.mark.parametrize("name", STORIES)
def test_story_with_a_wrong_expectation_would_fail(name):
    """The comparison covers each field."""
    story = STORIES[name]
    conversation = Conversation(story)
    turn = story.turns[0]
    came = conversation.as_story_turn(turn, conversation.play(turn))
    for other in (
        replace(turn, expect_agent_ids=()),
        replace(turn, expect_reason="STICKY"),
        replace(turn, expect_locked_after=not turn.expect_locked_after),
        replace(turn, expect_command="help"),
        replace(turn, expect_refused_rules=("channel",)),
        replace(turn, expect_active_after="nobody"),
        replace(turn, expect_paused_after=True),
    ):
        assert came != other


def supervisor_calls(name: str, *, stickiness_enabled: bool) -> int:
    """Play a story and count the supervisor's messages."""
    conversation = Conversation(STORIES[name], stickiness_enabled=stickiness_enabled)
    home = conversation.registry.home_agent_id
    return sum(conversation.play(turn).agent_ids.count(home) for turn in STORIES[name].turns)


def test_tutor_story_makes_a_fifth_of_the_coordinator_calls():
    """More than ten turns; with stickiness the coordinator reads at most a fifth as many."""
    assert len(STORIES["tutor"].turns) > 10
    sticky = supervisor_calls("tutor", stickiness_enabled=True)
    always = supervisor_calls("tutor", stickiness_enabled=False)
    assert sticky == 3
    assert sticky * 5 <= always


# Messages that other specialists answer when the supervisor reads everything: it sends a new
# subject straight to its specialist, a selection is recorded but not followed, and an interlude has
# nobody to give the conversation back to.
OTHERWISE_WITHOUT_STICKINESS = {
    "¿Está pagada la factura F-1023?",
    "Otro periodo, por favor",
    "/agent vat when is it due?",
    "I'm getting tired",
    # The supervisor sends an invoice straight to finance; the swarm's reception does not know that
    # a question was left by command; and a paused task's messages never reach its agent.
    "Issue the invoice for it",
    "/supervisor ¿qué más sabéis hacer?",
    "/agent sales_orders el pedido 1042",
    "Emite la factura",
    "Is it done?",
    "Thank you very much!",
    "Muchas gracias",
}


@pytest.mark.parametrize("name", STORIES)
def test_story_still_makes_sense_with_stickiness_off(name):
    """Every message goes through the supervisor, which hands answers to the agent that asked."""
    conversation = Conversation(STORIES[name], stickiness_enabled=False)
    home = conversation.registry.home_agent_id
    for turn in STORIES[name].turns:
        played = conversation.play(turn)
        if not (played.command or turn.decision):
            assert played.agent_ids[0] == home
            assert played.reasons[0] == "STICKINESS_DISABLED"
        if turn.user_text not in OTHERWISE_WITHOUT_STICKINESS:
            specialists = [agent_id for agent_id in turn.expect_agent_ids if agent_id != home]
            assert [agent_id for agent_id in played.agent_ids if agent_id != home] == specialists


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_registry_has_no_warnings(name):
    """The check reports nothing for the examples."""
    checked = check_registry_file(EXAMPLES[name].registry_path)
    assert checked.warnings == ()


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_agent_that_talks_has_a_script(name):
    """Every agent that can get a dispatch can answer; system agents do not talk."""
    registry = load_registry(EXAMPLES[name].registry_path)
    talking = [a.agent_id for a in registry.agents.values() if a.kind is not AgentKind.SYSTEM]
    assert sorted(EXAMPLES[name].make_agents().agent_ids) == sorted(talking)


def test_example_registries_differ_in_what_they_show():
    """Together they show an entitlement, channels, an interlude and follow-up locks."""
    tax, tutor, budget = (
        load_registry(EXAMPLES[name].registry_path) for name in ("tax", "tutor", "budget")
    )
    assert tax.default_locale == "es"
    assert tax.agents["payroll"].requires == {"plan:premium"}
    assert tax.agents["vat"].channels == {"web", "whatsapp"}
    assert tutor.agents["motivator"].receives_as_interlude
    assert tutor.agents["motivator"].turns_max
    assert tutor.agents["math_specialist"].owns_session
    assert tutor.agents["math_specialist"].markers
    assert tutor.agents["math_specialist"].on_complete_agent_id == "assessor"
    assert {agent.sticks for agent in budget.specialists} == {Sticks.FOLLOW_UP}


@pytest.mark.parametrize("name", EXAMPLES)
def test_lines_are_complete_in_each_language(name):
    """No line falls back to another language during a conversation."""
    lines = load_lines(name.removesuffix("_swarm").removesuffix("_topics"))
    assert set(lines.locales) == {"en", "es", *(("pt",) if name == "budget" else ())}
    assert lines.missing_texts() == ()
    assert set(lines.message_ids("es")) == set(lines.message_ids("en"))


USER_TEXTS = st.one_of(
    st.text(max_size=60),
    st.sampled_from([turn.user_text for story in STORIES.values() for turn in story.turns]),
    st.sampled_from(["1", "0", "3/4", "1/0", "no", "sí", "12.000,50 €", "-5", "99", "iva", "jar"]),
)


def answers_whatever_is_said(name, data):
    """Send any text to any agent of an example, and check the answers."""
    agents = EXAMPLES[name].make_agents()
    # Some agents refuse conversations, which the service checks.
    registered = load_registry(EXAMPLES[name].registry_path).agents
    for _ in range(8):
        turn = AgentTurn(
            agent_id=data.draw(st.sampled_from(agents.agent_ids)),
            text=data.draw(USER_TEXTS),
            locale=data.draw(st.sampled_from(["", "en", "es-MX", "fr"])),
            reason=data.draw(
                st.sampled_from(["sticky", "follow_up_lock", "returned", "stickiness_disabled"])
            ),
            handoff_reason=data.draw(st.sampled_from(["", CONTINUES])),
            locked=data.draw(st.booleans()),
            refused_rules=data.draw(st.sampled_from([(), ("entitled",), ("channel",), ("x",)])),
        )
        reply = agents.answer(turn)
        assert reply.text or isinstance(reply.outcome, HandOff)
        assert "{" not in reply.text
        if isinstance(reply.outcome, HandOff):
            assert reply.outcome.agent_id in registered
            assert reply.outcome.agent_id != turn.agent_id


@pytest.mark.parametrize("name", EXAMPLES)
@settings(max_examples=25)
@given(data=st.data())
def test_agents_answer_whatever_is_said(name, data):
    """No message breaks a script, and no answer is empty or has a gap."""
    answers_whatever_is_said(name, data)


@pytest.mark.torture
@pytest.mark.parametrize("name", EXAMPLES)
@settings(max_examples=1000)
@given(data=st.data())
def test_agents_answer_thousands_of_times_whatever_is_said(name, data):
    """The long version of the test above."""
    answers_whatever_is_said(name, data)


def says(agents: ScriptedAgents, agent_id: str, text: str, **fields: object) -> AgentReply:
    """Return an agent's answer."""
    return agents.answer(AgentTurn(agent_id, text, **{"locale": "en", **fields}))


FIRST_WORDS = {
    "budget_advisor": "How can I save more?",
    "jar_manager": "Create a jar",
    "fee_manager": "I pay 10 every month",
    "transaction_classifier": "I bought a book for 12",
}


@pytest.mark.parametrize("agent_id", FIRST_WORDS)
def test_each_budget_agent_asks_and_thereby_waits(agent_id):
    """An agent only calls the tool; the follow-up results from that."""
    reply = says(EXAMPLES["budget"].make_agents(), agent_id, FIRST_WORDS[agent_id])
    assert "?" in reply.text
    assert reply.outcome == FollowUp()


@pytest.mark.parametrize("agent_id", FIRST_WORDS)
@pytest.mark.parametrize(("locale", "unsure"), [("en", "I don't know"), ("es", "no sé")])
def test_each_budget_agent_helps_whoever_does_not_know(agent_id, locale, unsure):
    """The agent answers with help and another question, not with the same text again."""
    agents = EXAMPLES["budget"].make_agents()
    first = says(agents, agent_id, FIRST_WORDS[agent_id], locale=locale)
    second = says(agents, agent_id, unsure, locale=locale, locked=True)
    assert second.outcome == FollowUp()
    assert second.text != first.text


def test_ask_user_sets_the_follow_up_by_itself():
    """Without a question the agent proceeds; with one it waits."""
    ask_user = AskUser()
    assert ask_user.outcome == Proceed()
    assert "answer" in ask_user("Which day?")
    assert ask_user.outcome == FollowUp(timeout_s=None)
    ask_user("And which month?", timeout_s=90)
    assert ask_user.outcome == FollowUp(timeout_s=90)
    assert ask_user.questions == ["Which day?", "And which month?"]


def test_recurring_expense_is_handed_to_the_fee_manager():
    """A specialist sees that a message is a colleague's, and says what it knows."""
    reply = says(
        EXAMPLES["budget"].make_agents(),
        "transaction_classifier",
        "I spent 30 on the gym, as every month",
    )
    assert isinstance(reply.outcome, HandOff)
    assert reply.outcome.agent_id == "fee_manager"
    assert reply.outcome.context == {"amount": 30.0}
    assert reply.outcome.message


def test_frustrated_pupil_is_handed_over_by_marker():
    """A teacher that only writes text requests the motivator by a marker."""
    agents = EXAMPLES["tutor"].make_agents()
    says(agents, "math_specialist", "fractions")
    reply = says(agents, "math_specialist", "I give up", locked=True)
    assert "[HANDOFF_TO:motivator]" in reply.text
    assert reply.outcome == Proceed()


def test_pupil_who_gives_up_in_the_test_gets_the_motivator_and_the_question_again():
    """The assessor hands over by outcome, and repeats its question when the pupil is back."""
    agents = EXAMPLES["tutor"].make_agents()
    question = says(agents, "assessor", "done").text
    reply = says(agents, "assessor", "this is too hard", locked=True)
    assert isinstance(reply.outcome, HandOff)
    assert reply.outcome.agent_id == "motivator"
    back = says(agents, "assessor", "this is too hard", locked=True, reason="returned")
    assert back.text.endswith(question)
    assert back.outcome == FollowUp()


def test_lesson_starts_afresh_when_the_supervisor_hands_over_again():
    """A new request does not answer an old open question."""
    agents = EXAMPLES["tax"].make_agents()
    says(agents, "vat", "VAT")
    handed = says(agents, "coordinator", "about my VAT, 500 of it")
    assert handed.outcome.agent_id == "vat"
    reply = says(agents, "vat", "about my VAT, 500 of it", handoff_reason=handed.outcome.reason)
    assert "every month or every quarter" in reply.text


def test_two_conversations_share_nothing():
    """Each session's agents have their own memory."""
    one, other = EXAMPLES["budget"].make_agents(), EXAMPLES["budget"].make_agents()
    says(one, "transaction_classifier", "I spent 12")
    says(one, "transaction_classifier", "a need", locked=True)
    assert "12" in says(one, "transaction_classifier", "what did I spend?").text
    assert "12" not in says(other, "transaction_classifier", "what did I spend?").text


def test_answer_for_an_agent_without_a_script_is_an_error():
    """A registry that was edited without its scripts is noticed at once."""
    with pytest.raises(KeyError):
        says(EXAMPLES["budget"].make_agents(), "nobody", "hello")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("unos 12.000", 12_000),
        ("12,000", 12_000),
        ("12.000,50 €", 12_000.5),
        ("1,850.50", 1850.5),
        ("4.5", 4.5),
        ("4,50", 4.5),
        ("1.234.567", 1_234_567),
        ("F-1023", 1023),
        ("the 5th", 5),
        ("none", None),
        ("", None),
    ],
)
def test_number_is_read_in_either_notation(text, number):
    """People write amounts with comma or point, in either language."""
    assert read_number(text) == number


def test_text_is_compared_without_accents_case_or_punctuation():
    """Phone users often omit all of these."""
    assert plain("¿Cómo declaro   el I.V.A?") == "como declaro el i v a"
    assert plain("I don’t KNOW!") == "i don't know"  # noqa: RUF001 - what telephones type.
