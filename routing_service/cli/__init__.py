"""The command ``agent-routing``.

Owns what people type and what they see of it. It must not know how anything is done: each command
asks the server, the registry's reader or the replay. Its rule: a failure is one line on stderr that
says what to do, with an exit code that scripts can tell apart, and never a traceback.

A command's module holds its options alone at the top; what it needs to run is imported when it
runs, so that help and completion cost no more than they must.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from routing_service.cli.failure import CommandFailed


def main() -> None:
    """Run the command line. Exits with 0, 1 (it failed), or 2 (it was asked wrongly)."""
    from routing_service.cli.app import app  # noqa: PLC0415 - failures to import it are told below

    try:
        words = _with_profile(sys.argv[1:])
        # However it was started: completion and usage go by the name.
        app(words, prog_name="agent-routing")
    except CommandFailed as failed:
        failed.show()
        sys.exit(failed.exit_code)


def _with_profile(argv: list[str]) -> list[str]:
    """Return the words without --profile, whose values are in the environment from here on."""
    from routing_service.cli.profiles import FLAG, apply_profile, taken_from  # noqa: PLC0415 - cheap

    if not any(word.startswith(FLAG) for word in argv):
        return argv
    words, name = taken_from(argv)
    if name:
        from routing_service.settings.resolve import OTHER_VARIABLES  # noqa: PLC0415 - as above
        from routing_service.settings.settings import SETTINGS  # noqa: PLC0415 - as above

        known = OTHER_VARIABLES.union(setting.variable for setting in SETTINGS.values())
        apply_profile(name, os.environ, known, Path.home())
    return words
