"""The console while its server is away, and where a part of a session's log is gone.

In a real browser against a real server, as test_console_page.py.
"""

import asyncio
import sqlite3
import time
from contextlib import closing, suppress

import pytest

from tests.clients.console_driver import browsing, met
from tests.engines.redis_server import free_port
from tests.rpc.live_service import ask, serving

pytestmark = pytest.mark.timeout(600)


def time_us():
    """The real time: the page shows how long ago something changed."""
    return time.time_ns() // 1_000


def forget_first_change(path):
    """Remove a session's first change, as a store that lost its oldest rows."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "DELETE FROM changes WHERE revision = 1 AND session_no = "
            "(SELECT session_no FROM sessions WHERE session_id = 'chat-a')"
        )


async def test_the_page_goes_on_after_a_restart_without_lost_or_doubled_rows(modules, tmp_path):
    """It says that it is behind; then it has what came meanwhile. A lost revision is named."""
    options = {"console_listen": f"127.0.0.1:{free_port()}", "clock": time_us}
    url = f"http://{options['console_listen']}"
    session = f"{url}/?view=session&id=chat-a"
    steps = [
        ["meet", "served"],
        ["open", url],
        ["wait", '.live[data-live="live"]'],
        ["wait", 'tr[data-session="chat-b"]'],
        ["meet", "open"],
        ["wait", '.live[data-live="behind"]'],
        ["text", ".live"],
        ["text", "tbody tr th"],
        ["meet", "behind"],
        ["wait", 'tr[data-session="chat-new"]'],
        ["wait", 'tr[data-session="chat-b"]:has-text("Facturación")'],
        ["wait", '.live[data-live="live"]'],
        ["text", "tbody tr th"],
        # Its first change is gone: the states since then cannot be made.
        ["open", f"{session}&at=1"],
        ["wait", '[role=alert]:has-text("REVISION_COMPACTED")'],
        ["text", "[role=alert]"],
        # The present state can, and the message goes.
        ["slide", "input[name=at]", 4],
        ["gone", '[role=alert]:has-text("REVISION_COMPACTED")'],
        ["wait", 'dl[data-revision="4"]'],
    ]
    async with browsing(modules, tmp_path, steps) as ended:
        async with serving(tmp_path, "tax", **options) as live:
            finishing = asyncio.create_task(ended())
            go_on = await met(tmp_path, "served", finishing)
            go_on()
            for name in ("chat-a", "chat-b"):
                chat = live.chat(name)
                chat.profile = {"channel": "web"}
                await chat.with_agent("vat", **ask())
            await live.chat("chat-a").say("more")
            go_on = await met(tmp_path, "open", finishing)
        go_on()
        go_on = await met(tmp_path, "behind", finishing)
        await asyncio.to_thread(forget_first_change, tmp_path / "routing.db")
        async with serving(tmp_path, "tax", **options) as live:
            go_on()
            await live.chat("chat-new").say("hello")
            await live.chat("chat-b").set_active("invoices")
            seen = await finishing
    results = seen["results"]
    assert results[0] == ["not live: no answer from the server; trying again"]
    assert sorted(results[1]) == ["chat-a", "chat-b"]
    assert sorted(results[2]) == ["chat-a", "chat-b", "chat-new"]
    assert results[3][0].startswith('REVISION_COMPACTED: changes of session "chat-a" are kept from')
    assert seen["mistakes"] == []


class SlowProxy:
    """Forwards to a server; while it is slow, what the server sends on streams comes late."""

    delay_s = 0.0

    def __init__(self, port):
        self._port = port
        self._tasks = set()
        self._writers = []

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _accept(self, reader, writer):
        to_server, from_browser = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, from_browser]
        pumps = (
            self._pump(reader, from_browser, is_answer=False),
            self._pump(to_server, writer, is_answer=True),
        )
        self._tasks |= {asyncio.create_task(each) for each in pumps}

    async def _pump(self, reader, writer, *, is_answer):
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                if is_answer and self.delay_s and not data.startswith(b"HTTP/1.1"):
                    await asyncio.sleep(self.delay_s)
                writer.write(data)
                await writer.drain()
        writer.close()


async def test_a_page_that_is_connected_but_late_says_so(modules, tmp_path):
    """What comes was sent seconds ago: the page is not called live until that is over."""
    port = free_port()
    options = {"console_listen": f"127.0.0.1:{port}", "clock": time_us}
    async with serving(tmp_path, "tax", **options) as live, SlowProxy(port) as proxy:
        chat = live.chat("chat-a")
        chat.profile = {"channel": "web"}
        await chat.with_agent("vat", **ask())
        steps = [
            ["open", proxy.url],
            ["wait", '.live[data-live="live"]'],
            ["meet", "live"],
            ["wait", '.live[data-live="late"]'],
            ["text", ".live"],
            ["axe"],
            ["meet", "late"],
            ["wait", '.live[data-live="live"]'],
        ]
        async with browsing(modules, tmp_path, steps) as ended:
            finishing = asyncio.create_task(ended())
            go_on = await met(tmp_path, "live", finishing)
            proxy.delay_s = 6.0
            await chat.set_active("invoices")
            go_on()
            go_on = await met(tmp_path, "late", finishing)
            proxy.delay_s = 0.0
            await chat.set_active("vat")
            go_on()
            seen = await finishing
    assert seen["results"] == [["late: what comes was sent more than 3 s ago"], []]
    assert seen["mistakes"] == []


async def test_pages_that_were_left_hold_no_connection(modules, tmp_path):
    """A browser keeps left pages for Back, and opens six connections to a server.

    After five pages in one tab nothing loaded any more. Back shows a kept page as it was, and what
    has happened since.
    """
    async with serving(tmp_path, "tax", console_listen="127.0.0.1:0", clock=time_us) as live:
        chats = [live.chat(f"chat-{number}") for number in range(9)]
        for chat in chats:
            await chat.say("hello")
        pages = [f"{live.server.console_url}/?view=session&id={chat.session_id}" for chat in chats]
        is_live = ["wait", '.live[data-live="live"]']
        steps = [step for url in pages for step in (["open", url], is_live, ["mark"])]
        steps += [["meet", "gone on"], ["back"], ["query"], ["marked"], is_live]
        steps += [["wait", 'section[aria-label="State"] dl[data-revision="2"]']]
        async with browsing(modules, tmp_path, steps) as ended:
            finishing = asyncio.create_task(ended())
            go_on = await met(tmp_path, "gone on", finishing)
            await chats[-2].say("and?")
            go_on()
            seen = await finishing
        assert seen["results"] == ["?view=session&id=chat-7", True]
        assert not seen["mistakes"]
