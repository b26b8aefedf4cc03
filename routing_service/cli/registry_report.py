"""How the problems, warnings and agents of registry files are printed.

Its rule: one line for each problem, in the form of compilers and editors.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import typer
from rich.table import Table
from rich.text import Text

from routing_service.cli.screen import console
from routing_service.core.registry import Agent, AgentKind, OnComplete, Registry, Topics
from routing_service.registry.file import (
    CheckedRegistry,
    RegistryFileError,
    check_registry,
    check_registry_file,
    registry_schema,
)
from routing_service.registry.yaml_document import TEXT_BYTES_MAX, FileProblem
from routing_service.topics.detector_plugin import DetectorUnavailable, load_shipped

STDIN_NAME = "-"


@dataclass(frozen=True, slots=True)
class FileReport:
    """The result for one file. registry: None if it is invalid."""

    file: str
    registry: Registry | None
    problems: tuple[FileProblem, ...] = ()
    warnings: tuple[FileProblem, ...] = ()


def check_files(files: Sequence[str]) -> list[FileReport]:
    """Check each file separately."""
    reports = []
    for file in files:
        try:
            checked = _check(file)
        except RegistryFileError as error:
            reports.append(FileReport(error.source, None, problems=error.problems))
        else:
            shown = "standard input" if file == STDIN_NAME else file
            reports.append(FileReport(shown, checked.registry, warnings=checked.warnings))
    return reports


def _check(file: str) -> CheckedRegistry:
    if file != STDIN_NAME:
        return check_registry_file(file)
    content = sys.stdin.buffer.read(TEXT_BYTES_MAX + 1)
    return check_registry(content.decode("utf-8", "replace"), "standard input")


def print_schema() -> None:
    """Print the JSON Schema of registry files."""
    typer.echo(json.dumps(registry_schema(), indent=2, ensure_ascii=False))


def print_reports_as_json(reports: Sequence[FileReport]) -> None:
    """Print the reports as one JSON object."""
    files = [
        {
            "file": report.file,
            "ok": report.registry is not None,
            "problems": [asdict(problem) for problem in report.problems],
            "warnings": [asdict(warning) for warning in report.warnings],
            "registry": _summary(report.registry) if report.registry else None,
            "topics": _weak_spots(report.registry) if report.registry else None,
        }
        for report in reports
    ]
    answer = {"ok": all(report.registry for report in reports), "files": files}
    typer.echo(json.dumps(answer, indent=2, ensure_ascii=False))


def _weak_spots(registry: Registry) -> dict[str, object] | None:
    try:
        return load_shipped("report").as_dict(registry) if registry.topics.is_on else None
    except DetectorUnavailable:
        return None


def _summary(registry: Registry) -> dict[str, object]:
    return {
        "version": registry.version,
        "home_agent_id": registry.home_agent_id,
        "is_swarm": registry.is_swarm,
        "agents": [
            {"agent_id": agent.agent_id, "kind": agent.kind.value, "enabled": agent.enabled}
            for agent in registry.agents.values()
        ],
    }


def print_reports(reports: Sequence[FileReport]) -> None:
    """Print problems and warnings, one line each, and the agents of valid files."""
    out = console()
    for report in reports:
        for problem in report.problems:
            _print_problem(report.file, problem, "")
        for warning in report.warnings:
            _print_problem(report.file, warning, "warning: ")
        if report.registry is None:
            count = len(report.problems)
            line = f"{report.file}: {count} problem{'s' * (count != 1)}"
            out.print(Text(line, style="bold red"), soft_wrap=True)
        else:
            _print_registry(report.file, report.registry)


def _print_problem(file: str, problem: FileProblem, kind: str) -> None:
    # Not wrapped: editors parse these lines.
    place = f"{problem.path}: " if problem.path else ""
    words = f"{kind}{place}{problem.message}; {problem.remedy}"
    where = f"{file}:{problem.line}:{problem.column}:" if problem.line else f"{file}:"
    line = Text(where, style="bold").append(f" {words}", style="not bold")
    console().print(line, soft_wrap=True)


def _print_registry(file: str, registry: Registry) -> None:
    out = console()
    count = len(registry.agents)
    home = "default agent" if registry.is_swarm else "supervisor"
    out.print(
        Text(f"{file}: good", style="green").append(
            f", version {registry.version}, {count} agent{'s' * (count != 1)}, "
            f"{home} {registry.home_agent_id}",
            style="default",
        ),
        soft_wrap=True,
    )
    if registry.topics.is_on:
        out.print(Text(f"topics: {_topics(registry.topics)}"), soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("agent", "name", "sticks", "when complete", "hands to", "notes"):
        table.add_column(name, overflow="fold", no_wrap=name in ("agent", "sticks"))
    for agent in registry.agents.values():
        table.add_row(*(Text(cell) for cell in _cells(agent, registry)))
    out.print(table)
    for line in _topic_lines(registry):
        out.print(Text(line), soft_wrap=True)


def _topic_lines(registry: Registry) -> Iterable[str]:
    if not registry.topics.is_on:
        return ()
    try:
        lines: Iterable[str] = load_shipped("report").lines_of(registry)
    except DetectorUnavailable as error:
        return (f"topics: {error}",)
    return lines


def _cells(agent: Agent, registry: Registry) -> tuple[str, ...]:
    is_supervisor = agent.agent_id == registry.home_agent_id and not registry.is_swarm
    name = agent.display_name(registry.default_locale, registry.default_locale)
    hands_to = "any" if agent.handoff_to is None else ", ".join(sorted(agent.handoff_to)) or "none"
    if is_supervisor or agent.kind is AgentKind.SYSTEM:
        # Neither is ever active, and a system agent hands over to no agent.
        hands_to = hands_to if is_supervisor else ""
        return agent.agent_id, name, "", "", hands_to, _notes(agent)
    completes = agent.on_complete_agent_id or agent.on_complete.value
    if agent.on_complete is OnComplete.HOP:
        completes = f"→ {completes}"
    return agent.agent_id, name, agent.sticks.value, completes, hands_to, _notes(agent)


def _topics(topics: Topics) -> str:
    """Return a registry's settings of topics in a line."""
    lock = topics.lock_threshold
    first = "the agent of their topic" if topics.first_message == "auto" else "the home agent"
    return "; ".join(
        (
            f"{'switched' if topics.mode == 'auto' else 'suggested'} from {topics.threshold:.2f}",
            "never while an agent waits for an answer"
            if lock is None
            else f"from {max(lock, topics.threshold):.2f} while an agent waits for an answer",
            f"first messages to {first}",
        )
    )


def _topics_to(agent: Agent) -> str:
    """Return how topics bring users to an agent, "" if that is the same for all."""
    mode, threshold = agent.topics.mode, agent.topics.threshold
    if mode == "off":
        return "no topic brings users"
    how = {"auto": "topics switch", "suggest": "topics suggest"}.get(mode, "topics")
    if threshold is not None:
        return f"{how} from {threshold:.2f}"
    return how if mode else ""


def _notes(agent: Agent) -> str:
    topics = _topics_to(agent)
    notes = (
        ("disabled", not agent.enabled),
        (agent.kind.value, agent.kind is AgentKind.SYSTEM),
        ("owns the session", agent.owns_session),
        ("interlude", agent.receives_as_interlude),
        (f"needs {', '.join(sorted(agent.requires))}", bool(agent.requires)),
        (f"on {', '.join(sorted(agent.channels or ()))}", agent.channels is not None),
        ("markers", agent.markers),
        ("questions in prose lock", agent.asks_in_prose),
        ("users may pick it", agent.user_selectable),
        (topics, bool(topics)),
    )
    return "; ".join(note for note, holds in notes if holds)
