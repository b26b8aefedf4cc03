"""``agent-routing log-id``: maps an id to its hash in a log."""

import pytest

from routing_service.cli.app import app
from routing_service.cli.failure import CommandFailed
from routing_service.telemetry.log_privacy import IdHashes, read_key


def test_ids_are_named_as_the_servers_with_this_key_name_them(capsys, tmp_path):
    """One line for each, in order, and nothing else, for grep."""
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
    """Another key would print hashes that are in no log."""
    with pytest.raises(CommandFailed, match="cannot be read") as caught:
        app(
            ["log-id", "chat-42", "--key-file", str(tmp_path / "none")],
            prog_name="agent-routing",
            standalone_mode=False,
        )
    assert caught.value.exit_code == 2
