"""The options that commands share: their names, defaults and help."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Annotated, Final, TypeVar, get_type_hints

import typer

T = TypeVar("T")

TARGET_DEFAULT: Final = "127.0.0.1:50051"
TARGET_VARIABLE: Final = "AGENT_ROUTING_TARGET"
TIMEOUT_DEFAULT_S: Final = 10.0
TIMEOUT_MAX_S: Final = 3600.0

SessionArgument = Annotated[
    str, typer.Argument(metavar="SESSION", help="The session's id.", show_default=False)
]
OptionalSessionArgument = Annotated[
    str,
    typer.Argument(
        metavar="[SESSION]", help="The session's id. Default: of --task.", show_default=False
    ),
]
TaskOption = Annotated[
    str,
    typer.Option(
        "--task",
        metavar="UUID",
        show_default=False,
        help="A task of the session; it finds the session if that is left out.",
    ),
]
TargetOption = Annotated[
    str,
    typer.Option(
        "--target", metavar="HOST:PORT", envvar=TARGET_VARIABLE, help="The server's address."
    ),
]
UserOption = Annotated[
    str,
    typer.Option(
        "--user",
        metavar="ID",
        show_default=False,
        help="The user to act for. Default: none, for an agent's runtime or an operator.",
    ),
]
TenantOption = Annotated[
    str,
    typer.Option(
        "--tenant",
        metavar="ID",
        envvar="AGENT_ROUTING_TENANT",
        show_default=False,
        show_envvar=False,
        help="The tenant. Default: the default tenant.",
    ),
]
TimeoutOption = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0.1,
        max=TIMEOUT_MAX_S,
        help="How long to wait for an answer.",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON, with the contract's field names.")
]


def json_option(help_text: str) -> object:
    """Return the option --json of a command whose JSON is of another form."""
    return Annotated[bool, typer.Option("--json", help=help_text)]


PlainJsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="URL",
        envvar="AGENT_ROUTING_STORE",
        show_default=False,
        help="The store's URL, as for agent-routing serve.",
    ),
]
ReasonOption = Annotated[
    str,
    typer.Option("--reason", metavar="TEXT", show_default=False, help="The reason, for the audit."),
]
RequestIdOption = Annotated[
    str,
    typer.Option(
        "--request-id",
        metavar="UUID",
        show_default=False,
        help="Calls with the same id are handled once. Default: a new id.",
    ),
]
ExpectedRevisionOption = Annotated[
    int | None,
    typer.Option(
        "--expected-revision",
        metavar="N",
        min=0,
        show_default=False,
        help="Refuse if the session is at another revision; 0 means a new session.",
    ),
]
LocaleOption = Annotated[
    str,
    typer.Option("--locale", metavar="TAG", show_default=False, help="A language, such as es."),
]
ChannelOption = Annotated[
    str,
    typer.Option(
        "--channel",
        metavar="WORD",
        show_default=False,
        help="The channel, such as web or whatsapp.",
    ),
]
EntitlementOption = Annotated[
    list[str] | None,
    typer.Option(
        "--entitlement",
        metavar="WORD",
        show_default=False,
        help="An entitlement of the user, such as plan:premium. May be repeated.",
    ),
]
CorpusAgentsOption = Annotated[
    str,
    typer.Option(
        "--corpus-agents",
        metavar="FILE",
        show_default=False,
        help="The agents of each corpus (JSON). Default: agents.json next to the first FILE.",
    ),
]

DetectorOption = Annotated[
    str,
    typer.Option(
        "--detector",
        metavar="NAME",
        show_default=False,
        help="Another detector: grpc://HOST:PORT, MODULE:NAME, or a name that a package registers.",
    ),
]


def command_of(kind: type[T], run: Callable[[T], None], help_text: str) -> Callable[..., None]:
    """Return a command whose options are the fields of a dataclass, and which passes one to `run`.

    kind: each field's type is Annotated with its option; its default is the option's.
    """
    types = get_type_hints(kind, include_extras=True)
    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=(
                inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
            ),
            annotation=types[field.name],
        )
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]
    ]

    def command(**options: object) -> None:
        run(kind(**options))

    # The parser reads only the signature.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = types
    command.__doc__ = help_text
    return command
