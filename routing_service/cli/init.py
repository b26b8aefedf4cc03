"""``agent-routing init``: start a project of one's own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from routing_service.cli.failure import EXIT_FAILED, CommandFailed
from routing_service.cli.registry_report import check_files, print_reports
from routing_service.cli.starter import (
    AGENTS_MAX,
    DELIVERIES,
    LANGUAGES_MAX,
    STORES,
    Starter,
    agent_problem,
    language_problem,
    starter_files,
)

AGENTS_DEFAULT: Final = "billing,support"
LANGUAGES_DEFAULT: Final = "en"
SUPERVISOR_DEFAULT: Final = "front_desk"

EPILOG: Final = """\b
Writes into FOLDER, and overwrites nothing unless --force is given:
  agents.yaml    the registry: the agents, their languages, who hands to whom
  agents.py      the agents as functions, and a terminal to talk to them
  compose.yaml   the server with its store, for Docker

\b
With --delivery inbox the agents are a worker, a process of its own that takes
turns from the server, and can be started several times:
  worker.py      the agents as functions, instead of agents.py
  chat.py        a terminal to talk to them

\b
Exit codes: 0 written, and agent-routing check passes; 1 a file is there
already or cannot be written; 2 an option is wrong.

\b
Examples:
  agent-routing init my-chat
  agent-routing init my-chat --agents billing,support --languages en,es
  agent-routing init my-chat --delivery inbox
  agent-routing init . --agents vat --store postgres --force
"""


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where the files go; made if it is not there.")
    ] = Path(),
    *,
    agents: Annotated[
        str,
        typer.Option(
            "--agents",
            metavar="ID,ID",
            show_default=False,
            help=f"The specialists, at most {AGENTS_MAX}. Default: asked, or {AGENTS_DEFAULT}.",
        ),
    ] = "",
    supervisor: Annotated[
        str, typer.Option("--supervisor", metavar="ID", help="The agent that gets first messages.")
    ] = SUPERVISOR_DEFAULT,
    languages: Annotated[
        str,
        typer.Option(
            "--languages",
            metavar="TAG,TAG",
            show_default=False,
            help="The users' languages, the default first. Default: asked, or en.",
        ),
    ] = "",
    store: Annotated[
        str,
        typer.Option(
            "--store",
            metavar="|".join(STORES),
            autocompletion=lambda: list(STORES),
            show_default=False,
            help="Where compose.yaml keeps the sessions. Default: asked, or sqlite.",
        ),
    ] = "",
    delivery: Annotated[
        str,
        typer.Option(
            "--delivery",
            metavar="|".join(DELIVERIES),
            autocompletion=lambda: list(DELIVERIES),
            show_default=False,
            help="Who runs the agents: caller, the program that sends the messages; inbox, a "
            "worker of its own. Default: asked, or caller.",
        ),
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")] = False,
) -> None:
    """Start a project: registry, agents in Python, compose file.

    Asks for what no option gives, if a terminal is there to answer.
    """
    starter = Starter(
        agent_ids=_listed("agents", agents or _asked("Specialists", AGENTS_DEFAULT)),
        supervisor_id=supervisor,
        languages=_listed("languages", languages or _asked("Languages", LANGUAGES_DEFAULT)),
        store=store or _asked(f"Store ({', '.join(STORES)})", STORES[0]),
        delivery=delivery or _asked("Agents run by their caller, or by an inbox", DELIVERIES[0]),
    )
    _refuse_mistakes(starter)
    files = starter_files(starter)
    there = [name for name in files if (folder / name).exists()]
    if there and not force:
        raise CommandFailed(
            f"{', '.join(str(folder / name) for name in there)}: there already; name another "
            "folder, or give --force"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandFailed(f"{error.filename}: {error.strerror}; check path and rights") from error
    reports = check_files([str(folder / "agents.yaml")])
    print_reports(reports)
    if any(report.problems for report in reports):
        raise typer.Exit(EXIT_FAILED)
    typer.echo(_next_steps(folder, starter))


def _asked(question: str, default: str) -> str:
    """Ask the person at the terminal; without one, return the default."""
    if not sys.stdin.isatty():
        return default
    return str(typer.prompt(question, default=default))


def _listed(option: str, text: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in text.split(","))
    if not all(parts):
        raise typer.BadParameter(f'--{option} "{text}" has an empty part; separate parts by commas')
    return parts


def _refuse_mistakes(starter: Starter) -> None:
    """Raise typer.BadParameter for the first mistake."""
    ids = (starter.supervisor_id, *starter.agent_ids)
    problems = [
        *(agent_problem(agent_id) for agent_id in ids),
        *(language_problem(tag) for tag in starter.languages),
    ]
    for many, of_them, most in (
        ("agents", starter.agent_ids, AGENTS_MAX),
        ("languages", starter.languages, LANGUAGES_MAX),
    ):
        if len(of_them) > most:
            problems.append(f"{len(of_them)} {many} are too many to start with; at most {most}")
    if len(set(ids)) < len(ids):
        problems.append("each agent needs an id of its own, and none that of the supervisor")
    if len({tag.casefold() for tag in starter.languages}) < len(starter.languages):
        problems.append("a language is named twice")
    if starter.store not in STORES:
        problems.append(f'there is no store "{starter.store}"; stores: {", ".join(STORES)}')
    if starter.delivery not in DELIVERIES:
        problems.append(
            f'there is no delivery "{starter.delivery}"; deliveries: {", ".join(DELIVERIES)}'
        )
    for problem in filter(None, problems):
        raise typer.BadParameter(problem)


def _next_steps(folder: Path, starter: Starter) -> str:
    shown = "" if folder == Path() else f"  cd {folder}\n"
    programs = ("worker.py", "chat.py") if starter.has_worker else ("agents.py",)
    commands = "\n".join(f"  python {program}" for program in programs)
    return f"""
Next, in {"three" if starter.has_worker else "two"} terminals:
{shown}  agent-routing serve --agents agents.yaml
{commands}

Say something about {starter.agent_ids[0]}, then /status. The answers are functions in
{programs[0]}: call your models there."""
