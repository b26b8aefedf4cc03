"""``agent-routing check``: check registry files."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from routing_service.cli.failure import EXIT_FAILED
from routing_service.cli.options import PlainJsonOption
from routing_service.cli.registry_report import (
    check_files,
    print_reports,
    print_reports_as_json,
    print_schema,
)

EPILOG: Final = """\b
Examples:
  agent-routing check agents.yaml
  agent-routing check agents.yaml --json | jq .files[].problems
  agent-routing check --schema > registry.schema.json
"""


def check(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE...", show_default=False, help="Registry files (YAML); - reads a pipe."
        ),
    ] = None,
    *,
    as_json: PlainJsonOption = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of registry files instead.")
    ] = False,
) -> None:
    """Check registry files: each problem, its place, its remedy.

    Exits with 0 if all files are valid (warnings do not count), else with 1.
    """
    if schema:
        print_schema()
        return
    if not files:
        raise typer.BadParameter("name a registry file, or give --schema")
    reports = check_files(files)
    if as_json:
        print_reports_as_json(reports)
    else:
        print_reports(reports)
    if any(report.problems for report in reports):
        raise typer.Exit(EXIT_FAILED)
