"""``--profile NAME``: a server by its name, anywhere in the command line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from routing_service.cli import main
from routing_service.cli.embedded_server import server_in_thread
from routing_service.cli.failure import CommandFailed
from routing_service.cli.profiles import apply_profile, profiles_path, taken_from
from routing_service.examples import EXAMPLES

KNOWN = frozenset({"AGENT_ROUTING_TARGET", "AGENT_ROUTING_TENANT", "AGENT_ROUTING_INSECURE"})


@pytest.mark.parametrize(
    ("argv", "left", "name"),
    [
        (["status", "chat"], ["status", "chat"], ""),
        (["--profile", "staging", "status", "chat"], ["status", "chat"], "staging"),
        (["status", "--profile", "staging", "chat"], ["status", "chat"], "staging"),
        (["status", "chat", "--profile=staging"], ["status", "chat"], "staging"),
        (["route", "chat", "--", "--profile", "x"], ["route", "chat", "--", "--profile", "x"], ""),
        (["status", "--profiles"], ["status", "--profiles"], ""),
    ],
)
def test_profile_is_taken_from_wherever_it_stands(argv, left, name):
    """Users often add it at the end of the line."""
    assert taken_from(argv) == (left, name)


@pytest.mark.parametrize(
    "argv", [["--profile"], ["status", "--profile="], ["--profile", "a", "--profile", "b"]]
)
def test_profile_without_a_name_or_with_two_is_refused(argv):
    """Choosing one of two servers silently would be worse than an error."""
    with pytest.raises(CommandFailed, match="takes one name"):
        taken_from(argv)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[other]\n", r'no profile "staging"; it has: other'),
        ('staging = "x"\n', r"staging is not a table"),
        ('[staging]\ntargets = "x"\n', r'unknown key "targets"; keys are insecure, target, tenant'),
        ("[staging]\ntarget = [1]\n", r"target is not a single value"),
        ("[staging\n", r"is not a TOML file"),
    ],
)
def test_profile_that_is_wrong_says_what_and_where(tmp_path: Path, text, said):
    """Every error names the file, because users tend to forget its path."""
    path = tmp_path / "profiles.toml"
    path.write_text(text)
    with pytest.raises(CommandFailed, match=said) as failed:
        apply_profile("staging", {"AGENT_ROUTING_PROFILES": str(path)}, KNOWN, tmp_path)
    assert str(path) in str(failed.value)
    assert failed.value.exit_code == 2


def test_file_of_profiles_that_is_not_there_says_how_to_make_one(tmp_path: Path):
    """The first use comes before the file exists."""
    with pytest.raises(CommandFailed, match="there is no file of profiles at") as failed:
        apply_profile("staging", {}, KNOWN, tmp_path)
    assert str(tmp_path / ".config/agent-routing/profiles.toml") in str(failed.value)
    assert profiles_path({"XDG_CONFIG_HOME": "/x"}, tmp_path) == Path(
        "/x/agent-routing/profiles.toml"
    )


def test_profile_wins_over_the_environment(tmp_path: Path):
    """The profile was given explicitly; the environment may be old."""
    path = tmp_path / "profiles.toml"
    path.write_text('[staging]\ntarget = "staging:1"\ninsecure = true\n')
    environment = {"AGENT_ROUTING_PROFILES": str(path), "AGENT_ROUTING_TARGET": "morning:1"}
    apply_profile("staging", environment, KNOWN, tmp_path)
    assert environment["AGENT_ROUTING_TARGET"] == "staging:1"
    assert environment["AGENT_ROUTING_INSECURE"] == "true"


@pytest.fixture
def run(monkeypatch, capsys, tmp_path: Path):
    """Return what runs a command line with one profile: (exit code, stdout, stderr)."""

    def run_it(profile: str, *argv: str):
        path = tmp_path / "profiles.toml"
        path.write_text(profile)
        monkeypatch.setenv("AGENT_ROUTING_PROFILES", str(path))
        # The profile's settings are removed after the test.
        for name in ("TARGET", "TENANT"):
            monkeypatch.setenv(f"AGENT_ROUTING_{name}", "")
        monkeypatch.setattr(sys, "argv", ["agent-routing", *argv])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code, *capsys.readouterr())

    return run_it


def test_command_goes_to_the_profiles_server_and_tenant(run):
    """The whole profile is used; command line options win over it."""
    with server_in_thread(EXAMPLES["tax"].registry_path, "memory:") as target:
        profile = f'[staging]\ntarget = "{target}"\ntenant = "acme"\n'
        said = run(profile, "route", "chat-1", "hola", "--user", "ana", "--profile", "staging")
        assert said[0] == 0, said
        code, out, _ = run(profile, "--profile", "staging", "sessions")
        assert code == 0
        assert "chat-1" in out
        code, out, _ = run(profile, "sessions", "--tenant", "other", "--profile=staging")
        assert code == 0
        assert "chat-1" not in out
    code, _, err = run(profile, "status", "chat-1", "--profile", "production")
    assert code == 2
    assert 'no profile "production"; it has: staging' in err
