"""One process per file: a lock that the operating system releases when the process dies.

The lock belongs to the open descriptor, so kill -9 frees it and no stale lock ever has to be
removed by hand. The lock file itself stays, because removing it would let two processes lock two
files of one name.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

_OWNER_BYTES_MAX: Final = 32
"""A process id in decimal, and no more than that is ever read of the file."""

_LOCKED_AT: Final = 1 << 30
"""Where Windows locks its one byte: behind the owner's id, which others must be able to read."""


class FileLockedError(Exception):
    """Another process has the lock; owner is its process id as text, "" where unknown."""

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self.owner = owner


class FileLock:
    """An exclusive lock on one file, held from its making until ``release``."""

    def __init__(self, path: Path) -> None:
        """Take the lock without waiting. Raises FileLockedError, and OSError as open does."""
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock(self._descriptor)
        except OSError as error:
            owner = b""
            with suppress(OSError):
                owner = os.read(self._descriptor, _OWNER_BYTES_MAX)
            os.close(self._descriptor)
            raise FileLockedError(owner.decode("ascii", "replace").strip()) from error
        # For the message of a process that is refused; the lock does not depend on it.
        with suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.write(self._descriptor, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Release the lock by closing its descriptor."""
        os.close(self._descriptor)


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        os.lseek(descriptor, _LOCKED_AT, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
