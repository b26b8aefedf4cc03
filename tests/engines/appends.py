"""Appends for the tests of one engine: every field set, relevant ones given by name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from routing_service.storage.store import Append, AuditEntry, Change, SessionKey, TaskRow


def key(number: int = 0, tenant: str = "acme") -> SessionKey:
    """Return the key of one of many sessions."""
    return SessionKey(tenant, f"chat-{number:04}")


def append(
    number: int = 0,
    base: int = 0,
    *,
    tenant: str = "acme",
    request_id: str | None = None,
    events: bytes = b"events",
    state: bytes | None = None,
    tasks: tuple[TaskRow, ...] = (),
) -> Append:
    """Make the change of a session that follows ``base``."""
    name = f"request-{base + 1}" if request_id is None else request_id
    change = Change(base + 1, 1_000 + base, "Route", name, "", b"print", events, b"answer")
    told = b"state %d" % (base + 1) if state is None else state
    return Append(key(number, tenant), base, change, told, "ana", tasks)


def task(number: int, task_id: str = "task-1", *, data: bytes = b"data") -> TaskRow:
    """Make a task of one of many sessions."""
    return TaskRow(task_id, key(number).session_id, "ana", "running", 1_000, 2_000, None, data)


def audit(number: int = 0, *, data: bytes = b"why") -> AuditEntry:
    """Make an entry of the audit on one of many sessions."""
    place = key(number)
    return AuditEntry(
        1_000, place.tenant, place.session_id, 0, "handoff_refused", "request-1", "ana", data
    )


async def outcomes(*writes: Awaitable[object]) -> list[object]:
    """Run calls concurrently; exceptions are returned as results."""
    return await asyncio.gather(*writes, return_exceptions=True)


async def after(steps: int, write: Awaitable[object]) -> None:
    """Write so many steps of the event loop later, as calls come in."""
    for _ in range(steps):
        await asyncio.sleep(0)
    await write
