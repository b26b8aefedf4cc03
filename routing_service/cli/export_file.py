"""Writing an export to a file.

Its rule: it is written to a temporary file next to its destination, readable by its owner alone,
and renamed at the end, so that a file with the export's name is always complete.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from google.protobuf.message import Message

from routing_service.cli.failure import EXIT_USAGE, CommandFailed
from routing_service.cli.screen import json_line
from routing_service.storage.sqlite.file_lock import make_private


def write_export(parts: Iterable[Message], output: Path | None) -> None:
    """Write each part as a line. output None: to stdout, each as it comes."""
    count = write_lines(map(json_line, parts), output)
    if output is not None:
        sys.stderr.write(f"{count} parts in {output}\n")


def write_lines(lines: Iterable[str], output: Path | None) -> int:
    """Write lines to stdout as they come, or to a new file; return how many.

    Raises CommandFailed if the file exists or cannot be written.
    """
    count = 0
    if output is None:
        for count, line in enumerate(lines, 1):  # noqa: B007 - returned below
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        return count
    # A dangling symbolic link counts: an export replaces nothing.
    if os.path.lexists(output):
        raise CommandFailed(
            f'"{output}" exists already; remove it, or name another file', exit_code=EXIT_USAGE
        )
    unfinished = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        # It contains users' messages: no other user of this machine may read it.
        make_private(unfinished, exclusive=True)
        with unfinished.open("r+", encoding="utf-8") as file:
            for count, line in enumerate(lines, 1):  # noqa: B007 - returned below
                file.write(f"{line}\n")
        unfinished.replace(output)
    except OSError as error:
        raise CommandFailed(f'cannot write "{output}": {error.strerror or error}') from error
    finally:
        unfinished.unlink(missing_ok=True)
    return count
