"""Stickiness: the active agent stays active over messages, restarts, crashes and instances."""

import asyncio
import signal
import uuid
from contextlib import asynccontextmanager

import grpc
import pytest

from agent_routing.v1 import routing_service_pb2, routing_service_pb2_grpc
from routing_service.storage.memory_store import MemoryStore
from tests.rpc.live_service import (
    ask,
    fresh_id,
    hand_to,
    is_replayed,
    reason,
    refusal,
    serving,
    stack,
    task_status,
    went,
)
from tests.rpc.registries import DESK


@pytest.fixture
async def service(tmp_path):
    """A help desk whose agents differ in one thing each."""
    async with serving(tmp_path, DESK) as running:
        yield running


async def test_first_message_goes_to_the_supervisor(service):
    """A new session has no active agent, so the supervisor decides."""
    routed = await service.chat().say("hello")
    assert went(routed.dispatch) == ("front", "NO_ACTIVE_AGENT")
    assert routed.revision == 1
    assert routed.dispatch.text == "hello"
    assert not routed.supervisor_bypassed
    assert not routed.HasField("reply")
    assert not routed.dispatch.HasField("handoff")


async def test_agent_sticks_after_a_handoff(service):
    """Later messages go straight to the agent: the supervisor is called once in five messages."""
    chat = await service.chat().with_agent("sales")
    for number in range(4):
        routed = await chat.say(f"question {number}")
        assert went(routed.dispatch) == ("sales", "STICKY")
        assert routed.supervisor_bypassed
        assert not routed.dispatch.locked
        answered = await chat.answer(routed.dispatch, "an answer")
        assert answered.active_agent.agent_id == "sales"
    assert service.observer.dispatches(chat.session_id) == {"front": 1, "sales": 5}
    assert dict((await chat.status()).turns_by_agent) == {"front": 1, "sales": 5}


async def test_supervisor_that_answers_itself_gets_the_next_message_too(service):
    """A supervisor never becomes active: it gets every message until it hands over."""
    chat = service.chat()
    for _ in range(3):
        routed = await chat.say()
        assert went(routed.dispatch) == ("front", "NO_ACTIVE_AGENT")
        await chat.answer(routed.dispatch, "I can tell you that myself")
        assert not (await chat.status()).HasField("active_agent")


async def test_message_without_a_session_begins_one_with_the_supervisor(service):
    """A message without a session id begins a new session, also if the user has others open."""
    await service.chat().with_agent("sales")
    first = await service.chat().say("hello", session_id="")
    second = await service.chat().say("hello", session_id="")
    assert went(first.dispatch) == went(second.dispatch) == ("front", "NO_ACTIVE_AGENT")
    assert first.session_id != second.session_id
    for routed in (first, second):
        assert uuid.UUID(routed.session_id).version == 7
        status = await service.chat(routed.session_id).status()
        assert (status.owner, status.revision) == ("ana", 1)


async def test_message_without_a_session_looks_for_none(tmp_path):
    """Its session id is new, so the server does not read the store for it."""
    loads = []

    class Counting(MemoryStore):
        async def load(self, key):
            loads.append(key.session_id)
            return await super().load(key)

    async with serving(tmp_path, DESK, shared=Counting()) as service:
        first = await service.chat().say("hello", session_id="")
        assert first.revision == 1
        assert loads == []
        named = await service.chat("named").say("hello")
        assert (named.revision, loads) == (1, ["named"])


async def test_repeat_without_a_session_finds_the_same_session(service):
    """A retry of a first message does not begin a second conversation."""
    request_id = fresh_id()
    first = await service.chat().say("hello", session_id="", request_id=request_id)
    again = service.chat().say("hello", session_id="", request_id=request_id)
    assert await again == first
    assert await is_replayed(again)
    assert len(await service.chat(first.session_id).turns()) == 1


async def test_session_made_for_a_request_is_that_user_s_and_tenant_s_own(service):
    """Two users with the same request id get different sessions."""
    request_id = fresh_id()
    routed = [
        await service.chat("", user_id, tenant).say("hi", session_id="", request_id=request_id)
        for user_id, tenant in (("ana", ""), ("ben", ""), ("ana", "acme"), ("an", "aacme"))
    ]
    assert len({response.session_id for response in routed}) == 4
    assert all(went(response.dispatch) == ("front", "NO_ACTIVE_AGENT") for response in routed)


async def test_sticky_agent_survives_restart(tmp_path):
    """Active agent, lock, interrupted agents, task and open request are all stored."""
    async with serving(tmp_path, DESK) as service:
        chat = await service.chat("kept").with_agent("sales", **ask())
        routed = await chat.say("wait", metadata={"ticket": "17"})
        handed = await chat.answer(routed.dispatch, "a moment", **hand_to("interrupts"))
        await chat.answer(handed.next, "how are you?", **ask())
        open_request = await chat.say("fine, and")
        before = await chat.status()
        turns = await chat.turns()
    async with serving(tmp_path, DESK) as service:
        chat = service.chat("kept")
        assert await chat.status() == before
        assert await chat.turns() == turns
        assert before.active_agent.agent_id == "interrupts"
        assert before.locked
        assert stack(before) == ["sales"]
        assert before.return_stack[0].locked
        assert dict(before.task.metadata) == {"ticket": "17"}
        answered = await chat.answer(open_request.dispatch, "good", **ask())
        assert answered.locked
        routed = await chat.say("yes")
        assert went(routed.dispatch) == ("interrupts", "FOLLOW_UP_LOCK")
        assert [turn.agent_text for turn in routed.dispatch.history] == ["how are you?", "good"]


async def test_request_answered_before_a_restart_is_answered_the_same_after_it(tmp_path):
    """A caller that did not get the answer repeats its call, also over a restart."""
    request_id = fresh_id()
    async with serving(tmp_path, DESK) as service:
        first = await service.chat("repeated").say("hello", request_id=request_id)
    async with serving(tmp_path, DESK) as service:
        again = service.chat("repeated").say("hello", request_id=request_id)
        assert (await again).SerializeToString() == first.SerializeToString()
        assert await is_replayed(again)


async def test_sticky_agent_survives_a_killed_process(serve_process, tmp_path):
    """An answer is sent only after it is on disk: SIGKILL right after it loses nothing."""
    agents = tmp_path / "agents.yaml"
    agents.write_text(DESK, encoding="utf-8")
    process = await serve_process(agents=agents)
    async with calling(process.address) as stub:
        routed = await stub.Route(message("killed", "I want to buy"))
        await stub.SetActiveAgent(
            routing_service_pb2.SetActiveAgentRequest(
                session_id="killed",
                user_id="ana",
                agent_id="sales",
                turn_request_id=routed.request_id,
            )
        )
        process.send(signal.SIGKILL)
        await process.end()
    process = await serve_process(agents=agents)
    async with calling(process.address) as stub:
        status = await stub.Status(routing_service_pb2.StatusRequest(session_id="killed"))
        assert (status.active_agent.agent_id, status.revision) == ("sales", 2)
        assert [d.agent.agent_id for d in status.open_requests] == ["sales"]
        routed = await stub.Route(message("killed", "and another thing"))
        assert went(routed.dispatch) == ("sales", "STICKY")


def message(session_id, text):
    """Return a user's message."""
    return routing_service_pb2.RouteRequest(session_id=session_id, user_id="ana", text=text)


@asynccontextmanager
async def calling(address):
    """Open a channel to a server process."""
    async with grpc.aio.insecure_channel(address) as channel:
        yield routing_service_pb2_grpc.RoutingServiceStub(channel)


class SharedStore(MemoryStore):
    """A store that other instances write to as well, like a database server."""

    @property
    def shared_writers(self):
        return True

    async def close(self):
        """The store stays open when an instance stops."""


@asynccontextmanager
async def two_instances(folder):
    """Run two servers over one store."""
    store = SharedStore()
    async with (
        serving(folder, DESK, shared=store) as one,
        serving(folder, DESK, shared=store) as two,
    ):
        yield one, two


async def test_active_agent_is_the_same_from_every_instance(tmp_path):
    """Each instance caches the session but checks the store."""
    async with two_instances(tmp_path) as (one, two):
        here, there = one.chat("shared"), two.chat("shared")
        await here.with_agent("sales")
        assert went((await there.say("more")).dispatch) == ("sales", "STICKY")
        assert (await here.status()).revision == 4
        cleared = await there.clear()
        assert cleared.previous_agent.agent_id == "sales"
        assert not (await here.status()).HasField("active_agent")
        assert went((await here.say("again")).dispatch) == ("front", "NO_ACTIVE_AGENT")
        await there.set_active("support")
        assert went((await here.say("again")).dispatch) == ("support", "STICKY")
        assert await here.status() == await there.status()
        assert await here.turns() == await there.turns()


async def test_turn_begun_on_one_instance_is_completed_on_another(tmp_path):
    """A load balancer may send each call to another instance."""
    async with two_instances(tmp_path) as (one, two):
        here, there = one.chat("shared"), two.chat("shared")
        routed = await here.say("hello")
        handed = await there.answer(routed.dispatch, "to sales", **hand_to("sales"))
        assert handed.next.text == "hello"
        answered = await here.answer(handed.next, "what size?", **ask())
        assert answered.locked
        assert reason((await there.say("large")).dispatch) == "FOLLOW_UP_LOCK"


async def test_repeat_on_another_instance_gets_the_first_answer(tmp_path):
    """Requests are applied once over all instances: the store knows the request."""
    async with two_instances(tmp_path) as (one, two):
        request_id = fresh_id()
        first = await one.chat("shared").say("hello", request_id=request_id)
        again = two.chat("shared").say("hello", request_id=request_id)
        assert (await again).SerializeToString() == first.SerializeToString()
        assert await is_replayed(again)
        handed = await one.chat("shared").answer(first.dispatch, "to sales", **hand_to("sales"))
        repeated = two.chat("shared").answer(first.dispatch, "to sales", **hand_to("sales"))
        assert (await repeated).SerializeToString() == handed.SerializeToString()
        assert await is_replayed(repeated)


async def test_refusal_is_never_decided_on_an_old_state(tmp_path):
    """An instance with an old cache reads the store again before it refuses."""
    async with two_instances(tmp_path) as (one, two):
        here, there = one.chat("shared"), two.chat("shared")
        await here.with_agent("sales")
        await there.set_active("support")
        # In this instance's cache, sales is still active.
        moved = await here.set_active("sales")
        assert (moved.agent.agent_id, moved.revision) == ("sales", 5)
        refused = await refusal(there.set_active("sales"))
        assert refused.rules == ["not_active"]


async def test_instances_that_write_one_session_at_once_lose_nothing(tmp_path):
    """Every call is applied once, on either instance, and revisions have no gap."""
    async with two_instances(tmp_path) as (one, two):
        chats = [instance.chat("shared") for instance in (one, two)]
        routed = await asyncio.gather(*(chats[n % 2].say(f"message {n}") for n in range(12)))
        assert sorted(response.revision for response in routed) == list(range(1, 13))
        assert [c.revision for c in await chats[0].changes()] == list(range(1, 13))
        texts = [turn.user_text for turn in await chats[1].turns()]
        assert sorted(texts) == sorted(f"message {n}" for n in range(12))


async def test_channel_and_locale_stay_with_the_session(service):
    """A message without channel and locale has those of the message before."""
    chat = service.chat()
    await chat.say("hola", locale="es", channel="whatsapp")
    await chat.say("otra cosa")
    status = await chat.status()
    assert (status.channel, status.locale) == ("whatsapp", "es")
    routed = await chat.say("third", channel="web")
    assert routed.dispatch.agent.display_name == "Recepción"
    status = await chat.status()
    assert (status.channel, status.locale) == ("web", "es")


async def test_agent_that_is_not_on_this_channel_is_kept_for_its_own(service):
    """The supervisor answers on the wrong channel; on the right one the agent is active again."""
    chat = service.chat()
    chat.profile = {"channel": "web"}
    await chat.with_agent("on_web")
    chat.profile = {"channel": "whatsapp"}
    routed = await chat.say("from my telephone")
    assert went(routed.dispatch) == ("front", "AGENT_UNAVAILABLE")
    status = await chat.status()
    assert (status.active_agent.agent_id, status.next_agent.agent_id) == ("on_web", "front")
    await chat.answer(routed.dispatch, "that works on the web only")
    chat.profile = {"channel": "web"}
    assert went((await chat.say("at my desk again")).dispatch) == ("on_web", "STICKY")


async def test_agent_missing_from_the_registry_is_kept_until_it_is_back(tmp_path):
    """A rollout that lost an agent does not end its conversations."""
    without_sales = DESK.replace(
        "  - id: sales\n    aliases", "  - id: sells\n    aliases"
    ).replace("handoff_to: [sales", "handoff_to: [sells")
    async with serving(tmp_path, DESK) as service:
        await service.chat("kept").with_agent("sales")
    async with serving(tmp_path, without_sales) as service:
        chat = service.chat("kept")
        assert went((await chat.say()).dispatch) == ("front", "AGENT_UNAVAILABLE")
        status = await chat.status()
        assert (status.active_agent.agent_id, status.next_agent.agent_id) == ("sales", "front")
        assert not status.active_agent.enabled
    async with serving(tmp_path, DESK) as service:
        assert went((await service.chat("kept").say()).dispatch) == ("sales", "STICKY")


async def test_with_stickiness_off_the_supervisor_gets_every_message(tmp_path):
    """Handoffs still move the message, and the earlier active agent is kept."""
    async with serving(tmp_path, DESK) as service:
        await service.chat("kept").with_agent("sales", **ask())
    async with serving(tmp_path, DESK, stickiness="disabled") as service:
        chat = service.chat("kept")
        routed = await chat.say("more")
        assert went(routed.dispatch) == ("front", "STICKINESS_DISABLED")
        handed = await chat.answer(routed.dispatch, **hand_to("support"))
        assert went(handed.next) == ("support", "SUPERVISOR_HANDOFF")
        answered = await chat.answer(handed.next, "done", **ask())
        assert answered.active_agent.agent_id == "sales"
        assert (await chat.status()).next_agent.agent_id == "front"
        assert went((await chat.say("again")).dispatch) == ("front", "STICKINESS_DISABLED")
        kinds = await chat.kinds()
        assert kinds.count("AgentHandedOff") == 2
    async with serving(tmp_path, DESK) as service:
        routed = await service.chat("kept").say("and now")
        assert went(routed.dispatch) == ("sales", "FOLLOW_UP_LOCK")


async def test_status_tells_the_whole_session(service):
    """Active agent, next agent, the task and its times, and the number of answers per agent."""
    chat = service.chat()
    chat.profile = {"locale": "es", "channel": "web"}
    await chat.with_agent("sales", **ask(timeout_s=90))
    service.clock.advance(5)
    status = await chat.status()
    assert status.session_id == chat.session_id
    assert status.active_agent.agent_id == status.next_agent.agent_id == "sales"
    assert status.active_agent.display_name == "Ventas"
    assert status.locked
    waited = status.lock_expire_time.ToMicroseconds() - status.update_time.ToMicroseconds()
    assert waited == 90_000_000
    assert task_status(status.task.status) == "RUNNING"
    assert status.registry_version == "desk-1"
    assert (status.locale, status.channel, status.owner) == ("es", "web", "ana")
    assert status.create_time.ToMicroseconds() == status.update_time.ToMicroseconds()
    assert not status.open_requests
    assert not status.return_stack
