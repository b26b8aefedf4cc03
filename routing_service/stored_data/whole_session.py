"""One session as a whole: its changes, tasks and head, all at one revision.

A revision's data stays valid while others write, so only the newer changes of a session that has
grown are read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from routing_service.storage.checked_store import Store
from routing_service.storage.store import TASKS_START, Change, Head, SessionKey, SessionRow, TaskRow

CHANGES_PER_READ: Final = 32
"""Changes in one page: with the largest ones it is 10 MB."""

TASKS_PER_READ: Final = 32
"""Tasks in one page, bounded as the changes are."""

SESSIONS_PER_READ: Final = 500
"""Rows of a list of sessions, tenants or settings in one page; they are small."""

SETTLE_ATTEMPTS_MAX: Final = 100
"""Reads of a session that is being written. It changes between two reads only if a caller writes
to it in those few milliseconds, so a hundred in a row mean that it never rests."""


class SessionBusy(Exception):
    """A session was written to during every read; try again later."""

    def __init__(self, key: SessionKey) -> None:
        super().__init__(
            f'session "{key}" is written to all the time; try again when it is quieter'
        )
        self.key = key


async def settled_head(store: Store, key: SessionKey) -> tuple[SessionRow, Head] | None:
    """Read a session's row and head at the same revision; None = no such session.

    Raises SessionBusy.
    """
    for _ in range(SETTLE_ATTEMPTS_MAX):
        row = await store.find_session(key)
        head = await store.load(key)
        if row is None or head is None:
            # Deleted or made between the two: the next read decides.
            if row is None and head is None:
                return None
            continue
        if row.revision == head.revision:
            return row, head
    raise SessionBusy(key)


async def pages_of_changes(
    store: Store, key: SessionKey, *, after: int, upto: int
) -> AsyncIterator[list[Change]]:
    """Read the changes with after < revision <= upto in pages."""
    while after < upto:
        page = await store.read_changes(key, after=after, before=upto + 1, limit=CHANGES_PER_READ)
        if not page:
            return
        after = page[-1].revision
        yield page


async def tasks_of(store: Store, key: SessionKey) -> AsyncIterator[TaskRow]:
    """Read all tasks of a session in their order."""
    place = TASKS_START
    while page := await store.list_tasks(key, after=place, limit=TASKS_PER_READ):
        for task in page:
            yield task
        place = page[-1].cursor


async def tenants_of(store: Store) -> AsyncIterator[str]:
    """Read the names of all tenants in their order."""
    after = ""
    while page := await store.list_tenants(after, SESSIONS_PER_READ):
        for name in page:
            yield name
        after = page[-1]


async def settings_of(store: Store, tenant: str) -> AsyncIterator[tuple[str, bytes]]:
    """Read a tenant's settings in the order of their names."""
    after = ""
    while page := await store.list_settings(tenant, after, SESSIONS_PER_READ):
        for setting in page:
            yield setting
        after = page[-1][0]
