"""``agent-routing topics learn``: what stored conversations teach topic detection.

Rule: nothing is in force until an operator has read the file and named it in the registry.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import typer
from ruamel.yaml import YAML

from agent_routing_topics.backtest import Labelled, always_asked, labelled_messages
from agent_routing_topics.learning import (
    FOLDS,
    MESSAGES_MIN,
    Expected,
    Learned,
    evidence,
    expected,
    fold_of,
    learn,
    proposed,
    with_examples,
)
from routing_service.cli.failure import CommandFailed
from routing_service.cli.store_call import run_on_store
from routing_service.core.registry import Registry
from routing_service.registry.file import RegistryFileError, load_registry
from routing_service.storage.open_store import open_store_to_read
from routing_service.topics.calibration import Calibration
from routing_service.topics.detection import TopicJudge
from routing_service.topics.topic_detector import TopicModel


@dataclass(frozen=True, slots=True)
class LearnOptions:
    """What ``topics learn`` was asked for. since_us: only messages from then on."""

    store: str
    agents: str
    tenant: str
    since_us: int
    examples: bool


def days_ago_us(days: int | None) -> int:
    """Return the time so many days ago; 0 for None."""
    return 0 if days is None else time.time_ns() // 1000 - days * 86_400_000_000


def run_learn(asked: LearnOptions, model: TopicModel, *, as_json: bool) -> None:
    """Carry ``topics learn`` out. Raises CommandFailed, typer.BadParameter."""
    if not asked.agents:
        raise typer.BadParameter("give --agents FILE: the registry that learns")
    try:
        registry = load_registry(asked.agents)
    except RegistryFileError as error:
        raise CommandFailed(str(error)) from error

    def judged(by: Registry) -> list[Labelled]:
        return run_on_store(_messages(asked, by, model))

    messages = judged(registry)
    if len(messages) < MESSAGES_MIN:
        raise CommandFailed(
            f"this store has {len(messages)} messages with a known owner that detection could "
            f"have been asked about; learning needs {MESSAGES_MIN}. Serve for a while, or give "
            "more --days"
        )
    in_force = Calibration(registry.topics.temperature, registry.topics.stay_offset)
    found = learn(messages, in_force)
    examples: dict[str, list[str]] = {}
    gain: tuple[Expected, Expected] | None = None
    if asked.examples:
        examples = proposed(messages, registry)
        if examples:
            gain = _gain_of_examples(messages, registry, in_force, judged)
    path = Path(asked.agents).with_suffix(".learned.yml")
    has_anything = found.helps or bool(examples)
    if has_anything:
        content = written(found, in_force, examples)
        try:
            path.write_text(content, "utf-8")
        except OSError as error:
            raise CommandFailed(f"cannot write {path}: {error.strerror}") from error
    if as_json:
        told = {
            "model": model.version,
            "messages": len(messages),
            "shown_by": dict(found.shown_by),
            "calibration": asdict(found.calibration) if found.helps else None,
            "before": asdict(found.before),
            "after": asdict(found.after),
            "examples": {name: len(texts) for name, texts in examples.items()},
            "examples_before": asdict(gain[0]) if gain else None,
            "examples_after": asdict(gain[1]) if gain else None,
            "file": str(path) if has_anything else None,
        }
        typer.echo(json.dumps(told, indent=2))
        return
    _print(model, found, gain, examples)
    if has_anything:
        _print_file(path, Path(asked.agents))
    else:
        typer.echo("nothing is expected to get better; no file was written")


def _gain_of_examples(
    messages: Sequence[Labelled],
    registry: Registry,
    in_force: Calibration,
    judged: Callable[[Registry], list[Labelled]],
) -> tuple[Expected, Expected]:
    """Return how messages are judged without and with the examples of other folds' sessions."""
    after: list[Labelled] = []
    for fold in range(FOLDS):
        others = [message for message in messages if fold_of(message) != fold]
        taught = with_examples(registry, proposed(others, registry))
        after += [message for message in judged(taught) if fold_of(message) == fold]
    return expected(messages, in_force), expected(after, in_force)


async def _messages(asked: LearnOptions, registry: Registry, model: TopicModel) -> list[Labelled]:
    opened = await open_store_to_read(asked.store)
    try:
        judge = TopicJudge(lambda: model)
        found = labelled_messages(
            opened,
            always_asked(registry),
            judge,
            tenant=asked.tenant,
            since_us=asked.since_us,
            with_later=True,
        )
        return evidence([message async for message in found])
    finally:
        await opened.close()


def written(found: Learned, in_force: Calibration, examples: Mapping[str, Sequence[str]]) -> str:
    """Return what was learned as a file. What does not help stays as it is in force."""
    by = found.calibration if found.helps else in_force
    out = io.StringIO()
    out.write(
        "# Learned from stored conversations, for topic detection: see docs/topics.md.\n"
        "# Read it before you name it in the registry: the examples are users' own messages.\n"
    )
    yaml = YAML()
    yaml.width = 4096
    data: dict[str, object] = {"temperature": by.temperature, "stay_offset": by.stay}
    if examples:
        data["examples"] = {name: list(texts) for name, texts in examples.items()}
    yaml.dump(data, out)
    return out.getvalue()


def _print(
    model: TopicModel,
    found: Learned,
    gain: tuple[Expected, Expected] | None,
    examples: Mapping[str, Sequence[str]],
) -> None:
    shown = ", ".join(f"{name} {count:,}" for name, count in sorted(found.shown_by.items()))
    typer.echo(f"model {model.version}: {found.before.messages:,} messages ({shown})")
    typer.echo(f"expected on sessions that were not learned from ({FOLDS} parts):")
    typer.echo(f"  as it is          {_told(found.before)}")
    note = "" if found.helps else "; it does not help, and is left out"
    typer.echo(
        f"  calibrated        {_told(found.after)} (temperature {found.calibration.temperature:g}, "
        f"stay {found.calibration.stay:+g}{note})"
    )
    if gain is not None:
        count = sum(map(len, examples.values()))
        typer.echo(f"  more examples     {_told(gain[1])} ({count} proposed)")


def _told(found: Expected) -> str:
    return f"{found.right / found.messages:.1%} right, probabilities off by {found.off_by:.3f}"


def _print_file(path: Path, agents: Path) -> None:
    typer.echo(f"wrote {path}: read it, and change what you disagree with")
    if f"learned_file: {path.name}" not in agents.read_text("utf-8"):
        typer.echo(f"then add this line to {agents}:  learned_file: {path.name}")
