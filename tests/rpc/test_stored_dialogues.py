"""agent-routing dialogues: stored conversations become replay material, without their people."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest

from agent_routing import Admin, outcomes
from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import routing_service_pb2 as rpb
from agent_routing.v1.admin_service_pb2_grpc import AdminServiceStub
from routing_service.cli import main
from routing_service.cli.embedded_server import server_in_thread
from routing_service.replay.recorded_dialogue import parse_dialogue
from tests.rpc.registries import DESK
from tests.rpc.signed_in import bearer, serving_signed_in, token

REGISTRY = """
api_version: agent_routing/v1
version: "1"
supervisor: desk
topics: {mode: suggest, threshold: 0.3, lock_threshold: off}
agents:
  - {id: desk, name: Desk, kind: supervisor}
  - id: billing
    name: Billing
    description: Invoices, refunds and card payments.
    user_selectable: true
    examples: [I want a refund for my invoice, my card was charged twice]
  - id: shipping
    name: Shipping
    description: Parcels, deliveries and addresses.
    user_selectable: true
    examples: [where is my parcel, change the delivery address of my parcel]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the registry file."""
    folder = tmp_path_factory.mktemp("dialogues")
    (folder / "agents.yaml").write_text(REGISTRY, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def target(folder):
    """Serve the registry, with some conversations."""
    with server_in_thread(folder / "agents.yaml", "memory:") as address:
        with Admin(address, fallback=None, timeout=30) as client:
            talk(client)
        yield address


def talk(client):
    """Hold a conversation in which the first choice was often wrong, and three short ones."""

    def say(text, outcome, answer, session_id="chat-88", user_id="ana-7"):
        turn = client.route(text, session_id=session_id, user_id=user_id, locale="en")
        made = client.complete_turn(
            session_id, turn.request_id, turn.agent_id, outcome, text=answer
        )
        return turn, made

    _, made = say("Hello, my name is Ana García", outcomes.handoff("billing"), "")
    client.complete_turn(
        "chat-88", made.next.request_id, "billing", outcomes.proceed(), text="Hi Ana, your number?"
    )
    turn, _ = say("where is my parcel", outcomes.proceed(), "Not mine.")
    assert turn.suggestion.agent.agent_id == "shipping"
    say("yes", outcomes.proceed(), "Sent to ana.garcia@example.org, call 600 123 456.")
    say("it should go to my sister", outcomes.follow_up(), "Which card is it?")
    client.route("/agent billing", session_id="chat-88", user_id="ana-7")
    say("4111 1111 1111 1111, and I am ana-7", outcomes.proceed(), "Thanks, Ana García")
    client.route("/supervisor", session_id="chat-88", user_id="ana-7")
    for number in range(3):
        say(f"hello {number}", outcomes.proceed(), "", f"short-{number}", "ben")


@pytest.fixture
def run(monkeypatch, capsys, target):
    """Return what runs the command on the server: (exit code, stdout, stderr)."""

    def run_it(*argv, command="dialogues", at=target):
        where = ("--target", at) if at else ()
        monkeypatch.setattr(sys, "argv", ["agent-routing", command, *argv, *where])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code, *capsys.readouterr())

    return run_it


def read(out):
    """Return the dialogues of an output; each is one that replay reads."""
    return [parse_dialogue(line.encode()) for line in out.splitlines()]


def test_a_message_belongs_to_the_agent_that_it_was_for(run):
    """By handoff, accepted offer, /agent and answer; /supervisor leaves it uncertain."""
    code, out, _ = run("--reason", "replay", "--owner", "ana-7")
    assert code == 0
    (dialogue,) = read(out)
    said = [
        (turn.text, turn.agent, turn.uncertain) for turn in dialogue.turns if turn.speaker == "user"
    ]
    assert said == [
        ("Hello, my name is [name 1]", "billing", False),
        ("where is my parcel", "shipping", False),
        ("it should go to my sister", "billing", False),
        ("[number 2], and I am [user 1]", "billing", True),
    ]
    asked = [turn.text for turn in dialogue.turns if turn.requires_follow_up]
    assert asked == ["Which card is it?"]


def test_a_correction_is_of_the_message_in_its_own_task(run, tmp_path):
    """An operator hands a parked task on: the other task's message stays its agent's."""
    agents = tmp_path / "parks.yaml"
    agents.write_text(REGISTRY + "while_paused: park\n", encoding="utf-8")
    with server_in_thread(agents, "memory:") as address:
        client = Admin(address, fallback=None, timeout=30)
        with client:

            def answer(dispatch, outcome, text=""):
                agent_id, request_id = dispatch.agent.agent_id, dispatch.request_id
                return client.complete_turn("chat-1", request_id, agent_id, outcome, text=text)

            def paused(text):
                first = client.route(text, session_id="chat-1", user_id="ana")
                handed = answer(first.dispatch, outcomes.handoff("billing"))
                return answer(handed.next, outcomes.approval_needed("Pay?"), "I have asked.")

            one = paused("one hundred back, please")
            two = client.route("two hundred back, please", session_id="chat-1", user_id="ana")
            handed = answer(two.dispatch, outcomes.handoff("billing"))
            answer(handed.next, outcomes.proceed(), "On its way.")
            resumed = client.resume_task(one.task_id, one.request_id, "APPROVE", user_id="ana")
            answer(resumed.dispatch, outcomes.follow_up(), "To which account?")
            client.set_active_agent(
                "chat-1", "shipping", user_id="ana", task_id=one.task_id, initiator="OPERATOR"
            )
            code, out, _ = run("--reason", "replay", "--owner", "ana", at=address)
    assert code == 0
    (dialogue,) = read(out)
    said = [(turn.text, turn.agent) for turn in dialogue.turns if turn.speaker == "user"]
    assert said == [
        ("one hundred back, please", "shipping"),
        ("two hundred back, please", "billing"),
    ]


def test_a_value_has_one_pseudonym_in_a_conversation(run):
    """Also in the agents' answers; nothing that names the person or the session is left."""
    _, out, err = run("--reason", "replay", "--owner", "ana-7")
    answers = [turn.text for turn in read(out)[0].turns if turn.speaker == "agent"]
    assert answers[0] == "Hi [name 1], your number?"
    assert answers[1] == "Sent to [email 1], call [number 1]."
    assert answers[-1] == "Thanks, [name 1]"
    for secret in ("Ana", "García", "ana-7", "chat-88", "4111", "600 123", "example.org"):
        assert secret.casefold() not in out.casefold(), secret
    said = "1 dialogue, 4 messages (1 uncertain, so in no score); replaced: "
    assert f"{said}email 1, name 1, number 2, user 1" in err


def test_filters_and_a_sample_that_can_be_repeated(run):
    """The same seed takes the same conversations; another one takes others."""
    _, everything, _ = run("--reason", "x")
    assert [each.dialogue_id for each in read(everything)] == [f"d-00000{n}" for n in (1, 2, 3, 4)]
    _, of_agent, _ = run("--reason", "x", "--agent", "shipping")
    assert len(read(of_agent)) == 1
    assert run("--reason", "x", "--until", "2020-01-01")[1] == ""
    samples = [run("--reason", "x", "--sample", "2", "--seed", seed)[1] for seed in "1123456"]
    assert samples[0] == samples[1]
    assert len(read(samples[0])) == 2
    assert len(set(samples)) > 1


def test_what_is_written_can_be_replayed_and_evaluated(run, folder):
    """The file is what both commands read; a file that exists is not replaced."""
    out = folder / "june.jsonl"
    agents = str(folder / "agents.yaml")
    code, said, _ = run("--reason", "replay", "--output", str(out))
    assert (code, said) == (0, "")
    assert out.stat().st_mode & 0o077 == 0
    code, said, err = run(str(out), "--agents", agents, "--json", command="replay", at="")
    figures = json.loads(said)
    assert (code, figures["dialogues"], figures["errors"], figures["bad_lines"]) == (0, 4, 0, 0), (
        err
    )
    evaluated = run("evaluate", str(out), "--agents", agents, "--json", command="topics", at="")
    assert evaluated[0] == 0, evaluated
    code, _, err = run("--reason", "replay", "--output", str(out))
    assert code == 2
    assert "exists already" in err


def test_names_of_a_file_are_replaced_and_a_reason_is_required(run, folder):
    """A name without a cue is found by the file."""
    names = folder / "names.txt"
    names.write_text("Hello\n", encoding="utf-8")
    _, out, _ = run("--reason", "x", "--owner", "ben", "--names", str(names), "--keep-proper-names")
    assert read(out)[0].turns[0].text == "hello 0"  # Not capitalised, so not the name.
    _, out, _ = run("--reason", "x", "--owner", "ana-7", "--names", str(names))
    assert read(out)[0].turns[0].text.startswith("[name 1]")
    assert run("--reason", " ")[0] == 2
    assert "cannot read" in run("--reason", "x", "--names", str(folder / "none"))[2]


async def test_it_needs_read_words_and_leaves_a_record_of_each_conversation(
    tmp_path, monkeypatch, capsys
):
    """Without the right nothing is written."""
    async with serving_signed_in(tmp_path, DESK) as service:
        user = bearer(token("route", user="ana"))
        await service.stub.Route(rpb.RouteRequest(session_id="s", text="my secret"), metadata=user)

        def run_as(*scopes):
            path = tmp_path / "token"
            path.write_text(token(*scopes, subject="sam"), encoding="ascii")
            argv = ["agent-routing", "--token-file", str(path), "dialogues", "--reason", "ticket 7"]
            monkeypatch.setattr(sys, "argv", [*argv, "--target", service.server.address])
            capsys.readouterr()  # The server's own lines.
            with pytest.raises(SystemExit) as ended:
                main()
            return (ended.value.code, *capsys.readouterr())

        code, out, err = await asyncio.to_thread(run_as, "admin")
        assert (code, out) == (1, "")
        assert 'needs the scope "read_words"' in err
        code, out, _ = await asyncio.to_thread(run_as, "admin", "read_words")
        assert code == 0
        assert read(out)[0].turns[0].uncertain
        request = pb.ListEventsRequest(kinds=["operator_act"])
        page = await AdminServiceStub(service.channel).ListEvents(
            request, metadata=bearer(token("admin"))
        )
    acts = [(each.actor, each.event.operator_act) for each in page.records]
    assert [(who, act.reason, act.target) for who, act in acts] == [
        ("sam", "ticket 7", 'texts of session "s"')
    ]
