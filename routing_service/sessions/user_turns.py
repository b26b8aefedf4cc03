"""How many turns of one user are open in inboxes, of those that this process put there.

What other processes have ended since is found out when the user is at the limit, so that no message
pays for it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from routing_service.core.commands import Command, RouteMessage
from routing_service.core.errors import Reason, RoutingError
from routing_service.core.registry import Registry
from routing_service.core.session import SessionState
from routing_service.sessions.inbox_entries import changed_entries
from routing_service.storage.checked_store import Store
from routing_service.storage.queue_entries import APPROVALS_QUEUE, QueueEntry
from routing_service.storage.store import Append, SessionKey

USERS_MAX: Final = 10_000
"""Users that are counted, those with the latest turns: who fills an inbox is among them."""

CHECK_S: Final = 1.0
"""How often the turns of a user at the limit are looked up in the store, at most."""


@dataclass(slots=True)
class _User:
    turns: dict[QueueEntry, None] = field(default_factory=dict)
    """The oldest first."""
    checked_s: float = 0.0


class UserTurns:
    """The open turns of each user. For the event loop's thread only."""

    def __init__(self, store: Store, most: int) -> None:
        """Count none yet. most: 0 = no limit."""
        self._store = store
        self._most = most
        self._users: OrderedDict[tuple[str, str], _User] = OrderedDict()
        self.full: set[tuple[str, str]] = set()
        """Tenants and users that have as many turns as they may, as far as is known here. Seldom
        any: looked at before each decision, so that all other users pay nothing."""

    async def check(
        self,
        key: SessionKey,
        command: Command,
        before: SessionState | None,
        after: SessionState,
        registry: Registry,
    ) -> None:
        """Look up which turns of a user are open, if the user is full and a message adds one.

        Raises TURN_OPEN if there are too many; StoreError.
        """
        name = (key.tenant, after.owner)
        if name not in self.full or not isinstance(command, RouteMessage):
            return
        put, drop = changed_entries(before, after, registry)
        if len(put) <= len(drop):
            return
        user = self._users[name]
        now_s = asyncio.get_running_loop().time()
        if now_s - user.checked_s >= CHECK_S:
            user.checked_s = now_s
            entries = list(user.turns)
            reads = (self._store.find_item(key.tenant, entry) for entry in entries)
            for entry, item in zip(entries, await asyncio.gather(*reads), strict=True):
                if item is None:
                    user.turns.pop(entry, None)
        if len(user.turns) < self._most:
            self.full.discard(name)
            return
        oldest = next(iter(user.turns))
        raise RoutingError(
            Reason.TURN_OPEN,
            f"this user has {self._most} turns that wait for agents, in all of its sessions, which "
            "is the limit (user_turns_max); send the message after an answer to one of them",
            metadata={
                "session_id": key.session_id,
                "request_id": oldest.request_id,
                "agent_id": oldest.queue,
                "limit": "user_turns_max",
                "value": str(self._most),
            },
        )

    def changed(self, append: Append) -> None:
        """Note what a commit of this process has put and dropped."""
        if not self._most or not append.user_id:
            return
        name = (append.key.tenant, append.user_id)
        user = self._users.get(name)
        for entry in append.inbox_drop:
            if user is not None:
                user.turns.pop(entry, None)
        for entry in append.inbox_put:
            if entry.queue != APPROVALS_QUEUE:
                if user is None:
                    user = self._users[name] = _User()
                user.turns[entry] = None
                self._users.move_to_end(name)
        if user is None:
            return
        if len(user.turns) >= self._most:
            self.full.add(name)
        else:
            self.full.discard(name)
        if not user.turns:
            del self._users[name]
        elif len(self._users) > USERS_MAX:
            self.full.discard(self._users.popitem(last=False)[0])
