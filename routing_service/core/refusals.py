"""The error of a refused handoff.

Rule: it names every rule that refused, each with its own detail.
"""

from __future__ import annotations

from routing_service.core.commands import Verdict
from routing_service.core.errors import Reason, RoutingError, Violation
from routing_service.core.handoff_rules import Attempt


class HandoffRefused(RoutingError):
    """A handoff that the rules do not allow. Only the audit records it."""

    def __init__(self, attempt: Attempt, verdicts: tuple[Verdict, ...]) -> None:
        """Name the rules. verdicts: all of them, the allowing ones too."""
        violations = tuple(
            Violation(verdict.rule, verdict.detail) for verdict in verdicts if not verdict.allowed
        )
        rules = ", ".join(violation.subject for violation in violations)
        target = attempt.target.agent_id
        super().__init__(
            Reason.HANDOFF_REFUSED,
            f'the handoff from "{attempt.source}" to "{target}" was refused by {rules}: '
            f"{'; '.join(violation.detail for violation in violations)}",
            metadata={
                "session_id": attempt.state.session_id,
                "from_agent_id": attempt.source,
                "agent_id": target,
                "initiator": attempt.initiator.value,
                "rules": ",".join(violation.subject for violation in violations),
            },
            violations=violations,
        )
        self.verdicts = verdicts
        turn, task = attempt.turn, attempt.state.open_task
        self.task_id = turn.task_id if turn else task.task_id if task else ""
        self.channel = attempt.state.channel
        # The session's revision at the attempt; the command handler fills it in.
        self.revision = 0


def refuse_handoff(attempt: Attempt, verdicts: tuple[Verdict, ...]) -> HandoffRefused:
    """Return the error for the verdicts, at least one of which refuses."""
    assert not all(verdict.allowed for verdict in verdicts)
    return HandoffRefused(attempt, verdicts)
