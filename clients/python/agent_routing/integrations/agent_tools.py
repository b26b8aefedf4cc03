"""The texts that a model reads: its tools, why a transfer was refused, what led to the message.

Owns these texts and the limits of what a model writes. They are English, as tool names and the
frameworks' prompts are; texts for users come from the service, in their language.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from agent_routing.v1.agent_pb2 import Agent
from agent_routing.v1.dispatch_pb2 import DECISION_APPROVE, Dispatch
from agent_routing.v1.turn_pb2 import Turn

TRANSFER: Final = "transfer_to_agent"
ASK: Final = "ask_user"
COMPLETE: Final = "complete_task"
CONSULT: Final = "consult_agent"

TEXT_BYTES_MAX: Final = 32 * 1024
"""Of an answer, from the contract."""

MESSAGE_BYTES_MAX: Final = 4 * 1024
"""Of a summary, and of a handoff's text for the user, from the contract."""

REASON_BYTES_MAX: Final = 1024
"""Of a handoff's reason, from the contract."""

CONTEXT_BYTES_MAX: Final = 15 * 1024
"""Of a handoff's context, which the contract limits to 16 KiB with its framing."""

ASK_DESCRIPTION: Final = (
    "Ends your turn with a question for the user. The user's next message comes to you, whatever"
    " it says. Use it whenever you need an answer before you can go on."
)
COMPLETE_DESCRIPTION: Final = (
    "Ends your turn, and your part: the user has what they came to you for. Do not use it after"
    " every answer."
)
CONSULT_DESCRIPTION: Final = (
    "Asks one of these agents a question. You keep the conversation: your turn pauses, and you"
    " continue with the answer."
)
TOOLS_NOTE: Final = (
    f"In this program a turn ends with follow_up when you call {ASK}, with complete when you call"
    f" {COMPLETE}, with a handoff when you call {TRANSFER} (or a transfer tool of your own), and"
    f" with proceed when you simply answer. {CONSULT} asks another agent: your turn pauses, and you"
    " continue with its answer."
)
TOO_LATE: Final = "not executed: the conversation has been handed over"
NO_CONSULT: Final = "not executed: at the moment you cannot consult another agent"
NO_TARGETS: Final = "Hands the conversation over. At the moment there is no agent to hand it to."


@dataclass(frozen=True, slots=True)
class Parameter:
    """A text parameter of a tool."""

    name: str
    description: str
    required: bool = True
    one_of: tuple[str, ...] = ()


ASK_PARAMETERS: Final = (Parameter("question", "The question, in the user's language."),)
COMPLETE_PARAMETERS: Final = (
    Parameter("answer", "Your last words to the user, in the user's language."),
    Parameter("summary", "What was done, for the next agent. May be empty.", required=False),
)


def transfer_parameters(target_names: Iterable[str]) -> tuple[Parameter, ...]:
    """Return the parameters of transfer_to_agent. target_names: the choices; none: any text."""
    return (
        Parameter("agent_id", "The agent to hand over to.", one_of=tuple(target_names)),
        Parameter("reason", "Why, in a few words."),
        Parameter("context", "What the other agent needs to know.", required=False),
        Parameter("message", "Text for the user about the handoff.", required=False),
        Parameter(
            "mode",
            "interlude: you get the conversation back when the other agent is done. Otherwise"
            " leave it out.",
            required=False,
            one_of=("", "interlude"),
        ),
    )


def consult_parameters(target_names: Iterable[str]) -> tuple[Parameter, ...]:
    """Return the parameters of consult_agent. target_names: the choices; none: any text."""
    return (
        Parameter("agent_id", "The agent to ask.", one_of=tuple(target_names)),
        Parameter("question", "The question, with everything that the agent needs to know."),
    )


def describe_consult(targets: Iterable[tuple[str, Agent]]) -> str:
    """Return the description of consult_agent. targets: name in the program, and the agent."""
    lines = _lines_of(targets)
    if not lines:
        return NO_CONSULT
    return "\n".join((CONSULT_DESCRIPTION, *lines))


def json_schema(parameters: Iterable[Parameter], *, strict: bool = False) -> dict[str, Any]:
    """Return the JSON schema of a tool's arguments. strict: every argument is required, for
    OpenAI's strict mode; optional ones may then be empty.
    """  # noqa: D205 - one sentence
    chosen = tuple(parameters)
    properties: dict[str, Any] = {}
    for each in chosen:
        properties[each.name] = {"type": "string", "description": each.description}
        if each.one_of:
            properties[each.name]["enum"] = list(each.one_of)
    return {
        "type": "object",
        "properties": properties,
        "required": [each.name for each in chosen if strict or each.required],
        "additionalProperties": False,
    }


def describe_transfer(targets: Iterable[tuple[str, Agent]]) -> str:
    """Return the description of transfer_to_agent. targets: name in the program, and the agent."""
    lines = _lines_of(targets)
    if not lines:
        return NO_TARGETS
    return "\n".join(("Hands the conversation to one of these agents:", *lines))


def _lines_of(targets: Iterable[tuple[str, Agent]]) -> list[str]:
    return [
        f"- {name}: {agent.description or agent.display_name or agent.agent_id}"
        for name, agent in targets
    ]


def describe_refusal(message: str, what: str = "transfer") -> str:
    """Return the text for a model whose transfer or consultation was refused."""
    return (
        f"The {what} was refused: {message}. Do not try the same again: answer the user"
        " yourself, or choose another agent."
    )


HINTED_AGENTS_MAX = 3
"""Agents that a model is told an unsure message may be for: more would say nothing."""


def past_messages(
    turns: Iterable[Turn], agent_id: str, names: dict[str, str]
) -> list[tuple[str, str]]:
    """Return past turns as (role, text), role being "user" or "assistant".

    agent_id: the agent whose texts are the assistant's; other agents' texts become context.
    """
    messages: list[tuple[str, str]] = []
    for turn in turns:
        if turn.user_text:
            messages.append(("user", turn.user_text))
        if not turn.agent_text:
            continue
        if turn.agent_id == agent_id:
            messages.append(("assistant", turn.agent_text))
        else:
            name = names.get(turn.agent_id, turn.agent_id)
            messages.append(("user", f"For context: agent {name} answered: {turn.agent_text}"))
    return messages


def note_of_dispatch(dispatch: Dispatch, names: dict[str, str]) -> str:
    """Return what an agent must know about how the message came to it; may be empty."""
    parts: list[str] = []
    if dispatch.HasField("handoff"):
        handoff = dispatch.handoff
        giver = getattr(handoff, "from").agent_id
        parts.append(
            note_of_handoff(
                names.get(giver, giver),
                handoff.reason,
                str(handoff.context["context"]) if "context" in handoff.context else "",
            )
        )
    if dispatch.HasField("resume"):
        approved = dispatch.resume.decision == DECISION_APPROVE
        decided = "approved" if approved else "rejected"
        parts.append(f"For context: your request for approval was {decided}.")
        if dispatch.resume.comment:
            parts.append(f"Comment: {dispatch.resume.comment}")
    if dispatch.HasField("consult"):
        consult = dispatch.consult
        if consult.HasField("answer"):
            parts.append(f"For context: you asked: {consult.question}")
            parts.append(f"The answer: {consult.answer or 'none'}")
        else:
            asker = names.get(consult.asker.agent_id, consult.asker.agent_id)
            parts.append(f"Agent {asker} asks you, not the user: {consult.question}")
    if dispatch.candidates:
        likely = " or ".join(
            f"{names.get(each.agent_id, each.agent_id)} ({each.agent_id})"
            for each in dispatch.candidates[:HINTED_AGENTS_MAX]
        )
        parts.append(
            f"For context: this message may be for {likely}. Hand it over if so; answer it "
            "yourself if it is for you."
        )
    return "\n".join(parts)


def note_of_handoff(giver_name: str, reason: str, context: str) -> str:
    """Return what an agent must know about a handoff to it."""
    parts = [f"For context: agent {giver_name} has handed the conversation to you."]
    if reason:
        parts.append(f"Reason: {reason}")
    if context:
        parts.append(f"What you need to know: {context}")
    return "\n".join(parts)


def as_text(output: Any) -> str:
    """Return a structured output as text."""
    if output is None:
        return ""
    dump = getattr(output, "model_dump_json", None)
    return str(dump()) if dump is not None else json.dumps(output, default=str)


def cut(text: str, bytes_max: int) -> str:
    """Return a text that fits: whole, or cut with a mark at the end."""
    data = text.encode("utf-8", "replace")
    if len(data) <= bytes_max:
        return data.decode()
    mark = " […]"
    return data[: bytes_max - len(mark.encode())].decode("utf-8", "ignore") + mark
