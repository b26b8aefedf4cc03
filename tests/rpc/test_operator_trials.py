"""validate_only of operators' acts: the answer says what would follow, and nothing changes."""

from __future__ import annotations

import pytest

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import admin_service_pb2_grpc, clear_scope_pb2, dispatch_pb2
from agent_routing.v1 import routing_service_pb2 as rpb
from tests.rpc.live_service import fresh_id, refusal, serving
from tests.rpc.registries import DESK

APPROVE, REJECT = dispatch_pb2.DECISION_APPROVE, dispatch_pb2.DECISION_REJECT


@pytest.fixture
async def service(tmp_path):
    """A server without sign-in."""
    async with serving(tmp_path, DESK) as running:
        yield running


def without(message, *fields):
    """Return a message without some fields."""
    copied = type(message)()
    copied.CopyFrom(message)
    for field in fields:
        copied.ClearField(field)
    return copied


async def test_a_clear_is_tried(service):
    """The trial says who would be sent away; the same request id then does it."""
    chat = service.chat()
    await chat.with_agent("sales")
    request = rpb.ClearActiveAgentRequest(
        session_id=chat.session_id,
        request_id=fresh_id(),
        scope=clear_scope_pb2.CLEAR_SCOPE_SESSION,
        validate_only=True,
    )
    async with chat.unchanged():
        trial = await service.call("ClearActiveAgent", request)
    assert trial.previous_agent.agent_id == "sales"
    assert trial.agent.agent_id == "front"
    assert trial.revision == (await chat.status()).revision
    request.validate_only = False
    done = await service.call("ClearActiveAgent", request)
    assert without(done, "revision") == without(trial, "revision")
    assert done.revision == trial.revision + 1


async def test_a_cancellation_is_tried(service):
    """Also its refusals are those of the act."""
    chat = service.chat()
    await chat.set_active("sales")
    routed = await chat.say("hello")
    request = rpb.CancelTaskRequest(
        task_id=routed.task_id, request_id=fresh_id(), validate_only=True
    )
    async with chat.unchanged():
        trial = await service.call("CancelTask", request)
    assert (trial.previous_agent.agent_id, trial.task_id) == ("sales", routed.task_id)
    request.expected_revision = 99
    refused = await refusal(service.call("CancelTask", request))
    assert (refused.code, refused.reason) == ("ABORTED", "REVISION_MISMATCH")
    request.ClearField("expected_revision")
    request.validate_only = False
    done = await service.call("CancelTask", request)
    assert without(done, "revision") == without(trial, "revision")
    again = rpb.CancelTaskRequest(task_id=routed.task_id, request_id=fresh_id(), validate_only=True)
    assert (await refusal(service.call("CancelTask", again))).reason == "TASK_CLOSED"


async def test_a_decision_is_tried(service):
    """A trial decides nothing: the other decision still counts, and the agent is not called."""
    chat = service.chat()
    await chat.set_active("support")
    routed = await chat.say("refund me")
    needs = {"approval_needed": rpb.ApprovalNeededOutcome(prompt="Refund?")}
    await chat.answer(routed.dispatch, "one moment", **needs)

    def decide(decision, **fields):
        request = rpb.ResumeTaskRequest(
            session_id=chat.session_id,
            task_id=routed.task_id,
            request_id=routed.request_id,
            decision=decision,
            **fields,
        )
        return service.call("ResumeTask", request)

    async with chat.unchanged():
        trial = await decide(APPROVE, validate_only=True)
    assert (trial.decisions, trial.decisions_needed) == (1, 1)
    assert trial.dispatch.agent.agent_id == "support"
    assert trial.dispatch.resume.decision == APPROVE
    done = await decide(REJECT)
    assert done.dispatch.resume.decision == REJECT
    refused = await refusal(decide(APPROVE, validate_only=True))
    assert refused.reason == "APPROVAL_DECIDED"


async def test_a_switch_is_tried(service):
    """Stickiness stays as it is, and the audit has no switch."""
    stub = admin_service_pb2_grpc.AdminServiceStub(service.channel)

    async def switch(enabled, **fields):
        return await stub.SetStickiness(
            pb.SetStickinessRequest(enabled=enabled, **fields), timeout=20
        )

    trial = await switch(enabled=False, reason="nonsense", validate_only=True)
    assert (trial.enabled, trial.previously_enabled) == (False, True)
    assert trial.HasField("update_time")
    assert (await stub.GetStickiness(pb.GetStickinessRequest(), timeout=20)).enabled
    assert not (await switch(enabled=True, validate_only=True)).HasField("update_time")
    page = await stub.ListEvents(pb.ListEventsRequest(kinds=["stickiness_switched"]), timeout=20)
    assert not page.records
    await switch(enabled=False)
    assert not (await stub.GetStickiness(pb.GetStickinessRequest(), timeout=20)).enabled
