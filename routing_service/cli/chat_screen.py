"""How a conversation is shown: in a terminal, in a pipe, and as JSON.

Its rule: every routing decision is shown in a few words next to the messages; a pipe gets the same
text without colour.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, assert_never

import typer
from google.protobuf import json_format
from rich.text import Text

from agent_routing.v1.agent_pb2 import Agent
from agent_routing.v1.handoff_pb2 import Handoff, HandoffMode, Initiator
from agent_routing.v1.routing_service_pb2 import StatusResponse
from routing_service.cli.chat_options import COLUMNS_MAX
from routing_service.cli.conversation import (
    AgentAnswered,
    ApprovalAsked,
    Degraded,
    Failed,
    HandedOver,
    Happening,
    NothingToDecide,
    PersonAnswered,
    Refused,
    Repeated,
    Replied,
    Suggested,
    WaitsForPerson,
)
from routing_service.cli.screen import SafeConsole, agent_style, word
from routing_service.telemetry.terminal_text import seen, seen_json

_SIGNS: Final[Mapping[str, str]] = {
    "archive": "▤",
    "book-open": "❡",
    "calculator": "∑",
    "clipboard-check": "✓",
    "compass": "✦",
    "file-text": "≡",
    "heart": "♥",
    "jar": "◒",
    "lightbulb": "☼",
    "percent": "%",
    "receipt": "§",
    "repeat": "↻",
    "school": "✦",
    "shopping-cart": "¤",
    "upload": "↑",
    "users": "∴",
    "wallet": "✦",
}
"""A character for each icon name that registries use; one column wide in every terminal."""

_SIGN_OF_OTHERS: Final = "●"

_LEGEND: Final = (
    "↪ a handoff   ✗ refused by a rule   / the service itself   ? needs an approval   "
    "= a repeat   ! trouble   Other signs are the agents' own."
)

_INDENT: Final = "    "

_OUTCOMES_SHOWN: Final[Mapping[str, str]] = {
    "approval needed": "needs an approval",
    "complete": "completes",
    "failure": "fails",
    "handoff": "hands over",
}
"""The note at a turn's end. Most turns end with an answer or a question and need none."""

_MODES: Final[Mapping[str, str]] = {
    "transfer": "handoff",
    "completion": "goes on",
    "return": "returns",
}
"""How handoff modes are shown to people; other modes are shown by their names."""


class Screen(Protocol):
    """The output of a chat."""

    def opened(self, title: str, detail: str) -> None:
        """Show the chat's title. detail: its session and user."""
        ...

    def said(self, text: str, *, is_echo: bool) -> None:
        """Show a message of the user. is_echo: the terminal has shown it already."""
        ...

    def happened(self, happening: Happening) -> None:
        """Show one happening of the message."""
        ...

    def stands(self, status: StatusResponse | None) -> None:
        """Show the session's state after the message."""
        ...

    def noted(self, text: str) -> None:
        """Show a note that is not part of the conversation."""
        ...

    def prompt(self, status: StatusResponse | None) -> str:
        """Return the prompt before the user's input."""
        ...


class TextScreen:
    """Lines for people, with colour in a terminal."""

    def __init__(self, width: int = 0) -> None:
        """Write to standard output. width: in columns; 0 for the terminal's."""
        console = SafeConsole(highlight=False)
        is_terminal = console.is_terminal
        width = width or (min(console.width, COLUMNS_MAX) if is_terminal else COLUMNS_MAX)
        self._out = SafeConsole(highlight=False, width=width)

    def opened(self, title: str, detail: str) -> None:
        """See Screen."""
        self._print(title, style="bold", indent="")
        self._print(detail, style="dim", indent="")
        self._print(_LEGEND, style="dim", indent="")
        self._print("/help lists the commands; Ctrl-D leaves.", style="dim", indent="")

    def said(self, text: str, *, is_echo: bool) -> None:
        """See Screen."""
        if not is_echo:
            self._out.print()
            self._print(f"you > {text}", style="bold", indent="")

    def happened(self, happening: Happening) -> None:
        """See Screen."""
        match happening:
            case Replied(reply=reply):
                self._print(reply.text, sign="/", style="cyan")
            case HandedOver(handoff=handoff):
                self._print_line(_handoff_line(handoff))
                if handoff.message:
                    self._print(handoff.message, style="italic")
            case Refused(agent=agent, error=error):
                target = error.agent_id or "another agent"
                self._print(f"{_name(agent)} may not hand over to {target}", "✗", "yellow")
                for violation in error.violations:
                    self._print(f"{violation.name}: {violation.detail}", style="dim")
            case AgentAnswered():
                self._answered(happening)
            case WaitsForPerson(agent=agent):
                self._print(f"{_name(agent)} has people, who answer in time", "…", "dim")
            case PersonAnswered(agent=agent, text=text):
                style = agent_style(agent)
                line = Text("  ").append(_sign(agent), style=style).append(" ")
                line.append(_name(agent), style=style).append("  a person", style="dim")
                self._print_line(line)
                self._print(text)
            case ApprovalAsked(prompt=prompt):
                self._print(prompt, "?", "yellow")
                self._print("!approve COMMENT or !reject COMMENT", style="dim")
            case Suggested(suggestion=suggestion):
                self._print(suggestion.text, "?", "cyan")
            case NothingToDecide():
                self._print("no agent waits for an approval", "!", "red")
            case Repeated(replayed=replayed):
                told = "the first answer, nothing twice" if replayed else "another answer"
                self._print(f"the same request once more: {told}", "=", "dim")
            case Degraded():
                self._print("the service cannot be reached; this is not stored", "!", "red")
            case Failed(error=error):
                self._print(f"{error.message} [{error.reason or error.code.name}]", "!", "red")
            case _:
                assert_never(happening)

    def _answered(self, answered: AgentAnswered) -> None:
        agent = answered.agent
        style = agent_style(agent)
        line = Text("  ").append(_sign(agent), style=style).append(" ")
        line.append(_name(agent), style=style)
        notes = [answered.reason.replace("_", " ")]
        if answered.outcome in _OUTCOMES_SHOWN:
            notes.append(_OUTCOMES_SHOWN[answered.outcome])
        line.append(f"  {' · '.join(notes)}", style="dim")
        if answered.waits and answered.outcome != "approval needed":
            line.append(" · waits for your answer", style="yellow")
        self._print_line(line)
        if answered.text:
            self._print(answered.text)

    def _print_line(self, line: Text) -> None:
        """Print a line, with what does not fit on it indented below."""
        first, *others = line.wrap(self._out, self._out.width - len(_INDENT))
        first.rstrip()
        self._out.print(first)
        for other in others:
            other.rstrip()
            self._out.print(Text(_INDENT).append_text(other))

    def _print(self, text: str, sign: str = "", style: str = "", *, indent: str = _INDENT) -> None:
        """Print text with every line indented alike."""
        lines = Text(seen(text)).wrap(self._out, self._out.width - len(indent))
        for number, line in enumerate(lines):
            # Trailing spaces would be copied along with the text.
            line.rstrip()
            head = f"  {sign} " if sign and number == 0 else indent
            self._out.print(Text(head, style=style).append_text(line))

    def stands(self, status: StatusResponse | None) -> None:
        """See Screen."""

    def noted(self, text: str) -> None:
        """See Screen."""
        self._print(text, style="dim", indent="")

    def prompt(self, status: StatusResponse | None) -> str:
        """See Screen."""
        if status is None:
            return "\nyou > "
        to = _name(status.next_agent)
        waits = " (waits)" if status.locked else ""
        if status.HasField("pending_approval"):
            waits = " (waits for an approval)"
        back = "".join(f" ← {_name(frame.agent)}" for frame in reversed(status.return_stack))
        return f"\nyou → {to}{waits}{back} > "


class JsonScreen:
    """One JSON object for each message, for programs.

    write: takes each object as a line; by default it goes to standard output.
    """

    def __init__(self, write: Callable[[str], None] = typer.echo) -> None:
        self._write = write
        self._message: dict[str, Any] = {}

    def opened(self, title: str, detail: str) -> None:
        """See Screen."""

    def said(self, text: str, *, is_echo: bool) -> None:
        """See Screen."""
        del is_echo
        self._message = {"user_text": text, "reply": None, "steps": [], "degraded": False}

    def happened(self, happening: Happening) -> None:
        """See Screen."""
        steps = self._message["steps"]
        match happening:
            case Replied(reply=reply):
                self._message["reply"] = _as_dict(reply)
            case HandedOver(handoff=handoff):
                steps.append({"kind": "handoff", **_as_dict(handoff)})
            case Refused(agent=agent, error=error):
                steps.append(
                    {
                        "kind": "refused",
                        "agent_id": agent.agent_id,
                        "to": error.agent_id,
                        "rules": list(error.rules),
                    }
                )
            case AgentAnswered(agent=agent, reason=reason, text=text, outcome=outcome, waits=waits):
                steps.append(
                    {
                        "kind": "answer",
                        "agent_id": agent.agent_id,
                        "reason": reason,
                        "text": text,
                        "outcome": outcome.replace(" ", "_"),
                        "waits": waits,
                    }
                )
            case WaitsForPerson(agent=agent):
                steps.append({"kind": "waits_for_person", "agent_id": agent.agent_id})
            case PersonAnswered(agent=agent, text=text):
                steps.append({"kind": "person", "agent_id": agent.agent_id, "text": text})
            case ApprovalAsked(agent=agent, prompt=prompt):
                steps.append(
                    {"kind": "approval_asked", "agent_id": agent.agent_id, "prompt": prompt}
                )
            case Suggested(suggestion=suggestion):
                self._message["suggestion"] = _as_dict(suggestion)
            case NothingToDecide():
                self._message["error"] = {
                    "reason": "TASK_NOT_PAUSED",
                    "message": "no agent waits for an approval",
                }
            case Repeated(replayed=replayed):
                self._message["replayed"] = replayed
            case Degraded():
                self._message["degraded"] = True
            case Failed(error=error):
                self._message["error"] = {"reason": error.reason, "message": error.message}
            case _:
                assert_never(happening)

    def stands(self, status: StatusResponse | None) -> None:
        """See Screen."""
        if status is not None:
            self._message |= {
                "session_id": status.session_id,
                "revision": status.revision,
                "active_agent_id": status.active_agent.agent_id,
                "next_agent_id": status.next_agent.agent_id,
                "locked": status.locked,
                "return_stack": [frame.agent.agent_id for frame in status.return_stack],
            }
        self._write(seen_json(json.dumps(self._message, ensure_ascii=False)))

    def noted(self, text: str) -> None:
        """See Screen."""
        typer.echo(seen(text), err=True)

    def prompt(self, status: StatusResponse | None) -> str:
        """See Screen."""
        del status
        return ""


def _as_dict(message: Any) -> dict[str, Any]:
    as_dict: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return as_dict


def _name(agent: Agent) -> str:
    return agent.display_name or agent.agent_id


def _sign(agent: Agent) -> str:
    return _SIGNS.get(agent.icon, _SIGN_OF_OTHERS)


def _handoff_line(handoff: Handoff) -> Text:
    source, target = getattr(handoff, "from"), handoff.to
    line = Text("  ↪ ", style="dim")
    line.append(_name(source), style=agent_style(source)).append(" → ", style="not dim")
    line.append(_name(target), style=agent_style(target))
    by = word(Initiator.DESCRIPTOR, handoff.initiator, "INITIATOR_")
    mode = word(HandoffMode.DESCRIPTOR, handoff.mode, "HANDOFF_MODE_")
    says_enough = by in ("supervisor", "completion")
    line.append(f"  {_MODES.get(mode, mode)}{'' if says_enough else f' by {by}'}", style="dim")
    return line
