"""How a turn ended: what complete_turn() reports.

Owns: a constructor function for each outcome. Must not know: how it is sent. Rule: returns the
generated messages, so that complete_turn() takes either.

    client.complete_turn(..., outcome=outcomes.follow_up(timeout=600))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from agent_routing.plain_values import Seconds, duration, enum_value, struct
from agent_routing.v1.handoff_pb2 import HandoffMode
from agent_routing.v1.routing_service_pb2 import (
    ApprovalNeededOutcome,
    CompleteOutcome,
    FailureOutcome,
    FollowUpOutcome,
    HandoffOutcome,
    ProceedOutcome,
)

ModeName: TypeAlias = Literal["TRANSFER", "INTERLUDE", "CONSULT"] | HandoffMode.ValueType
"""What becomes of the agent before, by name or as the generated enum has it."""

Outcome: TypeAlias = (
    ProceedOutcome
    | FollowUpOutcome
    | CompleteOutcome
    | HandoffOutcome
    | ApprovalNeededOutcome
    | FailureOutcome
)


def proceed() -> ProceedOutcome:
    """Answered. The agent keeps the conversation as its stickiness says."""
    return ProceedOutcome()


def follow_up(*, timeout: Seconds | None = None) -> FollowUpOutcome:
    """Asked the user something: the next message comes back to this agent.

    timeout: how long it waits for the answer, above 0 and at most 366 days, in seconds or as a
    timedelta. None: until the answer, whenever it comes.
    """
    message = FollowUpOutcome()
    if timeout is not None:
        message.timeout.CopyFrom(duration(timeout))
    return message


def complete(*, summary: str = "", message: str = "") -> CompleteOutcome:
    """Completed what the agent was there for. The registry says who comes next.

    summary: what was done, for the audit and the next agent, at most 4 KiB. message: words for the
    user on the way to the next agent, at most 4 KiB; empty: the registry's, if it has any.
    """
    return CompleteOutcome(summary=summary, message=message)


def handoff(
    agent_id: str,
    *,
    reason: str = "",
    context: Mapping[str, Any] | None = None,
    message: str = "",
    mode: ModeName | None = None,
) -> HandoffOutcome:
    """Hands over to another agent, or consults it; the message goes on there.

    agent_id: the target. reason: why, at most 1 KiB; in a CONSULT the question. context: what the
    target needs to know, as in JSON, at most 16 KiB; numbers arrive as floats. message: words for
    the user, at most 4 KiB. mode: None: as the target's registry entry says, else TRANSFER.
    Raises ValueError for a context or a mode that cannot be sent.
    """
    outcome = HandoffOutcome(
        agent_id=agent_id,
        reason=reason,
        message=message,
        mode=enum_value(HandoffMode, "HANDOFF_MODE_", "mode", mode),
    )
    if context is not None:
        outcome.context.CopyFrom(struct("context", context))
    return outcome


def approval_needed(prompt: str) -> ApprovalNeededOutcome:
    """Needs an approval before it goes on: the task pauses until resume_task().

    prompt: what is to be approved, 1 byte to 4 KiB.
    """
    return ApprovalNeededOutcome(prompt=prompt)


def failure(message: str = "") -> FailureOutcome:
    """Failed, and with it the task; the agent stays.

    message: what went wrong, for the audit and not for the user, at most 4 KiB.
    """
    return FailureOutcome(message=message)
