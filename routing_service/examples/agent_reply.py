"""The exchange between an agent runtime and an agent: a message in, an answer with its outcome out.

It does not depend on the contract: a runtime maps the outcomes. Its rule: an answer has exactly one
outcome.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Proceed:
    """The answer needs nothing further."""


@dataclass(frozen=True, slots=True)
class FollowUp:
    """The agent asked something and waits. timeout_s: for how long; None = as long as it takes."""

    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Complete:
    """The agent is done. message: shown to the user if another agent continues."""

    summary: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class HandOff:
    """Another agent should continue with the message. message: shown to the user."""

    agent_id: str
    reason: str = ""
    context: Mapping[str, object] = field(default_factory=dict)
    message: str = ""
    # "transfer", or "interlude" to get the conversation back.
    mode: str = "transfer"


@dataclass(frozen=True, slots=True)
class Fail:
    """The agent could not do it. message: why, for the record rather than for the user."""

    message: str = ""


@dataclass(frozen=True, slots=True)
class AskApproval:
    """The agent must wait for a person's approval. prompt: the question to that person."""

    prompt: str


Outcome = Proceed | FollowUp | Complete | HandOff | AskApproval | Fail


@dataclass(frozen=True, slots=True)
class AgentReply:
    """An agent's answer. text: for the user; may hold a marker, may be empty with a handoff."""

    text: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class AgentTurn:
    """The input of an agent: the parts of a dispatch that it needs."""

    agent_id: str
    # The user's message, without its command.
    text: str
    # The session's; empty for the example's default.
    locale: str = ""
    # Why the message comes to this agent: a route reason in lower case, such as "sticky".
    reason: str = ""
    # The reason for the handoff, from the agent that handed over; empty otherwise.
    handoff_reason: str = ""
    # The context given by the agent that handed over; empty otherwise.
    handoff_context: Mapping[str, object] = field(default_factory=dict)
    # The content types of the message's items other than its text.
    item_types: tuple[str, ...] = ()
    # A person's decision about the approval that this agent asked for: "approve", "reject".
    decision: str = ""
    decision_comment: str = ""
    # The message is taken as the answer to this agent's question.
    locked: bool = False
    # The rules that refused the handoff which this agent has just tried. It must try another way.
    refused_rules: tuple[str, ...] = ()
    # The same as text, as a model would read it.
    refusal: str = ""
