"""EraseUser: afterwards no RPC returns the user's data, and the store no longer contains it.

A canary text is placed in every field that takes text, including the user's id. What returned it
before must not return it afterwards: every reading RPC, watches, repeats, the store's bytes.
"""

import asyncio
import base64
import secrets
from contextlib import AsyncExitStack, suppress

import grpc
import psycopg
import pytest
from google.protobuf import duration_pb2
from msgspec import structs

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import admin_service_pb2_grpc, dispatch_pb2, item_pb2, turn_pb2
from agent_routing.v1 import routing_service_pb2 as rpb
from routing_service.storage.event_codec import BLANK_EVENTS, ERASE_USER, decode_state
from routing_service.storage.memory_store import MemoryStore
from routing_service.storage.sqlite.compact import compact_store
from routing_service.storage.store import StoreUnavailable
from tests.engines.postgres_databases import database_on
from tests.rpc.live_service import (
    Clock,
    ask,
    fail,
    finish,
    fresh_id,
    hand_to,
    refusal,
    serving,
    struct,
)
from tests.rpc.registries import DESK
from tests.rpc.test_watch_session import watching

WAIT_S = 30
TABLES = ("sessions", "changes", "tasks", "audit", "settings", "leases")


def admin(service):
    """Return the stub of AdminService."""
    return admin_service_pb2_grpc.AdminServiceStub(service.channel)


@pytest.fixture
async def service(tmp_path):
    """A help desk whose agents differ in one thing each."""
    async with serving(tmp_path, DESK) as running:
        yield running


def new_canary():
    """Return a unique canary; none of its encodings may be found afterwards."""
    return f"canary{secrets.token_hex(12)}"


def has(data, canary):
    """Say whether bytes contain the canary: plain, as base64 or as hex digits of a bytea."""
    plain = canary.encode()
    forms = (plain, base64.b64encode(plain)[:-4], plain.hex().encode())
    return any(form in data for form in forms)


class Talk:
    """A conversation with the canary in every field, and all its requests."""

    def __init__(self, chat, canary):
        self.chat = chat
        self.canary = canary
        self.calls = []

    async def call(self, rpc, request):
        """Make a call and keep it for a repeat."""
        self.calls.append((rpc, request))
        return await self.chat.service.call(rpc, request)

    async def say(self, **fields):
        """Send a message."""
        given = {"session_id": self.chat.session_id, "user_id": self.chat.user_id}
        given |= {"request_id": fresh_id(), "text": self.canary}
        return await self.call("Route", rpb.RouteRequest(**(given | fields)))

    async def answer(self, dispatch, **outcome):
        """Answer with the canary in every text that an agent can send."""
        canary = self.canary
        step = turn_pb2.Step(name=canary, kind=canary, input=canary, output=canary)
        step.duration.CopyFrom(duration_pb2.Duration(seconds=1))
        return await self.call(
            "CompleteTurn",
            rpb.CompleteTurnRequest(
                session_id=self.chat.session_id,
                user_id=self.chat.user_id,
                request_id=dispatch.request_id,
                agent_id=dispatch.agent.agent_id,
                text=canary,
                items=items(canary),
                steps=[step],
                **outcome,
            ),
        )

    async def hold(self):
        """Go through every state that a session can reach."""
        canary = self.canary
        routed = await self.say(
            items=items(canary),
            metadata={"order": canary, canary: "key"},
            locale="en",
            channel="web",
            entitlements=[f"plan:{canary}"],
        )
        context = {"deep": {canary: [canary]}}
        handed = await self.answer(
            routed.dispatch,
            **hand_to("support", reason=canary, context=context, message=canary),
        )
        await self.answer(handed.next, **ask())
        paused = await self.say()
        await self.answer(
            paused.dispatch,
            approval_needed=rpb.ApprovalNeededOutcome(prompt=canary),
        )
        resumed = await self.call(
            "ResumeTask",
            rpb.ResumeTaskRequest(
                session_id=self.chat.session_id,
                user_id=self.chat.user_id,
                task_id=routed.task_id,
                request_id=paused.dispatch.request_id,
                decision=dispatch_pb2.DECISION_APPROVE,
                comment=canary,
            ),
        )
        await self.answer(resumed.dispatch, **finish(summary=canary, message=canary))
        failing = await self.say(metadata={"again": canary})
        await self.answer(failing.dispatch, **fail(canary))
        handoff = {
            "session_id": self.chat.session_id,
            "user_id": self.chat.user_id,
            "reason": canary,
            "context": struct(context),
            "message": canary,
        }
        await self.call(
            "SetActiveAgent",
            rpb.SetActiveAgentRequest(agent_id="sales", request_id=fresh_id(), **handoff),
        )
        refused = self.chat.service.call(
            "SetActiveAgent",
            rpb.SetActiveAgentRequest(agent_id="journal", request_id=fresh_id(), **handoff),
        )
        assert (await refusal(refused)).reason == "HANDOFF_REFUSED"
        await self.call(
            "ClearActiveAgent",
            rpb.ClearActiveAgentRequest(
                session_id=self.chat.session_id,
                user_id=self.chat.user_id,
                request_id=fresh_id(),
                reason=canary,
            ),
        )
        await self.say(text=f"/help {canary}")
        consulted = await self.say()
        await self.answer(consulted.dispatch, **hand_to("interrupts", message=canary))
        await self.say(text=f"{canary} and an open turn")
        return self


def items(canary):
    """Return one item of each form."""
    return [
        item_pb2.Item(content_type="text/plain", text=canary),
        item_pb2.Item(content_type="application/x-canary", data=canary.encode()),
        item_pb2.Item(content_type="image/png", uri=f"https://files.example/{canary}"),
    ]


async def told(call):
    """Return everything that a call returns, including its errors."""
    try:
        return (await call).SerializeToString()
    except grpc.aio.AioRpcError as error:
        return error_bytes(error)


def error_bytes(error):
    """Return everything in an error."""
    metadata = [*(error.trailing_metadata() or ()), *(error.initial_metadata() or ())]
    values = [v if isinstance(v, bytes) else v.encode() for _, v in metadata]
    return b"\n".join([repr(error.code()).encode(), (error.details() or "").encode(), *values])


async def streamed(call):
    """Return a stream's messages until it is silent for a heartbeat after its first message."""
    parts, heartbeats = [], 0
    try:
        while heartbeats < 2:
            message = await asyncio.wait_for(call.read(), WAIT_S)
            if message is grpc.aio.EOF:
                break
            if message.WhichOneof("kind") == "heartbeat":
                heartbeats += 1
                message.heartbeat.ClearField("send_time")  # Another one at each reading.
            parts.append(message.SerializeToString())
    except grpc.aio.AioRpcError as error:
        parts.append(error_bytes(error))
    finally:
        call.cancel()
    return b"\n".join(parts)


async def readings(service, talk):
    """Return what every reading RPC returns about a session and its user, by the RPC's name."""
    mine = {"session_id": talk.chat.session_id}
    operators = admin(service)
    second = duration_pb2.Duration(seconds=1)
    # Callers that may still read: an operator, the user, and a caller that knows the task.
    watched, watched_all = await asyncio.gather(
        streamed(
            service.stub.WatchSession(
                rpb.WatchSessionRequest(**mine, after_revision=0, heartbeat_interval=second)
            )
        ),
        streamed(
            operators.WatchEvents(
                pb.WatchEventsRequest(from_beginning=True, heartbeat_interval=second)
            )
        ),
    )
    found = {
        "Status": await told(service.call("Status", rpb.StatusRequest(**mine))),
        "ListTurns": await told(service.call("ListTurns", rpb.ListTurnsRequest(**mine))),
        "ListTasks": await told(service.call("ListTasks", rpb.ListTasksRequest(**mine))),
        "ListAgents": await told(service.call("ListAgents", rpb.ListAgentsRequest(**mine))),
        "WatchSession": watched,
        "ListSessions": await told(operators.ListSessions(pb.ListSessionsRequest())),
        "ListEvents": await told(operators.ListEvents(pb.ListEventsRequest(**mine))),
        "ListEvents of all": await told(operators.ListEvents(pb.ListEventsRequest())),
        "GetRoutingStats": await told(operators.GetRoutingStats(pb.GetRoutingStatsRequest())),
        "WatchEvents": watched_all,
        "ExportUser": await exported(operators, talk.canary),
    }
    for place, (rpc, request) in enumerate(talk.calls):
        found[f"repeat {place} of {rpc}"] = await told(service.call(rpc, request))
    return found


async def exported(operators, user_id):
    """Return the complete export."""
    parts = operators.ExportUser(pb.ExportUserRequest(user_id=user_id))
    return b"\n".join([part.SerializeToString() async for part in parts])


WITHOUT_TEXTS = {"ListAgents", "GetRoutingStats"}
"""They never had any."""


def who_tells(found, canary):
    """Return the names of the readings that contain the canary."""
    return {name for name, data in found.items() if has(data, canary)}


def of_talk(found):
    """Return the readings without repeats, apart from the first message's repeat."""
    return {name for name in found if not name.startswith("repeat")} | {"repeat 0 of Route"}


def erase(service, canary, **fields):
    """Erase the user whose id is the canary."""
    return admin(service).EraseUser(
        pb.EraseUserRequest(user_id=canary, reason="asked for", **fields)
    )


async def test_nothing_of_an_erased_user_is_told_or_stored(tmp_path):
    """SQLite: nor is it in the file after the documented step, nor known to a new process."""
    canary, clock = new_canary(), Clock()
    async with serving(tmp_path, DESK, clock=clock) as service:
        talk = await Talk(service.chat("gone", user_id=canary), canary).hold()
        other = await Talk(service.chat("stays", user_id="ben"), "ben").hold()
        before = await readings(service, talk)
        assert who_tells(before, canary) >= of_talk(before) - WITHOUT_TEXTS
        kept = await readings(service, other)
        async with watching(talk.chat) as watcher:
            answer = await erase(service, canary)
            # Watchers get the erasure event, and their stream ends.
            change = (await asyncio.wait_for(watcher.read(), WAIT_S)).change
            assert [event.WhichOneof("kind") for event in change.events] == ["session_erased"]
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await asyncio.wait_for(watcher.read(), WAIT_S)
            assert b"SESSION_ERASED" in error_bytes(ended.value)
        assert (answer.sessions_erased, answer.turns_erased) == (1, 5)
        assert answer.records_stripped > 20
        assert answer.erase_time.ToMicroseconds() == clock.now_us
        after = await readings(service, talk)
        assert who_tells(after, canary) == set()
        still = await readings(service, other)
        # The lists of all sessions have changed by now.
        of_all = {"ListSessions", "WatchEvents", "ListEvents of all", "GetRoutingStats"}
        for name in set(kept) - of_all:
            assert still[name] == kept[name], name
    url = f"sqlite:///{tmp_path / 'routing.db'}"
    compacted = await compact_store(url)
    assert compacted.after_bytes < compacted.before_bytes
    for file in tmp_path.iterdir():
        assert not has(file.read_bytes(), canary), file.name
    assert has((tmp_path / "routing.db").read_bytes(), "gone"), "the search finds what is there"
    async with serving(tmp_path, DESK, clock=clock) as service:
        after = await readings(service, talk)
        assert who_tells(after, canary) == set()
        for name, data in after.items():
            if name.startswith(("repeat", "Status", "ListTurns", "ListTasks", "WatchSession")):
                assert b"SESSION_ERASED" in data, name


async def test_texts_are_overwritten_before_the_documented_step(tmp_path):
    """Small files do not move pages; the documented step removes what is left."""
    canary = new_canary()
    async with serving(tmp_path, DESK) as service:
        await Talk(service.chat(user_id=canary), canary).hold()
        files = [tmp_path / name for name in ("routing.db", "routing.db-wal")]
        assert any(has(file.read_bytes(), canary) for file in files)
        await erase(service, canary)
        # The checkpoint writes everything to the file and truncates the WAL.
        assert files[1].stat().st_size == 0


async def test_another_server_that_remembers_the_session_tells_nothing(own_postgres, tmp_path):
    """PostgreSQL: nor is it in the tables, nor in files after VACUUM FULL, except for the WAL."""
    canary, clock = new_canary(), Clock()
    with database_on(own_postgres.url()) as database:
        store = database.store_url(tmp_path)
        async with AsyncExitStack() as opened:
            first, second = [
                await opened.enter_async_context(serving(tmp_path, DESK, store=store, clock=clock))
                for _ in range(2)
            ]
            talk = await Talk(first.chat("gone", user_id=canary), canary).hold()
            for server in (first, second):
                before = await readings(server, talk)
                assert who_tells(before, canary) >= of_talk(before) - WITHOUT_TEXTS
            # The second server caches it for its next message, too.
            await second.chat("gone", user_id=canary).say(canary)
            watcher = await opened.enter_async_context(
                watching(second.chat("gone", user_id=canary))
            )
            assert has(dumped(database, tmp_path), canary)
            assert (await erase(first, canary)).sessions_erased == 1
            heard = await streamed(watcher)
            assert not has(heard, canary)
            assert b"SESSION_ERASED" in heard
            for server in (second, first):
                assert who_tells(await readings(server, talk), canary) == set()
            refused = await refusal(second.chat("gone", user_id=canary).say("hello?"))
            assert tuple(refused) == ("FAILED_PRECONDITION", "SESSION_ERASED")
        assert not has(dumped(database, tmp_path), canary)
        database.execute("VACUUM (FULL, ANALYZE)", "CHECKPOINT")
        assert files_with(own_postgres.data, canary) == []


def dumped(database, folder):
    """Return all rows of all tables."""
    rows = []
    with psycopg.connect(database.url) as connection:
        for table in TABLES:
            name = f"{database.schema(folder)}.{table}"
            for row in connection.execute(f"SELECT * FROM {name}"):
                rows += [repr(value).encode() for value in row]
    assert rows
    return b"\n".join(rows)


def files_with(folder, canary):
    """Return the server files with the canary; the WAL keeps data for crash recovery."""
    return [
        str(file.relative_to(folder))
        for file in folder.rglob("*")
        if file.is_file() and "pg_wal" not in file.parts and has(file.read_bytes(), canary)
    ]


async def test_trial_says_what_would_be_erased(service):
    """A trial (validate_only) changes nothing."""
    canary = new_canary()
    talk = await Talk(service.chat(user_id=canary), canary).hold()
    before = await readings(service, talk)
    trial = await erase(service, canary, validate_only=True)
    assert not trial.HasField("erase_time")
    after = await readings(service, talk)
    # The export among the readings is in the audit itself.
    for found in (before, after):
        del found["ListEvents of all"]
    assert after == before
    done = await erase(service, canary)
    assert done.HasField("erase_time")
    trial.erase_time.CopyFrom(done.erase_time)
    assert trial == done


async def test_erasing_twice_and_erasing_nobody_is_no_error(service):
    """The second call finds nothing, like a call for a user without data."""
    canary = new_canary()
    chats = [service.chat(user_id=canary) for _ in range(3)]
    for chat in chats:
        await chat.say(canary)
    assert (await erase(service, canary)).sessions_erased == 3
    for user in (canary, "nobody"):
        nothing = await erase(service, user)
        assert (nothing.sessions_erased, nothing.turns_erased, nothing.records_stripped) == (
            0,
            0,
            0,
        )
    for chat in chats:
        assert [change.revision for change in await chat.changes()] == [1, 2]
        assert [change.method for change in await chat.changes()] == ["Route", ERASE_USER]


async def test_only_the_user_s_sessions_in_the_tenant_are_erased(service):
    """The same user id in another tenant is another user."""
    mine, hers = service.chat(user_id="ana"), service.chat(user_id="ben")
    elsewhere = service.chat(user_id="ana", tenant="other")
    for chat in (mine, hers, elsewhere):
        await chat.say("hello")
    assert (await erase(service, "ana")).sessions_erased == 1
    assert (await refusal(mine.status())).reason == "SESSION_ERASED"
    for chat in (hers, elsewhere):
        assert (await chat.status()).revision == 1
    assert (await erase(service, "ana", tenant="other")).sessions_erased == 1
    assert (await refusal(elsewhere.status())).reason == "SESSION_ERASED"


async def test_erased_session_is_not_used_again(service):
    """No caller can use its id again for anything; a new session works."""
    chat = service.chat(user_id="ana")
    routed = await chat.say("hello")
    await erase(service, "ana")
    for user in ("ana", "ben", ""):
        again = service.chat(chat.session_id, user_id=user)
        calls = [
            again.say("hello"),
            again.answer(routed.dispatch, "late"),
            again.set_active("sales", initiator=4),
            again.clear(),
            again.status(),
        ]
        # Another user gets the same error as for any other user's session. A message without a user
        # is a stranger's; every other call without one is an operator's.
        expected = {"ana": ["SESSION_ERASED"], "ben": ["OWNER_MISMATCH"]}.get(
            user, ["SESSION_ERASED", "OWNER_MISMATCH"]
        )
        for call in calls:
            refused = await refusal(call)
            assert refused.reason in (*expected, "INVALID_FIELD"), refused
        assert (await refusal(again.say("x", task_id=routed.task_id))).reason in expected
    assert len(await chat.changes()) == 2
    assert (await service.chat(user_id="ana").say("a new one")).revision == 1


async def test_audit_of_an_erased_session_keeps_what_names_nobody(service):
    """The audit keeps when calls were made, their kinds, and the erasure with its reason."""
    canary = new_canary()
    talk = await Talk(service.chat(user_id=canary), canary).hold()
    await erase(service, canary)
    request = pb.ListEventsRequest(
        session_id=talk.chat.session_id, order=pb.EVENT_ORDER_OLDEST_FIRST
    )
    records = (await admin(service).ListEvents(request)).records
    methods = [record.method.rpartition("/")[2] for record in records]
    revisions = [record.event.revision for record in records]
    assert revisions == sorted(revisions)
    assert set(revisions) == set(range(1, revisions[-1] + 1))
    assert {"Route", "CompleteTurn", "SetActiveAgent", "ClearActiveAgent"} <= set(methods)
    assert all(record.event.HasField("event_time") for record in records)
    assert not any(record.actor for record in records)
    assert records[-1].event.WhichOneof("kind") == "session_erased"
    assert records[-1].method == "/agent_routing.v1.AdminService/EraseUser"
    assert any(record.event.WhichOneof("kind") == "handoff_refused" for record in records)


class Interrupted(MemoryStore):
    """A store that fails in the middle of an erasure."""

    failures = 0

    async def close(self):
        """Stay open for the next server."""

    async def erase_before(self, key, revision, blank):
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("the disk is away")
        return await super().erase_before(key, revision, blank)


async def test_interrupted_erasure_is_finished_by_a_repeat(tmp_path):
    """From the start no RPC returns anything; a repeat finds the session without its state.

    The same holds on a server started later, and for a request that was answered before.
    """
    canary, store = new_canary(), Interrupted()
    async with serving(tmp_path, DESK, shared=store) as service:
        talk = await Talk(service.chat("gone", user_id=canary), canary).hold()
        store.failures = 1
        refused = await refusal(erase(service, canary))
        assert refused.reason == "STORE_UNAVAILABLE"
        assert service.observer.failures.pop()
        for rpc, request in talk.calls:
            assert (await refusal(service.call(rpc, request))).reason == "SESSION_ERASED"
        assert has(repr(await talk.chat.changes()).encode(), canary), "it is there still"
    async with serving(tmp_path, DESK, shared=store) as service:
        for rpc, request in talk.calls:
            assert (await refusal(service.call(rpc, request))).reason == "SESSION_ERASED"
        answer = await erase(service, canary)
        assert answer.sessions_erased == 1
        assert answer.turns_erased == 5
        assert who_tells(await readings(service, talk), canary) == set()
        *erased, last = await service.chat("gone").changes()
        assert {change.events for change in erased} == {BLANK_EVENTS}
        assert last.method == ERASE_USER
        head = await store.load(talk.chat.key)
        assert decode_state(head.state).erased
        assert not has(head.state, canary)


async def test_user_goes_on_talking_while_being_erased(service):
    """Each session is erased completely; no message is stored after its erasure."""
    canary = new_canary()
    chats = [service.chat(user_id=canary) for _ in range(4)]
    for chat in chats:
        await chat.say(canary)

    ended = []

    async def talk_on(chat):
        for _ in range(40):
            try:
                await chat.say(canary)
            except grpc.aio.AioRpcError as error:
                ended.append(b"SESSION_ERASED" in error_bytes(error))
                return

    await asyncio.gather(erase(service, canary), *(talk_on(chat) for chat in chats))
    assert all(ended)
    await erase(service, canary)
    for chat in chats:
        assert (await refusal(chat.status())).reason == "SESSION_ERASED"
        changes = await chat.changes()
        assert changes[-1].method == ERASE_USER
        assert not has(repr(changes).encode(), canary)


async def test_erasure_that_ends_early_is_gone_on_with(service):
    """After a deadline or a cancelled call, each session is erased completely or untouched."""
    canary = new_canary()
    chats = [service.chat(f"early-{number:02}", user_id=canary) for number in range(30)]
    for chat in chats:
        await chat.say(canary)

    async def is_erased(chat):
        return (await chat.changes())[-1].method == ERASE_USER

    call = erase(service, canary)
    async with asyncio.timeout(WAIT_S):
        while not await is_erased(chats[0]):
            pass
    call.cancel()
    with suppress(asyncio.CancelledError):  # Unless it had already ended.
        await call
    left = [chat for chat in chats if not await is_erased(chat)]
    assert (await erase(service, canary)).sessions_erased <= len(left) + 1
    for chat in chats:
        assert await is_erased(chat)
        assert not has(repr(await chat.changes()).encode(), canary)


async def test_session_that_cannot_be_read_does_not_save_the_others(tmp_path):
    """The others are erased and the caller gets the error; damaged changes do not block it."""
    canary, store = new_canary(), Interrupted()
    async with serving(tmp_path, DESK, shared=store) as service:
        for name in ("a", "b", "c"):
            await service.chat(name, user_id=canary).say(canary)
    sessions = store._engine._tenants["default"].sessions
    sessions["a"].state = b"no state"
    changes = sessions["b"].changes
    changes[0] = structs.replace(changes[0], events=b"no events")
    async with serving(tmp_path, DESK, shared=store) as service:
        assert (await refusal(erase(service, canary))).reason == "STATE_CORRUPT"
        assert service.observer.failures.pop()
        for name in ("b", "c"):
            status = service.chat(name, user_id=canary).status()
            assert (await refusal(status)).reason == "SESSION_ERASED"
            assert not has(repr(await service.chat(name).changes()).encode(), canary)
        assert has(repr(await service.chat("a").changes()).encode(), canary)
