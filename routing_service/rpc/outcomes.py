"""The outcomes of a turn on the wire: how each is checked, and the core's outcome that it becomes.

Rule: OUTCOMES is in the order in which a fingerprint takes the fields; a new outcome is added last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from agent_routing.v1.routing_service_pb2 import CompleteTurnRequest
from routing_service.core import commands as cmd
from routing_service.core.identifiers import MESSAGE_BYTES_MAX, REASON_BYTES_MAX
from routing_service.core.registry import Registry
from routing_service.rpc import proto_mapping as pm
from routing_service.rpc.request_checks import LOCK_TIMEOUT_S_MAX, FieldChecks

Check = Callable[[FieldChecks, CompleteTurnRequest, Registry], None]


@dataclass(frozen=True, slots=True)
class OutcomeForm:
    """One outcome: check notes its bad fields, read returns it from a request without any."""

    check: Check
    read: Callable[[CompleteTurnRequest], cmd.Outcome]


def check_outcome(
    checks: FieldChecks, request: CompleteTurnRequest, name: str | None, registry: Registry
) -> None:
    """Check the outcome that a request reports. name: of its field, None if none is set."""
    form = OUTCOMES.get(name or "")
    if form is None:
        known = list(OUTCOMES)
        checks.refuse(
            "outcome",
            f"is missing or not known here; set {', '.join(known[:-1])} or {known[-1]}",
        )
        return
    form.check(checks, request, registry)


def read_outcome(request: CompleteTurnRequest, name: str | None) -> cmd.Outcome:
    """Return the outcome in the field of this name, which was checked."""
    assert name is not None
    return OUTCOMES[name].read(request)


def _check_nothing(_checks: FieldChecks, _request: CompleteTurnRequest, _: Registry) -> None:
    """Accept an outcome without fields."""


def _check_follow_up(checks: FieldChecks, request: CompleteTurnRequest, _: Registry) -> None:
    if request.follow_up.HasField("timeout"):
        checks.duration(
            "follow_up.timeout",
            request.follow_up.timeout,
            seconds_max=LOCK_TIMEOUT_S_MAX,
            positive=True,
        )


def _check_complete(checks: FieldChecks, request: CompleteTurnRequest, _: Registry) -> None:
    checks.text("complete.summary", request.complete.summary, MESSAGE_BYTES_MAX)
    checks.text("complete.message", request.complete.message, MESSAGE_BYTES_MAX)


def _check_handoff(checks: FieldChecks, request: CompleteTurnRequest, registry: Registry) -> None:
    handoff = request.handoff
    checks.agent("handoff.agent_id", handoff.agent_id, registry, required=True)
    checks.text("handoff.reason", handoff.reason, REASON_BYTES_MAX)
    checks.text("handoff.message", handoff.message, MESSAGE_BYTES_MAX)
    checks.context("handoff.context", handoff.context)
    checks.word("handoff.mode", handoff.mode, pm.OUTCOME_MODES, "TRANSFER, INTERLUDE or CONSULT")


def _check_approval_needed(checks: FieldChecks, request: CompleteTurnRequest, _: Registry) -> None:
    checks.text("approval_needed.prompt", request.approval_needed.prompt, MESSAGE_BYTES_MAX)
    checks.context(
        "approval_needed.fields", request.approval_needed.fields, bytes_max=MESSAGE_BYTES_MAX
    )


def _check_failure(checks: FieldChecks, request: CompleteTurnRequest, _: Registry) -> None:
    checks.text("failure.message", request.failure.message, MESSAGE_BYTES_MAX)


def _proceed(_: CompleteTurnRequest) -> cmd.Outcome:
    return cmd.PROCEED


def _follow_up(request: CompleteTurnRequest) -> cmd.Outcome:
    has_timeout = request.follow_up.HasField("timeout")
    return cmd.FollowUp(pm.duration_us(request.follow_up.timeout) if has_timeout else None)


def _complete(request: CompleteTurnRequest) -> cmd.Outcome:
    return cmd.Complete(request.complete.summary, request.complete.message)


def _handoff(request: CompleteTurnRequest) -> cmd.Outcome:
    handoff = request.handoff
    return cmd.HandOff(
        agent_id=handoff.agent_id,
        reason=handoff.reason,
        context=pm.context_in(handoff.context) if handoff.HasField("context") else None,
        message=handoff.message,
        mode=pm.OUTCOME_MODES[handoff.mode],
    )


def _approval_needed(request: CompleteTurnRequest) -> cmd.Outcome:
    asked = request.approval_needed
    fields = pm.context_in(asked.fields) if asked.HasField("fields") else None
    return cmd.AskApproval(asked.prompt, fields)


def _failure(request: CompleteTurnRequest) -> cmd.Outcome:
    return cmd.Fail(request.failure.message)


OUTCOMES: Final[dict[str, OutcomeForm]] = {
    "proceed": OutcomeForm(_check_nothing, _proceed),
    "follow_up": OutcomeForm(_check_follow_up, _follow_up),
    "complete": OutcomeForm(_check_complete, _complete),
    "handoff": OutcomeForm(_check_handoff, _handoff),
    "approval_needed": OutcomeForm(_check_approval_needed, _approval_needed),
    "failure": OutcomeForm(_check_failure, _failure),
}
"""By the name of the request's field. What each does to a session is in core/complete_turn.py."""
