"""Stores filled by conversations, and empty ones of every engine as targets."""

import shutil
import sys

import pytest

from routing_service.cli import main
from tests.conformance.conftest import ENGINES
from tests.stored_data.talked_store import talked_store


@pytest.fixture
async def talked(tmp_path, tmp_path_factory):
    """Return the URL of a SQLite store that a server has filled; each test has its own."""
    made = tmp_path_factory.getbasetemp() / "talked"
    if not made.exists():
        # Made once per process, since it takes longer than most tests.
        await talked_store(made)
    file = tmp_path / "talked.db"
    shutil.copy(made / "routing.db", file)
    return f"sqlite:///{file}"


@pytest.fixture
def place_on(request, tmp_path):
    """Return a factory of empty stores on the named engine; clear them afterwards."""
    used = []

    def place(name, number=0):
        engine = next(engine for engine in ENGINES if engine.name == name)
        server = request.getfixturevalue(engine.server) if engine.server else None
        folder = tmp_path / f"{name}-{number}"
        folder.mkdir()
        used.append((engine, folder, server))
        return engine.url(folder, server)

    yield place
    for engine, folder, server in used:
        engine.clear(folder, server)


@pytest.fixture
def run(monkeypatch, capsys):
    """Return what runs a command line: (exit code, stdout, stderr)."""

    def run_it(*argv):
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["agent-routing", *argv])
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code
        return (code or 0, *capsys.readouterr())

    return run_it
