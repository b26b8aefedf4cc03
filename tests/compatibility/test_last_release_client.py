"""The last release's client, as it was, against today's server.

The tag of the last release is where that client is: its own files are run, not those of the tree.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from routing_service.cli.embedded_server import server_in_thread
from routing_service.examples import EXAMPLES

ROOT = Path(__file__).parent.parent.parent
RUN_S_MAX = 120

# What every release's client could do; each line is one of the contract's promises.
PROGRAM = """
import sys
import agent_routing
from agent_routing import Client, errors, outcomes

assert agent_routing.__file__.startswith(sys.argv[2]), agent_routing.__file__
with Client(sys.argv[1], fallback=None, timeout=30) as client:
    turn = client.route("hola", user_id="ana", channel="web")
    assert (turn.agent_id, turn.reason) == ("coordinator", "NO_ACTIVE_AGENT")
    answer = client.complete_turn(
        turn.session_id, turn.request_id, turn.agent_id, outcomes.handoff("vat"), text="IVA"
    )
    client.complete_turn(
        turn.session_id, answer.next.request_id, "vat", outcomes.follow_up(), text="How much?"
    )
    turn = client.route("no se", session_id=turn.session_id, user_id="ana")
    assert (turn.agent_id, turn.reason) == ("vat", "FOLLOW_UP_LOCK")
    assert client.status(turn.session_id, user_id="ana").active_agent.agent_id == "vat"
    try:
        client.set_active_agent(turn.session_id, "payroll", user_id="ana")
    except errors.HandoffRefused as refused:
        assert refused.rules == ("entitled",)
    changes = client.watch_session(turn.session_id, user_id="ana", after_revision=0)
    assert [next(changes).revision for _ in range(3)] == [1, 2, 3]
    changes.close()
print("spoke", agent_routing.__version__)
"""


def git(*words: str) -> subprocess.CompletedProcess[bytes]:
    """Ask the tree's history."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False)


def last_tag() -> str:
    """Return the last release's tag, or "" if this checkout has no tags."""
    try:
        described = git("describe", "--tags", "--abbrev=0", "--match", "v[0-9]*")
    except FileNotFoundError:
        return ""
    return described.stdout.decode().strip() if described.returncode == 0 else ""


def run_client(folder: Path, address: str) -> subprocess.CompletedProcess[str]:
    """Run the program with the client that lies in a folder."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, address, str(folder)],
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )


def test_client_of_the_last_release_speaks_to_todays_server(tmp_path: Path):
    """Servers are rolled out before the applications that call them, or long before."""
    tag = last_tag()
    if not tag:
        pytest.skip("no release is tagged here (v0.1.0, …)")
    archive = git("archive", "--format=tar", tag, "clients/python/agent_routing")
    assert archive.returncode == 0, archive.stderr
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(tmp_path, filter="data")
    with server_in_thread(EXAMPLES["tax"].registry_path, "memory:") as address:
        done = run_client(tmp_path / "clients" / "python", address)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"spoke {tag.removeprefix('v')}\n"


def test_the_program_of_that_test_runs_with_todays_client():
    """A test that waits for the first tag must not be wrong by then."""
    client = ROOT / "clients" / "python"
    with server_in_thread(EXAMPLES["tax"].registry_path, "memory:") as address:
        done = run_client(client, address)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("spoke ")
