"""Replacing the registry file by another text, with the text until now kept next to it.

Rule: at every moment the file is there and whole, the old or the new one, and no text is lost.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

KEPT_MAX: Final = 10
"""Earlier files that are kept. More of them are one operator's mistakes of a day; older ones are
removed, so that the folder does not grow."""

_KEPT: Final = re.compile(r"[0-9]{8}T[0-9]{12}Z")
"""The time in the name of an earlier file, to the microsecond: NAME.TIME.previous."""


class FileReadOnly(Exception):
    """The process may not replace the file. The message says why."""


@dataclass(frozen=True, slots=True)
class KeptFile:
    """The file until now. name: in the folder of the file that was replaced."""

    path: Path
    name: str

    def restore(self) -> None:
        """Put it back in its place."""
        (self.path.parent / self.name).replace(self.path)


def why_read_only(path: Path) -> str:
    """Say why a file cannot be replaced, "" if the process may."""
    if path.is_symlink():
        return "it is a link, as files of a ConfigMap are"
    if not path.is_file():
        return "it is not a regular file"
    if not os.access(path, os.W_OK):
        return "the server may not write it"
    if not os.access(path.parent, os.W_OK | os.X_OK):
        return "the server may not write its folder"
    return ""


def replace_file(path: Path, text: str) -> KeptFile:
    """Replace a file and keep the one until now. Raises FileReadOnly; then nothing has changed."""
    if reason := why_read_only(path):
        raise FileReadOnly(reason)
    time = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%fZ")
    kept = path.with_name(f"{path.name}.{time}.previous")
    fresh = path.with_name(f".{path.name}.{time}.new")
    try:
        _write(fresh, text, like=path)
        _keep(path, kept)
        fresh.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        if kept.exists():
            with suppress(OSError):
                kept.unlink()
        # A file that is mounted by itself can be written, and not replaced.
        raise FileReadOnly(error.strerror or type(error).__name__) from error
    _remove_oldest(path)
    return KeptFile(path, kept.name)


def _write(fresh: Path, text: str, like: Path) -> None:
    """Write a new file to the disk, with the permissions of another one."""
    mode = like.stat().st_mode & 0o7777
    with open(fresh, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text.encode())
        if hasattr(os, "fchmod"):  # Not on Windows.
            os.fchmod(file.fileno(), mode)
        file.flush()
        os.fsync(file.fileno())


def _keep(path: Path, kept: Path) -> None:
    try:
        # The file stays in its place meanwhile.
        kept.hardlink_to(path)
    except OSError:  # Not every file system has links.
        shutil.copy2(path, kept)


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_oldest(path: Path) -> None:
    """Remove earlier files beyond KEPT_MAX. One that cannot be removed stays."""
    start, end = f"{path.name}.", ".previous"
    found = [
        each
        for each in path.parent.iterdir()
        if each.name.startswith(start)
        and each.name.endswith(end)
        and _KEPT.fullmatch(each.name[len(start) : -len(end)])
    ]
    for each in sorted(found)[:-KEPT_MAX]:
        with suppress(OSError):
            each.unlink()
