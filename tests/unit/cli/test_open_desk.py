"""agent-routing desk open: a person's work in one terminal, against a real server."""

import os
import pty
import re
import select
import subprocess
import time
from types import SimpleNamespace

import grpc
import pytest

from agent_routing import Admin, Client, outcomes
from agent_routing.errors import Unavailable
from routing_service.cli.desk_open import OpenDesk
from tests.integrations.tax_server import COMMAND, ROOT, TaxServer

REGISTRY = """\
api_version: agent_routing/v1
version: desk-1
supervisor: front
agents:
  - {id: front, name: Front desk, description: The first.}
  - {id: vat, name: VAT, description: VAT.}
  - {id: desk, name: Help desk, kind: human, description: People.}
"""
HELPDESK = ROOT / "routing_service" / "examples" / "helpdesk.yaml"

WAIT_S = 60.0
"""For a machine that runs many tests."""

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


def desk(address, who):
    """Return the command of a person's desk."""
    return ["desk", "open", "desk", "--as", who, "--target", address, "--timeout", "5"]


class Terminal:
    """The command at a terminal of its own: what it has written, and what a person types."""

    def __init__(self, argv):
        ours, theirs = pty.openpty()
        environ = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
        self._process = subprocess.Popen(
            [COMMAND, *argv],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environ,
        )
        os.close(theirs)
        self._terminal = ours
        self._bytes = b""

    @property
    def screen(self):
        """Everything that was written so far, without colours and movements."""
        return _ESCAPES.sub("", self._bytes.decode(errors="replace"))

    def see(self, text, after=0):
        """Wait until a text has been written, and return where it ends."""
        until_s = time.monotonic() + WAIT_S
        while text not in self.screen[after:]:
            assert time.monotonic() < until_s, self.screen
            if select.select([self._terminal], [], [], 0.2)[0]:
                self._bytes += os.read(self._terminal, 65_536)
        return self.screen.index(text, after) + len(text)

    def type(self, text):
        """Type without Enter."""
        os.write(self._terminal, text.encode())

    def enter(self, text=""):
        """Type a line."""
        self.type(f"{text}\r")

    def leave(self):
        """End the command, and return its exit code."""
        self.enter("/quit")
        try:
            return self._process.wait(WAIT_S)
        finally:
            self.close()

    def close(self):
        """End it whatever it does."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._terminal)


@pytest.fixture
def server(tmp_path):
    """A server that can be killed."""
    running = TaxServer(tmp_path, REGISTRY)
    running.start()
    yield running
    running.kill()


@pytest.fixture
def user(server):
    """A client through which users write."""
    with Client(server.address, timeout=30) as client:
        yield client


def write(client, session_id, text):
    """Write as a user; a message for the front desk is handed to the people."""
    routed = client.route(text, session_id=session_id, user_id="ana")
    if routed.agent_id == "front":
        handed = outcomes.handoff("desk", reason="a lost parcel")
        client.complete_turn(session_id, routed.dispatch.request_id, "front", handed)


def texts(client, session_id):
    """Return what the people answered and said."""
    turns = client.list_turns(session_id, user_id="ana")
    return [turn.agent_text for turn in turns if turn.agent_id == "desk" and turn.agent_text]


def until_answered(client, session_id, expected):
    """Wait until the people's texts are these."""
    until_s = time.monotonic() + WAIT_S
    while texts(client, session_id) != expected:
        assert time.monotonic() < until_s, texts(client, session_id)
        time.sleep(0.1)


def typed(shown, kept):
    """Lines of a terminal without one: what is shown, and what is offered for editing."""

    def show(*lines):
        shown.extend(map(str, lines))

    return SimpleNamespace(show=show, keep=kept.append, is_terminal=True)


def test_a_conversation_is_worked_on_while_the_user_writes(server, user):
    """From the list to handing back; what arrives is written above what is being typed."""
    write(user, "parcel-1", "My parcel is lost")
    bea = Terminal(desk(server.address, "bea"))
    bea.see("1. parcel-1 ana")
    bea.enter("/open 1")
    bea.see("handed over: a lost parcel")
    bea.see("claimed by bea")
    bea.type("It comes ")
    write(user, "parcel-1", "it is urgent")
    write(user, "parcel-2", "Where is my refund?")
    bea.see("ana: it is urgent")
    seen = bea.see("waits: 2. parcel-2 ana")
    bea.see("parcel-1> It comes ", seen - 200)
    bea.enter("tomorrow.")
    bea.enter("/say At noon.")
    bea.enter("/note The carrier has it.")
    seen = bea.see("noted")
    until_answered(user, "parcel-1", ["It comes tomorrow.", "At noon."])
    write(user, "parcel-1", "thanks, and my VAT?")
    bea.see("ana: thanks, and my VAT?", seen)
    bea.enter("/give vat One moment.")
    bea.see("parcel-1 is with", seen)
    status = user.status("parcel-1", user_id="ana")
    assert status.open_requests[-1].agent.agent_id == "vat"
    assert not status.claim.claimant
    notes = user.list_notes("parcel-1", agent_id="desk").notes
    assert [(note.author, note.text) for note in notes] == [("bea", "The carrier has it.")]
    assert bea.leave() == 0


def test_text_comes_back_when_a_colleague_has_taken_over(server, user):
    """It is offered as soon as it can be sent: when this person has the conversation again."""
    write(user, "parcel-1", "My parcel is lost")
    bea, tom = (Terminal(desk(server.address, who)) for who in ("bea", "tom"))
    try:
        bea.enter("/open 1")
        bea.see("claimed by bea")
        tom.enter("/open 1")
        tom.see("bea has claimed it; /take takes it over")
        tom.enter("/take bea is ill")
        tom.see("take it over from bea? yes/no> ")
        tom.enter("yes")
        tom.see("claimed by tom, taken over from bea")
        seen = bea.see("tom has taken the conversation over")
        bea.enter("It comes tomorrow.")
        seen = bea.see("tom has claimed it; /take takes it over", seen)
        bea.see("parcel-1> ", seen)
        assert texts(user, "parcel-1") == []
        bea.enter("/take")
        seen = bea.see("take it over from tom? yes/no> ", seen)
        bea.enter("yes")
        seen = bea.see("claimed by bea, taken over from tom", seen)
        tom.see("bea has taken the conversation over")
        bea.see("parcel-1> It comes tomorrow.", seen)
        bea.enter()
        until_answered(user, "parcel-1", ["It comes tomorrow."])
        user.route("/supervisor", session_id="parcel-1", user_id="ana")
        bea.see("parcel-1 has left the desk: it is with Front desk now", seen)
        assert bea.leave() == 0
    finally:
        tom.close()


def test_taking_a_conversation_over_is_asked_first(server, user):
    """Only a yes takes it; any other line is done as it is, and the claim stays."""
    write(user, "parcel-1", "My parcel is lost")
    shown = []
    with Admin(server.address, timeout=30) as client:
        client.claim_turn("parcel-1", "desk", claimant="bea")
        desk = OpenDesk(client, "desk", "tom", typed(shown, []))
        desk._look_at_list(is_first=True)
        assert desk._do_or_keep("/open 1")
        for answer in ("no", "", "/list"):
            assert desk._do_or_keep("/take she went home")
            assert desk._prompt() == "take it over from bea? yes/no> "
            assert desk._do_or_keep(answer)
            assert desk._prompt() == "parcel-1> "
            assert client.status("parcel-1").claim.claimant == "bea"
        assert shown.count("bea keeps it") == 3
        # Another person has it by the time of the yes: that person is named.
        assert desk._do_or_keep("/take she went home")
        client.claim_turn("parcel-1", "desk", claimant="cem", take_over=True)
        desk._look_at_conversation()
        assert desk._do_or_keep("yes")
        assert desk._prompt() == "take it over from cem? yes/no> "
        assert desk._do_or_keep("Y")
        assert client.status("parcel-1").claim.claimant == "tom"
        # Twice does no harm: it is this person's already.
        assert desk._do_or_keep("/take")
        assert desk._prompt() == "parcel-1> "
        claims = client.list_events_page(session_id="parcel-1", kinds=["claimed"]).records
        assert "she went home" in [each.event.claimed.reason for each in claims]


def test_text_waits_for_its_conversation_and_a_slip_does_not_come_back(server, user):
    """The line for /open is empty; the text comes back with the conversation that it is for."""
    for session_id in ("parcel-1", "parcel-2"):
        write(user, session_id, "My parcel is lost")
    kept, shown = [], []
    with Admin(server.address, timeout=30) as client:
        desk = OpenDesk(client, "desk", "bea", typed(shown, kept))
        desk._look_at_list(is_first=True)
        for slip in ("/take", "/lst", "/open 7", "/give", "/done"):
            assert not desk._do_or_keep(slip)
        assert not desk._do_or_keep("It comes tomorrow.")
        assert desk._do_or_keep("/list")
        assert kept == []
        assert desk._do_or_keep("/open 1")
        assert kept == ["It comes tomorrow."]
        assert desk._do_or_keep("It comes tomorrow.")
        # Nothing waits now: what to do instead is said.
        assert not desk._do_or_keep("/done")
        assert shown[-1].endswith(
            "with the next message you can do this, and /release leaves it to others"
        )
        # A text that a colleague's claim refuses is not offered in another conversation.
        client.claim_turn("parcel-1", "desk", claimant="cem", take_over=True)
        desk._look_at_conversation()
        assert not desk._do_or_keep("It is at your door.")
        assert desk._do_or_keep("/open 2")
        assert kept == ["It comes tomorrow."]
        assert desk._do_or_keep("/open parcel-1")
        assert kept == ["It comes tomorrow."]
        assert desk._do_or_keep("/take")
        assert desk._do_or_keep("yes")
        assert kept == ["It comes tomorrow.", "It is at your door."]
        # A mistyped command with a text comes back at once.
        assert not desk._do_or_keep("/nte The carrier has it.")
        assert kept[-1] == "/nte The carrier has it."


def test_a_person_without_a_name_learns_the_option(server, user):
    """The service asks for a claimant; the command has --as for it."""
    write(user, "parcel-1", "My parcel is lost")
    shown = []
    with Admin(server.address, timeout=30) as client:
        desk = OpenDesk(client, "desk", "", typed(shown, []))
        desk._look_at_list(is_first=True)
        for line in ("/open 1", "/take", "/note The carrier has it."):
            assert not desk._do_or_keep(line)
            assert shown[-1] == "this server has no sign-in: say who you are with --as NAME"


def test_text_stays_while_the_server_is_away(server, user):
    """The person is told once that it is away and once that it is back."""
    write(user, "parcel-1", "My parcel is lost")
    bea = Terminal(desk(server.address, "bea"))
    bea.enter("/open 1")
    bea.see("claimed by bea")
    server.kill()
    bea.see("the server does not answer")
    bea.enter("It comes tomorrow.")
    server.start()
    seen = bea.see("the server answers again")
    bea.see("parcel-1> It comes tomorrow.", seen - 400)
    # Enter before the server was back may have been late enough to reach it.
    if not texts(user, "parcel-1"):
        bea.enter()
    until_answered(user, "parcel-1", ["It comes tomorrow."])
    assert bea.screen.count("the server does not answer") == 1
    assert bea.leave() == 0


def test_user_of_the_chat_reads_what_a_person_writes(tmp_path):
    """In the example with a person, while the user types; after it the agents go on."""
    server = TaxServer(tmp_path, HELPDESK.read_text("utf-8"))
    server.start()
    try:
        with Client(server.address, timeout=30) as client:
            chat = ["chat", "--target", server.address, "--session", "s1", "--user", "ana"]
            ana, bea = Terminal(chat), Terminal(desk(server.address, "bea"))
            ana.enter("/agent desk my parcel is lost")
            ana.see("Help desk has people, who answer in time")
            bea.see("1. s1 ana")
            bea.enter("/open 1")
            bea.see("claimed by bea")
            ana.type("it is ur")
            bea.enter("Hello, I am Bea.")
            seen = ana.see("Hello, I am Bea.")
            ana.see("you → Help desk > it is ur", seen)
            ana.enter("gent")
            bea.see("ana: it is urgent")
            bea.enter("/give orders One moment.")
            seen = ana.see("One moment.", seen)
            ana.see("Help desk → Orders", seen)
            ana.see("[Orders] I got: it is urgent", seen)
            asked = client.status("s1", user_id="ana")
            assert (asked.active_agent.agent_id, list(asked.open_requests)) == ("orders", [])
            bea.close()
            ana.close()
    finally:
        server.kill()


def test_text_whose_answer_was_lost_is_not_shown_twice(server, user, monkeypatch):
    """Entered again, it goes out under the id that it had; also if it had been stored."""
    shown = []
    lines = typed(shown, shown)
    write(user, "parcel-1", "My parcel is lost")
    with Admin(server.address, timeout=30) as client:
        desk = OpenDesk(client, "desk", "bea", lines)
        desk._look_at_list(is_first=True)
        for line in ("/open 1", "It comes tomorrow.", "/say At noon."):
            for name in ("complete_turn", "keep_turn", "say"):
                original = getattr(client, name)

                def lose(*args, _original=original, **given):
                    _original(*args, **given)
                    raise Unavailable("the connection broke", code=grpc.StatusCode.UNAVAILABLE)

                monkeypatch.setattr(client, name, lose)
            is_done = desk._do(line)
            monkeypatch.undo()
            assert is_done == (line == "/open 1")
            assert desk._do(line)
    assert texts(user, "parcel-1") == ["It comes tomorrow.", "At noon."]


def test_lines_of_a_pipe_are_done_one_after_the_other(server, user):
    """Without a terminal; an unknown command and a text without a conversation are named."""
    write(user, "parcel-1", "My parcel is lost")
    lines = "hello\n/nonsense\n/open 7\n/open parcel-1\n/done It comes tomorrow.\n"
    done = subprocess.run(
        [COMMAND, "desk", "open", "desk", "--as", "bea", "--target", server.address],
        input=lines,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")  # Some lines could not be done.
    assert "no conversation is open; /open N opens one" in done.stdout
    assert "there is no command /nonsense; /help lists them" in done.stdout
    assert 'session "7"' in done.stdout
    assert texts(user, "parcel-1") == ["It comes tomorrow."]
    assert "parcel-1 is with" in done.stdout


def test_an_agent_that_is_no_person_is_refused_at_once(server):
    """A slip would look like an empty desk."""
    for agent_id, what in (("dsk", "is not registered"), ("vat", "is not of kind human")):
        done = subprocess.run(
            [COMMAND, "desk", "open", agent_id, "--target", server.address],
            input="",
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        said = f'error: agent "{agent_id}" {what}; agents with people: desk\n'
        assert (done.returncode, done.stdout, done.stderr) == (1, "", said)
