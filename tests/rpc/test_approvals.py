"""Human approval: a request pauses its task, one decision resumes it, and nothing is lost."""

import asyncio

import pytest

from agent_routing.v1 import dispatch_pb2
from agent_routing.v1 import routing_service_pb2 as pb
from routing_service.ids import new_uuid7
from tests.rpc.live_service import (
    TRANSFER,
    ask,
    finish,
    hand_to,
    outcome,
    outcome_status,
    refusal,
    serving,
    task_status,
    went,
)
from tests.rpc.registries import DESK

APPROVE = dispatch_pb2.DECISION_APPROVE
REJECT = dispatch_pb2.DECISION_REJECT
OPERATOR = 4


@pytest.fixture
async def service(tmp_path):
    """A help desk whose agents differ in one thing each."""
    async with serving(tmp_path, DESK) as running:
        yield running


def needs_approval(prompt="Refund 40 euros?"):
    """The agent needs a person's approval before it continues."""
    return {"approval_needed": pb.ApprovalNeededOutcome(prompt=prompt)}


def decide(chat, paused, decision=APPROVE, **fields):
    """Decide a paused request."""
    given = {
        "session_id": chat.session_id,
        "task_id": paused.task_id,
        "request_id": paused.request_id,
        "decision": decision,
    }
    return chat.service.call("ResumeTask", pb.ResumeTaskRequest(**(given | fields)))


async def pause(service, agent_id="support", **answer):
    """Bring an agent in and let it ask for an approval; return the chat and the request."""
    chat = await service.chat().with_agent(agent_id, **answer)
    routed = await chat.say("I want my money back")
    asked = await chat.answer(routed.dispatch, "One moment.", **needs_approval())
    assert (outcome_status(asked), task_status(asked.task_status)) == ("APPLIED", "PAUSED")
    return chat, routed.dispatch


async def test_approval_pauses_the_task_and_its_decision_goes_to_the_agent(service):
    """The agent that asked gets the decision, the comment and the user's message."""
    chat, paused = await pause(service)
    status = await chat.status()
    assert task_status(status.task.status) == "PAUSED"
    assert status.pending_approval.request_id == paused.request_id
    assert status.pending_approval.prompt == "Refund 40 euros?"
    assert status.pending_approval.agent.agent_id == "support"
    resumed = await decide(chat, paused, comment="but only this once")
    assert went(resumed.dispatch) == ("support", "TASK_RESUMED")
    assert resumed.dispatch.resume.decision == APPROVE
    assert resumed.dispatch.resume.comment == "but only this once"
    assert resumed.dispatch.text == "I want my money back"
    assert resumed.dispatch.request_id != paused.request_id
    done = await chat.answer(resumed.dispatch, "Done.", **finish("refunded"))
    assert (outcome_status(done), task_status(done.task_status)) == ("APPLIED", "COMPLETED")
    assert not (await chat.status()).HasField("pending_approval")


async def test_rejection_resumes_too(service):
    """Either decision resumes the task; the agent learns which one it was."""
    chat, paused = await pause(service)
    resumed = await decide(chat, paused, REJECT, comment="no")
    assert resumed.dispatch.resume.decision == REJECT
    assert task_status((await chat.status()).task.status) == "RUNNING"


async def test_messages_while_paused_go_to_the_waiting_agent_and_move_nothing(service):
    """A turn may only proceed or fail; the lock, the stack and the task stay."""
    chat, paused = await pause(service, **ask())
    before = await chat.status()
    for given, expected in (
        ({}, "APPLIED"),
        (ask(), "DEGRADED"),
        (finish(), "DEGRADED"),
        (needs_approval("again?"), "DEGRADED"),
        ({"failure": pb.FailureOutcome(message="x")}, "APPLIED"),
    ):
        routed = await chat.say("hello?")
        assert went(routed.dispatch) == ("support", "AWAITING_APPROVAL")
        answered = await chat.answer(routed.dispatch, "Please wait.", **given)
        assert outcome_status(answered) == expected
        assert task_status(answered.task_status) == "PAUSED"
    routed = await chat.say("hello?")
    refused = await refusal(chat.answer(routed.dispatch, **hand_to("sales")))
    assert "approval_pending" in refused.violations
    after = await chat.status()
    assert (after.active_agent, after.locked) == (before.active_agent, before.locked)
    assert after.pending_approval.request_id == paused.request_id
    assert (await decide(chat, paused)).dispatch.agent.agent_id == "support"


async def test_handoffs_from_outside_are_refused_while_paused_but_an_operator_may(service):
    """The operator's handoff cancels the approval; the task stays open."""
    chat, paused = await pause(service)
    refused = await refusal(chat.set_active("sales"))
    assert "approval_pending" in refused.violations
    moved = await chat.set_active("sales", user_id="", initiator=OPERATOR, mode=TRANSFER)
    assert moved.agent.agent_id == "sales"
    status = await chat.status()
    assert task_status(status.task.status) == "RUNNING"
    assert not status.HasField("pending_approval")
    refused = await refusal(decide(chat, paused))
    assert refused.reason == "TASK_NOT_PAUSED"
    assert [task_status(t.status) for t in await chat.tasks()] == ["RUNNING"]


@pytest.mark.parametrize(("text", "ends"), [("/supervisor", "RUNNING"), ("/reset", "CANCELLED")])
async def test_commands_cancel_the_approval(service, text, ends):
    """/supervisor leaves the task running; /reset cancels it."""
    chat, paused = await pause(service)
    await chat.say(text)
    status = await chat.status()
    assert task_status(status.task.status) == ends
    assert not status.HasField("pending_approval")
    assert (await refusal(decide(chat, paused))).reason == "TASK_NOT_PAUSED"


async def test_clear_cancels_the_approval(service):
    """Clear changes the session while an approval is pending."""
    chat, paused = await pause(service)
    revision = (await chat.status()).revision
    assert (await chat.clear()).revision == revision + 1
    assert (await refusal(decide(chat, paused))).reason == "TASK_NOT_PAUSED"


async def test_same_decision_again_gets_the_same_answer_and_another_is_refused(service):
    """An approver that crashed may repeat its decision, in other words too; a reject is refused."""
    chat, paused = await pause(service)
    first = await decide(chat, paused, comment="ok")
    assert (first.decisions, first.decisions_needed) == (1, 1)
    assert await decide(chat, paused, comment="ok") == first
    assert await decide(chat, paused, comment="fine") == first
    refused = await refusal(decide(chat, paused, REJECT))
    assert (refused.code, refused.reason) == ("FAILED_PRECONDITION", "APPROVAL_DECIDED")
    assert refused.metadata["decision"] == "approve"
    assert refused.metadata["time"] == "2025-06-15T15:06:40.000+00:00"
    other = await refusal(decide(chat, paused, task_id=new_uuid7()))
    assert other.reason in {"UNKNOWN_TASK", "REQUEST_NOT_OPEN"}


async def test_exactly_one_of_racing_approvers_wins(service):
    """Sixteen callers, half of them approving and half rejecting: one decision takes effect."""
    for _ in range(10):
        chat, paused = await pause(service)
        revision = (await chat.status()).revision
        calls = [
            decide(chat, paused, APPROVE if place % 2 else REJECT, comment=str(place))
            for place in range(16)
        ]
        results = await asyncio.gather(*calls, return_exceptions=True)
        won = [r for r in results if isinstance(r, pb.ResumeTaskResponse)]
        # The eight that decided the same have one answer.
        assert len(won) == 8
        assert all(answer == won[0] for answer in won)
        assert (await chat.status()).revision == revision + 1


async def test_crashed_approver_and_agent_lose_nothing(tmp_path):
    """After a restart the pending approval is there, and so is the request that followed it."""
    async with serving(tmp_path, DESK) as service:
        chat, paused = await pause(service)
    async with serving(tmp_path, DESK) as service:
        chat = service.chat(chat.session_id)
        assert (await chat.status()).pending_approval.request_id == paused.request_id
        resumed = await decide(chat, paused, comment="go")
    async with serving(tmp_path, DESK) as service:
        chat = service.chat(chat.session_id)
        (dispatch,) = (await chat.status()).open_requests
        assert dispatch.request_id == resumed.dispatch.request_id
        assert dispatch.resume == resumed.dispatch.resume
        assert dispatch.text == resumed.dispatch.text
        assert outcome_status(await chat.answer(dispatch, "Done.", **finish())) == "APPLIED"


async def test_task_id_alone_finds_the_session_to_resume(service):
    """An approval tool knows only the task and the request."""
    chat, paused = await pause(service)
    resumed = await decide(chat, paused, session_id="")
    assert resumed.session_id == chat.session_id


async def test_resume_of_the_wrong_thing_is_refused(service):
    """Each wrong call is refused with its own reason."""
    chat, paused = await pause(service)
    for fields, code, reason in (
        ({"request_id": new_uuid7()}, "FAILED_PRECONDITION", "REQUEST_NOT_OPEN"),
        ({"task_id": new_uuid7()}, "NOT_FOUND", "UNKNOWN_TASK"),
        ({"session_id": "nobody"}, "NOT_FOUND", "UNKNOWN_SESSION"),
        ({"session_id": "", "task_id": new_uuid7()}, "NOT_FOUND", "UNKNOWN_TASK"),
        ({"decision": 0}, "INVALID_ARGUMENT", "INVALID_FIELD"),
        ({"user_id": "ben"}, "PERMISSION_DENIED", "OWNER_MISMATCH"),
    ):
        refused = await refusal(decide(chat, paused, **fields))
        assert (refused.code, refused.reason) == (code, reason), fields
    assert (await chat.status()).pending_approval.request_id == paused.request_id


async def test_resume_of_an_earlier_or_a_foreign_task_is_refused(service):
    """The error names a finished task's status; only a session's own user learns of its task."""
    chat, paused = await pause(service)
    await chat.say("/reset and now something else")
    refused = await refusal(decide(chat, paused))
    assert tuple(refused) == ("FAILED_PRECONDITION", "TASK_NOT_PAUSED")
    assert refused.metadata["status"] == "cancelled"
    other, waiting = await pause(service)
    foreign = decide(chat, waiting, user_id="ana")
    assert tuple(await refusal(foreign)) == ("INVALID_ARGUMENT", "INVALID_FIELD")
    stranger = await service.chat(user_id="ben").with_agent("support")
    foreign = decide(stranger, waiting, user_id="ben")
    assert tuple(await refusal(foreign)) == ("PERMISSION_DENIED", "OWNER_MISMATCH")
    assert (await other.status()).pending_approval.request_id == waiting.request_id


async def test_history_shows_the_pause_and_what_followed(service):
    """One message has two entries: the request that asked, and the resumed one."""
    chat, paused = await pause(service)
    resumed = await decide(chat, paused)
    await chat.answer(resumed.dispatch, "Done.")
    turns = await chat.turns(agent_id="support")
    assert [outcome(turn)[0] for turn in turns[-2:]] == ["APPROVAL_NEEDED", "PROCEED"]
    assert turns[-1].parent_request_id == paused.request_id
    assert turns[-1].user_text == "I want my money back"
