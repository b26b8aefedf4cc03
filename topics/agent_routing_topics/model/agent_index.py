"""How well a message fits each agent of a registry.

The index is computed once for a registry; it gives the features of a message and an agent. Rule: an
agent is its name, description and examples. Its id is never read, and the order of agents changes
nothing.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self, TypeVar

import msgspec

from agent_routing_topics.model.sense_index import KeptSenses, SenseIndex, Texts
from agent_routing_topics.model.word_knowledge import Senses, WordKnowledge
from agent_routing_topics.model.words import stem

FIT_FEATURES: Final = (
    "examples",  # words shared with the examples, by how many of them have each
    "examples_alone",  # the same where there is no description
    "nearest",  # the most similar example
    "nearest_three",  # the three most similar
    "description",  # words shared with the description
    "description_alone",  # the same where there are no examples
    "name",  # words shared with the name
    "concepts",  # concepts shared with the examples
    "concepts_described",  # concepts shared with name and description
    "concepts_alone",  # the same where there are no examples
    "pairs",  # pairs of neighbouring words shared with the examples
    "sense_share",  # what the message asks for, among what the agent is asked for: a probability
    "sense_sure",  # what it has above a half
    "sense",  # its logarithm
    "sense_described",  # the same of name and description alone
    "sense_alone",  # the same of name and description where there are no examples
    "likelihood",  # of the words under this agent's examples against all agents'
)

FIT_WEIGHTS: Final = (*FIT_FEATURES, *(f"{name}_trusted" for name in FIT_FEATURES))
"""What is learned of each: its weight, and what that gains where what messages ask for tells a
registry's agents apart: there, words that two of them share count for less."""

_CLOSE_AGENTS: Final = 6
"""Agents whose examples are compared one by one: those that fit best as a whole."""

EXAMPLES_MAX: Final = 64
"""Examples of one agent that are compared, spread evenly over those it has."""

_SENTENCE: Final = re.compile(r"[.;!?\n]+")

_WEIGHT_MIN: Final = 0.03
"""Words that tell less are left out: they are in most messages, and would take most of the time."""

_CONCEPTS_MAX: Final = 4.0
_KNOWN_FLOOR: Final = 0.1

_LIKELIHOOD_FLOOR: Final = 0.02
_SENSE_FLOOR: Final = 0.01
"""Keep what was never seen from being impossible."""
_SENSE_FLOOR_LOG: Final = math.log(_SENSE_FLOOR)


_T = TypeVar("_T")

GiveWay = Callable[[], None]
"""Lets other threads run. Taking in a large registry is half a second of work, beside a server's
event loop: without this the loop gets its turn only when Python forces it, 5 ms later, and that at
every step of a call."""


def go_on() -> None:
    """Do nothing: whoever takes a registry in has nobody to give way to."""


@dataclass(frozen=True, slots=True)
class AgentText:
    """What an agent says of itself, in all its languages."""

    agent_id: str
    names: tuple[str, ...] = ()
    descriptions: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Message:
    """A message as agents are compared with it: its words, and how much each tells here.

    whole: its words in order, folded and with their endings, as the dialogue's features read them.
    senses: what it asks for, by group of senses. trust: how far that tells these agents apart.
    known: how much of what its words tell is told by words that some agent, or what was learned,
    knows, from 0 to 1.
    """

    whole: tuple[str, ...]
    words: tuple[str, ...]
    pairs: tuple[str, ...]
    weights: tuple[float, ...]
    length: float
    senses: tuple[Senses, ...]
    trust: float
    known: float


@dataclass(frozen=True, slots=True)
class Fits:
    """How a message fits agents.

    places: who they are, in the order of the index; all of them, or those that share most with the
    message. columns: for each of FIT_FEATURES its value for each of them. A list a feature rather
    than a list an agent: with many agents, that is half of the time.
    """

    places: Sequence[int]
    columns: list[list[float]]


ByWord = dict[str, tuple[tuple[int, float], ...]]


class KeptAgents(msgspec.Struct, frozen=True, array_like=True):
    """What was computed of a registry's agents, as a file keeps it; see AgentIndex.

    What is kept of single examples is apart from it, a part an agent.
    """

    without_examples: tuple[int, ...]
    undescribed: tuple[int, ...]
    registry_weights: dict[str, float]
    examples: dict[str, tuple[tuple[int, float, float], ...]]
    pairs: dict[str, tuple[tuple[int, float, float], ...]]
    pair_weights: dict[str, float]
    described: dict[str, tuple[int, ...]]
    named: dict[str, tuple[int, ...]]
    mentioned: ByWord
    example_counts: tuple[int, ...]
    senses: KeptSenses
    senses_described: KeptSenses


class AgentIndex:
    """The agents of a registry, ready to be compared. Immutable once made."""

    def __init__(
        self, agents: Sequence[AgentText], knowledge: WordKnowledge, give_way: GiveWay = go_on
    ) -> None:
        """Read every text of every agent once.

        give_way: called after each agent and each step, so that it may be done beside other work.
        """
        self._knowledge = knowledge
        self.agent_ids = tuple(agent.agent_id for agent in agents)
        self.place = {agent_id: place for place, agent_id in enumerate(self.agent_ids)}
        examples = [_spread(agent.examples) for agent in agents]
        example_words: list[list[dict[str, float]]] = []
        example_pairs: list[list[list[str]]] = []
        senses: list[Texts] = []
        for texts in examples:
            read = [knowledge.read(text) for text in texts]
            example_words.append([words for _, words, _ in read])
            example_pairs.append([pairs for _, _, pairs in read])
            senses.append([knowledge.senses_of(*each) for each in read])
            give_way()
        described = [_all_words(agent.descriptions, knowledge) for agent in agents]
        give_way()
        named = [_all_words(agent.names, knowledge) for agent in agents]
        give_way()
        # In order, and found at once.
        self._without_examples = dict.fromkeys(i for i, texts in enumerate(examples) if not texts)
        self._undescribed = dict.fromkeys(i for i, words in enumerate(described) if not words)
        self._registry_weights = _registry_weights(example_words, described, named)
        give_way()
        shares = _shares(example_words)
        give_way()
        self._examples = _roots_and_gains(shares)
        give_way()
        self._pairs = _roots_and_gains(_shares(example_pairs))
        give_way()
        self._pair_weights = _registry_weights(
            example_pairs, [[] for _ in agents], [[] for _ in agents]
        )
        self._described = _holders(described)
        self._named = _holders(named)
        give_way()
        self._mentioned = _mentioned(shares, self._described)
        give_way()
        self._example_index = tuple(
            _in_turn((self._index_examples(words) for words in example_words), give_way)
        )
        self._example_counts = tuple(map(len, example_words))
        described_senses: list[Texts] = list(
            _in_turn(
                (
                    [
                        knowledge.senses(part)
                        for text in (*agent.descriptions, *agent.names)
                        for part in _parts(text)
                    ]
                    for agent in agents
                ),
                give_way,
            )
        )
        nothing: list[Texts] = [[] for _ in agents]
        self._senses = SenseIndex(knowledge.groups, senses, described_senses, give_way)
        self._senses_described = SenseIndex(knowledge.groups, nothing, described_senses, give_way)

    @property
    def kept(self) -> tuple[KeptAgents, Sequence[ByWord]]:
        """What of_kept() takes: the whole, and a part an agent."""
        whole = KeptAgents(
            without_examples=tuple(self._without_examples),
            undescribed=tuple(self._undescribed),
            registry_weights=self._registry_weights,
            examples=self._examples,
            pairs=self._pairs,
            pair_weights=self._pair_weights,
            described=self._described,
            named=self._named,
            mentioned=self._mentioned,
            example_counts=self._example_counts,
            senses=self._senses.kept,
            senses_described=self._senses_described.kept,
        )
        return whole, self._example_index

    @classmethod
    def of_kept(
        cls,
        agents: Sequence[AgentText],
        knowledge: WordKnowledge,
        kept: KeptAgents,
        example_index: Sequence[ByWord],
    ) -> Self:
        """Return the index that was kept. agents, knowledge: those that it was made with."""
        index = cls.__new__(cls)
        index._take(agents, knowledge, kept, example_index)  # noqa: SLF001 - its own
        return index

    def _take(
        self,
        agents: Sequence[AgentText],
        knowledge: WordKnowledge,
        kept: KeptAgents,
        example_index: Sequence[ByWord],
    ) -> None:
        """Begin with what was kept."""
        self._knowledge = knowledge
        self.agent_ids = tuple(agent.agent_id for agent in agents)
        self.place = {agent_id: place for place, agent_id in enumerate(self.agent_ids)}
        self._without_examples = dict.fromkeys(kept.without_examples)
        self._undescribed = dict.fromkeys(kept.undescribed)
        self._registry_weights = kept.registry_weights
        self._examples, self._pairs = kept.examples, kept.pairs
        self._pair_weights = kept.pair_weights
        self._described, self._named = kept.described, kept.named
        self._mentioned = kept.mentioned
        self._example_index = tuple(example_index)
        self._example_counts = kept.example_counts
        self._senses = SenseIndex.of_kept(knowledge.groups, kept.senses)
        self._senses_described = SenseIndex.of_kept(knowledge.groups, kept.senses_described)

    def message(self, text: str) -> Message:
        """Read a text."""
        whole, words, pairs = self._knowledge.read(text)
        weights = [sureness * self.weight(word) for word, sureness in words.items()]
        squares = known = 0.0
        for word, weight in zip(words, weights, strict=True):
            if not word.startswith("@"):
                squares += weight * weight
                if word in self._mentioned or self._knowledge.knows(word):
                    known += weight * weight
        return Message(
            whole=tuple(whole),
            words=tuple(words),
            pairs=tuple(pairs),
            weights=tuple(weights),
            length=math.sqrt(squares),
            senses=self._senses.senses(self._knowledge.tokens_of(whole, words, pairs)),
            trust=self._senses.trust,
            known=(known + _KNOWN_FLOOR) / (squares + _KNOWN_FLOOR),
        )

    def weights_here(self, fit: Sequence[float]) -> list[float]:
        """Return what each of FIT_FEATURES is worth in this registry. fit: of FIT_WEIGHTS."""
        trust, count = self._senses.trust, len(FIT_FEATURES)
        return [
            weight + trust * gain for weight, gain in zip(fit[:count], fit[count:], strict=True)
        ]

    def weight(self, word: str) -> float:
        """Return how much a word tells among these agents, from 0 to 1."""
        return self._knowledge.weight(word) * self._registry_weights.get(word, 1.0)

    def mentions(self, words: Iterable[str]) -> list[float]:
        """Return how much folded words speak of what each agent is for, from 0 up to about 1."""
        found = [0.0] * len(self.agent_ids)
        whole = 0.5
        for word in dict.fromkeys(map(stem, words)):
            weight = self.weight(word)
            if weight < _WEIGHT_MIN:
                continue
            square = weight * weight
            whole += square
            for place, share in self._mentioned.get(word, ()):
                found[place] += square * share
        return [value / whole for value in found]

    def fits(self, message: Message, most: int = 0, also: Iterable[int] = ()) -> Fits:
        """Compare a message with agents.

        most: how many are compared in full, 0 = all: the others share least with the message. also:
        the places of those that are compared besides. Of what was computed of the registry only
        what the message shares is looked at.
        """
        count = len(self.agent_ids)
        examples, described, named = [0.0] * count, [0.0] * count, [0.0] * count
        concepts, concepts_described = [0.0] * count, [0.0] * count
        likelihood = [0.0] * count
        for word, weight in zip(message.words, message.weights, strict=True):
            if weight < _WEIGHT_MIN:
                continue
            is_concept = word.startswith("@")
            to = concepts if is_concept else examples
            for place, root, gain in self._examples.get(word, ()):
                to[place] += weight * root
                likelihood[place] += weight * gain
            to = concepts_described if is_concept else described
            for place in self._described.get(word, ()):
                to[place] += weight
            to = concepts_described if is_concept else named
            for place in self._named.get(word, ()):
                to[place] += weight
        pairs = self._pair_fits(message, count)
        # One word that fits is worth more in a short message; the half added keeps it in bounds.
        scale = 1 / (message.length + 0.5)
        senses = self._senses.fits(message.senses)
        senses_described = self._senses_described.fits(message.senses)
        first = [
            (example + said + name + concept) * scale + 2 * sense
            for example, said, name, concept, sense in zip(
                examples, described, named, concepts, senses, strict=True
            )
        ]
        close = places_of_best(first, _CLOSE_AGENTS)
        nearest, three = self._nearest_examples(message, close, count)
        places: Sequence[int] = range(count)
        without_examples: Collection[int] = self._without_examples
        undescribed: Collection[int] = self._undescribed
        if 0 < most < count:
            places = sorted({*places_of_best(first, most), *also})
            examples, nearest, three, described, named, concepts = _at(
                places, examples, nearest, three, described, named, concepts
            )
            concepts_described, pairs, senses, senses_described, likelihood = _at(
                places, concepts_described, pairs, senses, senses_described, likelihood
            )
            without_examples, undescribed = (
                [at for at, place in enumerate(places) if place in without]
                for without in (without_examples, undescribed)
            )
        examples = [value * scale for value in examples]
        described = [value * scale for value in described]
        concepts = _at_most(_CONCEPTS_MAX, concepts)
        concepts_described = _at_most(_CONCEPTS_MAX, concepts_described)
        log_described = _logarithms(senses_described)
        length = 2.0 + message.length
        columns = [
            examples,
            _only(examples, undescribed),
            nearest,
            three,
            described,
            _only(described, without_examples),
            [value * scale for value in named],
            concepts,
            concepts_described,
            _only(concepts_described, without_examples),
            [value * scale for value in pairs],
            senses,
            [value - 0.5 if value > 0.5 else 0.0 for value in senses],  # noqa: PLR2004 - a half
            _logarithms(senses),
            log_described,
            _only(log_described, without_examples),
            [value / length for value in likelihood],
        ]
        return Fits(places, columns)

    def _pair_fits(self, message: Message, count: int) -> list[float]:
        """Return for each agent the weight of the message's pairs of words that it has too."""
        pairs = [0.0] * count
        for pair in message.pairs:
            holders = self._pairs.get(pair, ())
            if holders:
                weight = self._knowledge.weight(pair) * self._pair_weights[pair]
                for place, root, _ in holders:
                    pairs[place] += weight * root
        return pairs

    def _nearest_examples(
        self, message: Message, close: Iterable[int], count: int
    ) -> tuple[list[float], list[float]]:
        """Return the similarity of close agents' nearest example, and of their nearest three."""
        nearest, three = [0.0] * count, [0.0] * count
        whole = math.sqrt(sum(weight * weight for weight in message.weights))
        for place in close:
            nearest[place], three[place] = self._nearest(message, place, whole)
        return nearest, three

    def _nearest(self, message: Message, place: int, whole: float) -> tuple[float, float]:
        """Return the similarity of the nearest example of an agent, and of its nearest three.

        whole: the length of the message with its concepts.
        """
        index = self._example_index[place]
        similar = [0.0] * self._example_counts[place]
        for word, weight in zip(message.words, message.weights, strict=True):
            for example, share in index.get(word, ()):
                similar[example] += weight * share
        if not any(similar):
            return 0.0, 0.0
        similar.sort(reverse=True)
        return similar[0] / whole, sum(similar[:3]) / (3 * whole)

    def _index_examples(
        self, example_words: list[dict[str, float]]
    ) -> dict[str, tuple[tuple[int, float], ...]]:
        """Return by word the examples that have it, with its share of their length."""
        found: dict[str, list[tuple[int, float]]] = {}
        for number, words in enumerate(example_words):
            weights = [sureness * self.weight(word) for word, sureness in words.items()]
            length = math.sqrt(sum(weight * weight for weight in weights))
            for word, weight in zip(words, weights, strict=True):
                if weight > 0:
                    found.setdefault(word, []).append((number, weight / length))
        return {word: tuple(holders) for word, holders in found.items()}


def _in_turn(made: Iterable[_T], give_way: GiveWay) -> Iterator[_T]:
    """Yield what is made, and let others run after each."""
    for each in made:
        yield each
        give_way()


def places_of_best(values: Sequence[float], count: int) -> list[int]:
    """Return the places of the highest values, best first; of equal ones the first."""
    # Sorting bare numbers and looking for those above a bound beats every way with a key.
    bound = sorted(values, reverse=True)[: count or 1][-1] if values else 0.0
    places = [place for place, value in enumerate(values) if value >= bound]
    places.sort(key=values.__getitem__, reverse=True)
    return places[:count]


def _at_most(bound: float, values: list[float]) -> list[float]:
    return [bound if value > bound else value for value in values]  # noqa: FURB136 - a call each


def _logarithms(values: list[float]) -> list[float]:
    """Return the logarithms of probabilities, of which most are 0 where there are many agents."""
    log = math.log
    return [log(value + _SENSE_FLOOR) if value else _SENSE_FLOOR_LOG for value in values]


def _at(places: Sequence[int], *columns: list[float]) -> Iterator[list[float]]:
    """Yield the values of each column at some places alone."""
    for column in columns:
        yield [column[place] for place in places]


def _only(values: list[float], places: Iterable[int]) -> list[float]:
    """Return values at some places, and 0 everywhere else."""
    found = [0.0] * len(values)
    for place in places:
        found[place] = values[place]
    return found


def _spread(examples: tuple[str, ...]) -> tuple[str, ...]:
    """Return EXAMPLES_MAX examples at most, evenly spread over all."""
    count = len(examples)
    if count <= EXAMPLES_MAX:
        return examples
    return tuple(examples[number * count // EXAMPLES_MAX] for number in range(EXAMPLES_MAX))


def _parts(text: str) -> list[str]:
    """Return the sentences of a description: each may be another thing the agent does."""
    return [part for part in _SENTENCE.split(text) if part.strip()][:EXAMPLES_MAX]


def _all_words(texts: Iterable[str], knowledge: WordKnowledge) -> list[str]:
    return list(dict.fromkeys(word for text in texts for word in knowledge.words(text)))


def _registry_weights(
    example_words: Sequence[Sequence[Iterable[str]]],
    described: list[list[str]],
    named: list[list[str]],
) -> dict[str, float]:
    """Return how much each word tells agents apart: 1 where one has it, little where all do."""
    agents: Counter[str] = Counter()
    for texts, description, name in zip(example_words, described, named, strict=True):
        # A word of one example among many says less of the agent than one of all of them.
        held = Counter(word for words in texts for word in words)
        shares = {word: min(1.0, 3 * count / max(3, len(texts))) for word, count in held.items()}
        shares.update(dict.fromkeys([*description, *name], 1.0))
        for word, share in shares.items():
            agents[word] += share  # type: ignore[assignment]
    whole = math.log(1 + len(described))
    return {
        word: min(1.0, math.log(1 + len(described) / max(1.0, held)) / whole)
        for word, held in agents.items()
    }


def _shares(
    example_words: Sequence[Sequence[Iterable[str]]],
) -> dict[str, tuple[tuple[int, float], ...]]:
    """Return by word the agents whose examples have it, and the share of them that do."""
    found: dict[str, list[tuple[int, float]]] = {}
    for place, texts in enumerate(example_words):
        counts = Counter(word for words in texts for word in words)
        for word, count in counts.items():
            found.setdefault(word, []).append((place, count / (len(texts) + 1)))
    return {word: tuple(holders) for word, holders in found.items()}


def _roots_and_gains(
    shares: dict[str, tuple[tuple[int, float], ...]],
) -> dict[str, tuple[tuple[int, float, float], ...]]:
    """Return by word the agents that have it, the root of their share, and what it makes likelier.

    The latter is the logarithm of how much likelier a word is where it is said by that share than
    where nobody says it. Both are wanted of each message. An agent has few different shares, and
    what is equal is one object: a message reads thousands of them, from as little memory as can be.
    """
    known: dict[tuple[int, float], tuple[int, float, float]] = {}
    for holders in shares.values():
        for place, share in holders:
            if (place, share) not in known:
                gain = math.log((share + _LIKELIHOOD_FLOOR) / _LIKELIHOOD_FLOOR)
                known[place, share] = (place, math.sqrt(share), gain)
    return {word: tuple(known[held] for held in holders) for word, holders in shares.items()}


def _mentioned(
    shares: dict[str, tuple[tuple[int, float], ...]], described: dict[str, tuple[int, ...]]
) -> dict[str, tuple[tuple[int, float], ...]]:
    """Return by word the agents that speak of it, and how much: described at once and examples."""
    found: dict[str, dict[int, float]] = {
        word: dict.fromkeys(places, 1.0) for word, places in described.items()
    }
    for word, holders in shares.items():
        agents = found.setdefault(word, {})
        for place, share in holders:
            agents[place] = agents.get(place, 0.0) + share
    known: dict[tuple[int, float], tuple[int, float]] = {}
    return {
        word: tuple(known.setdefault(held, held) for held in agents.items())
        for word, agents in found.items()
    }


def _holders(words_by_agent: list[list[str]]) -> dict[str, tuple[int, ...]]:
    found: dict[str, list[int]] = {}
    for place, words in enumerate(words_by_agent):
        for word in words:
            found.setdefault(word, []).append(place)
    return {word: tuple(places) for word, places in found.items()}
