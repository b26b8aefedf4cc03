"""The Store on every engine: it checks each call once, and an engine does the rest.

It refuses calls after ``close``, values that no engine could store and cursors of other lists, so
that an engine is only called with what it can do. What it writes has a checksum, and what it reads
is compared with it: see ``checksums``.
"""

from __future__ import annotations

import asyncio

from routing_service.storage import page_cursor
from routing_service.storage.checksums import (
    open_audit,
    open_change,
    open_head,
    open_row,
    open_setting,
    open_task,
    seal_append,
    seal_audit,
    seal_setting,
)
from routing_service.storage.engine import Engine, Span
from routing_service.storage.queue_entries import LeaseWish, QueueEntry, QueueItem
from routing_service.storage.relay import Relay
from routing_service.storage.store import (
    DAMAGED,
    INT_MAX,
    TASKS_START,
    Append,
    AuditEntry,
    Change,
    Head,
    RequestSeen,
    SessionKey,
    SessionRow,
    StoreClosed,
    TaskCursor,
    TaskRow,
)
from routing_service.storage.write_checks import (
    check_append,
    check_audit,
    check_blank,
    check_entries,
    check_lease,
    check_limit,
    check_setting,
    check_wish,
)
from routing_service.storage.write_figures import WriteFigures


class Store:
    """A store on one engine. All methods may raise StoreUnavailable, StoreCorrupt, StoreClosed.

    If a caller is cancelled, its write still happens whole or not at all, and no other caller's
    write is affected. Reading methods take ``limit`` from 1 to PAGE_ROWS_MAX; a page
    with fewer rows than that is the last for now.
    """

    def __init__(self, engine: Engine) -> None:
        """Take the engine over: ``close`` closes it."""
        self._engine = engine
        self._closing: asyncio.Task[None] | None = None

    @property
    def shared_writers(self) -> bool:
        """Whether other processes may write to it.

        If they may, a cached state may be outdated: an answer without an append first has to
        confirm the head's revision by ``head_revision``.
        """
        return self._engine.shared_writers

    @property
    def write_figures(self) -> WriteFigures | None:
        """How large groups of writes were and how long they took; None = not counted."""
        return self._engine.write_figures

    @property
    def hears_changes(self) -> bool:
        """Whether ``wait_for_changes`` now returns early when another process commits."""
        hints = self._engine.hints
        return hints is not None and hints.is_live

    async def wait_for_changes(self, seen: int, timeout_s: float) -> int:
        """Wait for a hint that another process has committed something, at most timeout_s.

        Returns how many hints have arrived so far: pass it as ``seen`` to the next call, so that
        no hint between two calls is missed; 0 for the first. A hint may be late, lost or repeated,
        so the log has to be read from time to time anyway. Without hints this waits for timeout_s.
        """
        self._check_open()
        hints = self._engine.hints
        if hints is None:
            await asyncio.sleep(timeout_s)
            return seen
        return await hints.wait(seen, timeout_s)

    @property
    def relay(self) -> Relay | None:
        """Messages between the processes of this store; None = it has none."""
        return self._engine.relay

    async def append(self, append: Append) -> None:
        """Store one change, the state after it and its tasks; durable when it returns.

        Appends that wait at the same time may be written as one group; what is wrong with one of
        them is its own affair. The appends of one session are tried in the order of the calls.
        Where several of these apply the first is raised, and nothing of the append is written:
        RequestSeen: (session, method, request_id, actor) is stored already.
        RevisionConflict: the session is not at base_revision, or did not begin at begun_us.
        TaskTaken: one of the tasks belongs to another session of the tenant.
        TooLarge, AppendRefused: no engine could store it; raised before anything else.
        """
        if self._closing is not None:  # As _check_open does, whose call every message would pay.
            raise StoreClosed
        check_append(append)
        try:
            await self._engine.append(seal_append(append))
        except RequestSeen as seen:
            raise RequestSeen(seen.key, open_change(seen.key, seen.change)) from None

    async def load(self, key: SessionKey) -> Head | None:
        """Read the revision and the state that belong together; None = no such session."""
        self._check_open()
        head = await self._engine.load(key)
        return None if head is None else open_head(key, head)

    async def head_revision(self, key: SessionKey) -> int:
        """Read the session's revision from the store itself, never a cache; 0 = no session."""
        self._check_open()
        return await self._engine.head_revision(key)

    async def read_changes(
        self,
        key: SessionKey,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int,
        newest_first: bool = False,
    ) -> list[Change]:
        """Read the changes with after < revision < before, in the order of their revisions.

        newest_first reverses the order, and so decides which changes the limit leaves out.
        """
        self._check_open()
        check_limit(limit)
        last = INT_MAX if before is None else _clamp(before)
        span = Span(_clamp(after), last, limit, newest_first)
        return [open_change(key, change) for change in await self._engine.read_changes(key, span)]

    async def find_request(
        self, key: SessionKey, method: str, request_id: str, actor: str = ""
    ) -> Change | None:
        """Read the change that a request made; always None for request_id ""."""
        self._check_open()
        if not request_id:
            return None
        change = await self._engine.find_request(key, method, request_id, actor)
        return None if change is None else open_change(key, change)

    async def find_task(self, tenant: str, task_id: str) -> TaskRow | None:
        """Read one task of any session."""
        self._check_open()
        task = await self._engine.find_task(tenant, task_id)
        return None if task is None else open_task(SessionKey(tenant, task.session_id), task)

    async def list_tasks(
        self, key: SessionKey, *, after: TaskCursor = TASKS_START, limit: int
    ) -> list[TaskRow]:
        """Read the session's tasks after a place, in the order of (create_us, task_id).

        The place of the next page is ``page[-1].cursor``.
        """
        self._check_open()
        check_limit(limit)
        after = TaskCursor(_clamp(after.create_us), after.task_id)
        return [open_task(key, task) for task in await self._engine.list_tasks(key, after, limit)]

    async def append_audit(self, entry: AuditEntry) -> None:
        """Store one audit entry; durable when it returns. Raises AppendRefused, TooLarge."""
        self._check_open()
        check_audit(entry)
        await self._engine.append_audit(seal_audit(entry))

    async def count_audit(self, key: SessionKey, kind: str, request_id: str) -> int:
        """Count the entries of one kind that one request left in a session."""
        self._check_open()
        return await self._engine.count_audit(key, kind, request_id)

    async def read_audit(
        self, tenant: str, session_id: str | None, cursor: bytes, limit: int
    ) -> tuple[list[AuditEntry], bytes]:
        """Read a tenant's entries after the cursor, oldest first, and the cursor after them.

        session_id None = of all sessions. An empty page gives a cursor that later entries are
        after. Raises CursorInvalid.
        """
        self._check_open()
        check_limit(limit)
        form = self._engine.audit_form(tenant)
        places = form.unpack(cursor)
        page, places = await self._engine.read_audit(tenant, session_id, places, limit)
        return [open_audit(entry) for entry in page], form.pack(places)

    async def list_sessions(
        self, tenant: str, cursor: bytes, limit: int
    ) -> tuple[list[SessionRow], bytes]:
        """Read a tenant's sessions in the order of their ids (by code point), and a cursor.

        By id, not by time: a session that is used while a caller pages is neither skipped
        nor listed twice. Raises CursorInvalid.
        """
        self._check_open()
        check_limit(limit)
        last_id = page_cursor.to_session_id(cursor)
        page = await self._engine.list_sessions(tenant, last_id, limit)
        last_id = page[-1].key.session_id if page else last_id
        return [open_row(row) for row in page], page_cursor.from_session_id(last_id)

    async def find_session(self, key: SessionKey) -> SessionRow | None:
        """Read one session's row, as fresh as ``head_revision``; None = no such session."""
        self._check_open()
        row = await self._engine.find_session(key)
        return None if row is None else open_row(row)

    async def list_tenants(self, after: str, limit: int) -> list[str]:
        """Read the tenants with a session, an audit entry or a setting, by code point.

        after: the last name of the page before, "" = from the first. Complete for every write that
        returned before the call; a tenant with nothing left may stay listed.
        """
        self._check_open()
        check_limit(limit)
        return await self._engine.list_tenants(after, limit)

    async def read_log(
        self, cursor: bytes, limit: int
    ) -> tuple[list[tuple[SessionKey, Change]], bytes]:
        """Read the changes of all sessions of all tenants after the cursor, and the next cursor.

        Every committed change comes at least once and a session's in the order of its revisions;
        nothing is promised across sessions. Raises CursorInvalid.
        """
        self._check_open()
        check_limit(limit)
        form = self._engine.log_form
        page, places = await self._engine.read_log(form.unpack(cursor), limit)
        return [(key, open_change(key, change)) for key, change in page], form.pack(places)

    async def log_end(self) -> bytes:
        """Return a cursor that every change appended from now on comes after."""
        self._check_open()
        return self._engine.log_form.pack(await self._engine.log_end())

    async def get_setting(self, tenant: str, name: str) -> bytes | None:
        """Read a setting as last put by anyone, never from a cache."""
        self._check_open()
        value = await self._engine.get_setting(tenant, name)
        return None if value is None else open_setting(tenant, name, value)

    async def list_settings(self, tenant: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        """Read a tenant's settings by code point of their names, each as last put by anyone.

        after: the last name of the page before, "" = from the first.
        """
        self._check_open()
        check_limit(limit)
        page = await self._engine.list_settings(tenant, after, limit)
        return [(name, open_setting(tenant, name, value)) for name, value in page]

    async def put_setting(self, tenant: str, name: str, value: bytes) -> None:
        """Store a setting, replacing the one before; durable when it returns."""
        self._check_open()
        check_setting(tenant, name, value)
        await self._engine.put_setting(tenant, name, seal_setting(tenant, name, value))

    async def swap_setting(
        self, tenant: str, name: str, before: bytes | None, value: bytes
    ) -> bool:
        """Store a setting if its value is still ``before``; return whether it was.

        before: None = there was no such setting, DAMAGED = its checksum does not fit. Atomic across
        processes; durable when it returns. After StoreUnavailable the swap may have happened: read
        the setting again.
        """
        self._check_open()
        check_setting(tenant, name, value)
        sealed = seal_setting(tenant, name, value)
        if before == DAMAGED:
            stored = await self._engine.get_setting(tenant, name)
            if stored is None or open_setting(tenant, name, stored) != DAMAGED:
                return False
            return await self._engine.swap_setting(tenant, name, stored, sealed)
        expected = None if before is None else seal_setting(tenant, name, before)
        if await self._engine.swap_setting(tenant, name, expected, sealed):
            return True
        # An older release may have written it, without a checksum.
        is_plain = before is not None and before != expected
        return is_plain and await self._engine.swap_setting(tenant, name, before, sealed)

    async def due_sessions(self, now_us: int, limit: int) -> list[SessionKey]:
        """Read the sessions of all tenants whose due_us has come, the earliest first.

        Sessions with due_us = now_us are included. A session stays due until an append changes its
        due_us.
        """
        self._check_open()
        check_limit(limit)
        return await self._engine.due_sessions(now_us, limit)

    async def acquire_lease(self, name: str, holder: str, now_us: int, until_us: int) -> bool:
        """Take or renew a named lease until until_us; False while another holder's runs at now_us.

        Atomic across processes, and durable like a setting. until_us <= now_us gives it up, at
        once for all processes, however their clocks differ. A lease is a hint as to who
        should work: it ends by the holders' clocks, so two may hold it for a while, and callers
        have to stay correct then.
        Raises AppendRefused for a name, holder or time that some engine could not store.
        """
        self._check_open()
        check_lease(name, holder, now_us, until_us)
        return await self._engine.acquire_lease(name, holder, now_us, until_us)

    async def read_queue(
        self, tenant: str, queue: str, after: QueueEntry | None, limit: int
    ) -> list[QueueItem]:
        """Read a queue's entries after one of them, the oldest first, each with its lease.

        after: None = from the first. It sees every append that returned before the call.
        """
        self._check_open()
        check_limit(limit)
        return await self._engine.read_queue(tenant, queue, after, limit)

    async def find_item(self, tenant: str, entry: QueueEntry) -> QueueItem | None:
        """Read one entry with its lease, as fresh as ``read_queue``; None = it is not there."""
        self._check_open()
        return await self._engine.find_item(tenant, entry)

    async def lease_item(self, tenant: str, entry: QueueEntry, wish: LeaseWish) -> QueueItem | None:
        """Take, extend or give back the lease of an entry; return the entry as it then is.

        Atomic across processes. The lease is the caller's if the returned token is wish.token.
        None = there is no such entry. Time is the engine's own, so that the clocks of replicas do
        not count; on DynamoDB it is the replica's, and others wait half a second longer. Not
        durable: a lease that is lost with the store's power is offered again, and the session's
        state decides which answer counts. Raises AppendRefused.
        """
        self._check_open()
        check_wish(wish)
        return await self._engine.lease_item(tenant, entry, wish)

    async def mend_queue(
        self, tenant: str, put: tuple[QueueEntry, ...], drop: tuple[QueueEntry, ...]
    ) -> None:
        """Put entries that are missing and drop those without work, outside an append.

        Entries are hints: what a change puts at the same time may be dropped by this, and what it
        drops may be put back. Callers look at the session's state again. Raises AppendRefused.
        """
        self._check_open()
        check_entries(tenant, (*put, *drop))
        if put or drop:
            await self._engine.mend_queue(tenant, put, drop)

    async def erase_before(self, key: SessionKey, revision: int, blank: bytes) -> int:
        """Erase the content of the session before a revision, and keep its order.

        Of its changes below that revision, events become ``blank``, answer and fingerprint empty;
        of all its tasks and audit entries, user_id and data become empty, and last of all the
        user_id of its head: until that is gone, a repeat of an interrupted call finds the
        session by it. Revisions, request ids, methods, actors and times stay, so that a repeat is
        still known. The state is not touched: append what replaces it first.

        Returns how many changes were not blank before. Durable when it returns; it may take
        several transactions, each whole, so that one that fails half-way is called again.
        A session that is not stored has no changes; its audit entries are blanked all the same.
        Raises TooLarge for a blank that no change could have.
        """
        self._check_open()
        check_blank(blank)
        return await self._engine.erase_before(key, revision, blank)

    async def delete_session(self, key: SessionKey, revision: int) -> None:
        """Remove the session: its head, changes, request ids and tasks; durable when it returns.

        Its audit entries stay, with user_id and data empty. Cursors of the log and of lists stay
        good, and its session id and task ids are free again. All of it happens or none.
        revision: where its head has to be; 0 = there is none (only the audit is then touched).
        Raises RevisionConflict if it is elsewhere; nothing is removed then.
        """
        self._check_open()
        await self._engine.delete_session(key, revision)

    async def probe_write(self) -> None:
        """Make a tiny durable write on the same path as appends; raises if they would fail."""
        self._check_open()
        await self._engine.probe_write()

    async def close(self) -> None:
        """See Store.close. A caller that is cancelled leaves the closing to finish."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._engine.close(), name="close store")
        await asyncio.shield(self._closing)

    def _check_open(self) -> None:
        if self._closing is not None:
            raise StoreClosed


def _clamp(number: int) -> int:
    """Keep a caller's bound within what a revision or a time can be."""
    return min(max(number, 0), INT_MAX)
