"""The questions of corpora that train: dialogues, made-up conversations and openings, read.

Rule: word statistics read only texts that they were not made of. Otherwise a model would trust them
more than a new registry deserves.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from agent_routing_topics.evaluation import Session
from agent_routing_topics.model.agent_index import AgentIndex, AgentText
from agent_routing_topics.model.dialogue_features import TARGET_FEATURES, Reading, read
from agent_routing_topics.model.word_knowledge import WordKnowledge
from routing_service.topics.topic_detector import TopicQuestion
from topics.training.conversations import converse
from topics.training.corpora import Corpus, Turn
from topics.training.knowledge import Text, learn
from topics.training.manners import Wording
from topics.training.registries import mixed, of_intents, thinned

_FOLDS: Final = 2
_MESSAGE_FOLDS: Final = 5
_MESSAGE_FOLDS_USED: Final = 3
_VARIANTS: Final = 12
_VARIANTS_EACH_BARE: Final = 4
"""Registries per dialogue. One in this many has no examples; others have few or none by chance."""
_CONVERSATIONS: Final = 120
_PLAYED: Final = 40
_PLAYED_SHARE: Final = 0.09
"""Dialogues of a corpus per registry: this many, or this share of the corpus if that is less."""
_MISLED: Final = 0.2
_WHOLE: Final = 0.75
_OPENING_EPISODES: Final = 25
_OPENING_REGISTRIES: Final = 25
_OPENINGS_EACH: Final = 40
_UNWEIGHTED: Final = (0.0,) * len(TARGET_FEATURES)
"""Weights that only serve to read questions, before the real ones are learned."""

Excluded = Collection[tuple[str, str]]
"""Agents that training must not see, by corpus and id."""


@dataclass(frozen=True, slots=True)
class Part:
    """Word statistics, and the texts that may be used with them: those not in the statistics."""

    knowledge: WordKnowledge
    texts: frozenset[tuple[str, str]]

    def may_use(self, corpus: str, text: str) -> bool:
        """Whether a text is not in the statistics."""
        return (corpus, text) in self.texts


def labelled_texts(corpora: Sequence[Corpus], excluded: Excluded = ()) -> list[Text]:
    """Return users' messages with their subject: an intent, or else the agent of the turn."""
    return [
        Text(turn.text, f"{corpus.name}:{_about(corpus, turn)}", dialogue.language)
        for corpus in corpora
        for dialogue in corpus.dialogues
        for turn in dialogue.turns
        if turn.speaker == "user"
        and (turn.agent or corpus.has_intents)
        and (corpus.name, turn.agent) not in excluded
    ]


def names_of(corpora: Sequence[Corpus], texts: Sequence[Text]) -> list[Text]:
    """Return the names of the texts' intents, in the form of a description."""
    known = {text.intent for text in texts}
    found: list[Text] = []
    for corpus in corpora:
        for agent in corpus.agents:
            for service in corpus.services[agent.agent_id]:
                if corpus.has_intents:
                    said = [(name, f"{name} {text}") for name, text in service.intents]
                else:
                    said = [(agent.agent_id, service.description or service.name)]
                found += [
                    Text(text.replace("_", " "), f"{corpus.name}:{intent}", "en")
                    for intent, text in said
                ]
    return [name for name in found if name.intent in known]


def _about(corpus: Corpus, turn: Turn) -> str:
    if not corpus.has_intents:
        return str(turn.agent)
    return turn.acts[0] if turn.acts else "oos"


def parts_of(texts: Sequence[Text], names: Sequence[Text]) -> list[Part]:
    """Return statistics without one half of the intents (each half once) or without some messages.

    The latter lack only a fifth of the messages. The shipped statistics contain all messages and
    deserve more trust than statistics without a half would teach.
    """
    intents = sorted({text.intent for text in texts})
    random.Random(1).shuffle(intents)
    parts: list[Part] = []
    for fold in range(_FOLDS):
        held = set(intents[fold::_FOLDS])
        parts.append(_part(texts, names, [text.intent in held for text in texts]))
    for fold in range(_MESSAGE_FOLDS_USED):
        chance = random.Random(2)
        parts.append(_part(texts, names, [chance.randrange(_MESSAGE_FOLDS) == fold for _ in texts]))
    return parts


def _part(texts: Sequence[Text], names: Sequence[Text], is_held: Sequence[bool]) -> Part:
    held = [text for text, out in zip(texts, is_held, strict=True) if out]
    seen = [text for text, out in zip(texts, is_held, strict=True) if not out]
    usable = {(text.intent.partition(":")[0], text.text) for text in held}
    usable -= {(text.intent.partition(":")[0], text.text) for text in seen}
    known = {text.intent for text in seen}
    named = [name for name in names if name.intent in known]
    return Part(learn(seen, held, named), frozenset(usable))


def pools_of(
    corpora: Sequence[Corpus], texts: Sequence[Text], part: Part
) -> list[tuple[Corpus, dict[str, list[str]]]]:
    """Return the usable single messages by corpus and intent, without out-of-scope ones."""
    pools: list[tuple[Corpus, dict[str, list[str]]]] = []
    for corpus in corpora:
        by_intent: dict[str, list[str]] = defaultdict(list)
        for text in texts:
            name, _, intent = text.intent.partition(":")
            usable = name == corpus.name and part.may_use(name, text.text)
            if corpus.has_intents and usable and intent != "oos":
                by_intent[text.intent].append(text.text)
        if len(by_intent) > 6:
            pools.append((corpus, dict(by_intent)))
    return pools


def _made_up(
    chance: random.Random,
    pools: Sequence[tuple[Corpus, dict[str, list[str]]]],
    part: Part,
    fit: Sequence[float],
) -> Iterator[Asked]:
    """Yield conversations with made-up agents."""
    for _ in range(_CONVERSATIONS if pools else 0):
        corpus, by_intent = chance.choice(pools)
        episode = of_intents(chance, by_intent, messages_each=6)
        if len(episode.agents) < 2 or not episode.messages:
            continue
        index = AgentIndex(episode.agents, part.knowledge)
        source = Source(episode.agents, part.knowledge)
        for question, place in converse(chance, episode.messages, index.agent_ids, corpus.language):
            yield Asked(read(question, index, fit, _UNWEIGHTED), place, "", source)


def openings_of(
    corpora: Sequence[Corpus],
    excluded: Excluded,
    texts: Sequence[Text],
    parts: Sequence[Part],
    fit: Sequence[float],
) -> Iterator[Asked]:
    """Yield messages that arrive without an active agent, and their owners; -1: none.

    The registries have made-up agents, or real ones of which some may be missing.
    """
    for number, part in enumerate(parts):
        chance = random.Random(200 + number)
        pools = pools_of(corpora, texts, part)
        for _ in range(_OPENING_EPISODES if pools else 0):
            _, by_intent = chance.choice(pools)
            episode = of_intents(chance, by_intent, messages_each=6)
            if len(episode.agents) < 2:
                continue
            index = AgentIndex(episode.agents, part.knowledge)
            source = Source(episode.agents, part.knowledge)
            held = {intent for agent in episode.intents for intent in agent}
            strangers = sorted(by_intent.keys() - held)
            asked = list(episode.messages[:12])
            lost = chance.sample(strangers, min(2, len(strangers)))
            asked += [(chance.choice(by_intent[intent]), -1) for intent in lost]
            for text, place in asked:
                yield Asked(read(_opening(index, text), index, fit, _UNWEIGHTED), place, "", source)
        for corpus in corpora:
            said = [
                (text, owner)
                for text, owner in _first_messages(corpus, excluded)
                if part.may_use(corpus.name, text) or not (owner or corpus.has_intents)
            ]
            used = {a.agent_id for a in corpus.agents if (corpus.name, a.agent_id) not in excluded}
            for _ in range(_OPENING_REGISTRIES if said else 0):
                wanted = used if chance.random() < _WHOLE else set()
                agents = registry_of(chance, corpus, corpora, excluded, wanted)
                if len(agents) < 2:
                    continue
                index = AgentIndex(agents, part.knowledge)
                source = Source(agents, part.knowledge)
                for text, owner in chance.sample(said, min(_OPENINGS_EACH, len(said))):
                    place = index.place.get(owner, -1)
                    yield Asked(
                        read(_opening(index, text), index, fit, _UNWEIGHTED), place, "", source
                    )


def _first_messages(corpus: Corpus, excluded: Excluded) -> list[tuple[str, str]]:
    """Return messages that open a topic, and greetings and the like, which have no owner."""
    nobodys = [
        (dialogue.turns[0].text, "")
        for dialogue in corpus.dialogues
        if not dialogue.turns[0].agent and not dialogue.turns[0].uncertain
    ]
    return [*requests_of(corpus, excluded), *nobodys]


def _opening(index: AgentIndex, text: str) -> TopicQuestion:
    return TopicQuestion(text=text, candidate_ids=index.agent_ids)


def registry_of(
    chance: random.Random,
    corpus: Corpus,
    corpora: Sequence[Corpus],
    excluded: Excluded,
    wanted: set[str],
) -> tuple[AgentText, ...]:
    """Return agents of a corpus, mixed with others' and with some of their examples.

    wanted: ids of its agents that are among them.
    """
    own = [agent for agent in corpus.agents if (corpus.name, agent.agent_id) not in excluded]
    others = [
        agent
        for other in corpora
        if other is not corpus
        for agent in other.agents
        if (other.name, agent.agent_id) not in excluded
    ]
    return thinned(chance, mixed(chance, own, others, wanted))


def requests_of(corpus: Corpus, excluded: Excluded) -> list[tuple[str, str]]:
    """Return the messages that open a topic, and their owners."""
    found: list[tuple[str, str]] = []
    for dialogue in corpus.dialogues:
        active = ""
        for turn in dialogue.turns:
            if turn.speaker != "user" or not turn.agent or turn.uncertain:
                continue
            if turn.agent != active and (corpus.name, turn.agent) not in excluded:
                found.append((turn.text, turn.agent))
            active = turn.agent
    return found


@dataclass(frozen=True, slots=True)
class Source:
    """The registry that a question is asked of. registry, kind: of the field, else ""."""

    agents: tuple[AgentText, ...]
    knowledge: WordKnowledge
    registry: str = ""
    kind: str = ""


@dataclass(slots=True)
class Asked:
    """A question, read, with the place of its owner; -1: it has no owner.

    dialogue: of the corpora, that it stands in; "" if it was made up. source: where it was asked.
    """

    reading: Reading
    owner: int
    dialogue: str
    source: Source
    is_scored: bool = True
    language: str = ""

    def target_group(self) -> tuple[list[list[float]], int] | None:
        """Return the agents that the message could go to if it leaves the present one."""
        present = self.reading.present
        if present < 0 or self.owner in (-1, present):
            return None
        places = [i for i in range(len(self.reading.fit)) if i != present]
        rows = rows_of([*self.reading.fits, *self.reading.targets])
        return [rows[i] for i in places], places.index(self.owner)

    def wording(self) -> Wording:
        """Return the features of the wording."""
        recent = self.reading.question.recent
        answer = recent[-1].agent_text if recent else ""
        stays = self.owner == self.reading.present
        teaches = self.is_scored and self.source.kind in ("", "given")
        return Wording(self.reading.message.whole, answer, self.dialogue, stays, teaches)


def questions_of(
    corpora: Sequence[Corpus],
    excluded: Excluded,
    texts: Sequence[Text],
    parts: Sequence[Part],
    fit: Sequence[float],
) -> Iterator[Asked]:
    """Yield the questions of dialogues, each dialogue with several registries."""
    for number, part in enumerate(parts):
        chance = random.Random(100 + number)
        yield from _made_up(chance, pools_of(corpora, texts, part), part, fit)
        for corpus in corpora:
            if corpus.has_intents:
                continue
            used = {a.agent_id for a in corpus.agents if (corpus.name, a.agent_id) not in excluded}
            share = min(_PLAYED_SHARE, _PLAYED / len(corpus.dialogues))
            for variant in range(_VARIANTS):
                agents = registry_of(chance, corpus, corpora, excluded, used)
                if variant % _VARIANTS_EACH_BARE == 0:
                    agents = tuple(replace(a, examples=()) if a.descriptions else a for a in agents)
                if len(agents) < 2:
                    continue
                index = AgentIndex(agents, part.knowledge)
                source = Source(agents, part.knowledge)
                for dialogue in corpus.dialogues:
                    if chance.random() >= share:
                        continue
                    session = Session(dialogue.language, index.agent_ids, variant % 2 == 1)
                    for question, owner in _asked(chance, dialogue.turns, session):
                        active = question.active_agent_id
                        if {(corpus.name, owner), (corpus.name, active)} & set(excluded):
                            continue
                        reading = read(question, index, fit, _UNWEIGHTED)
                        place = index.place.get(owner, -1)
                        yield Asked(reading, place, dialogue.dialogue_id, source)


def _asked(
    chance: random.Random, turns: Sequence[Turn], session: Session
) -> Iterator[tuple[TopicQuestion, str]]:
    """Yield the user's messages with their owners.

    The owner of the last message is active. In some dialogues a change of topic is missed for a
    while, and the wrong agent is active.
    """
    is_misled = chance.random() < _MISLED
    said = ""
    holder = ""
    for turn in turns:
        if turn.speaker == "user":
            said = turn.text
            if not turn.uncertain:
                yield session.question(said), turn.agent or ""
            missed = is_misled and session.active and chance.random() < 0.5
            holder = session.active if missed else turn.agent or ""
        elif holder != (turn.agent or ""):
            session.answered(said, holder, "", "follow_up" if session.is_locked else "proceed")
        else:
            outcome = "proceed"
            if turn.requires_follow_up:
                outcome = "follow_up"
            elif turn.task_complete:
                outcome = "complete"
            session.answered(said, holder, turn.text, outcome)


def rows_of(columns: Sequence[Sequence[float]]) -> list[list[float]]:
    """Turn a list for each feature into a list for each agent."""
    return [list(row) for row in zip(*columns, strict=True)]
