"""What all clients read in texts: the vectors are what the service itself reads."""

import json

import pytest

from agent_routing import MarkerFilter, away_commands
from routing_service.core.markers import cut_markers
from routing_service.core.slash_commands import parse
from tests.clients.vector_runner import VECTORS

MARKERS = json.loads((VECTORS / "text" / "markers.json").read_text("utf-8"))["cases"]
COMMANDS = json.loads((VECTORS / "text" / "commands.json").read_text("utf-8"))["cases"]


@pytest.mark.parametrize("case", COMMANDS, ids=lambda case: ascii(case["text"]))
def test_clients_read_commands_as_the_service_does(case):
    """While the service is away, what leads home is what would lead home otherwise."""
    served, own = parse(case["text"]), away_commands.parse(case["text"])
    expected = None if case["name"] is None else (case["name"], case["rest"])
    assert (served and (served.name, served.argument or served.rest)) == expected
    assert (own and tuple(own)) == expected


def test_the_vectors_have_commands_and_texts_of_every_language():
    """A list without one side would prove nothing."""
    assert {"supervisor", "reset", "agent", "status", "help", None} <= {
        case["name"] for case in COMMANDS
    }
    assert len(COMMANDS) >= 60


def shown_by(text, size):
    """Return what a user sees who reads along, and every step of it."""
    shown = MarkerFilter()
    steps = [shown.feed(text[at : at + size]) for at in range(0, len(text), size)]
    return "".join([*steps, shown.end()])


@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
def test_a_marker_is_never_shown_however_the_text_is_cut(size):
    """The whole is the same for all tokens, and what the service shows, but for white space."""
    wrong = []
    for case in MARKERS:
        shown = shown_by(case["text"], size)
        served, _name = cut_markers(case["text"], lambda name: " " not in name.strip())
        if shown != case["shown"] or shown.split() != served.split():
            wrong.append((case, shown, served))
    assert wrong == []
    assert len(MARKERS) >= 200


def test_nothing_of_a_marker_is_shown_where_its_dress_is_left():
    """Bullets and fences around a marker may be shown; the marker never is."""
    for text in ("- [HANDOFF_TO:math]", "```\n[HANDOFF_TO:math]\n```", "1. [HANDOFF_TO: Math"):
        shown = shown_by(text, 1)
        assert "[" not in shown
        assert "HANDOFF" not in shown


def test_ordinary_text_waits_only_while_it_may_become_a_marker():
    """A bracket is shown as soon as the next letter says that it is none."""
    shown = MarkerFilter()
    assert shown.feed("Hello, see ") == "Hello, see"
    assert shown.feed("[") == ""
    assert shown.feed("1") == " [1"
    assert shown.feed("] and [HAND") == "] and"
    assert shown.feed("Y] ") == " [HANDY]"
    assert shown.end() == " "
