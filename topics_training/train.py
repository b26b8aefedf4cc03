"""Training: corpora in, parameters out.

Owns the recipe. Rule: the models are trained on agents and messages that their word statistics have
not seen, and on registries with few examples or none. Otherwise they would trust the statistics
more than a new registry deserves.
"""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier

from routing_service.topics.evaluation import Session
from routing_service.topics.model.agent_index import FIT_WEIGHTS, AgentIndex, AgentText
from routing_service.topics.model.dialogue_features import (
    STAY_FEATURES,
    TARGET_FEATURES,
    Reading,
    best_other,
    read,
    stay_features,
    weighted,
)
from routing_service.topics.model.opening_features import OPENING_FEATURES, opening_features
from routing_service.topics.model.parameters import FORMAT, Forest, Parameters, Tree
from routing_service.topics.model.word_knowledge import WordKnowledge
from routing_service.topics.topic_detector import TopicQuestion
from topics_training import choice_model
from topics_training.conversations import converse
from topics_training.corpora import SHARE_ALIKE, Corpus, Turn
from topics_training.knowledge import Text, learn
from topics_training.manners import Wording, learn_manner, nothing_learned
from topics_training.registries import mixed, of_intents, thinned

_FOLDS: Final = 2
_MESSAGE_FOLDS: Final = 5
_MESSAGE_FOLDS_USED: Final = 3
_EPISODES: Final = 60
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
_OPENING_TREES: Final = 60
_NOBODYS_WEIGHT: Final = 0.3
"""Weight of openings whose agent the registry lacks: they are more frequent here than in use."""
_LEAVES_WEIGHT: Final = 0.4
_LEAVES_WEIGHT_OF_SEVERAL: Final = 0.8
"""Made-up conversations and misled agents change topic more often than people do, about one turn in
eight; so do the dialogues of STAR. With those of another corpus a smaller weight is enough."""

_RISING: Final = ("fit_gap", "target_gap", "fit_present", "share_present", "present_", "manner")
_FALLING: Final = ("fit_other", "share_other", "other_")
"""In every corpus: the better the present agent fits, the likelier is staying; the better another
fits, the less likely."""

_UNWEIGHTED: Final = (0.0,) * len(TARGET_FEATURES)
"""Weights that only serve to read questions, before the real ones are learned."""

_DIGITS: Final = 4

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


def train(corpora: Sequence[Corpus], excluded: Excluded = ()) -> Parameters:
    """Return the parameters learned from corpora, without the excluded agents."""
    texts = labelled_texts(corpora, excluded)
    parts = _parts(texts, _names(corpora, texts))
    fit = choice_model.fit(list(_fit_groups(corpora, excluded, texts, parts)))
    questions = list(_questions(corpora, excluded, texts, parts, fit.tolist()))
    openings = [
        *(one for one in questions if one.reading.present < 0),
        *_openings(corpora, excluded, texts, parts, fit.tolist()),
    ]
    asked = [one for one in questions if one.reading.present >= 0 and one.owner >= 0]
    target = choice_model.fit([group for one in asked if (group := one.target_group())])
    knowledge = learn(texts, names=_names(corpora, texts))
    dialogues = sum(not corpus.has_intents for corpus in corpora)
    # Learned from one corpus alone, the manner would be that corpus's and mislead on every other.
    learn_it = learn_manner if dialogues > 1 else nothing_learned
    manner, worths = learn_it([one.wording() for one in asked], knowledge)
    stay = [
        (one.stay_row(target.tolist(), *worth), one.owner == one.reading.present)
        for one, worth in zip(asked, worths, strict=True)
    ]
    leaves = _leaves_weight(corpora)
    parameters = Parameters(
        format=FORMAT,
        version="",
        trained_on=tuple(corpus.name for corpus in corpora),
        agents=tuple(
            f"{corpus.name}:{agent.agent_id}"
            for corpus in corpora
            for agent in corpus.agents
            if (corpus.name, agent.agent_id) not in excluded
        ),
        fit=_named(FIT_WEIGHTS, fit),
        target=_named(TARGET_FEATURES, target),
        stay=_forest(
            STAY_FEATURES,
            stay,
            trees=120,
            weights=[1.0 if stays else leaves for _, stays in stay],
        ),
        opening=_forest(
            OPENING_FEATURES,
            [one.opening_row() for one in openings],
            trees=_OPENING_TREES,
            weights=[1.0 if one.owner >= 0 else _NOBODYS_WEIGHT for one in openings],
        ),
        manner=dict(manner.said),
        manner_asked=dict(manner.asked),
        words=dict(sorted(knowledge.weights.items())),
        groups=tuple(knowledge.groups),
    )
    # The digest is of the parameters as read from the file, where whole numbers become floats.
    as_read = msgspec.json.decode(msgspec.json.encode(parameters), type=Parameters)
    digest = hashlib.sha256(msgspec.json.encode(as_read)).hexdigest()
    shared = [corpus.name for corpus in corpora if corpus.name in SHARE_ALIKE]
    version = "-".join((str(FORMAT), *shared, digest[:10]))
    return msgspec.structs.replace(parameters, version=version)


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


def _names(corpora: Sequence[Corpus], texts: Sequence[Text]) -> list[Text]:
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


def _parts(texts: Sequence[Text], names: Sequence[Text]) -> list[Part]:
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


def _fit_groups(
    corpora: Sequence[Corpus], excluded: Excluded, texts: Sequence[Text], parts: Sequence[Part]
) -> Iterator[tuple[list[list[float]], int]]:
    """Yield messages with their fit to each agent of a registry, and the agent they were for."""
    requests = {corpus.name: _requests(corpus, excluded) for corpus in corpora}
    for number, part in enumerate(parts):
        chance = random.Random(number)
        pools = _pools(corpora, texts, part)
        for _ in range(_EPISODES if pools else 0):
            episode = of_intents(chance, chance.choice(pools)[1], messages_each=4)
            if len(episode.agents) > 1:
                index = AgentIndex(episode.agents, part.knowledge)
                for text, place in episode.messages:
                    yield _fit_rows(index, text), place
        for _ in range(_EPISODES):
            corpus = chance.choice(corpora)
            usable = [r for r in requests[corpus.name] if part.may_use(corpus.name, r[0])]
            batch = chance.sample(usable, min(10, len(usable)))
            agents = _registry(chance, corpus, corpora, excluded, {owner for _, owner in batch})
            if len(agents) > 1:
                index = AgentIndex(agents, part.knowledge)
                for text, owner in batch:
                    yield _fit_rows(index, text), index.place[owner]


def _fit_rows(index: AgentIndex, text: str) -> list[list[float]]:
    """Return the features of each agent, plain and scaled by the trust in this registry."""
    message = index.message(text)
    rows = _rows(index.fits(message).columns)
    return [[*row, *(message.trust * value for value in row)] for row in rows]


def _pools(
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
        for question, place in converse(chance, episode.messages, index.agent_ids, corpus.language):
            yield Asked(read(question, index, fit, _UNWEIGHTED), place)


def _openings(
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
        pools = _pools(corpora, texts, part)
        for _ in range(_OPENING_EPISODES if pools else 0):
            _, by_intent = chance.choice(pools)
            episode = of_intents(chance, by_intent, messages_each=6)
            if len(episode.agents) < 2:
                continue
            index = AgentIndex(episode.agents, part.knowledge)
            held = {intent for agent in episode.intents for intent in agent}
            strangers = sorted(by_intent.keys() - held)
            asked = list(episode.messages[:12])
            lost = chance.sample(strangers, min(2, len(strangers)))
            asked += [(chance.choice(by_intent[intent]), -1) for intent in lost]
            for text, place in asked:
                yield Asked(read(_opening(index, text), index, fit, _UNWEIGHTED), place)
        for corpus in corpora:
            said = [
                (text, owner)
                for text, owner in _first_messages(corpus, excluded)
                if part.may_use(corpus.name, text) or not (owner or corpus.has_intents)
            ]
            used = {a.agent_id for a in corpus.agents if (corpus.name, a.agent_id) not in excluded}
            for _ in range(_OPENING_REGISTRIES if said else 0):
                wanted = used if chance.random() < _WHOLE else set()
                agents = _registry(chance, corpus, corpora, excluded, wanted)
                if len(agents) < 2:
                    continue
                index = AgentIndex(agents, part.knowledge)
                for text, owner in chance.sample(said, min(_OPENINGS_EACH, len(said))):
                    place = index.place.get(owner, -1)
                    yield Asked(read(_opening(index, text), index, fit, _UNWEIGHTED), place)


def _first_messages(corpus: Corpus, excluded: Excluded) -> list[tuple[str, str]]:
    """Return messages that open a topic, and greetings and the like, which have no owner."""
    nobodys = [
        (dialogue.turns[0].text, "")
        for dialogue in corpus.dialogues
        if not dialogue.turns[0].agent and not dialogue.turns[0].uncertain
    ]
    return [*_requests(corpus, excluded), *nobodys]


def _opening(index: AgentIndex, text: str) -> TopicQuestion:
    return TopicQuestion(text=text, candidate_ids=index.agent_ids)


def _registry(
    chance: random.Random,
    corpus: Corpus,
    corpora: Sequence[Corpus],
    excluded: Excluded,
    wanted: set[str],
) -> tuple[AgentText, ...]:
    own = [agent for agent in corpus.agents if (corpus.name, agent.agent_id) not in excluded]
    others = [
        agent
        for other in corpora
        if other is not corpus
        for agent in other.agents
        if (other.name, agent.agent_id) not in excluded
    ]
    return thinned(chance, mixed(chance, own, others, wanted))


def _requests(corpus: Corpus, excluded: Excluded) -> list[tuple[str, str]]:
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


@dataclass(slots=True)
class Asked:
    """A question, read, with the place of its owner; -1: it has no owner.

    dialogue: its dialogue in the corpora; "" if it was made up.
    """

    reading: Reading
    owner: int
    dialogue: str = ""

    def target_group(self) -> tuple[list[list[float]], int] | None:
        """Return the agents that the message could go to if it leaves the present one."""
        present = self.reading.present
        if present < 0 or self.owner in (-1, present):
            return None
        places = [i for i in range(len(self.reading.fit)) if i != present]
        rows = _rows([*self.reading.fits, *self.reading.targets])
        return [rows[i] for i in places], places.index(self.owner)

    def stay_row(self, target: Sequence[float], manner: float, manner_asked: float) -> list[float]:
        """Return the features of staying."""
        reading = self.reading
        scores = weighted([*reading.fits, *reading.targets], target)
        reading = replace(reading, target=scores)
        return stay_features(reading, best_other(reading), manner, manner_asked)

    def wording(self) -> Wording:
        """Return the features of the wording."""
        recent = self.reading.question.recent
        answer = recent[-1].agent_text if recent else ""
        stays = self.owner == self.reading.present
        return Wording(self.reading.message.whole, answer, self.dialogue, stays)

    def opening_row(self) -> tuple[list[float], bool]:
        """Return the features of an opening, and whether the agent that fits best is right."""
        best = max(range(len(self.reading.fit)), key=self.reading.fit.__getitem__)
        return opening_features(self.reading, best), self.owner == best


def _questions(
    corpora: Sequence[Corpus],
    excluded: Excluded,
    texts: Sequence[Text],
    parts: Sequence[Part],
    fit: Sequence[float],
) -> Iterator[Asked]:
    """Yield the questions of dialogues, each dialogue with several registries."""
    for number, part in enumerate(parts):
        chance = random.Random(100 + number)
        yield from _made_up(chance, _pools(corpora, texts, part), part, fit)
        for corpus in corpora:
            if corpus.has_intents:
                continue
            used = {a.agent_id for a in corpus.agents if (corpus.name, a.agent_id) not in excluded}
            share = min(_PLAYED_SHARE, _PLAYED / len(corpus.dialogues))
            for variant in range(_VARIANTS):
                agents = _registry(chance, corpus, corpora, excluded, used)
                if variant % _VARIANTS_EACH_BARE == 0:
                    agents = tuple(replace(a, examples=()) if a.descriptions else a for a in agents)
                if len(agents) < 2:
                    continue
                index = AgentIndex(agents, part.knowledge)
                for dialogue in corpus.dialogues:
                    if chance.random() >= share:
                        continue
                    session = Session(dialogue.language, index.agent_ids, variant % 2 == 1)
                    for question, owner in _asked(chance, dialogue.turns, session):
                        active = question.active_agent_id
                        if {(corpus.name, owner), (corpus.name, active)} & set(excluded):
                            continue
                        reading = read(question, index, fit, _UNWEIGHTED)
                        yield Asked(reading, index.place.get(owner, -1), dialogue.dialogue_id)


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


def _leaves_weight(corpora: Sequence[Corpus]) -> float:
    """Return the training weight of a message that leaves, relative to one that stays."""
    dialogues = sum(not corpus.has_intents for corpus in corpora)
    return _LEAVES_WEIGHT_OF_SEVERAL if dialogues > 1 else _LEAVES_WEIGHT


def _rows(columns: Sequence[Sequence[float]]) -> list[list[float]]:
    """Turn a list for each feature into a list for each agent."""
    return [list(row) for row in zip(*columns, strict=True)]


def _named(names: Sequence[str], weights: Any) -> dict[str, float]:
    return {name: _short(weight) for name, weight in zip(names, weights, strict=True)}


def _short(value: float) -> float:
    """Round a number to the digits that are kept: later ones differ between machines."""
    return float(f"{value:.{_DIGITS}g}")


def _forest(
    names: tuple[str, ...],
    rows: Sequence[tuple[list[float], bool]],
    trees: int,
    weights: Sequence[float],
) -> Forest:
    """Return trees that classify rows. weights: of the rows."""
    # Bounds between rounded values are short too, and the same on every machine.
    table = np.array([[_short(value) for value in row] for row, _ in rows], dtype=np.float64)
    model = HistGradientBoostingClassifier(
        max_iter=trees,
        learning_rate=0.09,
        max_leaf_nodes=8,
        min_samples_leaf=120,
        l2_regularization=5,
        monotonic_cst=[_direction(name) for name in names],
        random_state=0,
        early_stopping=False,
    ).fit(table, [is_so for _, is_so in rows], sample_weight=weights)
    return Forest(
        features=names,
        base=_short(float(np.ravel(model._baseline_prediction)[0])),  # noqa: SLF001
        trees=tuple(_tree(predictors[0].nodes) for predictors in model._predictors),  # noqa: SLF001
    )


def _direction(feature: str) -> int:
    """Return whether a probability may only rise with a feature: 1; only fall: -1; both: 0."""
    if feature.startswith(_RISING) or feature in ("fit_best", "share_best"):
        return 1
    return -1 if feature.startswith(_FALLING) else 0


def _tree(nodes: Any) -> Tree:
    leaf = nodes["is_leaf"].astype(bool)
    return Tree(
        feature=tuple(
            -1 if is_leaf else int(feature)
            for is_leaf, feature in zip(leaf, nodes["feature_idx"], strict=True)
        ),
        bound=tuple(
            _short(float(value if is_leaf else bound))
            for is_leaf, value, bound in zip(
                leaf, nodes["value"], nodes["num_threshold"], strict=True
            )
        ),
        left=tuple(int(node) for node in nodes["left"]),
        right=tuple(int(node) for node in nodes["right"]),
    )
