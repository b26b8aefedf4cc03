"""What every adapter must do with its framework's own requests for approval.

A test module imports all test functions of this one. Its Program has `approving`: the invoice desk
has the tool refund(amount, account), which needs an approval and appends a line to a file.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_routing import Client, errors
from agent_routing.integrations.approvals import Approval
from agent_routing.v1.task_pb2 import TASK_STATUS_PAUSED
from clients.python.examples.tax_talk import CallTool, Say
from tests.integrations.stories import ANA, Script, Seen, transfer
from tests.integrations.tax_server import REGISTRY, ROOT, TaxServer


def refunds(place: Path) -> list[str]:
    """Return what the tool did."""
    file = place / "refunds"
    return file.read_text("utf-8").splitlines() if file.exists() else []


def refund_into(place: Path) -> Any:
    """Return what the tool does. It kills its process, once, if a file asks for that."""

    def refund(amount: str, account: str) -> str:
        """Refund an amount to an account."""
        with (place / "refunds").open("a", encoding="utf-8") as file:
            file.write(f"{amount} to {account}\n")
        if (asked := place / "die-inside").exists():
            asked.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return f"refunded {amount}"

    return refund


def desk(seen: Seen) -> Any:
    """The invoice desk: it refunds what the user names, each amount with a call of its own."""
    if seen.tool_output:
        return Say(f"The tool says: {seen.tool_output}")
    amounts = [word for word in seen.user_text.split() if word.isdigit()]
    if "refund" in seen.user_text.lower() and amounts:
        calls = [
            CallTool("refund", {"amount": amount, "account": "DE-7"}, text="I need an approval.")
            for amount in amounts
        ]
        return calls if len(calls) > 1 else calls[0]
    return Say("anything else?")


def desk_script() -> Script:
    """Return the rules of these stories."""
    return Script(invoices=desk)


def _at_the_desk(client: Client, session: str) -> None:
    client.set_active_agent(session, "invoices", user_id="ana")


@pytest.fixture
def routed(program, client, session, tmp_path):
    """An adapter, and a session whose active agent is the invoice desk."""
    _at_the_desk(client, session)
    return program.approving(client, desk_script(), tmp_path)


def test_user_is_told_that_the_task_waits(program, tmp_path):
    """Where an approval parks its task, the service has a word for the user, after the answer."""
    parking = REGISTRY.replace("agent_routing/v1\n", "agent_routing/v1.1\n")
    server = TaxServer(tmp_path, parking)
    server.start()
    try:
        with Client(server.address, timeout=20) as client:
            _at_the_desk(client, "parked")
            routed = program.approving(client, desk_script(), tmp_path)
            run = routed.run_sync("please refund 120", session_id="parked", **ANA)
    finally:
        server.kill()
    answered, notice = run.shown
    assert (answered.agent_id, answered.text) == ("invoices", "I need an approval.")
    assert (notice.agent_id, notice.text) == ("", run.answers[-1].notice.text)
    assert notice.text


# Each process imports its framework, which takes seconds of a busy machine.
@pytest.mark.timeout(300)
def test_approval_is_decided_after_restarts_of_both_processes(program, server, tmp_path):
    """Asked by one process, decided by another, and again by a third: the tool runs once."""

    def in_a_process(*given: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "tests.integrations.approval_process"]
        command += [program.module, server.address, str(tmp_path), *given]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    with Client(server.address, timeout=20) as client:
        _at_the_desk(client, "restarted")
    asked = in_a_process("say", "please refund 120")
    assert asked["approval"]["agent_id"] == "invoices"
    assert "refund" in asked["approval"]["prompt"]
    assert "120" in asked["approval"]["prompt"]
    assert asked["text"] == "I need an approval."
    assert refunds(tmp_path) == []
    server.kill()
    server.start()
    decided = in_a_process("decide", json.dumps(asked["approval"]), "APPROVE", "as ben wishes")
    assert refunds(tmp_path) == ["120 to DE-7"]
    assert "refunded 120" in decided["text"]
    server.kill()
    server.start()
    again = in_a_process("decide", json.dumps(asked["approval"]), "APPROVE", "as ben wishes")
    assert again["text"] == decided["text"]
    assert refunds(tmp_path) == ["120 to DE-7"]
    with Client(server.address, timeout=20) as client:
        assert client.status("restarted", user_id="ana").active_agent.agent_id == "invoices"


async def test_approval_is_asked_and_decided_in_an_event_loop(
    program, either_client, client, session, tmp_path
):
    """The turn ends with approval_needed; the decision continues the run; its steps are there."""
    _at_the_desk(client, session)
    routed = program.approving(either_client, desk_script(), tmp_path, in_memory=True)
    run = await routed.run("refund 5", session_id=session, **ANA)
    assert run.answers[-1].task_status == TASK_STATUS_PAUSED
    assert run.approval is not None
    turns = list(client.list_turns(session, user_id="ana"))
    assert [step.kind for step in turns[-1].steps] == ["approval"]
    done = await routed.decide(run.approval, "APPROVE", user_id="ana")
    assert (done.approval, done.agent_id, refunds(tmp_path)) == (None, "invoices", ["5 to DE-7"])
    turns = list(client.list_turns(session, user_id="ana"))
    assert [step.name for step in turns[-1].steps if step.kind == "tool"] == ["refund"]


def test_approval_after_a_handoff_in_the_same_message(program, client, session, tmp_path):
    """The agent that was handed the message asks; the decision continues its run."""
    script = Script(coordinator=lambda _: transfer("invoices"), invoices=desk)
    run = program.approving(client, script, tmp_path).run_sync(
        "refund 120", session_id=session, **ANA
    )
    assert run.approval.agent_id == "invoices"
    again = program.approving(client, script, tmp_path)
    done = again.decide_sync(run.approval, "APPROVE", user_id="ana")
    assert (done.approval, refunds(tmp_path)) == (None, ["120 to DE-7"])
    assert "refunded 120" in done.text


def test_frontend_decides_and_the_program_gets_the_dispatch(routed, client, session, tmp_path):
    """For example an approver's own page: it has the status and no adapter."""
    run = routed.run_sync("refund 5", session_id=session, **ANA)
    waiting = client.status(session, user_id="ana")
    resumed = client.resume_task(
        waiting.task.task_id, run.approval.request_id, "APPROVE", session_id=session, user_id="ana"
    )
    assert refunds(tmp_path) == []
    done = routed.answer_sync(session, resumed.dispatch, user_id="ana")
    assert "refunded 5" in done.text
    assert refunds(tmp_path) == ["5 to DE-7"]


def test_rejected_call_is_not_executed_and_the_model_reads_why(program, client, session, tmp_path):
    """By another adapter object, as after a restart: the comment reaches the model."""
    _at_the_desk(client, session)
    asking, script = program.approving(client, desk_script(), tmp_path), desk_script()
    run = asking.run_sync("refund 10", session_id=session, **ANA)
    deciding = program.approving(client, script, tmp_path)
    done = deciding.decide_sync(run.approval, "REJECT", user_id="ana", comment="ask ben first")
    assert refunds(tmp_path) == []
    assert done.text.startswith("The tool says: ")
    assert "reject" in done.text
    assert "ask ben first" in str(script.of("invoices"))
    assert client.status(session, user_id="ana").active_agent.agent_id == "invoices"


def test_two_approvals_at_once_are_decided_one_after_the_other(routed, session, tmp_path):
    """Each has its prompt and its decision; the model answers after the last."""
    run = routed.run_sync("refund 10 and 20", session_id=session, **ANA)
    amounts = ("10", "20")
    rejected, approved = amounts if "10" in run.approval.prompt else amounts[::-1]
    assert rejected in run.approval.prompt
    assert approved not in run.approval.prompt
    second = routed.decide_sync(run.approval, "REJECT", user_id="ana")
    assert approved in second.approval.prompt
    assert second.approval.request_id != run.approval.request_id
    assert second.approval.task_id == run.approval.task_id
    done = routed.decide_sync(second.approval, "APPROVE", user_id="ana")
    assert done.approval is None
    assert done.text.startswith("The tool says: ")
    assert refunds(tmp_path) == [f"{approved} to DE-7"]


def test_user_writes_instead_of_deciding(routed, client, session, tmp_path):
    """The agent answers, nothing is approved by that, and the request stays as it was."""
    run = routed.run_sync("refund 10", session_id=session, **ANA)
    said = routed.run_sync("yes", session_id=session, **ANA)
    assert (said.reason, said.text, said.approval) == ("AWAITING_APPROVAL", "anything else?", None)
    more = routed.run_sync("refund 99", session_id=session, **ANA)
    assert "not been decided" in more.text
    assert refunds(tmp_path) == []
    assert client.status(session, user_id="ana").task.status == TASK_STATUS_PAUSED
    done = routed.decide_sync(run.approval, "APPROVE", user_id="ana", comment="fine")
    assert "refunded 10" in done.text
    assert refunds(tmp_path) == ["10 to DE-7"]


def test_withdrawn_approval_is_never_executed(routed, client, session, tmp_path):
    """The user left: a late decision is refused, and the next request is one of its own."""
    run = routed.run_sync("refund 10", session_id=session, **ANA)
    routed.run_sync("/supervisor", session_id=session, **ANA)
    with pytest.raises(errors.TaskNotPaused):
        routed.decide_sync(run.approval, "APPROVE", user_id="ana")
    _at_the_desk(client, session)
    again = routed.run_sync("refund 30", session_id=session, **ANA)
    assert "30" in again.approval.prompt
    done = routed.decide_sync(again.approval, "APPROVE", user_id="ana")
    assert "refunded 30" in done.text
    assert refunds(tmp_path) == ["30 to DE-7"]


def test_second_decision_is_refused_and_a_repeat_gets_the_answer(routed, session, tmp_path):
    """Of two approvers one decides; the tool runs once."""
    run = routed.run_sync("refund 10", session_id=session, **ANA)
    done = routed.decide_sync(run.approval, "APPROVE", user_id="ana")
    again = routed.decide_sync(run.approval, "APPROVE", user_id="ana")
    assert again.text == done.text
    with pytest.raises(errors.PreconditionFailed):
        routed.decide_sync(run.approval, "REJECT", user_id="ana")
    assert refunds(tmp_path) == ["10 to DE-7"]


def approval_of(given: str) -> Approval:
    """Return an approval from its JSON."""
    return Approval(**json.loads(given))
