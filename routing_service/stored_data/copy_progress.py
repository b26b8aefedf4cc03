"""A copy's progress, stored in the target so that a repeat continues from there.

Everything the note lists is in the target. The target may hold more, so a repeat compares before it
writes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from routing_service.storage.checked_store import Store
from routing_service.storage.store import CURSOR_START, OWN_SETTING_PREFIX

PROGRESS_TENANT: Final = f"{OWN_SETTING_PREFIX}copy"
"""The tenant of the setting. It has no sessions, and no copy includes it."""


T = TypeVar("T")


class Progress(msgspec.Struct):
    """The progress of the sessions.

    begun: log is valid. log: the place in the source's log up to which all sessions of the first
    pass so far have been copied. tenant, place: the first pass's place in the source's list of that
    tenant. passed: the first pass is over; the log has the changes since.
    """

    begun: bool = False
    log: bytes = CURSOR_START
    tenant: str = ""
    place: bytes = CURSOR_START
    passed: bool = False


class AuditProgress(msgspec.Struct):
    """The progress of one tenant's audit, as cursors of both stores."""

    source: bytes = CURSOR_START
    target: bytes = CURSOR_START


@dataclass(frozen=True, slots=True)
class ProgressNotes:
    """The notes of the copy from one source into one target."""

    target: Store
    source_name: str
    """The source's URL as it may be shown: it distinguishes several sources of one target."""

    @property
    def _name(self) -> str:
        digest = hashlib.sha256(self.source_name.encode()).hexdigest()[:16]
        return f"{PROGRESS_TENANT}.{digest}"

    async def sessions(self) -> Progress:
        """Read the progress of the sessions; a new note if none can be read."""
        return await self._read(PROGRESS_TENANT, Progress)

    async def audit(self, tenant: str) -> AuditProgress:
        """Read the progress of a tenant's audit."""
        return await self._read(tenant, AuditProgress)

    async def keep(self, progress: Progress) -> None:
        """Write the progress of the sessions."""
        await self.target.put_setting(PROGRESS_TENANT, self._name, msgspec.json.encode(progress))

    async def keep_audit(self, tenant: str, progress: AuditProgress) -> None:
        """Write the progress of a tenant's audit."""
        await self.target.put_setting(tenant, self._name, msgspec.json.encode(progress))

    async def _read(self, tenant: str, form: type[T]) -> T:
        stored = await self.target.get_setting(tenant, self._name)
        if stored is None:
            return form()
        try:
            return msgspec.json.decode(stored, type=form)
        except msgspec.DecodeError:
            # Another release's. Starting again only costs time: existing data is compared.
            return form()
