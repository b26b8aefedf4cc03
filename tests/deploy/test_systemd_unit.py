"""The systemd unit: what it names exists, and systemd accepts it."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from routing_service.settings.resolve import resolve_settings
from routing_service.settings.settings import SETTINGS

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "agent-routing.service"
PROGRAM = "/opt/agent-routing/bin/agent-routing"


@pytest.fixture
def service():
    """The section of the unit that says what runs."""
    unit = configparser.ConfigParser(strict=True, interpolation=None)
    unit.optionxform = str
    unit.read_string(UNIT.read_text("utf-8").replace("\\\n", " "))
    return unit["Service"]


def test_the_unit_starts_a_server_that_its_flags_allow(service):
    """A renamed flag would otherwise fail at the next boot."""
    program, command, *flags = shlex.split(service["ExecStart"])
    assert (program, command) == (PROGRAM, "serve")
    given = dict(zip(flags[::2], flags[1::2], strict=True))
    known = {setting.flag: setting.name for setting in SETTINGS.values()}
    assert given.keys() <= known.keys()
    values = {
        known[flag]: value.replace("%S", "/var/lib").replace("%E", "/etc")
        for flag, value in given.items()
    }
    settings = resolve_settings(values, {}, None).settings
    assert settings.store == "sqlite:////var/lib/agent-routing/routing.db"
    assert settings.listen_address.is_loopback


def test_the_unit_waits_for_the_drain(service):
    """The server may still be answering accepted calls, and systemd must not kill it."""
    assert float(service["TimeoutStopSec"]) > SETTINGS["drain_s"].default
    assert service["KillSignal"] == "SIGTERM"
    assert "-HUP" in service["ExecReload"]


def test_the_unit_gives_no_rights_away(service):
    """It needs only its own folder and a socket."""
    for name in ("DynamicUser", "NoNewPrivileges", "PrivateDevices", "ProtectHome"):
        assert service[name] == "yes", name
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_takes_the_unit(tmp_path):
    """With systemd's own check, and another existing program in place of ours."""
    unit = tmp_path / UNIT.name
    text = UNIT.read_text("utf-8")
    unit.write_text(text.replace(PROGRAM, shutil.which("true")))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert ours == []
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    exposure = re.search(r"Overall exposure level for [^:]+: ([\d.]+)", rated)
    assert exposure
    assert float(exposure[1]) < 2.5
