"""The credentials of commands: the options before a command's name, and the client's arguments.

Its rule: a token is never an argument, because everybody on the machine can read the command line.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from routing_service.cli.failure import EXIT_USAGE, CommandFailed

if TYPE_CHECKING:
    import grpc

TOKEN_VARIABLE: Final = "AGENT_ROUTING_TOKEN"  # noqa: S105 - its name
TOKEN_BYTES_MAX: Final = 16 * 1024

TokenFileOption = Annotated[
    str,
    typer.Option(
        "--token-file",
        metavar="FILE",
        envvar="AGENT_ROUTING_TOKEN_FILE",
        show_default=False,
        help=f"Sign in with the token in this file; it is read for each call. Or set "
        f"{TOKEN_VARIABLE} to the token.",
    ),
]
TlsOption = Annotated[
    bool, typer.Option("--tls", help="Use TLS. Any of the next four options implies it.")
]
TlsCaOption = Annotated[
    str,
    typer.Option(
        "--tls-ca",
        metavar="FILE",
        envvar="AGENT_ROUTING_TLS_CA",
        show_default=False,
        help="The authority that signed the server's certificate (PEM), if not a public one.",
    ),
]
TlsCertOption = Annotated[
    str,
    typer.Option(
        "--tls-cert",
        metavar="FILE",
        envvar="AGENT_ROUTING_TLS_CERT",
        show_default=False,
        help="A client certificate to sign in with (PEM).",
    ),
]
TlsKeyOption = Annotated[
    str,
    typer.Option(
        "--tls-key",
        metavar="FILE",
        envvar="AGENT_ROUTING_TLS_KEY",
        show_default=False,
        help="The client certificate's key (PEM).",
    ),
]
TlsNameOption = Annotated[
    str,
    typer.Option(
        "--tls-name",
        metavar="NAME",
        envvar="AGENT_ROUTING_TLS_NAME",
        show_default=False,
        help="The name in the server's certificate, if it differs from the target.",
    ),
]


@dataclass(frozen=True, slots=True)
class Credentials:
    """The options before the command's name."""

    token_file: str = ""
    tls: bool = False
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_name: str = ""

    @property
    def is_encrypted(self) -> bool:
        """Whether TLS is used."""
        return self.tls or bool(self.tls_ca or self.tls_cert or self.tls_key or self.tls_name)

    def token(self) -> str:
        """Return the token to sign in with, "" for none. Raises CommandFailed."""
        if not self.token_file:
            return os.environ.get(TOKEN_VARIABLE, "")
        try:
            with Path(self.token_file).open(encoding="ascii") as file:
                token = file.read(TOKEN_BYTES_MAX).strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            message = f'token file "{self.token_file}": {reason}; check path and content'
            raise CommandFailed(message, exit_code=EXIT_USAGE) from error
        if not token:
            message = f'token file "{self.token_file}" is empty; write a token into it'
            raise CommandFailed(message, exit_code=EXIT_USAGE)
        return token

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """Return the channel's credentials, None without TLS. Raises CommandFailed."""
        if not self.is_encrypted:
            return None
        from agent_routing import tls_credentials  # noqa: PLC0415 - the list of commands needs no gRPC

        try:
            return tls_credentials(
                authority_file=self.tls_ca or None,
                certificate_file=self.tls_cert or None,
                key_file=self.tls_key or None,
            )
        except OSError as error:
            message = f'"{error.filename}": {error.strerror}; check the path of the PEM file'
            raise CommandFailed(message, exit_code=EXIT_USAGE) from error
        except ValueError as error:
            message = "--tls-cert and --tls-key go together; give both"
            raise CommandFailed(message, exit_code=EXIT_USAGE) from error

    def channel_options(self) -> tuple[tuple[str, Any], ...]:
        """Return the channel's options."""
        return (("grpc.ssl_target_name_override", self.tls_name),) if self.tls_name else ()

    def channel(self, target: str) -> grpc.Channel:
        """Return a channel, for calls without a client. Raises CommandFailed."""
        import grpc  # noqa: PLC0415 - as above

        from agent_routing.proxies import proxy_options  # noqa: PLC0415 - as above

        credentials, options = self.channel_credentials(), proxy_options(target)
        if credentials is None:
            return grpc.insecure_channel(target, options)
        return grpc.secure_channel(target, credentials, (*options, *self.channel_options()))

    def for_client(self) -> dict[str, Any]:
        """Return the keyword arguments of a client. Raises CommandFailed."""
        return {
            "token": self.token if self.token() else None,
            "credentials": self.channel_credentials(),
            "options": self.channel_options(),
        }

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of a call without a client. Raises CommandFailed."""
        token = self.token()
        return (("authorization", f"Bearer {token}"),) if token else ()


_given = Credentials()


def use(credentials: Credentials) -> None:
    """Keep the credentials for the command that follows."""
    global _given  # noqa: PLW0603 - one command line a process
    _given = credentials


def given() -> Credentials:
    """Return the credentials."""
    return _given
