"""Handoffs: which caller may hand the conversation to which agent, and what data goes along."""

import pytest

from agent_routing.v1 import clear_scope_pb2, handoff_pb2, item_pb2, routing_service_pb2
from tests.rpc.live_service import (
    INTERLUDE,
    ask,
    fresh_id,
    hand_to,
    handed_from,
    initiator,
    mode,
    outcome,
    outcome_status,
    refusal,
    serving,
    stack,
    task_status,
    went,
)
from tests.rpc.registries import DESK

SUPERVISOR = handoff_pb2.INITIATOR_SUPERVISOR
AGENT = handoff_pb2.INITIATOR_AGENT
USER = handoff_pb2.INITIATOR_USER
OPERATOR = handoff_pb2.INITIATOR_OPERATOR


@pytest.fixture
async def service(tmp_path):
    """A help desk whose agents differ in one thing each."""
    async with serving(tmp_path, DESK) as running:
        yield running


# --- three kinds of handoff ---


async def test_supervisor_hands_over(service):
    """Between messages: the next message goes to the agent."""
    chat = service.chat()
    routed = await chat.say()
    await chat.answer(routed.dispatch, "let me see")
    moved = await chat.set_active("sales", initiator=SUPERVISOR, reason="wants to buy")
    assert moved.agent.agent_id == "sales"
    assert (moved.agent.display_name, moved.agent.icon, moved.agent.color) == (
        "Sales",
        "cart",
        "#3366ff",
    )
    handoff = moved.handoff
    assert (handed_from(handoff), handoff.to.agent_id) == ("front", "sales")
    assert (initiator(handoff), mode(handoff), handoff.reason) == (
        "SUPERVISOR",
        "TRANSFER",
        "wants to buy",
    )
    assert moved.revision == 3
    assert all(verdict.allowed for verdict in moved.verdicts)
    assert went((await chat.say("a lamp")).dispatch) == ("sales", "STICKY")


async def test_agent_hands_over_to_another(service):
    """The supervisor is not called."""
    chat = await service.chat().with_agent("sales")
    moved = await chat.set_active("support", from_agent_id="sales", initiator=AGENT)
    assert (handed_from(moved.handoff), initiator(moved.handoff)) == ("sales", "AGENT")
    routed = await chat.say("it is broken")
    assert went(routed.dispatch) == ("support", "STICKY")
    assert service.observer.dispatches(chat.session_id)["front"] == 1


async def test_user_hands_over(service):
    """A button of the frontend; only for agents that users may pick."""
    chat = await service.chat().with_agent("sales")
    moved = await chat.set_active("support", initiator=USER)
    assert initiator(moved.handoff) == "USER"
    async with chat.unchanged():
        refused = await refusal(chat.set_active("not_selectable", initiator=USER))
        assert tuple(refused) == ("FAILED_PRECONDITION", "HANDOFF_REFUSED")
        assert refused.rules == ["user_selectable"]
        assert "cannot be chosen by users" in refused.violations["user_selectable"]
        assert refused.metadata == {
            "session_id": chat.session_id,
            "agent_id": "not_selectable",
            "from_agent_id": "support",
            "initiator": "user",
            "rules": "user_selectable",
        }


async def test_initiator_is_read_off_the_source_where_nobody_says(service):
    """Without an initiator, a handoff from the supervisor counts as the supervisor's."""
    chat = service.chat()
    await chat.say()
    assert initiator((await chat.set_active("sales")).handoff) == "SUPERVISOR"
    assert initiator((await chat.set_active("support")).handoff) == "AGENT"
    moved = await chat.set_active("asks_only", from_agent_id="front")
    assert initiator(moved.handoff) == "SUPERVISOR"


async def test_agent_is_known_by_its_alias_in_any_case(service):
    """Frameworks use their own agent names, often with spaces; answers have the id."""
    chat = service.chat()
    routed = await chat.say()
    handed = await chat.answer(routed.dispatch, **hand_to("Sales Team"))
    assert handed.next.agent.agent_id == "sales"
    done = await chat.answer(handed.next, "here", agent_id="sales team")
    assert (outcome_status(done), done.active_agent.agent_id) == ("APPLIED", "sales")
    # The alias and the id are the same caller, so this is a repeat.
    assert await chat.answer(handed.next, "here") == done
    moved = await chat.set_active("support", from_agent_id="SALES TEAM")
    assert handed_from(moved.handoff) == "sales"
    assert (await chat.set_active("SALES")).agent.agent_id == "sales"
    assert [turn.agent_id for turn in await chat.turns(agent_id="Sales Team")] == ["sales"]
    assert "support" in await chat.agents(from_agent_id="Sales Team")
    # An unknown name must still be a valid id.
    refused = await refusal(chat.set_active("Sales Crowd"))
    assert tuple(refused) == ("INVALID_ARGUMENT", "INVALID_FIELD")
    assert refused.rules == ["agent_id"]


async def test_unknown_target_is_not_found(service):
    """The target is checked before any rule; the message lists the known agents."""
    chat = await service.chat().with_agent("sales")
    routed = await chat.say()
    async with chat.unchanged():
        for call in (
            chat.set_active("saels"),
            chat.set_active("saels", validate_only=True),
            chat.answer(routed.dispatch, **hand_to("saels")),
        ):
            refused = await refusal(call)
            assert tuple(refused) == ("NOT_FOUND", "UNKNOWN_AGENT")
            assert refused.metadata == {"agent_id": "saels"}
            assert 'agent "saels" is not registered; registered agents: front, sales' in (
                refused.message
            )
    assert await chat.audit() == []


async def test_first_handoff_makes_the_session(service):
    """A framework's run may begin before any message was routed."""
    chat = service.chat()
    moved = await chat.set_active("sales", expected_revision=0)
    assert moved.revision == 1
    status = await chat.status()
    assert (status.owner, status.active_agent.agent_id) == ("ana", "sales")
    assert went((await chat.say()).dispatch) == ("sales", "STICKY")


# --- rules, one by one ---


@pytest.mark.parametrize(
    ("target", "rule", "words"),
    [
        ("disabled", "enabled", "is disabled"),
        ("journal", "not_system", "is a system agent"),
        ("sales", "not_active", "is active already"),
        ("premium", "entitled", "requires plan:premium"),
        ("on_web", "channel", "is for the channels web"),
    ],
)
async def test_rule_that_refuses_is_named_with_its_reason(service, target, rule, words):
    """Details name the rule for programs, the message for people, the audit for operators."""
    chat = await service.chat().with_agent("sales")
    async with chat.unchanged():
        refused = await refusal(chat.set_active(target, request_id=fresh_id()))
    assert tuple(refused) == ("FAILED_PRECONDITION", "HANDOFF_REFUSED")
    assert refused.rules == [rule]
    assert words in refused.violations[rule]
    assert words in refused.message
    assert refused.metadata["rules"] == rule
    entries = await chat.audit()
    assert [(e.kind, e.revision, e.user_id) for e in entries] == [("handoff_refused", 3, "ana")]


async def test_entitled_user_on_the_right_channel_is_let_in(service):
    """The same handoffs are refused for other users."""
    chat = service.chat()
    chat.profile = {"entitlements": ["plan:premium"], "channel": "web"}
    await chat.say()
    assert (await chat.set_active("premium")).agent.agent_id == "premium"
    assert (await chat.set_active("on_web")).agent.agent_id == "on_web"
    # Entitlements stay with the session until new ones are sent; then the agent is out of reach.
    await chat.set_active("premium")
    chat.profile = {}
    assert went((await chat.say()).dispatch) == ("premium", "STICKY")
    assert went((await chat.say(entitlements=["none"])).dispatch) == ("front", "AGENT_UNAVAILABLE")


async def test_agent_hands_only_to_those_that_the_registry_names(service):
    """A handoff back to the supervisor is always allowed."""
    chat = await service.chat().with_agent("narrow")
    refused = await refusal(chat.set_active("support"))
    assert refused.rules == ["handoff_to"]
    assert refused.violations["handoff_to"] == (
        'agent "narrow" may hand to sales, not to "support"'
    )
    back = await chat.set_active("front")
    assert (back.agent.agent_id, mode(back.handoff)) == ("front", "TRANSFER")
    assert not (await chat.status()).HasField("active_agent")
    await chat.set_active("narrow")
    assert (await chat.set_active("sales")).agent.agent_id == "sales"


async def test_all_rules_that_refuse_are_named_at_once(tmp_path):
    """The caller can correct all of them at once."""
    hopeless = DESK.replace(
        "  - {id: disabled, name: Disabled, enabled: false, user_selectable: true}",
        "  - {id: disabled, name: Disabled, enabled: false, channels: [web], requires: [vip]}",
    )
    async with serving(tmp_path, hopeless) as service:
        chat = await service.chat().with_agent("owner")
        async with chat.unchanged():
            refused = await refusal(
                chat.set_active("disabled", initiator=USER, from_agent_id="support")
            )
        assert refused.rules == [
            "enabled",
            "from_agent",
            "entitled",
            "channel",
            "user_selectable",
            "owns_session",
        ]
        assert refused.metadata["rules"] == ",".join(refused.rules)


async def test_operator_is_bound_by_what_cannot_be_otherwise(service):
    """Operators are exempt from the rules on handoff targets and session owners only."""
    chat = await service.chat().with_agent("owner", **ask())
    refused = await refusal(chat.set_active("support", initiator=AGENT))
    assert refused.rules == ["handoff_to"]
    moved = await chat.set_active("support", initiator=OPERATOR, reason="complaint")
    assert (initiator(moved.handoff), handed_from(moved.handoff)) == ("OPERATOR", "owner")
    assert (await chat.status()).active_agent.agent_id == "support"
    for target, rule in (("disabled", "enabled"), ("premium", "entitled"), ("on_web", "channel")):
        refused = await refusal(chat.set_active(target, initiator=OPERATOR))
        assert refused.rules == [rule]


async def test_reserved_initiators_and_modes_are_bad_fields(service):
    """Topic and completion are initiators of the service; CONSULT is not a handoff mode."""
    chat = await service.chat().with_agent("sales")
    for fields, field in (
        ({"initiator": handoff_pb2.INITIATOR_TOPIC}, "initiator"),
        ({"initiator": handoff_pb2.INITIATOR_COMPLETION}, "initiator"),
        ({"initiator": 99}, "initiator"),
        ({"mode": handoff_pb2.HANDOFF_MODE_CONSULT}, "mode"),
        ({"mode": handoff_pb2.HANDOFF_MODE_RETURN}, "mode"),
    ):
        refused = await refusal(chat.set_active("support", **fields))
        assert tuple(refused) == ("INVALID_ARGUMENT", "INVALID_FIELD")
        assert refused.rules == [field]


async def test_agents_that_one_may_hand_to_are_listed(service):
    """The list is for the description of a transfer tool: enabled, non-system, allowed targets."""
    response = await service.call(
        "ListAgents", routing_service_pb2.ListAgentsRequest(from_agent_id="owner")
    )
    assert [a.agent_id for a in response.agents] == ["front", "sales", "interrupts"]
    response = await service.call(
        "ListAgents", routing_service_pb2.ListAgentsRequest(from_agent_id="support")
    )
    listed = [a.agent_id for a in response.agents]
    assert "support" not in listed
    assert not {"disabled", "journal"} & set(listed)
    refused = await refusal(
        service.call("ListAgents", routing_service_pb2.ListAgentsRequest(from_agent_id="nobody"))
    )
    assert tuple(refused) == ("NOT_FOUND", "UNKNOWN_AGENT")


# --- stale and doubled handoffs ---


async def test_stale_handoff_is_refused(service):
    """An agent that no longer has the conversation cannot hand it over."""
    chat = await service.chat().with_agent("sales")
    await chat.set_active("support", from_agent_id="sales")
    async with chat.unchanged():
        refused = await refusal(chat.set_active("asks_only", from_agent_id="sales"))
    assert refused.rules == ["from_agent"]
    assert 'the conversation is with "support", not with "sales"' in refused.message


async def test_doubled_handoff_is_refused(service):
    """The second of two equal handoffs is refused, because the target is active already."""
    chat = await service.chat().with_agent("sales")
    await chat.set_active("support", from_agent_id="sales")
    refused = await refusal(chat.set_active("support", from_agent_id="sales"))
    assert refused.rules == ["not_active", "from_agent"]


async def test_handoff_in_a_turn_is_its_holder_s(service):
    """The holder may also be an agent that is not active."""
    chat = await service.chat().with_agent("sales")
    await chat.say("/supervisor")
    routed = await chat.say("who can help?")
    assert routed.dispatch.agent.agent_id == "front"
    refused = await refusal(
        chat.set_active("support", turn_request_id=routed.request_id, from_agent_id="sales")
    )
    assert refused.rules == ["from_agent"]
    assert 'the turn is held by "front", not by "sales"' in refused.message
    moved = await chat.set_active(
        "support", turn_request_id=routed.request_id, from_agent_id="front"
    )
    assert moved.agent.agent_id == "support"


async def test_handoff_in_a_turn_that_was_overtaken_is_refused(service):
    """A newer message overtook the turn, so its handoffs no longer count."""
    chat = await service.chat().with_agent("sales")
    old = await chat.say("one")
    await chat.say("two")
    async with chat.unchanged():
        refused = await refusal(chat.set_active("support", turn_request_id=old.request_id))
    assert refused.rules == ["live_turn"]


async def test_handoff_in_a_closed_turn_is_refused(service):
    """The error says how to hand over: without the turn."""
    chat = await service.chat().with_agent("sales")
    routed = await chat.say("one")
    await chat.answer(routed.dispatch, "answered")
    refused = await refusal(chat.set_active("support", turn_request_id=routed.request_id))
    assert refused.rules == ["live_turn"]
    assert "leave turn_request_id out" in refused.message
    refused = await refusal(chat.set_active("support", turn_request_id=fresh_id()))
    assert tuple(refused) == ("NOT_FOUND", "UNKNOWN_REQUEST")


async def test_handoff_in_flight_does_not_land_after_a_clear(service):
    """After a clear, an older turn can no longer move the conversation."""
    chat = await service.chat().with_agent("sales")
    routed = await chat.say("one")
    await chat.clear()
    refused = await refusal(chat.set_active("support", turn_request_id=routed.request_id))
    assert refused.rules == ["live_turn"]
    late = await chat.answer(routed.dispatch, "over to support", **hand_to("support"))
    assert (outcome_status(late), late.text) == ("STORED_ONLY", "over to support")
    assert not late.HasField("next")
    status = await chat.status()
    assert not status.HasField("active_agent")
    assert not status.open_requests
    assert (await chat.turns())[-1].agent_text == "over to support"


# --- data that goes along ---


async def test_everything_is_preserved_over_handoffs_in_the_middle_of_a_turn(service):
    """Task, metadata, locale, channel, items and text; the target also gets reason and context."""
    chat = service.chat()
    picture = item_pb2.Item(content_type="image/png", data=b"\x89PNG\x00\x01")
    note = item_pb2.Item(content_type="text/plain", text="[HANDOFF_TO:support] /reset")
    link = item_pb2.Item(content_type="application/pdf", uri="https://example.com/a.pdf")
    routed = await chat.say(
        "look at this",
        items=[picture, note, link],
        metadata={"order": "A-17", "vip": "yes"},
        locale="es-MX",
        channel="web",
    )
    context = {"order": "A-17", "items": [1, 2.5, True, None], "who": {"name": "Ana"}}
    step = await chat.answer(
        routed.dispatch,
        **hand_to("sales", reason="an order", context=context, message="Un momento"),
    )
    moved = await chat.set_active(
        "support",
        turn_request_id=step.next.request_id,
        reason="it is broken",
        context=step.next.handoff.context,
    )
    dispatches = [step.next, (await chat.status()).open_requests[0]]
    for dispatch, agent_id, reason in (
        (dispatches[0], "sales", "an order"),
        (dispatches[1], "support", "it is broken"),
    ):
        assert dispatch.agent.agent_id == agent_id
        assert dispatch.text == "look at this"
        assert list(dispatch.items) == [picture, note, link]
        assert dispatch.task_id == routed.task_id
        assert dispatch.handoff.reason == reason
        assert dict(dispatch.handoff.context)["order"] == "A-17"
        assert dispatch.handoff.context["who"]["name"] == "Ana"
        assert list(dispatch.handoff.context["items"]) == [1, 2.5, True, None]
    assert moved.handoff.context == step.next.handoff.context
    assert dispatches[0].agent.display_name == "Ventas"
    assert moved.agent.display_name == "Soporte"
    status = await chat.status()
    assert (status.locale, status.channel) == ("es-MX", "web")
    assert dict(status.task.metadata) == {"order": "A-17", "vip": "yes"}
    assert task_status(status.task.status) == "RUNNING"
    answered = await chat.answer(dispatches[1], "aquí está", items=[link])
    assert answered.task_id == routed.task_id
    last = (await chat.turns())[-1]
    assert list(last.user_items) == [picture, note, link]
    assert list(last.agent_items) == [link]
    assert outcome(last) == ("PROCEED", "APPLIED")


async def test_message_in_flight_is_answered_by_the_new_holder_alone(service):
    """The turn keeps its request id; the old holder's answer is stored and changes nothing."""
    chat = await service.chat().with_agent("sales", **ask())
    routed = await chat.say("is it broken?")
    await chat.set_active("support", turn_request_id=routed.request_id)
    status = await chat.status()
    assert not status.locked
    assert [(d.request_id, d.agent.agent_id) for d in status.open_requests] == [
        (routed.request_id, "support")
    ]
    answered = await chat.answer(status.open_requests[0], "yes", **ask())
    assert (answered.active_agent.agent_id, answered.locked) == ("support", True)


async def test_handoff_between_messages_ends_the_lock(service):
    """The agent that asked is no longer active, and the new one has not asked a question."""
    chat = await service.chat().with_agent("sales", **ask())
    await chat.set_active("support")
    status = await chat.status()
    assert (status.active_agent.agent_id, status.locked) == ("support", False)


async def test_interlude_between_messages_keeps_the_lock_below(service):
    """The interrupted agent's question is open again after its return."""
    chat = await service.chat().with_agent("sales", **ask())
    moved = await chat.set_active("support", mode=INTERLUDE)
    assert mode(moved.handoff) == "INTERLUDE"
    status = await chat.status()
    assert (stack(status), status.return_stack[0].locked) == (["sales"], True)
    assert not status.locked
    back = await chat.set_active("sales")
    assert mode(back.handoff) == "RETURN"
    assert (await chat.status()).locked
    assert went((await chat.say("red")).dispatch) == ("sales", "RETURNED")


# --- clearing ---


async def test_clear_gives_the_conversation_back_to_the_supervisor(service):
    """Active agent, lock and stack are cleared; the task stays open."""
    chat = await service.chat().with_agent("sales", **ask())
    await chat.set_active("support", mode=INTERLUDE)
    cleared = await chat.clear(reason="operator")
    assert (cleared.previous_agent.agent_id, cleared.agent.agent_id) == ("support", "front")
    status = await chat.status()
    assert not status.HasField("active_agent")
    assert not status.return_stack
    assert task_status(status.task.status) == "RUNNING"
    assert cleared.task_id == status.task.task_id


async def test_clearing_what_is_clear_writes_nothing(service):
    """There is no error and no new revision; the answer names the next agent."""
    chat = service.chat()
    routed = await chat.say()
    await chat.answer(routed.dispatch, "well")
    async with chat.unchanged():
        cleared = await chat.clear()
    assert not cleared.HasField("previous_agent")
    assert (cleared.agent.agent_id, cleared.revision) == ("front", 2)


async def test_clear_of_an_open_turn_counts_although_nobody_is_active(service):
    """A handoff that the supervisor makes in that turn must not be applied after the clear."""
    chat = service.chat()
    routed = await chat.say()
    cleared = await chat.clear()
    assert cleared.revision == 2
    refused = await refusal(chat.set_active("sales", turn_request_id=routed.request_id))
    assert refused.rules == ["live_turn"]


async def test_clear_of_the_session_cancels_its_task_and_turns(service):
    """The same effect as the user's /reset."""
    chat = await service.chat().with_agent("sales")
    await chat.say("one")
    cleared = await chat.clear(scope=clear_scope_pb2.CLEAR_SCOPE_SESSION)
    assert cleared.previous_agent.agent_id == "sales"
    status = await chat.status()
    assert task_status(status.task.status) == "CANCELLED"
    assert not status.open_requests


async def test_unknown_session_is_not_found(service):
    """Every RPC refuses it, and no call creates it."""
    chat = service.chat()
    request = fresh_id()
    dispatch = routing_service_pb2.RouteResponse().dispatch
    dispatch.request_id, dispatch.agent.agent_id = request, "sales"
    for call in (chat.status(), chat.clear(), chat.turns(), chat.tasks(), chat.agents()):
        refused = await refusal(call)
        assert tuple(refused) == ("NOT_FOUND", "UNKNOWN_SESSION")
        assert refused.metadata == {"session_id": chat.session_id}
    refused = await refusal(chat.answer(dispatch))
    assert tuple(refused) == ("NOT_FOUND", "UNKNOWN_SESSION")
    assert await chat.changes() == []
