"""What the web listener checks before a call is read: its origin, headers and time.

A request that names the page it comes from is answered only if the settings name that page's
origin. Omitting the CORS headers would not be enough: the browser would hide the answer from the
page, but the call would have been carried out.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Final

import structlog
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from routing_service.web.refused_call_log import PATH_CHARS_MAX, logging_refusals
from routing_service.web.wait_limits import DEFAULT_WAITS

PREFLIGHT_S_MAX: Final = 7_200
"""How long browsers may cache the answer to a preflight. No browser caches it for longer."""

ORIGIN_CHARS_MAX: Final = 200
"""What a message quotes of an origin."""

REQUEST_HEADERS: Final = (
    "authorization",
    "content-type",
    "connect-protocol-version",
    "connect-timeout-ms",
    "grpc-timeout",
    "x-grpc-web",
    "x-user-agent",
    "agent-routing-tenant",
    "traceparent",
    "tracestate",
)
RESPONSE_HEADERS: Final = (
    "grpc-status",
    "grpc-message",
    "grpc-status-details-bin",
    "agent-routing-replayed",
    "trailer-agent-routing-replayed",
)

_NATIVE_GRPC: Final = (b"application/grpc", b"application/grpc+", b"application/grpc;")

_log = structlog.get_logger(__name__)


class OriginCheck:
    """Passes requests on to an ASGI application, or refuses them with a message."""

    def __init__(
        self,
        app: ASGIApp,
        origins: frozenset[str],
        *,
        body_s_max: float = DEFAULT_WAITS.body_s_max,
        problem_of: Callable[[Scope], str] | None = None,
    ) -> None:
        """Check requests to an application.

        origins: of the pages that may call it. body_s_max: how long a body may take to arrive.
        problem_of: returns why a request may not call, or ""; None = by the origins.
        """
        self._origins = origins
        self._problem_of = problem_of or self._stranger
        self._body_s_max = body_s_max
        self._app = CORSMiddleware(
            app,
            allow_origins=sorted(origins),
            allow_methods=["POST"],
            allow_headers=REQUEST_HEADERS,
            expose_headers=RESPONSE_HEADERS,
            max_age=PREFLIGHT_S_MAX,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            return  # No websockets, no lifespan.
        headers = scope["headers"]
        if problem := self._problem_of(scope):
            origin = dict(headers).get(b"origin", b"").decode("latin-1")[:ORIGIN_CHARS_MAX]
            path = scope["path"][:PATH_CHARS_MAX]
            _log.info("origin_refused", origin=origin, url_path=path)
            await _refuse(send, 403, "permission_denied", problem)
            return
        send = logging_refusals(scope, send)
        for name, value in headers:
            if not _is_utf8(value):
                await _refuse(
                    send,
                    400,
                    "invalid_argument",
                    f"the header {name.decode('latin-1')[:100]} is not UTF-8; encode it as "
                    "UTF-8, or leave it out",
                )
                return
        content_type = dict(headers).get(b"content-type", b"")
        if content_type == _NATIVE_GRPC[0] or content_type.startswith(_NATIVE_GRPC[1:]):
            await _refuse(
                send,
                415,
                "unimplemented",
                "this is the web listener, for Connect, gRPC-Web and JSON; gRPC is on the address "
                "in the setting listen",
            )
            return
        request = _Request(receive, send, self._body_s_max)
        await self._app(scope, request.receive, request.send)

    def _stranger(self, scope: Scope) -> str:
        """Return the problem of a page whose origin is not in the settings."""
        for name, value in scope["headers"]:
            if name == b"origin" and value.decode("latin-1") not in self._origins:
                origin = value.decode("latin-1")[:ORIGIN_CHARS_MAX]
                return (
                    f'pages of "{origin}" may not call this service; add the origin to web_origins'
                )
        return ""


class _Request:
    """A request whose body must arrive in time. Otherwise its client counts as disconnected."""

    def __init__(self, receive: Receive, send: Send, body_s_max: float) -> None:
        self._receive = receive
        self._send = send
        self._until_s = asyncio.get_running_loop().time() + body_s_max
        self._is_whole = False
        self._is_late = False

    async def receive(self) -> Message:
        """See ASGI."""
        if self._is_whole:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._until_s):
                message = await self._receive()
        except TimeoutError:
            self._is_late = True
            return {"type": "http.disconnect"}
        self._is_whole = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        """See ASGI."""
        if self._is_late and message["type"] == "http.response.start":
            # Without this the connection would wait for the rest of the body.
            message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
        await self._send(message)


def _is_utf8(value: bytes) -> bool:
    """Say whether a header is UTF-8, which gRPC's libraries assume."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


async def _refuse(send: Send, status: int, code: str, message: str) -> None:
    """Answer with an error in Connect's form. Other clients see the HTTP status."""
    body = json.dumps({"code": code, "message": message}).encode()
    headers = [(b"content-type", b"application/json"), (b"vary", b"Origin")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
