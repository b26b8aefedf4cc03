"""LangGraph.js in a TypeScript worker: a real server, workers in processes, some of them killed.

The agents are in clients/typescript/test/graphWorker.ts.
"""

import asyncio
import signal
from contextlib import asynccontextmanager

import pytest

from agent_routing import AsyncClient, content
from agent_routing.v1.task_pb2 import TASK_STATUS_PAUSED
from agent_routing.v1.turn_pb2 import TurnOutcome
from tests import toolchains
from tests.clients.test_typescript_client import CLIENT, npm_scripts
from tests.integrations.tax_server import TaxServer
from tests.integrations.worker_stories import INBOXES

WAIT_S = 120
"""Node starts in seconds on a busy machine, and a lease lapses before a turn is given again."""

KILLED_LEASE_MS = 4_000
"""Short, so that the next worker gets the turn soon; a busy machine can keep it."""

ANA = {"user_id": "ana", "locale": "en"}

# The first test compiles the client.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def node():
    """Node, with the client and its tests compiled."""
    found = toolchains.require("node")
    npm_scripts(found, "compile")
    return found


@pytest.fixture
def service(tmp_path):
    """A server whose agents have inboxes, which a test may kill."""
    running = TaxServer(tmp_path, INBOXES)
    running.start()
    yield running
    running.kill()


@asynccontextmanager
async def _working(node, service, folder, lease_ms=30_000):
    """Run a worker until the block ends; it may kill itself before that."""
    process = await asyncio.create_subprocess_exec(
        str(node.programs["node"]),
        "build/test/graphWorker.js",
        service.address,
        str(folder),
        str(lease_ms),
        cwd=CLIENT,
        env=node.environ(NO_COLOR="1"),
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), WAIT_S)


async def _killed(process):
    """Wait until a worker has killed itself."""
    assert await asyncio.wait_for(process.wait(), WAIT_S) == -signal.SIGKILL


async def _until(condition):
    """Return what a condition gives, once it gives something."""
    async with asyncio.timeout(WAIT_S):
        while not (found := await condition()):  # noqa: ASYNC110 - of a server
            await asyncio.sleep(0.1)
    return found


def _refunds(folder):
    file = folder / "refunds"
    return file.read_text("utf-8").splitlines() if file.exists() else []


async def _turns(client, session):
    return [turn async for turn in client.list_turns(session, user_id="ana")]


async def test_turns_go_through_inboxes(node, service, tmp_path):
    """A handoff reaches the next inbox; a model reads why one is refused, also by the hop limit."""
    async with (
        AsyncClient(service.address, timeout=20) as client,
        _working(node, service, tmp_path),
    ):

        async def ask(text, session, **fields):
            return await client.ask(text, session_id=session, wait=WAIT_S, **ANA, **fields)

        moved = await ask("my invoice", "moved")
        assert moved.text.startswith("All paid.")
        assert "agent coordinator has handed the conversation to you" in moved.text
        assert "Reason: bill" in moved.text
        turns = await _turns(client, "moved")
        assert [turn.agent_id for turn in turns] == ["coordinator", "invoices"]
        refused = await ask("run payroll", "refused")
        assert "plan:premium" in refused.text
        around = await ask("go around", "around")
        assert "hop_limit: the message has been through 3 handoffs" in around.text
        assert 1 < len(await _turns(client, "around")) <= 4

        consulted = await ask("which rate?", "consulted")
        assert consulted.text == "It is 21 percent."
        alone = await ask("nowhere", "nowhere")
        assert alone.text.startswith("I answer myself: The consultation was refused:")
        assert '"nowhere" is not registered' in alone.text

        await client.set_active_agent("locked", "vat", user_id="ana")
        assert (await ask("hello", "locked")).text == "What did you sell?"
        thanked = await ask("thanks", "locked")
        assert (thanked.text, thanked.route.reason) == ("You are welcome.", "FOLLOW_UP_LOCK")


async def test_steps_and_items_and_errors_of_a_worker(node, service, tmp_path):
    """Steps come before the answer; images go both ways; what throws is tried again, and fails."""
    async with (
        AsyncClient(service.address, timeout=20) as client,
        _working(node, service, tmp_path),
    ):

        async def ask(text, session, **fields):
            await client.set_active_agent(session, "invoices", user_id="ana")
            return await client.ask(text, session_id=session, wait=WAIT_S, **ANA, **fields)

        assert (await ask("look 7 up", "steps")).text == "The tool says: invoice 7: paid"
        kinds = []
        async for watched in client.watch_session(
            "steps", user_id="ana", after_revision=0, include=["STEPS"]
        ):
            kinds += [event.WhichOneof("kind") for event in watched.events]
            if kinds and kinds[-1] == "turn_completed":
                break
        assert kinds.index("steps_reported") < kinds.index("turn_completed")
        (step,) = (await _turns(client, "steps"))[-1].steps
        assert (step.name, step.kind, step.output) == ("look_up", "tool", "invoice 7: paid")
        assert step.input == '{"number":"7"}'

        image = content.data_item(b"\x89PNG", "image/png")
        seen = await ask("a photo", "items", items=[image])
        assert seen.text == "Seen."
        (turn,) = await _turns(client, "items")
        assert [item.content_type for item in turn.agent_items] == ["image/png"]

        failed = await ask("fail", "failed")
        assert failed.outcome == "FAILURE"


async def _paused(client, session):
    status = await client.status(session, user_id="ana")
    return status if status.task.status == TASK_STATUS_PAUSED else None


async def _ask_for_a_refund(client, session):
    await client.set_active_agent(session, "invoices", user_id="ana")
    await client.route("refund 120", session_id=session, **ANA)


async def _approve(client, session):
    status = await _until(lambda: _paused(client, session))
    await client.resume_task(
        status.task.task_id,
        status.pending_approval.request_id,
        "APPROVE",
        session_id=session,
        user_id="ana",
    )


async def _answered(client, session):
    status = await client.status(session, user_id="ana")
    return not status.open_requests


@pytest.mark.parametrize(
    ("place", "ended"),
    [
        # Not all of the tool ran: another attempt must not run it again.
        ("tool", (["begun 120"], "FAILURE")),
        # The checkpointer has the tool's result: another attempt goes on from there.
        ("end", (["begun 120", "done 120"], "PROCEED")),
    ],
)
async def test_an_approval_survives_kills_of_both(node, service, tmp_path, place, ended):
    """The worker dies before it asks, the service while it waits, the worker again: one refund."""
    did, outcome = ended
    for each in ("model", place):
        (tmp_path / f"kill-{each}").touch()
    session = f"killed-{place}"
    async with AsyncClient(service.address, timeout=20) as client:
        await _ask_for_a_refund(client, session)
        async with _working(node, service, tmp_path, KILLED_LEASE_MS) as worker:
            await _killed(worker)
        async with _working(node, service, tmp_path, KILLED_LEASE_MS):
            await _until(lambda: _paused(client, session))
    await asyncio.to_thread(service.kill)
    await asyncio.to_thread(service.start)
    async with AsyncClient(service.address, timeout=20) as client:
        await _approve(client, session)
        async with _working(node, service, tmp_path, KILLED_LEASE_MS) as worker:
            await _killed(worker)
        assert _refunds(tmp_path) == did
        async with _working(node, service, tmp_path, KILLED_LEASE_MS):
            await _until(lambda: _answered(client, session))
        turns = await _turns(client, session)
    assert _refunds(tmp_path) == did
    assert [step.kind for turn in turns for step in turn.steps].count("approval") == 1
    assert TurnOutcome.Name(turns[-1].outcome) == f"TURN_OUTCOME_{outcome}"
