"""``agent-routing doctor``: problems of a server are named with their remedies."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
import time
from pathlib import Path

import pytest

from agent_routing import Admin, Client
from routing_service.cli import doctor_checks, main
from routing_service.cli.embedded_server import server_in_thread
from routing_service.examples import EXAMPLES
from routing_service.settings.settings import Settings

TAX = str(EXAMPLES["tax"].registry_path)
NOBODY = "127.0.0.1:1"


@pytest.fixture
def doctor(monkeypatch, capsys):
    """Return a function that runs the command: (exit code, findings by subject, whole output)."""

    def run_it(*argv: str, target: str = NOBODY):
        words = ["agent-routing", "doctor", "--json", "--timeout", "2", "--target", target, *argv]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            main()
        # A driver may log its own message on stderr.
        out, _ = capsys.readouterr()
        found: dict[str, list[dict[str, str]]] = {}
        for finding in json.loads(out)["findings"]:
            found.setdefault(finding["what"], []).append(finding)
        return ended.value.code, found

    return run_it


def levels(found, what):
    """Return the level of each finding on one subject."""
    return [finding["level"] for finding in found.get(what, [])]


def test_doctor_finds_nothing_wrong_with_a_server_that_runs(doctor, tmp_path: Path):
    """The output lists what was checked, so that silence cannot be misread."""
    store = f"sqlite:///{tmp_path}/routing.db"
    with server_in_thread(Path(TAX), store) as target:
        with Client(target, fallback=None, timeout=30) as client:
            client.route("hola", user_id="ana", session_id="chat-1")
        code, found = doctor("--agents", TAX, "--store", store, target=target)
    assert code == 0
    assert {finding["level"] for findings in found.values() for finding in findings} == {"ok"}
    assert "1 session of 1 tenant" in found["store"][0]["said"]
    assert found.keys() >= {"settings", "registry", "disk", "store", "clock", "server", "release"}


@pytest.mark.parametrize(
    ("argv", "what", "said"),
    [
        (["--agents", TAX, "--listen", "nonsense"], "settings", "listen"),
        (["--agents", "no/such.yaml", "--store", "memory:"], "registry", "no/such.yaml"),
        (["--agents", TAX, "--store", "postgres://nobody@127.0.0.1:1/x"], "store", "127.0.0.1"),
        (["--agents", TAX, "--store", "mongodb://x"], "store", "unknown engine"),
    ],
)
def test_doctor_names_what_is_wrong(doctor, argv, what, said):
    """One problem is found, the other checks still run, and scripts can detect it."""
    code, found = doctor(*argv)
    assert code == 1
    wrong = [finding for finding in found[what] if finding["level"] == "problem"]
    assert any(said in finding["said"] for finding in wrong), found
    assert all(finding["remedy"] for finding in wrong)
    assert "version" in found


def test_doctor_beside_a_server_needs_no_settings(doctor, tmp_path, monkeypatch):
    """The running server knows its own settings."""
    monkeypatch.chdir(tmp_path)
    with server_in_thread(Path(TAX), "memory:") as target:
        code, found = doctor(target=target)
    assert code == 0
    assert found["registry"][0]["level"] == "warning"
    assert "--agents FILE; a server needs it" in found["registry"][0]["remedy"]


def test_doctor_counts_no_tenant_where_a_switch_is_set_for_all(doctor, tmp_path: Path):
    """Settings for all tenants are stored under a reserved tenant name."""
    store = f"sqlite:///{tmp_path}/routing.db"
    with server_in_thread(Path(TAX), store) as target:
        with Admin(target, fallback=None, timeout=30) as client:
            client.route("hola", user_id="ana", session_id="chat-1")
            client.set_stickiness(enabled=False, reason="a rehearsal", tenant="*")
        _, found = doctor("--agents", TAX, "--store", store, target=target)
    assert "1 session of 1 tenant" in found["store"][0]["said"]
    assert "tenants" not in found["store"][0]["said"]


def test_doctor_warns_of_a_switch_that_is_off(doctor, tmp_path: Path, monkeypatch):
    """With the reason that was given for it."""
    monkeypatch.chdir(tmp_path)
    with server_in_thread(Path(TAX), "memory:") as target:
        _, before = doctor(target=target)
        with Admin(target, fallback=None, timeout=30) as client:
            client.set_stickiness(enabled=False, reason="incident 7")
        _, found = doctor(target=target)
    assert before["stickiness"][0]["level"] == "ok"
    assert found["stickiness"][0]["level"] == "warning"
    assert "incident 7" in found["stickiness"][0]["said"]


def test_doctor_changes_nothing(doctor, tmp_path: Path):
    """It is safe under full load, and does not create a missing store."""
    code, found = doctor("--agents", TAX, "--store", f"sqlite:///{tmp_path}/new/routing.db")
    assert code == 0
    assert "does not exist yet" in found["store"][0]["said"]
    assert list(tmp_path.iterdir()) == []


def test_doctor_sees_a_damaged_store(doctor, tmp_path: Path):
    """A broken restore may leave a file that is not a database."""
    path = tmp_path / "routing.db"
    path.write_bytes(os.urandom(8192))
    code, found = doctor("--agents", TAX, "--store", f"sqlite:///{path}")
    assert code == 1
    assert levels(found, "store") == ["problem"]


def test_doctor_sees_a_clock_that_was_set_back(doctor, tmp_path: Path):
    """Timeouts wait until the clock has caught up, and the cause is hard to find."""
    path = tmp_path / "routing.db"
    with (
        server_in_thread(Path(TAX), f"sqlite:///{path}") as target,
        Client(target, fallback=None, timeout=30) as client,
    ):
        client.route("hola", user_id="ana", session_id="chat-1")
    with sqlite3.connect(path) as database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(sessions)")]
        (column,) = [name for name in columns if name in {"update_us", "update_time_us"}]
        tomorrow_us = (time.time_ns() // 1_000) + 86_400_000_000
        database.execute(f"UPDATE sessions SET {column} = ?", (tomorrow_us,))
    database.close()
    code, found = doctor("--agents", TAX, "--store", f"sqlite:///{path}")
    assert code == 1
    assert "set back" in found["clock"][0]["said"]


def test_doctor_sees_a_full_disk(monkeypatch):
    """Before the first change is refused."""
    full = shutil._ntuple_diskusage(total=10**12, used=10**12 - 1, free=1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    (finding,) = doctor_checks.disk(Settings(agents=TAX, store="sqlite:///var/routing.db"))
    assert finding.level == "problem"
    assert "full disk" in finding.remedy


def test_doctor_refuses_a_file_system_of_the_network(monkeypatch):
    """SQLite's log is unsafe there, which only shows after a failure."""
    monkeypatch.setattr(doctor_checks, "file_system_of", lambda _: "nfs4")
    first, *_ = doctor_checks.disk(Settings(agents=TAX, store="sqlite:///var/routing.db"))
    assert first.level == "problem"
    assert "nfs4" in first.said


def test_doctor_warns_of_more_processes_than_cores(monkeypatch):
    """They would only take each other's time."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    given = {"agents": TAX, "store": "postgres://db/chat"}
    (finding,) = doctor_checks.processes(Settings(**given, processes=3))
    assert (finding.level, finding.said) == ("warning", "3 server processes on 2 cores")
    assert "cores at most" in finding.remedy
    (finding,) = doctor_checks.processes(Settings(**given, processes=2))
    assert finding.level == "ok"
    assert list(doctor_checks.processes(Settings(**given))) == []


def test_doctor_sees_that_the_file_is_not_what_the_server_goes_by(doctor, tmp_path: Path):
    """The log line of an old failed reload is easily missed."""
    agents = tmp_path / "agents.yaml"
    agents.write_text(Path(TAX).read_text(encoding="utf-8"), encoding="utf-8")
    with server_in_thread(agents, "memory:") as target:
        agents.write_text("api_version: agent_routing/v1\n", encoding="utf-8")
        code, found = doctor("--agents", str(agents), "--store", "memory:", target=target)
    assert code == 1
    assert "problem" in levels(found, "registry")
    assert "problem" in levels(found, "server")


def test_doctor_sees_another_release(doctor, monkeypatch):
    """A command of another release may lack fields of the server."""
    with server_in_thread(Path(TAX), "memory:") as target:
        monkeypatch.setattr(doctor_checks, "__version__", "9.9.9")
        _, found = doctor("--agents", TAX, "--store", "memory:", target=target)
    assert levels(found, "release") == ["warning"]
    assert "9.9.9" in found["release"][0]["said"]


def test_doctor_of_a_certificate(tmp_path: Path):
    """Expired, expiring or with another key: reported before callers notice."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415 - see above
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - as above

    def certificate(days: int) -> Settings:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "routing.test")])
        now = doctor_checks.datetime.now(doctor_checks.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(1)
            .not_valid_before(now - doctor_checks.timedelta(days=100))
            .not_valid_after(now + doctor_checks.timedelta(days=days, hours=1))
            .sign(key, hashes.SHA256())
        )
        (tmp_path / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
        (tmp_path / "key.pem").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return Settings(
            agents=TAX,
            tls_certificate_file=str(tmp_path / "cert.pem"),
            tls_key_file=str(tmp_path / "key.pem"),
        )

    for days, level in ((90, "ok"), (5, "warning"), (-3, "problem")):
        (finding,) = doctor_checks.certificates(certificate(days))
        assert finding.level == level, finding
    (tmp_path / "key.pem").write_text("no key")
    (finding,) = doctor_checks.certificates(
        Settings(
            agents=TAX,
            tls_certificate_file=str(tmp_path / "cert.pem"),
            tls_key_file=str(tmp_path / "key.pem"),
        )
    )
    assert finding.level == "problem"
