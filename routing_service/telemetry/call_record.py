"""The record of one call, from which its log line, its metrics and its span are made.

Its rule: a record holds ids, values of closed lists and numbers, never a message's text or a token.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, Protocol, get_args, get_type_hints

import msgspec

_COUNTED: Final = msgspec.Meta(extra={"counted": True})
"""Marks a field that a counter of telemetry/metrics.py reads. Its values are of a closed list, so
that the number of series is bounded."""

CountedText = Annotated[str, _COUNTED]
CountedTexts = Annotated[tuple[str, ...], _COUNTED]
CountedFlag = Annotated[bool, _COUNTED]


class CallRecord(msgspec.Struct, omit_defaults=True):
    """One call, filled in as it proceeds. Fields that do not apply stay empty and are not encoded.

    code: the gRPC status code's name. error_reason: the ErrorReason, "" for OK. agent_id: who has
    the message or the conversation now, or was refused it; previous_agent_id: who had it before;
    reason: the RouteReason. dispatched: a message went to an agent. outcome, outcome_status: of a
    CompleteTurn. refused_rules: the handoff rules that refused, also if the call succeeded.
    credential_problem: why a credential was rejected; the caller does not get to know it. actor:
    the signed-in caller. peer: the address of a caller that was rejected. topic_outcome: what topic
    detection did with the message; topic_agent_id: the agent it found most likely. traceparent: of
    the call's own span, in the form of W3C Trace Context; trace_parent_id: of the parent span.
    trace_id: of the caller's trace; "" = the call is in none.
    """

    method: CountedText
    tenant: str = ""
    session_id: str = ""
    task_id: str = ""
    request_id: str = ""
    user_id: str = ""
    actor: str = ""
    peer: str = ""
    agent_id: str = ""
    previous_agent_id: str = ""
    reason: CountedText = ""
    dispatched: CountedFlag = False
    command: CountedText = ""
    channel: str = ""
    initiator: str = ""
    outcome: CountedText = ""
    outcome_status: CountedText = ""
    refused_rules: CountedTexts = ()
    supervisor_bypassed: CountedFlag = False
    topic_outcome: CountedText = ""
    topic_agent_id: str = ""
    topic_confidence: float = 0.0
    topic_model: str = ""
    revision: int = 0
    replayed: CountedFlag = False
    code: CountedText = msgspec.field(default_factory=lambda: "OK")
    error_reason: CountedText = ""
    credential_problem: str = ""
    traceparent: str = ""
    trace_parent_id: str = ""
    trace_id: str = ""
    duration_ms: float = msgspec.field(default_factory=float)


def counted_fields() -> tuple[str, ...]:
    """Return the names of the fields that counters read."""
    hints = get_type_hints(CallRecord, include_extras=True)
    return tuple(name for name, hint in hints.items() if _COUNTED in get_args(hint))


class CallTracer(Protocol):
    """Gives calls their place in a trace. Must not raise."""

    def begin(self, record: CallRecord, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """Fill in traceparent and trace_parent_id from the call's metadata."""
        ...


class CallObserver(Protocol):
    """Receives every finished call. Neither method may raise."""

    def finished(self, record: CallRecord) -> None:
        """Take a finished call, whether it succeeded or not."""
        ...

    def failed(self, record: CallRecord, error: BaseException) -> str:
        """Log an error with its trace, and return the id under which the log has it."""
        ...
