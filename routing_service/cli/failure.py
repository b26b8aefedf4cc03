"""How a command fails: one line on stderr, an exit code, and no traceback.

Its rule: the line says what, which value and what to do.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Final

from routing_service.telemetry.terminal_text import seen, seen_json

if TYPE_CHECKING:
    from agent_routing import RoutingError

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
"""The exit code of the option parser for its own errors."""
EXIT_INTERRUPTED: Final = 130
"""After Ctrl-C: 128 plus the signal's number, as in shells."""


class CommandFailed(Exception):
    """A command's failure, as a line for people or as JSON for programs."""

    def __init__(
        self,
        message: str,
        *,
        exit_code: int = EXIT_FAILED,
        details: dict[str, object] | None = None,
    ) -> None:
        """Take the line. details: printed as JSON instead, unless None."""
        super().__init__(message)
        self.exit_code = exit_code
        self.details = details

    def show(self) -> None:
        """Write it to stderr."""
        if self.details is None:
            # A registry file's failure has a line for each problem.
            lines = [f"error: {line}" for line in seen(str(self)).splitlines()]
        else:
            lines = [seen_json(json.dumps({"error": self.details}, ensure_ascii=False))]
        sys.stderr.writelines(f"{line}\n" for line in lines)


NAME_YOURSELF: Final = "this server has no sign-in: say who you are with --as NAME"


def is_nameless(error: RoutingError) -> bool:
    """Return whether the service asks for the name of a person, which --as gives."""
    return error.reason == "INVALID_FIELD" and error.metadata["field"] in {"claimant", "author"}


def call_failed(error: RoutingError, target: str, *, as_json: bool) -> CommandFailed:
    """Return the command's failure for a failed call."""
    from agent_routing.errors import Unauthenticated, Unavailable, Unimplemented  # noqa: PLC0415 - it imports gRPC
    from agent_routing.proxies import proxy_hint  # noqa: PLC0415 - as above

    message = error.message
    if isinstance(error, Unavailable) and not error.reason:
        message = (
            f"no server answers at {target}; start one with: agent-routing serve --agents FILE "
            f"--listen {target}, or name another with --target{proxy_hint(target)}"
        )
    elif isinstance(error, Unimplemented) and not error.reason:
        message = (
            f"what listens at {target} does not have this call; if AdminService has "
            "its own listener (admin_listen), name that with --target"
        )
    elif isinstance(error, Unauthenticated):
        message = f"{message}; give --token-file before the command's name, or --tls-cert"
    elif is_nameless(error):
        message = NAME_YOURSELF
    word = error.reason or error.code.name
    details: dict[str, object] = {
        "code": error.code.name,
        "reason": error.reason,
        "message": message,
        "metadata": dict(error.metadata),
        "violations": [
            {"name": each.name, "subject": each.subject, "detail": each.detail}
            for each in error.violations
        ],
    }
    return CommandFailed(f"{message} [{word}]", details=details if as_json else None)
