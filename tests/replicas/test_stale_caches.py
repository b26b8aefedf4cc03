"""A replica with an outdated cache of a session never answers from it."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from agent_routing.v1 import admin_service_pb2, routing_service_pb2
from routing_service.registry.file import parse_registry
from routing_service.sessions import appends
from routing_service.sessions.session_cache import SessionCache
from routing_service.storage.audit_chain import SALT_BYTES
from routing_service.storage.memory_store import MemoryStore
from routing_service.storage.open_store import open_store
from routing_service.storage.store import SessionKey, StoreUnavailable
from tests.replicas.stale_pairs import SharedStore, StalePairs
from tests.rpc.live_service import finish, fresh_id, hand_to, is_replayed, refusal, serving, went
from tests.rpc.registries import DESK

SESSION_STEPS = 10
"""Calls in one session: most of what is special is about how one begins."""

KINDS = {
    "Route",
    "CompleteTurn",
    "SetActiveAgent",
    "ClearActiveAgent",
    "ResumeTask",
    "Status",
    "ListTurns",
    "ListTasks",
    "ListAgents",
    "answered",
    "replayed",
    "validate_only",
    "clear of what is clear",
    "HANDOFF_REFUSED",
    "OWNER_MISMATCH",
    "REVISION_MISMATCH",
    "REQUEST_ID_REUSED",
    "UNKNOWN_SESSION",
    "UNKNOWN_REQUEST",
    "UNKNOWN_AGENT",
    "TASK_NOT_PAUSED",
    "TASK_OPEN",
}
"""What has to have been among the calls and their answers."""


@pytest.fixture(autouse=True)
def _salts_alike(monkeypatch):
    """Salt the digests of changes alike, so that what two replicas store can be compared."""
    monkeypatch.setattr(appends, "new_salt", lambda: bytes(SALT_BYTES))


async def play(pairs, steps, compare):
    """Make calls to a stale replica, a few in each session."""
    for step in range(steps):
        if step and step % SESSION_STEPS == 0:
            pairs.new_session()
        await compare()
        if pairs.wrong:
            break


def told(pairs):
    """Describe the differences."""
    return "\n\n".join(pairs.wrong)


@pytest.mark.parametrize(
    ("seed", "steps"),
    [
        pytest.param(1, 1_000, id="short"),
        pytest.param(2, 10_000, id="long", marks=[pytest.mark.torture, pytest.mark.timeout(900)]),
    ],
)
async def test_stale_replica_answers_every_kind_of_call_as_a_fresh_one(seed, steps):
    """Each call meets a stale replica; a fresh one on a copy of the store has the right answer.

    Answer, error and stored data are byte-identical.
    """
    pairs = StalePairs(SharedStore, parse_registry(DESK, "desk"), seed)
    await play(pairs, steps, pairs.compare_with_copy)
    assert not pairs.wrong, told(pairs)
    assert pairs.stale == steps
    assert set(pairs.kinds) >= KINDS, pairs.kinds


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(60, id="short"),
        pytest.param(2_000, id="long", marks=[pytest.mark.torture, pytest.mark.timeout(900)]),
    ],
)
async def test_stale_replica_on_a_database_answers_as_a_fresh_one(shared_store, steps):
    """On an engine: an applied call comes back as a repeat, any other gets the same result."""
    store = await open_store(shared_store.url)
    pairs = StalePairs(lambda: store, parse_registry(DESK, "desk"), 3)
    try:
        await play(pairs, steps, pairs.compare_in_place)
    finally:
        await store.close()
    assert not pairs.wrong, told(pairs)
    assert pairs.stale == steps


async def test_replica_that_trusts_its_memory_is_found_out(monkeypatch):
    """The comparison must fail for a handler that does not ask the store."""

    async def trust(*_):
        """Trust the cache."""

    monkeypatch.setattr(SessionCache, "confirm", trust)
    pairs = StalePairs(SharedStore, parse_registry(DESK, "desk"), 4)
    await play(pairs, 500, pairs.compare_with_copy)
    assert pairs.wrong


@asynccontextmanager
async def two_replicas(folder, *registries):
    """Run two servers over one store, with one registry or one each."""
    store = SharedStore()
    first, second = registries or (DESK, DESK)
    (folder / "second").mkdir()
    async with (
        serving(folder, first, shared=store) as one,
        serving(folder / "second", second, shared=store) as two,
    ):
        yield one, two


async def test_repeat_on_a_stale_replica_never_shows_another_users_answer(tmp_path):
    """In this replica's cache the session had no user; in the store it has an owner."""
    async with two_replicas(tmp_path) as (one, two):
        await one.chat("shared", user_id="").set_active("sales")
        request_id = fresh_id()
        await two.chat("shared", user_id="ana").say("my secret", request_id=request_id)
        stranger = one.chat("shared", user_id="bob").say("my secret", request_id=request_id)
        assert tuple(await refusal(stranger)) == ("PERMISSION_DENIED", "OWNER_MISMATCH")
        again = one.chat("shared", user_id="ana").say("my secret", request_id=request_id)
        assert (await again).dispatch.text == "my secret"
        assert await is_replayed(again)


async def test_full_metadata_of_a_task_that_was_closed_elsewhere_refuses_nothing(tmp_path):
    """The refusal writes nothing, so the head is read first: the message begins a new task."""
    async with two_replicas(tmp_path) as (one, two):
        here, there = one.chat("shared"), two.chat("shared")
        await here.with_agent("sales")
        full = {f"key-{number}": "value" for number in range(32)}
        routed = await here.say("more", metadata=full)
        await there.answer(routed.dispatch, "done", **finish())
        again = await here.say("something else", metadata={"one": "more"})
        assert again.task_id != routed.task_id


async def test_session_that_began_anew_elsewhere_is_not_refused_to_its_new_user(tmp_path):
    """Removed and created again through the other replica; this one caches the old user."""
    async with two_replicas(tmp_path) as (one, two):
        await one.chat("shared", user_id="ana").say("hello")
        await one.store.delete_session(SessionKey("default", "shared"), 1)
        bob = two.chat("shared", user_id="bob")
        await bob.say("hello")
        await bob.say("more")
        assert (await one.chat("shared", user_id="bob").say("again")).revision == 3


async def test_session_begun_anew_elsewhere_up_to_the_same_revision_is_seen_for_what_it_is(
    tmp_path,
):
    """Reads and refusals distinguish the two, although their revisions are equal."""
    async with two_replicas(tmp_path) as (one, two):
        for text in ("hello", "more"):
            await one.chat("shared", user_id="ana").say(text)
        await one.store.delete_session(SessionKey("default", "shared"), 2)
        two.clock.advance(1)
        bob = two.chat("shared", user_id="bob")
        await bob.set_active("support")
        await bob.say("hello")
        status = await one.chat("shared", user_id="bob").status()
        assert (status.owner, status.active_agent.agent_id) == ("bob", "support")
        refused = await refusal(one.chat("shared", user_id="ana").say("again"))
        assert refused.reason == "OWNER_MISMATCH"


async def test_refusal_of_the_user_before_is_not_given_to_the_next_one(tmp_path):
    """The same, if the replica's first call is refused."""
    async with two_replicas(tmp_path) as (one, two):
        await one.chat("shared", user_id="ana").say("hello")
        await one.store.delete_session(SessionKey("default", "shared"), 1)
        two.clock.advance(1)
        await two.chat("shared", user_id="bob").say("hello")
        assert (await one.chat("shared", user_id="bob").say("more")).revision == 2


async def test_agent_that_only_the_newer_registry_has_is_kept_by_the_older_replica(tmp_path):
    """During a roll-out one message goes to the home agent, and the next to the agent again."""
    newer = DESK + "  - {id: brand_new, name: Brand new}\n"
    async with two_replicas(tmp_path, newer, DESK) as (new, old):
        here, there = new.chat("shared"), old.chat("shared")
        await here.with_agent("brand_new")
        routed = await there.say("one")
        assert went(routed.dispatch) == ("front", "AGENT_UNAVAILABLE")
        status = await there.status()
        assert status.active_agent.agent_id == "brand_new"
        assert status.next_agent.agent_id == "front"
        # The stand-in leaves the active agent unchanged.
        await there.answer(routed.dispatch, "front here")
        assert (await here.status()).next_agent.agent_id == "brand_new"
        again = await here.say("two")
        assert went(again.dispatch) == ("brand_new", "STICKY")
        # An answer of an agent that this replica does not know is still stored.
        answered = await there.answer(again.dispatch, "brand_new here")
        assert answered.active_agent.agent_id == "brand_new"
        assert [turn.agent_text for turn in await there.turns()][-1] == "brand_new here"


async def test_stickiness_said_on_one_replica_holds_on_one_whose_registry_says_otherwise(tmp_path):
    """It is switched on at a replica that has it on; the one whose file says off must follow."""
    off = DESK.replace("default_locale: en", "default_locale: en\nstickiness: disabled")
    async with two_replicas(tmp_path, DESK, off) as (on, other):
        await on.chat("shared").with_agent("sales")
        await set_stickiness(on, enabled=True)
        async with asyncio.timeout(30):
            while (  # noqa: ASYNC110 - nobody tells of it
                await other.chat("shared").status()
            ).next_agent.agent_id != "sales":
                await asyncio.sleep(0.05)


async def set_stickiness(service, *, enabled):
    """Switch stickiness for the default tenant."""
    request = admin_service_pb2.SetStickinessRequest(enabled=enabled)
    await service.raw("SetStickiness", request.SerializeToString(), "AdminService")


class TimesOutOnce(MemoryStore):
    """A store whose next append succeeds, but is reported as a failure."""

    armed = False

    async def append(self, append):
        await super().append(append)
        if self.armed:
            self.armed = False
            raise StoreUnavailable("the store did not answer in time")

    async def close(self):
        """The test reads it afterwards."""


async def test_watcher_hears_of_a_change_whose_writer_was_told_that_the_store_failed(tmp_path):
    """The change was committed; the repeat appends nothing that would wake a watcher."""
    store = TimesOutOnce()
    async with serving(tmp_path, DESK, shared=store) as service:
        chat = service.chat("watched")
        await chat.say("hello")
        watch = service.stub.WatchSession(
            routing_service_pb2.WatchSessionRequest(session_id="watched", user_id="ana")
        )

        async def next_revision():
            async with asyncio.timeout(30):
                while not (message := await watch.read()).HasField("change"):
                    pass
            return message.change.revision

        assert (await watch.read()).HasField("heartbeat")
        await chat.say("more")
        assert await next_revision() == 2
        store.armed = True
        request_id = fresh_id()
        failed = await refusal(chat.say("more", request_id=request_id))
        assert tuple(failed) == ("UNAVAILABLE", "STORE_UNAVAILABLE")
        service.observer.failures.clear()
        assert await is_replayed(chat.say("more", request_id=request_id))
        assert await next_revision() == 3
        watch.cancel()


async def test_interlude_that_the_older_replica_ends_returns_to_the_agent_only_the_newer_has(
    tmp_path,
):
    """Either replica takes the frame off the stack unchanged."""
    newer = DESK + "  - {id: brand_new, name: Brand new}\n"
    async with two_replicas(tmp_path, newer, DESK) as (new, old):
        here, there = new.chat("shared"), old.chat("shared")
        await here.with_agent("brand_new")
        routed = await here.say("one")
        handed = await here.answer(routed.dispatch, "a moment", **hand_to("interrupts"))
        await here.answer(handed.next, "hello")
        routed = await there.say("two")
        assert went(routed.dispatch) == ("interrupts", "STICKY")
        await there.answer(routed.dispatch, "that was it", **finish())
        assert (await here.status()).active_agent.agent_id == "brand_new"
        assert went((await there.say("three")).dispatch) == ("front", "AGENT_UNAVAILABLE")
        assert went((await here.say("four")).dispatch)[0] == "brand_new"
