"""The DynamoDB driver's errors, and the store's errors for them.

An error is logged whole, once; callers get a message of ours that says what to do. A condition that
did not hold is an answer for the engine, not an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog
from botocore.exceptions import (
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    TokenRetrievalError,
    UnauthorizedSSOTokenError,
)

from routing_service.storage.dynamodb.url import DynamodbPlace
from routing_service.storage.store import (
    AppendRefused,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
)

_log = structlog.get_logger(__name__)

_CREDENTIALS: Final = (
    NoCredentialsError,
    PartialCredentialsError,
    CredentialRetrievalError,
    TokenRetrievalError,
    UnauthorizedSSOTokenError,
    ProfileNotFound,
)

_REFUSED_CREDENTIALS: Final = frozenset(
    {
        "UnrecognizedClientException",
        "InvalidSignatureException",
        "InvalidClientTokenId",
        "ExpiredTokenException",
        "IncompleteSignature",
        "IncompleteSignatureException",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
    }
)
_THROTTLED: Final = frozenset(
    {
        "ThrottlingException",
        "ThrottlingError",
        "ProvisionedThroughputExceededException",
        "ProvisionedThroughputExceeded",
        "RequestLimitExceeded",
    }
)
_MET_ANOTHER: Final = frozenset(
    {"TransactionConflict", "TransactionConflictException", "TransactionInProgressException"}
)
_MANAGED_KEY: Final = frozenset(
    {"KMSAccessDeniedException", "KMSDisabledException", "KMSInvalidStateException"}
)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why one action of a transaction failed."""

    code: str
    """"None" = this action was not the one that failed."""


class ConditionFailed(Exception):
    """The condition of a single write did not hold; nothing was written."""


class TransactionRefused(Exception):
    """A condition in a transaction did not hold; nothing of it was written."""

    def __init__(self, reasons: Sequence[Reason]) -> None:
        """Keep a reason for each action."""
        super().__init__(", ".join(reason.code for reason in reasons))
        self.reasons = tuple(reasons)


class MetAnother(StoreUnavailable):
    """Another write changed the same item at the same time. Nothing was written."""


def refusal(error: ClientError) -> Exception | None:
    """Return the error that the engine expects and handles; None = another error."""
    code = error.response.get("Error", {}).get("Code", "")
    if code == "ConditionalCheckFailedException":
        return ConditionFailed()
    if code in _MET_ANOTHER:
        return MetAnother("other writes are in the same place of the store; try again")
    if code != "TransactionCanceledException":
        return None
    given: Any = error.response.get("CancellationReasons", [])
    reasons = [Reason(reason.get("Code", "None")) for reason in given]
    codes = {reason.code for reason in reasons}
    if "ConditionalCheckFailed" in codes:
        return TransactionRefused(reasons)
    if codes & _MET_ANOTHER:
        return MetAnother("other writes are in the same place of the store; try again")
    return None


def store_error(error: Exception, place: DynamodbPlace, operation: str) -> StoreError:
    """Log a driver's error whole, and return the store's error for it."""
    code = ""
    fields: dict[str, object] = {"error": str(error) or type(error).__name__}
    if isinstance(error, ClientError):
        code = error.response.get("Error", {}).get("Code", "")
        given: Any = error.response.get("CancellationReasons", [])
        codes = sorted({reason.get("Code", "None") for reason in given} - {"None"})
        fields["request"] = error.response.get("ResponseMetadata", {}).get("RequestId", "")
        if codes:
            fields["reasons"] = codes
            code = codes[0]
    words = _store_error(error, code, place)
    _log.error("store_call_failed", store=place.shown, operation=operation, code=code, **fields)
    return words


def _store_error(error: Exception, code: str, place: DynamodbPlace) -> StoreError:
    if isinstance(error, _CREDENTIALS):
        return StoreUnavailable(
            "this service has no usable AWS credentials; set AWS_PROFILE, AWS_ACCESS_KEY_ID with "
            "AWS_SECRET_ACCESS_KEY, or a role of the container or instance"
        )
    if code in _REFUSED_CREDENTIALS:
        return StoreUnavailable(
            "AWS refuses this service's credentials: they are wrong or have expired; give it others"
        )
    if code == "AccessDeniedException":
        return StoreUnavailable(
            f'this service\'s AWS credentials may not use the table "{place.table}"; grant them '
            "what docs/dynamodb.md lists"
        )
    if code == "ResourceNotFoundException":
        return StoreUnavailable(
            f'there is no table "{place.table}" in {place.region}; make it: '
            "agent-routing migrate --store URL"
        )
    if code in _THROTTLED:
        return StoreUnavailable("the store's table is used more than it can be; try again")
    if code in _MANAGED_KEY:
        return StoreUnavailable("the key that the store's table is encrypted with cannot be used")
    if code == "ItemCollectionSizeLimitExceeded":
        return StoreUnavailable("the store's table has no room for more in one place")
    if code in {"ValidationError", "ValidationException"}:
        return AppendRefused("the store cannot hold these values")
    if code in {"SerializationException", "IdempotentParameterMismatchException"}:
        return StoreCorrupt("the store did not understand this service; the log has its words")
    if isinstance(error, TimeoutError):
        return StoreUnavailable("the store took too long; try again")
    if isinstance(error, ClientError):
        return StoreUnavailable("the store fails; try again")
    return StoreUnavailable("the store cannot be reached; try again")
