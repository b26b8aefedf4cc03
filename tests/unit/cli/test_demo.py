"""``agent-routing demo``: the story is played, the page shows it, and a person can join in."""

import http.client
import json
import signal
import socket
import struct
import subprocess
import sys
import time
from urllib.parse import urlsplit

import pytest

from routing_service.cli.demo_listener import (
    BODY_BYTES_MAX,
    EVENTS_MAX,
    MESSAGES_MAX,
    DemoFeed,
    demo_listener,
)
from routing_service.examples.stories import STORIES

COMMAND = (sys.executable, "-c", "from routing_service.cli import main; main()", "demo")


def call(url, method, path, body=None, **headers):
    """Return status, headers and body of one request."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    try:
        connection.request(
            method, path, body, {each.replace("_", "-"): headers[each] for each in headers}
        )
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def say(url, text):
    """Type a message into the page."""
    body = json.dumps({"text": text})
    return call(url, "POST", "/messages", body, Content_Type="application/json")[0]


def test_the_story_is_played_to_its_end_in_the_terminal():
    """Exit code 0 says that every message went where the story says."""
    done = subprocess.run(
        [*COMMAND, "--once", "--pause", "0", "--no-browser"],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "demo on http://127.0.0.1:" in done.stdout
    said = [line for line in done.stdout.splitlines() if line.startswith("you > ")]
    assert len(said) == len(STORIES["budget"].turns)


def test_a_person_takes_over_on_the_page_and_ctrl_c_ends_it():
    """The page gets agents, story and answers; the first typed message ends the story."""
    process = subprocess.Popen(
        [*COMMAND, "--pause", "20", "--no-browser", "--story", "tutor"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        url = next(line for line in process.stdout if line.startswith("demo on ")).split()[-1]
        status, headers, page = call(url, "GET", "/")
        assert status == 200
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert b"/page.js" in page
        console = next(line for line in process.stdout if line.startswith("console on ")).split()[
            -1
        ]
        status, _, page = call(console, "GET", "/")
        assert (status, b"<script" in page) == (200, True)
        [opened] = events_after(url, 0)
        assert opened["console_url"] == console
        assert {"coordinator", "motivator"} < {agent["agent_id"] for agent in opened["agents"]}
        assert say(url, "I want to practise fractions") == 202
        note, answered = events_after(url, 1, least=2)
        assert note["kind"] == "note"
        assert answered["user_text"] == "I want to practise fractions"
        assert [step["kind"] for step in answered["steps"]] == ["answer", "handoff", "answer"]
        assert answered["active_agent_id"] == "math_specialist"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert (process.returncode in (0, 130), errors) == (True, "")
    finally:
        process.kill()
        process.communicate()


def test_a_console_shows_the_session_of_the_demo():
    """As an operator lists it; the page has a link to it."""
    process = subprocess.Popen(
        [*COMMAND, "--pause", "0.1", "--no-browser"], stdout=subprocess.PIPE, text=True
    )
    try:
        lines = (line for line in process.stdout if line.startswith("console on "))
        console = next(lines).split()[-1]
        ends = time.monotonic() + 30
        sessions = []
        # The scripted user's first message makes the session.
        while not sessions and time.monotonic() < ends:
            path = "/agent_routing.v1.AdminService/ListSessions"
            status, _, body = call(console, "POST", path, "{}", Content_Type="application/json")
            assert status == 200, body
            sessions = json.loads(body).get("sessions", [])
        [session] = sessions
        assert session["sessionId"].startswith("demo-")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
        assert process.returncode in (0, 130)
    finally:
        process.kill()
        process.communicate()


def test_without_the_extra_web_there_is_no_console_and_the_demo_says_how_to_get_one():
    """The demo itself needs no extra."""
    script = (
        "import sys; sys.modules['connectrpc'] = None;from routing_service.cli import main; main()"
    )
    words = ["demo", "--once", "--pause", "0", "--no-browser"]
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert 'no console: pip install "agent-routing-service[web]" adds it' in done.stdout


def events_after(url, number, least=1):
    """Wait for events of the page."""
    ends = time.monotonic() + 30
    while time.monotonic() < ends:
        status, _, body = call(url, "GET", f"/events?after={number}")
        assert status == 200
        events = json.loads(body)["events"]
        if len(events) >= least:
            return events
    raise AssertionError(events)


@pytest.fixture
def page():
    """The page alone, and its feed."""
    feed = DemoFeed()
    with demo_listener(feed, 0) as url:
        yield url, feed


@pytest.mark.parametrize(
    ("request_line", "body", "headers", "status"),
    [
        ("GET /", None, {"Host": "evil.example"}, 403),
        ("GET /events?after=0", None, {"Origin": "https://evil.example"}, 403),
        ("POST /messages", "{}", {"Origin": "null"}, 403),
        ("POST /messages", '{"text": "x"}', {"Content-Type": "text/plain"}, 415),
        ("POST /messages", "{", {"Content-Type": "application/json"}, 400),
        ("POST /messages", '{"text": 1}', {"Content-Type": "application/json"}, 400),
        ("POST /messages", "[]", {"Content-Type": "application/json"}, 400),
        ("POST /messages", '{"text": " "}', {"Content-Type": "application/json"}, 400),
        ("POST /other", "{}", {"Content-Type": "application/json"}, 404),
        ("GET /../app.py", None, {}, 404),
        ("GET /events?after=-1", None, {}, 400),
    ],
)
def test_the_page_refuses_what_is_not_its_own(page, request_line, body, headers, status):
    """Another site in the same browser must not read it or talk through it."""
    url, feed = page
    assert call(url, *request_line.split(), body, **headers)[0] == status
    assert feed.messages.empty()


def test_the_page_takes_no_endless_message(page):
    """The bound of one message, and of messages that wait."""
    url, feed = page
    assert say(url, "x" * BODY_BYTES_MAX) == 413
    assert [say(url, str(number)) for number in range(MESSAGES_MAX + 1)][-2:] == [202, 429]
    assert feed.messages.qsize() == MESSAGES_MAX


def test_a_page_that_is_closed_while_it_waits_leaves_no_traceback(page, capfd):
    """A browser tab that is closed is no error."""
    url, feed = page
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port)) as waiting:
        asked = f"GET /events?after=0 HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n"
        waiting.sendall(asked.encode())
        # Closed with a reset: the answer cannot be written.
        waiting.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    feed.publish({"text": "x" * 1_000_000})
    assert call(url, "GET", "/")[0] == 200
    feed.end()
    time.sleep(0.3)
    assert capfd.readouterr().err == ""


def test_old_events_go_and_numbers_stay(page):
    """A page that is opened late, or was asleep, goes on with what is kept."""
    _, feed = page
    for number in range(EVENTS_MAX + 5):
        feed.publish({"number": number})
    kept, last = feed.after(0)
    assert (kept[0], len(kept), last) == ({"number": 5}, EVENTS_MAX, EVENTS_MAX + 5)
    assert feed.after(EVENTS_MAX + 4)[0] == [{"number": EVENTS_MAX + 4}]


def test_a_port_in_use_is_named_with_the_remedy(page):
    """Exit code 1 and one line."""
    port = urlsplit(page[0]).port
    done = subprocess.run(
        [*COMMAND, "--port", str(port), "--no-browser"],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 1
    assert f"127.0.0.1:{port}" in done.stderr
    assert "--port" in done.stderr


def test_an_unknown_story_is_refused_with_those_there_are():
    """Exit code 2."""
    done = subprocess.run(
        [*COMMAND, "--story", "x"], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 2
    assert "tax_premium" in done.stderr
