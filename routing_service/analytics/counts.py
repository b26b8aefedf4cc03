"""The figures of one stretch of time, with a bound for each table.

Counts are only ever added, in any order as long as no table is full. Rows beyond a table's bound
share one row, so that sums stay complete.
"""

from __future__ import annotations

from typing import Final

import msgspec

from routing_service.analytics.histogram import Histogram

AGENTS_MAX: Final = 64
"""Agents with rows of their own: registries have tens of agents."""

PAIRS_MAX: Final = 256
"""Rows of the table of handoffs by pair: enough for 12 agents in every combination."""

WORDS_MAX: Final = 64
"""Rows of the tables whose keys come from the code: reasons, commands, rules."""

CHANNELS_MAX: Final = 32
"""Channels with figures of their own; callers name them."""

CONFIDENCE_RANGES: Final = 20
"""Ranges of an offer's confidence, 0.05 wide: as fine as some thousand offers can show."""

FIRSTS_MAX: Final = 512
"""Different earlier hours in which returning sessions had their last message."""

OTHER: Final = "other"
NEVER: Final = -1
"""The earlier hour of a session without an earlier message."""

PAIR_SEPARATOR: Final = "\t"

Table = dict[str, int]


class AgentCounts(msgspec.Struct, omit_defaults=True):
    """One agent's figures. responses: in ticks of 0.1 ms. stay_turns: turns of each ended stay."""

    turns: int = 0
    outcomes: Table = msgspec.field(default_factory=dict)
    stored_only: int = 0
    degraded: int = 0
    abandoned: int = 0
    activations: int = 0
    stuck: int = 0
    responses: Histogram = msgspec.field(default_factory=dict)
    stays: int = 0
    turns_stayed: int = 0
    stay_turns: Histogram = msgspec.field(default_factory=dict)

    def add(self, other: AgentCounts) -> None:
        """Add other figures of the agent to these."""
        self.turns += other.turns
        self.stored_only += other.stored_only
        self.degraded += other.degraded
        self.abandoned += other.abandoned
        self.activations += other.activations
        self.stuck += other.stuck
        self.stays += other.stays
        self.turns_stayed += other.turns_stayed
        _add_words(self.outcomes, other.outcomes, WORDS_MAX)
        _add_numbers(self.responses, other.responses)
        _add_numbers(self.stay_turns, other.stay_turns)


class PairCounts(msgspec.Struct, omit_defaults=True):
    """The outcomes of the handoffs of one kind between two agents."""

    carried_out: int = 0
    refused: int = 0
    returned: int = 0
    ping_pongs: int = 0

    def add(self, other: PairCounts) -> None:
        """Add other figures of the pair to these."""
        self.carried_out += other.carried_out
        self.refused += other.refused
        self.returned += other.returned
        self.ping_pongs += other.ping_pongs


class SuggestionCounts(msgspec.Struct, omit_defaults=True):
    """The outcomes of the offers of one agent to users who were with another."""

    offered: int = 0
    accepted: int = 0
    declined: int = 0

    @property
    def ignored(self) -> int:
        """Offers without an answer; at least 0 if some answers are to offers before the span."""
        return max(0, self.offered - self.accepted - self.declined)

    def add(self, other: SuggestionCounts) -> None:
        """Add other figures of the pair to these."""
        self.offered += other.offered
        self.accepted += other.accepted
        self.declined += other.declined


class Pair(msgspec.Struct, frozen=True):
    """Source, target, requester and mode of a handoff; mode "" if none was applied."""

    from_agent: str
    to_agent: str
    initiator: str
    mode: str

    @property
    def name(self) -> str:
        """The pair as a table's key."""
        return PAIR_SEPARATOR.join((self.from_agent, self.to_agent, self.initiator, self.mode))

    @staticmethod
    def of(name: str) -> Pair:
        """Return the pair that a key names."""
        from_agent, to_agent, initiator, mode = name.split(PAIR_SEPARATOR)
        return Pair(from_agent, to_agent, initiator, mode)


OTHER_PAIR: Final = Pair(OTHER, OTHER, "", "").name
OTHER_OFFER: Final = PAIR_SEPARATOR.join((OTHER, OTHER))


class Counts(msgspec.Struct, omit_defaults=True):
    """All figures of a period.

    messages: of users, dispatched to an agent; saved: without a call of the supervisor. handoffs:
    by Pair.name. refusals: by rule; refused: each refused handoff once. firsts: for each hour in
    which a session had messages, the earlier hour of its last one before (NEVER: none), counted.
    suggestions: by the agent that users were with and the one that was offered. offers: the same
    by confidence_range. registries: messages by the version of the registry that decided.
    """

    messages: int = 0
    saved: int = 0
    stuck: int = 0
    carried_out: int = 0
    refused: int = 0
    ping_pongs: int = 0
    reasons: Table = msgspec.field(default_factory=dict)
    commands: Table = msgspec.field(default_factory=dict)
    handoffs: dict[str, PairCounts] = msgspec.field(default_factory=dict)
    refusals: Table = msgspec.field(default_factory=dict)
    agents: dict[str, AgentCounts] = msgspec.field(default_factory=dict)
    channels: Table = msgspec.field(default_factory=dict)
    firsts: dict[int, int] = msgspec.field(default_factory=dict)
    suggestions: dict[str, SuggestionCounts] = msgspec.field(default_factory=dict)
    offers: dict[int, SuggestionCounts] = msgspec.field(default_factory=dict)
    registries: Table = msgspec.field(default_factory=dict)

    def agent(self, agent_id: str) -> AgentCounts:
        """Return the figures of an agent, to be added to."""
        row = agent_id if agent_id in self.agents or len(self.agents) < AGENTS_MAX else OTHER
        return self.agents.setdefault(row, AgentCounts())

    def pair(self, name: str) -> PairCounts:
        """Return the figures of a pair, to be added to."""
        row = name if name in self.handoffs or len(self.handoffs) < PAIRS_MAX else OTHER_PAIR
        return self.handoffs.setdefault(row, PairCounts())

    def suggestion(self, name: str) -> SuggestionCounts:
        """Return the figures of an offer's pair, FROM and TO, to be added to."""
        is_known = name in self.suggestions or len(self.suggestions) < PAIRS_MAX
        return self.suggestions.setdefault(name if is_known else OTHER_OFFER, SuggestionCounts())

    def offer(self, confidence: int) -> SuggestionCounts:
        """Return the figures of the offers in a confidence_range, to be added to."""
        return self.offers.setdefault(confidence, SuggestionCounts())

    def count_first(self, earlier_hour: int, count: int = 1) -> None:
        """Count sessions with messages in an hour, by the earlier hour of their last message.

        If there are too many different hours, the two earliest are merged into the later one.
        """
        self.firsts[earlier_hour] = self.firsts.get(earlier_hour, 0) + count
        if len(self.firsts) > FIRSTS_MAX:
            oldest, next_oldest = sorted(hour for hour in self.firsts if hour != NEVER)[:2]
            self.firsts[next_oldest] += self.firsts.pop(oldest)

    def add(self, other: Counts) -> None:
        """Add other figures to these."""
        self.messages += other.messages
        self.saved += other.saved
        self.stuck += other.stuck
        self.carried_out += other.carried_out
        self.refused += other.refused
        self.ping_pongs += other.ping_pongs
        _add_words(self.reasons, other.reasons, WORDS_MAX)
        _add_words(self.commands, other.commands, WORDS_MAX)
        _add_words(self.refusals, other.refusals, WORDS_MAX)
        _add_words(self.channels, other.channels, CHANNELS_MAX)
        for name, pair in other.handoffs.items():
            self.pair(name).add(pair)
        for name, suggestion in other.suggestions.items():
            self.suggestion(name).add(suggestion)
        for confidence, offers in other.offers.items():
            self.offer(confidence).add(offers)
        _add_words(self.registries, other.registries, WORDS_MAX)
        for agent_id, agent in other.agents.items():
            self.agent(agent_id).add(agent)
        for hour, count in other.firsts.items():
            self.count_first(hour, count)

    def coarsen(self) -> None:
        """Make the tables smaller: the rarer half of agents and pairs goes into the shared rows.

        For counts that are too large to store; repeat it until they fit.
        """
        pairs = sorted(self.handoffs, key=lambda name: self.handoffs[name].carried_out)
        for name in [name for name in pairs if name != OTHER_PAIR][: (len(pairs) + 1) // 2]:
            gone = self.handoffs.pop(name)
            self.handoffs.setdefault(OTHER_PAIR, PairCounts()).add(gone)
        offers = sorted(self.suggestions, key=lambda name: self.suggestions[name].offered)
        for name in [name for name in offers if name != OTHER_OFFER][: (len(offers) + 1) // 2]:
            rare = self.suggestions.pop(name)
            self.suggestions.setdefault(OTHER_OFFER, SuggestionCounts()).add(rare)
        agents = sorted(self.agents, key=lambda agent_id: self.agents[agent_id].turns)
        for agent_id in [name for name in agents if name != OTHER][: (len(agents) + 1) // 2]:
            quiet = self.agents.pop(agent_id)
            self.agents.setdefault(OTHER, AgentCounts()).add(quiet)


def confidence_range(confidence: float) -> int:
    """Return the range that a confidence of 0-1 is in, counted from 0."""
    return min(max(int(confidence * CONFIDENCE_RANGES), 0), CONFIDENCE_RANGES - 1)


def add_word(table: Table, word: str, rows_max: int = WORDS_MAX, count: int = 1) -> None:
    """Count a key; in a full table, a new key counts as OTHER."""
    row = word if word in table or len(table) < rows_max else OTHER
    table[row] = table.get(row, 0) + count


def _add_words(table: Table, other: Table, rows_max: int) -> None:
    for word, count in other.items():
        add_word(table, word, rows_max, count)


def _add_numbers(histogram: Histogram, other: Histogram) -> None:
    for bucket, count in other.items():
        histogram[bucket] = histogram.get(bucket, 0) + count
