"""The tool with which an agent asks the user something.

Calling it ends the agent's turn with a follow-up, so that no agent can ask and forget to wait for
the answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from routing_service.examples.agent_reply import FollowUp, Outcome, Proceed


@dataclass(slots=True)
class AskUser:
    """One turn's tool. Calling it asks; the runtime reads the outcome when the agent is through."""

    questions: list[str] = field(default_factory=list)
    timeout_s: float | None = None

    def __call__(self, question: str, *, timeout_s: float | None = None) -> str:
        """Ask the user. Returns what a model would read as the tool's result.

        timeout_s: for how long the answer is waited for; None = as long as it takes. Of several
        questions the last one's counts.
        """
        self.questions.append(question)
        self.timeout_s = timeout_s
        return "asked; the user's next message is the answer"

    @property
    def outcome(self) -> Outcome:
        """How a turn ends that says nothing else: waiting if something was asked."""
        return FollowUp(self.timeout_s) if self.questions else Proceed()
