"""Agents that follow a script, without a model or a network.

Here is what scripted agents share: matching the text of a message, the memory of a conversation,
lines in the user's language, and tools. Its rule: the same messages in the same order get the same
answers, so that tests and people can replay a conversation.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from routing_service.examples.agent_reply import AgentReply, AgentTurn, Complete, HandOff, Outcome
from routing_service.examples.ask_user import AskUser
from routing_service.examples.transfer_tool import TransferToAgent
from routing_service.texts import Texts

# A supervisor's word that the message answers the question of the agent that it hands to. Only
# needed while stickiness is off: otherwise such messages never come by the supervisor.
CONTINUES = "the message continues what this agent began"

# The reasons for which an agent takes the message as an answer to its own question.
_ANSWER_REASONS = frozenset({"follow_up_lock", "returned"})

_WORD = re.compile(r"[\w/']+")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")

_UNSURE = (
    "no se",
    "nao sei",
    "no lo se",
    "ni idea",
    "no estoy segur",
    "no me acuerdo",
    "don't know",
    "dont know",
    "not sure",
    "no idea",
    "idk",
    "don't remember",
)
_YES = (
    "si",
    "yes",
    "yeah",
    "ok",
    "vale",
    "claro",
    "sim",
    "sure",
    "perfecto",
    "perfect",
    "confirmo",
)
_NO = ("no", "nao", "nope", "nah", "mejor no", "rather not")
_THANKS = (
    "gracias",
    "obrigado",
    "obrigada",
    "thanks",
    "thank you",
    "eso es todo",
    "that's all",
    "nada mas",
    "adios",
    "bye",
)
_GREETINGS = ("hola", "buenas", "buenos dias", "hello", "hi", "hey", "good morning")

Notes = dict[str, str]
Script = Callable[["Moment"], Outcome | None]


def plain(text: str) -> str:
    """Return a text as it is compared: lower case, without accents, one space between words."""
    decomposed = unicodedata.normalize("NFD", text.replace("’", "'").casefold())  # noqa: RUF001
    letters = "".join(c for c in decomposed if not unicodedata.combining(c))
    return " ".join(_WORD.findall(letters))


def read_number(text: str) -> float | None:
    """Return the first number in a text, with comma or point as the thousands separator.

    A single separator before exactly three digits groups them: 12.000 and 12,000 are both twelve
    thousand; 12.50 and 12,50 are both twelve and a half.
    """
    found = _NUMBER.search(text)
    if found is None:
        return None
    digits = found.group()
    whole, _, last = digits.replace(",", ".").rpartition(".")
    if not whole or len(last) == 3:  # noqa: PLR2004 - the digits of a thousands group.
        return float(digits.replace(",", "").replace(".", ""))
    return float(f"{whole.replace('.', '')}.{last}")


@dataclass(slots=True)
class Moment:
    """One turn of a script. Said lines are collected; a question ends the turn."""

    turn: AgentTurn
    lines: Texts
    locale: str
    # This agent's own notes, and those that all agents of the conversation share.
    notes: Notes
    shared: Notes
    ask_user: AskUser = field(default_factory=AskUser)
    transfer_to_agent: TransferToAgent = field(default_factory=TransferToAgent)
    said: list[str] = field(default_factory=list)

    @property
    def words(self) -> str:
        """The user's message as it is compared."""
        return plain(self.turn.text)

    @property
    def step(self) -> str:
        """What this agent asked, if the message is the answer to it; else empty."""
        is_answer = (
            self.turn.locked
            or self.turn.reason in _ANSWER_REASONS
            or self.turn.handoff_reason == CONTINUES
        )
        return self.notes.get("step", "") if is_answer else ""

    def line(self, line_id: str, **variables: str | int) -> str:
        """Return a line of the script in the user's language."""
        return self.lines.render(line_id, self.locale, default_locale=self.locale, **variables)

    def say(self, line_id: str, **variables: str | int) -> None:
        """Say a line."""
        self.said.append(self.line(line_id, **variables))

    def ask(self, step: str, line_id: str, **variables: str | int) -> None:
        """Ask a line by the tool, and note which question the next message answers."""
        question = self.line(line_id, **variables)
        self.notes["step"] = step
        self.askers = [*(a for a in self.askers if a != self.turn.agent_id), self.turn.agent_id]
        self.said.append(question)
        self.ask_user(question)

    def finish(self) -> None:
        """Forget the question: the next message is a new one."""
        self.notes.pop("step", None)
        self.askers = [agent_id for agent_id in self.askers if agent_id != self.turn.agent_id]

    @property
    def askers(self) -> list[str]:
        """The agents with a question open, the latest last: an interlude asks on top of a lesson.

        Only a supervisor that gets every message needs them.
        """
        return self.shared.get("askers", "").split()

    @askers.setter
    def askers(self, agent_ids: list[str]) -> None:
        self.shared["askers"] = " ".join(agent_ids)

    def mentions(self, *terms: str) -> bool:
        """Whether the message has one of these words; a term may end in * or have several words."""
        return any(_has_term(self.words, term) for term in terms)

    @property
    def number(self) -> float | None:
        """The first number in the message."""
        return read_number(self.turn.text)

    @property
    def is_unsure(self) -> bool:
        """Whether the user cannot answer."""
        return any(term in self.words for term in _UNSURE)

    @property
    def is_yes(self) -> bool:
        """Whether the user agrees."""
        return self.mentions(*_YES) and not self.is_no

    @property
    def is_no(self) -> bool:
        """Whether the user declines; not knowing is not declining."""
        return self.mentions(*_NO) and not self.is_unsure

    @property
    def is_thanks(self) -> bool:
        """Whether the user says goodbye."""
        return self.mentions(*_THANKS)

    @property
    def is_greeting(self) -> bool:
        """Whether the user says hello."""
        return self.mentions(*_GREETINGS)


def _has_term(words: str, term: str) -> bool:
    if term.endswith("*"):
        return f" {term[:-1]}" in f" {words}"
    return f" {term} " in f" {words} "


class ScriptedAgents:
    """All agents of one example in one conversation. Make one for each session."""

    def __init__(
        self,
        scripts: Mapping[str, Script],
        on_refusal: Script,
        lines: Texts,
        default_locale: str,
    ) -> None:
        """Take a script for each agent, and the common reaction to a refused handoff."""
        self._scripts = scripts
        self._on_refusal = on_refusal
        self._lines = lines
        self._default_locale = default_locale
        self._notes: dict[str, Notes] = {agent_id: {} for agent_id in scripts}
        self._shared: Notes = {}

    @property
    def agent_ids(self) -> tuple[str, ...]:
        """The agents that there is a script for."""
        return tuple(self._scripts)

    def answer(self, turn: AgentTurn) -> AgentReply:
        """Return the agent's answer. Raises KeyError for an agent without a script."""
        moment = Moment(
            turn=turn,
            lines=self._lines,
            locale=self._lines.negotiate(turn.locale or self._default_locale, self._default_locale),
            notes=self._notes[turn.agent_id],
            shared=self._shared,
        )
        script = self._on_refusal if turn.refused_rules else self._scripts[turn.agent_id]
        outcome = script(moment) or moment.transfer_to_agent.wanted
        if isinstance(outcome, HandOff) and outcome.reason != CONTINUES:
            # An agent that is asked again starts again.
            self._notes.get(outcome.agent_id, {}).pop("step", None)
        if isinstance(outcome, Complete):
            moment.finish()
            if self._shared.get("specialist") == turn.agent_id:
                self._shared.pop("specialist")
        if outcome is None:
            outcome = moment.ask_user.outcome
        return AgentReply("\n".join(moment.said), outcome)


def route_by_words(
    moment: Moment, routes: Mapping[str, tuple[str, ...]], *, specialists_stick: bool = True
) -> str:
    """Return the first agent one of whose terms is in the message; empty if there is none.

    While stickiness is off, the supervisor does what stickiness would: an open question comes
    first, and a message without a topic of its own goes to the last specialist if specialists
    stick.
    """
    is_off = moment.turn.reason == "stickiness_disabled"
    if is_off and moment.askers:
        return moment.askers[-1]
    for agent_id, terms in routes.items():
        if moment.mentions(*terms):
            return agent_id
    if is_off and specialists_stick and not moment.is_greeting:
        return moment.shared.get("specialist", "")
    return ""


def small_talk(moment: Moment) -> None:
    """Answer a message that is for no specialist: thanks, a greeting, or something else."""
    if moment.is_thanks:
        moment.say("goodbye")
    elif moment.is_greeting:
        moment.say("welcome")
    else:
        moment.say("what-about")


def hand_over(moment: Moment, agent_id: str, line_id: str) -> HandOff:
    """Hand the message to a specialist with a warm word, or without one if it only continues."""
    is_off = moment.turn.reason == "stickiness_disabled"
    if is_off and agent_id in (*moment.askers[-1:], moment.shared.get("specialist")):
        return HandOff(agent_id, reason=CONTINUES)
    moment.shared["specialist"] = agent_id
    moment.askers = []
    return HandOff(
        agent_id, reason=f"the message is about {agent_id}", message=moment.line(line_id)
    )


@cache
def load_lines(example: str) -> Texts:
    """Return an example's lines in every language that it has."""
    folder = resources.files("routing_service.examples").joinpath("lines")
    catalogues = {}
    for file in folder.iterdir():
        name, _, rest = file.name.partition(".")
        if name == example and rest.endswith(".ftl"):
            catalogues[rest.removesuffix(".ftl")] = file.read_text(encoding="utf-8")
    return Texts(catalogues)
