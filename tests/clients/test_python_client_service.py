"""Both Python clients with the service itself: its answers, its refusals, its outages."""

import asyncio
from contextlib import asynccontextmanager

import pytest

import agent_routing
from agent_routing import content, errors, outcomes
from agent_routing.v1.routing_service_pb2 import CompleteTurnResponse
from agent_routing.v1.task_pb2 import TASK_STATUS_COMPLETED
from routing_service.server.server import RoutingServer
from routing_service.settings.settings import Settings
from routing_service.storage.memory_store import MemoryStore
from routing_service.storage.store import StoreUnavailable
from tests.rpc.live_service import serving
from tests.rpc.registries import DESK

UNKNOWN_ID = "0198a6c0-6d02-7c3b-8f64-77d0c1a9be05"


@pytest.fixture
async def desk(tmp_path):
    """A help desk: front routes, sales and support stick."""
    async with serving(tmp_path, DESK) as running:
        yield running


@pytest.fixture
async def client(connect, desk):
    """A client of either kind for the help desk."""
    return connect(desk.server.address)


async def test_a_conversation_from_the_first_message_to_the_last(client):
    """What the README shows: route, hand over, stick, ask, complete; history and tasks after it."""
    first = await client.route("I want to buy", user_id="ana", metadata={"ticket": "7"})
    assert (first.agent_id, first.reason) == ("front", "NO_ACTIVE_AGENT")
    assert first.dispatch.request_id == first.request_id
    chat = {"session_id": first.session_id, "user_id": "ana"}
    handed = await client.complete_turn(
        request_id=first.request_id,
        agent_id="front",
        outcome=outcomes.handoff("sales", reason="a purchase", context={"basket": [1, 2]}),
        text="Sales will help you",
        **chat,
    )
    assert handed.next.agent.agent_id == "sales"
    assert handed.next.handoff.context["basket"][1] == 2
    asked = await client.complete_turn(
        request_id=handed.next.request_id,
        agent_id="sales",
        outcome=outcomes.follow_up(timeout=600),
        text="How many?",
        steps=[content.step("lookup", kind="tool", duration=0.2)],
        **chat,
    )
    assert asked.locked
    second = await client.route("three", **chat)
    assert (second.agent_id, second.reason, second.locked) == ("sales", "FOLLOW_UP_LOCK", True)
    assert second.supervisor_bypassed
    assert not second.degraded
    assert [turn.agent_text for turn in second.dispatch.history] == ["How many?"]
    done = await client.complete_turn(
        request_id=second.request_id,
        agent_id="sales",
        outcome=outcomes.complete(summary="sold three"),
        text="Sold",
        **chat,
    )
    assert done.task_status == TASK_STATUS_COMPLETED
    status = await client.status(**chat)
    assert status.next_agent.agent_id == "front"
    assert status.revision == done.revision
    [task] = await client.list_tasks(statuses=["COMPLETED"], **chat)
    assert (task.task_id, dict(task.metadata)) == (first.task_id, {"ticket": "7"})
    assert await client.list_tasks(statuses=["RUNNING"], **chat) == []
    turns = await client.list_turns(page_size=1, **chat)
    assert [turn.agent_id for turn in turns] == ["front", "sales", "sales"]
    assert [turn.agent_text for turn in turns] == ["Sales will help you", "How many?", "Sold"]
    assert turns[1].steps[0].duration.ToMilliseconds() == 200
    newest = await client.list_turns_page(order="NEWEST_FIRST", page_size=1, **chat)
    assert (newest.turns[0].agent_text, bool(newest.next_page_token)) == ("Sold", True)


async def test_a_framework_follows_its_own_handoffs_inside_a_turn(client):
    """SetActiveAgent moves the open turn; the target completes it under the same request id."""
    turn = await client.route("buy", session_id="moved", user_id="ana")
    moved = await client.set_active_agent(
        "moved", "sales", user_id="ana", turn_request_id=turn.request_id, initiator="SUPERVISOR"
    )
    assert moved.agent.agent_id == "sales"
    assert moved.verdicts
    answered = await client.complete_turn(
        "moved", turn.request_id, "sales", outcomes.proceed(), text="hello", user_id="ana"
    )
    assert answered.active_agent.agent_id == "sales"
    cleared = await client.clear_active_agent("moved", user_id="ana", scope="SESSION")
    assert (cleared.previous_agent.agent_id, cleared.agent.agent_id) == ("sales", "front")


async def test_a_paused_task_goes_on_when_a_person_approves(client):
    """The prompt is in the status; the decision reaches the agent, and counts once."""
    await client.set_active_agent("paid", "sales", user_id="ana")
    turn = await client.route("three, please", session_id="paid", user_id="ana")
    await client.complete_turn(
        "paid", turn.request_id, "sales", outcomes.approval_needed("Pay 20 €?"), user_id="ana"
    )
    pending = (await client.status("paid", user_id="ana")).pending_approval
    assert (pending.prompt, pending.request_id) == ("Pay 20 €?", turn.request_id)
    resumed = await client.resume_task(
        pending.task_id, pending.request_id, "APPROVE", user_id="ana", comment="go on"
    )
    assert resumed.dispatch.agent.agent_id == "sales"
    assert resumed.dispatch.resume.comment == "go on"
    info = agent_routing.CallInfo()
    again = await client.resume_task(
        pending.task_id, pending.request_id, "APPROVE", user_id="ana", comment="go on", info=info
    )
    assert (again, info.replayed) == (resumed, True)
    with pytest.raises(errors.ApprovalDecided):
        await client.resume_task(pending.task_id, pending.request_id, "REJECT", user_id="ana")


async def test_commands_and_the_registry_in_the_users_language(client):
    """Replies to show at once, and names in Spanish."""
    reply = await client.route("  /AGENTS ", session_id="es", user_id="ana", locale="es")
    assert reply.agent_id is None
    assert "Ventas" in reply.reply_text
    agents = await client.list_agents(locale="es")
    assert agents.home_agent_id == "front"
    assert {each.agent_id: each.display_name for each in agents.agents}["sales"] == "Ventas"


async def test_refusals_are_errors_that_can_be_caught_one_by_one(client):
    """The classes that a caller handles, each from the real service."""
    turn = await client.route("hello", session_id="r", user_id="ana")
    with pytest.raises(errors.HandoffRefused) as refused:
        await client.set_active_agent("r", "premium", user_id="ana", initiator="USER")
    assert refused.value.rules == ("entitled",)
    assert refused.value.agent_id == "premium"
    assert "plan:premium" in refused.value.violations[0].detail
    with pytest.raises(errors.UnknownAgent, match="biling") as unknown:
        await client.set_active_agent("r", "biling", user_id="ana")
    assert unknown.value.agent_id == "biling"
    with pytest.raises(errors.UnknownSession) as session:
        await client.status("never-seen", user_id="ana")
    assert session.value.session_id == "never-seen"
    with pytest.raises(errors.OwnerMismatch):
        await client.status("r", user_id="ben")
    with pytest.raises(errors.RevisionMismatch) as mismatch:
        await client.route("again", session_id="r", user_id="ana", expected_revision=17)
    assert (mismatch.value.expected, mismatch.value.actual) == (17, turn.revision)
    with pytest.raises(errors.RequestIdReused):
        await client.route("other", session_id="r", user_id="ana", request_id=turn.request_id)
    with pytest.raises(errors.InvalidField) as invalid:
        await client.route(
            "x" * 40_000, session_id="line\nbreak", task_id="42", history_turns=101, user_id="ana"
        )
    assert set(invalid.value.fields) == {"text", "session_id", "task_id", "history_turns"}
    await client.complete_turn("r", turn.request_id, "front", outcomes.proceed(), user_id="ana")
    with pytest.raises(errors.RequestNotOpen):
        await client.complete_turn(
            "r", turn.request_id, "front", outcomes.failure("no"), user_id="ana"
        )


async def test_completing_a_request_the_service_never_saw_is_unknown(client):
    """As after a degraded decision."""
    await client.route("hello", session_id="known", user_id="ana")
    with pytest.raises(errors.UnknownRequest, match=UNKNOWN_ID):
        await client.complete_turn("known", UNKNOWN_ID, "front", outcomes.proceed(), user_id="ana")
    with pytest.raises(errors.UnknownSession):
        await client.complete_turn("other", UNKNOWN_ID, "front", outcomes.proceed(), user_id="ana")


async def test_a_dry_run_says_what_each_rule_says(client):
    """Nothing is refused, written or learnt."""
    await client.route("hello", session_id="dry", user_id="ana")
    dry = await client.set_active_agent("dry", "premium", user_id="ana", validate_only=True)
    assert [each.rule for each in dry.verdicts if not each.allowed] == ["entitled"]
    assert (await client.status("dry", user_id="ana")).revision == 1


async def test_a_repeat_is_told_from_a_new_answer(client):
    """The service marks answers from its store."""
    first = await client.route("hello", session_id="twice", user_id="ana")
    again = await client.route(
        "hello", session_id="twice", user_id="ana", request_id=first.request_id
    )
    assert (first.replayed, again.replayed) == (False, True)
    assert again.response == first.response


async def test_tenants_are_apart(connect, desk):
    """The same session id is another session."""
    acme, other = connect(desk.server.address, tenant="acme"), connect(desk.server.address)
    await acme.route("hello", session_id="same", user_id="ana")
    with pytest.raises(errors.UnknownSession):
        await other.status("same", user_id="ana")
    assert (await acme.status("same", user_id="ana")).revision == 1


class FlakyStore(MemoryStore):
    """A store that fails when the test says so."""

    fail_before = 0
    fail_after = 0

    async def append(self, append):
        """Fail before or after the write, as often as the test says."""
        if self.fail_before:
            self.fail_before -= 1
            raise StoreUnavailable("the disk is away")
        await super().append(append)
        if self.fail_after:
            self.fail_after -= 1
            raise StoreUnavailable("the disk answered too late")


@asynccontextmanager
async def failing(folder, store):
    """Run the help desk over a store that fails; its failures are expected."""
    async with serving(folder, DESK, shared=store) as running:
        yield running
        assert {type(each) for each in running.observer.failures} == {StoreUnavailable}
        running.observer.failures.clear()


async def test_a_change_that_was_kept_before_the_answer_was_lost_is_made_once(tmp_path, connect):
    """Written, then timed out: the repeat with the same request id gets the first answer."""
    store = FlakyStore()
    async with failing(tmp_path, store) as running:
        client = connect(running.server.address)
        await client.route("hello", session_id="once", user_id="ana")
        store.fail_after = 1
        info = agent_routing.CallInfo()
        handed = await client.set_active_agent("once", "sales", user_id="ana", info=info)
        assert (info.attempts, info.replayed) == (2, True)
        store.fail_before = 1
        turn = await client.route("and", session_id="once", user_id="ana", info=info)
        assert (info.attempts, turn.replayed, turn.degraded) == (2, False, False)
        assert [handed.revision, turn.revision] == [2, 3]
        # The first message went along once.
        assert len(await client.list_turns("once", user_id="ana")) == 3


async def test_the_chat_goes_on_while_the_store_is_away(tmp_path, connect):
    """Degraded to the previous agent; later the same message is stored, once."""
    store = FlakyStore()
    async with failing(tmp_path, store) as running:
        client = connect(running.server.address)
        await client.route("hello", session_id="away", user_id="ana")
        await client.set_active_agent("away", "sales", user_id="ana")
        store.fail_before = 1_000
        degraded = await client.route("and now?", session_id="away", user_id="ana")
        assert (degraded.degraded, degraded.agent_id) == (True, "sales")
        assert degraded.dispatch.agent.display_name == "Sales"
        assert isinstance(degraded.error, errors.StoreUnavailable)
        with pytest.raises(errors.StoreUnavailable):
            await client.set_active_agent("away", "support", user_id="ana")
        store.fail_before = 0
        with pytest.raises(errors.UnknownRequest):
            await client.complete_turn(
                "away", degraded.request_id, "sales", outcomes.proceed(), user_id="ana"
            )
        stored = await client.route(
            "and now?", session_id="away", user_id="ana", request_id=degraded.request_id
        )
        assert (stored.degraded, stored.agent_id, stored.reason) == (False, "sales", "STICKY")
        answered = await client.complete_turn(
            "away", degraded.request_id, "sales", outcomes.proceed(), text="yes", user_id="ana"
        )
        assert isinstance(answered, CompleteTurnResponse)


async def test_a_degraded_message_that_was_kept_after_all_is_not_routed_twice(tmp_path, connect):
    """The store wrote it without confirming it: the later report finds it."""
    store = FlakyStore()
    async with failing(tmp_path, store) as running:
        client = connect(running.server.address, retry=agent_routing.RetryPolicy(attempts_max=1))
        await client.set_active_agent("kept", "sales", user_id="ana")
        store.fail_after = 1
        degraded = await client.route("hello", session_id="kept", user_id="ana")
        assert degraded.degraded
        later = await client.route(
            "hello", session_id="kept", user_id="ana", request_id=degraded.request_id
        )
        assert (later.degraded, later.replayed) == (False, True)
        assert len(await client.list_turns("kept", user_id="ana")) == 1


async def test_nothing_acknowledged_is_lost_over_a_restart(tmp_path, connect):
    """The service restarts on its port: degraded in between, and nothing is lost."""
    agents = tmp_path / "desk.yaml"
    await asyncio.to_thread(agents.write_text, DESK, encoding="utf-8")

    async def start(port):
        return await RoutingServer.start(
            Settings(
                listen=f"127.0.0.1:{port}",
                store=f"sqlite:///{tmp_path / 'restart.db'}",
                agents=str(agents),
            )
        )

    server = await start(0)
    try:
        client = connect(server.address)
        first = await client.route("hello", user_id="ana")
        chat = {"session_id": first.session_id, "user_id": "ana"}
        await client.set_active_agent(agent_id="sales", turn_request_id=first.request_id, **chat)
        await server.stop(0)
        degraded = await client.route("are you there?", **chat)
        assert (degraded.degraded, degraded.agent_id) == (True, "sales")
        unseen = await client.route("a new chat", user_id="ben")
        assert (unseen.degraded, unseen.agent_id) == (True, "front"), "learnt from the first answer"
        server = await start(server.port)
        # After a refused connection gRPC pauses a moment before it tries again, for all channels.
        patience = agent_routing.RetryPolicy(attempts_max=20, backoff_first_s=0.2)
        client = connect(server.address, retry=patience)
        assert not (await client.route("back?", timeout=20, **chat)).degraded
        turns = await client.list_turns(**chat)
        assert [(turn.agent_id, turn.user_text) for turn in turns] == [
            ("front", "hello"),
            ("sales", "hello"),
            ("sales", "back?"),
        ]
        answered = await client.complete_turn(
            request_id=first.request_id,
            agent_id="sales",
            outcome=outcomes.proceed(),
            text="yes",
            **chat,
        )
        assert answered.active_agent.agent_id == "sales"
    finally:
        await server.stop(0)


async def test_32_callers_of_one_session_are_all_served(client):
    """Each message is routed or refused; the client never sends a second one."""
    results = await asyncio.gather(
        *(
            client.route(f"message {number}", session_id="busy", user_id="ana", timeout=30)
            for number in range(32)
        )
    )
    assert sorted(result.revision for result in results) == list(range(1, 33))
    assert not any(result.degraded or result.replayed for result in results)
