"""The hand-written dialogues of topics/training/field, each registry with more and fewer examples.

Rule: the registries that are set aside are never read, unless they are asked for by name to be
measured.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from agent_routing_topics.evaluation import Session
from agent_routing_topics.model.agent_index import AgentText
from routing_service.topics.topic_detector import TopicQuestion
from topics.training.field_check import FOLDER, SET_ASIDE

_VARIANTS = 4
"""Registries with some of the examples, drawn by chance, besides the two as they are written."""


@dataclass(frozen=True, slots=True)
class FieldTurn:
    """A user's message with what is known when it comes. owner: "" is none's; stays where it is."""

    question: TopicQuestion
    owner: str
    is_scored: bool


@dataclass(frozen=True, slots=True)
class FieldRegistry:
    """A registry with its dialogues. agents: as given; rich: with 25 more examples each."""

    name: str
    language: str
    agents: tuple[AgentText, ...]
    rich: tuple[AgentText, ...]
    turns: tuple[FieldTurn, ...]

    def variants(self) -> Iterator[tuple[str, tuple[AgentText, ...]]]:
        """Yield the registry as given, rich, and with examples drawn by chance."""
        yield "given", self.agents
        yield "rich", self.rich
        for number in range(_VARIANTS):
            chance = random.Random(f"{self.name}-{number}")
            mode = chance.choice(("mixed", "mixed", "few", "many"))
            counts = {"mixed": (0, 0, 1, 2, 4, 6, 12, 25), "few": (0, 1, 2, 5), "many": (15, 25)}
            yield (
                f"drawn-{number}",
                tuple(_thinned(chance, agent, chance.choice(counts[mode])) for agent in self.rich),
            )


def load_field(*, set_aside: bool = False) -> list[FieldRegistry]:
    """Read the registries that may train; set_aside: those that may not, instead."""
    given = json.loads((FOLDER / "agents.json").read_text("utf-8"))
    rich = json.loads((FOLDER / "agents_25.json").read_text("utf-8"))
    return [
        _registry(name, _agents(given[name]), _agents(rich[name]))
        for name in sorted(given)
        if (name in SET_ASIDE) == set_aside
    ]


def _agents(records: list[dict[str, object]]) -> tuple[AgentText, ...]:
    return tuple(
        AgentText(
            agent_id=str(record["id"]),
            names=(str(record["name"]),),
            descriptions=(str(record["description"]),) if record.get("description") else (),
            examples=tuple(dict.fromkeys(map(str, record["examples"]))),  # type: ignore[call-overload]
        )
        for record in records
    )


def _thinned(chance: random.Random, agent: AgentText, count: int) -> AgentText:
    shown = chance.sample(agent.examples, min(count, len(agent.examples)))
    return replace(agent, examples=tuple(shown))


def _registry(
    name: str, agents: tuple[AgentText, ...], rich: tuple[AgentText, ...]
) -> FieldRegistry:
    turns: list[FieldTurn] = []
    ids = tuple(agent.agent_id for agent in agents)
    language = ""
    with gzip.open(FOLDER / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            language = record["language"]
            session = Session(language, ids)
            said = ""
            for turn in record["turns"]:
                if turn["speaker"] == "user":
                    said = turn["text"]
                    turns.append(
                        FieldTurn(
                            session.question(said), turn["agent"] or "", not turn.get("uncertain")
                        )
                    )
                    continue
                outcome = "proceed"
                if turn["requires_follow_up"]:
                    outcome = "follow_up"
                elif turn["task_complete"]:
                    outcome = "complete"
                session.answered(said, turn["agent"] or "", turn["text"], outcome)
    return FieldRegistry(name, language, agents, rich, tuple(turns))
