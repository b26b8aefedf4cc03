"""One process per store file, and no other user: its lock and its permissions.

The operating system releases the lock when the process dies: it belongs to the open descriptor, so
kill -9 frees it and no stale lock ever has to be removed by hand. The lock file itself stays,
because removing it would let two processes lock two files of one name.
"""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

_OWNER_BYTES_MAX: Final = 32
"""A process id in decimal, and no more than that is ever read of the file."""

_LOCKED_AT: Final = 1 << 30
"""Where Windows locks its one byte: behind the owner's id, which others must be able to read."""


PRIVATE: Final = 0o600
"""The permissions of the store's files, backups and exports, whatever the umask."""

_NOFOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
"""Windows has no such flag, and lets no ordinary user make symbolic links."""


class FileLockedError(Exception):
    """Another process has the lock; owner is its process id as text, "" where unknown."""

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self.owner = owner


class FileLock:
    """An exclusive lock on one file, held from its making until ``release``."""

    def __init__(self, path: Path) -> None:
        """Take the lock without waiting. Raises FileLockedError, and OSError as open does."""
        make_private(path)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _NOFOLLOW, PRIVATE)
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


class StoreFileLock:
    """The lock of a store's file, by its name and by its device and inode.

    The lock file next to the store has its name. The same file can have a second name (a hard
    link) with a lock file of its own: so the file itself is locked too.
    """

    def __init__(self, path: Path, *, make: bool) -> None:
        """Take the lock without waiting. path: no symbolic link. make: make the file if missing.

        Raises FileLockedError, and OSError as open does.
        """
        self._by_name = FileLock(path.with_name(f"{path.name}.lock"))
        self._inode: int | None = None
        try:
            if make:
                make_private(path)
            if path.is_file():
                self._inode = _lock_inode(path)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release the lock, once no connection to the file is open any more.

        SQLite's own locks of a file end when any descriptor of it is closed.
        """
        if self._inode is not None:
            os.close(self._inode)
            self._inode = None
        self._by_name.release()


def make_private(path: Path, *, exclusive: bool = False) -> None:
    """Make a file that only its owner can read and write; leave an existing one as it is.

    exclusive: raise FileExistsError for an existing one. A symbolic link is never followed.
    """
    try:
        made = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NOFOLLOW, PRIVATE)
    except FileExistsError:
        if exclusive:
            raise
        return
    try:
        if sys.platform != "win32":
            os.fchmod(made, PRIVATE)  # The umask may have taken the owner's own rights.
    finally:
        os.close(made)


def is_open_to_others(path: Path) -> bool:
    """Whether other users of this machine may read or write a file."""
    return sys.platform != "win32" and bool(stat.S_IMODE(path.stat().st_mode) & 0o077)


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


if sys.platform == "linux":

    def _lock_inode(path: Path) -> int | None:
        # flock() and SQLite's own locks (fcntl) do not see each other on Linux.
        descriptor = os.open(path, os.O_RDWR | _NOFOLLOW)
        try:
            _lock(descriptor)
        except OSError as error:
            os.close(descriptor)
            raise FileLockedError("") from error
        return descriptor

else:

    def _lock_inode(path: Path) -> int | None:
        # Elsewhere flock() and SQLite's locks may exclude each other: a second name is refused.
        if path.stat().st_nlink > 1:
            raise FileLockedError("")
        return None
