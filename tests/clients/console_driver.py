"""What the tests of the console share: its packages, and a browser that takes steps."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests import toolchains

ROOT = Path(__file__).resolve().parents[2]
CONSOLE = ROOT / "console"
SCRIPT = ROOT / "scripts" / "console.py"
DRIVER = Path(__file__).with_name("console_browser.mjs")

# Where to keep the screenshots for a person to look at.
KEEP = os.environ.get("CONSOLE_SCREENSHOTS")


def run_script(what):
    """Run scripts/console.py with the Node that is found."""
    node = toolchains.require("node")
    return subprocess.run(
        [sys.executable, str(SCRIPT), what],
        check=False,
        capture_output=True,
        text=True,
        env=node.environ(),
        timeout=500,
    )


@pytest.fixture(scope="session")
def modules():
    """The folder with the packages of the console."""
    toolchains.require("chromium")
    done = run_script("install")
    assert done.returncode == 0, done.stdout + done.stderr
    return CONSOLE


@asynccontextmanager
async def browsing(modules, folder, steps):
    """Start the steps in a browser; yields what waits for their results."""
    node = toolchains.require("node")
    given = {
        "modules": str(modules),
        "chromium": str(toolchains.require("chromium").programs["chromium"]),
        "folder": str(folder),
        "steps": steps,
    }
    process = await asyncio.create_subprocess_exec(
        str(node.programs["node"]),
        str(DRIVER),
        json.dumps(given),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=node.environ(),
    )

    async def ended():
        async with asyncio.timeout(400):
            said, complaints = await process.communicate()
        assert process.returncode == 0, complaints.decode()
        if KEEP:
            for shot in folder.glob("*.png"):
                shutil.copy(shot, KEEP)
        return json.loads(said)

    try:
        yield ended
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def browse(modules, folder, steps):
    """Take the steps in a browser; return what they showed."""
    async with browsing(modules, folder, steps) as ended:
        return await ended()


async def met(folder, name, finishing):
    """Wait until the browser has come to the step ["meet", name]; return what lets it go on."""
    while not (folder / name).exists():
        assert not finishing.done(), finishing.result()
        await asyncio.sleep(0.05)
    return (folder / f"{name}.go").touch
