"""What a store keeps of work that waits: entries of queues, and the leases on them.

An entry is a hint that a session has work in a queue; the session's state says whether it has.
Appends put and drop entries in the same write, so a hint is missing only if something else lost it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from routing_service.core.session import SessionState
from routing_service.core.strand_fold import parked_views

APPEND_ENTRIES_MAX: Final = 20
"""Entries that one append may put and drop. Each task of a session, eight of them parked, has one
live turn or one approval: a change of all drops nine and puts nine. Each entry is one of the 100
actions of DynamoDB's transactions."""

APPROVALS_QUEUE: Final = "!approvals"
"""The queue of decisions that wait. No agent has a name with "!", so no inbox reaches it."""


class QueueEntry(NamedTuple):
    """One entry of a tenant's queue. Entries are in the order of place_us, session and request."""

    queue: str
    """The agent whose inbox it is, or a name with "!"."""
    place_us: int
    """When the work was given, microseconds since 1970."""
    session_id: str
    request_id: str


def approval_entry(state: SessionState | None) -> QueueEntry | None:
    """Return the entry of the decision that the foreground waits for; None = for none."""
    paused = state.paused if state is not None else None
    if state is None or paused is None:
        return None
    place_us = paused.dispatched_us
    return QueueEntry(APPROVALS_QUEUE, place_us, state.session_id, paused.request_id)


def approval_entries(state: SessionState | None) -> tuple[QueueEntry, ...]:
    """Return the entries of all decisions that a session waits for, of parked tasks too."""
    if state is None or (state.paused is None and state.apart is None):
        return ()
    views = (state, *(seen for _, seen in parked_views(state)))
    return tuple(entry for view in views if (entry := approval_entry(view)) is not None)


class QueueItem(msgspec.Struct, frozen=True):
    """An entry with its lease, as the store has it at the moment of reading."""

    entry: QueueEntry
    token: str = ""
    """Names the lease; "" = it was never leased, or was given back."""
    worker: str = ""
    left_us: int = 0
    """What is left of the lease by the engine's clock; 0 or less = it has lapsed."""
    attempt: int = 0
    """Leases of the entry so far, without those that were given back."""

    @property
    def is_free(self) -> bool:
        """Whether it may be leased now."""
        return not self.token or self.left_us <= 0


class LeaseWish(NamedTuple):
    """A change of an entry's lease.

    held: the lease that has to stand for it; "" = none has, or it has lapsed. token: names the
    lease afterwards. lease_us: how long it runs from now by the engine's clock; 0 gives it back.
    """

    held: str
    token: str
    worker: str
    lease_us: int


def leased(item: QueueItem, wish: LeaseWish) -> QueueItem | None:
    """Return an item after a wish was granted; None = another lease is in its way."""
    if not (item.token == wish.held if wish.held else item.is_free):
        return None
    if wish.lease_us <= 0:
        return QueueItem(item.entry, attempt=max(0, item.attempt - 1))
    attempt = item.attempt if wish.held else item.attempt + 1
    return QueueItem(item.entry, wish.token, wish.worker, wish.lease_us, attempt)
