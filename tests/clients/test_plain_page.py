"""The page without a build step, in a real browser against a real server."""

import asyncio
import base64
import json
import os
import subprocess
import time
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests import toolchains
from tests.clients.test_browser_chat import page_served
from tests.rpc.live_service import serving

EXAMPLE = Path(__file__).resolve().parents[2] / "clients/typescript/examples/plain-page"
# Where to keep the screenshot for a person to look at.
KEEP = os.environ.get("BROWSER_CHAT_SCREENSHOTS")
WAIT_S = 60

pytestmark = pytest.mark.timeout(300)


class Browser:
    """Chromium without a window, steered through the two pipes of its debugging protocol."""

    def __init__(self, commands, answers):
        self._commands, self._answers = commands, answers
        self._number = 0
        self._session = ""
        self._rest = b""

    def ask(self, method, **params):
        """Send a command; return its result."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": params}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                part = os.read(self._answers, 1 << 20)
                assert part, "the browser has ended"
                self._rest += part
            message, _, self._rest = self._rest.partition(b"\0")
            answer = json.loads(message)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, url):
        """Open a page."""
        target = self.ask("Target.createTarget", url=url)["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = session["sessionId"]

    def text_once(self, wanted):
        """Return the page's text as soon as it has all that is wanted."""
        until = time.monotonic() + WAIT_S
        while True:
            found = self.ask("Runtime.evaluate", expression="document.body?.innerText ?? ''")
            text = found["result"]["value"]
            if all(each in text for each in wanted):
                return text
            assert time.monotonic() < until, text
            time.sleep(0.1)


@contextmanager
def browser(folder):
    """Run a browser."""
    chromium = toolchains.require("chromium")
    commands_in, commands = os.pipe()
    answers, answers_out = os.pipe()
    flags = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --window-size=800,640"
    with subprocess.Popen(
        [
            *("bash", "-c", f'exec "$@" 3<&{commands_in} 4>&{answers_out}', "bash"),
            *(str(chromium.programs["chromium"]), *flags.split(), "--remote-debugging-pipe"),
            f"--user-data-dir={folder}",
        ],
        pass_fds=(commands_in, answers_out),
        stderr=subprocess.DEVNULL,
    ) as process:
        os.close(commands_in)
        os.close(answers_out)
        try:
            yield Browser(commands, answers)
        finally:
            process.terminate()
            process.wait(30)
            os.close(commands)
            os.close(answers)


@asynccontextmanager
async def page_opened(tmp_path, said):
    """Open the page from an origin of its own and let it say this; yields the browser."""
    with page_served(EXAMPLE) as origin:
        async with serving(
            tmp_path, "tax", web_listen="127.0.0.1:0", web_origins=origin
        ) as service:
            asked = [("server", service.server.web_url), ("session", "chat-42")]
            query = urlencode([*asked, *(("say", text) for text in said)])
            with browser(tmp_path / "profile") as opened:
                await asyncio.to_thread(opened.open, f"{origin}/index.html?{query}")
                yield opened


async def test_page_without_a_build_step_sends_and_watches(tmp_path):
    """fetch() and JSON are enough: an answer, a command, and the events as they happen."""
    async with page_opened(tmp_path, ["hello", "/status"]) as opened:
        wanted = ["to Coordinadora: no_active_agent", "command /status"]
        text = await asyncio.to_thread(opened.text_once, wanted)
        assert text.index(wanted[0]) < text.index(wanted[1])
        shot = await asyncio.to_thread(opened.ask, "Page.captureScreenshot")
    image = base64.b64decode(shot["data"])
    kept = Path(KEEP or tmp_path, "plain-page.png")
    assert await asyncio.to_thread(kept.write_bytes, image) > 1_000


async def test_page_shows_the_reason_of_an_error(tmp_path):
    """From debug: the page has no protobuf to read the details with."""
    async with page_opened(tmp_path, ["x" * 40_000]) as opened:
        await asyncio.to_thread(opened.text_once, ["INVALID_FIELD: "])
