"""What all clients read in texts: the vectors are what the service itself reads."""

import json

import pytest

from agent_routing import away_commands
from routing_service.core.slash_commands import parse
from tests.clients.vector_runner import VECTORS

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
