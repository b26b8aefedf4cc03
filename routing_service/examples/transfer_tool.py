"""The tool with which an agent hands the conversation to another agent.

It describes the possible targets and a refusal for a model; the service alone applies the rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from routing_service.examples.agent_reply import HandOff

NAME = "transfer_to_agent"


@dataclass(slots=True)
class TransferToAgent:
    """One turn's tool. Calling it asks for a transfer; the runtime reads ``wanted`` afterwards."""

    wanted: HandOff | None = field(default=None)

    def __call__(
        self,
        agent_id: str,
        reason: str,
        *,
        context: Mapping[str, object] | None = None,
        message: str = "",
    ) -> str:
        """Hand over. Returns what a model would read as the tool's result.

        context: what the other agent needs to know. message: for the user, on the way. Of several
        transfers in a turn the last one counts.
        """
        self.wanted = HandOff(agent_id, reason=reason, context=context or {}, message=message)
        return f"asked for; {agent_id} goes on with the user's message unless the rules refuse it"


def describe_tool(agents: Iterable[tuple[str, str]]) -> str:
    """Return the tool's description for a model. agents: id and description of each target."""
    lines = [f"- {agent_id}: {description}" for agent_id, description in agents]
    if not lines:
        return "Hands the conversation over. At the moment there is nobody to hand it to."
    return "\n".join(("Hands the conversation to one of these agents:", *lines))


def describe_refusal(message: str) -> str:
    """Return the text for a model whose transfer the service has refused."""
    return f"{NAME} was refused: {message}. Answer the user yourself, or choose another agent."
