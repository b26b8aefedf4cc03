"""The Python client's calls about approvals, against a real server and over lost connections."""

import asyncio

import pytest

from agent_routing import AsyncClient, Client, errors, outcomes
from agent_routing.approval_watch import ApprovalWatch
from agent_routing.calls import CallSettings
from agent_routing.retry import RetryPolicy
from agent_routing.v1 import routing_service_pb2 as pb
from tests.rpc.live_service import serving
from tests.rpc.registries import DESK


@pytest.fixture
async def service(tmp_path):
    """The help desk."""
    async with serving(tmp_path, DESK, store="memory:") as running:
        yield running


async def paused(client, session_id):
    """Let the front desk ask for an approval."""
    turn = await client.route("my money", session_id=session_id, user_id="ana")
    asked = outcomes.approval_needed("Refund?", fields={"amount": 40})
    await client.complete_turn(session_id, turn.request_id, turn.agent_id, asked)
    return turn


async def test_lists_and_watches_what_waits(service):
    """Pages are fetched as they are needed; the watch yields what is new."""
    async with AsyncClient(service.server.address, fallback=None) as client:
        turns = [await paused(client, name) for name in ("a", "b", "c")]
        found = [each async for each in client.list_approvals(page_size=1)]
        assert [each.session_id for each in found] == ["a", "b", "c"]
        assert found[0].approval.fields["amount"] == 40
        watch = client.watch_approvals()
        for name in ("a", "b", "c"):
            assert (await anext(watch)).waiting.session_id == name
        await client.resume_task(turns[1].task_id, turns[1].request_id, "REJECT")
        assert (await anext(watch)).ended.session_id == "b"
        await watch.aclose()
        with pytest.raises(errors.InvalidField):
            await client.list_approvals_page(role="a b")


async def test_blocking_client_has_the_same_calls(service):
    """It is generated from the other one."""
    async with AsyncClient(service.server.address, fallback=None) as client:
        await paused(client, "a")

    def blocking():
        with Client(service.server.address, fallback=None) as other:
            watch = other.watch_approvals()
            seen = next(watch)
            watch.close()
            return [each.session_id for each in other.list_approvals()], seen.waiting.session_id

    assert await asyncio.to_thread(blocking) == (["a"], "a")


def waiting(session_id, decisions=0):
    """A message about a waiting request."""
    approval = pb.PendingApproval(request_id=f"r-{session_id}", decisions=decisions)
    one = pb.WaitingApproval(session_id=session_id, approval=approval)
    return pb.WatchApprovalsResponse(waiting=one)


def beat(*, is_complete):
    """A heartbeat."""
    heartbeat = pb.ApprovalsHeartbeat(is_complete=is_complete)
    return pb.WatchApprovalsResponse(heartbeat=heartbeat)


def test_new_connection_repeats_nothing_and_tells_what_ended_meanwhile():
    """Each connection begins with everything that waits."""
    settings = CallSettings(
        target="here", timeout_s=5, metadata=(), retry=RetryPolicy(), known=None
    )
    watch = ApprovalWatch(settings, pb.WatchApprovalsRequest(mine=True), 60)
    assert watch.connect().mine

    def received(*messages):
        return [seen for message in messages for seen in watch.received(message)]

    first = [waiting("a"), waiting("b"), waiting("c")]
    assert received(beat(is_complete=False), *first, beat(is_complete=True)) == first
    watch.connect()
    changed = waiting("b", decisions=1)
    again = received(beat(is_complete=False), waiting("a"), changed, waiting("d"))
    assert again == [changed, waiting("d")]
    (ended,) = received(beat(is_complete=True), beat(is_complete=True))
    assert (ended.ended.session_id, ended.ended.request_id) == ("c", "r-c")
    unknown = pb.WatchApprovalsResponse(ended=pb.EndedApproval(session_id="x", request_id="y"))
    assert received(unknown, pb.WatchApprovalsResponse()) == []
