"""GetSessionAt: the state at each revision is the one that Status showed then, on every engine."""

from __future__ import annotations

import pytest

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import admin_service_pb2_grpc, task_pb2
from agent_routing.v1 import routing_service_pb2 as rpb
from routing_service.sessions import past_states
from tests.conformance.conftest import ENGINES
from tests.rpc.live_service import ask, fresh_id, hand_to, refusal, serving
from tests.rpc.random_talk import RandomTalk
from tests.rpc.registries import DESK
from tests.rpc.test_parked_tasks import REGISTRY, waiting

STEPS = 40


def admin(service):
    """Return the stub of AdminService."""
    return admin_service_pb2_grpc.AdminServiceStub(service.channel)


async def at(service, session_id, revision=0, tenant=""):
    """Ask for the state at a revision."""
    request = pb.GetSessionAtRequest(session_id=session_id, revision=revision, tenant=tenant)
    return await admin(service).GetSessionAt(request, timeout=20)


def common(state):
    """Return what both a Status and an earlier state say."""
    turns = state.open_turns if hasattr(state, "open_turns") else state.open_requests
    return {
        "revision": state.revision,
        "active": state.active_agent.agent_id,
        "locked": state.locked,
        "until": state.lock_expire_time.ToMicroseconds(),
        "stack": [frame.SerializeToString() for frame in state.return_stack],
        "task": (state.task.task_id, state.task.status, state.task.update_time.seconds),
        "open": [
            (turn.request_id, turn.task_id, turn.agent.agent_id, turn.reason) for turn in turns
        ],
        "registry": state.registry_version,
        "owner": state.owner,
        "locale": state.locale,
        "channel": state.channel,
        "times": (state.create_time.ToMicroseconds(), state.update_time.ToMicroseconds()),
        "turns": dict(state.turns_by_agent),
    }


@pytest.fixture(params=ENGINES, ids=lambda engine: engine.name)
async def service(request, tmp_path):
    """A server on each engine."""
    engine = request.param
    server = request.getfixturevalue(engine.server) if engine.server else None
    folder = tmp_path / "store"
    folder.mkdir()
    async with serving(tmp_path, DESK, store=engine.url(folder, server)) as running:
        yield running
    engine.clear(folder, server)


async def test_each_revision_has_the_state_that_status_showed_then(service, monkeypatch):
    """Locks, interludes, handoffs, clears and closed tasks, by seeded calls; in any order."""
    monkeypatch.setattr(past_states, "PAGE_CHANGES", 7)
    monkeypatch.setattr(past_states, "MARK_EVERY", 5)
    talk = RandomTalk(service, seed=17)
    seen = {}
    # Status also shows what has passed with time: it is read before the clock moves on.
    advance, later = service.clock.advance, []
    monkeypatch.setattr(service.clock, "advance", later.append)
    for _ in range(STEPS):
        await talk.step()
        if talk.kept:
            status = await talk.chat.status()
            seen.setdefault(status.revision, status)
        advance(sum(later))
        later.clear()
    head = max(seen)
    assert len(seen) > STEPS / 3
    for revision in (*sorted(seen, reverse=True), *sorted(seen)):
        state = await at(service, talk.chat.session_id, revision)
        assert common(state) == common(seen[revision]), revision
        assert state.head_revision == head
    assert (await at(service, talk.chat.session_id)).revision == head


async def test_an_approval_and_a_suggested_state_are_in_it(service):
    """The turn that waits for a person, with the message it began with."""
    chat = service.chat()
    await chat.set_active("support")
    routed = await chat.say("refund me")
    needs = {"approval_needed": rpb.ApprovalNeededOutcome(prompt="Refund?")}
    await chat.answer(routed.dispatch, "one moment", **needs)
    paused = await at(service, chat.session_id)
    assert paused.task.status == task_pb2.TASK_STATUS_PAUSED
    assert paused.paused_turn.request_id == routed.request_id
    assert paused.paused_turn.agent.agent_id == "support"
    before = await at(service, chat.session_id, paused.revision - 1)
    assert not before.HasField("paused_turn")
    assert [turn.live for turn in before.open_turns] == [True]
    assert before.open_turns[0].message_revision == before.open_turns[0].dispatch_revision


async def test_a_parked_task_is_in_it(tmp_path):
    """From the change that parked it on; the foreground is free again."""
    async with serving(tmp_path, REGISTRY) as running:
        chat = running.chat()
        asked = await waiting(chat)
        status = await chat.status()
        parked = await at(running, chat.session_id, asked.revision)
        [then], [now] = parked.parked_tasks, status.parked_tasks
        assert (then.number, then.paused_turn.agent) == (now.number, now.agent)
        assert (then.task.task_id, then.task.status) == (now.task.task_id, now.task.status)
        assert not (await at(running, chat.session_id, asked.revision - 1)).parked_tasks


async def test_a_lock_of_then_has_its_time(service):
    """The agent asked with a timeout; the state says until when it was to wait."""
    chat = service.chat()
    await chat.with_agent("sales", **ask(60))
    state = await at(service, chat.session_id)
    assert state.locked
    expected_us = service.clock.now_us + 60_000_000
    assert state.lock_expire_time.ToMicroseconds() == expected_us


async def test_a_revision_that_is_not_there_is_refused(service):
    """A later one, a session that never was, another tenant's, and what no call may name."""
    chat = service.chat()
    await chat.say("hello")
    refused = await refusal(at(service, chat.session_id, 9))
    assert (refused.code, refused.reason) == ("INVALID_ARGUMENT", "INVALID_FIELD")
    assert 'session "' in refused.message
    assert "is at revision 1; give 1 to 1, or 0 for the latest" in refused.message
    refused = await refusal(at(service, chat.session_id, -1))
    assert refused.reason == "INVALID_FIELD"
    for session_id, tenant in (("nobody", ""), (chat.session_id, "another")):
        refused = await refusal(at(service, session_id, 1, tenant))
        assert (refused.code, refused.reason) == ("NOT_FOUND", "UNKNOWN_SESSION")
    for session_id, tenant in (("", ""), (chat.session_id, "*")):
        refused = await refusal(at(service, session_id, 1, tenant))
        assert refused.reason == "INVALID_FIELD"


async def test_an_erased_session_shows_nothing_of_before(service):
    """Also where its states were folded, and kept, before it was erased."""
    chat = service.chat()
    routed = await chat.say("hello")
    await chat.answer(routed.dispatch, "to sales", **hand_to("sales"))
    assert (await at(service, chat.session_id, 1)).owner == "ana"
    await admin(service).EraseUser(pb.EraseUserRequest(user_id="ana", reason="asked"), timeout=20)
    for revision in (1, 2):
        refused = await refusal(at(service, chat.session_id, revision))
        assert (refused.code, refused.reason) == ("FAILED_PRECONDITION", "SESSION_ERASED")
    last = await at(service, chat.session_id)
    assert (last.owner, last.revision) == ("", last.head_revision)


async def test_a_session_that_was_purged_and_begun_again_is_the_new_one(service, monkeypatch):
    """A state that was kept of the old one is not shown under its name."""
    monkeypatch.setattr(past_states, "MARK_EVERY", 1)
    chat = service.chat()
    await chat.set_active("sales")
    await chat.say("hello")
    assert (await at(service, chat.session_id, 1)).active_agent.agent_id == "sales"
    service.clock.advance(3600)
    later = pb.PurgeSessionsRequest(reason="old")
    later.update_time_before.FromMicroseconds(service.clock.now_us)
    service.clock.advance(10)
    purged = await admin(service).PurgeSessions(later, timeout=20)
    assert purged.sessions_purged == 1
    refused = await refusal(at(service, chat.session_id, 1))
    assert refused.reason == "UNKNOWN_SESSION"
    await chat.say("hello again", request_id=fresh_id())
    await chat.say("and again", request_id=fresh_id())
    assert not (await at(service, chat.session_id, 1)).HasField("active_agent")
