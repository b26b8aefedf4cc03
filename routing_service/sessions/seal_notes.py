"""The last seal of each tenant, noted outside the store: in memory, and in a file if there is one.

Rule: a note that the store does not bear out stays as it is, until an operator removes its line.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec
import structlog

from routing_service.stored_data.noted_seals import NotASeal, NotedSeal, seals_in

_log = structlog.get_logger(__name__)


class SealNotes:
    """The last seals that this server knows of. Processes of one machine may share the file."""

    def __init__(self, path: Path | None = None) -> None:
        """Read the file, or make it. Raises OSError, NotASeal."""
        self._path = path
        self._notes: dict[str, NotedSeal] = {}
        self._is_changed = False
        if path is not None:
            self._notes = _read(path)
            _write(path, self._notes)

    @property
    def tenants(self) -> Collection[str]:
        """The tenants with a note."""
        return tuple(self._notes)

    def of(self, tenant: str) -> NotedSeal | None:
        """Return a tenant's note; None = it has none."""
        return self._notes.get(tenant)

    def note(self, tenant: str, n: int, link: bytes) -> None:
        """Note a tenant's last seal, unless the store lacks the one before."""
        before = self._notes.get(tenant)
        if before is None or not before.missing_us:
            self._put(NotedSeal(tenant, n, link.hex()))

    def miss(self, tenant: str, now_us: int) -> None:
        """Keep a tenant's note from now on, since the store lacks the seal."""
        self._put(msgspec.structs.replace(self._notes[tenant], missing_us=now_us))

    def find(self, tenant: str) -> None:
        """Go on from a tenant's note: the store has the seal."""
        self._put(msgspec.structs.replace(self._notes[tenant], missing_us=0))

    def _put(self, note: NotedSeal) -> None:
        self._is_changed = self._is_changed or self._notes.get(note.tenant) != note
        self._notes[note.tenant] = note

    async def store(self) -> None:
        """Write what has changed to the file. An error is logged: sealing goes on."""
        if self._path is None or not self._is_changed:
            return
        try:
            self._merge(await asyncio.to_thread(_read, self._path))
            self._is_changed = False
            await asyncio.to_thread(_write, self._path, dict(self._notes))
        except (OSError, NotASeal) as error:
            self._is_changed = True
            _log.error("audit_seals_not_noted", file=str(self._path), error=str(error))

    def _merge(self, stored: Mapping[str, NotedSeal]) -> None:
        """Take what other processes have noted, and forget the lines that an operator removed."""
        for tenant, note in list(self._notes.items()):
            if note.missing_us and tenant not in stored:
                del self._notes[tenant]
        for tenant, note in stored.items():
            own = self._notes.get(tenant)
            if own is None or (note.seal > own.seal and not own.missing_us):
                self._notes[tenant] = note


def _read(path: Path) -> dict[str, NotedSeal]:
    if not path.exists():
        return {}
    return {note.tenant: note for note in seals_in(path.read_bytes().splitlines())}


def _write(path: Path, notes: Mapping[str, NotedSeal]) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}")
    with open(new, "wb", opener=_private) as file:
        file.writelines(msgspec.json.encode(note) + b"\n" for note in notes.values())
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)
