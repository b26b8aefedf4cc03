"""What trains the model: registries with their conversations, each with more and fewer examples.

Owns files, forms and licences. Rule: registries that are set aside are read only to be measured,
and no share-alike corpus trains.
"""

from __future__ import annotations

import gzip
import json
import os
import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from agent_routing_topics.model.agent_text import AgentText
from routing_service.topics.topic_detector import RECENT_TURNS_MAX, RecentTurn, TopicQuestion
from topics.training.field_check import FOLDER, SET_ASIDE

DIALOGUES_VARIABLE: Final = "ROUTING_DIALOGUES"

CORPORA: Final = {"star": "star_train", "massive": "massive_es_train", "clinc150": "clinc150_train"}
"""MIT, CC BY 4.0 and CC BY 3.0. Of each so many dialogues, or single messages, train."""
TAKEN: Final = {"star": 120, "massive": 500, "clinc150": 500}

EXAMPLE_COUNTS: Final = {
    "mixed": (0, 0, 1, 2, 4, 6, 12, 25),
    "few": (0, 1, 2, 5),
    "many": (15, 25),
}
"""How many examples an agent has in a registry that is drawn by chance."""

DRAWN: Final = 2

SHORT_WEIGHT: Final = 0.3
"""Of a message whose agent has answered less before than it did. In the field dialogues users
hardly ever change the topic right after a first answer; elsewhere they do."""

SUPERVISOR: Final = "(supervisor)"


@dataclass(slots=True)
class Session:
    """What a server knows of a conversation, turn by turn, if each message goes to its owner."""

    locale: str
    candidate_ids: Collection[str]
    active: str = ""
    is_locked: bool = False
    recent: list[RecentTurn] = field(default_factory=list)
    earlier: list[str] = field(default_factory=list)

    def question(self, text: str) -> TopicQuestion:
        """Return what is asked of the detector when a message comes."""
        return TopicQuestion(
            text=text,
            locale=self.locale,
            active_agent_id=self.active,
            is_locked=self.is_locked,
            recent=tuple(self.recent[-RECENT_TURNS_MAX:]),
            earlier_agent_ids=tuple(agent for agent in self.earlier if agent != self.active),
            candidate_ids=self.candidate_ids,
        )

    def answered(self, user_text: str, agent_id: str, text: str, outcome: str) -> None:
        """Note that an agent, or the supervisor, has answered."""
        self.recent.append(RecentTurn(agent_id or SUPERVISOR, user_text, text, outcome))
        del self.recent[:-RECENT_TURNS_MAX]
        if agent_id:
            if agent_id in self.earlier:
                self.earlier.remove(agent_id)
            self.earlier.append(agent_id)
        self.active = agent_id
        self.is_locked = bool(self.active) and outcome == "follow_up"


@dataclass(frozen=True, slots=True)
class Message:
    """A user's message with what is known when it comes. owner: "" = no agent's; it stays."""

    question: TopicQuestion
    owner: str


@dataclass(frozen=True, slots=True)
class Conversations:
    """A registry's conversations. agents: as given; rich: with 25 more examples each.

    is_field: of the field dialogues, which the model is judged by. is_short: see shortened().
    weight: of a message.
    """

    name: str
    language: str
    agents: tuple[AgentText, ...]
    rich: tuple[AgentText, ...]
    messages: tuple[Message, ...]
    is_field: bool = True
    is_short: bool = False
    weight: float = 1.0

    def variants(self) -> Iterator[tuple[str, tuple[AgentText, ...]]]:
        """Yield the registry as given, rich, and with examples drawn by chance."""
        if self.is_field:
            yield "given", self.agents
            yield "rich", self.rich
        for number in range(1 if self.is_short else DRAWN):
            chance = random.Random(f"{self.name}-{number}")
            counts = EXAMPLE_COUNTS[chance.choice(("mixed", "mixed", "few", "many"))]
            yield (
                f"drawn-{number}",
                tuple(_thinned(chance, agent, chance.choice(counts)) for agent in self.rich),
            )


def load_field(*, set_aside: bool = False) -> list[Conversations]:
    """Read the registries that may train; set_aside: those that may not, instead."""
    given = json.loads((FOLDER / "agents.json").read_text("utf-8"))
    rich = json.loads((FOLDER / "agents_25.json").read_text("utf-8"))
    return [
        _conversations(name, FOLDER / f"{name}.jsonl.gz", _agents(given[name]), _agents(rich[name]))
        for name in sorted(given)
        if (name in SET_ASIDE) == set_aside
    ]


def load_corpora(folder: Path) -> list[Conversations]:
    """Read the corpora that train besides. Raises OSError if a file is missing."""
    agents = json.loads((folder / "agents.json").read_text("utf-8"))
    found = []
    for name, file in CORPORA.items():
        own = _agents(agents[name])
        read = _conversations(name, folder / f"{file}.jsonl.gz", own, own, TAKEN[name])
        found.append(replace(read, is_field=False, weight=0.5 if name == "star" else 0.25))
    return found


def shortened(registry: Conversations) -> Conversations:
    """Return the messages of a registry as if their agent had answered once or twice before."""
    chance = random.Random(registry.name)
    messages = []
    for message in registry.messages:
        recent, active = message.question.recent, message.question.active_agent_id
        stretch = 0
        while stretch < len(recent) and recent[-1 - stretch].agent_id == active:
            stretch += 1
        if not active or stretch < 2:
            continue
        kept = 1 if stretch == 2 else chance.choice((1, 1, 2))
        fewer = (*recent[: len(recent) - stretch], *recent[-kept:])
        question = msgspec.structs.replace(message.question, recent=fewer)
        messages.append(replace(message, question=question))
    return replace(registry, messages=tuple(messages), is_short=True, weight=SHORT_WEIGHT)


def dialogues_folder() -> Path | None:
    """Return where the corpora are, None if the variable does not name a folder that has them."""
    folder = Path(os.environ.get(DIALOGUES_VARIABLE, ""))
    return folder if (folder / "agents.json").is_file() else None


def _agents(records: list[dict[str, Any]]) -> tuple[AgentText, ...]:
    return tuple(
        AgentText(
            agent_id=str(record["id"]),
            names=(str(record["name"]),) if record.get("name") else (),
            descriptions=_description(record),
            examples=tuple(dict.fromkeys(map(str, record["examples"]))),
        )
        for record in records
    )


def _description(record: dict[str, Any]) -> tuple[str, ...]:
    """Return an agent's description, or those of its intents, as a replay's registry does."""
    if record.get("description"):
        return (str(record["description"]),)
    intents = [
        intent.get("description") or intent["name"].replace("_", " ")
        for service in record["services"]
        for intent in service["intents"]
    ]
    return ("; ".join(dict.fromkeys(intents)),) if intents else ()


def _thinned(chance: random.Random, agent: AgentText, count: int) -> AgentText:
    shown = chance.sample(agent.examples, min(count, len(agent.examples)))
    return replace(agent, examples=tuple(shown))


def _conversations(
    name: str,
    path: Path,
    agents: tuple[AgentText, ...],
    rich: tuple[AgentText, ...],
    taken: int | None = None,
) -> Conversations:
    messages: list[Message] = []
    ids = tuple(agent.agent_id for agent in agents)
    language = ""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    if taken is not None:
        records = random.Random(name).sample(records, min(taken, len(records)))
    for record in records:
        language = record["language"]
        session = Session(language, ids)
        said = ""
        for turn in record["turns"]:
            if turn["speaker"] == "user":
                said = turn["text"]
                if not turn.get("uncertain"):
                    messages.append(Message(session.question(said), turn["agent"] or ""))
                continue
            outcome = "complete" if turn["task_complete"] else "proceed"
            outcome = "follow_up" if turn["requires_follow_up"] else outcome
            session.answered(said, turn["agent"] or "", turn["text"], outcome)
    return Conversations(name, language, agents, rich, tuple(messages))
