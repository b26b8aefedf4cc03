"""The requests that each agent of a registry gets, and how reliable each group of senses is.

Rule: the worth of a group is measured on the registry's own examples, each taken as an unseen
message. No setting and no name decides it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Self

import msgspec

from agent_routing_topics.model.word_knowledge import SenseGroup, Senses

_DESCRIBED_WORTH: Final = 2
"""Examples that a sentence of a description is worth where it is asked what an agent is for."""

_HELD_FLOOR: Final = 0.005
"""Keeps what was hardly ever seen from being one agent's alone."""

_EVIDENCE_MAX: Final = 512
"""Texts by which the groups are judged, evenly spread over all: more change nothing."""

_ROUNDS: Final = 12
_ROUND_LEAST: Final = 1.0
"""Texts that speak for each group before any is read: no group is ever given up for good."""

_GROUP_LEAST: Final = 0.03
"""The share below which a group is not looked at: it would take its time with every message."""

Texts = Sequence[Sequence[Senses]]
"""What each of some texts asks for, by group of senses."""


class KeptSenses(msgspec.Struct, frozen=True, array_like=True):
    """What was computed of a registry's texts, as a file keeps it; see SenseIndex."""

    count: int
    shares: tuple[float, ...]
    trust: float
    holders: tuple[dict[int, tuple[tuple[int, float], ...]], ...]


class SenseIndex:
    """What the agents of a registry are asked for. Immutable once made.

    shares: by group, how far it is relied on; what is left to 1 is for what none of them knows.
    trust: how likely a text is its own agent's by this alone, from 0 to 1, 0 without any text.
    """

    def __init__(
        self,
        groups: Sequence[SenseGroup],
        said: Sequence[Texts],
        described: Sequence[Texts],
        give_way: Callable[[], None],
    ) -> None:
        """Take over agents' examples and the sentences of their descriptions, a list an agent.

        give_way: called after each step.
        """
        self._groups = groups
        self._count = len(said)
        held: list[_Held] = []
        for at in range(len(groups)):
            held.append(
                _Held(
                    [[senses[at] for senses in texts] for texts in said],
                    [[senses[at] for senses in texts] for texts in described],
                )
            )
            give_way()
        evidence = [list(values) for values in zip(*(one.evidence() for one in held), strict=True)]
        give_way()
        chance = 1 / max(1, self._count)
        evidence = _spread(evidence)
        self.shares = _weighed(evidence, len(groups), chance)
        self.trust = _trust(evidence, self.shares, chance)
        self._looked_at = _looked_at(self.shares)
        self._holders = tuple(
            one.holders(share) if share >= _GROUP_LEAST else {}
            for one, share in zip(held, self.shares, strict=True)
        )

    @property
    def kept(self) -> KeptSenses:
        """What of_kept() takes, without the groups."""
        return KeptSenses(self._count, self.shares, self.trust, self._holders)

    @classmethod
    def of_kept(cls, groups: Sequence[SenseGroup], kept: KeptSenses) -> Self:
        """Return the index that was kept. groups: those that it was made with."""
        index = cls.__new__(cls)
        index._take(groups, kept)  # noqa: SLF001 - its own
        return index

    def _take(self, groups: Sequence[SenseGroup], kept: KeptSenses) -> None:
        """Begin with what was kept."""
        self._groups, self._count = groups, kept.count
        self.shares, self.trust = kept.shares, kept.trust
        self._looked_at = _looked_at(kept.shares)
        self._holders = kept.holders

    def senses(self, tokens: Sequence[str]) -> tuple[Senses, ...]:
        """Return what a message asks for, by group: nothing of groups that are worth nothing."""
        return tuple(
            group.senses(tokens) if at in self._looked_at else ()
            for at, group in enumerate(self._groups)
        )

    def fits(self, senses: Sequence[Senses]) -> list[float]:
        """Return how likely it is that what a message asks for is each agent's.

        What no agent is asked for is in no one's share: the sum may be less than 1.
        """
        sure = sum(share for share, found in zip(self.shares, senses, strict=True) if found)
        fits = [(1 - sure) / max(1, self._count)] * self._count
        for holders, found in zip(self._holders, senses, strict=True):
            for sense, probability in found:
                for place, share in holders.get(sense, ()):
                    fits[place] += probability * share
        return fits


class _Held:
    """The senses of one group that agents have."""

    def __init__(
        self, said: Sequence[Sequence[Senses]], described: Sequence[Sequence[Senses]]
    ) -> None:
        self._said = said
        self._described = described
        self._worth = [
            len(own) + _DESCRIBED_WORTH * len(sentences)
            for own, sentences in zip(said, described, strict=True)
        ]
        # By sense and place: how much of what the agent is asked for is this.
        self._parts: dict[int, dict[int, float]] = {}
        for place, worth in enumerate(self._worth):
            for weight, texts in (
                (1, self._said[place]),
                (_DESCRIBED_WORTH, self._described[place]),
            ):
                for senses in texts:
                    for sense, probability in senses:
                        agents = self._parts.setdefault(sense, {})
                        agents[place] = agents.get(place, 0.0) + weight * probability / worth
        self._wholes = {sense: sum(agents.values()) for sense, agents in self._parts.items()}

    def evidence(self) -> Iterator[float]:
        """Yield of each text how likely it is its own agent's, an example by what the others say.

        Sentences only of agents that have no examples: they are in what they are judged by.
        """
        for place, worth in enumerate(self._worth):
            for senses in self._said[place]:
                yield self._without(place, senses, worth)
            if not self._said[place]:
                for senses in self._described[place]:
                    yield sum(
                        probability
                        * self._parts[sense][place]
                        / (_HELD_FLOOR + self._wholes[sense])
                        for sense, probability in senses
                    )

    def _without(self, place: int, senses: Senses, worth: int) -> float:
        found = 0.0
        for sense, probability in senses:
            part = self._parts[sense][place]
            rest = (part * worth - probability) / (worth - 1) if worth > 1 else 0.0
            rest = max(0.0, rest)
            found += probability * rest / (_HELD_FLOOR + self._wholes[sense] - part + rest)
        return found

    def holders(self, share: float) -> dict[int, tuple[tuple[int, float], ...]]:
        """Return by sense the agents that are asked for it, and how likely it is theirs."""
        return {
            sense: tuple(
                (place, share * part / (_HELD_FLOOR + self._wholes[sense]))
                for place, part in agents.items()
            )
            for sense, agents in self._parts.items()
        }


def _looked_at(shares: Sequence[float]) -> tuple[int, ...]:
    """Return the places of the groups that messages are read by."""
    return tuple(at for at, share in enumerate(shares) if share >= _GROUP_LEAST)


def _spread(evidence: list[list[float]]) -> list[list[float]]:
    count = len(evidence)
    if count <= _EVIDENCE_MAX:
        return evidence
    return [evidence[number * count // _EVIDENCE_MAX] for number in range(_EVIDENCE_MAX)]


def _weighed(evidence: Sequence[Sequence[float]], groups: int, chance: float) -> tuple[float, ...]:
    """Return the share of each group with which the texts are likeliest, as a mixture of them all.

    evidence: by text, how likely each group makes it. chance: what no group at all makes of it.
    """
    shares = [1 / (groups + 1)] * groups
    for _ in range(_ROUNDS):
        sums = [_ROUND_LEAST] * groups
        for values in evidence:
            parts = [share * value for share, value in zip(shares, values, strict=True)]
            whole = sum(parts) + (1 - sum(shares)) * chance
            if whole > 0:
                sums = [one + part / whole for one, part in zip(sums, parts, strict=True)]
        texts = len(evidence) + _ROUND_LEAST * (groups + 1)
        shares = [one / texts for one in sums]
    return tuple(shares)


def _trust(evidence: Sequence[Sequence[float]], shares: Sequence[float], chance: float) -> float:
    """Return how likely texts are their own agents', in the geometric mean."""
    if not evidence:
        return 0.0
    rest = (1 - sum(shares)) * chance
    logs = sum(
        math.log(rest + sum(share * value for share, value in zip(shares, values, strict=True)))
        for values in evidence
    )
    return math.exp(logs / len(evidence))
