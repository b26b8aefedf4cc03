"""``agent-routing inbox`` over a real server, with a worker's stream."""

import json
import re
import sys
import threading
import uuid
from contextlib import contextmanager

import grpc
import pytest

from agent_routing import Admin, errors, outcomes
from agent_routing.v1 import routing_service_pb2 as pb
from agent_routing.v1 import routing_service_pb2_grpc as rpc
from routing_service.cli import inbox as inbox_module
from routing_service.cli import main
from routing_service.cli.embedded_server import server_in_thread

REGISTRY = """\
api_version: agent_routing/v1
version: desk-1
supervisor: front
agents:
  - {id: front, name: Front desk, description: Takes questions., delivery: inbox}
  - {id: vat, name: VAT, description: VAT returns., delivery: inbox, user_selectable: true}
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """Serve two agents with inboxes."""
    path = tmp_path_factory.mktemp("desk") / "agents.yaml"
    path.write_text(REGISTRY, "utf-8")
    with server_in_thread(path, "memory:") as address:
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
        words = ["agent-routing", "inbox", *argv, "--target", target, "--tenant", tenant]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code, *capsys.readouterr())

    return run_it


@contextmanager
def worker(target, tenant, worker_id="w-1", agent_id="front"):
    """Take turns of an agent; yield its stream of items."""
    with grpc.insecure_channel(target) as channel:
        request = pb.WatchInboxRequest(agent_ids=[agent_id], worker_id=worker_id)
        metadata = [("agent-routing-tenant", tenant)]
        stream = rpc.RoutingServiceStub(channel).WatchInbox(request, metadata=metadata)
        yield (message.item for message in stream if message.HasField("item"))
        stream.cancel()


def test_list_shows_who_has_a_turn_and_for_how_long(client, run, target, tenant):
    """What a person looks for at night: the age, the worker, the attempts."""
    client.route("hello", session_id="one", user_id="ana")
    with worker(target, tenant) as items:
        assert next(items).session_id == "one"
        client.route("/agent vat my return", session_id="two", user_id="ben")
        code, out, err = run("list")
        assert (code, err) == (0, "")
        head, first, second, count = out.splitlines()
        assert head.split()[:6] == ["session", "user", "agent", "waits", "tries", "worker"]
        assert first.split()[:3] == ["one", "ana", "Front"]
        assert re.search(r" 1 +w-1 +\d+s +in 14m\d+s$", first.rstrip()), first
        assert second.split()[:3] == ["two", "ben", "VAT"]
        assert " none " in second
        assert count == "2 turns"
        code, out, _ = run("list", "vat")
        assert out.splitlines()[-1] == "1 turn"
        code, out, _ = run("list", "--max", "1")
        assert out.splitlines()[-1] == "1 turn, and more"
        code, out, _ = run("list", "--json")
        found = json.loads(out)["entries"]
        assert [each["session_id"] for each in found] == ["one", "two"]
        assert (found[0]["worker_id"], found[0]["attempt"]) == ("w-1", 1)
        assert found[1]["worker_id"] == ""


def test_release_gives_a_turn_to_another_worker(client, run, target, tenant):
    """The first worker hangs; its late answer is refused, and the release is no attempt."""
    client.route("hello", session_id="one", user_id="ana")
    with worker(target, tenant) as items:
        first = next(items)
    with worker(target, tenant, "w-2") as items:
        code, out, _ = run("release", "one")
        assert (code, out) == (0, "one: taken from w-1; it waits for a worker\n")
        second = next(items)
        assert (second.dispatch.request_id, second.attempt) == (first.dispatch.request_id, 1)
        with pytest.raises(errors.LeaseLost):
            client.complete_turn(
                "one",
                first.dispatch.request_id,
                "front",
                outcomes.proceed(),
                text="late",
                lease_token=first.lease_token,
            )


def test_release_of_a_turn_that_waits_says_so(client, run):
    """Nothing is taken from a worker, and nothing fails."""
    request_id = client.route("hello", session_id="one", user_id="ana").request_id
    code, out, _ = run("release", request_id)
    assert (code, out) == (0, "one: no worker had it; it waits for a worker\n")


def test_keep_says_when_the_turn_is_given_up(client, run):
    """A quarter of an hour after its dispatch, unless the registry says otherwise."""
    client.route("hello", session_id="one", user_id="ana")
    code, out, _ = run("keep", "one")
    assert code == 0
    assert out.startswith("one: given up in 14m")


def test_complete_answers_in_place_of_a_worker(client, run, target, tenant):
    """The user has an answer, and the inbox is empty."""
    client.route("hello", session_id="one", user_id="ana")
    with worker(target, tenant) as items:
        next(items)
        code, _, err = run("complete", "one", "--text", "We call you back.")
        assert (code, err) == (0, "")
    (turn,) = client.list_turns("one", user_id="ana")
    assert turn.agent_text == "We call you back."
    assert run("list")[1] == "0 turns\n"


def test_a_turn_that_is_not_there_is_named(run):
    """With what to do."""
    code, out, err = run("complete", "nowhere", "--text", "hello")
    assert (code, out) == (1, "")
    assert 'no turn of "nowhere" is in an inbox' in err
    assert "agent-routing inbox list" in err


def test_watch_prints_a_list_again_and_again(client, run, monkeypatch):
    """Until Ctrl-C."""
    client.route("hello", session_id="one", user_id="ana")
    looks = []

    def ctrl_c(_seconds):
        looks.append(1)
        if len(looks) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(inbox_module.time, "sleep", ctrl_c)
    code, out, _ = run("watch", "--json")
    assert code == 130
    lists = [json.loads(line) for line in out.splitlines()]
    assert [[each["session_id"] for each in one["entries"]] for one in lists] == [["one"]] * 2
    looks.clear()
    code, out, _ = run("watch")
    assert (code, out.count("1 turn\n")) == (130, 2)


def test_pages_go_over_all_agents(client):
    """A page token keeps its place in the list, and belongs to it."""
    for number in range(3):
        client.route("hello", session_id=f"front-{number}", user_id="ana")
        client.route("/agent vat x", session_id=f"vat-{number}", user_id="ana")
    found, token = [], ""
    while True:
        page = client.list_inbox_page(page_size=2, page_token=token)
        assert len(page.entries) <= 2
        found += [entry.session_id for entry in page.entries]
        token = page.next_page_token
        if not token:
            break
    assert found == ["front-0", "front-1", "front-2", "vat-0", "vat-1", "vat-2"]
    token = client.list_inbox_page(page_size=1).next_page_token
    with pytest.raises(errors.InvalidField, match="page_token"):
        client.list_inbox_page("vat", page_token=token)
    with pytest.raises(errors.InvalidField, match="page_token"):
        client.list_inbox_page(page_token="x!")


def test_an_answered_turn_is_in_no_list(client, target, tenant):
    """Also with a worker's stream open, on another thread."""
    client.route("hello", session_id="one", user_id="ana")
    done = threading.Event()

    def answer():
        with worker(target, tenant) as items:
            item = next(items)
            client.complete_turn(
                "one",
                item.dispatch.request_id,
                "front",
                outcomes.proceed(),
                text="hello",
                lease_token=item.lease_token,
            )
            done.set()

    thread = threading.Thread(target=answer)
    thread.start()
    assert done.wait(30)
    thread.join()
    assert not client.list_inbox_page().entries
