"""The console in a real browser, against a real server; axe-core judges its accessibility."""

import asyncio
import base64
import hashlib
import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from agent_routing.v1 import handoff_pb2
from tests.clients.console_driver import browse, browsing, run_script
from tests.rpc.identity_provider import AUDIENCE, claims, good_set, sign
from tests.rpc.live_service import ask, serving
from tests.rpc.signed_in import serving_signed_in, token

STATUS_CALLS = 4
"""The steps look up two sessions by their ids, and one by its task: a task's id is first looked up
as a session's. Then the conversation goes on."""

pytestmark = pytest.mark.timeout(600)


def test_the_built_page_is_what_its_sources_build():
    """So that a wheel, which is built without Node, has the present page."""
    done = run_script("check")
    assert done.returncode == 0, done.stdout + done.stderr


async def conversations(live):
    """Begin three conversations: with VAT that waits for ana, with the coordinator, and of bob."""
    begun = {}
    for session_id, user in (("chat-vat", "ana"), ("chat-new", "ana"), ("chat-bob", "bob")):
        begun[session_id] = live.chat(session_id, user_id=user)
        begun[session_id].profile = {"channel": "web"}
    await begun["chat-vat"].with_agent("vat", **ask())
    await begun["chat-new"].say("hello")
    await begun["chat-bob"].with_agent("invoices")
    return begun["chat-vat"]


async def test_an_operator_finds_sessions_and_sees_them_change(modules, tmp_path):
    """Rows, filters in the URL, Back, search by id, and a change that comes by itself."""
    row = 'tr[data-session="chat-vat"]'
    async with serving(tmp_path, "tax", console_listen="127.0.0.1:0", clock=time_us) as live:
        chat = await conversations(live)
        [task] = await live.chat("chat-bob", user_id="bob").tasks()
        task_id = task.task_id
        steps = [
            ["open", live.server.console_url],
            ["wait", row],
            ["wait", '.live[data-live="live"]'],
            ["text", "tbody tr th"],
            ["text", f"{row} td"],
            ["axe"],
            # By keyboard alone: the filter of the user.
            ["tab", "user"],
            ["focused"],
            ["fill", "input[name=user]", "bob"],
            ["press", "Enter"],
            ["gone", row],
            ["wait", 'tr[data-session="chat-bob"]'],
            ["text", "tbody tr th"],
            ["query"],
            ["back"],
            ["wait", row],
            ["query"],
            ["select", "select[name=waiting]", "yes"],
            ["click", "button[type=submit]"],
            ["gone", 'tr[data-session="chat-bob"]'],
            ["wait", row],
            ["text", "tbody tr th"],
            ["open", f"{live.server.console_url}/?session=chat-bob"],
            ["wait", 'tr[data-session="chat-bob"]'],
            ["text", "tbody tr th"],
            ["open", f"{live.server.console_url}/?session=nobody"],
            ["wait", "[role=alert]"],
            ["text", "[role=alert]"],
            # A task's id finds its session.
            ["open", f"{live.server.console_url}/?session={task_id}"],
            ["wait", 'tr[data-session="chat-bob"]'],
            ["text", "tbody tr th"],
            # The conversation goes on while the page is open.
            ["open", live.server.console_url],
            ["wait", 'tr[data-session="chat-later"]:has-text("NO_ACTIVE_AGENT")'],
            ["wait", f'{row}:has-text("Facturación")'],
            ["text", f"{row} td"],
            ["shot", "console-sessions"],
            ["scheme", "dark"],
            ["axe"],
            ["shot", "console-sessions-dark"],
            ["size", 390, 800],
            ["select", "header select", "es"],
            ["wait", 'h1:has-text("Sesiones")'],
            ["wide"],
            ["axe"],
            ["shot", "console-sessions-phone"],
            ["select", "header select", "pt"],
            ["wait", 'h1:has-text("Sessões")'],
            ["stored"],
        ]
        async with browsing(modules, tmp_path, steps) as ended:
            finishing = asyncio.create_task(ended())
            while sum(call.method == "Status" for call in live.observer.calls) < STATUS_CALLS:
                assert not finishing.done()
                await asyncio.sleep(0.5)
            operator = handoff_pb2.INITIATOR_OPERATOR
            await chat.set_active("invoices", initiator=operator, reason="stuck")
            later = live.chat("chat-later")
            while not finishing.done():
                await later.answer((await later.say("hello")).dispatch)
                await asyncio.sleep(1)
            seen = await finishing
    results = seen["results"]
    assert sorted(results[0]) == ["chat-bob", "chat-new", "chat-vat"]
    assert results[1][:4] == ["ana", "E Especialista en IVA", "yes", "running"]
    assert results[2] == []
    assert results[3] == "user"
    assert results[4:6] == [["chat-bob"], "?user=bob"]
    assert results[6] == ""
    assert results[7] == ["chat-vat"]
    assert results[8] == ["chat-bob"]
    assert results[9] == [
        'UNKNOWN_SESSION: session "nobody" is not known; send its first message with Route'
    ]
    assert results[10] == ["chat-bob"]
    assert results[11][1] == "F Facturación"
    assert results[11][2] == "\N{EN DASH}"
    assert results[12:] == [[], 0, [], ["", []]]
    assert seen["mistakes"] == []
    assert seen["origins"] == [live.server.console_url]


def time_us():
    """The real time: the page shows how long ago something changed."""
    return time.time_ns() // 1_000


async def test_a_pasted_token_signs_in_and_a_bad_one_does_not(modules, tmp_path):
    """Refused, accepted, kept over a reload, and gone after signing out."""
    async with serving_signed_in(tmp_path, "tax", console_listen="127.0.0.1:0") as live:
        url = live.server.console_url
        sign_in = "form.sign-in button"
        seen = await browse(
            modules,
            tmp_path,
            [
                ["open", url],
                ["wait", sign_in],
                ["shot", "console-sign-in"],
                ["axe"],
                ["fill", "input[name=token]", token("admin", lasts_s=-60)],
                ["click", sign_in],
                ["wait", "[role=alert]"],
                ["text", "[role=alert]"],
                ["fill", "input[name=token]", token("route", user="ana")],
                ["click", sign_in],
                ["wait", "[role=alert]:has-text('SCOPE_MISSING')"],
                ["click", "header button"],
                ["wait", sign_in],
                ["fill", "input[name=token]", token("admin", subject="sam")],
                ["click", sign_in],
                ["wait", '.live[data-live="live"]'],
                ["open", url],
                ["wait", '.live[data-live="live"]'],
                ["stored"],
                ["click", "header button"],
                ["wait", sign_in],
                ["stored"],
            ],
        )
        actors = {call.actor for call in live.observer.calls if call.code == "OK"}
    assert seen["results"][0] == []
    [said] = seen["results"][1]
    assert said.startswith("UNAUTHENTICATED: the credential expired at ")
    assert seen["results"][2:] == [["", ["agent-routing.token"]], ["", []]]
    assert seen["mistakes"] == []
    assert actors <= {"sam", "ana", "service"}
    assert "sam" in actors


class Issuer(BaseHTTPRequestHandler):
    """An issuer: discovery, keys, the code flow for one public client, with PKCE checked."""

    codes: dict
    asked: list

    def log_message(self, *_arguments):
        """See BaseHTTPRequestHandler."""

    @property
    def url(self):
        """The issuer's own URL."""
        return f"http://127.0.0.1:{self.server.server_address[1]}/realms/chat"

    def do_GET(self):
        """Describe the issuer, or let its one user in and send the browser back with a code."""
        at = urlsplit(self.path)
        if at.path.endswith("/.well-known/openid-configuration"):
            self.answer(
                {
                    "issuer": self.url,
                    "authorization_endpoint": f"{self.url}/authorize",
                    "token_endpoint": f"{self.url}/token",
                    "jwks_uri": f"{self.url}/keys",
                }
            )
        elif at.path.endswith("/keys"):
            self.answer(json.loads(good_set()))
        else:
            asked = {name: values[0] for name, values in parse_qs(at.query).items()}
            self.asked.append(asked)
            code = f"code-{len(self.asked)}"
            self.codes[code] = asked
            back = urlencode({"code": code, "state": asked["state"], "iss": self.url})
            self.send_response(302)
            self.send_header("location", f"{asked['redirect_uri']}?{back}")
            self.end_headers()

    def do_POST(self):
        """Give a token for a code, once, to the page that has its verifier."""
        length = int(self.headers["content-length"])
        given = {name: each[0] for name, each in parse_qs(self.rfile.read(length).decode()).items()}
        asked = self.codes.pop(given["code"], None)
        hashed = hashlib.sha256(given["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(hashed).decode().rstrip("=")
        if (
            asked is None
            or asked["code_challenge"] != challenge
            or asked["redirect_uri"] != given["redirect_uri"]
            or asked["client_id"] != given["client_id"]
        ):
            self.answer({"error": "invalid_grant"}, status=400)
            return
        signed = sign(claims(iss=self.url, sub="sam", scope="openid admin", company=...))
        self.answer({"access_token": signed, "token_type": "Bearer", "expires_in": 600})

    def answer(self, body, status=200):
        """Answer with JSON that pages of any origin may read."""
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("access-control-allow-origin", "*")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def issuing():
    """Run an issuer on the loopback interface; yields its handler class and its URL."""
    issuer = type("OneIssuer", (Issuer,), {"codes": {}, "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), issuer) as server:
        thread = threading.Thread(target=server.serve_forever, name="issuer")
        thread.start()
        yield issuer, f"http://127.0.0.1:{server.server_address[1]}/realms/chat"
        server.shutdown()
        thread.join()


async def test_the_page_signs_in_at_the_issuer_by_code_flow_with_pkce(modules, tmp_path):
    """The filters survive the way to the issuer and back; a forged answer is refused."""
    keys = tmp_path / "jwks.json"
    await asyncio.to_thread(keys.write_bytes, good_set())
    with issuing() as (issuer, url):
        async with serving(
            tmp_path,
            "tax",
            console_listen="127.0.0.1:0",
            sign_in="oidc",
            oidc_issuer=url,
            oidc_audience=AUDIENCE,
            oidc_jwks=str(keys),
            console_oidc_client_id="console",
            console_oidc_scopes="openid admin",
        ) as live:
            page = live.server.console_url
            seen = await browse(
                modules,
                tmp_path,
                [
                    ["open", f"{page}/?code=forged&state=forged"],
                    ["wait", "[role=alert]"],
                    ["text", "[role=alert]"],
                    ["open", f"{page}/?user=bob"],
                    ["click", "main button"],
                    ["wait", '.live[data-live="live"]'],
                    ["query"],
                    ["stored"],
                ],
            )
            actors = {call.actor for call in live.observer.calls}
    assert seen["results"] == [
        ["the issuer's answer belongs to another sign-in"],
        "?user=bob",
        ["", ["agent-routing.token"]],
    ]
    [asked] = issuer.asked
    assert (asked["client_id"], asked["scope"]) == ("console", "openid admin")
    assert asked["code_challenge_method"] == "S256"
    assert actors == {"sam"}
    assert seen["mistakes"] == []
