"""The demo's web page: what happened so far, and the messages that a person types into it.

Rule: it serves one person on the loopback interface. A page of another origin can neither read it
nor send messages through it: Host and Origin must be its own address.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

EVENTS_MAX: Final = 1_000
"""What a page that is opened late can still show. A story has at most about 30 messages."""

MESSAGES_MAX: Final = 16
"""Messages typed while one is answered."""

BODY_BYTES_MAX: Final = 16 * 1024
"""A message of 2,000 characters, the page's own limit, escaped as JSON."""

WAIT_S: Final = 10.0
"""How long a request for events waits; below the idle limits of browsers."""

_FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
_POLICY: Final = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'"


class DemoFeed:
    """The events of a demo, and the messages of the person who watches it."""

    def __init__(self) -> None:
        self.messages: queue.Queue[str] = queue.Queue(MESSAGES_MAX)
        self._events: list[dict[str, Any]] = []
        self._dropped = 0
        self._changed = threading.Condition()
        self._is_over = False

    def publish(self, event: dict[str, Any]) -> None:
        """Add an event; the oldest goes once there are more than EVENTS_MAX."""
        with self._changed:
            self._events.append(event)
            if len(self._events) > EVENTS_MAX:
                del self._events[0]
                self._dropped += 1
            self._changed.notify_all()

    def after(self, number: int) -> tuple[list[dict[str, Any]], int]:
        """Return the events after a number and the last number. Waits up to WAIT_S for one."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_over or self._dropped + len(self._events) > number, WAIT_S
            )
            from_index = max(0, number - self._dropped)
            return self._events[from_index:], self._dropped + len(self._events)

    def end(self) -> None:
        """Answer everyone who waits."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()


@contextmanager
def demo_listener(feed: DemoFeed, port: int) -> Iterator[str]:
    """Serve the page on 127.0.0.1; give its URL. port: 0 takes a free one. Raises OSError."""

    class Handler(_Handler):
        demo_feed = feed

    server = _Server(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, name="demo page", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        feed.end()
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a page that was closed while it waited."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    demo_feed: DemoFeed
    # A connection that sends nothing must not keep its thread.
    timeout = 30
    server_version = "agent-routing"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer with a file of the page, or with events."""
        if not self._is_ours():
            return
        asked = urlsplit(self.path)
        if asked.path == "/events":
            after = parse_qs(asked.query).get("after", ["0"])[0]
            if not after.isascii() or not after.isdigit():
                self._answer(400, b"after must be a number")
                return
            events, last = self.demo_feed.after(int(after))
            body = json.dumps({"events": events, "last": last}).encode()
            self._answer(200, body, "application/json")
        elif asked.path in _FILES:
            name, kind = _FILES[asked.path]
            folder = resources.files("routing_service") / "cli" / "demo_page"
            self._answer(200, (folder / name).read_bytes(), kind)
        else:
            self._answer(404, b"not found")

    def do_POST(self) -> None:
        """Take a message."""
        if not self._is_ours():
            return
        length = self.headers.get("Content-Length", "")
        if self.path != "/messages":
            self._answer(404, b"not found")
        elif self.headers.get_content_type() != "application/json":
            self._answer(415, b"send application/json")
        elif not (length.isascii() and length.isdigit()) or int(length) > BODY_BYTES_MAX:
            self._answer(413, b"the message is too long")
        else:
            self._take(self.rfile.read(int(length)))

    def _take(self, body: bytes) -> None:
        try:
            text = json.loads(body)["text"]
        except (ValueError, KeyError, TypeError):
            text = None
        if not isinstance(text, str) or not text.strip():
            self._answer(400, b'send {"text": "a message"}')
            return
        try:
            self.demo_feed.messages.put_nowait(text)
        except queue.Full:
            self._answer(429, b"wait for the answers first")
        else:
            self._answer(202, b"{}", "application/json")

    def _is_ours(self) -> bool:
        """Refuse a name that only resolves to this machine, and pages of other origins."""
        assert isinstance(self.server, ThreadingHTTPServer)
        port = self.server.server_port
        ours = {f"127.0.0.1:{port}", f"localhost:{port}"}
        origin = self.headers.get("Origin")
        if self.headers.get("Host") in ours and origin in {None, *(f"http://{at}" for at in ours)}:
            return True
        self._answer(403, b"this page is for this machine alone")
        return False

    def _answer(self, code: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Log nothing: the page polls, and the terminal shows the conversation."""
