"""``agent-routing log-id``: from an id to what a log with hashed ids calls it."""

import pytest

from routing_service.cli.app import app
from routing_service.cli.failure import CommandFailed
from routing_service.telemetry.log_privacy import IdHashes, read_key


def test_ids_are_named_as_the_servers_with_this_key_name_them(capsys, tmp_path):
    """A line for each, in their order, and nothing else, so that grep can take it."""
    key = tmp_path / "ids.key"
    key.write_text("0123456789abcdef")
    app(
        ["log-id", "chat-42", "ana", "--key-file", str(key)],
        prog_name="agent-routing",
        standalone_mode=False,
    )
    hashes = IdHashes(read_key(str(key)))
    assert capsys.readouterr().out == f"{hashes.hide('chat-42')}\n{hashes.hide('ana')}\n"


def test_key_that_is_not_there_is_refused(tmp_path):
    """Another key would print names that no log has."""
    with pytest.raises(CommandFailed, match="cannot be read") as caught:
        app(
            ["log-id", "chat-42", "--key-file", str(tmp_path / "none")],
            prog_name="agent-routing",
            standalone_mode=False,
        )
    assert caught.value.exit_code == 2
