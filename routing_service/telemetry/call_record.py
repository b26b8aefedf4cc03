"""What is told of each finished call: the one line per decision, and the numbers.

Owns: the record's fields. Must not know: how they are logged or counted.
Rule: ids, words of closed lists and numbers; never a message's text, never a token.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec


class CallRecord(msgspec.Struct, omit_defaults=True):
    """One call, filled in as it goes. Fields that do not apply stay empty, and are not encoded.

    code: the gRPC status code's name. error_reason: the ErrorReason, "" for OK. reason: the
    RouteReason of the dispatch. outcome, outcome_status: of a CompleteTurn. refused_rules: the
    handoff rules that refused, also where that was no error. credential_problem: why a credential
    was not accepted, which its bearer is not told. actor: who signed in. peer: where a call came
    from, of those that were not let in. topic_outcome: what topic detection did with a message that
    it was asked about; topic_agent_id: its likeliest agent. traceparent: of the call's own span, as
    W3C Trace Context writes it; trace_parent_id: of the span that it is a child of.
    """

    method: str
    tenant: str = ""
    session_id: str = ""
    task_id: str = ""
    request_id: str = ""
    user_id: str = ""
    actor: str = ""
    peer: str = ""
    agent_id: str = ""
    previous_agent_id: str = ""
    reason: str = ""
    command: str = ""
    initiator: str = ""
    outcome: str = ""
    outcome_status: str = ""
    refused_rules: tuple[str, ...] = ()
    supervisor_bypassed: bool = False
    topic_outcome: str = ""
    topic_agent_id: str = ""
    topic_confidence: float = 0.0
    topic_model: str = ""
    revision: int = 0
    replayed: bool = False
    code: str = msgspec.field(default_factory=lambda: "OK")
    error_reason: str = ""
    credential_problem: str = ""
    traceparent: str = ""
    trace_parent_id: str = ""
    duration_ms: float = msgspec.field(default_factory=float)


class CallTracer(Protocol):
    """Gives calls their place in a trace. Must not raise."""

    def begin(self, record: CallRecord, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """Fill in traceparent and trace_parent_id from what came with the call."""
        ...


class CallObserver(Protocol):
    """Hears of calls. Neither method may raise."""

    def finished(self, record: CallRecord) -> None:
        """Take a finished call, whatever became of it."""
        ...

    def failed(self, record: CallRecord, error: BaseException) -> str:
        """Log an error whole, and return the id under which the log has it."""
        ...
