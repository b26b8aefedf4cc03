"""The base of all errors of a call: RoutingError, and the violations that it lists.

The classes of the reasons are generated from the contract (errors.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import grpc


@dataclass(frozen=True, slots=True)
class Violation:
    """A bad field, or a rule that refused.

    name: the field's path ("items[2].uri") or the rule's name ("entitled").
    subject: what the rule refused, such as the target's agent id; empty for a field.
    detail: what is wrong, with which value, and what to do.
    """

    name: str
    subject: str
    detail: str


class RoutingError(Exception):
    """A call that failed. The base of all error classes, and the class of an unknown code.

    code: the gRPC status code. reason: the reason of the contract, such as "HANDOFF_REFUSED"; empty
    if the answer had none, for example if the service did not answer. message: what happened, with
    which value, and what to do; its wording is not part of the contract. metadata: the values of
    the message again, for programs; ErrorReason documents the keys of each reason. violations:
    every bad field, or every rule that refused. retry_after: how long to wait before a repeat;
    None if the service did not say. method: the RPC, such as "Route". request_id: of the request,
    also if the client made it; empty for reads. session_id: of the request, or the one that the
    service names; empty if neither had one, and then a repeat with request_id finds the session.
    attempts: how often the call was sent, 1 or more.
    """

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        violations: Sequence[Violation] = (),
        retry_after: timedelta | None = None,
        method: str = "",
        request_id: str = "",
        session_id: str = "",
        attempts: int = 1,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason
        self.metadata: Mapping[str, str] = dict(metadata or {})
        self.violations = tuple(violations)
        self.retry_after = retry_after
        self.method = method
        self.request_id = request_id
        self._session_id = session_id or self.metadata.get("session_id", "")
        self.attempts = attempts

    @property
    def session_id(self) -> str:
        """The session of the request, or the one that the service names; empty: none."""
        return self._session_id

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would pickle the positional arguments only.
        fields = {name: value for name, value in vars(self).items() if name != "message"}
        fields["session_id"] = fields.pop("_session_id")
        notes = fields.pop("__notes__", None)
        return _rebuilt, (type(self), self.message, fields, notes)

    def _number(self, key: str) -> int | None:
        """Return a whole number of the metadata, or None if it is missing."""
        value = self.metadata.get(key, "")
        return int(value) if value.isascii() and value.isdecimal() else None


def _rebuilt(
    kind: type[RoutingError], message: str, fields: dict[str, Any], notes: list[str] | None
) -> RoutingError:
    """Return an error that was pickled or copied."""
    error = kind(message, **fields)
    for note in notes or ():
        error.add_note(note)
    return error
