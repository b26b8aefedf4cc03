"""``agent-routing doctor``: the options of the command and how its findings are shown."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

from routing_service.cli import doctor_checks as checks
from routing_service.cli.credentials import given
from routing_service.cli.doctor_checks import Finding
from routing_service.cli.doctor_detector import topic_detector
from routing_service.cli.doctor_extras import extras
from routing_service.cli.doctor_target import NotDescribed, described_server
from routing_service.cli.failure import EXIT_FAILED
from routing_service.cli.options import (
    TARGET_DEFAULT,
    TARGET_VARIABLE,
    PlainJsonOption,
    TimeoutOption,
)
from routing_service.cli.screen import console
from routing_service.cli.serve import setting_parameters
from routing_service.settings.resolve import resolve_settings
from routing_service.settings.rules import SettingsInvalid
from routing_service.settings.settings import Settings
from routing_service.telemetry.call_log import configure_logging

DOCTOR_TIMEOUT_S: Final = 5.0

_HELP: Final = """Check everything a server needs, and report problems.

It checks settings, extras, registry, topic detector, disk, store, clocks, certificate, addresses
and the running server, if there is one: the one that these settings describe, or --target. It takes
the same flags, variables and file as agent-routing serve. It changes nothing and is safe to run
next to a busy server.
"""

_DoctorTargetOption = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="HOST:PORT",
        envvar=TARGET_VARIABLE,
        show_default=False,
        help="The server's address. Default: as the settings say, for operators if it has such an "
        "address.",
    ),
]

EPILOG: Final = """\b
Examples:
  agent-routing doctor --config routing.toml
  agent-routing doctor --agents agents.yaml --store postgres://db/chat
  agent-routing --token-file token doctor --target 127.0.0.1:50052

\b
Exit codes: 0 no problem (warnings do not count); 1 a problem; 2 the command line
is wrong.
"""


def _make_doctor() -> Callable[..., None]:
    """Return the command, with an option for each setting of a server."""

    def doctor(
        config: str | None, *, target: str | None, timeout: float, as_json: bool, **flags: object
    ) -> None:
        _doctor(config, flags, target=target, timeout_s=timeout, as_json=as_json)

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        *setting_parameters(),
        inspect.Parameter("target", keyword, default=None, annotation=_DoctorTargetOption),
        inspect.Parameter("timeout", keyword, default=DOCTOR_TIMEOUT_S, annotation=TimeoutOption),
        inspect.Parameter("as_json", keyword, default=False, annotation=PlainJsonOption),
    ]
    # As for serve: the parser reads only the signature.
    doctor.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    doctor.__annotations__ = {each.name: each.annotation for each in parameters}
    doctor.__doc__ = _HELP
    return doctor


doctor: Final = _make_doctor()


def _doctor(
    config: str | None,
    flags: dict[str, object],
    *,
    target: str | None,
    timeout_s: float,
    as_json: bool,
) -> None:
    # The finding has the driver's error; log lines would interrupt the table.
    configure_logging("error", "auto")
    found: list[Finding] = []
    settings: Settings | None = None
    try:
        resolved = resolve_settings(flags, os.environ, config)
    except SettingsInvalid as error:
        found += [
            Finding(
                "settings", "problem", str(problem), "agent-routing serve --help lists all settings"
            )
            for problem in error.problems
        ]
    else:
        settings = resolved.settings
        found += [
            Finding("settings", "warning", str(warning), "correct the name, or remove it")
            for warning in resolved.warnings
        ]
        if not found:
            own = [each for each in resolved.explain() if each.source != "default"]
            found.append(
                Finding("settings", "ok", f"{len(own)} given, the others have their defaults")
            )
    for finding in [*found, *_looked_at(settings, target, timeout_s)]:
        if finding not in found:
            found.append(finding)
    problems = sum(finding.level == "problem" for finding in found)
    if as_json:
        typer.echo(json.dumps({"findings": [asdict(finding) for finding in found]}, indent=2))
    else:
        _print(found, problems)
    if problems:
        raise typer.Exit(EXIT_FAILED)


def _looked_at(
    settings: Settings | None, target: str | None, timeout_s: float
) -> Iterator[Finding]:
    """Run every check; an unexpected error in one does not stop the others."""
    made: list[Callable[[], Iterator[Finding]]] = [checks.machine]
    if settings is not None:
        known = settings
        made += [
            lambda: extras(known),
            lambda: checks.processes(known),
            lambda: checks.registry(known),
            lambda: topic_detector(known),
            lambda: checks.disk(known),
            lambda: checks.store(known),
            lambda: checks.certificates(known),
            lambda: checks.ports(known),
        ]
    made.append(lambda: _server(settings, target, timeout_s))
    for check in made:
        try:
            yield from check()
        except Exception as error:  # noqa: BLE001 - see above
            name = getattr(check, "__name__", "check")
            yield checks.Finding(
                name if name != "<lambda>" else "check",
                "problem",
                f"the check failed: {type(error).__name__}: {error}",
                "report this: it is a bug in the doctor",
            )


def _server(settings: Settings | None, target: str | None, timeout_s: float) -> Iterator[Finding]:
    """Ask the server: the target if one is named, else the one that these settings describe."""
    if target is not None or settings is None:
        yield from checks.server(target or TARGET_DEFAULT, given(), timeout_s)
        return
    try:
        described = described_server(settings, given())
    except NotDescribed as error:
        yield Finding("server", "warning", f"not asked: {error}", error.remedy)
        return
    yield from checks.server(described.target, described.credentials, timeout_s)


def _print(found: list[Finding], problems: int) -> None:

    out = console()
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    marks = {
        "ok": Text("good", "green"),
        "warning": Text("look", "yellow"),
        "problem": Text("WRONG", "bold red"),
    }
    for finding in found:
        said = Text(finding.said)
        if finding.remedy and finding.level != "ok":
            said.append(f"\n→ {finding.remedy}", style="bold")
        table.add_row(marks[finding.level], finding.what, said)
    out.print(table)
    warnings = sum(finding.level == "warning" for finding in found)
    told = f"{problems or 'no'} problem{'s' * (problems != 1)}"
    told += f", {warnings or 'no'} warning{'s' * (warnings != 1)}"
    out.print(Text(told, "bold red" if problems else "bold green"))
