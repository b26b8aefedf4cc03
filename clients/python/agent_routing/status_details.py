"""Converts a failed gRPC call to a RoutingError.

Reads google.rpc.Status from the trailing metadata, and gives messages to failures without one.
Details that cannot be read, from a newer or broken server, are left out: they never hide the
failure itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Final, Protocol, cast

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, PreconditionFailure, RetryInfo
from google.rpc.status_pb2 import Status

from agent_routing.errors import (
    ERRORS_BY_CODE,
    ERRORS_BY_REASON,
    Overloaded,
    RoutingError,
    TooLarge,
    Violation,
)
from agent_routing.proxies import proxy_hint

DETAILS_KEY: Final = "grpc-status-details-bin"
DOMAIN: Final = "agent_routing"
"""Of ErrorInfo. A reason of another domain is a proxy's, and is not reported as ours."""


BROKEN_OFF: Final = "Internal error from Core"
"""The text of grpc.aio, with INTERNAL, for a connection that was lost while a message was sent. The
service did not answer, and the call is repeated as after any lost connection."""

CUT_SHORT: Final = ("Stream removed", "Received RST_STREAM")
"""How gRPC's text begins, with UNKNOWN or INTERNAL, for a stream that ended without a status: a
proxy whose server is gone ends it so. Also a lost connection."""


REFUSED_STREAM: Final = "RST_STREAM with error code 7"
"""The end of gRPC's text, with UNAVAILABLE, for a call that a server refused to take in, and so
never processed (RFC 9113, 8.7)."""


UNHEALTHY: Final = "backend unhealthy"
"""What grpc says, under UNAVAILABLE, where every replica reports by its health service that it
cannot serve: its store is away. No replica is asked then, so that none gives the reason."""

STORE_AWAY: Final = "STORE_UNAVAILABLE"

UNHEALTHY_RETRY_AFTER: Final = timedelta(seconds=0.25)
"""What the service asks for when its store is away."""


class FailedCall(Protocol):
    """The part of grpc's and grpc.aio's errors that is used here."""

    def code(self) -> grpc.StatusCode:
        """Return the status code."""

    def details(self) -> str | None:
        """Return the status message."""

    def trailing_metadata(self) -> Iterable[tuple[str, str | bytes]] | None:
        """Return the trailing metadata."""


def routing_error(
    failure: grpc.RpcError,
    *,
    method: str,
    target: str,
    request_id: str,
    timeout_s: float,
    attempts: int,
    session_id: str = "",
) -> RoutingError:
    """Return a failed call as the error of its reason, otherwise of its code.

    target, timeout_s: of the call, for the message of a failure without details.
    """
    call = cast("FailedCall", failure)
    code, words = call.code(), call.details() or ""
    info, violations, retry_after = _details(call.trailing_metadata() or ())
    if info is None and code is grpc.StatusCode.UNAVAILABLE and UNHEALTHY in words:
        info, retry_after = ErrorInfo(reason=STORE_AWAY, domain=DOMAIN), UNHEALTHY_RETRY_AFTER
        words = (
            f'{method}: every replica of "{target}" reports that it cannot serve, as while its '
            "store is away; repeat with the same request_id"
        )
    if info is None:
        kind, message = _without_details(
            code, words, method=method, target=target, timeout_s=timeout_s, attempts=attempts
        )
    else:
        kind = ERRORS_BY_REASON.get(info.reason) or ERRORS_BY_CODE.get(code, RoutingError)
        message = words
    return kind(
        message,
        code=code,
        reason=info.reason if info else "",
        metadata=dict(info.metadata) if info else None,
        violations=violations,
        retry_after=retry_after,
        method=method,
        request_id=request_id,
        session_id=session_id,
        attempts=attempts,
    )


def _details(
    metadata: Iterable[tuple[str, str | bytes]],
) -> tuple[ErrorInfo | None, list[Violation], timedelta | None]:
    """Return the details in the trailing metadata."""
    info: ErrorInfo | None = None
    violations: list[Violation] = []
    retry_after: timedelta | None = None
    for key, value in metadata:
        if key != DETAILS_KEY or not isinstance(value, bytes):
            continue
        try:
            for detail in Status.FromString(value).details:
                error_info, bad_request = ErrorInfo(), BadRequest()
                precondition, retry = PreconditionFailure(), RetryInfo()
                if detail.Unpack(error_info):
                    info = error_info if error_info.domain == DOMAIN else info
                elif detail.Unpack(bad_request):
                    violations += [
                        Violation(each.field, "", each.description)
                        for each in bad_request.field_violations
                    ]
                elif detail.Unpack(precondition):
                    violations += [
                        Violation(each.type, each.subject, each.description)
                        for each in precondition.violations
                    ]
                elif detail.Unpack(retry):
                    retry_after = retry.retry_delay.ToTimedelta()
        except (DecodeError, ValueError, OverflowError):
            continue
    return info, violations, retry_after


def _was_cut_short(code: grpc.StatusCode, words: str) -> bool:
    lost = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)
    return code in lost and words.startswith(CUT_SHORT)


def _without_details(
    code: grpc.StatusCode,
    words: str,
    *,
    method: str,
    target: str,
    timeout_s: float,
    attempts: int,
) -> tuple[type[RoutingError], str]:
    """Return class and message of a failure without details from the service."""
    tried = "" if attempts == 1 else f", after {attempts} attempts"
    kind: type[RoutingError]
    is_refused = code in (grpc.StatusCode.CANCELLED, grpc.StatusCode.RESOURCE_EXHAUSTED)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in words:
        # From gRPC itself, on either side: the message is above its channel's limit.
        kind, message = TooLarge, f"{method}: {words}; send large items by uri"
    elif is_refused or REFUSED_STREAM in words:
        # A server over its limits refuses calls unread. It resets the stream, which arrives as
        # CANCELLED, or sends RESOURCE_EXHAUSTED without details.
        kind = Overloaded
        message = (
            f'{method}: "{target}" has more calls than it can answer and refused this one'
            f"{tried}; repeat it later with the same request_id"
        )
    elif code is grpc.StatusCode.UNAVAILABLE or words == BROKEN_OFF or _was_cut_short(code, words):
        kind = ERRORS_BY_CODE[grpc.StatusCode.UNAVAILABLE]
        message = (
            f'{method}: "{target}" cannot be reached{tried}; is it running there? ({words})'
            f"{proxy_hint(target)}"
        )
    elif code is grpc.StatusCode.DEADLINE_EXCEEDED:
        kind = ERRORS_BY_CODE[code]
        message = (
            f'{method}: no answer from "{target}" within {timeout_s:g} s{tried}; a repeat with the'
            " same request_id says whether it happened"
        )
    else:
        kind = ERRORS_BY_CODE.get(code, RoutingError)
        message = f"{method}: {words or code.name}"
    return kind, message
