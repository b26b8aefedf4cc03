"""The terminal chat: stories, pipes, terminals, and servers that stop."""

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

from agent_routing.v1.agent_pb2 import AGENT_KIND_SPECIALIST, AGENT_KIND_SUPERVISOR, Agent
from routing_service.cli import chat_program, main
from routing_service.cli.chat_options import ChatOptions
from routing_service.cli.chat_program import run_chat
from routing_service.cli.embedded_server import server_in_thread
from routing_service.cli.stand_in_agents import StandInAgents
from routing_service.examples import EXAMPLES
from routing_service.examples.agent_reply import (
    AgentTurn,
    Complete,
    Fail,
    FollowUp,
    HandOff,
    Proceed,
)
from routing_service.examples.stories import STORIES

OWN_REGISTRY = """\
api_version: agent_routing/v1
version: own
supervisor: desk
agents:
  - {id: desk, name: Desk}
  - {id: billing, name: Billing, description: Invoices and payments, handoff_to: []}
  - {id: support, name: Support, description: Broken things}
"""


@pytest.fixture
def run(monkeypatch, capsys):
    """Return what runs a command line with lines on its input: (exit code, stdout, stderr)."""

    def run_it(*argv, lines=()):
        content = "".join(f"{line}\n" for line in lines).encode()
        monkeypatch.setattr(sys, "argv", ["agent-routing", *argv])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code, *capsys.readouterr())

    return run_it


def messages(out):
    """Return the messages that --json printed."""
    return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def own_registry(tmp_path):
    """Return a registry file whose agents have no scripts."""
    file = tmp_path / "agents.yaml"
    file.write_text(OWN_REGISTRY, encoding="utf-8")
    return str(file)


@pytest.mark.parametrize("story", list(STORIES))
def test_story_goes_as_it_says(run, story):
    """Agents, reasons, locks and refusals, message by message, over a real server."""
    code, out, err = run("chat", "--story", story)
    assert code == 0, out
    assert "went another way" not in out
    assert not err
    assert out.count("\nyou > ") == len(STORIES[story].turns)
    assert max(len(line) for line in out.splitlines()) <= 80
    assert not [line for line in out.splitlines() if line != line.rstrip()]


def test_story_that_goes_another_way_fails(run, tmp_path):
    """Without stickiness the story fails message by message; exit code 1."""
    registry = EXAMPLES["budget"].registry_path.read_text(encoding="utf-8")
    unsticky = tmp_path / "unsticky.yaml"
    unsticky.write_text(f"stickiness: disabled\n{registry}", encoding="utf-8")
    with server_in_thread(unsticky, "memory:") as target:
        code, out, _ = run("chat", "--target", target, "--story", "budget")
    assert code == 1
    assert "went another way: first reason 'stickiness_disabled', expected" in out


def test_pipe_shows_who_answers_and_why(run):
    """In plain text: agents, reasons, handoffs, waits, commands."""
    code, out, _ = run(
        "chat",
        "--example",
        "budget",
        "--locale",
        "en",
        lines=["Create a jar for my holidays", "", "200", "/status", "/supervisor"],
    )
    assert code == 0
    plain = " ".join(out.split())
    assert "Budget assistant no active agent · hands over" in plain
    assert "↪ Budget assistant → Jars handoff" in plain
    assert "Jars supervisor handoff · waits for your answer" in plain
    assert "Jars follow up lock" in plain
    assert "/ You are talking to Jars." in plain
    assert "Budget assistant is with you again" in plain
    assert "\x1b[" not in out


def test_json_has_an_object_for_each_message(run):
    """For programs, and for tests of custom registries."""
    code, out, err = run(
        "chat",
        "--example",
        "tax",
        "--locale",
        "es",
        "--json",
        lines=["¿Cómo declaro el IVA?", "/status", "Necesito una nómina"],
    )
    first, status, third = messages(out)
    assert code == 0
    assert [step["kind"] for step in first["steps"]] == ["answer", "handoff", "answer"]
    assert first["steps"][0]["outcome"] == "handoff"
    assert first["steps"][2] | {"text": ""} == {
        "kind": "answer",
        "agent_id": "vat",
        "reason": "supervisor_handoff",
        "text": "",
        "outcome": "follow_up",
        "waits": True,
    }
    assert (first["active_agent_id"], first["locked"]) == ("vat", True)
    assert status["reply"]["command"] == "/status"
    assert status["steps"] == []
    assert third["steps"][0]["reason"] == "follow_up_lock"
    assert third["revision"] > status["revision"] > 0
    assert "left session chat-" in err


def test_refused_handoff_shows_every_rule(run):
    """With the service's reason, and the agent's reaction."""
    code, out, _ = run("chat", "--locale", "en", lines=["I need to run payroll"])
    assert code == 0
    assert "✗ Coordinator may not hand over to payroll" in out
    assert "entitled: " in out
    assert "plan:premium" in out


def test_entitlements_and_channel_are_the_users(run):
    """--entitlement and --channel set the user's entitlements and channel."""
    code, out, _ = run(
        "chat",
        *("--locale", "en", "--entitlement", "plan:premium", "--json"),
        lines=["I need to run payroll"],
    )
    assert code == 0
    assert messages(out)[0]["active_agent_id"] == "payroll"
    code, out, _ = run(
        "chat",
        *("--locale", "en", "--channel", "whatsapp", "--json"),
        lines=["Please file my VAT return"],
    )
    refused = messages(out)[0]["steps"][0]
    assert (refused["kind"], refused["rules"]) == ("refused", ["channel"])


def test_session_is_gone_on_with(run, tmp_path):
    """A stored session keeps its agent for another program."""
    where = (
        "--store",
        f"sqlite:///{tmp_path}/s.db",
        "--session",
        "mine",
        "--locale",
        "en",
        "--json",
    )
    _, out, _ = run("chat", *where, lines=["How do I declare VAT?"])
    assert messages(out)[0]["active_agent_id"] == "vat"
    code, out, _ = run("chat", *where, lines=["every quarter"])
    assert code == 0
    assert messages(out)[0]["steps"][0]["agent_id"] == "vat"


# Agents without scripts


def test_registry_of_ones_own_is_tried_with_stand_ins(run, own_registry):
    """Every outcome can be requested, so that a registry's rules can be tried."""
    code, out, _ = run(
        "chat",
        *("--agents", own_registry, "--json"),
        lines=["invoices please", "!ask", "!to support", "!done", "hello"],
    )
    invoice, ask, to, done, hello = messages(out)
    assert code == 0
    assert (invoice["active_agent_id"], invoice["steps"][-1]["agent_id"]) == ("billing", "billing")
    assert ask["locked"] is True
    assert to["steps"][0] | {"agent_id": ""} == {
        "kind": "refused",
        "agent_id": "",
        "to": "support",
        "rules": ["handoff_to"],
    }
    assert "may not hand this over" in to["steps"][1]["text"]
    assert done["steps"][0]["outcome"] == "complete"
    assert done["active_agent_id"] == ""
    assert hello["steps"][0]["agent_id"] == "desk"


def agent(agent_id, kind=AGENT_KIND_SPECIALIST, description="", *, enabled=True):
    """Make an agent as a server lists it."""
    return Agent(
        agent_id=agent_id,
        display_name=agent_id.title(),
        kind=kind,
        description=description,
        enabled=enabled,
    )


STAND_INS = StandInAgents(
    [
        agent("desk", AGENT_KIND_SUPERVISOR, "Knows about broken invoices"),
        agent("billing", description="Invoices and payments"),
        agent("support", description="Broken things"),
        agent("closed", description="Broken invoices and payments", enabled=False),
    ],
    "desk",
)


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("where are my payments?", HandOff("billing", "its description has the same words")),
        ("it is BROKEN", HandOff("support", "its description has the same words")),
        ("and for all the", Proceed()),
        ("!ask me", FollowUp()),
        ("!done with it", Complete("with it")),
        ("!fail", Fail("")),
        ("!to support now", HandOff("support", "the user said so")),
        ("!to", Proceed()),
        ("!other", Proceed()),
    ],
)
def test_stand_in_does_as_its_message_says(text, outcome):
    """Orders come first; otherwise the supervisor matches descriptions."""
    assert STAND_INS.answer(AgentTurn("desk", text)).outcome == outcome


def test_stand_in_of_a_specialist_keeps_what_it_gets():
    """Only a supervisor hands over by matching."""
    reply = STAND_INS.answer(AgentTurn("billing", "it is broken"))
    assert reply.outcome == Proceed()
    assert reply.text == "[Billing] I got: it is broken"
    # An agent that only this replica does not know is named by its id.
    assert STAND_INS.answer(AgentTurn("new", "hi")).text == "[new] I got: hi"


def test_example_with_a_person_says_how_to_be_one(run):
    """Its agents have no scripts; the person needs the address of the chat's own server."""
    code, out, err = run("chat", "--example", "helpdesk", lines=["/agent desk my parcel is lost"])
    assert (code, err) == (0, "")
    assert "3 agents, registry 1; stand-ins answer" in out
    assert "Help desk has people. To be one, type in another terminal:\n" in out
    assert re.search(
        r"^agent-routing desk open desk --as NAME --target 127\.0\.0\.1:\d+$", out, re.MULTILINE
    )
    assert "Help desk has people, who answer in time" in out
    assert "in another terminal" not in run("chat", "--example", "tax", lines=["hi"])[1]


# A running server


def test_scripts_are_found_by_the_servers_agents(run):
    """The user does not have to say which example a server serves."""
    with server_in_thread(EXAMPLES["tutor"].registry_path, "memory:") as target:
        code, out, _ = run("chat", "--target", target, lines=["Hi there!"])
        assert code == 0
        assert "The tutor example, 5 agents" in out
        code, _, err = run("chat", "--target", target, "--example", "tax")
        assert code == 1
        assert 'other agents than the example "tax"' in err


def test_absent_server_is_told_with_how_to_start_one(run):
    """The same message as for every other command."""
    code, _, err = run("chat", "--target", "127.0.0.1:1", lines=["hello"])
    assert code == 1
    assert "start one with: agent-routing serve" in err


def test_chat_goes_on_degraded_while_the_service_is_away(monkeypatch, capsys, tmp_path):
    """The last known agent answers, and every answer is marked as not stored."""
    store = f"sqlite:///{tmp_path}/s.db"
    server = server_in_thread(EXAMPLES["tax"].registry_path, store)
    target = server.__enter__()

    class Lines:
        """An input at whose second line the server is stopped."""

        @staticmethod
        def isatty():
            return False

        def __iter__(self):
            yield "How do I declare VAT?"
            server.__exit__(None, None, None)
            yield "every quarter"

    monkeypatch.setattr(sys, "stdin", Lines())
    with pytest.raises(typer.Exit) as ended:
        run_chat(ChatOptions(target=target, locale="en", as_json=True))
    assert ended.value.exit_code == 1
    first, second = messages(capsys.readouterr().out)
    assert first["degraded"] is False
    assert second["degraded"] is True
    assert second["steps"][0]["agent_id"] == "vat"


def test_degraded_chat_has_no_line_of_a_log_between(tmp_path):
    """Log lines about an outage would interrupt the conversation."""
    server = server_in_thread(EXAMPLES["tax"].registry_path, f"sqlite:///{tmp_path}/s.db")
    target = server.__enter__()
    command = [str(Path(sys.executable).with_name("agent-routing")), "chat", "--locale", "en"]
    chat = subprocess.Popen(
        [*command, "--target", target],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    try:
        chat.stdin.write("How do I declare VAT?\n")
        chat.stdin.flush()
        shown = ""
        while "waits for your answer" not in shown:
            line = chat.stdout.readline()
            assert line, "the chat ended early"
            shown += line
        server.__exit__(None, None, None)
        out, err = chat.communicate("every quarter\n", timeout=50)
    finally:
        chat.kill()
        chat.wait()
    assert chat.returncode == 1
    assert "! the service cannot be reached; this is not stored" in out
    assert "VAT specialist" in out
    assert err == ""


def test_person_in_the_chat_gives_the_approval(run):
    """!approve and !reject are decisions about a pending approval, not messages."""
    code, out, err = run(
        "chat",
        "--example",
        "platform",
        "--entitlement",
        "role:operations",
        lines=["Deploy version 2.4", "!reject not today", "tomorrow", "!approve fine"],
    )
    assert (code, err) == (0, "")
    assert "? Deploy version 2.4 to production (now)?" in out
    assert "Version 2.4 stays where it is: “not today”." in out
    assert "Version 2.4 is in production." in out


def test_decision_about_nothing_is_told(run):
    """Before the first message, and without a pending approval; a program gets a reason."""
    code, out, _ = run(
        "chat", "--example", "platform", "--json", lines=["!approve", "hello", "!reject no"]
    )
    assert code == 1
    first, hello, last = messages(out)
    assert first["error"]["reason"] == last["error"]["reason"] == "TASK_NOT_PAUSED"
    assert "error" not in hello


def test_registry_without_scripts_can_be_paused(run, own_registry):
    """!pause requests an approval, for any agent."""
    code, out, _ = run(
        "chat",
        "--agents",
        own_registry,
        "--json",
        lines=["!to billing", "!pause Refund 40 euros?", "!approve"],
    )
    assert code == 0
    _, paused, approved = messages(out)
    assert paused["steps"][-1] == {
        "kind": "approval_asked",
        "agent_id": "billing",
        "prompt": "Refund 40 euros?",
    }
    assert approved["steps"][0]["reason"] == "task_resumed"
    assert approved["steps"][0]["text"] == "[Billing] A person said: approve."


def test_marks_are_explained_where_they_begin(run):
    """Each mark is explained where it first appears."""
    code, out, _ = run("chat", "--example", "tax", "--locale", "en", lines=["/help"])
    assert code == 0
    legend = " ".join(out.split("\n\n")[0].split())
    for mark in ("↪ a handoff", "✗ refused", "/ the service", "? needs an approval", "! trouble"):
        assert mark in legend


# Options


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (("--example", "taxes"), 'no example "taxes"; there are tax, tutor, budget'),
        (("--story", "novel"), 'no story "novel"; there are tax,'),
        (("--story", "tutor", "--example", "tax"), 'story "tutor" is of the example "tutor"'),
        (("--agents", "a.yaml", "--example", "tax"), "leave out the example"),
        (("--target", "127.0.0.1:1", "--example", "helpdesk"), "leave out the example"),
        (("--target", "127.0.0.1:1", "--agents", "a.yaml"), "leave out --agents, --store"),
    ],
)
def test_contradictions_are_wrong_commands(run, argv, complaint):
    """Exit 2, before anything is started."""
    code, _, err = run("chat", *argv)
    assert code == 2
    assert complaint in " ".join(err.split())


def test_bad_registry_is_told_as_check_tells_it(run, tmp_path):
    """With line numbers; no server is left running."""
    file = tmp_path / "bad.yaml"
    file.write_text(OWN_REGISTRY.replace("supervisor: desk", "supervisor: dusk"), encoding="utf-8")
    code, _, err = run("chat", "--agents", str(file))
    assert code == 1
    assert f"{file}:3:" in err
    assert "dusk" in err


# A terminal


@pytest.mark.parametrize(
    ("variables", "locale"),
    [
        ({"LANG": "es_ES.UTF-8"}, "es-ES"),
        ({"LANG": "en_GB.UTF-8", "LC_ALL": "es_MX"}, "es-MX"),
        ({"LANG": "C.UTF-8"}, "en"),
        ({"LANG": "ca_ES@valencia"}, "ca-ES"),
        ({}, "en"),
    ],
)
def test_terminal_knows_the_users_language(monkeypatch, variables, locale):
    """A terminal's locale is the user's; in a pipe the registry's default is used."""
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    class Terminal:
        @staticmethod
        def isatty():
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    assert chat_program._terminal_locale() == locale


class TerminalChat:
    """The chat in a terminal of 80 columns."""

    def __init__(self, folder):
        self.screen, child = pty.openpty()
        # The chat gets its own terminal, so that Ctrl-C reaches it. SIGINT is reset, since a shell
        # that runs the tests in the background ignores it.
        code = (
            "import fcntl, signal, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
            "signal.signal(signal.SIGINT, signal.default_int_handler); "
            "from routing_service.cli import main; main()"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "chat", "--example", "budget", "--locale", "en"],
            stdin=child,
            stdout=child,
            stderr=child,
            env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "80", "TMPDIR": folder},
            start_new_session=True,
        )
        os.close(child)
        self.seen = ""
        self._bytes = b""

    def wait_for(self, pattern, seconds=30, press=""):
        """Read until the screen has shown a pattern.

        press: a key to press once a second until then.
        """
        deadline = time.monotonic() + seconds
        while not re.search(pattern, self.seen):
            assert time.monotonic() < deadline, self.seen
            try:
                ready, _, _ = select.select([self.screen], [], [], 1)
                if ready:
                    self._bytes += os.read(self.screen, 4096)
                    # Matched against the whole: a read may end in the middle of a character.
                    self.seen = self._bytes.decode("utf-8", "replace")
                elif press:
                    self.type(press)
            except OSError:  # The other side is closed.
                assert re.search(pattern, self.seen), self.seen
                return

    def wait_for_keys(self):
        """Let the prompt start waiting: an earlier signal is only noticed at the next key."""
        time.sleep(0.5)

    def type(self, keys):
        """Press keys."""
        os.write(self.screen, keys.encode())


@pytest.fixture
def terminal(tmp_path):
    """Yield a chat in a terminal, and end it in any case."""
    chat = TerminalChat(str(tmp_path))
    yield chat
    if chat.process.poll() is None:
        os.killpg(chat.process.pid, signal.SIGKILL)
    chat.process.wait()
    os.close(chat.screen)


@pytest.mark.parametrize("leave", ["\x04", "\x03"], ids=["Ctrl-D", "Ctrl-C"])
def test_terminal_is_left_cleanly(terminal, leave):
    """Exit 0, the session named, and no traceback."""
    terminal.wait_for(r"you > ")
    terminal.type("Create a jar for my holidays\r")
    terminal.wait_for(r"you → Jars \(waits\) > ")
    assert "\x1b[" in terminal.seen
    terminal.wait_for_keys()
    terminal.type(leave)
    # On a slow machine the prompt may not wait yet, and only the next key is noticed.
    terminal.wait_for(r"left session chat-[0-9a-f-]+", press=leave)
    assert terminal.process.wait(20) == 0
    assert "Traceback" not in terminal.seen


def test_closed_terminal_leaves_nothing_behind(terminal, tmp_path):
    """Closing the window ends the chat too."""
    terminal.wait_for(r"you > ")
    terminal.wait_for_keys()
    terminal.process.send_signal(signal.SIGHUP)
    terminal.wait_for(r"left session chat-[0-9a-f-]+")
    assert terminal.process.wait(20) == 0
    assert not list(tmp_path.glob("agent-routing-*"))


def test_stand_in_obeys_an_order_once():
    """The target sees the same text, and must not hand over to itself."""
    agents = [Agent(agent_id=name, display_name=name) for name in ("front", "billing")]
    stand_ins = StandInAgents(agents, "front")
    text = "!to billing"
    first = stand_ins.answer(AgentTurn("front", text, "en", "no_active_agent"))
    assert first.outcome == HandOff("billing", reason="the user said so")
    then = stand_ins.answer(
        AgentTurn("billing", text, "en", "supervisor_handoff", handoff_reason="the user said so")
    )
    assert then.outcome == Proceed()
