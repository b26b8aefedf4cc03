"""Signing in on the command line: tokens from files and the environment, TLS, making tokens."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from routing_service.cli import embedded_server
from routing_service.cli.embedded_server import server_in_thread
from routing_service.examples import EXAMPLES
from routing_service.settings.settings import Settings
from tests.rpc.tls_files import Authority


@pytest.fixture
def run(run, monkeypatch, tmp_path):
    """Return the same, where no credential lies and none is set."""
    monkeypatch.chdir(tmp_path)
    for name in ("TOKEN", "TOKEN_FILE", "TLS_CA", "TARGET"):
        monkeypatch.delenv(f"AGENT_ROUTING_{name}", raising=False)

    return run


@contextmanager
def serving(monkeypatch, **settings):
    """Serve the tax example with settings that differ from a command's own server."""

    def with_more(**given):
        return Settings(**given | settings)

    monkeypatch.setattr(embedded_server, "Settings", with_more)
    with server_in_thread(EXAMPLES["tax"].registry_path, "memory:") as target:
        yield target


def test_first_steps_with_sign_in(run, monkeypatch, tmp_path):
    """The document's commands: the server and the command find the same key."""
    key = tmp_path / "var" / "development.key"
    with serving(monkeypatch, sign_in="development", development_key_file=str(key)) as target:
        monkeypatch.setenv("AGENT_ROUTING_TARGET", target)
        code, out, _ = run("token", "--user", "ana", "--scope", "route")
        assert code == 0
        (tmp_path / "ana.token").write_text(out)
        code, out, err = run("--token-file", "ana.token", "route", "chat-42", "hello")
        assert (code, err) == (0, ""), err
        code, out, err = run("--token-file", "ana.token", "status", "chat-42")
        assert "ana" in out
        code, _, err = run("--token-file", "ana.token", "sessions")
        assert code == 1
        assert 'needs the scope "admin"' in err
        code, _, err = run("sessions")
        assert code == 1
        assert "--token-file" in err
        assert "[UNAUTHENTICATED]" in err
        _, admin, _ = run("token", "--scope", "admin")
        monkeypatch.setenv("AGENT_ROUTING_TOKEN", admin.strip())
        code, out, err = run("sessions")
        assert (code, err) == (0, ""), err
        assert "chat-42" in out
        for command in (("health",), ("events",), ("stats",), ("agents",)):
            code, _, err = run(*command)
            assert (code, err) == (0, ""), (command, err)


def test_token_says_when_it_made_a_key(run, tmp_path):
    """In another folder the server would refuse its tokens, without a visible reason."""
    code, out, err = run("token", "--user", "ana", "--key-file", str(tmp_path / "new.key"))
    assert (code, err) == (0, f"made a new key at {tmp_path / 'new.key'}\n")
    assert out.count(".") == 2
    code, _, err = run("token", "--user", "ana", "--key-file", str(tmp_path / "new.key"))
    assert (code, err) == (0, "")


def test_token_file_that_is_none_is_said_to_be(run, tmp_path):
    """Before a call is made."""
    (tmp_path / "empty").write_text("\n")
    for name, word in (("missing", "No such file"), ("empty", "is empty")):
        code, _, err = run("--token-file", name, "status", "s")
        assert code == 2
        assert word in err
    code, _, err = run("--tls-cert", "x.pem", "status", "s")
    assert code == 2
    assert "give both" in err
    code, _, err = run("--tls-ca", "missing.pem", "status", "s")
    assert code == 2
    assert "missing.pem" in err


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (("--scope", "root"), "no scope"),
        (("--lasts", "soon"), "is not a duration"),
        (("--tenant", "a/b"), "is not a valid tenant"),
        (("--agent", "a b"), "agents has the wrong form"),
        (("--user", "a\nb"), "has the wrong form"),
    ],
)
def test_token_that_no_server_would_take_is_not_made(run, argv, word):
    """The mistake is reported where it was typed."""
    code, out, err = run("token", *argv)
    assert (code, out) == (2, "")
    assert word in err


def test_commands_talk_tls(run, monkeypatch, tmp_path):
    """With a private authority, also under another name."""
    authority = Authority(tmp_path)
    files = authority.sign("server")
    tls = {
        "tls_certificate_file": str(files.certificate),
        "tls_key_file": str(files.key),
    }
    with serving(monkeypatch, **tls) as target:
        code, out, err = run("--tls-ca", str(authority.path), "health", "--target", target)
        assert (code, out) == (0, "SERVING\n"), err
        code, _, err = run("--tls-ca", str(authority.path), "agents", "--target", target)
        assert (code, err) == (0, ""), err
        named = ("--tls-ca", str(authority.path), "--tls-name", "localhost")
        assert run(*named, "agents", "--target", target)[0] == 0
        wrong = ("--tls-ca", str(authority.path), "--tls-name", "example.org")
        assert run(*wrong, "agents", "--target", target, "--timeout", "2")[0] == 1
        assert run("agents", "--target", target, "--timeout", "2")[0] == 1
