"""What the tests of more than one folder use."""

import sys

import pytest

from routing_service.cli import main


@pytest.fixture
def run(monkeypatch, capsys):
    """Return what runs a command line: (exit code, stdout, stderr)."""

    def run_it(*argv):
        monkeypatch.setattr(sys, "argv", ["agent-routing", *argv])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code, *capsys.readouterr())

    return run_it
