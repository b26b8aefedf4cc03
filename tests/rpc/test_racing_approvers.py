"""Of sixteen concurrent decisions one takes effect, and each caller learns which.

`make test` plays few rounds; `make torture` plays hundreds on each engine.
"""

import asyncio
import random
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from agent_routing.v1 import dispatch_pb2
from agent_routing.v1 import routing_service_pb2 as pb
from routing_service.core import events as ev
from tests.rpc.live_service import read_refusal, serving
from tests.rpc.registries import DESK

CALLERS = 16
ROUNDS = 8
TORTURE_ROUNDS = 500

APPROVE = dispatch_pb2.DECISION_APPROVE
REJECT = dispatch_pb2.DECISION_REJECT

NAMES = {APPROVE: "approve", REJECT: "reject"}

OPINIONS = ((APPROVE, "fine"), (REJECT, "too much"), (APPROVE, "but only this once"))
"""Two callers of one decision ask for the same, with another comment too; a reject contradicts."""


@asynccontextmanager
async def memory(folder, _request):
    """One server in memory."""
    async with serving(folder, DESK, store="memory:") as service:
        yield [service]


@asynccontextmanager
async def sqlite(folder, _request):
    """One server on SQLite."""
    async with serving(folder, DESK) as service:
        yield [service]


@asynccontextmanager
async def two_on_postgres(folder, request):
    """Two servers that share only their database."""
    database = request.getfixturevalue("postgres_database")
    url = database.store_url(folder)
    async with AsyncExitStack() as running:
        servers = []
        for name in ("one", "two"):
            own = folder / name
            await asyncio.to_thread(own.mkdir)
            servers.append(await running.enter_async_context(serving(own, DESK, store=url)))
        yield servers
    database.clear(folder)


ENGINES = (memory, sqlite, two_on_postgres)


@pytest.fixture(params=ENGINES, ids=lambda engine: engine.__name__)
async def services(request, tmp_path):
    """The servers of each engine."""
    async with request.param(tmp_path, request) as running:
        yield running


async def paused_turn(service):
    """Let an agent ask for an approval; return the chat and the paused request."""
    chat = service.chat()
    await chat.set_active("support")
    routed = await chat.say("I want my money back")
    needs = {"approval_needed": pb.ApprovalNeededOutcome(prompt="Refund 40 euros?")}
    await chat.answer(routed.dispatch, "One moment.", **needs)
    return chat, routed.dispatch


def decide(service, chat, paused, opinion, *, by_task):
    """Decide a paused request on one of the servers."""
    decision, comment = opinion
    request = pb.ResumeTaskRequest(
        session_id="" if by_task else chat.session_id,
        task_id=paused.task_id,
        request_id=paused.request_id,
        decision=decision,
        comment=comment,
    )
    return service.call("ResumeTask", request)


async def race(services, rng):
    """Play one round; assert that one decision took effect and that every caller learned it."""
    chat, paused = await paused_turn(services[0])
    revision = (await chat.status()).revision
    opinions = [rng.choice(OPINIONS) for _ in range(CALLERS)]
    results = await asyncio.gather(
        *(
            decide(services[n % len(services)], chat, paused, opinion, by_task=rng.random() < 0.5)
            for n, opinion in enumerate(opinions)
        ),
        return_exceptions=True,
    )
    told = [
        (opinion, result)
        for opinion, result in zip(opinions, results, strict=True)
        if isinstance(result, pb.ResumeTaskResponse)
    ]
    # One decision won. Callers that decided the same get the first answer, whatever their comment.
    (decided,) = {decision for (decision, _), _ in told}
    assert len({result.SerializeToString(deterministic=True) for _, result in told}) == 1
    assert len(told) == sum(decision == decided for decision, _ in opinions)
    for result in results:
        if not isinstance(result, pb.ResumeTaskResponse):
            refused = read_refusal(result)
            assert tuple(refused) == ("FAILED_PRECONDITION", "APPROVAL_DECIDED")
            assert refused.metadata["decision"] == NAMES[decided]
    answer = told[0][1]
    assert answer.revision == revision + 1
    assert answer.dispatch.resume.decision == decided
    won = (decided, answer.dispatch.resume.comment)
    assert won in opinions
    resumed = [event for event in await chat.events() if isinstance(event, ev.TaskResumed)]
    assert [(each.comment, each.child_request_id) for each in resumed] == [
        (won[1], answer.dispatch.request_id)
    ]
    for service in services:
        status = await service.chat(chat.session_id).status()
        assert status.revision == revision + 1
        assert [each.request_id for each in status.open_requests] == [answer.dispatch.request_id]
        assert not status.HasField("pending_approval")


async def test_one_of_racing_approvers_decides(services):
    """Sixteen callers with three different decisions; half of them name the task only."""
    rng = random.Random(4)
    for _ in range(ROUNDS):
        await race(services, rng)


@pytest.mark.torture
async def test_one_of_racing_approvers_decides_in_every_of_many_rounds(services):
    """Hundreds of rounds, for rare interleavings."""
    rng = random.Random(5)
    for _ in range(TORTURE_ROUNDS):
        await race(services, rng)
