"""Texts of people and agents are printed with visible symbols, and never control the terminal."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from pathlib import Path

import structlog

from agent_routing import Admin, outcomes
from agent_routing.v1 import session_event_pb2, task_pb2
from routing_service.cli import main
from routing_service.cli.admin_answers import print_change, print_tasks
from routing_service.cli.chat_screen import TextScreen
from routing_service.cli.embedded_server import server_in_thread
from routing_service.cli.failure import CommandFailed
from routing_service.cli.screen import console
from routing_service.examples import EXAMPLES
from routing_service.telemetry.call_log import configure_logging
from routing_service.telemetry.terminal_text import seen, seen_json

# Sets the clipboard, clears the screen by C1, reverses text, hides a tag, rings, overwrites.
HOSTILE = "\x1b]52;c;ZXZpbA==\x1b\\\x9b2J\u202egpj.exe\U000e0041\x07\r\x7f end"
DRIVES = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\U000e0041]"
)


def test_signs_stand_for_what_is_not_seen():
    """Each character has its own symbol; emoji joiners and lines stay; twice changes nothing."""
    shown = seen(HOSTILE)
    assert shown == "␛]52;c;ZXZpbA==␛\\\\x9b2J\\u202egpj.exe\\U000e0041␇␍\\x7f end"
    assert seen(shown) == shown
    plain = "año\tनम\u200cस्ते\n👩\u200d💻 🇪🇸"
    assert seen(plain) == plain


def test_json_says_the_same_with_escapes():
    """Programs get the exact text; a terminal that shows the JSON is not controlled by it."""
    text = json.dumps({"text": HOSTILE}, indent=2, ensure_ascii=False)
    assert DRIVES.search(seen_json(text)) is None
    assert json.loads(seen_json(text)) == {"text": HOSTILE}


def test_commands_show_what_was_said_as_signs(monkeypatch, capsys):
    """History, status, events, watch, top, tasks and sessions of a session full of such texts."""

    def run_it(*argv: str) -> str:
        monkeypatch.setattr(sys, "argv", ["agent-routing", *argv, "--target", target])
        with contextlib.suppress(SystemExit):
            main()
        out, err = capsys.readouterr()
        assert DRIVES.search(out + err) is None, argv
        return out

    with server_in_thread(Path(EXAMPLES["tax"].registry_path), "memory:") as target:
        with Admin(target, fallback=None, timeout=30) as client:
            turn = client.route(HOSTILE, session_id="chat-1", user_id="ana", channel="web")
            client.complete_turn(
                "chat-1",
                turn.request_id,
                turn.agent_id,
                outcomes.handoff("vat", message=HOSTILE),
                text=HOSTILE,
            )
        history = run_it("history", "chat-1")
        assert history.count("␛]52;c;ZXZpbA==␛") == 3, history
        assert json.loads(run_it("history", "chat-1", "--json"))["turns"]
        for command in (
            ("status", "chat-1"),
            ("events", "chat-1"),
            ("events", "chat-1", "--json"),
            ("watch", "chat-1", "--from-beginning", "--max", "2"),
            ("watch", "chat-1", "--from-beginning", "--max", "2", "--json"),
            ("tasks", "chat-1"),
            ("sessions",),
            ("top", "--seconds", "1"),
        ):
            assert run_it(*command).endswith("\n")


def test_names_ids_and_reasons_are_shown_as_signs(capsys):
    """Another implementation or an older server may not refuse such names."""
    event = session_event_pb2.SessionEvent(session_id=HOSTILE, revision=1)
    event.message_routed.agent.agent_id = HOSTILE
    event.message_routed.agent.display_name = HOSTILE
    print_change(session_event_pb2.Change(events=[event]), HOSTILE, with_session=True)
    print_tasks([task_pb2.Task(task_id=HOSTILE, metadata={HOSTILE: HOSTILE})])
    screen = TextScreen()
    screen.said(HOSTILE, is_echo=False)
    screen.noted(HOSTILE)
    console().print(HOSTILE, markup=False)  # Text that was not escaped before is escaped here.
    CommandFailed(HOSTILE).show()
    CommandFailed("", details={"message": HOSTILE}).show()
    out, err = capsys.readouterr()
    assert DRIVES.search(out + err) is None
    assert out.count("␛]52") == 9
    assert err.startswith("error: ␛]52")


def test_the_log_for_people_shows_signs():
    """Ids and errors come from callers, and operators read the log in a terminal."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    try:
        configured = configure_logging("info", "console", out)
        structlog.get_logger("x").info("said\nforged", session_id=HOSTILE, error="\x1b[2J")
        configured.writer.flush()
    finally:
        structlog.reset_defaults()
    line = out.buffer.getvalue().decode()
    assert DRIVES.search(line) is None, line
    assert "said␊forged" in line
    assert "␛[2J" in line
    assert line.count("\n") == 1
