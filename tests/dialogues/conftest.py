"""Where the public dialogue corpora are, and what starts servers to play them on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

FOLDER_VARIABLE = "ROUTING_DIALOGUES"
FOLDER_DEFAULT = Path(__file__).parents[2] / ".." / "shared" / "data" / "dialogues"

COMMAND = (sys.executable, "-c", "from routing_service.cli import main; main()")


@dataclass(frozen=True, slots=True)
class Corpora:
    """The folder with the corpora."""

    folder: Path

    def file(self, name: str) -> Path:
        """Return a corpus's file, such as sgd_train's; skip the test if it is missing."""
        path = self.folder / f"{name}.jsonl.gz"
        if not path.exists():
            pytest.skip(f"no {path.name} in {self.folder}")
        return path

    @property
    def agents(self) -> Path:
        """Return the file with the agents of every corpus."""
        return self.folder / "agents.json"


@pytest.fixture(scope="session")
def corpora() -> Corpora:
    """Return the corpora; skip the test, with the reason, if they are missing."""
    folder = Path(os.environ.get(FOLDER_VARIABLE) or FOLDER_DEFAULT).resolve()
    if not folder.is_dir():
        pytest.skip(f"no dialogue corpora in {folder}; name their folder in {FOLDER_VARIABLE}")
    return Corpora(folder)


class Served:
    """A server process that can be killed and started again on the same address and store."""

    def __init__(self, folder: Path, registry: Path) -> None:
        self._folder = folder
        self._registry = registry
        self._listen = "127.0.0.1:0"
        self.target = ""
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it, on the address that it had before if it had one."""
        with (self._folder / "server.log").open("a") as log:
            self._process = subprocess.Popen(
                [
                    *(*COMMAND, "serve", "--listen", self._listen, "--agents", str(self._registry)),
                    *("--store", f"sqlite:///{self._folder}/sessions.db", "--log-level", "error"),
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("serving on "), (self._folder / "server.log").read_text()
        self.target = self._listen = line.split()[-1]

    def kill(self) -> None:
        """Kill it as a power cut would; what it had answered must be on disk."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


@pytest.fixture
def serve(tmp_path) -> Iterator:
    """Return what starts servers over a registry file, each with a store of its own."""
    started: list[Served] = []

    def start(registry: Path) -> Served:
        folder = tmp_path / f"server-{len(started)}"
        folder.mkdir()
        started.append(Served(folder, registry))
        started[-1].start()
        return started[-1]

    yield start
    for served in started:
        served.kill()


def replay_command(files: Sequence[Path], *options: object) -> list[str]:
    """Return the command line of a replay that prints JSON."""
    return [*COMMAND, "replay", *map(str, files), *map(str, options), "--json"]


@pytest.fixture
def replay():
    """Return what replays files in a process of its own and gives the figures."""

    def run(files: Sequence[Path], *options: object) -> dict[str, object]:
        done = subprocess.run(
            replay_command(files, *options), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture
def begin_replay():
    """Return a function that begins a replay without waiting; all replays end with the test."""
    running: list[subprocess.Popen[str]] = []

    def begin(files: Sequence[Path], *options: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            replay_command(files, *options),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()
