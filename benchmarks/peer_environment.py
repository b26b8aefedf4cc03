"""Peers' environments: made once under build/, never mixed with ours."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Final

from benchmarks.story import Load, Result

ROOT: Final = Path(__file__).parent.parent
PEERS: Final = Path(__file__).parent / "peers"
ENVIRONMENTS: Final = ROOT / "build" / "peers"
ROUND_S_MAX: Final = 600


def prepare(peer: str, peers: Path = PEERS, environments: Path = ENVIRONMENTS) -> Path:
    """Make a peer's environment from its requirements, if it is not there; return its Python.

    peers: the folder of the requirements. environments: where the environments are made.
    """
    folder = environments / peer
    python = folder / "bin" / "python"
    requirements = peers / f"{peer}.txt"
    stamp = folder / ".installed"
    if stamp.exists() and stamp.read_text() == requirements.read_text():
        return python
    sys.stderr.write(f"installing {peer} into {folder.relative_to(ROOT)}\n")
    try:
        venv.create(folder, clear=True, with_pip=True)
    except (ImportError, subprocess.CalledProcessError):
        command = [sys.executable, "-m", "virtualenv", "--clear", "--quiet", str(folder)]
        subprocess.run(command, check=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--requirement", str(requirements)]
    subprocess.run(install, check=True)
    stamp.write_text(requirements.read_text())
    return python


def play(peer: str, load: Load, environment: Mapping[str, str] = MappingProxyType({})) -> Result:
    """Let a peer play a load in a process of its own. environment: more variables for it."""
    done = subprocess.run(
        [str(prepare(peer)), str(PEERS / f"{peer}.py"), json.dumps(asdict(load))],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=ROUND_S_MAX,
        env={
            "PYTHONPATH": str(Path(__file__).parent),
            "PATH": "/usr/bin:/bin",
            **environment,
        },
    )
    return Result(**json.loads(done.stdout.splitlines()[-1]))
