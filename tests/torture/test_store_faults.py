"""A failing store, under the command handler and under a real server with repeating clients.

Checked: no wrong answer and no double effect. An answered write is stored once, for every kind of
store failure, and the session continues normally.
"""

import asyncio
from collections import Counter

import pytest

import agent_routing
from agent_routing import outcomes
from routing_service.core.access import Access
from routing_service.core.commands import RouteMessage
from routing_service.ids import new_uuid7
from routing_service.registry.file import check_registry_file
from routing_service.sessions.calls import Answer, Call
from routing_service.sessions.command_handler import CommandHandler
from routing_service.sessions.stickiness_switch import Source, Stickiness, Switched
from routing_service.storage.open_store import open_store
from routing_service.storage.store import SessionKey, StoreUnavailable
from tests.rpc.live_service import START_US, refusal, serving
from tests.rpc.registries import DESK
from tests.torture.faulty_store import (
    AFTER,
    CANCELLED_AFTER,
    CANCELLED_BEFORE,
    LATE,
    WRITE_FAULTS,
    FaultyStore,
)
from tests.torture.linearisability import check
from tests.torture.recorder import REFUSALS, Recorder, stored_changes
from tests.torture.stored_sessions import contradictions
from tests.torture.talkers import Talker

HAPPENED = (AFTER, LATE, CANCELLED_AFTER)


@pytest.fixture(params=["memory", "sqlite"])
async def inner(request, tmp_path):
    """A store without faults."""
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/routing.db"
    store = await open_store(url)
    yield store
    await store.close()


# --- under the command handler ---


def handler_of(store, tmp_path, heard):
    """A command handler over a store, with the help desk's registry."""
    path = tmp_path / "agents.yaml"
    path.write_text(DESK, "utf-8")
    registry = check_registry_file(str(path)).registry

    async def stickiness(_tenant):
        return Stickiness(Switched(enabled=True, time_us=0), Source.REGISTRY)

    return CommandHandler(
        store,
        lambda: registry,
        lambda: START_US,
        stickiness=stickiness,
        cache_sessions_max=100,
        publish=lambda key, change: heard.append((key, change.revision)),
    )


def message(key, request_id, text):
    """A call of Route and its command, as a servicer makes them."""
    call = Call(key, "Route", request_id, text.encode(), access=Access("ana", must_be_owner=True))
    return call, RouteMessage(request_id, text, new_uuid7(), literal_text=True)


def revision_as_answer(made):
    """The bytes of an answer, as a servicer would make them."""
    return Answer(b"answer %d" % made.revision)


@pytest.mark.parametrize("fault", WRITE_FAULTS)
async def test_repeat_after_a_fault_gets_the_one_answer(inner, tmp_path, fault):
    """Whether the write happened or not; the next message follows on it."""
    store, heard = FaultyStore(inner), []
    handler = handler_of(store, tmp_path, heard)
    key = SessionKey("default", "chat-1")
    first = await handler.handle(*message(key, new_uuid7(), "one"), revision_as_answer)
    assert first.revision == 1
    store.next_writes([fault])
    again = message(key, new_uuid7(), "two")
    if fault == LATE:
        second = await handler.handle(*again, revision_as_answer)
        assert not second.replayed
    else:
        with pytest.raises((StoreUnavailable, asyncio.CancelledError)):
            await handler.handle(*again, revision_as_answer)
        second = await handler.handle(*again, revision_as_answer)
        assert second.replayed is (fault in HAPPENED)
    assert (second.revision, second.answer.stored) == (2, b"answer 2")
    third = await handler.handle(*message(key, new_uuid7(), "three"), revision_as_answer)
    assert (third.revision, third.replayed) == (3, False)
    assert store.met[fault] == 1
    assert await contradictions(inner) == []


@pytest.mark.parametrize("fault", [CANCELLED_BEFORE, AFTER, CANCELLED_AFTER, "before"])
async def test_next_message_after_a_fault_is_decided_on_what_is_stored(inner, tmp_path, fault):
    """Also without a repeat: after an unanswered write the cache is not used."""
    store, heard = FaultyStore(inner), []
    handler = handler_of(store, tmp_path, heard)
    key = SessionKey("default", "chat-1")
    await handler.handle(*message(key, new_uuid7(), "one"), revision_as_answer)
    store.next_writes([fault])
    with pytest.raises((StoreUnavailable, asyncio.CancelledError)):
        await handler.handle(*message(key, new_uuid7(), "two"), revision_as_answer)
    seen = await handler.read(key, Access("ana", must_be_owner=True))
    assert seen.stored.revision == (2 if fault in HAPPENED else 1)
    after = await handler.handle(*message(key, new_uuid7(), "three"), revision_as_answer)
    assert after.revision == seen.stored.revision + 1
    assert len(await inner.read_changes(key, limit=10)) == after.revision


@pytest.mark.parametrize("is_shared", [False, True])
async def test_callers_who_repeat_over_a_faulty_store_are_each_applied_once(
    inner, tmp_path, is_shared
):
    """Eight callers in two sessions; a third of all store calls fail."""
    store, heard = FaultyStore(inner, seed=7, share=0.3, is_shared=is_shared), []
    handler = handler_of(store, tmp_path, heard)
    given = {}

    async def caller(number):
        key = SessionKey("default", f"chat-{number % 2}")
        for step in range(12):
            request_id = new_uuid7()
            for _ in range(200):
                try:
                    handled = await handler.handle(
                        *message(key, request_id, f"{number} {step}"), revision_as_answer
                    )
                except (StoreUnavailable, asyncio.CancelledError):
                    continue
                break
            else:
                pytest.fail("never answered")
            given[key, request_id] = handled.revision, handled.answer.stored

    await asyncio.gather(*(caller(number) for number in range(8)))
    for number in range(2):
        key = SessionKey("default", f"chat-{number}")
        changes = await inner.read_changes(key, limit=1000)
        assert [change.revision for change in changes] == list(range(1, 49))
        for change in changes:
            assert given[key, change.request_id] == (change.revision, change.answer)
    assert await contradictions(inner) == []
    # Watchers get only stored changes, and each once.
    assert max(Counter(heard).values()) == 1
    assert {place for _, place in heard} <= set(range(1, 49))
    assert all(store.met[fault] for fault in WRITE_FAULTS), store.met


# --- under a real server ---


CALLS = {
    "Route": lambda client, id_: client.route("more", session_id="chat-1", request_id=id_),
    "SetActiveAgent": lambda client, id_: client.set_active_agent(
        "chat-1", "support", request_id=id_
    ),
    "ClearActiveAgent": lambda client, id_: client.clear_active_agent("chat-1", request_id=id_),
}


async def answered_in_the_end(send):
    """Send until answered; a store's faults never cause a refusal."""
    failed = []
    while True:
        try:
            return await send(), failed
        except agent_routing.RoutingError as error:
            if error.code in REFUSALS:
                raise
            failed.append(error.code.name)


@pytest.mark.parametrize("rpc", [*CALLS, "CompleteTurn"])
@pytest.mark.parametrize("fault", WRITE_FAULTS)
async def test_client_s_repeat_over_the_wire_gets_the_one_answer(tmp_path, rpc, fault):
    """Every writing RPC, every fault: one change, one answer, and watchers get it once."""
    inner = await open_store("memory:")
    store = FaultyStore(inner)
    recorder = Recorder()
    async with (
        serving(tmp_path, DESK, shared=store) as service,
        agent_routing.AsyncClient(
            service.server.address,
            fallback=None,
            retry=agent_routing.RetryPolicy(attempts_max=1),
        ) as plain,
    ):
        client = recorder.wrap(plain)
        routed = await client.route("hello", session_id="chat-1")
        await client.set_active_agent("chat-1", "sales")
        store.next_writes([fault])
        request_id = new_uuid7()
        if rpc == "CompleteTurn":
            dispatch = routed.dispatch
            _, failed = await answered_in_the_end(
                lambda: client.complete_turn(
                    "chat-1",
                    dispatch.request_id,
                    dispatch.agent.agent_id,
                    outcomes.proceed(),
                    text="so it is",
                )
            )
        else:
            _, failed = await answered_in_the_end(lambda: CALLS[rpc](client, request_id))
        assert failed == ([] if fault == LATE else ["UNAVAILABLE"])
        assert recorder.history[-1].replayed is (fault in HAPPENED and fault != LATE)
        assert (await client.status("chat-1")).revision == 3
        assert await client.route("and on", session_id="chat-1")
        watched = [change async for change in first_changes(plain, 4)]
        assert watched == [1, 2, 3, 4]
        assert check(recorder.history, await stored_changes(inner)) == []
        assert await contradictions(inner) == []
        forgive(service)


async def first_changes(client, last):
    """Watch from the first change to the last."""
    async for change in client.watch_session("chat-1", after_revision=0):
        yield change.revision
        if change.revision >= last:
            return


def forgive(service):
    """Clear the store's failures, which the test caused; any other kind fails the test."""
    assert all(isinstance(failure, StoreUnavailable) for failure in service.observer.failures)
    service.observer.failures.clear()


async def talk_over_faults(tmp_path, inner, *, seed, share, is_shared, talkers_count, steps):
    """Make random calls over a store that fails at random; check everything."""
    store = FaultyStore(inner, seed=seed, is_shared=is_shared)
    recorder = Recorder()
    async with (
        serving(tmp_path, DESK, shared=store) as service,
        agent_routing.AsyncClient(
            service.server.address,
            fallback=None,
            # The service asks for a second's delay before a repeat; the talkers skip it.
            retry=agent_routing.RetryPolicy(attempts_max=1),
        ) as plain,
    ):
        talkers = [
            Talker(recorder.wrap(plain, f"client-{n}"), f"chat-{n // 3}", f"{seed}-{n}", 0.001)
            for n in range(talkers_count)
        ]
        # Each kind of fault for certain, then at random.
        store.next_writes(WRITE_FAULTS)
        store.share = share

        async def talk(talker):
            for _ in range(steps):
                await talker.step()

        await asyncio.gather(*(talk(talker) for talker in talkers))
        await asyncio.gather(*(talker.repeat_all() for talker in talkers))
        store.share = 0
        assert check(recorder.history, await stored_changes(inner)) == []
        assert await contradictions(inner) == []
        forgive(service)
    return recorder.history, store.met


@pytest.mark.parametrize("is_shared", [False, True])
async def test_clients_who_repeat_over_a_faulty_store_see_one_history(inner, tmp_path, is_shared):
    """Every sixth call of the store fails; every answer is one that a correct store leads to."""
    history, met = await talk_over_faults(
        tmp_path, inner, seed=11, share=0.15, is_shared=is_shared, talkers_count=6, steps=15
    )
    assert len(history) > 90
    assert all(met[fault] for fault in WRITE_FAULTS), met


@pytest.mark.torture
@pytest.mark.timeout(900)
@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("seed", range(5))
async def test_clients_who_repeat_over_a_faulty_store_see_one_history_for_long(
    inner, tmp_path, seed, is_shared
):
    """The same for long, with a quarter of the store's calls failing."""
    history, met = await talk_over_faults(
        tmp_path, inner, seed=seed, share=0.25, is_shared=is_shared, talkers_count=12, steps=120
    )
    print(f"store faults: seed {seed}, {len(history)} calls, {dict(met)}")  # noqa: T201
    assert len(history) > 12 * 120


async def test_watcher_is_told_of_a_change_whose_caller_was_cancelled(tmp_path):
    """It was committed without an answer; watchers get it anyway."""
    inner = await open_store("memory:")
    store = FaultyStore(inner)
    async with (
        serving(tmp_path, DESK, shared=store) as service,
        agent_routing.AsyncClient(service.server.address) as plain,
    ):
        chat = service.chat("chat-1")
        await chat.say("one")
        heard = first_changes(plain, 2)
        assert await anext(heard) == 1
        store.next_writes([CANCELLED_AFTER])
        assert (await refusal(chat.say("two"))).code == "UNAVAILABLE"
        assert await asyncio.wait_for(anext(heard), 30) == 2
        await heard.aclose()
        forgive(service)
