"""Every session of a store checked against its own changes, with a hash of each and one of all.

A damaged session is named and does not stop the rest; only a store that cannot be reached does. The
same content has the same hash on every engine, so that a copy can be compared with its source.

Entries of queues are hints, so wrong ones are reported by themselves and are in no hash.

Of each session: revisions have no gaps, each request id leads to the change that it made, the
changes fold into the stored state, and the tasks are those that the changes give.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Final

from routing_service.storage.checked_store import Store
from routing_service.storage.row_content import (
    KINDS,
    decode_audit,
    decode_metadata,
    task_status,
)
from routing_service.storage.store import (
    CURSOR_START,
    DAMAGED,
    OWN_SETTING_PREFIX,
    Change,
    Head,
    SessionKey,
    SessionRow,
    StoreCorrupt,
    TaskRow,
)
from routing_service.storage.store_format import OLDEST_FORMAT, read_format
from routing_service.stored_data.canonical_hash import CanonicalHash
from routing_service.stored_data.queue_check import ENTRIES_FORMAT, QueueCheck, wrong_entries
from routing_service.stored_data.session_replay import PROBLEMS_MAX, SessionReplay
from routing_service.stored_data.whole_session import (
    SESSIONS_PER_READ,
    SETTLE_ATTEMPTS_MAX,
    SessionBusy,
    pages_of_changes,
    settings_of,
    tasks_of,
    tenants_of,
)

AUDIT_PER_READ: Final = 100
"""Audit entries in one page; one may be as large as a change."""

UNREADABLE: Final = "unreadable"
"""Shown instead of a hash if the data could not be read completely."""


STATS_PREFIX: Final = f"{OWN_SETTING_PREFIX}analytics/"
STATS_REMEDY: Final = "; agent-routing stats --recount counts the statistics again"


@dataclass(frozen=True, slots=True)
class SessionReport:
    """The findings about one session."""

    key: SessionKey
    revision: int
    tasks: int
    sha256: str
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TenantReport:
    """The findings about a tenant's data outside its sessions."""

    tenant: str
    settings: int
    audit: int
    sha256: str
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StoreReport:
    """All findings. damaged: the sessions and tenants with problems."""

    tenants: int
    sessions: int
    changes: int
    tasks: int
    audit: int
    settings: int
    damaged: int
    sha256: str
    wrong_entries: int = 0
    """Entries of queues that do not fit their sessions: hints, no content."""


@dataclass(frozen=True, slots=True)
class QueueReport:
    """An entry of a tenant's queue that does not fit its session."""

    tenant: str
    wrong: str


Report = SessionReport | TenantReport | QueueReport | StoreReport


async def verify_store(store: Store) -> AsyncIterator[Report]:
    """Report on each session and each tenant, by tenant and session id, and last on the store.

    Sessions that are made or deleted meanwhile may be included or not; each included one is
    complete at one revision. Raises StoreUnavailable, StoreClosed.
    """
    total = StoreReport(0, 0, 0, 0, 0, 0, 0, "")
    everything = CanonicalHash("store")
    # An older release, which may still write to a store of an older format, keeps no entries.
    counts_entries = (await read_format(store) or OLDEST_FORMAT) >= ENTRIES_FORMAT
    async for tenant in tenants_of(store):
        sessions_before = total.sessions
        async for session in _sessions(store, tenant):
            everything.record("session", *session.key, session.sha256)
            total = replace(
                total,
                sessions=total.sessions + 1,
                changes=total.changes + session.revision,
                tasks=total.tasks + session.tasks,
                damaged=total.damaged + bool(session.problems),
            )
            yield session
        if counts_entries:
            async for wrong in wrong_entries(store, tenant, QueueCheck(store, tenant)):
                total = replace(total, wrong_entries=total.wrong_entries + 1)
                yield QueueReport(tenant, str(wrong))
        outside = await _verify_tenant(store, tenant)
        if not (outside.settings or outside.audit or outside.problems):
            # Empty, or data of this store alone, which a copy does not have.
            total = replace(total, tenants=total.tenants + (total.sessions > sessions_before))
            continue
        everything.record("tenant", tenant, outside.sha256)
        total = replace(
            total,
            tenants=total.tenants + 1,
            audit=total.audit + outside.audit,
            settings=total.settings + outside.settings,
            damaged=total.damaged + bool(outside.problems),
        )
        yield outside
    yield replace(total, sha256=everything.hexdigest())


async def _sessions(store: Store, tenant: str) -> AsyncIterator[SessionReport]:
    cursor = CURSOR_START
    while True:
        page, cursor = await store.list_sessions(tenant, cursor, SESSIONS_PER_READ)
        if not page:
            return
        for row in page:
            report = await verify_session(store, row.key)
            if report is not None:
                yield report


async def verify_session(store: Store, key: SessionKey) -> SessionReport | None:
    """Report on one session; None = it does not exist (any more). Raises StoreUnavailable."""
    replay = SessionReplay(key)
    changes = CanonicalHash("session")
    try:
        settled = await _read_until_settled(store, key, replay, changes)
    except StoreCorrupt as error:
        replay.problem(f"after revision {replay.revision}: {error}")
        return _report(replay, 0, UNREADABLE)
    except SessionBusy as error:
        replay.problem(str(error))
        return _report(replay, 0, UNREADABLE)
    if settled is None:
        return None
    row, head, tasks = settled
    for task in tasks:
        changes.task(task)
        try:
            task_status(task)
            decode_metadata(task)
        except StoreCorrupt as error:
            replay.problem(str(error))
        replay.compare_task(task)
    for task_id in sorted(replay.expected_tasks()):
        replay.problem(f"task {task_id} was made by a change and is not stored")
    changes.head(row, head.state)
    replay.compare_head(row, head)
    return _report(replay, len(tasks), changes.hexdigest())


async def _read_until_settled(
    store: Store, key: SessionKey, replay: SessionReplay, changes: CanonicalHash
) -> tuple[SessionRow, Head, list[TaskRow]] | None:
    """Read until the head has not changed between the first and the last read."""
    for _ in range(SETTLE_ATTEMPTS_MAX):
        head = await store.load(key)
        if head is None:
            return None
        async for page in pages_of_changes(store, key, after=replay.revision, upto=head.revision):
            await _check_requests(store, key, page, replay)
            for change in page:
                changes.change(change)
                replay.apply(change)
        tasks = [task async for task in tasks_of(store, key)]
        row = await store.find_session(key)
        if row is not None and row.revision == head.revision:
            return row, head, tasks
    raise SessionBusy(key)


async def _check_requests(
    store: Store, key: SessionKey, page: list[Change], replay: SessionReplay
) -> None:
    """Check that a repeat of each request would find the change of the first one."""
    asked = [change for change in page if change.request_id]
    found = await asyncio.gather(
        *(store.find_request(key, c.method, c.request_id, c.actor) for c in asked)
    )
    for change, first in zip(asked, found, strict=True):
        name = f"revision {change.revision}: request {change.request_id} of {change.method}"
        if first is None:
            replay.problem(f"{name} is not found by its id")
        elif first.revision != change.revision:
            replay.problem(f"{name} is stored as revision {first.revision} too")


async def _verify_tenant(store: Store, tenant: str) -> TenantReport:
    hashed = CanonicalHash("tenant")
    settings = audit = left_out = 0
    problems: tuple[str, ...] = ()
    try:
        async for name, value in settings_of(store, tenant):
            if not name.startswith(OWN_SETTING_PREFIX):
                settings += 1
                hashed.setting(tenant, name, value)
            if value == DAMAGED:
                remedy = STATS_REMEDY if name.startswith(STATS_PREFIX) else ""
                problems += (f'setting "{name}" does not fit its checksum{remedy}',)
        cursor = CURSOR_START
        while True:
            page, cursor = await store.read_audit(tenant, None, cursor, AUDIT_PER_READ)
            if not page:
                break
            audit += len(page)
            for entry in page:
                hashed.audit(entry)
                try:
                    if entry.kind in KINDS or entry.data == DAMAGED:
                        decode_audit(entry)
                except StoreCorrupt as error:
                    left_out += len(problems) >= PROBLEMS_MAX
                    problems += (str(error),) if len(problems) < PROBLEMS_MAX else ()
    except StoreCorrupt as error:
        problems += (f"after {settings} settings and {audit} audit entries: {error}",)
    if left_out:
        problems += (f"and {left_out} more",)
    sha256 = UNREADABLE if problems else hashed.hexdigest()
    return TenantReport(tenant, settings, audit, sha256, problems)


def _report(replay: SessionReplay, tasks: int, sha256: str) -> SessionReport:
    problems = replay.problems
    if replay.problems_left_out:
        problems = [*problems, f"and {replay.problems_left_out} more"]
    return SessionReport(replay.key, replay.revision, tasks, sha256, tuple(problems))
