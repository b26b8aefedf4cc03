"""Entries of the audit that leave no revision: refusals, switches, purges and operators' acts.

Rule: an entry names users by a pseudonym, or its user goes with an erasure.

Each entry is chained to another one of its tenant. Entries that are written at the same time are in
different chains, so that none waits for another.
"""

from __future__ import annotations

import secrets
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from routing_service.core.erased_owner import SALT_BYTES, is_owner, owner_hash
from routing_service.ids import new_uuid7
from routing_service.storage.audit_chain import (
    EntryChain,
    entry_digest,
    entry_free,
    entry_hash,
    new_salt,
)
from routing_service.storage.checked_store import Store
from routing_service.storage.store import AuditEntry, SessionKey

OPERATOR_ACT: Final = "operator_act"
"""The kind of the entries of operators' acts that belong to no session."""

SESSION_PURGED: Final = "session_purged"
"""The kind of the entry that a purge leaves."""

NO_SESSION: Final = "\x1facts"
"""The session of entries that belong to none: no session has such a name."""

USER_TARGET: Final = "user "
"""How the target of an act begins that was about one user; the user's pseudonym follows."""


TENANTS_MAX: Final = 1_000
"""Tenants whose chains go on: those of the least recently used begin again."""


@dataclass(frozen=True, slots=True)
class Operator:
    """Who acts for the service. tenant: in whose audit acts for all tenants are recorded.

    subject: who signed in, "" without sign-in. trace_id: of the call, "" = it has none.
    """

    tenant: str
    subject: str = ""
    trace_id: str = ""


class AuditLog:
    """Writes audit entries to one store."""

    def __init__(self, store: Store, clock_us: Callable[[], int]) -> None:
        """Write nothing yet. clock_us: microseconds since 1970."""
        self._store = store
        self._clock_us = clock_us
        self._idle: OrderedDict[str, list[EntryChain]] = OrderedDict()
        """The chains of each tenant to which nothing is being added."""
        self.grown: set[str] = set()
        """Tenants that got entries. The sealer takes them from here."""

    def now_us(self) -> int:
        """Return the time of an entry, microseconds since 1970."""
        return self._clock_us()

    async def add(self, entry: AuditEntry) -> None:
        """Store an entry whose data is a JSON object, chained. Raises StoreError."""
        idle = self._idle.setdefault(entry.tenant, [])
        self._idle.move_to_end(entry.tenant)
        if len(self._idle) > TENANTS_MAX:
            self._idle.popitem(last=False)
        place = idle.pop() if idle else EntryChain(new_uuid7(), 1)
        data = {
            **msgspec.json.decode(entry.data),
            "chain": place,
            "salt": b64encode(new_salt()).decode(),
        }
        entry = msgspec.structs.replace(entry, data=msgspec.json.encode(data))
        # If this fails, it may have been written all the same: then this chain ends with it.
        try:
            await self._store.append_audit(entry)
        finally:
            self.grown.add(entry.tenant)
        link = entry_hash(entry, entry_free(entry.kind, entry.data), entry_digest(entry))
        idle.append(EntryChain(place.w, place.n + 1, link))

    async def act(
        self, operator: Operator, tenant: str, method: str, *, reason: str, target: str
    ) -> None:
        """Record an operator's act that belongs to no session. Raises StoreError.

        tenant: the tenant that it was about.
        """
        data = {"method": method, "reason": reason, "target": target}
        await self.note(operator, SessionKey(tenant, NO_SESSION), OPERATOR_ACT, data)

    async def note(
        self,
        operator: Operator,
        key: SessionKey,
        kind: str,
        data: Mapping[str, str],
        *,
        at: int = 0,
    ) -> None:
        """Store what an operator did. at: the session's revision. Raises StoreError."""
        by = {"by": operator.subject, "trace_id": operator.trace_id}
        await self.add(
            AuditEntry(
                time_us=self._clock_us(),
                tenant=key.tenant,
                session_id=key.session_id,
                revision=at,
                kind=kind,
                request_id="",
                user_id="",
                data=msgspec.json.encode({name: v for name, v in {**data, **by}.items() if v}),
            )
        )


def user_target(user_id: str) -> str:
    """Return the target of an act about a user: a pseudonym, another one each time."""
    return USER_TARGET + owner_hash(secrets.token_bytes(SALT_BYTES), NO_SESSION, user_id)


def is_about(target: str, user_id: str) -> bool:
    """Say whether an act was about a user. target: as user_target made it."""
    if not target.startswith(USER_TARGET):
        return False
    return is_owner(target.removeprefix(USER_TARGET), NO_SESSION, user_id)
