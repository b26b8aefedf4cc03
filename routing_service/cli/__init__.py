"""The command ``agent-routing``: what people type and what it prints.

Its rule: a failure is one line on stderr that says what to do, with an exit code for scripts, and
never a traceback. A command's module is imported when the command is called; ``app`` has the table.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from routing_service.cli.failure import CommandFailed
from routing_service.cli.lost_interrupts import raise_lost_interrupts


def main() -> None:
    """Run the command line. Exits with 0, 1 (it failed), or 2 (the command line is wrong)."""
    from routing_service.cli.app import app  # noqa: PLC0415 - importing a command imports this file

    raise_lost_interrupts()
    try:
        arguments = _with_profile(sys.argv[1:])
        # However it was started, completion and usage show this name.
        app(arguments, prog_name="agent-routing")
    except CommandFailed as failed:
        failed.show()
        sys.exit(failed.exit_code)


def _with_profile(argv: list[str]) -> list[str]:
    """Return the arguments without --profile, after setting its values in the environment."""
    from routing_service.cli.profiles import FLAG, apply_profile, taken_from  # noqa: PLC0415 - as above

    if not any(argument.startswith(FLAG) for argument in argv):
        return argv
    arguments, name = taken_from(argv)
    if name:
        from routing_service.settings.resolve import OTHER_VARIABLES  # noqa: PLC0415 - for profiles alone
        from routing_service.settings.settings import SETTINGS  # noqa: PLC0415 - as above

        known = OTHER_VARIABLES.union(setting.variable for setting in SETTINGS.values())
        apply_profile(name, os.environ, known, Path.home())
    return arguments
