"""``agent-routing approvals`` over a real server."""

import json
import sys
import threading
import uuid

import pytest

from agent_routing import Admin, outcomes
from routing_service.cli import main
from routing_service.cli.embedded_server import server_in_thread
from routing_service.cli.screen import span_text
from routing_service.examples import EXAMPLES


@pytest.fixture(scope="module")
def target():
    """Serve the tax example."""
    with server_in_thread(EXAMPLES["tax"].registry_path, "memory:") as address:
        yield address


@pytest.fixture
def tenant():
    """Return a tenant that no other test has."""
    return f"t{uuid.uuid1(node=1).hex}"  # noqa: TID251 - only has to differ


@pytest.fixture
def client(target, tenant):
    """Return a client of the tenant."""
    with Admin(target, tenant=tenant, fallback=None, timeout=30) as made:
        yield made


@pytest.fixture
def run(monkeypatch, capsys, target, tenant):
    """Return what runs the command: (exit code, stdout, stderr)."""

    def run_it(*argv):
        words = ["agent-routing", "approvals", *argv, "--target", target, "--tenant", tenant]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code, *capsys.readouterr())

    return run_it


def paused(client, session_id, prompt="Refund 40 EUR?", **fields):
    """Let the supervisor ask for an approval; return its request."""
    turn = client.route("my money", session_id=session_id, user_id="ana")
    asked = outcomes.approval_needed(prompt, fields=fields or None)
    client.complete_turn(session_id, turn.request_id, turn.agent_id, asked)
    return turn.request_id


def test_list_shows_what_a_person_needs_to_decide(client, run):
    """One line each, the oldest first, with the fields of programs."""
    paused(client, "one", amount=40, currency="EUR")
    paused(client, "two", "Delete \x1b[2Jall?")
    code, out, err = run("list")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["session", "user", "agent", "waits", "expires", "votes", "what"]
    text = " ".join(out.split())
    assert text.index("one ana") < text.index("two ana")
    for words in ("never", "0/1", "Refund 40", "amount=40", "currency=EUR", "2 approvals"):
        assert words in text
    assert "\x1b" not in out
    code, out, _ = run("list", "--max", "1")
    assert out.splitlines()[-1] == "1 approval, and more"
    code, out, _ = run("list", "--agent", "vat")
    assert out == "0 approvals\n"
    code, out, _ = run("list", "--json")
    found = json.loads(out)["approvals"]
    assert [each["session_id"] for each in found] == ["one", "two"]
    assert found[0]["approval"]["fields"] == {"amount": 40, "currency": "EUR"}


def test_decides_by_session_or_request(client, run):
    """And says what waits no longer."""
    paused(client, "one")
    request_id = paused(client, "two")
    code, out, err = run("approve", "one", "--comment", "this once")
    assert (code, err) == (0, "")
    assert out.startswith("approved, revision 3\nto ")
    (turn,) = client.status("one").open_requests
    assert turn.resume.comment == "this once"
    code, out, _ = run("reject", request_id)
    assert out.startswith("rejected, revision 3\n")
    code, out, err = run("approve", "two")
    assert (code, out) == (1, "")
    assert 'nothing waits for an approval under "two"' in err


PARKS = """\
api_version: agent_routing/v1
version: parks-1
supervisor: desk
while_paused: park
agents:
  - {id: desk, name: Desk}
"""


def test_decides_what_parked_tasks_wait_for(tmp_path, monkeypatch, capsys):
    """One that waits alone is found by its session; of several the command names each."""
    agents = tmp_path / "agents.yaml"
    agents.write_text(PARKS)

    def run_it(*argv):
        monkeypatch.setattr(sys, "argv", ["agent-routing", *argv, "--target", address])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code, *capsys.readouterr())

    with (
        server_in_thread(agents, "memory:") as address,
        Admin(address, fallback=None, timeout=30) as client,
    ):
        first, second = paused(client, "both", "One?"), paused(client, "both", "Two?")
        tasks = [each.task.task_id for each in client.status("both").parked_tasks]
        for words in (("approve", "both"), ("approvals", "approve", "both")):
            code, _, err = run_it(*words)
            assert code == 1
            assert '2 tasks wait for an approval in session "both"' in err
        assert {first, second} <= set(err.replace(",", " ").split())
        code, _, err = run_it("approve", "both", "--task", tasks[1])
        assert (code, err) == (0, "")
        code, _, err = run_it("reject", "both")
        assert (code, err) == (0, "")
        decided = {
            turn.task_id: turn.resume.decision for turn in client.status("both").open_requests
        }
        assert list(decided) == tasks
        assert len(set(decided.values())) == 2


def test_watch_prints_lines_until_it_is_stopped(client, run, monkeypatch):
    """What waits at its beginning, then what comes and goes."""
    paused(client, "one")
    watched = Admin.watch_approvals

    def three(self, **fields):
        """Yield three messages, as if Ctrl-C followed."""
        for number, message in enumerate(watched(self, **fields)):
            yield message
            if number == 0:
                threading.Thread(target=then).start()
            elif number == 2:
                raise KeyboardInterrupt

    def then():
        paused(client, "two", amount=7)
        client.clear_active_agent("one")

    monkeypatch.setattr(Admin, "watch_approvals", three)
    code, out, _ = run("watch")
    assert code == 130
    first, *rest = out.splitlines()
    assert first.startswith("one  ")
    assert sorted(line.partition("  ")[0] for line in rest) == ["one", "two"]
    assert "one  no longer waits" in rest
    assert any("amount=7" in line for line in rest)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0s"), (0, "0s"), (59, "59s"), (61, "1m1s"), (7_200, "2h0m"), (90_061, "1d1h")],
)
def test_spans_have_two_units(seconds, text):
    """Short enough for a column."""
    assert span_text(seconds) == text
