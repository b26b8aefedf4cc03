"""Training: corpora in, parameters out.

Owns the recipe. Rule: the models are trained on agents and messages that their word statistics have
not seen, and on registries with few examples or none. Otherwise they would trust the statistics
more than a new registry deserves.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import numpy as np

from agent_routing_topics.model.agent_index import FIT_WEIGHTS, AgentIndex, go_on
from agent_routing_topics.model.choice_features import (
    CHOICE_FEATURES,
    Options,
    options_of,
    shortlist,
)
from agent_routing_topics.model.closeness import ClosenessIndex
from agent_routing_topics.model.concepts import load_concepts
from agent_routing_topics.model.dialogue_features import (
    TARGET_FEATURES,
    Reading,
    read,
    weighted,
)
from agent_routing_topics.model.manner import Manner
from agent_routing_topics.model.parameters import FORMAT, Parameters
from agent_routing_topics.model.reader import AGENTS_COMPARED, Reader
from agent_routing_topics.model.trained_model import EXAMPLES_AT
from agent_routing_topics.model.verbatim import Verbatim
from agent_routing_topics.model.word_knowledge import WordKnowledge
from topics.training import choice_model
from topics.training.choice_forest import Fitted, Group, fit_choice
from topics.training.corpora import SHARE_ALIKE, Corpus
from topics.training.field import FieldRegistry
from topics.training.knowledge import Text, learn
from topics.training.manners import learn_manner
from topics.training.questions import (
    Asked,
    Excluded,
    Part,
    Source,
    labelled_texts,
    names_of,
    openings_of,
    parts_of,
    pools_of,
    questions_of,
    registry_of,
    requests_of,
    rows_of,
)
from topics.training.registries import of_intents

_EPISODES: Final = 60
_CORPORA_SHARE: Final = 0.5
"""Of the corpora's questions so many are learned from: they are many, and alike."""
_CORPORA_WEIGHT: Final = 0.6
_NOBODYS_WEIGHT: Final = 0.3
"""Registries without the agent that is asked for are more here than anywhere else."""

_DIGITS: Final = 4


@dataclass(frozen=True, slots=True)
class Basis:
    """What is learned of words, before any choice. asked: the corpora's questions, read."""

    knowledge: WordKnowledge
    fit: tuple[float, ...]
    target: tuple[float, ...]
    asked: tuple[Asked, ...]
    trained_on: tuple[str, ...]
    agents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trained:
    """Parameters, how they were judged by folds, and what they were learned from."""

    parameters: Parameters
    fitted: Fitted
    asked: list[Asked]
    basis: Basis
    worths: dict[int, tuple[float, float]]


def train(
    corpora: Sequence[Corpus],
    field: Sequence[FieldRegistry],
    excluded: Excluded = (),
    before: Parameters | None = None,
    *,
    judge: bool = True,
) -> Trained:
    """Return what is learned from corpora and field dialogues, without the agents excluded.

    before: what is known of words, where there are no corpora to learn it from. judge: whether to
    judge by folds, which the temperatures come from.
    """
    basis = learn_words(corpora, excluded) if before is None else known_words(before)
    asked = [*basis.asked, *_asked_of_field(field, basis)]
    in_dialogue = [one for one in asked if one.reading.present >= 0 and one.owner >= 0]
    manner, worths = learn_manner([one.wording() for one in in_dialogue], basis.knowledge)
    by_question = {id(one): worth for one, worth in zip(in_dialogue, worths, strict=True)}
    groups = list(_groups(asked, basis, by_question))
    fitted = fit_choice(CHOICE_FEATURES, groups, judge=judge)
    parameters = Parameters(
        format=FORMAT,
        version="",
        trained_on=(*basis.trained_on, "field") if field else basis.trained_on,
        agents=basis.agents,
        fit=_named(FIT_WEIGHTS, basis.fit),
        target=_named(TARGET_FEATURES, basis.target),
        choice=fitted.forest,
        temperatures=fitted.temperatures,
        manner=dict(manner.said),
        manner_asked=dict(manner.asked),
        words=dict(sorted(basis.knowledge.weights.items())),
        groups=tuple(basis.knowledge.groups),
    )
    return Trained(_with_version(parameters), fitted, asked, basis, by_question)


def _with_version(parameters: Parameters) -> Parameters:
    """Name parameters by their kind, the share-alike corpora in them, and their digest."""
    # Of what the file will be read as: a whole number in it is read as a fraction.
    as_read = msgspec.json.decode(msgspec.json.encode(parameters), type=Parameters)
    digest = hashlib.sha256(msgspec.json.encode(as_read)).hexdigest()
    shared = [name for name in parameters.trained_on if name in SHARE_ALIKE]
    version = "-".join((str(FORMAT), *shared, digest[:10]))
    return msgspec.structs.replace(parameters, version=version)


def learn_words(corpora: Sequence[Corpus], excluded: Excluded = ()) -> Basis:
    """Return what corpora say of words, and their questions."""
    texts = labelled_texts(corpora, excluded)
    parts = parts_of(texts, names_of(corpora, texts))
    fit = choice_model.fit(list(_fit_groups(corpora, excluded, texts, parts))).tolist()
    questions = list(questions_of(corpora, excluded, texts, parts, fit))
    openings = list(openings_of(corpora, excluded, texts, parts, fit))
    owned = [one for one in questions if one.reading.present >= 0 and one.owner >= 0]
    target = choice_model.fit([group for one in owned if (group := one.target_group())]).tolist()
    nobodys = [one for one in questions if one.reading.present < 0]
    return Basis(
        knowledge=learn(texts, names=names_of(corpora, texts)),
        fit=tuple(map(_short, fit)),
        target=tuple(map(_short, target)),
        asked=tuple(owned + nobodys + openings),
        trained_on=tuple(corpus.name for corpus in corpora),
        agents=tuple(
            f"{corpus.name}:{agent.agent_id}"
            for corpus in corpora
            for agent in corpus.agents
            if (corpus.name, agent.agent_id) not in excluded
        ),
    )


def known_words(before: Parameters) -> Basis:
    """Return what a file of parameters says of words; it has no questions."""
    return Basis(
        knowledge=WordKnowledge(before.words, before.groups, load_concepts()),
        fit=tuple(before.fit.values()),
        target=tuple(before.target.values()),
        asked=(),
        trained_on=tuple(name for name in before.trained_on if name != "field"),
        agents=before.agents,
    )


def _asked_of_field(field: Sequence[FieldRegistry], basis: Basis) -> Iterator[Asked]:
    """Yield the messages of each field registry, with more and fewer examples."""
    for registry in field:
        for kind, agents in registry.variants():
            in_order = sorted(agents, key=lambda agent: agent.agent_id)
            index = AgentIndex(in_order, basis.knowledge)
            source = Source(tuple(in_order), basis.knowledge, registry.name, kind)
            for turn in registry.turns:
                reading = read(turn.question, index, basis.fit, basis.target, AGENTS_COMPARED)
                active = turn.question.active_agent_id
                places = {agent_id: at for at, agent_id in enumerate(reading.agent_ids)}
                owner = places.get(turn.owner or active, -1)
                yield Asked(
                    reading,
                    owner,
                    registry.name,
                    source,
                    is_scored=turn.is_scored,
                    language=registry.language,
                )


def _groups(
    asked: Sequence[Asked], basis: Basis, worths: dict[int, tuple[float, float]]
) -> Iterator[Group]:
    """Yield the options of each question; of the corpora's, of some of them."""
    chance = random.Random(5)
    known: tuple[Source | None, ClosenessIndex | None] = (None, None)
    for one in asked:
        source = one.source
        if not source.registry and chance.random() >= _CORPORA_SHARE:
            continue
        if known[0] is None or known[0].agents is not source.agents:
            known = (source, ClosenessIndex(source.agents, source.knowledge, go_on))
        assert known[1] is not None
        if (group := group_of(one, known[1], basis, worths.get(id(one), (0.0, 0.0)))) is not None:
            yield group


def group_of(
    one: Asked, closeness: ClosenessIndex, basis: Basis, manner: tuple[float, float]
) -> Group | None:
    """Return the options of a question as words show them; None where its owner is none of them."""
    reading = reading_with(one, basis)
    options = _Taught(one, closeness).options_with(reading, manner)
    return group_from(one, reading, options, _CORPORA_WEIGHT)


def reading_with(one: Asked, basis: Basis) -> Reading:
    """Return a reading with the scores that are known only since."""
    reading = one.reading
    if not reading.targets:
        return reading
    scores = weighted([*reading.fits, *reading.targets], basis.target)
    return replace(reading, target=scores)


def group_from(one: Asked, reading: Reading, options: Options, weight: float) -> Group | None:
    """Return options as numbers; None where nothing is learned of them. weight: of the corpora's.

    A message of the field whose owner is no option counts as wrong where it is judged.
    """
    right, source = len(options.places), one.source
    if one.owner >= 0:
        right = options.places.index(one.owner) if one.owner in options.places else -1
    elif not options.has_nobody:
        right = -1
    if right < 0 and not source.registry:
        return None
    rows = np.array([[_short(value) for value in row] for row in options.rows], dtype=np.float32)
    if source.registry:
        weight = 1.0
    elif one.owner < 0:
        weight *= _NOBODYS_WEIGHT
    places = options.places
    return Group(
        rows=rows,
        right=right,
        registry=source.registry,
        kind=source.kind,
        weight=weight,
        language=one.language,
        examples_mean=float(rows[: len(places), EXAMPLES_AT].mean()),
        is_opening=reading.present < 0,
        present=places.index(reading.present) if reading.present >= 0 else -1,
        is_scored=one.is_scored,
    )


class _Taught(Reader):
    """A reader of a question that was read before, in its own registry."""

    def __init__(self, one: Asked, closeness: ClosenessIndex) -> None:
        source = one.source
        places = {agent.agent_id: at for at, agent in enumerate(source.agents)}
        nothing = Manner({}, {}, source.knowledge)
        super().__init__(_Places(places), closeness, Verbatim(()), nothing, (), ())  # type: ignore[arg-type]

    def options_with(self, reading: Reading, manner: tuple[float, float]) -> Options:
        places = shortlist(reading)
        view = self.view(reading, places)
        return options_of(reading, places, self.examples(reading, places), manner, view)


@dataclass(frozen=True, slots=True)
class _Places:
    place: dict[str, int]


def _fit_groups(
    corpora: Sequence[Corpus], excluded: Excluded, texts: Sequence[Text], parts: Sequence[Part]
) -> Iterator[tuple[list[list[float]], int]]:
    """Yield messages with their fit to each agent of a registry, and the agent they were for."""
    requests = {corpus.name: requests_of(corpus, excluded) for corpus in corpora}
    for number, part in enumerate(parts):
        chance = random.Random(number)
        pools = pools_of(corpora, texts, part)
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
            agents = registry_of(chance, corpus, corpora, excluded, {owner for _, owner in batch})
            if len(agents) > 1:
                index = AgentIndex(agents, part.knowledge)
                for text, owner in batch:
                    yield _fit_rows(index, text), index.place[owner]


def _fit_rows(index: AgentIndex, text: str) -> list[list[float]]:
    """Return the features of each agent, plain and scaled by the trust in this registry."""
    message = index.message(text)
    rows = rows_of(index.fits(message).columns)
    return [[*row, *(message.trust * value for value in row)] for row in rows]


def _named(names: Sequence[str], weights: Any) -> dict[str, float]:
    return {name: _short(weight) for name, weight in zip(names, weights, strict=True)}


def _short(value: float) -> float:
    """Round a number to the digits that are kept: later ones differ between machines."""
    return float(f"{value:.{_DIGITS}g}")
