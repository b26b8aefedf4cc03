"""The command ``agent-routing``.

Owns what people type and what they see of it. It must not know how anything is done: each command
asks the server, the registry's reader or the replay. Its rule: a failure is one line on stderr that
says what to do, with an exit code that scripts can tell apart, and never a traceback.

A command's module holds its options alone at the top; what it needs to run is imported when it
runs, so that help and completion cost no more than they must.
"""

from __future__ import annotations

import sys

from routing_service.cli.failure import CommandFailed


def main() -> None:
    """Run the command line. Exits with 0, 1 (it failed), or 2 (it was asked wrongly)."""
    from routing_service.cli.app import app  # noqa: PLC0415 - failures to import it are told below

    try:
        # However it was started: completion and usage go by the name.
        app(prog_name="agent-routing")
    except CommandFailed as failed:
        failed.show()
        sys.exit(failed.exit_code)
