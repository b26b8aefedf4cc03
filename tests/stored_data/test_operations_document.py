"""docs/operations.md: each block of commands is run in order, as an operator would."""

import asyncio
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "operations.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks():
    """Return the commands that the document's reader types."""
    return BLOCK.findall(DOCUMENT.read_text("utf-8"))


@pytest.mark.timeout(240)
async def test_every_command_does_what_the_document_says(
    talked, tmp_path, place_on, commands_folder
):
    """In order, in one folder, on a store that a server has filled; each must succeed."""
    folder = tmp_path / "machine"
    (folder / "var").mkdir(parents=True)
    shutil.copy(talked.removeprefix("sqlite:///"), folder / "var" / "routing.db")
    postgres = place_on("postgres")
    path = ":".join([str(commands_folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    said = []
    # The document's PostgreSQL contains data.
    for block in ["agent-routing migrate --store postgres://db/chat", *blocks()]:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-eu", "-o", "pipefail", "-c", block.replace("postgres://db/chat", postgres)),
            cwd=folder,
            env=os.environ | {"PATH": path},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await asyncio.wait_for(process.communicate(), 200)
        assert process.returncode == 0, (block, out.decode())
        said.append(out.decode())
    wholes = {line for out in said for line in out.splitlines() if "  all: " in line}
    # The archive of an empty PostgreSQL, and identical content everywhere else.
    assert len(wholes) == 2, wholes
    assert (folder / "var" / "routing.db.before-restore").exists()


def test_every_option_that_is_named_is_there():
    """Also those of commands that are only mentioned."""
    text = DOCUMENT.read_text("utf-8")
    named = set(re.findall(r"agent-routing ([a-z-]+)", text))
    assert {"backup", "restore", "copy", "verify", "migrate", "health"} <= named
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#[^)]*)?\)", text)
    assert not [link for link in links if link and not (DOCUMENT.parent / link).exists()]
    headings = {
        re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= headings
