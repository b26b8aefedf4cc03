"""The list and the watch of what waits for an approval, across the sessions of a tenant."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest
from google.protobuf import duration_pb2
from msgspec import structs

from agent_routing.v1 import dispatch_pb2
from agent_routing.v1 import routing_service_pb2 as pb
from routing_service.storage.memory_store import MemoryStore
from routing_service.storage.queue_entries import APPROVALS_QUEUE, QueueEntry
from routing_service.storage.store import SessionKey
from routing_service.stored_data.queue_check import rebuild_queues
from routing_service.stored_data.session_copy import copy_session
from routing_service.stored_data.verification import QueueReport, StoreReport, verify_store
from tests.rpc.live_service import fresh_id, refusal, serving
from tests.rpc.registries import DESK
from tests.rpc.signed_in import serving_signed_in, signed
from tests.rpc.test_approval_rules import decision, desk, needs, paused_by, paused_signed_in

APPROVE = dispatch_pb2.DECISION_APPROVE
REJECT = dispatch_pb2.DECISION_REJECT


@pytest.fixture
async def service(tmp_path):
    """The help desk, with the default rule for approvals."""
    async with serving(tmp_path, DESK) as running:
        yield running


async def listed(caller, **fields):
    """Return a page of waiting approvals."""
    return await caller("ListApprovals", pb.ListApprovalsRequest(**fields))


async def sessions(caller, **fields):
    """Return the sessions of a page of waiting approvals."""
    return [each.session_id for each in (await listed(caller, **fields)).approvals]


class Watcher:
    """A watch of approvals, read message by message."""

    def __init__(self, stream):
        self._stream = stream

    async def next(self, timeout_s=20):
        """Return the kind of the next message, and what it has."""
        async with asyncio.timeout(timeout_s):
            message = await self._stream.read()
        if message is grpc.aio.EOF:
            return "end", None
        kind = message.WhichOneof("kind")
        return kind, getattr(message, kind)

    async def begin(self):
        """Read up to the heartbeat that says that all was sent; return the sessions."""
        kind, beat = await self.next()
        assert (kind, beat.is_complete) == ("heartbeat", False)
        found = []
        while True:
            kind, message = await self.next()
            if kind == "heartbeat":
                assert message.is_complete
                return found
            assert kind == "waiting"
            found.append(message.session_id)


@asynccontextmanager
async def watching(caller, **fields):
    """Watch approvals."""
    stream = caller("WatchApprovals", pb.WatchApprovalsRequest(**fields))
    try:
        yield Watcher(stream)
    finally:
        stream.cancel()


async def test_list_has_what_waits_in_all_sessions_of_the_tenant(service):
    """The oldest first, with everything that a person needs in order to decide."""
    first, second, elsewhere = service.chat(), service.chat(user_id="ben"), service.chat(tenant="x")
    paused = await paused_by(first, amount=40)
    service.clock.advance(60)
    await paused_by(second)
    await paused_by(elsewhere)
    page = await listed(service.call)
    assert [each.session_id for each in page.approvals] == [first.session_id, second.session_id]
    assert not page.next_page_token
    one = page.approvals[0]
    assert (one.user_id, one.may_decide, one.has_approved) == ("ana", True, False)
    status = await first.status()
    assert one.approval == status.pending_approval
    assert (one.approval.request_id, one.approval.prompt) == (
        paused.request_id,
        "Refund 40 euros?",
    )
    assert dict(one.approval.fields) == {"amount": 40}
    await service.call("ResumeTask", decision(first.session_id, paused))
    assert await sessions(service.call) == [second.session_id]
    assert await sessions(lambda *args: service.call(*args, tenant="x")) == [elsewhere.session_id]


@pytest.mark.parametrize("how", ["reject", "reset", "operator", "clear", "erase"])
async def test_whatever_ends_an_approval_takes_it_off_the_list(service, how):
    """In the same change: no second step could be lost."""
    chat = service.chat()
    paused = await paused_by(chat)
    assert await sessions(service.call) == [chat.session_id]
    match how:
        case "reject":
            await service.call("ResumeTask", decision(chat.session_id, paused, REJECT))
        case "reset":
            await chat.say("/reset")
        case "operator":
            await chat.set_active("sales", initiator="INITIATOR_OPERATOR")
        case "clear":
            await chat.clear()
        case "erase":
            await service.server._parts.handler.erase(chat.key, "asked", _operator())
    store = service.store
    assert await store.read_queue(chat.key.tenant, APPROVALS_QUEUE, None, 10) == []
    assert await sessions(service.call) == []


def _operator():
    from routing_service.sessions.audit_log import Operator  # noqa: PLC0415 - one test's

    return Operator("default", subject="ops")


async def test_purged_session_leaves_no_entry(service):
    """A purge removes it with the session."""
    chat = service.chat()
    await paused_by(chat)
    handler = service.server._parts.handler
    revision = (await chat.status()).revision
    assert await handler.delete(chat.key, revision)
    assert await service.store.read_queue(chat.key.tenant, APPROVALS_QUEUE, None, 10) == []


async def test_expired_approval_is_not_listed_before_the_sweep(tmp_path):
    """Its time has passed, whether the change that says so was made or not."""
    async with serving(tmp_path, desk("{expires: 1h}"), expiry_sweep=False) as service:
        chat = service.chat()
        await paused_by(chat)
        page = await listed(service.call)
        assert page.approvals[0].approval.HasField("expire_time")
        service.clock.advance(3601)
        assert await sessions(service.call) == []


async def test_pages_have_every_approval_once(service):
    """In order, with other filters in between."""
    chats = [service.chat() for _ in range(5)]
    for chat in chats:
        await paused_by(chat)
        service.clock.advance(1)
    names = [chat.session_id for chat in chats]
    found, token, pages = [], "", 0
    while True:
        page = await listed(service.call, page_size=2, page_token=token)
        found += [each.session_id for each in page.approvals]
        pages += 1
        token = page.next_page_token
        if not token:
            break
    assert (found, pages) == (names, 3)
    assert await sessions(service.call, agent_id="sales") == []
    assert await sessions(service.call, agent_id="SALES TEAM") == []
    assert await sessions(service.call, agent_id="support") == names


async def test_a_page_reads_a_bounded_part_of_the_index(service, monkeypatch):
    """A filter that few pass gives short pages with a token, and the next page goes on."""
    monkeypatch.setattr("routing_service.rpc.routing.approvals.SCANNED_MAX", 2)
    chats = [service.chat() for _ in range(3)]
    for chat in chats:
        await paused_by(chat)
        service.clock.advance(1)
    page = await listed(service.call, agent_id="sales")
    assert (list(page.approvals), bool(page.next_page_token)) == ([], True)
    page = await listed(service.call, agent_id="sales", page_token=page.next_page_token)
    assert (list(page.approvals), page.next_page_token) == ([], "")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"page_size": 1001}, "page_size"),
        ({"page_token": "bm9uZQ"}, "page_token"),
        ({"page_token": "!"}, "page_token"),
        ({"role": "a b"}, "role"),
        ({"agent_id": "a b"}, "agent_id"),
    ],
)
async def test_bad_fields_are_named(service, fields, field):
    """Each refusal names its field."""
    refused = await refusal(service.call("ListApprovals", pb.ListApprovalsRequest(**fields)))
    assert (refused.code, refused.reason) == ("INVALID_ARGUMENT", "INVALID_FIELD")
    assert refused.metadata["field"] == field


async def test_approver_finds_what_it_may_decide(tmp_path):
    """By role, or what is its own to decide; the rule says of each whether the caller may."""
    rule = desk("{by: 'role:treasurer', needs: 2}")
    async with serving_signed_in(tmp_path, rule, store="memory:") as service:
        paused = await paused_signed_in(service, "s")
        scopes = ("approve", "treasurer")
        bea = signed(service, *scopes, user="bea")
        cai = signed(service, "approve", user="cai")
        assert await sessions(bea, role="treasurer") == ["s"]
        assert await sessions(bea, role="boss") == []
        one = (await listed(cai)).approvals[0]
        assert (one.may_decide, one.has_approved) == (False, False)
        assert await sessions(cai, mine=True) == []
        assert await sessions(bea, mine=True) == ["s"]
        await bea("ResumeTask", decision("s", paused))
        one = (await listed(bea)).approvals[0]
        assert (one.may_decide, one.has_approved, one.approval.decisions) == (True, True, 1)
        assert await sessions(bea, mine=True) == []


async def test_index_is_for_approvers_and_operators_alone(tmp_path):
    """A user's, an agent's and a reader's credential reads nothing of it."""
    async with serving_signed_in(tmp_path, DESK, store="memory:") as service:
        await paused_signed_in(service, "s")
        for scope in ("route", "read", "agent"):
            refused = await refusal(listed(signed(service, scope, user="ana", agents=("*",))))
            assert (refused.code, refused.reason) == ("PERMISSION_DENIED", "SCOPE_MISSING")
        assert await sessions(signed(service, "admin")) == ["s"]
        assert await sessions(signed(service, "approve", user="bea")) == ["s"]
        assert await sessions(signed(service, "approve", user="bea", tenant="other")) == []


async def test_watch_sends_what_waits_then_what_changes(service):
    """A new one, and its end, at once."""
    first, second = service.chat(), service.chat()
    paused = await paused_by(first)
    async with watching(service.call) as watcher:
        assert await watcher.begin() == [first.session_id]
        asked = await paused_by(second, amount=7)
        kind, waiting = await watcher.next()
        assert (kind, waiting.session_id) == ("waiting", second.session_id)
        assert waiting.approval == (await second.status()).pending_approval
        await service.call("ResumeTask", decision(first.session_id, paused))
        kind, ended = await watcher.next()
        assert (kind, ended.session_id, ended.request_id) == (
            "ended",
            first.session_id,
            paused.request_id,
        )
        await second.say("/reset")
        kind, ended = await watcher.next()
        assert (kind, ended.request_id) == ("ended", asked.request_id)


async def test_watch_shows_votes_and_ends_what_is_no_longer_mine(tmp_path):
    """Each vote is sent again with the new count."""
    async with serving_signed_in(tmp_path, desk("{needs: 2}"), store="memory:") as service:
        paused = await paused_signed_in(service, "s")
        bea, cai = (signed(service, "approve", user=name) for name in ("bea", "cai"))
        async with watching(bea) as everything, watching(bea, mine=True) as own:
            assert await everything.begin() == ["s"]
            assert await own.begin() == ["s"]
            await bea("ResumeTask", decision("s", paused))
            kind, waiting = await everything.next()
            assert (kind, waiting.approval.decisions, waiting.has_approved) == ("waiting", 1, True)
            assert (await own.next())[0] == "ended"
            await cai("ResumeTask", decision("s", paused))
            assert (await everything.next())[0] == "ended"


async def test_watch_ends_with_the_server(service):
    """A heartbeat comes in silence."""
    interval = duration_pb2.Duration(seconds=1)
    async with watching(service.call, heartbeat_interval=interval) as watcher:
        assert await watcher.begin() == []
        kind, beat = await watcher.next()
        assert (kind, beat.is_complete) == ("heartbeat", True)
        stopping = asyncio.create_task(service.server.stop(5))
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await watcher.next()
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        await stopping


async def test_lost_entry_comes_back_and_a_wrong_one_goes(service):
    """By reading the session, by listing, or by what migrate does; verify names both."""
    chat, other = service.chat(), service.chat()
    paused = await paused_by(chat)
    await other.say("hello")
    store, tenant = service.store, chat.key.tenant
    (item,) = await store.read_queue(tenant, APPROVALS_QUEUE, None, 10)
    wrong = QueueEntry(APPROVALS_QUEUE, 1, other.session_id, fresh_id())
    late = QueueEntry("front", 1, other.session_id, fresh_id())

    async def spoil():
        await store.mend_queue(tenant, (wrong, late), (item.entry,))
        reports = [report async for report in verify_store(store)]
        said = [report.wrong for report in reports if isinstance(report, QueueReport)]
        assert len(said) == 3
        assert any("waits for the approval of request" in each for each in said)
        assert any("the index of approvals has request" in each for each in said)
        assert any('the inbox of "front" has request' in each for each in said)
        assert isinstance(reports[-1], StoreReport)
        assert (reports[-1].wrong_entries, reports[-1].damaged) == (3, 0)

    await spoil()
    assert await sessions(service.call) == []
    await chat.status()
    assert await sessions(service.call) == [chat.session_id]
    await spoil()
    assert await rebuild_queues(store) == 3
    assert await rebuild_queues(store) == 0
    assert await store.read_queue(tenant, APPROVALS_QUEUE, None, 10) == [item]
    await service.call("ResumeTask", decision(chat.session_id, paused))
    assert await store.read_queue(tenant, APPROVALS_QUEUE, None, 10) == []


async def test_copy_takes_what_waits_along(service):
    """The target lists it at once."""
    chat = service.chat()
    await paused_by(chat)
    target = MemoryStore()
    await copy_session(service.store, target, chat.key)
    items = await service.store.read_queue(chat.key.tenant, APPROVALS_QUEUE, None, 10)
    assert await target.read_queue(chat.key.tenant, APPROVALS_QUEUE, None, 10) == items
    assert len(items) == 1


async def test_damaged_session_does_not_hide_the_others(service, monkeypatch):
    """It is logged and left out."""
    chats = [service.chat(), service.chat()]
    for chat in chats:
        await paused_by(chat)
    handler = service.server._parts.handler
    load = service.store.load

    async def damaged(key):
        head = await load(key)
        if key == SessionKey("default", chats[0].session_id):
            return structs.replace(head, state=b"{")
        return head

    handler._cache._hot.clear()
    monkeypatch.setattr(handler._store, "load", damaged)
    assert await sessions(service.call) == [chats[1].session_id]


__all__ = ["needs"]
