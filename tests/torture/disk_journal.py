"""Which parts of SQLite's files are on disk, without the operating system's cache.

Owns a journal of every write, truncation and sync that SQLite asks for (``record``, in the process
that is to be killed), and the files as a disk may have them after the power failed
(``after_power_failure``, in the process that checks afterwards). Synced writes are always there; of
the others, any part may be, in any order, torn anywhere.

How: SQLite reaches the disk through a table of functions, its VFS. The journal is a VFS that passes
everything on to SQLite's own and notes a write before it happens and a sync after it has returned.
It is made with ctypes, so it needs a Python whose sqlite3 module uses a shared libsqlite3;
``is_possible`` says whether there is one. Not modelled: loss of a file's name (SQLite syncs the
folder), a disk that lies about a sync.
"""

from __future__ import annotations

import ctypes
import os
import random
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

LIBRARY: Final = "libsqlite3.so.0"
SECTOR_BYTES: Final = 512
"""A write may be cut where a sector ends."""

WRITE, TRUNCATE, SYNC, DELETE = range(4)

_HEADER: Final = struct.Struct("<BHqI")
"""What was done, bytes of the name, offset or size, bytes of the data."""

_Call = ctypes.CFUNCTYPE
_File = ctypes.c_void_p
_XClose = _Call(ctypes.c_int, _File)
_XWrite = _Call(ctypes.c_int, _File, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64)
_XTruncate = _Call(ctypes.c_int, _File, ctypes.c_int64)
_XSync = _Call(ctypes.c_int, _File, ctypes.c_int)
_XOpen = _Call(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, _File, ctypes.c_int, ctypes.c_void_p)
_XDelete = _Call(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int)


class _IoMethods(ctypes.Structure):
    """sqlite3_io_methods. Methods that are only passed on are plain pointers."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("close", ctypes.c_void_p),
        ("read", ctypes.c_void_p),
        ("write", ctypes.c_void_p),
        ("truncate", ctypes.c_void_p),
        ("sync", ctypes.c_void_p),
        ("others", ctypes.c_void_p * 13),
    )


class _Vfs(ctypes.Structure):
    """sqlite3_vfs, version 3."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("file_bytes", ctypes.c_int),
        ("path_max", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("open", ctypes.c_void_p),
        ("delete", ctypes.c_void_p),
        ("others", ctypes.c_void_p * 14),
    )


def is_possible() -> bool:
    """Say whether this Python's sqlite3 uses a shared library that can be found."""
    import sqlite3  # noqa: PLC0415 - it must be in the process for the next lines

    try:
        library = ctypes.CDLL(LIBRARY, mode=os.RTLD_NOLOAD)
    except OSError:
        return False
    library.sqlite3_libversion.restype = ctypes.c_char_p
    return bool(library.sqlite3_libversion().decode() == sqlite3.sqlite_version)


def record(path: Path) -> None:
    """Journal SQLite's file operations in this process from now on. This cannot be undone."""
    _Recording(path).install()


class _Recording:
    """The VFS. There is one per process, kept forever: SQLite holds pointers into it."""

    kept: _Recording | None = None

    def __init__(self, path: Path) -> None:
        # Each record is one write(2), so that it survives a SIGKILL.
        self.journal = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        library = ctypes.CDLL(LIBRARY)
        library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
        library.sqlite3_vfs_register.argtypes = (ctypes.POINTER(_Vfs), ctypes.c_int)
        self.library = library
        self.real = library.sqlite3_vfs_find(None)
        self.names: dict[int, bytes] = {}
        self.methods: dict[int, tuple[_IoMethods, _IoMethods, tuple[Any, ...]]] = {}
        self.callbacks = (_XOpen(self.open), _XDelete(self.delete))
        self.vfs = _Vfs()

    def install(self) -> None:
        """Become the default VFS."""
        ctypes.memmove(ctypes.byref(self.vfs), self.real, ctypes.sizeof(_Vfs))
        self.vfs.name = b"journalled"
        self.vfs.next = None
        self.vfs.open, self.vfs.delete = (
            ctypes.cast(call, ctypes.c_void_p).value for call in self.callbacks
        )
        assert self.library.sqlite3_vfs_register(ctypes.byref(self.vfs), 1) == 0
        _Recording.kept = self

    def note(self, what: int, name: bytes, place: int = 0, data: bytes = b"") -> None:
        os.write(self.journal, _HEADER.pack(what, len(name), place, len(data)) + name + data)

    def open(self, _vfs: int, name: int, file: int, flags: int, flags_out: int) -> int:
        """XOpen: open as SQLite does, then insert our methods."""
        real = self.real.contents
        code = _XOpen(real.open)(
            ctypes.cast(self.real, ctypes.c_void_p).value, name, file, flags, flags_out
        )
        pointer = ctypes.cast(file, ctypes.POINTER(ctypes.c_void_p))
        if code == 0 and name and pointer[0]:
            self.names[file] = Path(os.fsdecode(ctypes.string_at(name))).name.encode()
            pointer[0] = ctypes.addressof(self.ours(pointer[0]))
        return int(code)

    def ours(self, address: int) -> _IoMethods:
        """Return our methods around those at an address; one for each kind of file SQLite has."""
        if address not in self.methods:
            real = ctypes.cast(address, ctypes.POINTER(_IoMethods)).contents
            calls = (
                _XWrite(lambda *args: self.write(real, *args)),
                _XTruncate(lambda *args: self.truncate(real, *args)),
                _XSync(lambda *args: self.sync(real, *args)),
            )
            made = _IoMethods()
            ctypes.memmove(ctypes.byref(made), address, ctypes.sizeof(_IoMethods))
            made.write, made.truncate, made.sync = (
                ctypes.cast(call, ctypes.c_void_p).value for call in calls
            )
            self.methods[address] = (made, real, calls)
        return self.methods[address][0]

    def write(self, real: _IoMethods, file: int, data: int, size: int, offset: int) -> int:
        """XWrite: record it, then do it."""
        self.note(WRITE, self.names[file], offset, ctypes.string_at(data, size))
        return int(_XWrite(real.write)(file, data, size, offset))

    def truncate(self, real: _IoMethods, file: int, size: int) -> int:
        """XTruncate: record it, then do it."""
        self.note(TRUNCATE, self.names[file], size)
        return int(_XTruncate(real.truncate)(file, size))

    def sync(self, real: _IoMethods, file: int, flags: int) -> int:
        """XSync: do it, then record it."""
        code = int(_XSync(real.sync)(file, flags))
        if code == 0:
            self.note(SYNC, self.names[file])
        return code

    def delete(self, _vfs: int, name: bytes, sync_folder: int) -> int:
        """XDelete: do it, then record it."""
        real = ctypes.cast(self.real, ctypes.c_void_p).value
        code = int(_XDelete(self.real.contents.delete)(real, name, sync_folder))
        if code == 0:
            self.note(DELETE, Path(os.fsdecode(name)).name.encode())
        return code


@dataclass(slots=True)
class _OnDisk:
    """A file: its content that is certainly on disk, and the writes since the last sync."""

    content: bytearray
    unsynced: list[tuple[int, int, bytes]] = field(default_factory=list)

    def apply(self, what: int, place: int, data: bytes) -> None:
        if what == TRUNCATE:
            del self.content[place:]
            return
        if len(self.content) < place:
            self.content.extend(bytes(place - len(self.content)))
        self.content[place : place + len(data)] = data

    def synced(self) -> None:
        for change in self.unsynced:
            self.apply(*change)
        self.unsynced.clear()

    def power_failed(self, dice: random.Random) -> None:
        """Keep a random part of the unsynced writes, often none."""
        kept_share = dice.choice([0.0, 0.0, 0.5, 0.9])
        for what, place, data in self.unsynced:
            if dice.random() >= kept_share:
                continue
            cut = len(data)
            if what == WRITE and dice.random() < 0.3:
                cut = dice.randrange(0, len(data) + 1, SECTOR_BYTES)
            self.apply(what, place, data[:cut])
        self.unsynced.clear()


@dataclass(frozen=True, slots=True)
class PowerFailure:
    """The result of a power failure. unsynced: the number of writes that were not synced."""

    syncs: int
    unsynced: int


def after_power_failure(
    journal: Path, before: dict[str, bytes], folder: Path, dice: random.Random
) -> PowerFailure:
    """Write the files to folder as a disk may have them, and begin a new journal.

    before: the synced files at the journal's beginning, by name.
    """
    files = {name: _OnDisk(bytearray(content)) for name, content in before.items()}
    syncs = 0
    for what, name, place, data in _read(journal):
        if what == DELETE:
            files.pop(name, None)
            continue
        file = files.setdefault(name, _OnDisk(bytearray()))
        if what == SYNC:
            file.synced()
            syncs += 1
        else:
            file.unsynced.append((what, place, data))
    unsynced = sum(len(file.unsynced) for file in files.values())
    for path in folder.iterdir():
        if path.name in files or path.name.endswith("-shm"):
            path.unlink()  # The log's index is rebuilt from the log.
    for name, file in files.items():
        file.power_failed(dice)
        (folder / name).write_bytes(file.content)
    journal.unlink()
    return PowerFailure(syncs, unsynced)


def _read(journal: Path) -> list[tuple[int, str, int, bytes]]:
    """Read a journal; an incomplete last record had no effect."""
    content = journal.read_bytes()
    found, place = [], 0
    while place + _HEADER.size <= len(content):
        what, name_bytes, where, data_bytes = _HEADER.unpack_from(content, place)
        begin = place + _HEADER.size
        place = begin + name_bytes + data_bytes
        if place > len(content):
            break
        name = content[begin : begin + name_bytes].decode()
        found.append((what, name, where, content[begin + name_bytes : place]))
    return found
