"""``agent-routing desk`` over a real server."""

import json
import sys
import uuid

import pytest

from agent_routing import Client, outcomes
from routing_service.cli import main
from routing_service.cli.embedded_server import server_in_thread

SHOP = """
api_version: agent_routing/v1
version: shop-1
supervisor: front
agents:
  - {id: front, name: Front desk}
  - {id: orders, name: Orders, description: Orders and parcels.}
  - {id: desk, name: Help desk, description: People who help., kind: human}
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """Serve a shop with a help desk."""
    registry = tmp_path_factory.mktemp("shop") / "agents.yaml"
    registry.write_text(SHOP, "utf-8")
    with server_in_thread(registry, "memory:") as address:
        yield address


@pytest.fixture
def tenant():
    """Return a tenant that no other test has."""
    return f"t{uuid.uuid1(node=1).hex}"  # noqa: TID251 - only has to differ


@pytest.fixture
def client(target, tenant):
    """Return a client of the tenant."""
    with Client(target, tenant=tenant, fallback=None, timeout=30) as made:
        yield made


@pytest.fixture
def run(monkeypatch, capsys, target, tenant):
    """Return what runs the command: (exit code, stdout, stderr)."""

    def run_it(*argv):
        words = ["agent-routing", "desk", *argv, "--target", target, "--tenant", tenant]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code, *capsys.readouterr())

    return run_it


def at_desk(client, text="My parcel is lost"):
    """Begin a conversation that is handed to the desk."""
    turn = client.route(text, session_id="chat-1", user_id="ana")
    client.complete_turn("chat-1", turn.request_id, "front", outcomes.handoff("desk"))


def test_a_person_works_a_conversation_off(client, run):
    """Each step as a person at a terminal, or a script, takes it."""
    assert run("list", "desk")[:2] == (0, "Nothing waits.\n")
    at_desk(client, "My parcel \x1b[2Jis lost")
    code, out, err = run("list", "desk")
    assert (code, err) == (0, "")
    for words in ("chat-1", "ana", "is lost"):
        assert words in out
    assert "\x1b" not in out
    for argv in (("claim", "desk", "chat-1"), ("note", "desk", "chat-1", "x")):
        said = "error: this server has no sign-in: say who you are with --as NAME [INVALID_FIELD]\n"
        assert run(*argv) == (1, "", said)
    code, out, _ = run("claim", "desk", "chat-1", "--as", "bea")
    assert (code, out[:15]) == (0, "claimed by bea,")
    code, _, err = run("claim", "desk", "chat-1", "--as", "cem")
    assert code != 0
    assert "bea" in err
    assert "taken over from bea" in run("claim", "desk", "chat-1", "--as", "cem", "--take-over")[1]
    assert run("say", "desk", "chat-1", "One moment.")[1] == "said; the turn goes on\n"
    assert run("note", "desk", "chat-1", "Called twice.", "--as", "cem")[1] == "noted\n"
    code, out, _ = run("read", "desk", "chat-1")
    assert out.splitlines()[1:] == ["desk (said): One moment.", "1 note", "cem: Called twice."]
    assert out.startswith("user: My parcel")
    assert run("answer", "desk", "chat-1", "Which one?", "--ask")[0] == 0
    assert client.status("chat-1", user_id="ana").locked
    assert run("say", "desk", "chat-1", "I mean the order.")[1] == "said\n"
    client.route("Order 17", session_id="chat-1", user_id="ana")
    code, out, _ = run("hand-back", "desk", "chat-1", "Orders goes on.", "--to", "orders")
    assert code == 0
    assert "orders" in out
    status = client.status("chat-1", user_id="ana")
    assert status.active_agent.agent_id == "orders"
    code, _, err = run("answer", "desk", "chat-1", "late")
    assert code != 0
    assert 'nothing waits for "desk" in session "chat-1"' in err


def test_scripts_get_json_and_a_claim_is_given_up(client, run):
    """One object a command."""
    at_desk(client)
    waiting = json.loads(run("list", "desk", "--json")[1])
    assert waiting["entries"][0]["session_id"] == "chat-1"
    claimed = json.loads(run("claim", "desk", "chat-1", "--as", "bea", "--json")[1])
    assert claimed["claim"]["claimant"] == "bea"
    assert run("release", "desk", "chat-1", "--as", "bea")[1] == "released\n"
    assert run("release", "desk", "chat-1", "--as", "bea")[1] == "was not claimed\n"
    turns, notes = run("read", "desk", "chat-1", "--json")[1].splitlines()
    assert json.loads(turns)["turns"][0]["user_text"] == "My parcel is lost"
    assert json.loads(notes) == {}
    assert run("hand-back", "desk", "chat-1", "Solved.")[0] == 0
    assert not client.status("chat-1", user_id="ana").HasField("active_agent")
