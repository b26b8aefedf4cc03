"""Made-up registries for training: agents made of intents, and agents of several corpora.

Rule: an agent of one registry is hardly ever an agent of another, so that a model learns about
agents in general and not about one of them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from agent_routing_topics.model.agent_index import AgentText
from topics.training.corpora import Corpus


@dataclass(frozen=True, slots=True)
class Request:
    """A message that opens a topic. intent: corpus:name."""

    text: str
    intent: str
    language: str


@dataclass(frozen=True, slots=True)
class Episode:
    """A registry, the intents of each agent, and messages with the place of their agent."""

    agents: tuple[AgentText, ...]
    intents: tuple[tuple[str, ...], ...]
    messages: tuple[tuple[str, int], ...]


def requests(corpus: Corpus) -> tuple[Request, ...]:
    """Return the single messages of a corpus that has intents; out-of-scope ones are left out."""
    return tuple(
        Request(d.turns[0].text, f"{corpus.name}:{d.turns[0].acts[0]}", d.language)
        for d in corpus.dialogues
        if d.turns[0].agent and d.turns[0].acts
    )


def of_intents(
    chance: random.Random, by_intent: dict[str, list[str]], messages_each: int
) -> Episode:
    """Return agents made of intents of one corpus, and messages for them beyond their examples."""
    count = chance.randint(2, 16)
    intents = chance.sample(sorted(by_intent), min(len(by_intent), 4 * count))
    has_examples = chance.random() < 0.7
    agents: list[AgentText] = []
    intents_of: list[tuple[str, ...]] = []
    messages: list[tuple[str, int]] = []
    while intents and len(agents) < count:
        own = [intents.pop() for _ in range(min(len(intents), chance.randint(1, 5)))]
        texts = [text for intent in own for text in by_intent[intent]]
        chance.shuffle(texts)
        # Many agents have fewer examples than the corpora's twenty.
        shown = chance.randint(3, 20) if has_examples else 0
        if has_examples and chance.random() < 0.1:
            shown = 0
        shown = min(shown, len(texts) // 2)
        intents_of.append(tuple(own))
        agents.append(_agent(chance, len(agents), own, tuple(texts[:shown])))
        messages += [(text, len(agents) - 1) for text in texts[shown : shown + messages_each]]
    chance.shuffle(messages)
    return Episode(tuple(agents), tuple(intents_of), tuple(messages[: 4 * messages_each]))


def _agent(
    chance: random.Random, number: int, intents: list[str], examples: tuple[str, ...]
) -> AgentText:
    said = [intent.partition(":")[2].replace("_", " ") for intent in intents]
    is_described = not examples or chance.random() < 0.8
    return AgentText(
        agent_id=f"agent-{number}",
        names=(said[0],) if chance.random() < 0.5 else (),
        descriptions=("; ".join(said),) if is_described else (),
        examples=examples,
    )


def thinned(chance: random.Random, agents: Sequence[AgentText]) -> tuple[AgentText, ...]:
    """Return agents with fewer examples, sometimes with none at all, sometimes undescribed."""
    kind = chance.random()
    found: list[AgentText] = []
    for agent in agents:
        shown = 0 if kind < 0.35 else chance.randint(3, 20) if kind < 0.7 else 20
        if kind > 0.9 and chance.random() < 0.3:
            shown = 0
        examples = list(agent.examples)
        chance.shuffle(examples)
        is_described = not shown or chance.random() < 0.9
        found.append(
            AgentText(
                agent_id=agent.agent_id,
                names=agent.names if chance.random() < 0.8 or not is_described else (),
                descriptions=agent.descriptions if is_described else (),
                examples=tuple(examples[:shown]),
            )
        )
    return tuple(found)


def mixed(
    chance: random.Random, own: Sequence[AgentText], others: Sequence[AgentText], wanted: set[str]
) -> tuple[AgentText, ...]:
    """Return some of a corpus's agents, including the wanted ones, and some of other corpora.

    The others get new ids, because an id may occur in two corpora.
    """
    rest = [agent for agent in own if agent.agent_id not in wanted]
    chance.shuffle(rest)
    kept = [agent for agent in own if agent.agent_id in wanted]
    kept += rest[: chance.randint(0, len(rest))]
    strangers = chance.sample(list(others), min(len(others), chance.choice((0, 0, 2, 5))))
    kept += [
        AgentText(f"other-{number}", agent.names, agent.descriptions, agent.examples)
        for number, agent in enumerate(strangers)
    ]
    chance.shuffle(kept)
    return tuple(kept)
