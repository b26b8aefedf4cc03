"""The commands that remove data, on a real server: nothing is removed without confirmation."""

import json
import sys
from datetime import UTC, datetime

import pytest

from routing_service.cli import main
from routing_service.cli.embedded_server import server_in_thread
from routing_service.examples import EXAMPLES


@pytest.fixture(scope="module")
def target():
    """Serve the tax example."""
    with server_in_thread(EXAMPLES["tax"].registry_path, "memory:") as address:
        yield address


@pytest.fixture
def run(monkeypatch, capsys):
    """Return what runs a command line: (exit code, stdout, stderr)."""

    def run_it(*argv):
        monkeypatch.setattr(sys, "argv", ["agent-routing", *argv])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        # The server runs in this process and logs to the same stream.
        lines = [line for line in out.splitlines(keepends=True) if "[info" not in line]
        return ended.value.code, "".join(lines), err

    return run_it


@pytest.fixture
def talk(run, target):
    """Return functions that make an ended session, and that say whether a session exists."""

    def make(session, user, tenant="default"):
        where = ("--target", target, "--tenant", tenant)
        code, out, err = run("route", session, "hello", "--user", user, "--json", *where)
        assert (code, err) == (0, "")
        request = json.loads(out)["dispatch"]["request_id"]
        code, _, err = run(
            "complete", session, request, "coordinator", "--outcome", "proceed", *where
        )
        assert (code, err) == (0, ""), err

    def find(session, tenant="default"):
        return run("status", session, "--target", target, "--tenant", tenant)[0] == 0

    make.find = find
    return make


def now():
    """Return the current time in a typed form."""
    return datetime.now(UTC).replace(tzinfo=None).isoformat()


def test_user_is_erased_after_a_look(run, talk, target):
    """First the trial, then the erasure, then nothing is left to erase."""
    for number in range(2):
        talk(f"cli-erase-{number}", "maria")
    talk("cli-erase-other", "ben")
    where = ("--target", target)
    code, out, err = run("erase-user", "maria", "--dry-run", *where)
    assert (code, err) == (0, "")
    assert out.startswith("would erase sessions: 2, turns: 2, audit records: ")
    assert talk.find("cli-erase-0")
    code, out, err = run("erase-user", "maria", "--yes", "--reason", "request 17", *where)
    assert (code, err) == (0, "")
    assert out.startswith("erased sessions: 2, turns: 2, audit records: ")
    code, _, err = run("status", "cli-erase-0", *where)
    assert (code, "SESSION_ERASED" in err) == (1, True)
    assert talk.find("cli-erase-other")
    code, out, _ = run("erase-user", "maria", "--yes", "--json", *where)
    assert (code, json.loads(out)["sessions_erased"]) == (0, "0")


def test_old_sessions_are_purged_after_a_look(run, talk, target):
    """In steps until none are left, for one tenant or all."""
    for number in range(3):
        talk(f"cli-purge-{number}", "ana", "old")
    where = ("--target", target, "--tenant", "old")
    code, out, _ = run("purge", "--older-than", "1h", "--yes", *where)
    assert (code, out) == (0, "removed sessions: 0\n")
    code, out, _ = run("purge", "--before", now(), "--dry-run", *where)
    assert (code, out) == (0, "would remove sessions: 3\n")
    code, out, _ = run("purge", "--before", now(), "--max", "2", "--yes", *where)
    assert (code, out) == (0, "removed sessions: 2, and there are more\n")
    assert [talk.find(f"cli-purge-{n}", "old") for n in range(3)] == [False, False, True]
    code, out, _ = run("purge", "--before", now(), "--yes", "--json", *where)
    assert (code, json.loads(out)) == (0, {"sessions_purged": "1", "more": False})
    talk("cli-purge-all", "ana", "another")
    code, out, _ = run(
        "purge", "--before", now(), "--all-tenants", "--dry-run", "--json", "--target", target
    )
    assert int(json.loads(out)["sessions_purged"]) >= 1
    assert talk.find("cli-purge-all", "another")


@pytest.mark.parametrize(
    "argv", [("erase-user", "zoe"), ("purge", "--older-than", "36h")], ids=lambda argv: argv[0]
)
def test_nothing_is_removed_unasked(run, target, argv, monkeypatch):
    """In a script without --yes, and after the answer no."""
    code, out, err = run(*argv, "--target", target)
    assert (code, out) == (2, "")
    assert "--yes" in err
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda _question, **_: False)
    code, out, err = run(*argv, "--target", target)
    assert (code, out, err) == (1, "", "error: nothing was removed\n")
    monkeypatch.setattr("typer.confirm", lambda _question, **_: True)
    code, out, err = run(*argv, "--target", target)
    assert (code, err) == (0, "")
    assert out.startswith(("erased sessions: 0", "removed sessions: 0"))


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("--older-than", "1h", "--before", "2025-01-01"),
        ("--older-than", "soon"),
        ("--older-than", "999999w"),
        ("--before", "yesterday"),
        ("--older-than", "1h", "--tenant", "a", "--all-tenants"),
    ],
)
def test_times_that_are_none_are_refused(run, target, argv):
    """Before any server is asked."""
    code, out, _ = run("purge", *argv, "--yes", "--target", target)
    assert (code, out) == (2, "")


def test_server_that_is_away_is_told(run):
    """The same message as for every command."""
    code, _, err = run("erase-user", "ana", "--yes", "--target", "127.0.0.1:1", "--timeout", "1")
    assert code == 1
    assert "no server answers at 127.0.0.1:1" in err


def test_file_is_written_anew(run, tmp_path):
    """Not while a server uses it; other engines name their own tool."""
    store = f"sqlite:///{tmp_path / 'store.db'}"
    with server_in_thread(EXAMPLES["tax"].registry_path, store):
        code, out, err = run("compact", "--store", store)
        assert (code, out) == (1, "")
        assert "in use" in err
    code, out, _ = run("compact", "--store", store, "--json")
    told = json.loads(out)
    assert (code, told["before_bytes"] >= told["after_bytes"] > 0) == (0, True)
    code, out, _ = run("compact", "--store", store)
    assert out.startswith(f"{store}: ")
    code, _, err = run("compact", "--store", "postgres://db/chat")
    assert (code, "VACUUM FULL" in err) == (2, True)
