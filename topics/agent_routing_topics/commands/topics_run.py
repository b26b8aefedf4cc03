"""The runs of ``agent-routing topics``: their inputs, tables and JSON.

Its rule: stdout has only the figures, and never the text of a message.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import typer
from rich.console import Console
from rich.table import Table

from agent_routing_topics.backtest import (
    PLACES,
    Labelled,
    Outlook,
    always_asked,
    calibration_error,
    labelled_messages,
    outlook,
)
from agent_routing_topics.commands.topic_figures import Marks, Measured
from agent_routing_topics.commands.topic_outcomes import ASKED_PERCENT, Outcomes, verbatim_dialogues
from agent_routing_topics.default_model import load_default_model, load_word_model
from agent_routing_topics.evaluation import DialogueFailed, Judged, Mends, judged_messages
from routing_service.cli.failure import EXIT_FAILED, EXIT_USAGE, CommandFailed
from routing_service.cli.screen import console
from routing_service.cli.store_call import run_on_store
from routing_service.core.registry import Registry, Topics
from routing_service.core.vocabulary import WhenUnsure
from routing_service.registry.file import RegistryFileError, load_registry, parse_registry
from routing_service.replay.choices import ReplayPolicy, SwitchMode
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
from routing_service.replay.recorded_dialogue import RecordedDialogue
from routing_service.rpc.remote_judge import load_detector, load_judge
from routing_service.storage.open_store import open_store_to_read
from routing_service.topics.detection import TopicJudge
from routing_service.topics.detector_plugin import DetectorUnavailable
from routing_service.topics.topic_detector import TopicModel

WORDS: Final = "words"
AGENTS_FILE: Final = "agents.json"
THRESHOLDS: Final = tuple(percent / 100 for percent in range(30, 100, 5))
COMPLAINTS_MAX: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateOptions:
    """The options of ``topics evaluate``."""

    files: tuple[str, ...]
    agents: str
    corpus: str
    corpus_agents: str
    detector: str
    descriptions_only: bool
    threshold: float | None
    lock_threshold: float | None
    ask_share: float | None
    right_wanted: float | None
    judge: str
    limit: int | None

    def topics_of(self, registry: Registry) -> Topics:
        """Return the topics to play a registry with: its own, or what the options say.

        Without a threshold the likeliest agent gets a message, and the supervisor unsure ones.
        """
        own = registry.topics
        asks = self.ask_share is None and self.right_wanted is None
        if own.mode == "auto" and asks and self.threshold is None and not self.judge:
            return own
        when_unsure = WhenUnsure.SUGGEST if registry.is_swarm else WhenUnsure.SUPERVISOR
        if self.judge:
            when_unsure = WhenUnsure.JUDGE
        elif self.threshold is not None and asks:
            when_unsure = WhenUnsure.STAY
        threshold = 0.0 if self.threshold is None else self.threshold
        lock_threshold = threshold if self.lock_threshold is None else self.lock_threshold
        return Topics(
            mode="auto",
            threshold=threshold,
            lock_threshold=lock_threshold,
            first_message="auto",
            when_unsure=when_unsure,
            keeps_open_turns=True,
            ask_share=own.ask_share if self.ask_share is None else self.ask_share,
            right_wanted=self.right_wanted,
            temperature=own.temperature,
            stay_offset=own.stay_offset,
        )


def run_evaluate(asked: EvaluateOptions, *, as_json: bool) -> None:
    """Run ``topics evaluate``. Raises CommandFailed, typer.Exit."""
    if bool(asked.agents) + bool(asked.corpus) > 1 or not (
        asked.agents or asked.corpus or asked.corpus_agents
    ):
        raise typer.BadParameter(
            "give --agents FILE or --corpus NAME to name the agents, or --corpus-agents FILE alone "
            "to play each file against the corpus of its name"
        )
    try:
        registries = list(_registries_of(asked))
        check_files(asked.files)
        model = model_of(asked.detector)
        played = _Played(model, asked)
        asyncio.run(played.play_registries(registries))
    except (CorpusAgentsInvalid, DialogueFileUnreadable) as error:
        raise CommandFailed(str(error), exit_code=EXIT_USAGE) from error
    except (RegistryFileError, DialogueFailed) as error:
        raise CommandFailed(str(error)) from error
    told = played.as_dict()
    if as_json:
        typer.echo(json.dumps(told, indent=2))
    else:
        _print_evaluation(told, played)
    if played.bad_lines:
        raise typer.Exit(EXIT_FAILED)


def judge_of(model: TopicModel, judge: str) -> TopicJudge:
    """Return what a server asks, for one registry. judge: of unsure messages; "" = none."""
    return TopicJudge(lambda: model, load_judge=(lambda: load_judge(judge)) if judge else None)


def model_of(name: str) -> TopicModel:
    """Return the model of a name, "" = the bundled one, WORDS = its words alone.

    Raises CommandFailed.
    """
    try:
        if name == WORDS:
            return load_word_model()
        return load_detector(name) if name else load_default_model(waits=True)
    except DetectorUnavailable as error:
        raise CommandFailed(str(error), exit_code=EXIT_USAGE) from error


def _without_examples(registry: Registry) -> Registry:
    """Return the registry without the agents' examples."""
    agents = {name: replace(agent, examples=()) for name, agent in registry.agents.items()}
    return replace(registry, agents=agents)


def _registries_of(asked: EvaluateOptions) -> Iterator[tuple[tuple[str, ...], str, Registry]]:
    """Yield files with the corpus that they are of, "" where each dialogue names it."""
    if asked.agents:
        found = [(asked.files, "", load_registry(asked.agents))]
    elif asked.corpus:
        path = asked.corpus_agents or str(Path(asked.files[0]).with_name(AGENTS_FILE))
        found = [(asked.files, "", _corpus_registry(path, asked.corpus))]
    else:
        names = [(file, Path(file).name.partition(".jsonl")[0]) for file in asked.files]
        found = [
            ((file,), name, _corpus_registry(asked.corpus_agents, name)) for file, name in names
        ]
    for files, corpus, registry in found:
        played = _without_examples(registry) if asked.descriptions_only else registry
        yield files, corpus, replace(played, topics=asked.topics_of(registry))


def _corpus_registry(path: str, corpus: str) -> Registry:
    agents = load_corpus_agents(path, corpus)
    text = corpus_registry(corpus, agents, ReplayPolicy.STICKY, SwitchMode.AGENT)
    return parse_registry(text, f"the registry made of {corpus}")


class _Played:
    """The counts of the dialogues played."""

    def __init__(self, model: TopicModel, asked: EvaluateOptions) -> None:
        # Only the bundled model says what it was trained on.
        self._has_seen = getattr(model, "has_seen", lambda _corpus, _agent_id: False)
        self._model = model
        self._asked = asked
        self._number = 0
        self.bad_lines = 0
        self.outcomes = Outcomes()
        self.by_corpus: dict[str, Marks] = {}
        self.by_group: dict[str, dict[str, Marks]] = {}
        self.by_agent: dict[str, Marks] = {}
        self.outcomes_of: dict[str, Outcomes] = {}

    async def play_registries(
        self, registries: Iterable[tuple[tuple[str, ...], str, Registry]]
    ) -> None:
        """Play the files of each registry. Raises DialogueFailed."""
        for files, corpus, registry in registries:
            judge = judge_of(self._model, self._asked.judge)
            judge.prepare(registry)
            judge.in_force(registry)
            try:
                dialogues = self._dialogues_of(files, registry)
                await self._play(corpus, dialogues, registry, judge)
                await self._play_verbatim(corpus, dialogues, registry, judge)
            finally:
                await judge.close()

    def _dialogues_of(self, files: tuple[str, ...], registry: Registry) -> list[RecordedDialogue]:
        """Return the dialogues of files. A bad line is printed and counted."""
        limit = self._asked.limit
        dialogues: list[RecordedDialogue] = []
        for found in read_dialogues(files):
            if limit is not None and len(dialogues) >= limit:
                break
            problem = str(found) if isinstance(found, BadLine) else ""
            if not isinstance(found, BadLine):
                unknown = sorted(found.dialogue.agent_ids - registry.agents.keys())
                problem = (
                    f'{found.place}: agent "{unknown[0]}" is not registered' if unknown else ""
                )
                if not unknown:
                    dialogues.append(found.dialogue)
            if problem:
                self.bad_lines += 1
                if self.bad_lines <= COMPLAINTS_MAX:
                    typer.echo(f"error: {problem}", err=True)
        return dialogues

    async def _play_verbatim(
        self,
        corpus: str,
        dialogues: list[RecordedDialogue],
        registry: Registry,
        judge: TopicJudge,
    ) -> None:
        """Send each example of one agent alone, with nothing before it and with some dialogues."""
        names = {corpus} if corpus else {one.corpus or "dialogues" for one in dialogues}
        held = [self.outcomes, *(self.outcomes_of[name] for name in sorted(names)[:1])]
        async for played in judged_messages(
            verbatim_dialogues(registry, dialogues), registry, judge
        ):
            for outcomes in held:
                outcomes.take_verbatim(is_right=played[-1].dispatched == played[-1].owner)

    def as_dict(self) -> dict[str, object]:
        """Return all figures by name."""
        everything = self.outcomes.as_dict()
        corpora: dict[str, object] = {
            name: marks.as_dict()
            | self.outcomes_of[name].as_dict()
            | {"groups": {group: held.as_dict() for group, held in sorted(groups.items())}}
            for (name, marks), groups in zip(
                self.by_corpus.items(), self.by_group.values(), strict=True
            )
        }
        return {
            "model": self._model.version,
            "threshold": self._asked.threshold,
            "lock_threshold": self._asked.lock_threshold,
            "descriptions_only": self._asked.descriptions_only,
            "bad_lines": self.bad_lines,
            "all": everything,
            "languages": {
                name: self.outcomes.of_language(name).as_dict() for name in self.outcomes.languages
            },
            "corpora": corpora | {"all": everything},
            "agents": {name: marks.as_dict() for name, marks in sorted(self.by_agent.items())},
        }

    async def _play(
        self,
        corpus: str,
        dialogues: list[RecordedDialogue],
        registry: Registry,
        judge: TopicJudge,
    ) -> None:
        """Play dialogues twice: with wrong dispatches corrected, and without for stuck users."""
        first = self._number + 1
        for mends in Mends:
            self._number = first - 1
            at = 0
            async for played in judged_messages(dialogues, registry, judge, mends):
                self._number += 1
                dialogue = dialogues[at]
                at += 1
                name = corpus or dialogue.corpus or "dialogues"
                locale = dialogue.language or registry.default_locale
                for judged in played:
                    for marks in self._marks(name, judged, registry):
                        if mends is Mends.NOBODY:
                            marks.take_alone(self._number, judged)
                        else:
                            marks.take(self._number, judged)
                    if mends is Mends.AGENT:
                        self.outcomes_of.setdefault(name, Outcomes()).take(judged, locale)
                        self.outcomes.take(judged, locale)

    def _marks(self, corpus: str, judged: Judged, registry: Registry) -> tuple[Marks, ...]:
        """Return the counts that a message belongs to: of its corpus, group and agent."""
        group = "nobody's"
        if not judged.is_no_agents:
            group = "seen agents" if self._has_seen(corpus, judged.owner) else "unseen agents"
        owner = judged.owner or registry.home_agent_id
        return (
            self.by_corpus.setdefault(corpus, Marks()),
            self.by_group.setdefault(corpus, {}).setdefault(group, Marks()),
            self.by_agent.setdefault(owner, Marks()),
        )


_SHOWN_OUTCOMES: Final = {
    "right": "right",
    "first_right": "first messages right",
    "changes_found": "changes of topic found",
    "false_switches": "false switches",
    "verbatim": "examples word for word",
}
_SHOWN: Final = {
    "right": "right at first dispatch",
    "without_supervisor": "without the supervisor",
    "switch_precision": "switches: precision",
    "switch_recall": "switches: recall",
    "switch_f1": "switches: F1",
    "false_switches_per_1000": "false switches in 1,000",
    "stuck": "stuck without correction",
    "calibration_error": "calibration error",
}


def _print_evaluation(told: dict[str, object], played: _Played) -> None:
    out = console()
    by = "the likeliest option has the message"
    if told["threshold"] is not None:
        by = f"threshold {told['threshold']}, {told['lock_threshold']} while an agent waits"
    out.print(
        f"model {told['model']}, {by}"
        + ("; descriptions alone" if told["descriptions_only"] else ""),
        soft_wrap=True,
    )
    _print_outcomes(out, played)
    for name, marks in played.by_corpus.items():
        groups = dict(sorted(played.by_group[name].items()))
        columns = {"all": marks, **(groups if len(groups) > 1 else {})}
        alone = "" if len(groups) > 1 else f", {next(iter(groups))}"
        table = _table(f"{name}{alone}", *columns)
        table.add_row("messages", *(f"{held.scored:,}" for held in columns.values()))
        figures = [held.figures() for held in columns.values()]
        for key, label in _SHOWN.items():
            table.add_row(label, *(_with_interval(key, each[key]) for each in figures))
        out.print()
        out.print(table)
    table = _table("agent", "messages", "right", "precision", "recall", "F1", "false in 1,000")
    for name, marks in sorted(played.by_agent.items()):
        found = marks.figures()
        table.add_row(
            name,
            f"{marks.scored:,}",
            _with_interval("right", found["right"]),
            *(_percent(found[f"switch_{key}"].value) for key in ("precision", "recall", "f1")),
            f"{found['false_switches_per_1000'].value:.1f}",
        )
    out.print()
    out.print(table)


def _print_outcomes(out: Console, played: _Played) -> None:
    """Print what was right by language and in all, and if the least sure are asked about."""
    shown = {name: played.outcomes.of_language(name) for name in played.outcomes.languages}
    if len(shown) < 2:  # noqa: PLR2004 - one language is all of it
        shown = {}
    columns = {"all": played.outcomes.as_dict()}
    columns |= {name: held.as_dict() for name, held in shown.items()}
    table = _table("all files", *columns)
    table.add_row("messages", *(f"{figures['messages']:,}" for figures in columns.values()))
    for key, label in _SHOWN_OUTCOMES.items():
        table.add_row(label, *(_figure(figures.get(key)) for figures in columns.values()))
    shares = [_figure(figures["asked_share"]) for figures in columns.values()]
    table.add_row("asked about", *shares)
    rights = [_figure(figures["right_while_asking"]) for figures in columns.values()]
    table.add_row("right with what is asked", *rights)
    for percent in ASKED_PERCENT[1:]:
        asked = [_figure(figures["right_at_asked"], str(percent)) for figures in columns.values()]
        table.add_row(f"right if {percent} % are asked", *asked)
    out.print()
    out.print(table)


def _figure(value: object, key: str = "") -> str:
    """Return a share as a person reads it; a dash where there is none. key: of several."""
    if isinstance(value, dict):
        value = value[key]
    return "-" if value is None else _percent(value)


def _with_interval(key: str, found: Measured) -> str:
    """Return a figure as text; a dash if its denominator is 0."""
    if not found.of:
        return "-"
    if key == "calibration_error":
        return f"{found.value:.3f} ({found.low:.3f}-{found.high:.3f})"
    if key == "false_switches_per_1000":
        return f"{found.value:.1f} ({found.low:.1f}-{found.high:.1f})"
    return f"{found.value:.1%} ({100 * found.low:.1f}-{100 * found.high:.1f})"


def run_calibrate(
    store: str, agents: str, detector: str, tenant: str, days: int | None, *, as_json: bool
) -> None:
    """Run ``topics calibrate``. Raises CommandFailed."""
    if not agents:
        raise typer.BadParameter("give --agents FILE: the registry whose topics are judged")
    try:
        registry = load_registry(agents)
    except RegistryFileError as error:
        raise CommandFailed(str(error)) from error
    since_us = 0 if days is None else time.time_ns() // 1000 - days * 86_400_000_000
    model = model_of(detector)
    judge = TopicJudge(lambda: model)
    messages = run_on_store(_labelled(store, always_asked(registry), judge, tenant, since_us))
    if not messages:
        raise CommandFailed(
            "this store has no message with a known owner that detection could have been "
            "asked about; serve for a while, or give more --days"
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
    """Return the registry's threshold for a place; None if topics do nothing there."""
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


def _percent(share: object) -> str:
    assert isinstance(share, float)
    return f"{share:.1%}"
