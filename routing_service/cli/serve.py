"""``agent-routing serve``: serve a registry's agents until stopped.

Its flags are made from the table of settings.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from routing_service.cli.example_files import EXAMPLES, example_file
from routing_service.cli.failure import EXIT_USAGE
from routing_service.settings.resolve import CONFIG_VARIABLE, resolve_settings
from routing_service.settings.rules import SettingsInvalid
from routing_service.settings.setting_forms import Setting, Switch
from routing_service.settings.settings import SETTINGS

_HELP: Final = """Serve a registry's agents over gRPC until SIGTERM or Ctrl-C.

Prints "serving on HOST:PORT" once it is ready. Each setting is taken from its flag, else from its
environment variable (--log-level is AGENT_ROUTING_LOG_LEVEL), else from the configuration file
(log_level), else from its default.
"""

EPILOG: Final = """\b
Exit codes: 0 stopped by a signal; 1 it could not start (the store cannot be
opened, the address is in use); 2 the settings or the registry are wrong.

\b
Examples:
  agent-routing serve --example tax
  agent-routing serve --agents agents.yaml
  agent-routing serve --agents agents.yaml --listen 127.0.0.1:0 --store memory:
  AGENT_ROUTING_AGENTS=agents.yaml agent-routing serve --config routing.toml
"""


def _make_serve() -> Callable[..., None]:
    """Return the command, with an option for each setting."""

    def serve(config: str | None, *, example: str, explain: bool, **flags: object) -> None:
        _serve(config, _with_example(flags, example), explain=explain)

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        *setting_parameters(),
        inspect.Parameter("example", keyword, default="", annotation=_EXAMPLE_OPTION),
        inspect.Parameter("explain", keyword, default=False, annotation=_EXPLAIN_OPTION),
    ]
    # The option parser reads only the signature of a function.
    serve.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    serve.__annotations__ = {each.name: each.annotation for each in parameters}
    serve.__doc__ = _HELP
    return serve


def setting_parameters() -> list[inspect.Parameter]:
    """Return the options of a server: one for each setting, and --config."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    return [
        *(
            inspect.Parameter(name, keyword, default=None, annotation=_annotation(setting))
            for name, setting in SETTINGS.items()
        ),
        inspect.Parameter("config", keyword, default=None, annotation=_CONFIG_OPTION),
    ]


_CONFIG_OPTION: Final = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        show_default=False,
        help=f"The configuration file (TOML).  [env var: {CONFIG_VARIABLE}]",
    ),
]
_EXAMPLE_OPTION: Final = Annotated[
    str,
    typer.Option(
        "--example",
        metavar="|".join(EXAMPLES),
        autocompletion=lambda: list(EXAMPLES),
        show_default=False,
        help="Serve an example registry of this package instead of --agents.",
    ),
]
_EXPLAIN_OPTION: Final = Annotated[
    bool,
    typer.Option("--explain", help="Print each setting with the source of its value, and exit."),
]


def _annotation(setting: Setting) -> Any:
    """Return a setting as an option: a switch, or text that the setting's form parses."""
    text = setting.help[:1].upper() + setting.help[1:]
    if isinstance(setting.form, Switch):
        flags = f"{setting.flag}/--no-{setting.flag.removeprefix('--')}"
        return Annotated[bool | None, typer.Option(flags, show_default=False, help=f"{text}.")]
    default = f"  [default: {setting.default}]" if setting.default != "" else ""
    return Annotated[
        str | None,
        typer.Option(
            setting.flag,
            metavar=setting.name.rpartition("_")[2].upper(),
            show_default=False,
            help=f"{text}.{default}",
        ),
    ]


def _with_example(flags: dict[str, object], example: str) -> dict[str, object]:
    """Return the flags with the example's registry as --agents. Exits with 2 if both are given."""
    if not example:
        return flags
    if flags.get("agents") is not None:
        raise typer.BadParameter("give either --agents or --example")
    return {**flags, "agents": str(example_file(example))}


def _serve(config: str | None, flags: dict[str, object], *, explain: bool) -> None:
    try:
        resolved = resolve_settings(flags, os.environ, config)
    except SettingsInvalid as error:
        for problem in error.problems:
            typer.echo(f"error: {problem}", err=True)
        raise typer.Exit(EXIT_USAGE) from None
    for warning in resolved.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if explain:
        for setting in resolved.explain():
            typer.echo(f"{setting.name} = {setting.value!r}  ({setting.source})")
        return
    if resolved.settings.processes > 1:
        from routing_service.server import supervisor  # noqa: PLC0415 - it never needs gRPC

        sys.exit(supervisor.run(resolved.settings))
    from routing_service.server import process  # noqa: PLC0415 - refusing settings needs no gRPC

    sys.exit(process.run(resolved.settings))


serve: Final = _make_serve()
