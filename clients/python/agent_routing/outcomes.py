"""How a turn ended: one function for each outcome that complete_turn() takes.

They return the generated messages, so complete_turn() also takes a message made by hand.

    client.complete_turn(..., outcome=outcomes.follow_up(timeout=600))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, overload

from google.protobuf.message import Message

from agent_routing.plain_values import Seconds, duration, enum_value, struct
from agent_routing.v1.handoff_pb2 import HandoffMode
from agent_routing.v1.item_pb2 import Item
from agent_routing.v1.routing_service_pb2 import (
    ApprovalNeededOutcome,
    CompleteOutcome,
    CompleteTurnRequest,
    FailureOutcome,
    FollowUpOutcome,
    HandoffOutcome,
    ProceedOutcome,
)
from agent_routing.v1.turn_pb2 import Step

ModeName: TypeAlias = Literal["TRANSFER", "INTERLUDE", "CONSULT"] | HandoffMode.ValueType
"""What happens to the previous agent: by name, or as a value of the generated enum."""

Outcome: TypeAlias = (
    ProceedOutcome
    | FollowUpOutcome
    | CompleteOutcome
    | HandoffOutcome
    | ApprovalNeededOutcome
    | FailureOutcome
)

_FIELDS: Final[dict[type[Message], str]] = {
    ProceedOutcome: "proceed",
    FollowUpOutcome: "follow_up",
    CompleteOutcome: "complete",
    HandoffOutcome: "handoff",
    ApprovalNeededOutcome: "approval_needed",
    FailureOutcome: "failure",
}
"""The request's field for each outcome."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a worker's function returns: an outcome with the agent's text, items and steps."""

    text: str
    outcome: Outcome
    items: Iterable[Item] = ()
    steps: Iterable[Step] = ()


def proceed() -> ProceedOutcome:
    """Report an answer: the agent keeps the conversation as its stickiness says."""
    return ProceedOutcome()


@overload
def follow_up(*, timeout: Seconds | None = None) -> FollowUpOutcome: ...


@overload
def follow_up(text: str, *, timeout: Seconds | None = None) -> Answer: ...


def follow_up(
    text: str | None = None, *, timeout: Seconds | None = None
) -> FollowUpOutcome | Answer:
    """Report a question to the user: the next message goes to this agent.

    text: the question, for functions of a worker: the result is then an Answer.
    timeout: how long the agent waits for the answer, above 0 and at most 366 days; None: without
    limit. Raises ValueError for a timeout that is not finite.
    """
    outcome = FollowUpOutcome(timeout=duration(timeout))
    return outcome if text is None else Answer(text, outcome)


def complete(*, summary: str = "", message: str = "") -> CompleteOutcome:
    """Report that the agent completed its task. The registry names the next agent.

    summary: what was done, for the audit and the next agent, at most 4 KiB. message: text for the
    user on the way to the next agent, at most 4 KiB; empty: the registry's text, if it has one.
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
    """Report a handoff to another agent, or a consultation; the message goes there next.

    agent_id: the target. reason: at most 1 KiB; for a CONSULT the question. context: what the
    target needs to know, a JSON object of at most 16 KiB; numbers arrive as floats. message: text
    for the user, at most 4 KiB. mode: None: as in the target's registry entry, or else TRANSFER.
    Raises ValueError for a context or a mode that cannot be sent.
    """
    return HandoffOutcome(
        agent_id=agent_id,
        reason=reason,
        message=message,
        mode=enum_value(HandoffMode, "HANDOFF_MODE_", "mode", mode),
        context=struct("context", context),
    )


def approval_needed(
    prompt: str, *, fields: Mapping[str, Any] | None = None
) -> ApprovalNeededOutcome:
    """Report that the agent needs an approval: the task pauses until resume_task().

    prompt: what to approve, 1 byte to 4 KiB. fields: the same for programs, such as the amount, as
    JSON values of at most 4 KiB in all.

    Raises ValueError for fields that cannot be sent.
    """
    return ApprovalNeededOutcome(prompt=prompt, fields=struct("fields", fields))


def failure(message: str = "") -> FailureOutcome:
    """Report that the agent and its task failed; the agent stays active.

    message: what went wrong, for the audit and not for the user, at most 4 KiB.
    """
    return FailureOutcome(message=message)


def set_outcome(request: CompleteTurnRequest, outcome: Outcome) -> None:
    """Put an outcome into a request. Raises TypeError for another type."""
    field = _FIELDS.get(type(outcome))
    if field is None:
        raise TypeError(
            f"outcome is {outcome!r}; make one with agent_routing.outcomes, such as"
            " outcomes.proceed()"
        )
    getattr(request, field).CopyFrom(outcome)
