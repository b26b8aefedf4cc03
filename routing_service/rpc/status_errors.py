"""Errors as google.rpc.Status: each reason with its code and details.

Internal errors are not sent to callers. All details together stay under 4 KB, because a
trailer over HTTP/2's header limit is dropped silently.
"""

from __future__ import annotations

from typing import Final

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from agent_routing.v1.error_reason_options_pb2 import error_reason
from agent_routing.v1.error_reason_pb2 import ErrorReason
from routing_service.analytics.stored_forms import StatsDamaged
from routing_service.core.errors import Reason, RoutingError, Violation, invalid_field
from routing_service.storage.store import (
    CursorInvalid,
    SchemaTooNew,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
    TooLarge,
)

DOMAIN: Final = "agent_routing"
DETAILS_KEY: Final = "grpc-status-details-bin"

DETAILS_BYTES_MAX: Final = 4096
MESSAGE_CHARS_MAX: Final = 1024
DETAIL_CHARS_MAX: Final = 256
METADATA_CHARS_MAX: Final = 200
VIOLATIONS_MAX: Final = 20

RETRY_AFTER_S: Final = 0.25
"""How long a caller waits when the store is unavailable. It is short, since a user waits too: after
a few tries the client falls back."""

_CODES_BY_NUMBER: Final = {code.value[0]: code for code in grpc.StatusCode}


def _code(reason: Reason) -> grpc.StatusCode:
    """Return the status code that the contract gives a reason."""
    value = ErrorReason.DESCRIPTOR.values_by_name[f"ERROR_REASON_{reason.value}"]
    return _CODES_BY_NUMBER[value.GetOptions().Extensions[error_reason].code]


CODES: Final[dict[Reason, grpc.StatusCode]] = {reason: _code(reason) for reason in Reason}
"""The status code of each reason, read from the contract once."""


def code_of(error: RoutingError) -> grpc.StatusCode:
    """Return the status code for an error's reason."""
    return CODES[error.reason]


def status_of(error: RoutingError) -> status_pb2.Status:
    """Return an error as google.rpc.Status, shortened to fit a trailer."""
    status = status_pb2.Status(
        code=code_of(error).value[0], message=_cut(error.message, MESSAGE_CHARS_MAX)
    )
    info = error_details_pb2.ErrorInfo(reason=error.reason.value, domain=DOMAIN)
    for key, value in error.metadata.items():
        info.metadata[key] = _cut(value, METADATA_CHARS_MAX)
    _pack(status, info)
    if error.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        _pack(status, error_details_pb2.RetryInfo(retry_delay=delay))
    if error.violations:
        _pack_violations(status, error)
    return status


def routing_error_of(error: StoreError, session_id: str) -> RoutingError:
    """Return the error that a caller gets for a store's failure. The log has the details.

    session_id: "" = the call is about no one session.
    """
    what = f'session "{session_id}"' if session_id else "what this call reads"
    of = f'the stored data of session "{session_id}"' if session_id else "stored data of this call"
    metadata = {"session_id": session_id} if session_id else {}
    match error:
        case StoreUnavailable() | StoreClosed():
            return RoutingError(
                Reason.STORE_UNAVAILABLE,
                "the store cannot be reached or is busy; repeat with the same request_id",
                retry_after_s=RETRY_AFTER_S,
            )
        case SchemaTooNew():
            return RoutingError(
                Reason.SCHEMA_TOO_NEW,
                f"{what} was written by a newer release; upgrade this replica, "
                "or repeat: another replica may be newer",
                metadata=metadata,
                retry_after_s=RETRY_AFTER_S,
            )
        case StatsDamaged():
            return RoutingError(Reason.STATE_CORRUPT, str(error), metadata=metadata)
        case StoreCorrupt():
            return RoutingError(
                Reason.STATE_CORRUPT,
                f"{of} cannot be read; restore it from a backup, "
                f"or {'start another session' if session_id else 'run agent-routing verify'}",
                metadata=metadata,
            )
        case CursorInvalid():
            return invalid_field(
                "page_token", "was not made by this list; send the token unchanged"
            )
        case TooLarge():
            return RoutingError(
                Reason.TOO_LARGE,
                f"the {error.what} would have {error.size_bytes} bytes, at most {error.bytes_max} "
                "are kept; send large items by uri",
                metadata={
                    "size_bytes": str(error.size_bytes),
                    "limit_bytes": str(error.bytes_max),
                },
            )
        case _:
            return RoutingError(Reason.INTERNAL, "internal error")


def _pack_violations(status: status_pb2.Status, error: RoutingError) -> None:
    """Add as many bad fields, or rules that refused, as there is room for."""
    room = DETAILS_BYTES_MAX - status.ByteSize()
    for count in range(min(len(error.violations), VIOLATIONS_MAX), 0, -1):
        packed = any_pb2.Any()
        packed.Pack(_violations(error, count))
        if packed.ByteSize() <= room:
            status.details.append(packed)
            return


def _violations(
    error: RoutingError, count: int
) -> error_details_pb2.BadRequest | error_details_pb2.PreconditionFailure:
    shown: tuple[Violation, ...] = error.violations[:count]
    rest = len(error.violations) - count
    if CODES[error.reason] is grpc.StatusCode.INVALID_ARGUMENT:
        bad = error_details_pb2.BadRequest()
        for violation in shown:
            bad.field_violations.add(
                field=_cut(violation.subject, DETAIL_CHARS_MAX),
                description=_cut(violation.detail, DETAIL_CHARS_MAX),
            )
        if rest:
            bad.field_violations.add(field="", description=f"and {rest} more fields")
        return bad
    failure = error_details_pb2.PreconditionFailure()
    for violation in shown:
        failure.violations.add(
            type=violation.subject,
            subject=_cut(error.metadata.get("agent_id", ""), DETAIL_CHARS_MAX),
            description=_cut(violation.detail, DETAIL_CHARS_MAX),
        )
    if rest:
        failure.violations.add(description=f"and {rest} more")
    return failure


def _pack(
    status: status_pb2.Status,
    detail: error_details_pb2.ErrorInfo | error_details_pb2.RetryInfo,
) -> None:
    packed = any_pb2.Any()
    packed.Pack(detail)
    status.details.append(packed)


def _cut(text: str, chars_max: int) -> str:
    """Shorten a text, and note by how much."""
    if len(text) <= chars_max:
        return text
    return f"{text[:chars_max]}… ({len(text) - chars_max} more characters)"
