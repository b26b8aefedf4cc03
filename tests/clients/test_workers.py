"""The workers of all languages do the same; tests/clients/vectors/workers has the behaviours."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent_routing import AsyncClient, outcomes
from agent_routing.errors import UnknownSession
from agent_routing.v1.routing_service_pb2 import StatusResponse
from agent_routing.v1.turn_pb2 import TurnOutcome
from routing_service.server.server import system_clock_us
from tests import toolchains
from tests.clients import java_build, vector_runner
from tests.clients.test_typescript_client import npm_scripts
from tests.integrations.tax_server import TaxServer
from tests.rpc.live_service import fresh_id, serving

ROOT = Path(__file__).resolve().parents[2]
BEHAVIOURS = json.loads((vector_runner.VECTORS / "workers" / "behaviours.json").read_text("utf-8"))
REGISTRY = "\n".join(BEHAVIOURS["registry"])
LINE_S_MAX = 60.0
"""A JVM on a busy machine starts in seconds."""

# The first test of a language compiles its client.
pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True)
class Programs:
    """How the programs of a language are started."""

    scripted: list
    worker: list
    ask: list
    environ: dict | None = None
    stopped_code: int = 0


def python_programs(folder):
    """Those of Python; the example is the README's."""
    blocks = re.findall(
        r'^```python title="(\w+\.py)"\n(.*?)^```$',
        (ROOT / "README.md").read_text("utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    for name, source in blocks:
        given = source.replace('"127.0.0.1:50051"', "sys.argv[1]")
        (folder / name).write_text(f"import sys\n{given}", "utf-8")
    return Programs(
        [sys.executable, "-m", "tests.clients.scripted_worker"],
        [sys.executable, folder / "worker.py"],
        [sys.executable, folder / "chat.py"],
    )


def typescript_programs(_folder):
    """Those of TypeScript."""
    node = toolchains.require("node")
    npm_scripts(node, "compile")
    program, build = node.programs["node"], ROOT / "clients" / "typescript" / "build"
    examples = build / "examples" / "worker"
    return Programs(
        [program, build / "test" / "scriptedWorker.js"],
        [program, examples / "worker.js"],
        [program, examples / "ask.js"],
        node.environ(NO_COLOR="1"),
    )


def go_programs(folder):
    """Those of Go."""
    go = toolchains.require("go")
    packages = ["./internal/scriptedworker", "./examples/worker", "./examples/ask"]
    subprocess.run(
        [go.programs["go"], "build", "-o", f"{folder}/", *packages],
        check=True,
        cwd=ROOT / "clients" / "go",
        env=go.environ(),
    )
    return Programs([folder / "scriptedworker"], [folder / "worker"], [folder / "ask"])


def java_programs(_folder):
    """Those of Java. A JVM ends with 143 after SIGTERM, also if its hooks have done their work."""
    java = toolchains.require("java")
    with java_build.locked():
        mains = ("agentrouting.ScriptedWorker", "worker.DeskWorker", "worker.DeskChat")
        commands = [java_build.example(main) for main in mains]
    return Programs(*commands, java.environ(), stopped_code=128 + signal.SIGTERM)


PROGRAMS = {
    "python": python_programs,
    "typescript": typescript_programs,
    "go": go_programs,
    "java": java_programs,
}


@pytest.fixture(scope="module", params=PROGRAMS)
def programs(request, tmp_path_factory):
    """The programs of each language, compiled."""
    return PROGRAMS[request.param](tmp_path_factory.mktemp(request.param))


class Program:
    """A running program, and the lines that it has printed."""

    def __init__(self, process):
        self.process = process
        self.lines = []
        self.grown = asyncio.Event()
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self):
        async for line in self.process.stdout:
            self.lines.append(line.decode().rstrip("\n"))
            self.grown.set()
        self.grown.set()

    async def line(self, place):
        """Return a line by its place, waiting for it."""
        async with asyncio.timeout(LINE_S_MAX):
            while len(self.lines) <= place and not self._reading.done():
                self.grown.clear()
                await self.grown.wait()
        assert len(self.lines) > place, f"it ended with {self.process.returncode}: {self.lines}"
        return json.loads(self.lines[place])

    def said(self, event):
        """Return the lines of an event."""
        found = [json.loads(line) for line in self.lines]
        return [line for line in found if line["event"] == event]

    async def ended(self):
        """Wait for the end, and return the exit code."""
        async with asyncio.timeout(LINE_S_MAX):
            await self._reading
            return await self.process.wait()


@asynccontextmanager
async def running(programs, *command, given=None):
    """Run a program; it is killed if it outlives the block."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        stdin=asyncio.subprocess.PIPE if given is None else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env=programs.environ,
        limit=1 << 20,
    )
    program = Program(process)
    try:
        yield program
    finally:
        if process.returncode is None:
            process.kill()
        await program.ended()


@dataclass
class Desk:
    """A scenario under way: its workers, one after the other, and its asker."""

    programs: Programs
    address: str
    options: dict
    stack: AsyncExitStack
    workers: list = field(default_factory=list)

    async def start_worker(self):
        """Start the next worker."""
        options = {"agents": ["front", "vat"], "number": len(self.workers) + 1} | self.options
        command = [*self.programs.scripted, "work", self.address, json.dumps(options)]
        worker = await self.stack.enter_async_context(running(self.programs, *command, given=""))
        self.workers.append(worker)

    async def replace_worker(self, *, stop_when):
        """Wait until the worker dies, or stop it when it says so; then start another."""
        worker = self.workers[-1]
        if stop_when:
            assert (await worker.line(0))["event"] == stop_when
            worker.process.send_signal(signal.SIGTERM)
        code = await worker.ended()
        assert code == (self.programs.stopped_code if stop_when else -signal.SIGKILL)
        await self.start_worker()

    async def stop(self):
        """Stop the last worker as an operator does."""
        worker = self.workers[-1]
        if worker.process.returncode is None:
            worker.process.send_signal(signal.SIGTERM)
            code = await worker.ended()
            # One that has said nothing may still be starting, without a handler of signals.
            if worker.lines:
                assert code == self.programs.stopped_code
                assert code or worker.said("ended")

    async def until(self, event, count):
        """Wait until the workers have said something so often."""
        async with asyncio.timeout(LINE_S_MAX):
            while len(self.said(event)) < count:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)

    def said(self, event):
        """Return an event's lines of all workers."""
        return [line for worker in self.workers for line in worker.said(event)]


class Colleague:
    """Does to a session what a step of a scenario says: an operator, a person, the user."""

    def __init__(self, client, session_id):
        self.client = client
        self.session_id = session_id

    async def act(self, action):
        """Do one thing."""
        [(kind, given)] = action.items()
        client, session_id = self.client, self.session_id
        state = await client.status(session_id, user_id="ana")
        match kind:
            case "say":
                request_id = state.open_requests[-1].request_id
                ids = {"session_id": session_id, "request_id": request_id}
                await client.say(given, agent_id="front", **ids)
            case "claim":
                await client.claim_turn(session_id, given, claimant="bea")
            case "complete":
                agent_id, text = given
                await self._complete(state, agent_id, outcomes.proceed(), text)
            case "approval_needed":
                agent_id, prompt = given
                await self._complete(state, agent_id, outcomes.approval_needed(prompt))
            case "handoff":
                agent_id, target = given
                await self._complete(state, agent_id, outcomes.handoff(target))
            case "route":
                await client.route(given, session_id=session_id, user_id="ana")
            case "clear":
                await client.clear_active_agent(session_id, user_id="ana")
            case "cancel":
                await client.cancel_task(state.task.task_id, user_id="ana")
            case "move":
                await client.set_active_agent(session_id, given, initiator="OPERATOR")
            case "approve":
                parked = state.parked_tasks[:1]
                waiting = (parked[0] if parked else state).pending_approval
                await client.resume_task(waiting.task_id, waiting.request_id, "APPROVE")
            case _:
                raise AssertionError(kind)

    async def _complete(self, state, agent_id, outcome, text=""):
        """Answer the newest open request in the name of its agent."""
        request_id = state.open_requests[-1].request_id
        await self.client.complete_turn(self.session_id, request_id, agent_id, outcome, text=text)

    async def until_taken(self, request_id):
        """Wait until a message was routed."""
        async with asyncio.timeout(LINE_S_MAX):
            while True:
                try:
                    state = await self.client.status(self.session_id, user_id="ana")
                except UnknownSession:
                    state = StatusResponse()
                requests = [each.request_id for each in state.open_requests]
                if request_id in (*requests, *state.queued_request_ids):
                    return
                await asyncio.sleep(0.05)


async def play(programs, scenario, live):
    """Play a scenario, and compare what came of it."""
    session_id = f"worker-{fresh_id()}"
    async with AsyncExitStack() as stack:
        desk = Desk(programs, live.server.address, scenario["work"], stack)
        asker = await stack.enter_async_context(
            running(programs, *programs.scripted, "ask", live.server.address)
        )
        client = await stack.enter_async_context(AsyncClient(live.server.address))
        colleague = Colleague(client, session_id)
        request_id, request_ids = "", []
        for place, step in enumerate(scenario["steps"]):
            if not desk.workers and not step.get("no_worker"):
                await desk.start_worker()
            if not step.get("again"):
                request_id = fresh_id()
            if "again_of" in step:
                request_id = request_ids[step["again_of"]]
            request_ids.append(request_id)
            for action in step.get("first", ()):
                await colleague.act(action)
            text = step["ask"] if isinstance(step["ask"], str) else json.dumps(step["ask"])
            ids = {"session_id": session_id, "user_id": "ana", "request_id": request_id}
            more = {key: step[key] for key in ("wait_ms", "parts") if key in step}
            asker.process.stdin.write(json.dumps({"text": text} | ids | more).encode() + b"\n")
            if "meanwhile" in step:
                await colleague.until_taken(request_id)
                await desk.until("began", step.get("until_began", 0))
                for action in step["meanwhile"]:
                    await colleague.act(action)
            if "stop_when" in step or "die" in text:
                await desk.replace_worker(stop_when=step.get("stop_when"))
            said = await asker.line(place)
            if "error" in step:
                assert step["error"] in said.get("error", ""), said
                assert said["request_id"] == request_id
            else:
                assert "error" not in said, said
                vector_runner.compare(step["answer"], said, "answer")
            await desk.until("began", step.get("until_began", 0))
        stopped = scenario.get("stopped", [])
        await desk.until("stopped", len(stopped))
        if desk.workers:
            await desk.stop()
        began = [[line["agent_id"], line["attempt"]] for line in desk.said("began")]
        assert began == scenario["began"]
        assert [line["agent_id"] for line in desk.said("stopped")] == stopped
    turns = await live.chat(session_id).turns()
    outcomes = [TurnOutcome.Name(turn.outcome).removeprefix("TURN_OUTCOME_") for turn in turns]
    found = [
        [turn.agent_id, outcome, turn.agent_text]
        for turn, outcome in zip(turns, outcomes, strict=True)
    ]
    assert found == scenario["turns"]
    steps = [
        [step.name, step.kind, step.input, step.output] for turn in turns for step in turn.steps
    ]
    assert steps == scenario.get("reported", steps)


@asynccontextmanager
async def desk(tmp_path, registry):
    """A server whose time is the machine's."""
    async with serving(tmp_path, registry, clock=system_clock_us) as live:
        yield live


@pytest.mark.parametrize(
    "scenario", BEHAVIOURS["scenarios"], ids=[each["name"] for each in BEHAVIOURS["scenarios"]]
)
async def test_a_worker_does_as_the_others(programs, scenario, tmp_path):
    """One table for four languages."""
    own = f"double_text: {scenario.get('double_text', 'allow')}"
    async with desk(tmp_path, REGISTRY.replace("double_text: allow", own)) as live:
        await play(programs, scenario, live)


async def test_approvals_are_listed_and_watched_over_a_kill_of_the_server(programs, tmp_path):
    """Nothing is told twice, and what ended while the connection was away is told once."""
    server = TaxServer(tmp_path, REGISTRY)
    await asyncio.to_thread(server.start)
    try:
        await approvals_over_a_kill(programs, server)
    finally:
        await asyncio.to_thread(server.kill)


async def approvals_over_a_kill(programs, server):
    """Ask for approvals and decide them, while a program watches."""
    async with AsyncClient(server.address, fallback=None, timeout=30) as client:

        async def ask(session_id):
            turn = await client.route("refund", session_id=session_id, user_id="ana")
            asked = outcomes.approval_needed("Refund?")
            await client.complete_turn(session_id, turn.request_id, "front", asked)
            return turn

        async def reject(turn):
            await client.resume_task(turn.task_id, turn.request_id, "REJECT", user_id="ana")

        one, two = await ask("one"), await ask("two")
        command = (*programs.scripted, "approvals", server.address)
        async with running(programs, *command) as program:
            expected = [
                {"event": "listed", "sessions": ["one", "two"]},
                {"event": "waiting", "session_id": "one"},
                {"event": "waiting", "session_id": "two"},
                {"event": "ended", "session_id": "one"},
                {"event": "ended", "session_id": "two"},
                {"event": "waiting", "session_id": "three"},
            ]
            for place in range(3):
                assert await program.line(place) == expected[place]
            await reject(one)
            assert await program.line(3) == expected[3]
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await reject(two)
            assert await program.line(4) == expected[4]
            await ask("three")
            assert await program.line(5) == expected[5]
            assert [json.loads(line) for line in program.lines] == expected


async def test_ask_waits_through_a_restart_of_the_server(programs, tmp_path):
    """The message is stored; who gives up in an outage learns its request id."""
    server = TaxServer(tmp_path, REGISTRY)
    await asyncio.to_thread(server.start)
    try:
        async with running(programs, *programs.scripted, "ask", server.address) as asker:
            await ask_over_restarts(asker, server)
    finally:
        await asyncio.to_thread(server.kill)


async def ask_over_restarts(asker, server):
    """Ask twice, and kill the server under way; the second time it stays away."""

    async def ask(request_id, **more):
        ids = {"session_id": "one", "user_id": "ana", "request_id": request_id}
        asker.process.stdin.write(json.dumps({"text": "hello"} | ids | more).encode() + b"\n")
        await colleague.until_taken(request_id)
        await asyncio.to_thread(server.kill)

    async with AsyncClient(server.address, fallback=None, timeout=30) as client:
        colleague = Colleague(client, "one")
        await ask(fresh_id(), parts=True)
        await asyncio.to_thread(server.start)
        await colleague.act({"complete": ["front", "Here I am."]})
        said = await asker.line(0)
        assert (said["text"], said["shown"]) == ("Here I am.", ["Here I am."]), said
        request_id = fresh_id()
        await ask(request_id, wait_ms=500)
        said = await asker.line(1)
        assert said["request_id"] == request_id, said


README_REGISTRY = re.search(
    r'^```yaml title="desk.yaml"\n(.*?)^```$',
    (ROOT / "README.md").read_text("utf-8"),
    re.MULTILINE | re.DOTALL,
)[1]


async def test_the_examples_tell_the_readmes_conversation(programs, tmp_path):
    """Two processes, as the README has it for Python."""
    readme = (ROOT / "README.md").read_text("utf-8")
    shown = re.search(r"\$ python chat\.py\n(.*?)```", readme, re.DOTALL)
    async with (
        desk(tmp_path, README_REGISTRY) as live,
        running(programs, *programs.worker, live.server.address, given="") as worker,
        running(programs, *programs.ask, live.server.address, given="") as ask,
    ):
        assert await ask.ended() == 0
        assert "\n".join(ask.lines) + "\n" == shown[1]
        worker.process.send_signal(signal.SIGTERM)
        assert await worker.ended() == programs.stopped_code


def test_every_scenario_is_named_apart():
    """A failure names its scenario."""
    names = [scenario["name"] for scenario in BEHAVIOURS["scenarios"]]
    assert len(set(names)) == len(names) >= 19


EXAMPLES = {
    "typescript": ("examples/worker/worker.ts", "examples/worker/ask.ts"),
    "go": ("examples/worker/main.go", "examples/ask/main.go"),
    "java": ("examples/worker/DeskWorker.java", "examples/worker/DeskChat.java"),
}


@pytest.mark.parametrize("language", EXAMPLES)
def test_the_clients_pages_show_the_examples(language):
    """A reader who copies them gets what the tests ran."""
    client = ROOT / "clients" / language
    page = (client / "README.md").read_text("utf-8")
    section = page.split("## Agents as workers\n", 1)[1].split("\n## ", 1)[0]
    blocks = re.findall(r"^```\w+\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    sources = [
        "\n".join(lines_of((client / path).read_text("utf-8"))) for path in EXAMPLES[language]
    ]
    assert len(blocks) == len(sources)
    for block, source in zip(blocks, sources, strict=True):
        assert "\n".join(lines_of(block)) in source


def lines_of(text):
    """Return a text's lines without indentation."""
    return [line.strip() for line in text.strip().splitlines()]
