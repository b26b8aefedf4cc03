"""The operators' RPCs on a real server: lists, audit, switches, reloads, watches and exports."""

import asyncio

import pytest
from google.protobuf import duration_pb2, timestamp_pb2

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import admin_service_pb2_grpc
from routing_service.examples import EXAMPLES
from tests.rpc.live_service import ask, hand_to, refusal, serving, went
from tests.rpc.registries import DESK

WAIT_S = 20


@pytest.fixture
async def service(tmp_path):
    """A help desk whose agents differ in one thing each."""
    async with serving(tmp_path, DESK) as running:
        yield running


def admin(service):
    """Return the stub of AdminService."""
    return admin_service_pb2_grpc.AdminServiceStub(service.channel)


async def sessions(service, **filters):
    """Return the ids of all sessions that pass the filters, in pages of two."""
    found, token = [], ""
    while True:
        request = pb.ListSessionsRequest(page_size=2, page_token=token, **filters)
        page = await admin(service).ListSessions(request)
        assert len(page.sessions) <= 2
        found += [session.session_id for session in page.sessions]
        token = page.next_page_token
        if not token:
            return found


async def test_sessions_are_listed_in_pages_and_by_what_they_are(service):
    """A session is listed only if it passes every given filter."""
    for place in range(3):
        await service.chat(f"list-{place}").with_agent("support")
    await service.chat("list-locked").with_agent("sales", **ask())
    await service.chat("list-other", user_id="ben").say("hello", channel="web")
    everything = [f"list-{place}" for place in range(3)] + ["list-locked", "list-other"]
    assert await sessions(service) == everything
    assert await sessions(service, owner="ben") == ["list-other"]
    assert await sessions(service, active_agent_id="support") == everything[:3]
    assert await sessions(service, locked=True) == ["list-locked"]
    assert await sessions(service, channel="web") == ["list-other"]
    assert await sessions(service, owner="ana", locked=False) == everything[:3]
    later = timestamp_pb2.Timestamp()
    later.FromMicroseconds(service.clock.now_us + 1)
    assert await sessions(service, update_time_from=later) == []
    assert await sessions(service, update_time_before=later) == everything


async def test_session_summary_says_how_it_stands(service):
    """The summary is short; GetStatus returns the full status."""
    chat = await service.chat().with_agent("sales", **ask())
    page = await admin(service).ListSessions(pb.ListSessionsRequest())
    (found,) = page.sessions
    assert (found.session_id, found.owner, found.tenant) == (chat.session_id, "ana", "default")
    assert (found.active_agent.agent_id, found.locked, found.open_turns) == ("sales", True, 0)
    status = await chat.status()
    assert (found.revision, found.task_id) == (status.revision, status.task.task_id)


async def test_another_tenants_sessions_are_apart(service):
    """Another tenant's sessions are listed only if that tenant is named."""
    await service.chat("of-acme", tenant="acme").say("hello")
    assert await sessions(service) == []
    assert await sessions(service, tenant="acme") == ["of-acme"]


async def events(service, chat, **filters):
    """List a session's audit."""
    request = pb.ListEventsRequest(session_id=chat.session_id, **filters)
    page = await admin(service).ListEvents(request)
    return list(page.records)


def kinds(records):
    """Return the kinds of the audit records."""
    return [record.event.WhichOneof("kind") for record in records]


async def test_audit_has_every_event_and_every_refusal(service):
    """A refusal takes no revision: its record has the session's current revision."""
    chat = service.chat()
    routed = await chat.say("hello")
    await refusal(chat.answer(routed.dispatch, **hand_to("premium")))
    await chat.answer(routed.dispatch, **hand_to("sales"))
    records = await events(service, chat, order=pb.EVENT_ORDER_OLDEST_FIRST)
    assert kinds(records) == [
        "session_started",
        "task_created",
        "message_routed",
        "handoff_refused",
        "turn_completed",
        "agent_handoff",
    ]
    refused = records[3]
    assert refused.event.revision == 1
    assert refused.event.request_id == routed.request_id
    assert refused.event.handoff_refused.handoff.to.agent_id == "premium"
    verdicts = refused.event.handoff_refused.verdicts
    assert [verdict.rule for verdict in verdicts if not verdict.allowed] == ["entitled"]
    assert records[2].method == "/agent_routing.v1.RoutingService/Route"
    assert {record.actor for record in records} == {"ana"}
    newest = await events(service, chat)
    assert kinds(newest) == kinds(records)[::-1]


async def test_audit_is_filtered_and_paged(service):
    """Filters by kind, agent and request; a page holds whole revisions only."""
    chat = await service.chat().with_agent("sales")
    for _ in range(5):
        await chat.say("/help")
    handoffs = await events(service, chat, kinds=["agent_handoff"])
    assert kinds(handoffs) == ["agent_handoff"]
    assert kinds(await events(service, chat, agent_id="sales")) == [
        "turn_completed",
        "agent_handoff",
    ]
    one = handoffs[0].event.request_id
    assert {r.event.request_id for r in await events(service, chat, request_id=one)} == {one}
    seen, token = [], ""
    while True:
        request = pb.ListEventsRequest(
            session_id=chat.session_id, page_size=3, page_token=token, order=2
        )
        page = await admin(service).ListEvents(request)
        seen += [record.event.event_id for record in page.records]
        token = page.next_page_token
        if not token:
            break
    everything = await events(service, chat, order=pb.EVENT_ORDER_OLDEST_FIRST)
    assert seen == [record.event.event_id for record in everything]


async def test_stickiness_is_switched_for_a_tenant_and_back(service):
    """With stickiness off every message goes to the supervisor; no session loses its state."""
    chat = await service.chat().with_agent("sales", **ask())
    off = await admin(service).SetStickiness(pb.SetStickinessRequest(enabled=False, reason="test"))
    assert (off.enabled, off.previously_enabled) == (False, True)
    routed = await chat.say("hello")
    assert went(routed.dispatch) == ("front", "STICKINESS_DISABLED")
    elsewhere = await service.chat(tenant="acme").with_agent("sales")
    assert went((await elsewhere.say("hello")).dispatch) == ("sales", "STICKY")
    again = await admin(service).SetStickiness(pb.SetStickinessRequest(enabled=False))
    assert not again.HasField("update_time")
    await admin(service).SetStickiness(pb.SetStickinessRequest(enabled=True))
    assert went((await chat.say("hello")).dispatch) == ("sales", "FOLLOW_UP_LOCK")


async def test_switch_survives_a_restart_and_reaches_other_replicas(tmp_path):
    """The switch is kept in the store, not in a process."""
    async with serving(tmp_path, DESK) as service:
        await admin(service).SetStickiness(pb.SetStickinessRequest(enabled=False))
        chat = await service.chat().with_agent("sales")
        other = serving(tmp_path, DESK, shared=service.store)
        async with other as replica:
            routed = await replica.chat(chat.session_id).say("hello")
            assert went(routed.dispatch) == ("front", "STICKINESS_DISABLED")
    async with serving(tmp_path, DESK) as service:
        routed = await service.chat(chat.session_id).say("hello")
        assert went(routed.dispatch) == ("front", "STICKINESS_DISABLED")


async def test_registry_is_reloaded_and_a_bad_file_changes_nothing(tmp_path):
    """The answer says what changed, or every mistake with its line."""
    text = EXAMPLES["tax"].registry_path.read_text(encoding="utf-8")
    async with serving(tmp_path, text) as service:
        path = tmp_path / "agents.yaml"
        chat = service.chat()
        chat.profile = {"channel": "web"}
        await chat.with_agent("vat")
        path.write_text(text.replace("handoff_to: [vat, income_tax]", "handoff_to: [nobody]"))
        refused = await refusal(admin(service).ReloadAgents(pb.ReloadAgentsRequest()))
        assert (refused.code, refused.reason) == ("FAILED_PRECONDITION", "REGISTRY_INVALID")
        assert "nobody" in refused.message
        assert went((await chat.say("hello")).dispatch) == ("vat", "STICKY")
        path.write_text(
            text.replace("version: 1\n", "version: two\n").replace("id: vat", "id: iva2")
        )
        path.write_text(path.read_text().replace("[vat, income_tax]", "[income_tax]"))
        tried = await admin(service).ReloadAgents(pb.ReloadAgentsRequest(validate_only=True))
        assert tried.registry_version == "two"
        assert went((await chat.say("hello")).dispatch) == ("vat", "STICKY")
        made = await admin(service).ReloadAgents(pb.ReloadAgentsRequest())
        assert list(made.added_agent_ids) == ["iva2"]
        assert list(made.removed_agent_ids) == ["vat"]
        assert list(made.changed_agent_ids) == ["filing"]
        assert (made.registry_version, made.previous_registry_version) == ("two", "1")
        assert went((await chat.say("hello")).dispatch) == ("coordinator", "AGENT_UNAVAILABLE")
        path.write_text(text)
        await admin(service).ReloadAgents(pb.ReloadAgentsRequest())
        assert went((await chat.say("hello")).dispatch) == ("vat", "STICKY")


async def test_all_sessions_are_watched_with_a_cursor(service):
    """Each change arrives at least once, in order within a session, starting at the cursor."""
    chats = [service.chat(f"log-{place}") for place in range(3)]
    call = admin(service).WatchEvents(pb.WatchEventsRequest(from_beginning=True))
    first = await call.read()
    assert first.HasField("heartbeat")
    for _ in range(3):
        for chat in chats:
            await chat.say("/help")
    seen = []
    while len(seen) < 9:
        message = await asyncio.wait_for(call.read(), WAIT_S)
        if message.HasField("change"):
            seen.append((message.change.session_id, message.change.revision))
            cursor = message.cursor
    call.cancel()
    for chat in chats:
        assert [r for name, r in seen if name == chat.session_id] == [1, 2, 3]
    await chats[0].say("/help")
    call = admin(service).WatchEvents(pb.WatchEventsRequest(cursor=cursor))
    await call.read()
    found = set()
    while (chats[0].session_id, 4) not in found:
        message = await asyncio.wait_for(call.read(), WAIT_S)
        if message.HasField("change"):
            found.add((message.change.session_id, message.change.revision))
    call.cancel()


async def test_log_watch_is_narrowed_by_kind_and_tenant(service):
    """A change with one of the wanted kinds is sent whole."""
    call = admin(service).WatchEvents(
        pb.WatchEventsRequest(from_beginning=True, kinds=["agent_handoff"])
    )
    await call.read()
    await service.chat("kinds-acme", tenant="acme").with_agent("sales")
    await service.chat("kinds").with_agent("sales")
    message = await asyncio.wait_for(call.read(), WAIT_S)
    while not message.HasField("change"):
        message = await asyncio.wait_for(call.read(), WAIT_S)
    assert (message.tenant, message.change.session_id) == ("default", "kinds")
    assert [event.WhichOneof("kind") for event in message.change.events] == [
        "turn_completed",
        "agent_handoff",
    ]
    call.cancel()


async def test_export_has_everything_of_one_user(service):
    """The export has the user's sessions with tasks, turns and audit, and no other user's."""
    chat = await service.chat("export-ana").with_agent("sales")
    await service.chat("export-ben", user_id="ben").say("not ana's")
    parts = [part async for part in admin(service).ExportUser(pb.ExportUserRequest(user_id="ana"))]
    assert {part.session_id for part in parts} == {"export-ana"}
    names = [part.WhichOneof("part") for part in parts]
    assert names[0] == "session"
    assert {"task", "turn", "record"} <= set(names)
    turns = [part.turn for part in parts if part.HasField("turn")]
    assert turns == await chat.turns()
    assert not [p async for p in admin(service).ExportUser(pb.ExportUserRequest(user_id="eve"))]


@pytest.mark.parametrize(
    ("rpc", "request_", "field"),
    [
        ("ListSessions", pb.ListSessionsRequest(page_size=1001), "page_size"),
        ("ListSessions", pb.ListSessionsRequest(page_token="!"), "page_token"),
        ("ListSessions", pb.ListSessionsRequest(tenant="a b"), "tenant"),
        ("ListEvents", pb.ListEventsRequest(session_id="x", kinds=["moon"]), "kinds"),
        ("ListEvents", pb.ListEventsRequest(order=1), "order"),
        ("ListEvents", pb.ListEventsRequest(page_token="AAAA"), "page_token"),
        ("ListInbox", pb.ListInboxRequest(page_token="AAAA"), "page_token"),
        ("SetStickiness", pb.SetStickinessRequest(), "enabled"),
        ("EraseUser", pb.EraseUserRequest(), "user_id"),
        ("EraseUser", pb.EraseUserRequest(user_id="ana", tenant="*"), "tenant"),
        ("PurgeSessions", pb.PurgeSessionsRequest(), "update_time_before"),
    ],
)
async def test_bad_fields_are_named(service, rpc, request_, field):
    """Every bad field is named, as in every RPC."""
    refused = await refusal(getattr(admin(service), rpc)(request_))
    assert (refused.code, refused.reason) == ("INVALID_ARGUMENT", "INVALID_FIELD")
    assert refused.metadata["field"] == field


async def test_a_watch_gets_the_changes_of_an_interval_together(service):
    """Watchers that show changes to people get few messages; nothing is missed or sent twice."""
    interval = duration_pb2.Duration(nanos=200_000_000)
    calls = [
        admin(service).WatchEvents(pb.WatchEventsRequest(batch_interval=interval, kinds=kinds))
        for kinds in ([], [], ["message_routed"])
    ]
    for call in calls:
        assert (await call.read()).HasField("heartbeat")
    chats = [service.chat(f"batch-{place}") for place in range(5)]
    wanted = set()
    for text in ("one", "two", "three"):
        answers = await asyncio.gather(*(chat.say(text) for chat in chats))
        wanted |= {(answer.session_id, answer.revision) for answer in answers}
    seen_of_all = []
    for call in calls:
        seen, messages = [], 0
        async with asyncio.timeout(WAIT_S):
            while not wanted <= set(seen):
                message = await call.read()
                assert not message.HasField("change")
                messages += message.HasField("batch")
                changes = [each.change for each in message.batch.changes]
                seen += [(change.session_id, change.revision) for change in changes]
        assert len(seen) == len(set(seen))
        seen_of_all.append((seen, messages, message.cursor))
        call.cancel()
    assert seen_of_all[0] == seen_of_all[1]
    assert seen_of_all[0][1] < len(wanted)
    # The cursor is the position of the whole batch.
    resumed = admin(service).WatchEvents(
        pb.WatchEventsRequest(cursor=seen_of_all[0][2], batch_interval=interval)
    )
    assert (await resumed.read()).HasField("heartbeat")
    last = await chats[0].say("four")
    (change,) = (await resumed.read()).batch.changes
    assert change.change.revision == last.revision
    resumed.cancel()
    too_long = duration_pb2.Duration(seconds=6)
    refused = admin(service).WatchEvents(pb.WatchEventsRequest(batch_interval=too_long))
    assert (await refusal(refused.read())).reason == "INVALID_FIELD"
