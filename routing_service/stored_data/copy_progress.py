"""A copy's progress, stored in the target so that a repeat continues from there.

Everything the note lists is in the target. The target may hold more, so a repeat compares before it
writes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from routing_service.storage.store import CURSOR_START, OWN_SETTING_PREFIX, Store

PROGRESS_TENANT: Final = f"{OWN_SETTING_PREFIX}copy"
"""Whose setting it is. No sessions are kept under this name, and no copy takes it along."""


T = TypeVar("T")


class Progress(msgspec.Struct):
    """How far the sessions have come.

    begun: log is good. log: the source's log up to where every session that is behind us has been
    copied. tenant, place: how far the first pass is, as a place in the source's list of that
    tenant.
    passed: the first pass is over; the log tells what has changed since.
    """

    begun: bool = False
    log: bytes = CURSOR_START
    tenant: str = ""
    place: bytes = CURSOR_START
    passed: bool = False


class AuditProgress(msgspec.Struct):
    """How far the audit of one tenant has come, by the cursors of both stores."""

    source: bytes = CURSOR_START
    target: bytes = CURSOR_START


@dataclass(frozen=True, slots=True)
class ProgressNotes:
    """The notes of the copy from one source into one target."""

    target: Store
    source_name: str
    """The source's URL as it may be shown: it tells several sources of one target apart."""

    @property
    def _name(self) -> str:
        digest = hashlib.sha256(self.source_name.encode()).hexdigest()[:16]
        return f"{PROGRESS_TENANT}.{digest}"

    async def sessions(self) -> Progress:
        """Read how far the sessions are; a new note where there is none that can be read."""
        return await self._read(PROGRESS_TENANT, Progress)

    async def audit(self, tenant: str) -> AuditProgress:
        """Read how far a tenant's audit is."""
        return await self._read(tenant, AuditProgress)

    async def keep(self, progress: Progress) -> None:
        """Write how far the sessions are."""
        await self.target.put_setting(PROGRESS_TENANT, self._name, msgspec.json.encode(progress))

    async def keep_audit(self, tenant: str, progress: AuditProgress) -> None:
        """Write how far a tenant's audit is."""
        await self.target.put_setting(tenant, self._name, msgspec.json.encode(progress))

    async def _read(self, tenant: str, form: type[T]) -> T:
        stored = await self.target.get_setting(tenant, self._name)
        if stored is None:
            return form()
        try:
            return msgspec.json.decode(stored, type=form)
        except msgspec.DecodeError:
            # Another release's. Starting again only costs time: what is there is compared.
            return form()
