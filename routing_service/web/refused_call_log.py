"""The log line of a call that is refused before a handler sees it.

A handler logs its own calls. This writes one line for every other refused call, under the name that
the audit of refused calls uses.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

import msgspec
import structlog
from starlette.types import Message, Scope, Send

CALL_REFUSED: Final = "call_refused"
"""The same event name as in telemetry, which this package does not import."""

PATH_CHARS_MAX: Final = 200
"""What a line quotes of a path. A path comes from an unknown client and can be long."""

ERRORS_FROM: Final = 400

_log = structlog.get_logger(__name__)


class _WebCall(msgspec.Struct):
    is_handled: bool = False
    reason: str = ""


_call: ContextVar[_WebCall | None] = ContextVar("web_call", default=None)


def note_handled() -> None:
    """Note that a handler takes this context's call and will log it."""
    if (call := _call.get()) is not None:
        call.is_handled = True


def note_reason(reason: str) -> None:
    """Note why this context's call is refused. reason: an ErrorReason."""
    if (call := _call.get()) is not None:
        call.reason = reason


def logging_refusals(scope: Scope, send: Send) -> Send:
    """Return a send that logs a request which is refused before a handler takes it."""
    call = _WebCall()
    _call.set(call)

    async def send_and_log(message: Message) -> None:
        if message["type"] == "http.response.start" and not call.is_handled:
            status = message["status"]
            # gRPC-Web and streams send their errors after a 200. Every POST is a call.
            if status >= ERRORS_FROM or scope["method"] == "POST":
                host, port = scope.get("client") or ("", 0)
                _log.warning(
                    CALL_REFUSED,
                    url_path=scope["path"][:PATH_CHARS_MAX],
                    http_status=status,
                    error_reason=call.reason,
                    peer=f"{host}:{port}",
                )
        await send(message)

    return send_and_log


def log_bad_head(problem: str, status: int, peer: str) -> None:
    """Log a request whose head cannot be taken: what it asks for is not known then."""
    _log.warning(CALL_REFUSED, problem=problem, http_status=status, peer=peer)
