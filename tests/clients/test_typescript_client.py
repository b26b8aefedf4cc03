"""The TypeScript client: current, typed, tested, packed, and in step with the other languages'.

Node and npm run it; the client's own tests are in clients/typescript/test.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from routing_service import __version__
from routing_service.server.server import system_clock_us
from tests import toolchains
from tests.rpc.live_service import serving

ROOT = Path(__file__).resolve().parents[2]
CLIENT = ROOT / "clients" / "typescript"
SCRIPT = ROOT / "scripts" / "typescript_client.py"

# The first of these tests installs packages and compiles, on a machine that may be busy.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="session")
def node():
    """Node and npm, or this is skipped."""
    return toolchains.require("node")


def run(node, *command, **options):
    """Run a program, and return its output. Fails with the whole output."""
    done = subprocess.run(
        [str(part) for part in command],
        check=False,
        capture_output=True,
        text=True,
        cwd=options.pop("cwd", CLIENT),
        env=node.environ(NO_COLOR="1"),
        timeout=500,
        **options,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def npm_scripts(node, *names):
    """Run scripts of the client's package.json, with its packages installed."""
    return run(node, sys.executable, SCRIPT, *names, cwd=ROOT)


@pytest.fixture(scope="session")
def built(node):
    """The client and its tests, compiled."""
    npm_scripts(node, "compile")
    return node


@pytest.mark.clients
def test_generated_code_is_what_the_contract_generates(node):
    """A change of the contract changes every language."""
    assert "are current" in npm_scripts(node, "generate:check")


@pytest.mark.clients
def test_style_and_types(built):
    """Strict types are part of the client."""
    npm_scripts(built, "check")


def test_its_own_tests(built):
    """Errors, retries, deadlines, the fallback, watches, streams and graphs, without a service."""
    files = sorted((CLIENT / "test").glob("*.test.ts"))
    compiled = [f"build/test/{file.stem}.js" for file in files]
    said = run(built, "node", "--test", "--test-timeout=60000", *compiled)
    assert re.search(r"^# pass [1-9]\d*$", said, re.MULTILINE), said
    assert "# skipped 0" in said


def test_it_plays_every_scenario(built):
    """The vectors keep the clients of all languages the same."""
    vectors = ROOT / "tests" / "clients" / "vectors"
    count = sum(
        len(json.loads(path.read_text("utf-8"))["scenarios"])
        for path in vectors.glob("*.json")
        if path.name != "schema.json"
    )
    said = run(built, "node", "build/test/replayVectors.js", sys.executable)
    assert f"{count} scenarios played, 0 otherwise than they should" in said


@pytest.mark.parametrize("protocol", ["connect", "grpc-web"])
async def test_the_client_for_browsers_plays_scenarios(built, tmp_path, protocol):
    """The same answers and errors over HTTP; only gRPC has streams in both directions."""
    registry = (ROOT / "tests" / "clients" / "vectors" / "registry.yaml").read_text("utf-8")
    async with serving(
        tmp_path, registry, store="memory:", clock=system_clock_us, web_listen="127.0.0.1:0"
    ) as live:
        said = await _run_beside(
            built, "build/test/replayVectors.js", protocol, live.server.web_url
        )
    [played] = re.findall(r"^(\d+) scenarios played, 0 otherwise", said, re.MULTILINE)
    assert int(played) >= 60


def test_versions_go_together():
    """A client is released with the service, and its transports share internals."""
    package = json.loads((CLIENT / "package.json").read_text("utf-8"))
    lock = json.loads((CLIENT / "package-lock.json").read_text("utf-8"))
    assert package["version"] == lock["version"] == __version__
    connect = {
        version for name, version in package["dependencies"].items() if name.startswith("@connect")
    }
    assert len(connect) == 1
    assert re.fullmatch(r"\d+\.\d+\.\d+", *connect), "pinned, not a range"


def test_the_lockfile_names_no_download_addresses():
    """Users install it from their own registry."""
    lock = json.loads((CLIENT / "package-lock.json").read_text("utf-8"))
    places = {entry.get("resolved", "") for entry in lock["packages"].values()}
    assert places == {"", "examples/browser-chat"}
    unlocked = [
        path
        for path, entry in lock["packages"].items()
        if "node_modules/" in path and not entry.get("link") and "integrity" not in entry
    ]
    assert not unlocked


@pytest.fixture(scope="session")
def packed(built):
    """A folder in which the package is installed in its published form.

    It is below the client's folder, where Node finds the dependencies; one for each process.
    """
    folder = CLIENT / "build" / f"packed-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}"
    installed = folder / "node_modules" / "@agent-routing/client"
    installed.mkdir(parents=True, exist_ok=True)
    said = run(built, "npm", "pack", "--json", "--ignore-scripts", "--pack-destination", folder)
    [packed] = json.loads(said) if said.lstrip().startswith("[") else json.loads(said).values()
    with tarfile.open(folder / packed["filename"]) as archive:
        for member in archive.getmembers():
            member.name = member.name.removeprefix("package/")
            archive.extract(member, installed, filter="data")
    return folder, [file["path"] for file in packed["files"]]


def test_the_package_has_what_it_exports_and_nothing_else(built, packed):
    """A missing file cannot be imported; an extra file stays published for ever."""
    folder, files = packed
    package = json.loads((CLIENT / "package.json").read_text("utf-8"))
    for entry in package["exports"].values():
        targets = [entry] if isinstance(entry, str) else entry.values()
        assert {target.removeprefix("./") for target in targets} <= {*files}
    assert {"README.md", "LICENSE", "package.json"} <= {*files}
    assert not [path for path in files if re.match(r"(test|build|examples|node_modules)/", path)]
    names = [name.replace(".", "@agent-routing/client", 1) for name in package["exports"]]
    imports = "".join(f'await import("{name}");' for name in names if "json" not in name)
    run(built, "node", "--input-type=module", "-e", imports, cwd=folder)


async def test_the_readme_runs_and_says_what_it_shows(built, packed, tmp_path):
    """A reader who copies it must not be the first to run it."""
    folder, _files = packed
    readme = (CLIENT / "README.md").read_text("utf-8")
    blocks = re.findall(r"^```(ts|text)\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    program = "\n".join(block for kind, block in blocks if kind == "ts")
    shown = "".join(block for kind, block in blocks if kind == "text")
    async with serving(tmp_path, "tax") as live:
        path = folder / "readme.mjs"
        path.write_text(program.replace("127.0.0.1:50051", live.server.address), "utf-8")
        said = await _run_beside(built, path)
    assert said == shown


async def test_langgraph_goes_where_the_service_says(built, tmp_path):
    """Its own run loop: handoffs tracked, refusals read by the model, resumed after a restart."""

    async def run(live, *texts):
        story = ("build/test/langgraphStory.js", live.server.address, "graph")
        said = await _run_beside(built, *story, *texts)
        return [json.loads(line) for line in said.splitlines()]

    async with serving(tmp_path, "tax") as live:
        [asked] = await run(live, "my VAT please")
        turns = await live.chat("graph").turns()
    assert asked["texts"] == ["What did you sell?"]
    assert asked["called"] == ["coordinator", "vat"]
    # The target completed the turn in which it was handed over.
    assert [turn.agent_id for turn in turns] == ["coordinator", "vat"]
    assert len({turn.parent_request_id or turn.request_id for turn in turns}) == 1
    # Both processes are new ones: what they know of the session is what the service stored.
    async with serving(tmp_path, "tax") as live:
        answered, thanked, refused, unknown, twice = await run(
            live, "12,000", "thanks", "payroll please", "ask nobody", "invoice with vat"
        )
        [last] = (await live.chat("graph").turns())[-1:]
    assert (answered["called"], answered["reason"]) == (["vat"], "FOLLOW_UP_LOCK")
    assert (thanked["called"], thanked["texts"]) == (["vat"], ["You are welcome."])
    assert refused["called"] == ["coordinator", "coordinator"]
    assert "entitled: agent" in refused["told"][0]
    assert refused["texts"][0].startswith("I cannot do that: The handoff to payroll was refused.")
    assert '"nobody" is not registered' in unknown["told"][0]
    # Several handoffs in one run, all within one turn.
    assert twice["called"] == ["coordinator", "invoices", "vat"]
    assert (twice["agentId"], last.agent_id) == ("vat", "vat")


async def test_langgraph_asks_for_approvals_that_survive_restarts(built, tmp_path):
    """interrupt(): decided by another process, once; the user writes meanwhile; two at once."""

    async def run(live, *given, version="v1"):
        place = (f"graph-{version}", tmp_path, "v2" if version == "handed" else version)
        story = "build/test/langgraphApprovals.js"
        said = await _run_beside(built, story, live.server.address, *place, *given)
        return [json.loads(line) for line in said.splitlines()]

    def refunds():
        file = tmp_path / "refunds"
        return file.read_text("utf-8").split() if file.exists() else []

    async with serving(tmp_path, "tax") as live:
        for version in ("v1", "v2"):
            await live.chat(f"graph-{version}").say("/status", channel="web")
            await live.chat(f"graph-{version}").set_active("invoices")
        [asked] = await run(live, "say", "please refund 120")
    assert asked["approval"]["prompt"] == "Refund it?: amount: 120"
    assert asked["texts"] == ["I need an approval."]
    async with serving(tmp_path, "tax") as live:
        meanwhile, more = await run(live, "say", "yes", "say", "refund 7")
        assert (meanwhile["reason"], meanwhile["texts"]) == (
            "AWAITING_APPROVAL",
            ["anything else?"],
        )
        assert "not been decided" in more["texts"][0]
        assert refunds() == []
        approval = json.dumps(asked["approval"])
        [done] = await run(live, "decide", approval, "APPROVE")
        assert done.get("texts") == ["The tool says: refunded 120"], done
        [again] = await run(live, "decide", approval, "APPROVE")
        assert (again["texts"], refunds()) == ([], ["120"])
        [contrary] = await run(live, "decide", approval, "REJECT")
        assert contrary["error"] == "ApprovalDecided"
        # Two calls in one task cannot wait: one would run again after the decision about the other.
        [both] = await run(live, "say", "refund 1 and 2")
        assert "approval" not in both
        assert "as the only tool of your answer" in both["texts"][0]
        assert refunds() == ["120"]
        # Each call a task of its own.
        [first] = await run(live, "say", "refund 3 and 4", version="v2")
        approval = json.dumps(first["approval"])
        [second] = await run(live, "decide", approval, "APPROVE", version="v2")
        approval = json.dumps(second["approval"])
        [last] = await run(live, "decide", approval, "APPROVE", version="v2")
        assert sorted(refunds()[1:]) == ["3", "4"], last
        # Handed over and asked in the same message.
        await live.chat("graph-handed").say("/status", channel="web")
        [asked] = await run(live, "say", "refund 5", version="handed")
        assert asked["approval"]["agentId"] == "invoices"
        await run(live, "decide", json.dumps(asked["approval"]), "APPROVE", version="handed")
        assert refunds()[3:] == ["5"]
        [left] = await run(live, "say", "refund 9")
        await run(live, "say", "/supervisor")
        [late] = await run(live, "decide", json.dumps(left["approval"]), "APPROVE")
    assert late["error"] == "TaskNotPaused"
    assert len(refunds()) == 4


STORY = [
    "hello",
    "How much VAT do I owe?",
    "no idea",
    "12,000",
    "when is it due?",
    "/status",
    "/supervisor",
    "my wages please",
]


async def test_the_example_chat_tells_a_story(built, tmp_path):
    """Supervisor, handoff, lock, stickiness, commands and a refusal, as a person sees them."""
    async with serving(tmp_path, "tax") as live:
        command = [CLIENT / "build" / "examples" / "chat" / "main.js", "--target"]
        said = await _run_beside(
            built, *command, live.server.address, given="".join(f"{line}\n" for line in STORY)
        )
    assert [line for line in said.splitlines() if line[:1] in "[>"] == [
        "> hello",
        "[Coordinator] no active agent",
        "> How much VAT do I owe?",
        "[Coordinator] no active agent",
        "[VAT specialist] supervisor handoff",
        "> no idea",
        "[VAT specialist] follow up lock",
        "> 12,000",
        "[VAT specialist] follow up lock",
        "> when is it due?",
        "[VAT specialist] sticky",
        "> /status",
        "> /supervisor",
        "> my wages please",
        "[Coordinator] no active agent",
    ]
    assert "  ── Coordinator → VAT specialist ──\n" in said
    assert "  That makes 2520.00 € of VAT.\n" in said
    assert "  You are talking to VAT specialist.\n" in said
    assert "  That needs the premium plan. Can I help with something else?\n" in said


async def _run_beside(node, *arguments, given=""):
    """Run a program while this event loop serves it."""
    process = await asyncio.create_subprocess_exec(
        str(node.programs["node"]),
        *map(str, arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=CLIENT,
        env=node.environ(NO_COLOR="1"),
    )
    async with asyncio.timeout(120):
        said, complaints = await process.communicate(given.encode())
    assert process.returncode == 0, (said.decode(), complaints.decode())
    return said.decode()
