"""What the commands of ``agent-routing topics`` do, and what they print.

Owns where registries, dialogues and conversations come from, and the tables. It must not know how a
topic is detected or what a figure means. Its rule: stdout has the figures alone, and no text of
anybody's.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from math import sqrt
from pathlib import Path
from typing import Final

import typer
from rich.table import Table

from routing_service.cli.failure import EXIT_FAILED, EXIT_USAGE, CommandFailed
from routing_service.cli.screen import console
from routing_service.cli.store_call import run_on_store
from routing_service.core.registry import Registry, Topics
from routing_service.registry_file import RegistryFileError, load_registry, parse_registry
from routing_service.replay.choices import Policy as ReplayPolicy
from routing_service.replay.choices import Switch
from routing_service.replay.corpus_registry import (
    CorpusAgentsInvalid,
    corpus_registry,
    load_corpus_agents,
)
from routing_service.replay.dialogue_files import (
    BadLine,
    DialogueFileUnreadable,
    check_files,
    read_dialogues,
)
from routing_service.replay.figures import Calibration
from routing_service.replay.recorded_dialogue import RecordedDialogue
from routing_service.storage.open_store import open_store_to_read
from routing_service.topic_judge import TopicJudge
from routing_service.topic_review import (
    PLACES,
    Labelled,
    Outlook,
    always_asked,
    calibration_error,
    labelled_messages,
    outlook,
)
from routing_service.topics import load_topic_model
from routing_service.topics.evaluation import Judged, Mends, Policy, play
from routing_service.topics.named_detector import DetectorUnavailable, load_named
from routing_service.topics.topic_detector import TopicDetector, TopicModel

AGENTS_FILE: Final = "agents.json"
THRESHOLDS: Final = tuple(percent / 100 for percent in range(30, 100, 5))
COMPLAINTS_MAX: Final = 20
_Z_95: Final = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The options of ``topics evaluate``."""

    files: tuple[str, ...]
    agents: str
    corpus: str
    corpus_agents: str
    detector: str
    threshold: float
    lock_threshold: float
    limit: int | None


@dataclass(slots=True)
class Marks:
    """What was counted of one corpus, or of one agent's messages."""

    scored: int = 0
    right: int = 0
    unsupervised: int = 0
    switches: int = 0
    right_switches: int = 0
    due_switches: int = 0
    false_switches: int = 0
    stuck: int = 0
    calibration: Calibration = field(default_factory=Calibration)

    def take(self, judged: Judged) -> None:
        """Count one message."""
        if not judged.is_scored:
            return
        self.scored += 1
        self.right += judged.is_right
        self.unsupervised += bool(judged.dispatched)
        active = judged.question.active_agent_id
        self.switches += judged.switched
        self.right_switches += judged.switched and judged.is_right
        self.due_switches += judged.should_switch and bool(judged.owner)
        self.false_switches += judged.switched and judged.owner == active
        self.calibration += _came_true(judged)

    def as_dict(self) -> dict[str, object]:
        """Return the figures by name."""
        low, high = interval(self.right, self.scored)
        return {
            "scored_turns": self.scored,
            "right": _share(self.right, self.scored),
            "right_low": low,
            "right_high": high,
            "without_supervisor": _share(self.unsupervised, self.scored),
            "switch_precision": _share(self.right_switches, self.switches),
            "switch_recall": _share(self.right_switches, self.due_switches),
            "switch_f1": _share(2 * self.right_switches, self.switches + self.due_switches),
            "false_switches_per_1000": round(1000 * self.false_switches / (self.scored or 1), 3),
            "stuck": _share(self.stuck, self.scored),
            "calibration_error": round(self.calibration.error, 6),
        }


def interval(part: int, whole: int) -> tuple[float, float]:
    """Return the 95 % interval of a share, by Wilson's score: sound near 0 and 1 too."""
    if not whole:
        return 0.0, 1.0
    share, square = part / whole, _Z_95**2
    middle = share + square / (2 * whole)
    reach = _Z_95 * sqrt(share * (1 - share) / whole + square / (4 * whole**2))
    scale = 1 + square / whole
    return round(max(0.0, (middle - reach) / scale), 6), round((middle + reach) / scale, 6)


def run_evaluate(asked: Evaluation, *, as_json: bool) -> None:
    """Carry ``topics evaluate`` out. Raises CommandFailed, typer.Exit."""
    if bool(asked.agents) == bool(asked.corpus):
        raise typer.BadParameter("give --agents FILE or --corpus NAME: one says who the agents are")
    try:
        registry = _registry_of(asked)
        check_files(asked.files)
        model = _model(asked.detector)
        detector = model.for_registry(registry)
        by_corpus: dict[str, Marks] = {}
        by_agent: dict[str, Marks] = {}
        bad_lines = 0
        for number, found in enumerate(read_dialogues(asked.files)):
            if asked.limit is not None and number - bad_lines >= asked.limit:
                break
            problem = str(found) if isinstance(found, BadLine) else ""
            if not isinstance(found, BadLine):
                unknown = sorted(found.dialogue.agent_ids - registry.agents.keys())
                problem = (
                    f'{found.place}: agent "{unknown[0]}" is not registered' if unknown else ""
                )
                if not unknown:
                    corpus = found.dialogue.corpus or "dialogues"
                    marks = by_corpus.setdefault(corpus, Marks())
                    _play(asked, found.dialogue, detector, registry, (marks, by_agent))
            if problem:
                bad_lines += 1
                if bad_lines <= COMPLAINTS_MAX:
                    typer.echo(f"error: {problem}", err=True)
    except (CorpusAgentsInvalid, DialogueFileUnreadable) as error:
        raise CommandFailed(str(error), exit_code=EXIT_USAGE) from error
    except RegistryFileError as error:
        raise CommandFailed(str(error)) from error
    told = {
        "model": model.version,
        "threshold": asked.threshold,
        "lock_threshold": asked.lock_threshold,
        "bad_lines": bad_lines,
        "corpora": {name: marks.as_dict() for name, marks in by_corpus.items()},
        "agents": {name: marks.as_dict() for name, marks in sorted(by_agent.items())},
    }
    if as_json:
        typer.echo(json.dumps(told, indent=2))
    else:
        _print_evaluation(told, by_corpus, by_agent)
    if bad_lines:
        raise typer.Exit(EXIT_FAILED)


def _model(name: str) -> TopicModel:
    """Return the model of a name, "" = the one that ships. Raises CommandFailed."""
    try:
        return load_named(name) if name else load_topic_model()
    except DetectorUnavailable as error:
        raise CommandFailed(str(error), exit_code=EXIT_USAGE) from error


def _registry_of(asked: Evaluation) -> Registry:
    if asked.agents:
        return load_registry(asked.agents)
    path = asked.corpus_agents or str(Path(asked.files[0]).with_name(AGENTS_FILE))
    agents = load_corpus_agents(path, asked.corpus)
    text = corpus_registry(asked.corpus, agents, ReplayPolicy.STICKY, Switch.AGENT)
    return parse_registry(text, f"the registry made of {asked.corpus}")


def _play(
    asked: Evaluation,
    dialogue: RecordedDialogue,
    detector: TopicDetector,
    registry: Registry,
    counted: tuple[Marks, dict[str, Marks]],
) -> None:
    """Play a dialogue twice: with wrong dispatches mended, and for who is stuck, left alone."""
    marks, by_agent = counted
    candidates = frozenset(agent.agent_id for agent in registry.specialists if agent.enabled)
    locale = dialogue.language or registry.default_locale
    policy = Policy(asked.threshold, asked.lock_threshold, asked.threshold)
    for judged in play(dialogue.turns, detector, candidates, policy, locale):
        marks.take(judged)
        by_agent.setdefault(judged.owner or registry.home_agent_id, Marks()).take(judged)
    left_alone = Policy(asked.threshold, asked.lock_threshold, asked.threshold, mends=Mends.NOBODY)
    for judged in play(dialogue.turns, detector, candidates, left_alone, locale):
        is_stuck = judged.is_scored and bool(judged.dispatched) and not judged.is_right
        marks.stuck += is_stuck


def _came_true(judged: Judged) -> Calibration:
    verdict = judged.verdict
    likeliest = [(probability, agent_id) for agent_id, probability in verdict.ranked]
    said = sum(probability for probability, _ in likeliest) + verdict.stay
    likeliest.append((verdict.stay, judged.question.active_agent_id))
    likeliest.append((max(0.0, 1 - said), ""))
    probability, agent_id = max(likeliest, key=lambda each: each[0])
    return Calibration.of(min(1.0, probability), is_right=agent_id == judged.owner)


def _print_evaluation(
    told: dict[str, object], by_corpus: dict[str, Marks], by_agent: dict[str, Marks]
) -> None:
    out = console()
    out.print(
        f"model {told['model']}, threshold {told['threshold']}, "
        f"{told['lock_threshold']} while an agent waits",
        soft_wrap=True,
    )
    for title, rows in (("corpus", by_corpus), ("agent", dict(sorted(by_agent.items())))):
        table = _table(
            title, "messages", "right", "95 %", "precision", "recall", "F1", "false/1000",
            "stuck", "ECE",
        )  # fmt: skip
        for name, marks in rows.items():
            figures = marks.as_dict()
            table.add_row(
                name,
                f"{marks.scored:,}",
                _percent(figures["right"]),
                f"{_percent(figures['right_low'])}-{_percent(figures['right_high'])}",
                _percent(figures["switch_precision"]),
                _percent(figures["switch_recall"]),
                _percent(figures["switch_f1"]),
                f"{figures['false_switches_per_1000']:.1f}",
                _percent(figures["stuck"]) if title == "corpus" else "",
                f"{figures['calibration_error']:.3f}",
            )
        out.print()
        out.print(table)


def run_calibrate(
    store: str, agents: str, detector: str, tenant: str, days: int | None, *, as_json: bool
) -> None:
    """Carry ``topics calibrate`` out. Raises CommandFailed."""
    if not agents:
        raise typer.BadParameter("give --agents FILE: the registry whose topics are judged")
    try:
        registry = load_registry(agents)
    except RegistryFileError as error:
        raise CommandFailed(str(error)) from error
    since_us = 0 if days is None else time.time_ns() // 1000 - days * 86_400_000_000
    model = _model(detector)
    judge = TopicJudge(lambda: model)
    messages = run_on_store(_labelled(store, always_asked(registry), judge, tenant, since_us))
    if not messages:
        raise CommandFailed(
            "no message in this store has a known owner that detection could have been asked "
            "about; serve for a while, or give more --days"
        )
    by_place = {place: [m for m in messages if m.place == place] for place in PLACES}
    tables = {
        place: [outlook(found, threshold, registry.home_agent_id) for threshold in grid]
        for place, found in by_place.items()
        if found and (grid := _grid(_own_threshold(registry.topics, place)))
    }
    if as_json:
        told = {
            "model": model.version,
            "registry_version": registry.version,
            "messages": len(messages),
            "calibration_error": round(calibration_error(messages), 6),
            "outlooks": {
                place: {
                    "own_threshold": _own_threshold(registry.topics, place),
                    "thresholds": [asdict(row) for row in rows],
                }
                for place, rows in tables.items()
            },
        }
        typer.echo(json.dumps(told, indent=2))
        return
    _print_calibration(model.version, registry, messages, tables)


async def _labelled(
    store: str, registry: Registry, judge: TopicJudge, tenant: str, since_us: int
) -> list[Labelled]:
    opened = await open_store_to_read(store)
    try:
        found = labelled_messages(opened, registry, judge, tenant=tenant, since_us=since_us)
        return [message async for message in found]
    finally:
        await opened.close()


def _own_threshold(topics: Topics, place: str) -> float | None:
    """Return what the registry has for a place; None: nothing is done there."""
    if not topics.is_on:
        return None
    if place == "first messages":
        return topics.threshold if topics.first_message == "auto" else None
    if place == "while an agent waits":
        lock = topics.lock_threshold
        return None if lock is None else max(lock, topics.threshold)
    return topics.threshold


def _grid(own: float | None) -> list[float]:
    return sorted({*THRESHOLDS, *([own] if own is not None else [])})


def _print_calibration(
    model: str, registry: Registry, messages: list[Labelled], tables: dict[str, list[Outlook]]
) -> None:
    out = console()
    out.print(
        f"model {model}, registry {registry.version}: {len(messages):,} messages with a known "
        f"owner, calibration error {calibration_error(messages):.3f}",
        soft_wrap=True,
    )
    for place, rows in tables.items():
        own = _own_threshold(registry.topics, place)
        table = _table(
            "", "threshold", "switches", "right", "false", "wrong", "missed", "calls saved"
        )
        for row in rows:
            is_own = own is not None and row.threshold == own
            table.add_row(
                ">" if is_own else "",
                f"{row.threshold:.2f}",
                *(f"{count:,}" for count in _counts(row)),
                style="bold" if is_own else None,
            )
        out.print()
        note = "" if own is not None else "; nothing is done there now"
        out.print(f"{place}: {rows[0].messages:,} messages{note}", soft_wrap=True)
        out.print(table)


def _counts(row: Outlook) -> Iterator[int]:
    yield from (row.switches, row.right, row.false, row.wrong, row.missed, row.saved)


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0


def _percent(share: object) -> str:
    assert isinstance(share, float)
    return f"{share:.1%}"
