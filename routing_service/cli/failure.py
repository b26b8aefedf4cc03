"""How a command fails: one line on stderr, an exit code, and no traceback.

Owns the words for a call that failed. It must not know commands, and imports nothing of gRPC until
a call has failed. Its rule: the line says what, which value and what to do.
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
"""As the parser of options exits for its own complaints."""
EXIT_INTERRUPTED: Final = 130
"""By Ctrl-C: 128 and the signal's number, as shells have it."""


class CommandFailed(Exception):
    """What went wrong, for people, and for programs where they asked for it."""

    def __init__(
        self,
        message: str,
        *,
        exit_code: int = EXIT_FAILED,
        details: dict[str, object] | None = None,
    ) -> None:
        """Take the line. details: what programs get to read instead; None = people read it."""
        super().__init__(message)
        self.exit_code = exit_code
        self.details = details

    def show(self) -> None:
        """Write it to stderr."""
        if self.details is None:
            # A registry file has a line for each of its problems.
            lines = [f"error: {line}" for line in seen(str(self)).splitlines()]
        else:
            lines = [seen_json(json.dumps({"error": self.details}, ensure_ascii=False))]
        sys.stderr.writelines(f"{line}\n" for line in lines)


def call_failed(error: RoutingError, target: str, *, as_json: bool) -> CommandFailed:
    """Return a failed call as a failed command."""
    from agent_routing.errors import Unauthenticated, Unavailable, Unimplemented  # noqa: PLC0415 - it imports gRPC

    message = error.message
    if isinstance(error, Unavailable) and not error.reason:
        message = (
            f"no server answers at {target}; start one with: agent-routing serve --agents FILE "
            f"--listen {target}, or name another with --target"
        )
    elif isinstance(error, Unimplemented) and not error.reason:
        message = (
            f"what listens at {target} does not have this call; where AdminService has a listener "
            "of its own (admin_listen), name that with --target"
        )
    elif isinstance(error, Unauthenticated):
        message = f"{message}; give --token-file before the command's name, or --tls-cert"
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
