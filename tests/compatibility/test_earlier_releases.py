"""Earlier releases as they were, from their wheels: with today's server, client and stores.

An upgrade is rolled out one process at a time, and may have to be rolled back: each release's
client speaks to today's server, today's client to each release's server, and both servers go on
with the sessions that the other one stored.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent_routing import Admin, Client
from routing_service import __version__
from routing_service.storage.migrate_store import migrate_store

RELEASES = sorted(path for path in Path(__file__).parent.glob("releases/*") if path.is_dir())
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


@pytest.fixture(params=RELEASES, ids=lambda folder: folder.name)
def release(request, tmp_path) -> tuple[str, Path]:
    """A release's version, and the folder that its wheels are unpacked into."""
    folder = tmp_path / "release"
    for wheel in request.param.glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(folder)
    return request.param.name, folder


def serve_command(store: str, code: Path) -> list[str]:
    """Return the command that serves the tax example."""
    return [
        *(sys.executable, "-c", "from routing_service.cli import main; main()", "serve"),
        *("--listen", "127.0.0.1:0", "--store", store, "--log-level", "error"),
        *("--agents", str(code / "routing_service" / "examples" / "tax.yaml")),
    ]


@contextmanager
def serving(store: str, release_folder: Path | None = None) -> Iterator[str]:
    """Serve the tax example, by a release's own code or today's; give the address."""
    code = release_folder or ROOT
    environment = dict(os.environ) | ({"PYTHONPATH": str(code)} if release_folder else {})
    process = subprocess.Popen(
        serve_command(store, code),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        cwd=code,
    )
    try:
        line = process.stdout.readline()
        assert line.startswith("serving on "), "the server did not start"
        yield line.split()[-1]
        process.terminate()
        assert process.wait(RUN_S_MAX) == 0
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


def run_client(folder: Path, address: str) -> str:
    """Run the program with the client that lies in a folder; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, address, str(folder)],
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def version_of(release_folder: Path) -> str:
    """Return the version that a release's own command prints."""
    done = subprocess.run(
        [sys.executable, "-c", "from routing_service.cli import main; main()", "--version"],
        capture_output=True,
        text=True,
        check=True,
        cwd=release_folder,
        env={**os.environ, "PYTHONPATH": str(release_folder)},
    )
    return done.stdout.split()[-1]


def test_the_first_release_is_here():
    """Without a release the other tests here would hold nothing."""
    assert "0.1.0" in [folder.name for folder in RELEASES]


@pytest.mark.parametrize("folder", RELEASES, ids=lambda folder: folder.name)
def test_the_wheels_are_as_they_were_released(folder):
    """They stand for what runs out there."""
    noted = dict(
        reversed(line.split("  "))
        for line in (folder / "SHA256SUMS").read_text("utf-8").splitlines()
    )
    found = {path.name: hashlib.sha256(path.read_bytes()) for path in folder.glob("*.whl")}
    assert len(found) == 2
    assert {name: digest.hexdigest() for name, digest in found.items()} == noted


def test_its_own_code_is_what_runs(release):
    """Otherwise these tests would compare today's code with itself."""
    version, folder = release
    assert version_of(folder) == version


def test_its_client_speaks_to_todays_server(release):
    """Servers are rolled out before the applications that call them, or long before."""
    version, folder = release
    with serving("memory:") as address:
        assert run_client(folder, address) == f"spoke {version}\n"


def test_todays_client_speaks_to_its_server(release):
    """An application may be newer than the servers that it calls."""
    _, folder = release
    with serving("memory:", folder) as address:
        assert run_client(ROOT / "clients" / "python", address) == f"spoke {__version__}\n"


def test_its_sessions_go_on_here_and_there_again(release, tmp_path):
    """An upgrade without a migration, and the way back: the same session on three servers.

    The store of 0.1 is migrated first, and then no longer read by it.
    """
    version, folder = release
    store = f"sqlite:///{tmp_path / 'routing.db'}"
    with serving(store, folder) as address, Client(address, fallback=None) as client:
        turn = client.route("hola", session_id="chat", user_id="ana", channel="web")
        client.set_active_agent("chat", "vat", user_id="ana", turn_request_id=turn.request_id)
        first = client.status("chat", user_id="ana")
    if version == "0.1.0":
        refused = subprocess.run(
            serve_command(store, ROOT), capture_output=True, text=True, check=False, cwd=ROOT
        )
        assert refused.returncode == 1
        assert "run agent-routing migrate --store URL --format 2" in refused.stderr
        asyncio.run(migrate_store(store, raise_to=2))
    with serving(store) as address, Client(address, fallback=None) as client:
        kept = client.status("chat", user_id="ana")
        assert (kept.revision, kept.active_agent.agent_id) == (first.revision, "vat")
        again = client.route(
            "hola", session_id="chat", user_id="ana", channel="web", request_id=turn.request_id
        )
        assert (again.replayed, again.agent_id) == (True, "coordinator")
        newer = client.route("And when is it due?", session_id="chat", user_id="ana")
        assert (newer.agent_id, newer.reason) == ("vat", "STICKY")
    if version == "0.1.0":
        return
    with serving(store, folder) as address, Client(address, fallback=None) as client:
        kept = client.status("chat", user_id="ana")
        assert kept.revision == newer.response.revision
        turns = list(client.list_turns("chat", user_id="ana"))
        assert [each.user_text for each in turns] == ["hola", "hola", "And when is it due?"]
        back = client.route("thanks", session_id="chat", user_id="ana")
        assert (back.agent_id, back.reason) == ("vat", "STICKY")


def test_moved_and_abandoned_messages_are_read_there(release, tmp_path):
    """The exact words stand beside those that the release knows, and its state is today's."""
    version, folder = release
    if version == "0.1.0":
        pytest.skip("its stores are of format 1, which holds nothing that is said between turns")
    store = f"sqlite:///{tmp_path / 'routing.db'}"
    chat = {"session_id": "chat", "user_id": "ana"}
    with serving(store, folder) as address, Client(address, fallback=None) as client:
        client.route("hola", channel="web", **chat)
    with serving(store) as address, Client(address, fallback=None) as client:
        moved = client.set_active_agent("chat", "vat", initiator="OPERATOR", reason="stuck")
        assert moved.moved_turn.agent.agent_id == "vat"
        client.route("/supervisor", **chat)
        client.set_active_agent("chat", "vat", initiator="OPERATOR", message="VAT helps you.")
        routed = client.route("and now?", **chat)
        assert routed.dispatch.HasField("handoff")
        task_id = client.status("chat").task.task_id
        client.cancel_task(task_id)
        today = client.status("chat")
        causes = [turn.abandon_cause for turn in client.list_turns("chat")]
    with serving(store, folder) as address, Client(address, fallback=None) as client:
        there = client.status("chat")
        assert there.SerializeToString(deterministic=True) == today.SerializeToString(
            deterministic=True
        )
        turns = list(client.list_turns("chat"))
        assert [turn.agent_text for turn in turns] == ["", "", "VAT helps you.", ""]
        assert len(causes) == len(turns)
        seen = client.watch_session("chat", after_revision=0)
        kinds = {
            event.WhichOneof("kind") for _ in range(today.revision) for event in next(seen).events
        }
        assert {"turn_abandoned", "agent_handoff", "message_said"} <= kinds
        with Admin(address) as admin:
            assert admin.list_events_page(session_id="chat").records
        back = client.route("thanks", **chat)
        assert back.agent_id == "coordinator"
    with serving(store) as address, Client(address, fallback=None) as client:
        assert client.status("chat").revision == back.revision
        assert [turn.abandon_cause for turn in client.list_turns("chat")][: len(causes)] == causes
