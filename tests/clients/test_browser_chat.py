"""The chat in the browser: a real browser, a real server, and both protocols between them."""

import asyncio
import contextlib
import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests import toolchains
from tests.rpc.live_service import serving

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "clients" / "typescript" / "examples" / "browser-chat"
SCRIPT = ROOT / "scripts" / "typescript_client.py"

# Where to keep the screenshots for a person to look at.
KEEP = os.environ.get("BROWSER_CHAT_SCREENSHOTS")

pytestmark = pytest.mark.timeout(600)

CONTENT_TYPES = {
    "connect": ["application/proto", "application/connect+proto"],
    "grpc-web": ["application/grpc-web+proto", "application/grpc-web+proto"],
}


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, *_arguments):
        """See SimpleHTTPRequestHandler."""


@contextlib.contextmanager
def page_served(folder):
    """Serve the page from its own origin; yields the origin."""
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, name="page")
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def page_folder():
    """The page, built for publication."""
    node = toolchains.require("node")
    toolchains.require("chromium")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "page"],
        check=False,
        capture_output=True,
        text=True,
        env=node.environ(),
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return EXAMPLE / "dist"


async def chat_in_browser(folder, **places):
    """Run the story in the browser, and return what it showed."""
    node = toolchains.require("node")
    given = {"chromium": str(toolchains.require("chromium").programs["chromium"])} | places
    process = await asyncio.create_subprocess_exec(
        str(node.programs["node"]),
        str(EXAMPLE / "test" / "browser.mjs"),
        json.dumps(given | {"folder": str(folder)}),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=node.environ(),
    )
    async with asyncio.timeout(400):
        said, complaints = await process.communicate()
    assert process.returncode == 0, complaints.decode()
    return json.loads(said)


CHAT = [
    "hello",
    "Coordinator | no active agent | Hello! Ask me about VAT, income tax, invoices or payroll.",
    "How much VAT do I owe this quarter?",
    "Coordinator | no active agent | One moment, I bring in our specialist.",
    "Coordinator → | VAT specialist",
    (
        "VAT specialist | supervisor handoff | waits for your answer | What did you sell this "
        "quarter, without VAT?"
    ),
    "12,000",
    "VAT specialist | follow up lock | That makes 2520.00 € of VAT.",
    "/status",
    (
        "You are talking to VAT specialist. | Your task is in progress. | To go back to "
        "Coordinator, type /supervisor"
    ),
    "when is it due?",
    "VAT specialist | sticky | By the 20th after the quarter's end.",
]


async def test_a_page_chats_over_both_protocols(page_folder, tmp_path):
    """Handoff, lock, stickiness, commands, live events, an outage; an unknown page is refused."""
    with page_served(page_folder) as known, page_served(page_folder) as stranger:
        async with serving(
            tmp_path,
            "tax",
            web_listen="127.0.0.1:0",
            web_origins=known,
        ) as live:
            seen = await chat_in_browser(
                tmp_path, page=known, refusedPage=stranger, server=live.server.web_url
            )
            sessions = {record.session_id for record in live.observer.calls}
    if KEEP:
        for shot in tmp_path.glob("*.png"):
            shutil.copy(shot, KEEP)
    # A page that came back goes on where its watch was.
    assert seen["backAgain"] == [str(number + 1) for number in range(len(seen["backAgain"]))]
    assert len(seen["backAgain"]) >= 4
    for protocol, other in (("connect", "grpc-web"), ("grpc-web", "connect")):
        result = seen[protocol]
        assert result["messages"] == CHAT
        # Each change once and in order, also over the change of protocol.
        count = len(result["revisions"])
        assert result["revisions"] == [str(number + 1) for number in range(count)]
        assert count >= 8
        unary, stream = CONTENT_TYPES[protocol]
        assert {kind for name, kind in result["calls"] if name != "WatchSession"} == {unary}
        assert {kind for name, kind in result["calls"] if name == "WatchSession"} == {stream}
        unary, stream = CONTENT_TYPES[other]
        assert {kind for _, kind in result["callsOfOther"]} == {unary, stream}
        assert result["degraded"] == ["offline: answered by the last agent known"]
        [refused] = result["refused"]
        assert "does its web_origins name this page?" in refused
        assert result["answeredThere"] == 0
        assert not result["mistakes"]
    assert not {session for session in sessions if session.startswith("refused")}
    [offer] = seen["offer"]["offers"]
    assert "Invoices" in offer
    [after] = seen["offer"]["after"]
    assert after.startswith("Invoices | topic switch | ")
    assert seen["offer"]["disabled"] == 2
    assert not seen["offer"]["mistakes"]
    assert seen["choose"]["options"] == ["Income tax advisor", "VAT specialist", "Invoices"]
    assert seen["choose"]["options"][0] in seen["choose"]["after"][0]
