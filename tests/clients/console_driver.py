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

STEPS_S_MAX = 400

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


class Browser:
    """One browser for all tests of a process: starting it takes longer than most tests."""

    def __init__(self, modules: Path) -> None:
        self._modules = modules
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> subprocess.Popen[str]:
        """Return the running browser; it is started if there is none, or if the last one ended."""
        if self._process is None or self._process.poll() is not None:
            node = toolchains.require("node")
            chromium = toolchains.require("chromium").programs["chromium"]
            given = {"modules": str(self._modules), "chromium": str(chromium)}
            self._process = subprocess.Popen(
                [str(node.programs["node"]), str(DRIVER), json.dumps(given)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=node.environ(),
            )
        return self._process

    def close(self) -> None:
        """End it, and the steps that it may be taking."""
        if self._process is not None:
            self._process.kill()
            for pipe in (self._process.stdin, self._process.stdout):
                pipe.close()
            self._process.wait()
            self._process = None


@pytest.fixture(scope="session")
def modules():
    """A browser, with the packages of the console."""
    toolchains.require("chromium")
    done = run_script("install")
    assert done.returncode == 0, done.stdout + done.stderr
    browser = Browser(CONSOLE)
    yield browser
    browser.close()


@asynccontextmanager
async def browsing(modules, folder, steps):
    """Start the steps in a browser; yields what waits for their results."""
    process = modules.start()
    process.stdin.write(json.dumps({"folder": str(folder), "steps": steps}) + "\n")
    process.stdin.flush()
    answering = asyncio.create_task(asyncio.to_thread(process.stdout.readline))

    async def ended():
        async with asyncio.timeout(STEPS_S_MAX):
            line = await asyncio.shield(answering)
        answer = json.loads(line or '{"error": "the browser has ended"}')
        assert "error" not in answer, answer["error"]
        if KEEP:
            for shot in folder.glob("*.png"):
                shutil.copy(shot, KEEP)
        return answer

    try:
        yield ended
    finally:
        if not answering.done():
            # The steps cannot be taken back: the next test gets another browser.
            modules.close()
            await answering


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
