"""What every adapter must do in a worker. A test module imports all test functions of this one.

Its Program has `approving`, as for approval_stories: also without the approval (ask=False).
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_routing import AsyncClient, Client
from agent_routing.v1.task_pb2 import TASK_STATUS_PAUSED
from agent_routing.v1.turn_pb2 import TurnOutcome
from agent_routing.worker import Worker
from clients.python.examples.tax_talk import CallTool, Say
from tests.integrations.approval_stories import desk, refunds
from tests.integrations.stories import ANA, Script, Seen, transfer
from tests.integrations.tax_server import REGISTRY, ROOT, TaxServer

AGENTS = ("coordinator", "vat", "invoices", "payroll")
INBOXES = REGISTRY
for _name in AGENTS:
    INBOXES = INBOXES.replace(f"{{id: {_name},", f"{{id: {_name}, delivery: inbox,")
INBOXES = INBOXES.replace("  - id: vat\n", "  - id: vat\n    delivery: inbox\n")
WAIT_S_MAX = 240
"""A process imports its framework, on a busy machine."""


@pytest.fixture(scope="module")
def inboxes(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server whose agents have inboxes."""
    running = TaxServer(tmp_path_factory.mktemp("inboxes"), INBOXES)
    running.start()
    yield running
    running.kill()


@asynccontextmanager
async def working(routed: Any, client: AsyncClient) -> Any:
    """Run a worker with an adapter's agents."""
    worker = Worker(client)
    for agent_id in AGENTS:
        worker.agent(agent_id)(routed.as_agent(locale="en"))
    serving = asyncio.create_task(worker.serve())
    try:
        yield
    finally:
        worker.stop()
        await serving


async def test_steps_of_a_worker_are_seen_before_its_answer(program, inboxes, session, tmp_path):
    """With name, input and result, once in the history, and as the service's own change."""
    session = f"{session}-{program.module}"
    async with AsyncClient(inboxes.address, timeout=20) as client:
        await client.set_active_agent(session, "invoices", user_id="ana")
        script = Script(invoices=desk)
        routed = program.approving(client, script, tmp_path, in_memory=True, ask=False)
        async with working(routed, client):
            asked = await client.ask("refund 5", session_id=session, wait=60, **ANA)
        assert "refunded 5" in asked.text
        kinds, reported = [], []
        async for watched in client.watch_session(
            session, user_id="ana", after_revision=0, include=["STEPS"]
        ):
            for event in watched.events:
                kinds.append(event.WhichOneof("kind"))
                if kinds[-1] == "steps_reported":
                    reported += event.steps_reported.steps
            if kinds and kinds[-1] == "turn_completed":
                break
        (turn,) = [turn async for turn in client.list_turns(session, user_id="ana")]
    assert kinds.index("steps_reported") < kinds.index("turn_completed")
    assert [(step.name, step.kind) for step in reported] == [("refund", "tool")]
    (step,) = turn.steps
    assert step.name == "refund"
    assert "refunded 5" in step.output
    assert "DE-7" in step.input
    assert refunds(tmp_path) == ["5 to DE-7"]


async def test_a_handoff_in_a_worker_goes_to_the_next_inbox(program, inboxes, session):
    """It ends the run; a refused one is read by the model, and the same run goes on."""
    session = f"{session}-{program.module}"
    async with AsyncClient(inboxes.address, timeout=20) as client:
        script = Script()
        routed = program.make(client, script)
        async with working(routed, client):
            moved = await client.ask("my invoice", session_id=session, wait=60, **ANA)
            refused = await client.ask("run payroll", session_id=f"{session}-2", wait=60, **ANA)
        turns = [turn async for turn in client.list_turns(session, user_id="ana")]
    assert "the secret of the invoice desk" in moved.text
    assert [turn.agent_id for turn in turns] == ["coordinator", "invoices"]
    assert len(script.of("invoices")) == 1
    assert "plan:premium" in refused.text
    assert script.of("payroll") == []


async def test_a_worker_hands_over_to_people_and_to_another_program(program, inboxes, session):
    """Agents that no adapter of this worker has: the registry decides, and the run ends."""
    session = f"{session}-{program.module}"

    def escalate(seen: Seen) -> Any:
        return transfer("desk" if "person" in seen.user_text else "invoices", context="order 77")

    async with AsyncClient(inboxes.address, timeout=20) as client:
        one, other = Script(), Script()
        one.rules, other.rules = {"coordinator": escalate}, {"invoices": other.rules["invoices"]}
        worker = Worker(client)
        worker.agent("coordinator")(program.make(client, one).as_agent(locale="en"))
        worker.agent("invoices")(program.make(client, other).as_agent(locale="en"))
        serving = asyncio.create_task(worker.serve())
        try:
            moved = await client.ask("my bill", session_id=session, wait=60, **ANA)
            await client.route("a person please", session_id=f"{session}-2", **ANA)
            with Client(inboxes.address, timeout=20) as desk:
                waits = await _until(
                    lambda: [
                        each.session_id
                        for each in desk.list_waiting("desk")
                        if each.session_id == f"{session}-2"
                    ]
                )
        finally:
            worker.stop()
            await serving
    assert moved.text == "the secret of the invoice desk"
    assert "> Context: order 77" in str(other.of("invoices")[0].messages)
    assert len(waits) == 1
    assert len(one.seen) == 2


async def test_a_consultation_in_a_worker_comes_back(program, inboxes, session):
    """Asked by a tool; a hop of its own, and the answer is for the agent alone."""
    session = f"{session}-{program.module}"

    def consults(seen: Seen) -> Any:
        if any("21 percent" in text for _, text in seen.messages):
            return Say("It is 21 percent.")
        return CallTool("consult_agent", {"agent_id": "vat", "question": "which rate?"})

    async with AsyncClient(inboxes.address, timeout=20) as client:
        script = Script(coordinator=consults, vat=lambda _: Say("21 percent"))
        async with working(program.make(client, script), client):
            asked = await client.ask("which rate?", session_id=session, wait=60, **ANA)
    assert asked.text == "It is 21 percent."
    assert len(script.of("vat")) == 1


async def test_hops_of_a_worker_are_limited(program, inboxes, session):
    """Agents that hand over to each other for ever: the service ends it, a model reads why."""
    session = f"{session}-{program.module}"

    def to(agent_id: str) -> Any:
        return lambda seen: Say("enough") if seen.tool_output else transfer(agent_id)

    async with AsyncClient(inboxes.address, timeout=20) as client:
        script = Script(coordinator=to("invoices"), invoices=to("vat"), vat=to("coordinator"))
        async with working(program.make(client, script), client):
            asked = await client.ask("go", session_id=session, wait=60, **ANA)
        turns = [turn async for turn in client.list_turns(session, user_id="ana")]
    assert asked.text.endswith("enough")
    assert 1 < len(turns) <= 4


class KilledWorker:
    """A worker in a process of its own, which kills itself where its script says."""

    def __init__(self, module: str, address: str, place: Path) -> None:
        self._command = [sys.executable, "-m", "tests.integrations.worker_process"]
        self._command += [module, address, str(place)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        self._process = subprocess.Popen(self._command, cwd=ROOT)

    def killed(self) -> None:
        """Wait until it has killed itself."""
        assert self._process is not None
        assert self._process.wait(WAIT_S_MAX) == -signal.SIGKILL

    def stop(self) -> None:
        """Stop it, and wait until it has ended."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(WAIT_S_MAX)


def kill_once(place: Path, where: str) -> None:
    """Kill this process as kill -9 does, the first time that it comes here."""
    marker = place / f"killed-{where}"
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def dying_script(place: Path) -> Script:
    """Return the rules of the desk that dies before it asks, and once the tool has run."""

    def dying(seen: Seen) -> Any:
        kill_once(place, "after" if seen.tool_output else "before")
        return desk(seen)

    return Script(invoices=dying)


@pytest.mark.timeout(600)
async def test_a_worker_that_is_killed_runs_what_was_approved_once(
    program, inboxes, session, tmp_path
):
    """Killed before it asks, and again when the tool has run: one approval, one refund."""
    session = f"{session}-{program.module}"
    worker = KilledWorker(program.module, inboxes.address, tmp_path)
    with Client(inboxes.address, timeout=20) as client:
        client.set_active_agent(session, "invoices", user_id="ana")
        client.route("refund 120", session_id=session, **ANA)
        worker.start()
        await asyncio.to_thread(worker.killed)
        worker.start()
        try:
            task = await _until(lambda: _paused(client, session))
            asked = client.status(session, user_id="ana").pending_approval.request_id
            assert refunds(tmp_path) == []
            client.resume_task(task, asked, "APPROVE", session_id=session, user_id="ana")
            await asyncio.to_thread(worker.killed)
            assert refunds(tmp_path) == ["120 to DE-7"]
            worker.start()
            await _until(lambda: not client.status(session, user_id="ana").open_requests)
        finally:
            worker.stop()
        turns = list(client.list_turns(session, user_id="ana"))
    assert refunds(tmp_path) == ["120 to DE-7"]
    assert [step.kind for turn in turns for step in turn.steps].count("approval") == 1
    ended = TurnOutcome.Name(turns[-1].outcome).removeprefix("TURN_OUTCOME_")
    assert ended == program.after_a_kill


@pytest.mark.timeout(600)
async def test_a_worker_that_is_killed_inside_what_was_approved_does_not_repeat_it(
    program, inboxes, session, tmp_path
):
    """The tool has done its work and has not returned: the next worker fails the turn."""
    session = f"{session}-{program.module}"
    for marker in ("killed-before", "killed-after", "die-inside"):
        (tmp_path / marker).touch()
    worker = KilledWorker(program.module, inboxes.address, tmp_path)
    with Client(inboxes.address, timeout=20) as client:
        client.set_active_agent(session, "invoices", user_id="ana")
        client.route("refund 120", session_id=session, **ANA)
        worker.start()
        try:
            task = await _until(lambda: _paused(client, session))
            asked = client.status(session, user_id="ana").pending_approval.request_id
            client.resume_task(task, asked, "APPROVE", session_id=session, user_id="ana")
            await asyncio.to_thread(worker.killed)
            assert refunds(tmp_path) == ["120 to DE-7"]
            worker.start()
            await _until(lambda: not client.status(session, user_id="ana").open_requests)
        finally:
            worker.stop()
        turns = list(client.list_turns(session, user_id="ana"))
    assert refunds(tmp_path) == ["120 to DE-7"]
    assert TurnOutcome.Name(turns[-1].outcome) == "TURN_OUTCOME_FAILURE"


def _paused(client: Client, session: str) -> str:
    task = client.status(session, user_id="ana").task
    return task.task_id if task.status == TASK_STATUS_PAUSED else ""


async def _until(condition: Any) -> Any:
    """Return a condition's value once it is true."""
    async with asyncio.timeout(WAIT_S_MAX):
        while not (value := await asyncio.to_thread(condition)):  # noqa: ASYNC110 - of a server
            await asyncio.sleep(0.1)
    return value
