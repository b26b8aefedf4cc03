"""Calls that were refused before a handler heard of them, and so have no line of a handler's.

Owns: the line of such a call. Must not know: why it was refused, but for the reason that it is
given. Rule: one line for each, under the name that the audit of refused calls has.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

import msgspec
import structlog
from starlette.types import Message, Scope, Send

CALL_REFUSED: Final = "call_refused"
"""As in the telemetry, which is no business of a listener."""

PATH_CHARS_MAX: Final = 200
"""What a line quotes of a path, which is whatever a stranger sent."""

ERRORS_FROM: Final = 400

_log = structlog.get_logger(__name__)


class _Call(msgspec.Struct):
    is_heard: bool = False
    reason: str = ""


_call: ContextVar[_Call | None] = ContextVar("web_call", default=None)


def was_heard() -> None:
    """Note that a handler takes the call of this context, and tells of it itself."""
    if (call := _call.get()) is not None:
        call.is_heard = True


def because(reason: str) -> None:
    """Note why the call of this context is refused: an ErrorReason."""
    if (call := _call.get()) is not None:
        call.reason = reason


def telling(scope: Scope, send: Send) -> Send:
    """Return a send that writes a line where a request is refused and no handler heard of it."""
    call = _Call()
    _call.set(call)

    async def told(message: Message) -> None:
        if message["type"] == "http.response.start" and not call.is_heard:
            status = message["status"]
            # gRPC-Web and streams have their errors behind a 200; every POST is a call.
            if status >= ERRORS_FROM or scope["method"] == "POST":
                host, port = scope.get("client") or ("", 0)
                _log.warning(
                    CALL_REFUSED,
                    path=scope["path"][:PATH_CHARS_MAX],
                    http_status=status,
                    error_reason=call.reason,
                    peer=f"{host}:{port}",
                )
        await send(message)

    return told
