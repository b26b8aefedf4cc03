"""Topic changes on a real server: switched, suggested, accepted, declined, and reported."""

from __future__ import annotations

import pytest

from agent_routing.v1 import admin_service_pb2, admin_service_pb2_grpc
from agent_routing.v1 import routing_service_pb2 as pb
from routing_service.cli.answers import print_routed
from routing_service.cli.chat_screen import TextScreen
from routing_service.cli.conversation import Suggested
from routing_service.core import events as ev
from routing_service.core.registry import Registry
from routing_service.topics.topic_detector import TopicDetector, TopicQuestion, TopicVerdict
from tests.rpc.live_service import (
    ask,
    finish,
    fresh_id,
    initiator,
    outcome_status,
    refusal,
    serving,
    went,
)
from tests.scripted_topics import SURE, ScriptedModel

DESK = """
api_version: agent_routing/v1
version: topics-1
supervisor: front
default_locale: en
topics: {mode: MODE, threshold: 0.8, first_message: FIRST}
agents:
  - {id: front, name: Front desk}
  - {id: sales, name: {en: Sales, es: Ventas}, description: What we sell.}
  - {id: support, name: {en: Support, es: Soporte}, description: Help.}
  - {id: premium, name: Premium, description: For a few., requires: ["plan:premium"]}
  - {id: tutor, name: Tutor, description: Lessons., owns_session: true}
"""


def desk(mode: str, first: str = "supervisor") -> str:
    """Return the registry with these topic settings."""
    return DESK.replace("MODE", mode).replace("FIRST", first)


@pytest.fixture
async def auto(tmp_path):
    """A server in the mode auto."""
    async with serving(tmp_path, desk("auto", "auto"), model=ScriptedModel()) as running:
        yield running


@pytest.fixture
async def offering(tmp_path):
    """A server in the mode suggest."""
    async with serving(tmp_path, desk("suggest"), model=ScriptedModel()) as running:
        yield running


async def suggested(service, **profile):
    """Return a chat with sales in which the user has an offer of support."""
    chat = service.chat()
    chat.profile = profile
    await chat.with_agent("sales")
    routed = await chat.say("#support it is broken")
    return chat, routed


async def test_message_for_another_agent_is_dispatched_to_it(auto):
    """No supervisor is called, and the handoff names the agent before."""
    chat = await auto.chat().with_agent("sales")
    routed = await chat.say("#support it is broken")
    assert went(routed.dispatch) == ("support", "TOPIC_SWITCH")
    assert routed.supervisor_bypassed
    assert initiator(routed.dispatch.handoff) == "TOPIC"
    assert routed.dispatch.text == "#support it is broken"
    assert not routed.HasField("suggestion")
    # A crashed runtime gets the same from GetStatus.
    (waiting,) = (await chat.status()).open_requests
    assert waiting.handoff == routed.dispatch.handoff
    assert waiting.reason == routed.dispatch.reason
    await chat.answer(routed.dispatch, "let us see")
    assert went((await chat.say("thanks")).dispatch) == ("support", "STICKY")


async def test_first_messages_go_straight_to_their_agent(auto):
    """If detection is confident; messages without a topic go to the supervisor."""
    routed = await auto.chat().say("#sales what does it cost")
    assert went(routed.dispatch) == ("sales", "TOPIC_SWITCH")
    assert went((await auto.chat().say("hello")).dispatch) == ("front", "NO_ACTIVE_AGENT")
    assert went((await auto.chat().say("#nobody")).dispatch)[0] == "front"


async def test_owner_of_the_session_keeps_its_pupil(auto):
    """No topic switches the user in the middle of a lesson."""
    chat = await auto.chat().with_agent("tutor")
    assert went((await chat.say("#sales what does it cost")).dispatch) == ("tutor", "STICKY")


async def test_agent_that_the_user_may_not_have_is_no_candidate(auto):
    """The detector gets only the agents that the user is entitled to."""
    chat = await auto.chat().with_agent("sales")
    assert went((await chat.say("#premium please")).dispatch)[0] == "sales"
    rich = auto.chat()
    rich.profile = {"entitlements": ["plan:premium"]}
    await rich.with_agent("sales")
    assert went((await rich.say("#premium please")).dispatch)[0] == "premium"


async def test_decision_is_logged_with_confidence_and_model(auto):
    """One log line says why a message was routed as it was."""
    chat = await auto.chat().with_agent("sales")
    await chat.say("#support=0.91 it is broken")
    record = auto.observer.calls[-1]
    assert record.topic_outcome == "switched"
    assert record.topic_agent_id == "support"
    assert record.topic_confidence == 0.91
    assert record.topic_model == "scripted-1"
    await chat.say("and now?")
    assert auto.observer.calls[-1].topic_outcome == "unsure"


async def test_trial_says_what_the_topic_would_do_and_why(auto):
    """validate_only: the answer has verdict, threshold and rules; nothing is written."""
    chat = await auto.chat().with_agent("sales")
    async with chat.unchanged():
        routed = await chat.say("#support=0.9 it is broken", validate_only=True)
        assert went(routed.dispatch) == ("support", "TOPIC_SWITCH")
        trace = routed.topic_trace
        assert trace.outcome == pb.TOPIC_OUTCOME_SWITCHED
        assert trace.model == "scripted-1"
        assert [(c.agent_id, c.confidence) for c in trace.candidates] == [("support", 0.9)]
        assert trace.stay == pytest.approx(0.1)
        assert trace.threshold == 0.8
        assert {v.rule for v in trace.verdicts} >= {"enabled", "entitled", "owns_session"}
        below = await chat.say("#support=0.7", validate_only=True)
        assert below.topic_trace.outcome == pb.TOPIC_OUTCOME_UNSURE
        assert went(below.dispatch)[0] == "sales"
    told = await chat.say("#support it is broken")
    assert not told.HasField("topic_trace")


async def test_question_carries_the_conversation_so_far(tmp_path):
    """Recent turns, earlier agents, the lock and the candidates."""
    model = ScriptedModel()
    async with serving(tmp_path, desk("auto"), model=model) as service:
        chat = service.chat()
        chat.profile = {"locale": "es"}
        await chat.with_agent("sales")
        routed = await chat.say("#support=0.5 maybe")
        await chat.answer(routed.dispatch, "no, that is mine")
        await chat.say("what else")
    asked = model.detector.asked[-1]
    assert asked.text == "what else"
    assert asked.locale == "es"
    assert asked.active_agent_id == "sales"
    assert set(asked.candidate_ids) == {"support", "tutor"}
    assert [(t.agent_id, t.user_text, t.agent_text, t.outcome) for t in asked.recent] == [
        ("sales", "I need sales", "sales here", "proceed"),
        ("sales", "#support=0.5 maybe", "no, that is mine", "proceed"),
    ]
    # Without the supervisor and the active agent.
    assert asked.earlier_agent_ids == ()


async def test_question_tells_who_had_the_conversation_before(tmp_path):
    """In the order in which they last had it."""
    model = ScriptedModel()
    async with serving(tmp_path, desk("auto"), model=model) as service:
        chat = await service.chat().with_agent("sales")
        for text in ("#support", "#tutor", "#sales"):
            routed = await chat.say(text)
            await chat.answer(routed.dispatch, "done", **finish())
            await chat.set_active(routed.dispatch.agent.agent_id)
        await chat.say("and?")
    asked = model.detector.asked[-1]
    assert asked.active_agent_id == "sales"
    assert asked.earlier_agent_ids == ("support", "tutor")


async def test_question_is_the_same_on_another_replica(tmp_path):
    """Also after a restart: the log has the same turns as the cache."""
    first, second = ScriptedModel(), ScriptedModel()
    async with serving(tmp_path, desk("auto"), model=first) as service:
        chat = await service.chat("moving").with_agent("sales")
        routed = await chat.say("one")
        await chat.answer(routed.dispatch, "two")
        await chat.say("three", validate_only=True)
    async with serving(tmp_path, desk("auto"), model=second) as service:
        await service.chat("moving").say("three")
    assert second.detector.asked[-1] == first.detector.asked[-1]


async def test_suggestion_comes_beside_the_dispatch(offering):
    """In the user's language, with its buttons; watchers and GetStatus have it too."""
    chat, routed = await suggested(offering, locale="es")
    assert went(routed.dispatch) == ("sales", "STICKY")
    offer = routed.suggestion
    assert offer.agent.agent_id == "support"
    assert offer.agent.display_name == "Soporte"
    assert offer.confidence == SURE
    assert offer.text == "Esto parece cosa de Soporte. ¿Quieres cambiar?"
    assert [option.label for option in offer.options] == ["Cambiar a Soporte", "Seguir con Ventas"]
    assert (await chat.status()).suggestion == offer
    event = (await chat.events())[-1]
    assert isinstance(event, ev.SwitchSuggested)
    assert event.topic_model == "scripted-1"


async def test_accepted_suggestion_sends_the_message_on(offering):
    """By its button; a repeat gets the same answer, a second press an error."""
    chat, routed = await suggested(offering)
    accept, _ = routed.suggestion.options
    press = fresh_id()
    for _ in range(2):
        accepted = await chat.say("Switch to Support", quick_reply_id=accept.id, request_id=press)
        assert went(accepted.dispatch) == ("support", "TOPIC_SWITCH")
        assert accepted.dispatch.text == "#support it is broken"
        assert accepted.dispatch.request_id == press
    refused = await refusal(chat.say(quick_reply_id=accept.id))
    assert tuple(refused) == ("NOT_FOUND", "UNKNOWN_SUGGESTION")
    # The agent before may still answer: the answer is stored and changes nothing.
    assert outcome_status(await chat.answer(routed.dispatch, "late")) == "STORED_ONLY"
    await chat.answer(accepted.dispatch, "let us see")
    assert (await chat.status()).active_agent.agent_id == "support"
    assert not (await chat.status()).HasField("suggestion")


async def test_message_of_a_suggestion_is_found_in_the_log(tmp_path):
    """On another replica, or after a restart: the state does not hold the text."""
    model = ScriptedModel()
    async with serving(tmp_path, desk("suggest"), model=model) as service:
        chat, routed = await suggested(service)
    async with serving(tmp_path, desk("suggest"), model=model) as service:
        chat = service.chat(chat.session_id)
        accepted = await chat.say(quick_reply_id=routed.suggestion.suggestion_id, text="")
        assert went(accepted.dispatch) == ("support", "TOPIC_SWITCH")
        assert accepted.dispatch.text == "#support it is broken"
        shown = [(turn.agent_id, turn.user_text) for turn in await chat.turns()]
        assert shown[-2:] == [
            ("sales", "#support it is broken"),
            ("support", "#support it is broken"),
        ]


async def test_suggestion_is_accepted_by_a_handoff(offering):
    """SetActiveAgent with the suggestion's id returns the dispatch, once."""
    chat, routed = await suggested(offering)
    await chat.answer(routed.dispatch, "I would not know")
    again = fresh_id()
    for _ in range(2):
        handed = await chat.set_active(
            "support", suggestion_id=routed.suggestion.suggestion_id, request_id=again
        )
        assert handed.agent.agent_id == "support"
        assert initiator(handed.handoff) == "TOPIC"
        assert went(handed.dispatch) == ("support", "TOPIC_SWITCH")
        assert handed.dispatch.text == "#support it is broken"
    (waiting,) = (await chat.status()).open_requests
    assert waiting.request_id == handed.dispatch.request_id
    await chat.answer(handed.dispatch, "let us see", **ask())
    assert (await chat.status()).locked


async def test_late_answer_to_a_message_that_a_handoff_sent_on_is_kept(offering):
    """The service made the request's id, and the log can always find it."""
    chat, routed = await suggested(offering)
    handed = await chat.set_active("support", suggestion_id=routed.suggestion.suggestion_id)
    await chat.say("/reset")
    late = await chat.answer(handed.dispatch, "too late")
    assert outcome_status(late) == "STORED_ONLY"
    assert (await chat.turns())[-1].agent_text == "too late"


async def test_declined_suggestion_is_answered_and_rests(offering):
    """The user stays, there is no dispatch, and the offer is not repeated."""
    chat, routed = await suggested(offering)
    _, stay = routed.suggestion.options
    declined = await chat.say("Stay with Sales", quick_reply_id=stay.id)
    assert not declined.HasField("dispatch")
    assert declined.reply.text == "You stay with Sales."
    assert declined.reply.command == ""
    assert declined.reply.locale == "en"
    again = await chat.say("#support it is broken", validate_only=True)
    assert not again.HasField("suggestion")
    assert again.topic_trace.outcome == pb.TOPIC_OUTCOME_RESTING


@pytest.mark.parametrize(
    ("locale", "word", "agent"),
    [("en", "Yes, please", "support"), ("es", "sí", "support"), ("es", "yes", "support")],
)
async def test_plain_yes_counts_in_every_language(offering, locale, word, agent):
    """If no agent waits for an answer."""
    chat, routed = await suggested(offering, locale=locale)
    await chat.answer(routed.dispatch, "I would not know")
    assert (await chat.say(word)).dispatch.agent.agent_id == agent


async def test_plain_yes_to_an_agents_question_is_its_answer(offering):
    """The lock comes first; the button still works."""
    chat, routed = await suggested(offering)
    await chat.answer(routed.dispatch, "Do you want to buy?", **ask())
    answered = await chat.say("yes")
    assert went(answered.dispatch) == ("sales", "FOLLOW_UP_LOCK")
    accepted = await chat.say(quick_reply_id=routed.suggestion.suggestion_id)
    assert accepted.dispatch.agent.agent_id == "support"


async def test_suggestion_is_gone_when_its_agent_is_done(offering):
    """Any change of the active agent withdraws it."""
    chat, routed = await suggested(offering)
    await chat.answer(routed.dispatch, "all done", **finish())
    assert not (await chat.status()).HasField("suggestion")
    refused = await refusal(chat.say(quick_reply_id=routed.suggestion.suggestion_id))
    assert tuple(refused) == ("NOT_FOUND", "UNKNOWN_SUGGESTION")
    assert refused.metadata["suggestion_id"] == routed.suggestion.suggestion_id


async def test_detector_that_fails_costs_nobody_a_message(tmp_path, caplog):
    """Without a verdict a message is routed as with topics off."""

    class Broken:
        version = "broken-1"

        def for_registry(self, registry: Registry) -> TopicDetector:
            del registry
            return self

        def judge(self, question: TopicQuestion) -> TopicVerdict:
            raise ZeroDivisionError(question.locale)

    async with serving(tmp_path, desk("auto", "auto"), model=Broken()) as service:
        chat = await service.chat().with_agent("sales")
        assert went((await chat.say("#support")).dispatch) == ("sales", "STICKY")


async def test_model_that_cannot_be_made_keeps_nobody_from_serving(tmp_path):
    """At the start and after a reload, routing works without the model."""

    class Unmakable:
        version = "unmakable-1"

        def for_registry(self, registry: Registry) -> TopicDetector:
            raise ZeroDivisionError(registry.version)

    async with serving(tmp_path, desk("auto", "auto"), model=Unmakable()) as service:
        chat = await service.chat().with_agent("sales")
        (tmp_path / "agents.yaml").write_text(desk("suggest"), "utf-8")
        await service.server.reload()
        assert service.server.registry_reloads == (1, 0)
        assert went((await chat.say("#support")).dispatch) == ("sales", "STICKY")


async def test_topics_that_are_off_ask_nobody(tmp_path):
    """Neither the model nor its parameters are loaded."""

    class Unwanted:
        version = "unwanted"

        def for_registry(self, registry: Registry) -> TopicDetector:
            raise AssertionError(registry.version)

    async with serving(tmp_path, desk("off"), model=Unwanted()) as service:
        chat = await service.chat().with_agent("sales")
        routed = await chat.say("#support", validate_only=True)
        assert went(routed.dispatch)[0] == "sales"
        assert not routed.HasField("topic_trace")


async def test_suggestions_are_counted(offering):
    """Offered, accepted, declined and ignored, by pair of agents."""
    for press in (0, 1, None):
        chat, routed = await suggested(offering)
        if press is not None:
            await chat.say("x", quick_reply_id=routed.suggestion.options[press].id)
    admin = admin_service_pb2_grpc.AdminServiceStub(offering.channel)
    stats = await admin.GetRoutingStats(admin_service_pb2.GetRoutingStatsRequest())
    (row,) = stats.suggestions
    assert (row.from_agent_id, row.to_agent_id) == ("sales", "support")
    assert (row.offered, row.accepted, row.declined, row.ignored) == (3, 1, 1, 1)
    [sure] = stats.suggestions_by_confidence
    assert (sure.confidence_from, sure.confidence_before) == (0.95, 1)
    assert (sure.offered, sure.accepted, sure.declined, sure.ignored) == (3, 1, 1, 1)
    [period] = stats.periods
    assert (period.suggested, period.accepted, period.declined) == (3, 1, 1)
    switches = [h for h in stats.handoffs if h.to_agent_id == "support"]
    assert [h.count for h in switches] == [1]


async def test_offer_and_trace_are_shown_to_people(offering, capsys):
    """agent-routing route prints the buttons; a trial prints the figures."""
    chat, routed = await suggested(offering)
    print_routed(routed)
    shown = capsys.readouterr().out
    assert "This sounds like something for Support. Would you like to switch?" in shown
    assert f"Switch to Support  --quick-reply {routed.suggestion.suggestion_id}" in shown
    print_routed(await chat.say("#support=0.9 again", validate_only=True))
    assert "topic: suggested, support 0.90 of 0.80, staying 0.10" in capsys.readouterr().out
    screen = TextScreen()
    screen.happened(Suggested(routed.suggestion))
    assert "something for Support" in capsys.readouterr().out


async def test_watchers_are_told_of_offers_and_answers(offering):
    """With what frontends need to show them, and without the user's text."""
    chat, routed = await suggested(offering)
    await chat.say(quick_reply_id=routed.suggestion.suggestion_id)
    request = pb.WatchSessionRequest(
        session_id=chat.session_id, user_id="ana", after_revision=routed.revision - 1
    )
    told = []
    watch = offering.stub.WatchSession(request, timeout=20)
    async for response in watch:
        told += response.change.events
        if len(response.change.events) and response.change.revision == routed.revision + 1:
            break
    watch.cancel()
    kinds = [event.WhichOneof("kind") for event in told]
    assert kinds == [
        "message_routed",
        "switch_suggested",
        "switch_answered",
        "agent_handoff",
        "message_routed",
    ]
    offer, answer, sent_on = told[1].switch_suggested, told[2].switch_answered, told[4]
    assert offer.suggestion.suggestion_id == routed.suggestion.suggestion_id
    assert [option.id for option in offer.suggestion.options] == [
        option.id for option in routed.suggestion.options
    ]
    assert (offer.from_agent_id, offer.topic_model) == ("sales", "scripted-1")
    assert answer.accepted
    assert (answer.from_agent_id, answer.agent.agent_id) == ("sales", "support")
    assert sent_on.message_routed.topic_confidence == SURE
    assert b"it is broken" not in b"".join(event.SerializeToString() for event in told)


async def test_example_shows_what_topics_do(tmp_path):
    """As in the documentation: with the built-in model, and the example's agents."""
    async with serving(tmp_path, "erp_topics") as service:
        chat = service.chat()
        for text, agent, reason in (
            ("How many blue widgets are in stock?", "inventory", "TOPIC_SWITCH"),
            ("Show me order 1042", "sales_orders", "TOPIC_SWITCH"),
            ("Has it been shipped?", "sales_orders", "STICKY"),
            ("I need an invoice", "finance", "TOPIC_SWITCH"),
        ):
            routed = await chat.say(text)
            assert went(routed.dispatch) == (agent, reason), text
            assert routed.supervisor_bypassed
            await chat.answer(routed.dispatch, "Here you are.")
        spanish = service.chat()
        spanish.profile = {"locale": "es"}
        routed = await spanish.say("¿Cuántas piezas azules hay en el almacén?")
        assert went(routed.dispatch) == ("inventory", "TOPIC_SWITCH")
        assert went((await service.chat().say("hello")).dispatch)[0] == "orchestrator"
