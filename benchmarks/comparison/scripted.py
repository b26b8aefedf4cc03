"""The stories that every contender plays, and the scripted models of their agents.

Contenders import it in their own environments, so it uses the standard library alone. A model
decides from what the contender shows it: the user's message, who spoke last, the tools on offer.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

TRACE: Final = "COMPARISON_TRACE"
"""The file that gets a line for each call of a model."""
GATE: Final = "COMPARISON_GATE"
"""A model that reads SLOWLY waits until this file is there, and says so with a file next to it."""
KILL: Final = "COMPARISON_KILL"
"""If set, the process is killed while the tool runs."""
ADDRESS: Final = "COMPARISON_ADDRESS"
"""Where our server is."""
ASKED: Final = "asked"
"""As a request id: the id of the question that the step before answered."""
SLOWLY: Final = "Slowly: "
GATE_S_MAX: Final = 120


@dataclass(frozen=True)
class Story:
    """Agents and a conversation, as in the registry and the agents of an example.

    handoffs: to whom an agent may hand over. In the registry a motivator returns by itself; where
    nothing returns by itself, its model has to, so the way back is among its handoffs.
    """

    home: str
    handoffs: Mapping[str, tuple[str, ...]]
    messages: tuple[str, ...]

    @property
    def specialists(self) -> tuple[str, ...]:
        """All agents but the home agent."""
        return tuple(name for name in self.handoffs if name != self.home)


STORIES: Final[Mapping[str, Story]] = {
    "tax": Story(
        "coordinator",
        {
            "coordinator": ("vat", "invoices", "filing"),
            "vat": ("coordinator", "invoices", "filing"),
            "invoices": ("coordinator", "vat", "filing"),
            "filing": ("coordinator", "vat"),
        },
        (
            "How much VAT do I owe?",
            "I don't know",
            "Say quarterly",
            "And when is it due?",
            "Has my invoice been paid?",
        ),
    ),
    "tutor": Story(
        "coordinator",
        {
            "coordinator": ("math_specialist", "language_specialist", "motivator", "assessor"),
            "math_specialist": ("coordinator", "motivator", "assessor"),
            "language_specialist": ("coordinator", "motivator", "assessor"),
            "motivator": ("coordinator", "math_specialist", "language_specialist"),
            "assessor": ("coordinator", "motivator"),
        },
        (
            "I want to practise fractions",
            "I give up",
            "The denominators",
            "Three quarters",
            "A quarter",
        ),
    ),
    "budget": Story(
        "orchestrator",
        {
            "orchestrator": ("jar_manager", "fee_manager"),
            "jar_manager": ("orchestrator", "fee_manager"),
            "fee_manager": ("orchestrator", "jar_manager"),
        },
        (
            "Create a jar for my holidays",
            "100",
            "I pay 10 for music every month",
            "The joint account",
            "Thanks, and what else can you do?",
        ),
    ),
}

TOPICS: Final[Mapping[str, str]] = {
    "vat": "vat",
    "invoice": "invoices",
    "file my": "filing",
    "fractions": "math_specialist",
    "quarters": "math_specialist",
    "verbs": "language_specialist",
    "give up": "motivator",
    "jar": "jar_manager",
    "every month": "fee_manager",
}
"""What a message has in it, and whose topic that is."""

FINISHED: Final = "Right! You have finished."
"""What the teacher says at the end of the lesson where it cannot hand over to the assessor."""
LOOK_UP: Final = "look up"
"""A message for the tool."""
PASS_ON: Final = "pass me on"
"""A message that makes filing try a handoff that its registry entry does not allow."""
TOOL: Final = "look_up"
TOOL_RESULT: Final = "paid on the 12th"


@dataclass(frozen=True)
class Seen:
    """What a model is shown. text: the user's last message.

    answered: another agent's answer to this very message. speaker: the specialist that spoke last.
    result: of the tool it has just called. targets: the agents it may hand over to. messages: how
    many it is shown.
    """

    text: str
    answered: str = ""
    speaker: str = ""
    result: str = ""
    targets: Iterable[str] = ()
    messages: int = 0


@dataclass(frozen=True)
class Say:
    """An answer. asks: it ends in a question. completes: the task is done."""

    text: str
    asks: bool = False
    completes: bool = False


@dataclass(frozen=True)
class HandOver:
    """A handoff, with a sentence for the user. completes: since the task is done."""

    target: str
    text: str
    completes: bool = False


@dataclass(frozen=True)
class LookUp:
    """A call of the tool."""

    text: str


Decision: TypeAlias = Say | HandOver | LookUp


def decide(story: Story, agent: str, seen: Seen) -> Decision:
    """Answer for an agent's model, and note the call. Waits at the gate if the message says so."""
    decision = _decide(story, agent, seen)
    note = {"agent": agent, "text": seen.text, "messages": seen.messages, "result": seen.result}
    if path := os.environ.get(TRACE):
        with Path(path).open("a", encoding="utf-8") as trace:
            trace.write(json.dumps(note) + "\n")
    if SLOWLY in seen.text and (gate := os.environ.get(GATE)):
        Path(gate + ".reached").touch()
        ends_s = time.monotonic() + GATE_S_MAX
        while not Path(gate).exists() and time.monotonic() < ends_s:
            time.sleep(0.01)
    return decision


def choose(story: Story, seen: Seen) -> str:
    """Choose the specialist for a message, as a supervisor's model or a classifier would.

    By its topic, else the specialist that spoke last, as a model that reads the history would.
    """
    text = seen.text.lower()
    for word, owner in TOPICS.items():
        if word in text and owner in story.handoffs:
            return owner
    return "" if text.startswith("thanks") else seen.speaker


def look_up() -> str:
    """Do what the tool does: here the process may be killed."""
    if os.environ.get(KILL):
        os.kill(os.getpid(), signal.SIGKILL)
    return TOOL_RESULT


def _decide(story: Story, agent: str, seen: Seen) -> Decision:
    text, targets = seen.text.lower(), set(seen.targets)
    if agent == story.home:
        return _coordinate(story, seen, targets)
    if agent == "filing" and PASS_ON in text:
        if not targets:  # No model calls a tool where it has none for this.
            return Say("I cannot pass you on.")
        return Say(f"I read: {seen.result}") if seen.result else HandOver("invoices", "I pass on.")
    if seen.result:
        return Say(f"Invoice F-1023 was {seen.result}.")
    if agent == "invoices" and LOOK_UP in text:
        return LookUp("I look it up.")
    if line := _LINES.get((agent, text)):
        return line
    if handed := _handed_on(agent, text, targets):
        return handed
    owner = choose(story, Seen(seen.text))
    if owner not in {"", agent}:
        if owner in targets:
            return HandOver(owner, f"I bring in {owner}.")
        if story.home in targets:
            return HandOver(story.home, "I ask my colleagues.")
    return Say(f"{agent}: noted, {text}")


def _coordinate(story: Story, seen: Seen, targets: set[str]) -> Decision:
    if seen.answered:
        if seen.answered == FINISHED and "assessor" in targets:
            return HandOver("assessor", "Let us see what you have learned.")
        return Say(seen.answered)
    owner = choose(story, seen)
    if owner in targets:
        return HandOver(owner, f"I bring in {owner}.")
    return Say("What can I do for you?")


def _handed_on(agent: str, text: str, targets: set[str]) -> Decision | None:
    """Return what an agent does at the end of its part: it hands on, if it can."""
    if (agent, text) == ("motivator", "the denominators"):
        if "math_specialist" in targets:
            return HandOver("math_specialist", "Back to your lesson.", completes=True)
        return Say("Back to your lesson.", completes=True)
    if (agent, text) == ("math_specialist", "three quarters"):
        if "assessor" in targets:
            return HandOver("assessor", "Right! Let us see what you have learned.", completes=True)
        return Say(FINISHED, completes=True)
    return None


_LINES: Final[Mapping[tuple[str, str], Say]] = {
    ("vat", "how much vat do i owe?"): Say("Monthly or quarterly?", asks=True),
    ("vat", "i don't know"): Say("Think of the form you get. Which is it?", asks=True),
    ("vat", "say quarterly"): Say("Then it is 21 % of what you sold."),
    ("filing", "please file my return"): Say("Shall I file it now?", asks=True),
    ("math_specialist", "i want to practise fractions"): Say("1/2 + 1/4?", asks=True),
    ("motivator", "i give up"): Say("What is the hardest part?", asks=True),
    ("math_specialist", "the denominators"): Say("Once more: 1/2 + 1/4?", asks=True),
    ("assessor", "three quarters"): Say("What is half of a half?", asks=True),
    ("assessor", "a quarter"): Say("You have passed.", completes=True),
    ("jar_manager", "create a jar for my holidays"): Say("How much goes into it?", asks=True),
    ("jar_manager", "100"): Say("It is in the jar."),
    ("fee_manager", "i pay 10 for music every month"): Say("From which account?", asks=True),
    ("fee_manager", "the joint account"): Say("It is noted."),
}


class Contender(Protocol):
    """What a contender's program can do. Its docstring says how it persists."""

    async def open(self, story: Story, folder: Path) -> None:
        """Build the agents over the storage in a folder."""

    async def send(self, session: str, text: str, request_id: str) -> Mapping[str, Any]:
        """Send a user's message; return the answer, and what the caller has to keep, if anything.

        request_id: the caller's id of the message, the same in a repeat.
        """

    async def resume(self, session: str, text: str, request_id: str) -> Mapping[str, Any]:
        """Continue a message whose process died, as the contender's documentation says."""

    async def read(self, session: str) -> Mapping[str, Any]:
        """Return all texts of the stored conversation as they stand, and what else is stored."""

    async def close(self) -> None:
        """End."""


@dataclass
class Step:
    """One call of a contender, as the comparison asks for it."""

    do: str
    session: str = "chat"
    text: str = ""
    request_id: str = ""


def main(contender: Contender) -> None:
    """Play the acts in the command line: steps on a storage. Print a line of JSON for each step."""
    asyncio.run(_main(contender, json.loads(sys.argv[1])))


async def _main(contender: Contender, acts: Sequence[Mapping[str, Any]]) -> None:
    for act in acts:
        os.environ[ADDRESS] = act["address"]
        await contender.open(STORIES[act["story"]], Path(act["folder"]))
        said: Mapping[str, Any] = {}
        for order in act["steps"]:
            before = len(_calls())
            said = await _step(contender, Step(**order), said)
            sys.stdout.write(json.dumps({**said, "calls": _calls()[before:]}) + "\n")
            sys.stdout.flush()
        await contender.close()


async def _step(contender: Contender, step: Step, before: Mapping[str, Any]) -> Mapping[str, Any]:
    request_id = before["asked"] if step.request_id == ASKED else step.request_id
    try:
        match step.do:
            case "send":
                return await contender.send(step.session, step.text, request_id)
            case "resume":
                return await contender.resume(step.session, step.text, request_id)
            case _:
                return await contender.read(step.session)
    except Exception as error:  # noqa: BLE001 - what a contender raises is what is seen
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}


def _calls() -> list[dict[str, Any]]:
    path = Path(os.environ.get(TRACE, ""))
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
