"""Cross-validation of the recipe on agents, dialogues and corpora that are held out.

Owns the folds and the table. Rule: scored data was in no part of the training: not in the word
statistics, not among the other agents of a registry.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from agent_routing_topics.evaluation import Judged, Mends, Policy, play
from agent_routing_topics.model.agent_index import AgentText
from agent_routing_topics.model.parameters import Parameters
from agent_routing_topics.model.trained_model import TrainedModel
from topics.training.corpora import Corpus
from topics.training.field import load_field
from topics.training.train import train

_AGENT_FOLDS: Final = 3
_DIALOGUES_EACH: Final = 4
"""One dialogue in this many is held out."""
_DRAWS: Final = 1000
_BINS: Final = 10

HEADINGS: Final = (
    f"{'corpus':22} {'held out':10} {'agents':12} {'turns':>6} {'right':>6} {'95 %':>11} "
    f"{'saved':>6} {'P':>5} {'R':>5} {'F1':>5} {'false':>5} {'stuck':>6} {'ECE':>5}"
)

Kept = Callable[[Judged], bool]


@dataclass(slots=True)
class Row:
    """One line of the table. by_dialogue: the judged messages of each."""

    corpus: str
    held_out: str
    agents: str
    by_dialogue: list[list[Judged]] = field(default_factory=list)
    left_alone: list[list[Judged]] = field(default_factory=list)

    def line(self) -> str:
        """Return the figures: shares in percent, false switches per 100 turns."""
        judged = [one for each in self.by_dialogue for one in each]
        scored = [one for one in judged if one.is_scored]
        switches = [one for one in scored if one.switched]
        due = [one for one in scored if one.should_switch]
        right_switches = sum(one.is_right for one in switches)
        precision = _share(right_switches, len(switches))
        recall = _share(right_switches, len(due))
        false = sum(not one.should_switch for one in switches)
        alone = [one for each in self.left_alone for one in each if one.is_scored]
        stuck = sum(bool(one.dispatched) and not one.is_right for one in alone)
        low, high = self._interval()
        f1 = _share(2 * right_switches, len(switches) + len(due))
        return (
            f"{self.corpus:22} {self.held_out:10} {self.agents:12} {len(scored):6} "
            f"{100 * _share(sum(one.is_right for one in scored), len(scored)):6.2f} "
            f"{100 * low:5.1f}-{100 * high:5.1f} "
            f"{100 * _share(sum(bool(one.dispatched) for one in judged), len(judged)):6.2f} "
            f"{precision:5.3f} {recall:5.3f} {f1:5.3f} "
            f"{100 * _share(false, len(scored)):5.2f} "
            f"{100 * _share(stuck, len(alone)):6.2f} {_calibration_error(scored):5.3f}"
        )

    def _interval(self) -> tuple[float, float]:
        """Return the 95 % interval of right turns, by resampling the dialogues."""
        chance = random.Random(0)
        counts = [
            (sum(one.is_right for one in each if one.is_scored), sum(one.is_scored for one in each))
            for each in self.by_dialogue
        ]
        shares: list[float] = []
        for _ in range(_DRAWS if counts else 0):
            drawn = chance.choices(counts, k=len(counts))
            shares.append(_share(sum(right for right, _ in drawn), sum(all_ for _, all_ in drawn)))
        shares.sort()
        return (shares[_DRAWS // 40], shares[-_DRAWS // 40]) if shares else (0.0, 0.0)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _calibration_error(judged: Sequence[Judged]) -> float:
    """Return the calibration error: the top probability against how often the top was right."""
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(_BINS)]
    for one in judged:
        said = [*one.verdict.ranked, (one.question.active_agent_id, one.verdict.stay)]
        said.append(("", max(0.0, 1 - sum(probability for _, probability in said))))
        agent_id, probability = max(said, key=lambda each: each[1])
        place = min(_BINS - 1, int(probability * _BINS))
        bins[place].append((probability, agent_id == one.owner))
    return _share(sum(abs(sum(said - is_so for said, is_so in held)) for held in bins), len(judged))


def described_only(agents: Sequence[AgentText]) -> tuple[AgentText, ...]:
    """Return agents without their examples."""
    return tuple(replace(agent, examples=()) for agent in agents)


def measure(
    row: Row,
    model: TrainedModel,
    corpus: Corpus,
    agents: Sequence[AgentText],
    kept: Kept = lambda _: True,
) -> Row:
    """Play a corpus's dialogues and add their results to a row."""
    detector = model.for_agents(agents)
    ids = frozenset(agent.agent_id for agent in agents)
    for dialogue in corpus.dialogues:
        for mends, found in ((Mends.AGENT, row.by_dialogue), (Mends.NOBODY, row.left_alone)):
            if mends is Mends.NOBODY and corpus.has_intents:
                continue
            played = play(dialogue.turns, detector, ids, Policy(mends=mends), dialogue.language)
            if judged := [one for one in played if kept(one)]:
                found.append(judged)
    return row


def tables(
    ours: Sequence[Corpus], others: Sequence[Corpus], shipped: Parameters, played_each: int
) -> Iterator[str]:
    """Yield the lines of the table, each as soon as it is known.

    ours: the corpora to train on. others: corpora for evaluation only. shipped: the parameters
    trained on all of ours. played_each: one dialogue in this many is played; all are trained on.
    """
    yield HEADINGS
    others = [replace(corpus, dialogues=corpus.dialogues[::played_each]) for corpus in others]
    judges = [replace(corpus, dialogues=corpus.dialogues[::played_each]) for corpus in ours]
    model = TrainedModel(shipped)
    for corpus in others:
        for name, agents in _registries(corpus):
            row = Row(name, "corpus", "unseen")
            yield measure(row, model, corpus, agents).line()
    yield from _dialogues_held_out(ours)
    yield from _agents_held_out(ours, judges)
    for corpus in judges:
        rest = [other for other in ours if other.name != corpus.name]
        model = TrainedModel(train(rest, load_field(), judge=False).parameters)
        for name, agents in _registries(corpus):
            yield measure(Row(name, "corpus", "unseen"), model, corpus, agents).line()


def _registries(corpus: Corpus) -> Iterator[tuple[str, tuple[AgentText, ...]]]:
    yield corpus.name, corpus.agents
    yield f"{corpus.name}, described", described_only(corpus.agents)


def _dialogues_held_out(ours: Sequence[Corpus]) -> Iterator[str]:
    rest = [_part(corpus, lambda number: number % _DIALOGUES_EACH > 0) for corpus in ours]
    held = [_part(corpus, lambda number: number % _DIALOGUES_EACH == 0) for corpus in ours]
    model = TrainedModel(train(rest, load_field(), judge=False).parameters)
    for corpus in held:
        for name, agents in _registries(corpus):
            yield measure(Row(name, "dialogues", "seen"), model, corpus, agents).line()


def _part(corpus: Corpus, is_kept: Callable[[int], bool]) -> Corpus:
    numbers = list(range(len(corpus.dialogues)))
    random.Random(3).shuffle(numbers)
    kept = tuple(
        dialogue
        for number, dialogue in zip(numbers, corpus.dialogues, strict=True)
        if is_kept(number)
    )
    return replace(corpus, dialogues=kept)


def _agents_held_out(ours: Sequence[Corpus], judges: Sequence[Corpus]) -> Iterator[str]:
    """Yield the outcomes of messages for, or from, agents that are held out."""
    rows: dict[str, Row] = {}
    for fold in range(_AGENT_FOLDS):
        held = {
            (corpus.name, agent.agent_id)
            for corpus in ours
            for agent in _shuffled(corpus.agents)[fold::_AGENT_FOLDS]
        }
        model = TrainedModel(train(ours, load_field(), held, judge=False).parameters)
        for corpus in judges:
            ids = {agent_id for name, agent_id in held if name == corpus.name}
            for name, agents in _registries(corpus):
                row = rows.setdefault(name, Row(name, "agents", "unseen"))
                measure(row, model, corpus, agents, _concerns(ids))
    yield from (row.line() for row in rows.values())


def _shuffled(agents: Sequence[AgentText]) -> list[AgentText]:
    found = list(agents)
    random.Random(4).shuffle(found)
    return found


def _concerns(agent_ids: Collection[str]) -> Kept:
    return lambda one: one.owner in agent_ids or one.question.active_agent_id in agent_ids
