"""Connect, gRPC-Web and JSON next to gRPC: the same answers and errors, and the access rules.

Each protocol is written by hand here, so that the bytes on the wire are tested. `buf curl`, which
is independent of this project, and the TypeScript client use two of them as well.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import http.client
import json
import select
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import structlog
import structlog.testing
from google.protobuf import json_format
from google.rpc import status_pb2

from agent_routing.v1 import routing_service_pb2 as pb
from routing_service.rpc import request_checks
from routing_service.server.bounds import Bounds
from routing_service.settings.resolve import resolve_settings
from routing_service.settings.rules import SettingsInvalid
from routing_service.settings.web_origins import parse_origins
from routing_service.telemetry.log_privacy import IdHashes
from routing_service.web.wait_limits import WaitLimits
from routing_service.web.web_listener import HEADER_BYTES_MAX
from tests.rpc.live_service import (
    DETAILS_KEY,
    REPLAYED_KEY,
    fresh_id,
    hand_to,
    proceed,
    serving,
)
from tests.rpc.signed_in import WRONG_KEY, serving_signed_in, token

ROOT = Path(__file__).resolve().parents[2]
SERVICE = "/agent_routing.v1.RoutingService"
PAGE = "https://chat.example.org"

CONNECT_CODES = {
    code.name.lower() if code.name != "CANCELLED" else "canceled": code for code in grpc.StatusCode
}


@dataclass
class Outcome:
    """A call's result in any protocol. status: with all details; None: an answer."""

    messages: list
    status: status_pb2.Status | None
    trailers: dict

    @property
    def message(self):
        [message] = self.messages
        return message


class Wire:
    """One protocol's connection to one server."""

    def __init__(self, url):
        self.host, self.port = urllib.parse.urlsplit(url).hostname, urllib.parse.urlsplit(url).port

    async def call(self, method, request, answer_class, headers=None):
        """Make a call, and return its outcome."""
        return await asyncio.to_thread(self._call, method, request, answer_class, headers or {})

    def post(self, path, body, headers):
        """Return status, headers and body of an HTTP exchange."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=20)
        try:
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()


class Connect(Wire):
    """Connect's unary calls. codec: proto or json."""

    codec = "proto"

    def _call(self, method, request, answer_class, headers):
        body = self._encoded(request)
        headers = {"content-type": f"application/{self.codec}"} | headers
        status, answered, body = self.post(f"{SERVICE}/{method}", body, headers)
        trailers = {
            key.lower().removeprefix("trailer-"): value
            for key, value in answered.items()
            if key.lower().startswith("trailer-")
        }
        if status == http.client.OK:
            return Outcome([self._decoded(body, answer_class)], None, trailers)
        return Outcome([], _connect_status(json.loads(body)), trailers)

    def _encoded(self, request):
        return request if isinstance(request, bytes) else request.SerializeToString()

    def _decoded(self, body, answer_class):
        return answer_class.FromString(body)


class Json(Connect):
    """Connect's unary calls with JSON."""

    codec = "json"

    def _encoded(self, request):
        if isinstance(request, bytes):
            return request
        return json_format.MessageToJson(request).encode()

    def _decoded(self, body, answer_class):
        return json_format.Parse(body, answer_class())


class GrpcWeb(Wire):
    """gRPC-Web: framed messages, and the trailers as the last frame."""

    def _call(self, method, request, answer_class, headers):
        body = request if isinstance(request, bytes) else request.SerializeToString()
        headers = {"content-type": "application/grpc-web+proto", "x-grpc-web": "1"} | headers
        status, answered, body = self.post(
            f"{SERVICE}/{method}", struct.pack(">BI", 0, len(body)) + body, headers
        )
        assert status == http.client.OK
        messages, trailers = [], {key.lower(): value for key, value in answered.items()}
        for flags, frame in frames(body):
            if flags & 0x80:
                lines = frame.decode().splitlines()
                trailers |= dict(line.split(": ", 1) for line in lines)
            else:
                messages.append(answer_class.FromString(frame))
        return Outcome(messages, _grpc_status(trailers), trailers)


class Grpc(Wire):
    """gRPC itself: the others are compared with it."""

    def __init__(self, channel):
        self.channel = channel

    async def call(self, method, request, answer_class, headers=None):
        body = request if isinstance(request, bytes) else request.SerializeToString()
        call = self.channel.unary_unary(f"{SERVICE}/{method}")(
            body, metadata=tuple((headers or {}).items()), timeout=20
        )
        try:
            messages, status = [answer_class.FromString(await call)], None
        except grpc.aio.AioRpcError as error:
            details = dict(error.trailing_metadata() or ()).get(DETAILS_KEY, b"")
            messages, status = [], status_pb2.Status.FromString(details)
            status.code, status.message = error.code().value[0], error.details()
        return Outcome(messages, status, dict(await call.trailing_metadata() or ()))


def frames(body):
    """Split a body of framed messages."""
    while body:
        flags, length = struct.unpack(">BI", body[:5])
        yield flags, body[5 : 5 + length]
        body = body[5 + length :]


def _connect_status(error):
    status = status_pb2.Status(
        code=CONNECT_CODES[error["code"]].value[0], message=error.get("message", "")
    )
    for detail in error.get("details", ()):
        packed = status.details.add()
        packed.type_url = f"type.googleapis.com/{detail['type']}"
        packed.value = base64.b64decode(detail["value"] + "==")
    return status


def _grpc_status(trailers):
    if trailers["grpc-status"] == "0":
        return None
    details = trailers.get(DETAILS_KEY, "")
    status = status_pb2.Status.FromString(base64.b64decode(details + "=="))
    status.code = int(trailers["grpc-status"])
    status.message = urllib.parse.unquote(trailers.get("grpc-message", ""))
    return status


WIRES = ("grpc", "connect", "json", "grpc-web")
HTTP_WIRES = WIRES[1:]


def wire_to(live, name):
    """Return a protocol's wire to a server."""
    if name == "grpc":
        return Grpc(live.channel)
    return {"connect": Connect, "json": Json, "grpc-web": GrpcWeb}[name](live.server.web_url)


@pytest.fixture
async def tax(tmp_path, request):
    """The tax example, with a web listener that one page may call.

    A test may set the listener's timeouts as its indirect parameter.
    """
    waits = getattr(request, "param", WaitLimits())
    async with serving(
        tmp_path,
        "tax",
        web_listen="127.0.0.1:0",
        web_origins=f"{PAGE}, http://localhost:5173",
        bounds=Bounds(web_waits=waits),
    ) as live:
        yield live


def route(**fields):
    """Return a message of a user on the web."""
    given = {"user_id": "ana", "text": "hello", "locale": "en", "channel": "web"}
    return pb.RouteRequest(**(given | fields))


@pytest.mark.parametrize("name", WIRES)
async def test_a_turn_goes_its_way(tax, name):
    """Route, a handoff, a lock and GetStatus, one after the other over each protocol."""
    wire, session_id = wire_to(tax, name), f"web-{name}"
    routed = await wire.call("Route", route(session_id=session_id), pb.RouteResponse)
    assert routed.message.dispatch.agent.agent_id == "coordinator"
    handed = pb.CompleteTurnRequest(
        session_id=session_id,
        user_id="ana",
        request_id=routed.message.request_id,
        agent_id="coordinator",
        text="¿IVA? 你好 🧾",
        **hand_to("vat"),
    )
    answered = await wire.call("CompleteTurn", handed, pb.CompleteTurnResponse)
    assert answered.message.text == "¿IVA? 你好 🧾"
    assert answered.message.next.agent.agent_id == "vat"
    status = await wire.call(
        "Status", pb.StatusRequest(session_id=session_id, user_id="ana"), pb.StatusResponse
    )
    assert status.message.active_agent.agent_id == "vat"
    assert status.message.revision == 2


@pytest.mark.parametrize("name", WIRES)
async def test_a_repeat_says_so(tax, name):
    """Repeats are recognised over every protocol, and across protocols."""
    request = route(session_id="web-once", request_id=fresh_id())
    first = await wire_to(tax, "grpc").call("Route", request, pb.RouteResponse)
    again = await wire_to(tax, name).call("Route", request, pb.RouteResponse)
    assert again.message == first.message
    assert again.trailers[REPLAYED_KEY] == "true"


REFUSED = {
    "every bad field": ("Route", route(session_id="a\nb", task_id="42"), {}),
    "unknown session": ("Status", pb.StatusRequest(session_id="nobody", user_id="ana"), {}),
    "handoff rules": (
        "SetActiveAgent",
        pb.SetActiveAgentRequest(
            session_id="web-refused", user_id="ana", agent_id="payroll", from_agent_id="vat"
        ),
        {},
    ),
    "stale revision": ("Route", route(session_id="web-stale", expected_revision=7), {}),
    "bad tenant": ("Route", route(session_id="web-tenant"), {"agent-routing-tenant": "a b"}),
    "no method of theirs": ("ListTasks", pb.ListTasksRequest(session_id="nobody"), {}),
}


async def test_details_of_errors_can_be_read_without_protobuf(tax):
    """A page that has only fetch() sees reason, metadata and every violation as JSON."""
    bad = {"sessionId": "a b\u0000", "userId": "ana", "text": "x" * 40_000}
    status, _headers, body = await asyncio.to_thread(
        wire_to(tax, "json").post,
        f"{SERVICE}/Route",
        json.dumps(bad).encode(),
        {"content-type": "application/json"},
    )
    error = json.loads(body)
    assert status == http.client.BAD_REQUEST
    assert error["code"] == "invalid_argument"
    debug = {each["type"]: each["debug"] for each in error["details"]}
    assert debug["google.rpc.ErrorInfo"]["reason"] == "INVALID_FIELD"
    assert debug["google.rpc.ErrorInfo"]["domain"] == "agent_routing"
    fields = [each["field"] for each in debug["google.rpc.BadRequest"]["fieldViolations"]]
    assert {"session_id", "text"} <= set(fields)


@pytest.mark.parametrize("case", REFUSED)
async def test_errors_are_the_same_with_all_details(tax, case):
    """Code, message, reason, metadata and violations: browsers get all of them."""
    method, request, headers = REFUSED[case]
    answer_class = getattr(pb, f"{method}Response")
    expected = (await wire_to(tax, "grpc").call(method, request, answer_class, headers)).status
    assert expected.details
    for name in HTTP_WIRES:
        outcome = await wire_to(tax, name).call(method, request, answer_class, headers)
        assert outcome.status == expected, name
        assert not outcome.messages


@pytest.mark.parametrize("name", HTTP_WIRES)
async def test_bytes_that_are_no_request(tax, name):
    """The parser's own message is not shown, also if JSON is nested too deeply for it."""
    expected = (await wire_to(tax, "grpc").call("Route", b"\xff\xff", pb.RouteResponse)).status
    bodies = [b"\xff\xff"]
    if name == "json":
        bodies += [b'{"text": 7}', b"[" * 100_000, b'"\xc3"', b'{"taskExpireTime": "never"}', b""]
    for body in bodies:
        outcome = await wire_to(tax, name).call("Route", body, pb.RouteResponse)
        assert outcome.status == expected, body[:20]


async def test_json_may_have_fields_that_are_not_known_here(tax):
    """A page may be newer than the service."""
    body = json.dumps({"sessionId": "web-new", "user_id": "ana", "text": "hi", "mood": "good"})
    outcome = await wire_to(tax, "json").call("Route", body.encode(), pb.RouteResponse)
    assert outcome.message.session_id == "web-new"


@pytest.mark.parametrize("name", HTTP_WIRES)
async def test_a_request_that_is_too_large_is_not_read(tax, name):
    """As on gRPC, the limit applies before the handler."""
    large = route(session_id="web-large", text="x" * 300_000)
    wire = wire_to(tax, name)
    outcome = await wire.call("Route", large, pb.RouteResponse)
    assert outcome.status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    assert "larger than" in outcome.status.message
    assert not tax.observer.calls


MANY_VALUES = b'{"context":{"a":[' + b",".join([b"{}"] * 86_000) + b"]}}"


@pytest.fixture
def parsed(monkeypatch):
    """All JSON that was parsed as a message."""
    seen, parse = [], json_format.Parse

    def note(text, *arguments, **keywords):
        seen.append(text)
        return parse(text, *arguments, **keywords)

    monkeypatch.setattr(request_checks.json_format, "Parse", note)
    return seen


async def test_json_is_read_for_those_alone_who_signed_in(tmp_path, parsed):
    """250 kB of JSON take 250 ms to parse, so only signed-in callers' JSON is parsed."""
    async with serving_signed_in(tmp_path, "tax", web_listen="127.0.0.1:0") as live:
        wire = wire_to(live, "json")
        outcome = await wire.call("SetActiveAgent", MANY_VALUES, pb.SetActiveAgentResponse)
        assert outcome.status.code == grpc.StatusCode.UNAUTHENTICATED.value[0]
        ana = {"authorization": f"Bearer {token('route', user='ana')}"}
        outcome = await wire.call("SetActiveAgent", MANY_VALUES, pb.SetActiveAgentResponse, ana)
        assert outcome.status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        assert "more than 5000 values; send fewer at a time" in outcome.status.message
        assert b"TOO_LARGE" in outcome.status.SerializeToString()
        assert not parsed


@pytest.mark.parametrize(
    "body",
    [b"[" * 5_000, b'{"a":' * 5_000, b"," * 5_000, b'"' + b"," * 5_000 + b'"', b'"text"', b"7"],
)
async def test_json_that_is_no_object_is_no_request(tax, body):
    """Also if its values have to be counted first."""
    outcome = await wire_to(tax, "json").call("Route", body, pb.RouteResponse)
    assert outcome.status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert b"MALFORMED_REQUEST" in outcome.status.SerializeToString()


async def test_what_people_write_is_no_number_of_values(tax, parsed):
    """Commas and brackets inside a text are not counted as values."""
    text = "[{1, 2: 3}]" * 2_500
    request = route(session_id="web-commas", text=text)
    outcome = await wire_to(tax, "json").call("Route", request, pb.RouteResponse)
    assert outcome.message.dispatch.text == text
    assert len(parsed) == 2  # The request, and the answer here.


@pytest.mark.parametrize("name", HTTP_WIRES)
async def test_compressed_requests_are_refused_unread(tax, name):
    """312 bytes can expand to 250 kB of JSON. Answers are compressed if the client accepts it."""
    wire, small = wire_to(tax, name), gzip.compress(MANY_VALUES)
    assert len(small) < 1_000
    headers = {"content-encoding": "gzip"}
    if name == "grpc-web":
        headers = {"grpc-encoding": "gzip"}
        small = struct.pack(">BI", 1, len(small)) + small
        wire.call = _without_frame(wire)
    outcome = await wire.call("SetActiveAgent", small, pb.SetActiveAgentResponse, headers)
    assert outcome.status.code == grpc.StatusCode.UNIMPLEMENTED.value[0]
    assert outcome.status.message.endswith("send the request without compression")
    assert not tax.observer.calls


def _without_frame(wire):
    """Return a gRPC-Web call without its body's frame."""

    async def call(method, body, _answer_class, headers):
        headers = {"content-type": "application/grpc-web+proto"} | headers
        _, answered, body = await asyncio.to_thread(wire.post, f"{SERVICE}/{method}", body, headers)
        trailers = {key.lower(): value for key, value in answered.items()}
        for _flags, frame in frames(body):
            trailers |= dict(line.split(": ", 1) for line in frame.decode().splitlines())
        return Outcome([], _grpc_status(trailers), trailers)

    return call


async def test_answers_are_compressed_for_who_asks(tax):
    """Only requests may not be compressed."""
    status, headers, body = await asyncio.to_thread(
        Connect(tax.server.web_url).post,
        f"{SERVICE}/ListAgents",
        b"{}",
        {"content-type": "application/json", "accept-encoding": "gzip"},
    )
    assert status == http.client.OK
    assert headers["content-encoding"] == "gzip"
    assert b"coordinator" in gzip.decompress(body)


@pytest.mark.parametrize("name", ["connect", "grpc-web"])
async def test_a_deadline_ends_the_call(tax, name, monkeypatch):
    """The client's timeout applies to the call, as on gRPC; the handler is cancelled with it."""
    key, given = ("connect-timeout-ms", "80") if name == "connect" else ("grpc-timeout", "80m")
    held = asyncio.Event()

    async def hold(*_arguments):
        await held.wait()

    monkeypatch.setattr(tax.store, "load", hold)
    outcome = await wire_to(tax, name).call(
        "Status",
        pb.StatusRequest(session_id="slow", user_id="ana"),
        pb.StatusResponse,
        {key: given},
    )
    assert outcome.status.code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
    [record] = tax.observer.calls
    assert record.code == "CANCELLED"


async def test_more_calls_than_it_can_answer_are_refused_unread(tmp_path, monkeypatch):
    """The refusal has a reason and a retry delay."""
    async with serving(tmp_path, "tax", web_listen="127.0.0.1:0", pending_requests_max=1) as live:
        held, reached, load = asyncio.Event(), asyncio.Event(), live.store.load

        async def hold(*arguments):
            reached.set()
            await held.wait()
            return await load(*arguments)

        monkeypatch.setattr(live.store, "load", hold)
        first = asyncio.ensure_future(
            wire_to(live, "connect").call("Route", route(session_id="a"), pb.RouteResponse)
        )
        await reached.wait()
        for name in HTTP_WIRES:
            refused = await wire_to(live, name).call(
                "Route", route(session_id="b"), pb.RouteResponse
            )
            assert refused.status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
            assert [each.type_url.rpartition("/")[2] for each in refused.status.details] == [
                "google.rpc.ErrorInfo",
                "google.rpc.RetryInfo",
            ]
        held.set()
        assert (await first).message.session_id == "a"


async def test_overload_is_told_before_the_body_and_half_a_body_holds_no_place(
    tmp_path, monkeypatch
):
    """The body is not read first; strangers who send half a body block no other caller."""
    async with serving(tmp_path, "tax", web_listen="127.0.0.1:0", pending_requests_max=1) as live:
        url = urllib.parse.urlsplit(live.server.web_url)
        body = json_format.MessageToJson(route(session_id="half")).encode()
        head = (
            f"POST {SERVICE}/Route HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        ).encode()
        half = await asyncio.open_connection(url.hostname, url.port)
        half[1].write(head + body[:-1])
        for _ in range(3):
            request = route(session_id=fresh_id())
            said = await wire_to(live, "json").call("Route", request, pb.RouteResponse)
            assert said.status is None
        held, reached, load = asyncio.Event(), asyncio.Event(), live.store.load

        async def hold(*arguments):
            reached.set()
            await held.wait()
            return await load(*arguments)

        monkeypatch.setattr(live.store, "load", hold)
        first = asyncio.ensure_future(
            wire_to(live, "connect").call("Route", route(session_id="a"), pb.RouteResponse)
        )
        await reached.wait()
        unsent = await asyncio.open_connection(url.hostname, url.port)
        unsent[1].write(head)
        half[1].write(body[-1:])
        for reader, writer in (unsent, half):
            told = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
            assert told.startswith(b"HTTP/1.1 429 ")
            writer.close()
        held.set()
        assert (await first).message.session_id == "a"


# --- streams ---


class Watcher:
    """A watch read from its connection, over Connect or gRPC-Web."""

    def __init__(self, live, name):
        self.is_connect = name == "connect"
        self.url = urllib.parse.urlsplit(live.server.web_url)

    async def begin(self, request, headers=None, rpc="WatchSession"):
        """Send the request, and read the answer's headers."""
        more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        kind = "connect+proto" if self.is_connect else "grpc-web+proto"
        body = request.SerializeToString()
        body = struct.pack(">BI", 0, len(body)) + body
        self.reader, self.writer = await asyncio.open_connection(self.url.hostname, self.url.port)
        self.writer.write(
            f"POST {SERVICE}/{rpc} HTTP/1.1\r\nhost: {self.url.netloc}\r\n"
            f"content-type: application/{kind}\r\n{more}"
            f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 20)
        assert head.startswith(b"HTTP/1.1 200 ")
        self.rest = b""
        return self

    async def frame(self):
        """Return flags and content of the next frame."""
        async with asyncio.timeout(20):
            head = await self._bytes(5)
            flags, length = struct.unpack(">BI", head)
            return flags, await self._bytes(length)

    async def message(self):
        """Return the next message."""
        flags, content = await self.frame()
        assert flags == 0, content
        return pb.WatchSessionResponse.FromString(content)

    async def end(self):
        """Return the status that ends the stream."""
        return self.status_in(await self.frame())

    def status_in(self, frame):
        """Return the status in the last frame."""
        flags, content = frame
        if self.is_connect:
            assert flags & 0x02, content
            return _connect_status(json.loads(content)["error"])
        assert flags & 0x80, content
        return _grpc_status(dict(line.split(": ", 1) for line in content.decode().splitlines()))

    async def leave(self):
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    async def _bytes(self, count):
        while len(self.rest) < count:
            size = int(await self.reader.readline(), 16)
            self.rest += await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken


@pytest.mark.parametrize("name", ["connect", "grpc-web"])
async def test_a_watch_gets_changes_as_they_happen(tax, name):
    """Changes from before it, changes during it, and a heartbeat in between."""
    chat = tax.chat(f"web-watch-{name}")
    await chat.say("one")
    request = pb.WatchSessionRequest(session_id=chat.session_id, user_id="ana", after_revision=0)
    watcher = await Watcher(tax, name).begin(request)
    assert (await watcher.message()).heartbeat.revision == 1
    assert (await watcher.message()).change.revision == 1
    await chat.say("two")
    assert (await watcher.message()).change.revision == 2
    await watcher.leave()
    async with asyncio.timeout(20):
        while tax.server.watches:  # noqa: ASYNC110 - it is seen from outside alone
            await asyncio.sleep(0.01)
    assert [r.code for r in tax.observer.calls if r.method == "WatchSession"] == ["CANCELLED"]


async def test_a_watch_can_be_read_as_json_in_envelopes(tax):
    """What a page without generated code needs: five bytes before each JSON text."""
    chat = tax.chat("web-json-watch")
    await chat.say("one")
    asked = json.dumps({"sessionId": chat.session_id, "userId": "ana", "afterRevision": "0"})
    reader, writer = await asyncio.open_connection(
        wire_to(tax, "json").host, wire_to(tax, "json").port
    )
    body = b"\0" + len(asked).to_bytes(4, "big") + asked.encode()
    writer.write(
        f"POST {SERVICE}/WatchSession HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        f"Content-Type: application/connect+json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    await reader.readuntil(b"\r\n\r\n")
    read = b""
    async with asyncio.timeout(20):
        while b"messageRouted" not in read:
            read += await reader.read(65_536)
    writer.close()
    assert b'{"heartbeat": ' in read
    assert b'{"change": ' in read


@pytest.mark.parametrize("name", ["connect", "grpc-web"])
async def test_a_watch_that_is_refused_says_why(tax, name):
    """The status with all its details ends the stream."""
    watcher = await Watcher(tax, name).begin(
        pb.WatchSessionRequest(session_id="nobody", user_id="ana")
    )
    status = await watcher.end()
    assert status.code == grpc.StatusCode.NOT_FOUND.value[0]
    assert status.details
    await watcher.leave()


@pytest.mark.parametrize("name", ["connect", "grpc-web"])
async def test_streams_both_ways_need_grpc(tax, name):
    """HTTP/1.1 has no such streams: the caller gets an error instead of waiting."""
    kind = "connect+proto" if name == "connect" else "grpc-web+proto"
    status, _headers, body = await asyncio.to_thread(
        wire_to(tax, "connect").post,
        f"{SERVICE}/RouteStream",
        b"",
        {"content-type": f"application/{kind}"},
    )
    [(_flags, end)] = frames(body)
    assert status == http.client.OK
    if name == "connect":
        assert _connect_status(json.loads(end)["error"]).details
    assert b"needs gRPC" in urllib.parse.unquote_to_bytes(end)


@pytest.mark.parametrize("name", ["connect", "grpc-web"])
async def test_draining_ends_watches_and_finishes_calls(tmp_path, name, monkeypatch):
    """SIGTERM works as on gRPC: calls are answered, watches can resume elsewhere."""
    async with serving(tmp_path, "tax", web_listen="127.0.0.1:0") as live:
        chat = live.chat("web-drain")
        await chat.say("one")
        watcher = await Watcher(live, name).begin(
            pb.WatchSessionRequest(session_id=chat.session_id, user_id="ana")
        )
        await watcher.message()
        held, reached, load = asyncio.Event(), asyncio.Event(), live.store.load

        async def hold(*arguments):
            reached.set()
            await held.wait()
            return await load(*arguments)

        monkeypatch.setattr(live.store, "load", hold)
        call = asyncio.ensure_future(
            wire_to(live, name).call("Route", route(session_id="in-flight"), pb.RouteResponse)
        )
        await reached.wait()
        stopping = asyncio.ensure_future(live.server.stop(20))
        status = await watcher.end()
        assert status.code == grpc.StatusCode.UNAVAILABLE.value[0]
        assert b"SHUTTING_DOWN" in status.SerializeToString()
        await watcher.leave()
        held.set()
        assert (await call).message.session_id == "in-flight"
        await asyncio.wait_for(stopping, 20)
        with pytest.raises(ConnectionError):
            await wire_to(live, name).call("Route", route(), pb.RouteResponse)


# --- access ---


@pytest.mark.parametrize("name", HTTP_WIRES)
@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", f"{PAGE}.evil.example", f"{PAGE}:8443", "http://x"]
)
async def test_a_page_that_is_not_named_cannot_even_call(tax, name, origin):
    """Hiding the answer would not be enough, because the call would have had its effect."""
    wire = Connect(tax.server.web_url)
    kinds = {"connect": "proto", "json": "json", "grpc-web": "grpc-web+proto"}
    status, headers, body = await asyncio.to_thread(
        wire.post,
        f"{SERVICE}/Route",
        b"{}",
        {"content-type": f"application/{kinds[name]}", "origin": origin},
    )
    assert status == http.client.FORBIDDEN
    assert "access-control-allow-origin" not in headers
    assert json.loads(body)["code"] == "permission_denied"
    assert not tax.observer.calls


async def test_a_page_is_not_let_in_because_it_says_it_comes_from_here(tax):
    """An attacker may control host and origin both, by a name that resolves to loopback."""
    url = urllib.parse.urlsplit(tax.server.web_url)
    headers = {
        "content-type": "application/json",
        "host": f"evil.example:{url.port}",
        "origin": f"http://evil.example:{url.port}",
    }
    wire = Connect(tax.server.web_url)
    status, _, _ = await asyncio.to_thread(wire.post, f"{SERVICE}/Route", b"{}", headers)
    assert status == http.client.FORBIDDEN


async def test_a_page_that_is_named_may_call_and_read_all_of_the_answer(tax):
    """The preflight, the answer, and the headers that carry errors and repeats."""
    url = urllib.parse.urlsplit(tax.server.web_url)

    def preflight(origin):
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=20)
        asked = {
            "origin": origin,
            "access-control-request-method": "POST",
            "access-control-request-headers": "content-type,connect-timeout-ms,authorization",
        }
        connection.request("OPTIONS", f"{SERVICE}/Route", headers=asked)
        response = connection.getresponse()
        response.read()
        connection.close()
        return response

    allowed = await asyncio.to_thread(preflight, PAGE)
    assert allowed.status == http.client.OK
    assert allowed.headers["access-control-allow-origin"] == PAGE
    assert allowed.headers["access-control-allow-credentials"] is None
    refused = await asyncio.to_thread(preflight, "http://evil.example")
    assert refused.status == http.client.FORBIDDEN
    body = json_format.MessageToJson(route(session_id="web-page")).encode()
    status, headers, _ = await asyncio.to_thread(
        Connect(tax.server.web_url).post,
        f"{SERVICE}/Route",
        body,
        {"content-type": "application/json", "origin": PAGE},
    )
    assert status == http.client.OK
    assert headers["access-control-allow-origin"] == PAGE
    exposed = headers["access-control-expose-headers"].lower()
    assert {"grpc-status", DETAILS_KEY, f"trailer-{REPLAYED_KEY}"} <= {*exposed.split(", ")}


@pytest.mark.parametrize(
    ("method", "path", "content_type", "expected"),
    [
        ("POST", f"{SERVICE}/Route", "application/grpc", 415),
        ("POST", f"{SERVICE}/Route", "application/grpc+proto", 415),
        ("POST", f"{SERVICE}/Route", "text/plain", 415),
        ("POST", f"{SERVICE}/Nothing", "application/json", 404),
        ("POST", "/agent_routing.v1.AdminService/EraseUser", "application/json", 404),
        ("GET", f"{SERVICE}/Status?encoding=json&message=%7B%7D", "", 405),
        ("GET", "/readyz", "", 200),
        ("GET", "/livez", "", 200),
    ],
)
async def test_what_is_not_served_here(tax, method, path, content_type, expected):
    """Operators' RPCs, gRPC itself, and requests whose URL would put user text into logs."""
    url = urllib.parse.urlsplit(tax.server.web_url)

    def ask():
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=20)
        connection.request(method, path, b"", {"content-type": content_type})
        response = connection.getresponse()
        response.read()
        connection.close()
        return response.status

    assert await asyncio.to_thread(ask) == expected


@pytest.mark.parametrize("tax", [WaitLimits(body_s_max=0.05)], indirect=True)
async def test_a_body_that_never_comes_lets_go_of_its_connection(tax):
    """A caller that sends half a message must not hold a place forever."""
    url = urllib.parse.urlsplit(tax.server.web_url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    writer.write(
        f"POST {SERVICE}/Route HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        "content-length: 100\r\n\r\n{".encode()
    )
    said = await asyncio.wait_for(reader.read(), 20)
    assert said.startswith(b"HTTP/1.1 499") or said == b""
    writer.close()
    assert not tax.observer.calls


async def _livez(live):
    url = urllib.parse.urlsplit(live.server.web_url)

    def ask():
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=20)
        connection.request("GET", "/livez")
        response = connection.getresponse()
        response.read()
        connection.close()
        return response.status

    return await asyncio.to_thread(ask)


async def test_connections_that_say_nothing_are_let_go(tmp_path):
    """An unlimited number of them would block all other callers."""
    bounds = Bounds(web_waits=WaitLimits(headers_s_max=0.5))
    async with serving(
        tmp_path, "tax", bounds=bounds, web_listen="127.0.0.1:0", connections_max=10
    ) as live:
        url = urllib.parse.urlsplit(live.server.web_url)
        silent = [await asyncio.open_connection(url.hostname, url.port) for _ in range(10)]
        async with asyncio.timeout(20):
            for reader, _writer in silent:
                assert await _end_of(reader) == b""
            assert await _livez(live) == http.client.OK
        for _reader, writer in silent:
            writer.close()


@pytest.mark.parametrize("tax", [WaitLimits(headers_s_max=0.2)], indirect=True)
@pytest.mark.parametrize("before", [b"", b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"])
async def test_headers_that_come_byte_by_byte_are_not_waited_for(tax, before):
    """For the first request and for later ones: single bytes do not extend the timeout."""
    url = urllib.parse.urlsplit(tax.server.web_url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    writer.write(before)
    if before:
        await asyncio.wait_for(reader.readuntil(b"ok\n"), 20)
    writer.write(b"GET /livez HTTP/1.1\r\nx: ")
    ended = asyncio.ensure_future(_end_of(reader))
    async with asyncio.timeout(20):
        while not ended.done():
            with contextlib.suppress(ConnectionError):
                writer.write(b"x")
                await writer.drain()
            await asyncio.wait([ended], timeout=0.01)
    assert await ended == b""
    writer.close()


async def _end_of(reader):
    """Return everything up to the connection's end, however it ends."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


async def test_an_answer_that_nobody_reads_is_not_kept(tmp_path):
    """A caller that sends requests and never reads must not hold a place forever."""
    bounds = Bounds(web_waits=WaitLimits(unread_s_max=0.2))
    path = tmp_path / "web.sock"
    async with serving(
        tmp_path, "tax", bounds=bounds, web_listen=f"unix:{path}", connections_max=2
    ):
        with structlog.testing.capture_logs() as lines, socket.socket(socket.AF_UNIX) as deaf:
            deaf.connect(str(path))
            deaf.settimeout(0)
            gone = select.poll()
            gone.register(deaf, select.POLLHUP)
            # More answers than the kernel buffers; requests until the server stops reading.
            asked = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n" * 1_000
            async with asyncio.timeout(30):
                while not gone.poll(0):
                    with contextlib.suppress(BlockingIOError, BrokenPipeError):
                        deaf.send(asked)
                    await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert b"200 OK" in await asyncio.wait_for(reader.read(), 20)
        writer.close()
    (line,) = [line for line in lines if line["event"] == "web_reader_too_slow"]
    assert line["unread_bytes"] > 0


@pytest.mark.parametrize("tax", [WaitLimits(headers_s_max=0.5)], indirect=True)
async def test_a_call_may_take_longer_than_headers(tax, monkeypatch):
    """The limit is on silence before a call, not on the call."""
    held, reached, load = asyncio.Event(), asyncio.Event(), tax.store.load

    async def hold(*arguments):
        reached.set()
        await held.wait()
        return await load(*arguments)

    monkeypatch.setattr(tax.store, "load", hold)
    call = asyncio.ensure_future(
        wire_to(tax, "connect").call("Route", route(session_id="long"), pb.RouteResponse)
    )
    await reached.wait()
    url = urllib.parse.urlsplit(tax.server.web_url)
    # It came after the call's connection, so it would be closed later.
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    assert await asyncio.wait_for(_end_of(reader), 20) == b""
    writer.close()
    held.set()
    assert (await call).message.session_id == "long"


async def test_a_header_that_is_no_text_is_refused_with_a_word(tax):
    """The client gets the remedy, and the log gets no library traceback."""
    status, _headers, body = await asyncio.to_thread(
        Connect(tax.server.web_url).post,
        f"{SERVICE}/Route",
        b"{}",
        {"content-type": "application/json", "x-user": b"Jos\xe9"},
    )
    assert status == http.client.BAD_REQUEST
    assert json.loads(body) == {
        "code": "invalid_argument",
        "message": "the header x-user is not UTF-8; encode it as UTF-8, or leave it out",
    }
    status, _headers, _body = await asyncio.to_thread(
        Connect(tax.server.web_url).post,
        f"{SERVICE}/Route",
        json_format.MessageToJson(route(session_id="web-name")).encode(),
        {"content-type": "application/json", "x-user": "José".encode()},
    )
    assert status == http.client.OK


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("path", "headers", "body", "status"),
    [
        ("Route", JSON, b" " * 300_000, 429),
        ("Route", JSON | {"content-encoding": "gzip"}, b"no gzip", 501),
        ("Route", {"content-type": "text/plain"}, b"{}", 415),
        ("Route", {"content-type": "application/grpc"}, b"{}", 415),
        ("Route", JSON | {"x-user": b"\xe9"}, b"{}", 400),
        ("R" * 900, JSON, b"{}", 404),
        # After a 200, since gRPC-Web has its errors in the body.
        ("Route", {"content-type": "application/grpc-web+proto"}, b"", 200),
        ("RouteStream", {"content-type": "application/connect+proto"}, b"", 200),
    ],
)
async def test_what_no_handler_hears_of_has_its_line(tax, path, headers, body, status):
    """One log line each, as for a handler's refusals, with limited length."""
    with structlog.testing.capture_logs() as lines:
        answered, _headers, _body = await asyncio.to_thread(
            Connect(tax.server.web_url).post, f"{SERVICE}/{path}", body, headers
        )
    assert answered == status
    [line] = [each for each in lines if each["event"] == "call_refused"]
    assert line["http_status"] == status
    assert line["url_path"] == f"{SERVICE}/{path}"[:200]
    assert line["peer"].startswith("127.0.0.1:")
    assert line["error_reason"] == ("NOT_IMPLEMENTED" if path == "RouteStream" else "")
    assert line["log_level"] == "warning"
    assert not tax.observer.calls


def head(*lines, end="\r\n"):
    """Return a request's headers and a two-byte body, whose length may be missing or wrong."""
    first = (f"POST {SERVICE}/ListAgents HTTP/1.1", "host: x", "content-type: application/json")
    return (end.join((*first, *lines)) + end + end).encode() + b"{}"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (head("content-length: 2"), 200),
        (head("content-length: 2", "transfer-encoding: chunked"), 400),
        (head("Transfer-Encoding : chunked", "content-length: 2"), 400),
        (head("transfer-encoding: chunked").replace(b"HTTP/1.1", b"HTTP/1.0"), 400),
        (head("content-length: 2", end="\n"), 400),
        (head("content-length: 2\nx-smuggled: 1"), 400),
        (head("content-length: 2", f"x-long: {'a' * HEADER_BYTES_MAX}"), 431),
        (head("content-length: 2", *(f"x-{n}: {'a' * 1000}" for n in range(17))), 431),
        (head("content-length: 2", f"x-long: {'a' * (HEADER_BYTES_MAX - 250)}"), 200),
        (head("content-length: 2") + head("content-length: 2", end="\n"), 200),
    ],
)
async def test_a_head_that_proxies_read_differently_closes_the_connection(tax, sent, status):
    """Such headers smuggle a second request past a proxy; the size limit holds for one piece."""
    url = urllib.parse.urlsplit(tax.server.web_url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    is_refused = status != http.client.OK or b"\n\n" in sent
    with structlog.testing.capture_logs() as lines:
        writer.write(sent)
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())
        if is_refused:
            rest = await asyncio.wait_for(reader.read(), 20)
            assert b"HTTP/1.1 200" not in rest
    writer.close()
    logged = [each for each in lines if each["event"] == "call_refused"]
    assert len(logged) == is_refused
    assert len([r for r in tax.observer.calls if r.method == "ListAgents"]) == (status == 200)


@pytest.mark.parametrize(
    ("text", "is_taken"),
    [
        ("aGk=", True),
        ("aGk", True),
        ("-_-_", True),
        ("", True),
        ("aGk*", False),
        ("a Gk=", False),
        ("aGk==", False),
        ("aGkaa", False),
        ("+_AA", False),
        ("a=Gk", False),
        ("aGk=\n", False),
    ],
)
async def test_data_that_is_no_base64_is_refused(tax, text, is_taken):
    """Protobuf skips unknown data, and would store other bytes than were sent."""
    item = {"contentType": "image/png", "data": text}
    body = {"sessionId": f"b64-{len(text)}", "userId": "ana", "text": "see", "items": [item]}
    status, _headers, answer = await asyncio.to_thread(
        Connect(tax.server.web_url).post, f"{SERVICE}/Route", json.dumps(body).encode(), JSON
    )
    said = json.loads(answer)
    assert status == (http.client.OK if is_taken else http.client.BAD_REQUEST)
    assert is_taken or "items[0].data" in said["message"]


async def test_refused_requests_follow_the_privacy_of_the_log(tax):
    """A path and an origin come from a stranger and may contain a person's name."""
    hashes = IdHashes(b"0123456789abcdef")
    with structlog.testing.capture_logs() as lines:
        for headers in (JSON, JSON | {"origin": "https://ana-perez.example"}):
            await asyncio.to_thread(
                Connect(tax.server.web_url).post, "/ana-perez@example.org", b"{}", headers
            )
    kept = [each for each in lines if each["event"] in ("call_refused", "origin_refused")]
    assert len(kept) == 2
    for line in kept:
        hashes.hide_in(line)
        assert "ana-perez" not in str(line)
        assert line["url_path"].startswith("#")


async def test_what_a_handler_hears_of_has_no_second_line(tax):
    """Probes have no line either: they come every second."""
    with structlog.testing.capture_logs() as lines:
        for name in HTTP_WIRES:
            refused = await wire_to(tax, name).call(
                "Route", route(session_id="\n"), pb.RouteResponse
            )
            assert refused.status.details
        assert await _livez(tax) == http.client.OK
    assert len(tax.observer.calls) == len(HTTP_WIRES)
    assert not [line for line in lines if line["event"] == "call_refused"]


async def test_an_origin_that_is_empty_is_quoted(tax):
    """The quotation marks show an empty value."""
    _status, _headers, body = await asyncio.to_thread(
        Connect(tax.server.web_url).post, f"{SERVICE}/Route", b"{}", JSON | {"origin": ""}
    )
    assert json.loads(body)["message"].startswith('pages of "" may not call this service')


async def test_signing_in_is_the_same(tmp_path):
    """No token, a valid one, one without the scope, and two at once: the same as on gRPC."""
    async with serving_signed_in(tmp_path, "tax", web_listen="127.0.0.1:0") as live:
        ana = {"authorization": f"Bearer {token('route', user='ana')}"}
        ben = {"authorization": f"Bearer {token('route', user='ben')}"}
        forged = {"authorization": f"Bearer {token('route', user='ana', key=WRONG_KEY)}"}
        complete = pb.CompleteTurnRequest(
            session_id="web-ana", request_id=fresh_id(), agent_id="vat", **proceed()
        )
        say = route(session_id="web-ana", user_id="")
        for name in HTTP_WIRES:
            wire, reference = wire_to(live, name), wire_to(live, "grpc")
            said = await wire.call("Route", say, pb.RouteResponse, ana)
            assert said.message.dispatch.agent.agent_id == "coordinator"
            for method, request, headers in (
                ("Route", say, {}),
                ("Route", say, forged),
                ("Route", say, ben),
                ("CompleteTurn", complete, ana),
            ):
                answer_class = getattr(pb, f"{method}Response")
                expected = await reference.call(method, request, answer_class, headers)
                refused = await wire.call(method, request, answer_class, headers)
                assert refused.status == expected.status
                assert refused.status.details


async def test_tls_is_the_servers_own(tmp_path):
    """One certificate serves both listeners; plaintext is not answered."""
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    await asyncio.to_thread(
        subprocess.run,
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    async with serving(
        tmp_path,
        "tax",
        web_listen="127.0.0.1:0",
        tls_certificate_file=str(certificate),
        tls_key_file=str(key),
    ) as live:
        url = urllib.parse.urlsplit(live.server.web_url)
        assert url.scheme == "https"

        def ready():
            context = ssl.create_default_context(cafile=str(certificate))
            connection = http.client.HTTPSConnection(
                url.hostname, url.port, timeout=20, context=context
            )
            connection.request("GET", "/readyz")
            status = connection.getresponse().status
            connection.close()
            return status

        assert await asyncio.to_thread(ready) == http.client.OK
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            await asyncio.to_thread(Connect(live.server.web_url).post, "/readyz", b"", {})


# --- settings ---


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("", set()),
        (f"{PAGE}, http://localhost:5173", {PAGE, "http://localhost:5173"}),
        ("https://Chat.Example.org:443 http://a:80", {PAGE, "http://a"}),
        ("http://[::1]:8080", {"http://[::1]:8080"}),
    ],
)
def test_origins_are_read_as_browsers_write_them(text, read):
    """Browsers never send a scheme's default port."""
    assert parse_origins(text) == read


@pytest.mark.parametrize(
    "text", ["*", "chat.example.org", f"{PAGE}/", "ftp://x", "https://*.example.org", "null"]
)
def test_what_is_no_origin_is_refused(text):
    """Above all not a wildcard, which would allow every page."""
    with pytest.raises(ValueError, match="is no origin; give scheme, host and port"):
        parse_origins(text)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"web_listen": "0.0.0.0:8080"}, "web_listen .* which others can reach"),
        ({"web_listen": "8080"}, "give HOST:PORT"),
        ({"web_listen": "127.0.0.1:0", "web_origins": "*"}, 'web_origins is "\\*"'),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(flags, words):
    """The error names the remedy."""
    with pytest.raises(SettingsInvalid, match=words):
        resolve_settings(flags, {})


async def test_an_address_that_is_taken_is_told(tmp_path):
    """As for the gRPC listener; no socket stays open."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Exception, match=f"cannot listen on {address}"):
            async with serving(tmp_path, "tax", web_listen=address):
                pass


async def test_it_listens_on_a_unix_socket_too(tmp_path):
    """For a proxy on the same machine; the path is free again afterwards."""
    path = tmp_path / "web.sock"
    async with serving(tmp_path, "tax", web_listen=f"unix:{path}") as live:
        assert live.server.web_url == f"unix:{path}"
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert b"200 OK" in await asyncio.wait_for(reader.read(), 20)
        writer.close()
    assert not path.exists()


def test_a_server_without_the_extra_says_what_to_install():
    """The listener is an extra; its setting may be used where the extra is not installed."""
    registry = ROOT / "routing_service" / "examples" / "tax.yaml"
    program = (
        "import sys; sys.modules['routing_service.web.web_listener'] = None\n"
        "from routing_service.cli import main; main()"
    )
    done = subprocess.run(
        [
            *(sys.executable, "-c", program, "serve", "--listen", "127.0.0.1:0"),
            *("--web-listen", "127.0.0.1:0", "--store", "memory:", "--agents", str(registry)),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert "install agent-routing-service[web]" in done.stderr


# --- an independent client ---


@pytest.mark.parametrize("protocol", ["connect", "grpcweb"])
async def test_buf_curl_speaks_with_it(tax, protocol):
    """An independent implementation of both protocols: an answer, an error, and a stream."""
    chat = tax.chat(f"buf-{protocol}")
    await chat.say("hello")
    asked = json.dumps({"session_id": chat.session_id, "user_id": "ana"})

    async def curl(method, data):
        return await asyncio.create_subprocess_exec(
            shutil.which("buf", path=str(Path(sys.executable).parent)),
            *("curl", "--protocol", protocol, "--schema", str(ROOT), "-d", data),
            f"{tax.server.web_url}{SERVICE}/{method}",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    said, _ = await (await curl("Status", asked)).communicate()
    assert json.loads(said)["nextAgent"]["agentId"] == "coordinator"
    _, complaint = await (await curl("Status", '{"session_id": "nobody"}')).communicate()
    assert json.loads(complaint)["code"] == "not_found"
    assert json.loads(complaint)["details"]
    watching = await curl("WatchSession", json.dumps(json.loads(asked) | {"after_revision": "0"}))
    said = b""
    async with asyncio.timeout(30):
        while b"sessionStarted" not in said:
            said += await watching.stdout.readline()
    watching.terminate()
    await watching.wait()
