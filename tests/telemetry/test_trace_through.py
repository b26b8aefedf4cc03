"""One trace from a Node frontend through the server to a Python agent runtime."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import toolchains

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
CLIENT = ROOT / "clients" / "typescript"
STOP_S_MAX = 20

# npm downloads a few packages the first time, possibly on a busy machine.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def frontend():
    """Node with the frontend's packages; the test is skipped without them."""
    node = toolchains.require("node")
    folder = HERE / "node"
    if not (folder / "node_modules" / ".package-lock.json").exists():
        command = [str(node.programs["npm"]), "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
        subprocess.run(command, cwd=folder, env=node.environ(), check=True, capture_output=True)
    compiling = [sys.executable, str(ROOT / "scripts/typescript_client.py"), "compile"]
    subprocess.run(compiling, cwd=ROOT, env=node.environ(), check=True, capture_output=True)
    programs = [str(node.programs["node"]), str(folder / "frontend.mjs")]
    return [*programs, str(CLIENT / "dist" / "index.js")], node.environ()


@pytest.fixture
def served(tmp_path):
    """The tax example as a server process that traces into a file, until it is stopped."""
    command = [str(Path(sys.executable).parent / "agent-routing"), "serve"]
    command += ["--listen", "127.0.0.1:0", "--store", "memory:"]
    command += ["--agents", "routing_service/examples/tax.yaml"]
    command += ["--traces", f"file:{tmp_path / 'server.jsonl'}"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
    line = process.stdout.readline()
    assert line.startswith("serving on "), (tmp_path / "log").read_text()
    yield line.removeprefix("serving on ").strip(), process
    process.kill()
    process.communicate(timeout=STOP_S_MAX)


def lines(path):
    """Read the spans of a file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_trace_of_a_frontend_runs_through_the_server_to_the_runtime(frontend, served, tmp_path):
    """Five spans of three processes in two languages, each the child of its caller's span."""
    command, environment = frontend
    address, process = served
    spans = tmp_path / "spans.jsonl"
    asked = [address, str(spans), "traced", "How much VAT do I owe?"]
    routed = subprocess.run(
        [*command, *asked], env=environment, check=False, capture_output=True, text=True
    )
    assert routed.returncode == 0, routed.stderr
    answered = subprocess.run(
        [sys.executable, str(HERE / "runtime.py"), address, str(spans), "traced"],
        input=routed.stdout,
        check=False,
        capture_output=True,
        text=True,
    )
    assert answered.returncode == 0, answered.stderr
    process.terminate()
    assert process.wait(STOP_S_MAX) == 0

    found = {(span["service"], span["name"]): span for span in lines(spans)}
    for span in lines(tmp_path / "server.jsonl"):
        name = span["name"].rpartition("/")[2]
        found["server", name] = {
            "traceId": span["context"]["trace_id"].removeprefix("0x"),
            "spanId": span["context"]["span_id"].removeprefix("0x"),
            "parentId": (span["parent_id"] or "").removeprefix("0x") or None,
            "attributes": span["attributes"],
        }
    chain = [
        ("frontend", "chat message"),
        ("frontend", "Route"),
        ("server", "Route"),
        ("runtime", "agent turn"),
        ("runtime", "CompleteTurn"),
        ("server", "CompleteTurn"),
    ]
    assert set(found) == set(chain)
    assert len({span["traceId"] for span in found.values()}) == 1
    parents = [found[key]["parentId"] for key in chain]
    assert parents == [None, *(found[key]["spanId"] for key in chain[:-1])]
    told = found["server", "Route"]["attributes"]
    assert told["agent_routing.session_id"] == "traced"
    assert told["agent_routing.agent_id"] == "coordinator"
    assert told["agent_routing.reason"] == "no_active_agent"
    assert told["agent_routing.task_id"]
    assert told["rpc.grpc.status_code"] == "OK"
    done = found["server", "CompleteTurn"]["attributes"]
    assert done["agent_routing.request_id"] == told["agent_routing.request_id"]
    assert done["agent_routing.outcome"] == "proceed"
    assert "VAT" not in (tmp_path / "server.jsonl").read_text()
