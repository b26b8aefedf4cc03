"""The operators' console: its page, how the page signs in, and the calls that it makes.

Rule: only the page itself may call. There are no cookies, so a request from another page carries no
credential, and a request with another page's Origin is refused before it is read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Final
from urllib.parse import urlsplit

import grpc
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_routing.v1 import admin_service_pb2, routing_service_pb2
from routing_service.rpc.masked_answers import CONSOLE_CALLS
from routing_service.web.origin_check import OriginCheck
from routing_service.web.refused_call_log import note_handled
from routing_service.web.wait_limits import DEFAULT_WAITS, WaitLimits
from routing_service.web.web_calls import WebService

_KINDS: Final = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
}


def page_files() -> dict[str, tuple[bytes, str]]:
    """Return the files of the page, made from console/ by its build: content and kind by path."""
    folder = resources.files("routing_service") / "web" / "console_page"
    return {
        f"/{each.name}".removesuffix("index.html"): (
            each.read_bytes(),
            _KINDS[each.name.rpartition(".")[2]],
        )
        for each in folder.iterdir()
    }


SIGN_IN_PATH: Final = "/sign-in.json"

HOSTS_OF_THIS_MACHINE: Final = frozenset({"127.0.0.1", "localhost", "::1"})
"""Names under which a browser reaches the console if callers do not sign in. With any other name a
page of a stranger could resolve its own name to this machine, and would be the same origin."""

_HOST_CHARS_MAX: Final = 200

_ADDRESS: Final = re.compile(r"(?P<name>[a-z0-9._-]+|\[[0-9a-f:.]+\])(:(?P<port>[0-9]{1,5}))?")
"""What browsers send as Host, and behind an origin's scheme. Everything else is refused."""

_NOWHERE: Final = ("", "")


@dataclass(frozen=True, slots=True)
class ConsoleSignIn:
    """How the page signs in.

    kind: the setting sign_in. issuer, client_id, scopes: for the code flow; without a client_id the
    page asks for a token.
    """

    kind: str
    issuer: str = ""
    client_id: str = ""
    scopes: str = ""

    @property
    def issuer_origin(self) -> str:
        """The origin of the issuer; "" without one."""
        parts = urlsplit(self.issuer)
        return f"{parts.scheme}://{parts.netloc}" if parts.netloc else ""

    @property
    def as_json(self) -> bytes:
        """What the page reads at SIGN_IN_PATH."""
        return json.dumps(
            {
                "kind": self.kind,
                "issuer": self.issuer,
                "clientId": self.client_id,
                "scopes": self.scopes,
            }
        ).encode()


def console_app(
    handlers: Sequence[grpc.GenericRpcHandler],
    sign_in: ConsoleSignIn,
    *,
    calls_max: int,
    receive_bytes_max: int,
    operators_bytes_max: int,
    waits: WaitLimits = DEFAULT_WAITS,
) -> ASGIApp:
    """Return the application: the page's files, and the calls of CONSOLE_CALLS.

    handlers: of both services. calls_max: unary calls of a service at a time. receive_bytes_max: of
    one request. operators_bytes_max: of one of AdminService.
    """
    services = (
        *routing_service_pb2.DESCRIPTOR.services_by_name.values(),
        *admin_service_pb2.DESCRIPTOR.services_by_name.values(),
    )
    calls = [
        WebService(
            each,
            handlers,
            calls_max=calls_max,
            receive_bytes_max=(
                operators_bytes_max if each.name == "AdminService" else receive_bytes_max
            ),
            only=CONSOLE_CALLS[each.name],
        )
        for each in services
        if each.name in CONSOLE_CALLS
    ]
    files = [
        Route(path, _file(content, kind), methods=["GET"])
        for path, (content, kind) in page_files().items()
    ]
    app = Starlette(
        routes=[
            *files,
            Route(SIGN_IN_PATH, _file(sign_in.as_json, "application/json"), methods=["GET"]),
            *(Mount(each.path, app=each) for each in calls),
        ]
    )
    checked = OriginCheck(
        app,
        frozenset(),
        body_s_max=waits.body_s_max,
        problem_of=_same_origin_check(needs_this_machine=sign_in.kind == "none"),
    )
    return _with_headers(checked, _headers(sign_in.issuer_origin))


def _file(content: bytes, kind: str) -> Callable[[Request], Response]:
    """Return what answers with a file, or 304 if the browser has it."""
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {"etag": tag, "cache-control": "no-cache"}

    def answer(request: Request) -> Response:
        note_handled()  # Not a call.
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=kind, headers=headers)

    return answer


def _same_origin_check(*, needs_this_machine: bool) -> Callable[[Scope], str]:
    """Return what says why a request may not be answered, or "".

    needs_this_machine: callers do not sign in.
    """

    def problem_of(scope: Scope) -> str:
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        origins = [value for name, value in scope["headers"] if name == b"origin"]
        host = _text(hosts[0]) if len(hosts) == 1 else ""
        if needs_this_machine and _place_of(host, "http")[0] not in HOSTS_OF_THIS_MACHINE:
            return (
                f'the host "{host[:_HOST_CHARS_MAX]}" is not this machine, and callers do not sign '
                "in; open http://127.0.0.1, or set sign_in"
            )
        # A proxy in front may end TLS: then the page has https, and the request has not.
        schemes = ("https",) if scope["scheme"] == "https" else ("http", "https")
        for origin in map(_text, origins):
            scheme, _, address = origin.partition("://")
            place = _place_of(address, scheme)
            if scheme not in schemes or place == _NOWHERE or place != _place_of(host, scheme):
                shown = origin[:_HOST_CHARS_MAX]
                return f'pages of "{shown}" may not call the console; open its own page'
        return ""

    return problem_of


def _text(value: bytes) -> str:
    return value.decode("latin-1")


def _place_of(address: str, scheme: str) -> tuple[str, str]:
    """Return the name and the port that a Host header or an origin has; _NOWHERE if it has none.

    scheme: which port is meant where none is named.
    """
    matched = _ADDRESS.fullmatch(address.lower())
    if matched is None:
        return _NOWHERE
    return matched["name"].strip("[]"), matched["port"] or {"https": "443"}.get(scheme, "80")


def _headers(issuer_origin: str) -> list[tuple[bytes, bytes]]:
    """Return the headers of every answer. issuer_origin: where the page signs in, or ""."""
    connect = f"'self' {issuer_origin}".strip()
    policy = (
        "default-src 'none'; script-src 'self'; style-src 'self'; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return [
        (b"content-security-policy", policy.encode("latin-1")),
        (b"x-frame-options", b"DENY"),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"cross-origin-opener-policy", b"same-origin"),
        (b"cross-origin-resource-policy", b"same-origin"),
    ]


def _with_headers(app: ASGIApp, headers: list[tuple[bytes, bytes]]) -> ASGIApp:
    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *headers]
            await send(message)

        await app(scope, receive, send_with_headers)

    return serve
