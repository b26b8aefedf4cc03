"""The console's listener: what it serves and to whom, and that no text of a conversation leaves it.

The page itself is tested in a browser by tests/clients/test_console_page.py.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import re
import struct
import urllib.parse
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from google.protobuf.message_factory import GetMessageClass

from agent_routing.v1 import admin_service_pb2, routing_service_pb2
from routing_service.rpc.masked_answers import CONSOLE_CALLS, SHOWN, hide_texts
from routing_service.settings.resolve import resolve_settings
from routing_service.settings.rules import SettingsInvalid
from routing_service.web.console import ConsoleSignIn
from tests.rpc.live_service import hand_to, serving
from tests.rpc.signed_in import WRONG_KEY, bearer, serving_signed_in, token

ROOT = Path(__file__).parents[2]

MARKUP = re.compile(
    r"\{@html|innerHTML|outerHTML|insertAdjacentHTML|document\.write|srcdoc|\beval\(|new Function"
)
"""What turns text into elements or code."""

PACKAGE = "/agent_routing.v1."
SECRET = "a secret that ana typed"

SERVICES = {
    "RoutingService": routing_service_pb2.DESCRIPTOR.services_by_name["RoutingService"],
    "AdminService": admin_service_pb2.DESCRIPTOR.services_by_name["AdminService"],
}


class Page:
    """Requests as a browser's page, or a stranger, sends them."""

    def __init__(self, url):
        self.at = urllib.parse.urlsplit(url)
        self.origin = url

    async def get(self, path="/", **headers):
        return await asyncio.to_thread(self.exchange, "GET", path, None, headers)

    async def post(self, service, rpc, body="{}", *, bearer="", **headers):
        """Call an RPC with JSON; return the status and the answer."""
        headers = {"content-type": "application/json", "origin": self.origin} | headers
        if bearer:
            headers["authorization"] = f"Bearer {bearer}"
        path = f"{PACKAGE}{service}/{rpc}"
        status, _, answer = await asyncio.to_thread(self.exchange, "POST", path, body, headers)
        return status, json.loads(answer) if answer.startswith(b"{") else answer.decode()

    def exchange(self, method, path, body, headers):
        connection = http.client.HTTPConnection(self.at.hostname, self.at.port, timeout=20)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()


@asynccontextmanager
async def opened(tmp_path, **settings):
    """Run a server with a console where callers do not sign in."""
    async with serving(tmp_path, "tax", console_listen="127.0.0.1:0", **settings) as live:
        yield live, Page(live.server.console_url)


@asynccontextmanager
async def opened_signed_in(tmp_path, **settings):
    """Run a server with a console for development tokens."""
    async with serving_signed_in(tmp_path, "tax", console_listen="127.0.0.1:0", **settings) as live:
        yield live, Page(live.server.console_url)


async def test_the_console_is_off_unless_its_address_is_set(tmp_path):
    """The users' port has none of its pages."""
    async with serving(tmp_path, "tax", web_listen="127.0.0.1:0") as live:
        assert live.server.console_url == ""
        status, _, _ = await Page(live.server.web_url).get("/console.js")
        assert status == http.client.NOT_FOUND


async def test_every_answer_has_the_policy_of_the_page(tmp_path):
    """Files, refusals and answers of calls: no script, style or frame of another place."""
    async with opened(tmp_path) as (_, page):
        for path, kind in (
            ("/", "text/html; charset=utf-8"),
            ("/console.js", "text/javascript; charset=utf-8"),
            ("/console.css", "text/css; charset=utf-8"),
            ("/sign-in.json", "application/json"),
            ("/nothing", None),
        ):
            status, headers, content = await page.get(path)
            assert status == (http.client.OK if kind else http.client.NOT_FOUND)
            assert headers["content-security-policy"] == (
                "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
                "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
            )
            assert headers["x-frame-options"] == "DENY"
            assert headers["x-content-type-options"] == "nosniff"
            assert "set-cookie" not in headers
            assert "access-control-allow-origin" not in headers
            if kind:
                assert headers["content-type"] == kind
                assert content
                again, _, none = await page.get(path, **{"if-none-match": headers["etag"]})
                assert (again, none) == (http.client.NOT_MODIFIED, b"")
        _, _, html = await page.get("/")
        assert b"style=" not in html
        assert b"onclick" not in html


def test_no_page_writes_markup():
    """Texts of users and agents are inserted as text; so nothing they write becomes an element."""
    sources = [
        *(ROOT / "console" / "src").rglob("*.svelte"),
        *(ROOT / "console" / "src").rglob("*.ts"),
    ]
    assert sources
    for source in sources:
        found = MARKUP.search(source.read_text("utf-8"))
        assert found is None, f"{source.name}: {found[0]}"


async def test_the_page_may_connect_to_the_issuer_alone():
    """Of the issuer's URL, the policy has the origin."""
    sign_in = ConsoleSignIn("oidc", issuer="https://login.example.com/realms/chat", client_id="x")
    assert sign_in.issuer_origin == "https://login.example.com"


async def test_only_the_calls_of_the_pages_are_served(tmp_path):
    """What no page does, no caller can do on this listener."""
    async with opened(tmp_path) as (_, page):
        for name, service in SERVICES.items():
            for method in service.methods:
                if method.name in CONSOLE_CALLS[name]:
                    continue
                status, _ = await page.post(name, method.name)
                assert status == http.client.NOT_FOUND, method.name
        status, listed = await page.post("AdminService", "ListSessions")
        assert (status, listed) == (http.client.OK, {})


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({"origin": "https://evil.example"}, 'pages of "https://evil.example" may not call'),
        ({"origin": "null"}, 'pages of "null" may not call'),
        ({"origin": "http://127.0.0.1:1"}, "may not call the console"),
        # A stranger's name that resolves to this machine: same origin for the browser.
        ({"host": "evil.example", "origin": "http://evil.example"}, "is not this machine"),
        ({"host": "evil.example"}, "is not this machine"),
        ({"host": "127.0.0.1.evil.example"}, "is not this machine"),
        ({"host": "evil.example@127.0.0.1"}, "is not this machine"),
        ({"host": "localhost#.evil.example"}, "is not this machine"),
        ({"host": "127.0.0.1/evil.example"}, "is not this machine"),
        # An origin that cannot be parsed was an INTERNAL error with a trace in the log.
        ({"origin": "http://["}, 'pages of "http://[" may not call'),
        ({"origin": ""}, 'pages of "" may not call'),
        # Other ports and schemes of the same machine are other pages.
        ({"host": "localhost", "origin": "http://localhost:443"}, "may not call the console"),
        ({"host": "localhost", "origin": "ftp://localhost"}, "may not call the console"),
    ],
)
async def test_pages_of_strangers_are_refused(tmp_path, headers, says):
    """Before a handler sees the call."""
    async with opened(tmp_path) as (live, page):
        status, answer = await page.post("AdminService", "ListSessions", **headers)
        assert status == http.client.FORBIDDEN
        assert says in answer["message"]
        assert not live.observer.calls


async def test_the_page_may_be_reached_through_a_forwarded_port(tmp_path):
    """Kubectl port-forward and ssh -L: another port, and localhost."""
    async with opened(tmp_path) as (_, page):
        for host in ("localhost:8000", "[::1]:8000", "127.0.0.1"):
            status, _ = await page.post(
                "AdminService", "ListSessions", host=host, origin=f"http://{host}"
            )
            assert status == http.client.OK, host


STREAMS = {"ExportUser", "WatchEvents", "WatchSession", "WatchApprovals", "WatchReplay"}


async def test_a_credential_without_the_scope_admin_sees_no_list(tmp_path):
    """The same refusals as over gRPC."""
    async with opened_signed_in(tmp_path) as (_, page):
        for bearer, code in (
            ("", "unauthenticated"),
            (token("admin", key=WRONG_KEY), "unauthenticated"),
            (token("admin", lasts_s=-60), "unauthenticated"),
            (token("route", user="ana"), "permission_denied"),
            (token("read", "approve", "act_as"), "permission_denied"),
        ):
            status, answer = await page.post("AdminService", "ListSessions", bearer=bearer)
            assert status >= http.client.BAD_REQUEST
            assert answer["code"] == code
        for service, names in CONSOLE_CALLS.items():
            for name in names - STREAMS:
                status, answer = await page.post(service, name)
                assert (status, answer["code"]) == (http.client.UNAUTHORIZED, "unauthenticated")
        status, answer = await page.post(
            "RoutingService", "Status", '{"sessionId": "x"}', bearer=token("approve")
        )
        assert (status, answer["code"]) == (http.client.FORBIDDEN, "permission_denied")
        assert not await stream_of_stranger(page)
        status, _ = await page.post("AdminService", "ListSessions", bearer=token("admin"))
        assert status == http.client.OK
        # Behind a name of its own: callers sign in, so a stranger's page has no credential.
        status, _ = await page.post(
            "AdminService",
            "ListSessions",
            bearer=token("admin"),
            host="console.example.org",
            origin="https://console.example.org",
        )
        assert status == http.client.OK


async def test_an_operator_sees_its_own_tenant_alone(tmp_path):
    """A list has no session of another tenant, and naming one is refused."""
    async with opened_signed_in(tmp_path) as (live, page):
        said = token("route", user="ana", tenant="acme")
        await live.stub.Route(
            routing_service_pb2.RouteRequest(session_id="chat-of-acme", text="hello"),
            metadata=(("authorization", f"Bearer {said}"),),
            timeout=20,
        )
        _, others = await page.post("AdminService", "ListSessions", bearer=token("admin"))
        assert others == {}
        _, own = await page.post(
            "AdminService", "ListSessions", bearer=token("admin", tenant="acme")
        )
        assert [each["sessionId"] for each in own["sessions"]] == ["chat-of-acme"]
        status, refused = await page.post(
            "AdminService", "ListSessions", '{"tenant": "acme"}', bearer=token("admin")
        )
        assert (status, refused["code"]) == (http.client.FORBIDDEN, "permission_denied")


async def test_texts_of_a_conversation_do_not_leave_the_listener(tmp_path):
    """The message, the handoff's reason and context: gRPC has them, the console does not."""
    async with opened(tmp_path) as (live, page):
        watched = await watch(page)
        chat = live.chat()
        chat.profile = {"channel": "web"}
        routed = await chat.say(SECRET)
        await chat.answer(routed.dispatch, SECRET, **hand_to("vat", reason=SECRET, message=SECRET))
        _, status = await page.post(
            "RoutingService", "Status", json.dumps({"sessionId": chat.session_id})
        )
        shown = await live.stub.Status(
            routing_service_pb2.StatusRequest(session_id=chat.session_id), timeout=20
        )
        assert SECRET in str(shown.open_requests)
        assert SECRET not in json.dumps(status)
        assert status["activeAgent"]["displayName"] == "Especialista en IVA"
        assert status["openRequests"][0]["agent"]["agentId"] == "vat"
        changes = await watched(shown.revision)
        assert SECRET not in json.dumps(changes)
        whose = json.dumps({"sessionId": chat.session_id})
        for service, rpc in (
            ("RoutingService", "ListTurns"),
            ("AdminService", "ListEvents"),
            ("AdminService", "GetSessionAt"),
        ):
            code, answer = await page.post(service, rpc, whose)
            assert code == http.client.OK, rpc
            assert SECRET not in json.dumps(answer), rpc
        events = [event for each in changes for event in each["change"]["events"]]
        handoffs = [event["agentHandoff"]["handoff"] for event in events if "agentHandoff" in event]
        assert [each["to"]["agentId"] for each in handoffs] == ["vat"]


async def test_texts_are_sent_for_a_reason_to_those_who_may_read_them(tmp_path):
    """Of turns and events; what approvals are about goes to those who decide."""
    async with opened_signed_in(tmp_path) as (live, page):
        request = routing_service_pb2.RouteRequest(session_id="s", text=SECRET)
        said = (("authorization", f"Bearer {token('route', user='ana')}"),)
        await live.stub.Route(request, metadata=said, timeout=20)
        why = json.dumps({"sessionId": "s", "readReason": "ticket 7"})
        status, refused = await page.post("RoutingService", "ListTurns", why, bearer=token("admin"))
        assert (status, refused["code"]) == (http.client.FORBIDDEN, "permission_denied")
        reader = token("admin", "read_words")
        _, hidden = await page.post(
            "RoutingService", "ListTurns", '{"sessionId": "s"}', bearer=reader
        )
        assert SECRET not in json.dumps(hidden)
        _, shown = await page.post("RoutingService", "ListTurns", why, bearer=reader)
        assert shown["turns"][0]["userText"] == SECRET
        status, _ = await page.post(
            "RoutingService", "ListTurns", '{"sessionId": 7, "readReason": []}', bearer=reader
        )
        assert status == http.client.BAD_REQUEST


async def test_people_see_names_and_texts_by_their_rights(tmp_path):
    """The desk: the inbox without texts, notes for readers, answers by the agent's people alone."""
    registry = """
api_version: agent_routing/v1
version: shop-1
supervisor: front
agents: [{id: front, name: Front}, {id: desk, name: Desk, kind: human}]
"""
    async with serving_signed_in(tmp_path, registry, console_listen="127.0.0.1:0") as live:
        page = Page(live.server.console_url)
        own = {"agents": ("desk",), "subject": "bea"}
        bea, reader = token("agent", **own), token("agent", "read_words", **own)
        request = routing_service_pb2.RouteRequest(session_id="s", text=SECRET)
        said = bearer(token("route", user="ana"))
        routed = await live.stub.Route(request, metadata=said, timeout=20)
        handed = routing_service_pb2.CompleteTurnRequest(
            session_id="s", request_id=routed.request_id, agent_id="front", **hand_to("desk")
        )
        runtime = bearer(token("agent", agents=("front",)))
        waits = (await live.stub.CompleteTurn(handed, metadata=runtime, timeout=20)).next.request_id

        async def call(rpc, who=bea, **fields):
            given = {"sessionId": "s", "agentId": "desk"} | fields
            body = json.dumps({name: value for name, value in given.items() if value is not None})
            return await page.post("RoutingService", rpc, body, bearer=who)

        turn = {"requestId": waits, "text": SECRET, "proceed": {}}
        for rpc, fields in (
            ("ListWaiting", {"sessionId": None}),
            ("ClaimTurn", {}),
            ("ReleaseTurn", {}),
            ("ListNotes", {}),
            ("AddNote", {"text": SECRET}),
            ("KeepTurn", {"requestId": waits, "say": SECRET}),
            ("CompleteTurn", turn),
        ):
            _, refused = await call(rpc, token("agent", agents=("front",)), **fields)
            assert refused["code"] == "permission_denied", rpc
        _, claimed = await call("ClaimTurn")
        assert claimed["claim"]["claimant"] == "bea"
        assert (await call("AddNote", text=SECRET))[0] == http.client.OK
        _, inbox = await call("ListWaiting", reader, sessionId=None)
        assert inbox["entries"][0]["claim"]["claimant"] == "bea"
        assert SECRET not in json.dumps(inbox)
        _, hidden = await call("ListNotes")
        assert (hidden["notes"][0]["author"], "text" in hidden["notes"][0]) == ("bea", False)
        _, shown = await call("ListNotes", reader)
        assert shown["notes"][0]["text"] == SECRET
        assert inbox["entries"][0]["openRequests"][-1]["requestId"] == waits
        for who in (token("admin", "read_words"), token("agent", agents=("desk",), subject="eva")):
            status, _ = await call("CompleteTurn", who, **turn)
            assert status >= http.client.BAD_REQUEST
        status, done = await call("CompleteTurn", **turn)
        assert (status, SECRET in json.dumps(done)) == (http.client.OK, False)


async def test_an_act_is_done_by_its_own_page_alone(tmp_path):
    """A stranger's page cannot move a conversation, also where callers do not sign in."""
    async with opened(tmp_path) as (live, page):
        chat = live.chat()
        chat.profile = {"channel": "web"}
        await chat.say("hello")
        move = json.dumps(
            {
                "sessionId": chat.session_id,
                "agentId": "vat",
                "initiator": "INITIATOR_OPERATOR",
                "reason": SECRET,
            }
        )
        async with chat.unchanged():
            status, _ = await page.post(
                "RoutingService", "SetActiveAgent", move, origin="https://evil.example"
            )
            assert status == http.client.FORBIDDEN
        status, moved = await page.post("RoutingService", "SetActiveAgent", move)
        assert status == http.client.OK, moved
        assert moved["agent"]["agentId"] == "vat"
        assert SECRET not in json.dumps(moved)
    async with opened_signed_in(tmp_path) as (_, page):
        for bearer in (token("approve"), token("read", "act_as"), token("read_words")):
            status, refused = await page.post(
                "RoutingService", "SetActiveAgent", move, bearer=bearer
            )
            assert (status, refused["code"]) == (http.client.FORBIDDEN, "permission_denied")


async def test_an_export_is_whole_or_refused(tmp_path):
    """Over gRPC admin exports; on the console reading texts is a right of its own."""
    body = b'{"userId": "ana", "reason": "ticket 7"}'
    body = struct.pack(">BI", 0, len(body)) + body
    async with opened_signed_in(tmp_path) as (live, page):
        await live.stub.Route(
            routing_service_pb2.RouteRequest(session_id="s", text="my secret"),
            metadata=bearer(token("route", user="ana")),
        )
        for scopes, is_told in ((("admin",), False), (("admin", "read_words"), True)):
            headers = {
                "content-type": "application/connect+json",
                "origin": page.origin,
                "authorization": f"Bearer {token(*scopes)}",
            }
            path = f"{PACKAGE}AdminService/ExportUser"
            _, _, answer = await asyncio.to_thread(page.exchange, "POST", path, body, headers)
            assert (b"my secret" in answer) == is_told
            assert (b"read_words" in answer) != is_told


async def stream_of_stranger(page):
    """Watch without a credential; return whether anything but the refusal came."""
    body = struct.pack(">BI", 0, 2) + b"{}"
    headers = {"content-type": "application/connect+json", "origin": page.origin}
    path = f"{PACKAGE}AdminService/WatchEvents"
    _, _, answer = await asyncio.to_thread(page.exchange, "POST", path, body, headers)
    assert json.loads(answer[5:])["error"]["code"] == "unauthenticated"
    return answer[0] != 2


async def watch(page):
    """Watch the log over Connect; return a function that reads changes up to a revision."""
    reader, writer = await asyncio.open_connection(page.at.hostname, page.at.port)
    body = b'{"fromBeginning": true}'
    body = struct.pack(">BI", 0, len(body)) + body
    head = (
        f"POST {PACKAGE}AdminService/WatchEvents HTTP/1.1\r\nhost: {page.at.netloc}\r\n"
        f"origin: {page.origin}\r\ncontent-type: application/connect+json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)

    async def read(revision):
        found = []
        async with asyncio.timeout(20):
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            held = b""
            while not found or int(found[-1]["change"]["revision"]) < revision:
                size = int(await reader.readuntil(b"\r\n"), 16)
                held += await reader.readexactly(size)
                await reader.readexactly(2)
                while len(held) >= 5 and len(held) >= 5 + (length := _length(held)):
                    message = json.loads(held[5 : 5 + length])
                    held = held[5 + length :]
                    if "change" in message:
                        found.append(message)
        writer.close()
        return found

    return read


def _length(frame):
    return struct.unpack(">I", frame[1:5])[0]


def test_fields_with_text_are_hidden_unless_the_table_names_them():
    """Every answer, every field filled: a field that is added to the contract is hidden too."""
    for service, names in CONSOLE_CALLS.items():
        for name in names:
            answer = GetMessageClass(SERVICES[service].methods_by_name[name].output_type)
            message = answer()
            fill(message, depth=6)
            hide_texts(message)
            assert shown_texts(message) <= SHOWN


def fill(message, depth):
    """Put a text into every field, also of the messages in it."""
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None:
            if depth == 0:
                continue
            if field.message_type.GetOptions().map_entry:
                key, value = field.message_type.fields
                if key.type == key.TYPE_STRING and value.type == value.TYPE_STRING:
                    getattr(message, field.name)[SECRET] = SECRET
                continue
            held = getattr(message, field.name)
            fill(held.add() if field.is_repeated else held, depth - 1)
            if not field.is_repeated:
                held.SetInParent()
        elif field.type in (field.TYPE_STRING, field.TYPE_BYTES):
            text = SECRET if field.type == field.TYPE_STRING else SECRET.encode()
            if field.is_repeated:
                getattr(message, field.name).append(text)
            elif field.containing_oneof is None:
                setattr(message, field.name, text)


def shown_texts(message):
    """Return the names of the fields that still have text."""
    found = set()
    for field, value in message.ListFields():
        if field.message_type is not None:
            if field.message_type.GetOptions().map_entry:
                found.add(f"map {field.name}")
            else:
                for each in value if field.is_repeated else [value]:
                    found |= shown_texts(each)
        elif field.type in (field.TYPE_STRING, field.TYPE_BYTES):
            named = f"{field.containing_type.name}.{field.name}"
            found.add(named if named in SHOWN else field.name)
    return found


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"console_listen": "0.0.0.0:50080"}, "console_listen"),
        (
            {"console_listen": "0.0.0.0:50080", "sign_in": "development"},
            "anyone with the development key can be anyone",
        ),
        (
            {
                "console_oidc_client_id": "page",
                "sign_in": "oidc",
                "oidc_issuer": "https://login.microsoftonline.com/{tid}/v2.0",
                "oidc_audience": "x",
                "oidc_profile": "entra",
                "oidc_tenants": "*",
                "oidc_jwks": "https://login.microsoftonline.com/common/discovery/v2.0/keys",
            },
            "the page would not know where to sign in",
        ),
    ],
)
def test_settings_that_would_let_strangers_in_are_refused(given, says):
    """The console's address counts like the others."""
    with pytest.raises(SettingsInvalid, match=says):
        resolve_settings(given, {}, None)


async def test_bytes_that_are_no_call_do_not_harm_the_listener(tmp_path):
    """Seeded garbage in path, header and body: an error each, and the listener goes on."""
    seeded = random.Random(17)
    async with opened(tmp_path) as (live, page):
        for _ in range(60):
            body = seeded.randbytes(seeded.randrange(200))
            kind = seeded.choice(
                ("application/json", "application/proto", "text/plain", "application/connect+json")
            )
            headers = {"content-type": kind, "origin": page.origin}
            path = seeded.choice(
                [
                    f"{PACKAGE}AdminService/ListSessions",
                    f"{PACKAGE}AdminService/ListEvents",
                    f"{PACKAGE}AdminService/GetSessionAt",
                    f"{PACKAGE}RoutingService/Status",
                    f"{PACKAGE}RoutingService/ListTurns",
                    f"{PACKAGE}RoutingService/SetActiveAgent",
                ]
            )
            status, _, _ = await asyncio.to_thread(page.exchange, "POST", path, body, headers)
            assert status < http.client.INTERNAL_SERVER_ERROR
        assert not live.observer.failures
        status, _ = await page.post("AdminService", "ListSessions")
        assert status == http.client.OK
