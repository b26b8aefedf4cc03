"""The Store protocol: what every engine promises, the values it stores and the errors it raises.

One append is one committed change and one stored row, whole or not at all, and on disk before
``append`` returns. Times come in with the calls; a store reads no clock for what it stores.

What an engine has to do, and how the engines do it:

===============  ==================================================================================
atomic append    SQLite: one transaction for a group of appends. PostgreSQL: the same, the group
                 sorted by key. Redis: one Lua script, all keys of a session in one slot, with
                 those of its shard's log. DynamoDB: one TransactWriteItems of at most 100 actions.
compare and set  The head's revision is compared inside that same transaction, script or condition,
                 never by a read before it.
once             Unique by (tenant, session, method, request_id, actor). DynamoDB: an item of its
                 own. An engine whose driver retries calls must compare the stored change
                 with its own before it reports a conflict: it may be its own success.
task ids         Unique by (tenant, task_id). Where the session's slot cannot hold that index
                 (Redis), the id is claimed first, and a claim counts only if the session that
                 holds it really has the task: the claim of a failed append owns nothing.
durable          On disk, by the engine's strictest setting: SQLite synchronous=FULL, PostgreSQL
                 synchronous_commit=on, Redis WAITAOF with a yes, DynamoDB as it is. Anything
                 weaker has its window of loss named in the engine's docstring.
read the head    ``head_revision`` and ``load`` see every append that has returned anywhere before
                 they were called: ConsistentRead on DynamoDB, the primary on PostgreSQL and Redis.
the log          ``read_log`` must never skip a change that commits later than its
                 neighbours. Row ids are handed out before the commit, so PostgreSQL reads below
                 pg_snapshot_xmin; SQLite has one writer, so there ids are in commit order; a Redis
                 script gives a position of its shard as it commits, and a cursor has all shards'.
===============  ==================================================================================
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

import msgspec

from routing_service.storage.queue_entries import (
    LeaseWish,
    QueueEntry,
    QueueItem,
)
from routing_service.storage.relay import Relay
from routing_service.storage.write_figures import WriteFigures

CHANGE_BYTES_MAX: Final = 300 * 1024
"""The largest change (events, answer and fingerprint together). DynamoDB's item limit of 400 KB
less room for keys and attribute names; held on every engine, so that data can move between them."""

STATE_BYTES_MAX: Final = 64 * 1024
"""The largest state. The core keeps its own state well below this (8 KiB): this is the fence."""

TASK_BYTES_MAX: Final = CHANGE_BYTES_MAX
"""The largest ``TaskRow.data``."""

APPEND_TASKS_MAX: Final = 10
"""Tasks in one append: the foreground's, eight that were parked, and one that begins. With the
limits above the largest append stays under DynamoDB's 4 MB for one transaction."""

PAGE_ROWS_MAX: Final = 1_000
"""The largest ``limit`` of any reading method."""

ERASE_CHANGES_MAX: Final = 128
"""Changes that one transaction of ``erase_before`` blanks: other writes wait no longer for it than
for a group of appends."""

INT_MAX: Final = 2**63 - 1
"""The largest revision or time: what a signed 64-bit column holds."""

OWN_SETTING_PREFIX: Final = "store."
"""The prefix of settings that concern this store alone, such as a job's place in its log. They are
not copied when the data moves to another store."""

CURSOR_START: Final = b""
"""The cursor before the first entry, for every method that takes a cursor."""


DAMAGED: Final = b"\0damaged"
"""Stands for the content of a row that does not fit its checksum: a change's events, a state, a
task's or an audit entry's data, a setting. No decoder accepts it, and no store writes it."""


class SessionKey(NamedTuple):
    """Names one session. Sorting by it gives the order in which groups are written."""

    tenant: str
    session_id: str

    def __str__(self) -> str:
        """Read as tenant/session in error messages."""
        return f"{self.tenant}/{self.session_id}"


class TaskCursor(NamedTuple):
    """A place in a session's list of tasks: the last task of the page before."""

    create_us: int
    task_id: str


TASKS_START: Final = TaskCursor(0, "")
"""The place before a session's first task."""


class Change(msgspec.Struct, frozen=True):
    """One committed change of one session, which is one stored row."""

    revision: int
    """From 1, without gaps."""
    time_us: int
    """When it was decided, microseconds since 1970."""
    method: str
    """The RPC that caused it ("Route", "CompleteTurn", …); "" when the service itself did."""
    request_id: str
    """Unique within (tenant, session, method, actor); "" = none, which is never unique."""
    actor: str
    """The agent id for CompleteTurn, otherwise ""."""
    fingerprint: bytes
    """Distinguishes a repeat of the same request from another request under the same id."""
    events: bytes
    answer: bytes
    """The answer that the first caller got, given again if the request is repeated."""

    @property
    def size_bytes(self) -> int:
        """The size that counts against ``CHANGE_BYTES_MAX``."""
        return len(self.fingerprint) + len(self.events) + len(self.answer)


class TaskRow(msgspec.Struct, frozen=True):
    """One task's state after a change."""

    task_id: str
    session_id: str
    """The session that the task belongs to, for as long as the task is stored."""
    user_id: str
    status: str
    create_us: int
    """Taken from the first upsert; later ones cannot move a task within its list."""
    update_us: int
    expire_us: int | None
    data: bytes

    @property
    def cursor(self) -> TaskCursor:
        """The place just after this task, for ``Store.list_tasks``."""
        return TaskCursor(self.create_us, self.task_id)


class Append(msgspec.Struct, frozen=True):
    """Everything that one change writes."""

    key: SessionKey
    base_revision: int
    """The revision it was decided on; 0 = the session is new."""
    change: Change
    state: bytes
    """The bounded state after the change. It replaces the one before."""
    user_id: str
    """The session's owner."""
    tasks: tuple[TaskRow, ...] = ()
    """Upserts by task id."""
    due_us: int | None = None
    """When something of this session falls due without a call; None = nothing does. Stored
    with the session, over what the append before had there."""
    begun_us: int | None = None
    """When the session began that was decided on (its first change), which is its identity: another
    one may have been begun under its name, and be at the same revision. None = not compared."""
    inbox_put: tuple[QueueEntry, ...] = ()
    """Entries of queues that begin with this change. One that is stored already stays as it is."""
    inbox_drop: tuple[QueueEntry, ...] = ()
    """Entries that end with this change, with their leases. Those not stored are ignored."""


class Head(msgspec.Struct, frozen=True):
    """A session's current state."""

    revision: int
    state: bytes


class SessionRow(msgspec.Struct, frozen=True):
    """One line of ``Store.list_sessions``."""

    key: SessionKey
    user_id: str
    revision: int
    create_us: int
    """Time of the first change."""
    update_us: int
    """Time of the last change."""
    due_us: int | None = None
    """When something of the session falls due next, as its last append gave it."""


class AuditEntry(msgspec.Struct, frozen=True):
    """Something worth keeping that leaves no revision, such as a refused handoff."""

    time_us: int
    tenant: str
    session_id: str
    revision: int
    """The head's when it happened; 0 = there was no such session."""
    kind: str
    request_id: str
    user_id: str
    data: bytes


def damaged_row(key: SessionKey) -> SessionRow:
    """Return what stands in lists for a session whose row is damaged in its form: no owner."""
    return SessionRow(key, "", 0, 0, 0)


def damaged_change(revision: int) -> Change:
    """Return what stands for a change whose row is damaged in its form."""
    return Change(revision, 0, "", "", "", b"", DAMAGED, b"")


def damaged_entry(key: SessionKey) -> AuditEntry:
    """Return what stands for an audit entry whose row is damaged in its form.

    key: its session_id is "" if the session is not known either.
    """
    return AuditEntry(0, key.tenant, key.session_id, 0, "", "", "", DAMAGED)


class StoreError(Exception):
    """Anything a store raises by design. Drivers' own errors never come out of a store."""


class RevisionConflict(StoreError):
    """Another change came first. Nothing was written: load the session and decide again."""

    def __init__(self, key: SessionKey, base_revision: int, actual_revision: int) -> None:
        """Keep both revisions; actual_revision is 0 if the session does not exist."""
        super().__init__(
            f'session "{key}" is at revision {actual_revision}, the append expected '
            f"{base_revision}; load the session and decide again"
        )
        self.key = key
        self.base_revision = base_revision
        self.actual_revision = actual_revision


class RequestSeen(StoreError):
    """The request id is stored already. Nothing was written: ``change`` holds the first answer."""

    def __init__(self, key: SessionKey, change: Change) -> None:
        """Keep the change that was stored first."""
        super().__init__(
            f'request "{change.request_id}" of {change.method} was stored as revision '
            f'{change.revision} of session "{key}"; give that answer again'
        )
        self.key = key
        self.change = change


class TaskTaken(StoreError):
    """A task id belongs to another session of the tenant. Nothing was written."""

    def __init__(self, task_id: str, session_id: str) -> None:
        """Keep the session that has the task."""
        super().__init__(f'task "{task_id}" belongs to session "{session_id}"; use another task id')
        self.task_id = task_id
        self.session_id = session_id


class AppendRefused(StoreError):
    """One write holds values that no repeat can store. Nothing was written."""


class TooLarge(AppendRefused):
    """One part of a write is larger than every engine can hold."""

    def __init__(self, what: str, size_bytes: int, bytes_max: int) -> None:
        """Keep the part's name, its size and the limit."""
        super().__init__(f"the {what} has {size_bytes} bytes, at most {bytes_max} can be stored")
        self.what = what
        self.size_bytes = size_bytes
        self.bytes_max = bytes_max


class CursorInvalid(StoreError):
    """A cursor was not made by this method of this store."""


class StoreUnavailable(StoreError):
    """The store cannot be reached, is busy, or its disk fails. Retryable.

    From a read it means nothing was read. From a write it leaves open whether the write
    happened: drop what is cached of the session, and repeat with the same request id.
    The driver's error is the cause; it has been logged and is not for callers.
    """

    def __init__(self, reason: str) -> None:
        """Keep a reason that may be shown to callers."""
        super().__init__(reason)
        self.reason = reason


class StoreCorrupt(StoreError):
    """The stored data cannot be read. Not retryable: restore a backup."""


class SchemaTooNew(StoreError):
    """The data was written by a newer release. Not retryable: upgrade this one."""

    def __init__(self, where: str, found: int, supported: int) -> None:
        """Keep both versions."""
        super().__init__(
            f"{where} has schema version {found}, this release reads up to {supported}; "
            "run the release that wrote it, or a newer one"
        )
        self.found = found
        self.supported = supported


class StoreClosed(StoreError):
    """The store was closed. Not retryable on this object."""

    def __init__(self) -> None:
        """Use the same message everywhere."""
        super().__init__("the store is closed; open it again")


class Store(Protocol):
    """The methods of every engine. All may raise StoreUnavailable, StoreCorrupt, StoreClosed.

    If a caller is cancelled, its write still happens whole or not at all, and no other caller's
    write is affected. Reading methods take ``limit`` from 1 to PAGE_ROWS_MAX; a page
    with fewer rows than that is the last for now.
    """

    @property
    def shared_writers(self) -> bool:
        """Whether other processes may write to it.

        If they may, a cached state may be outdated: an answer without an append first has to
        confirm the head's revision by ``head_revision``.
        """

    @property
    def write_figures(self) -> WriteFigures | None:
        """How large groups of writes were and how long they took; None = not counted."""

    @property
    def hears_changes(self) -> bool:
        """Whether ``wait_for_changes`` now returns early when another process commits."""

    async def wait_for_changes(self, seen: int, timeout_s: float) -> int:
        """Wait for a hint that another process has committed something, at most timeout_s.

        Returns how many hints have arrived so far: pass it as ``seen`` to the next call, so that
        no hint between two calls is missed; 0 for the first. A hint may be late, lost or repeated,
        so the log has to be read from time to time anyway. Without hints this waits for timeout_s.
        """

    @property
    def relay(self) -> Relay | None:
        """Messages between the processes of this store; None = it has none."""

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
        ...

    async def load(self, key: SessionKey) -> Head | None:
        """Read the revision and the state that belong together; None = no such session."""
        ...

    async def head_revision(self, key: SessionKey) -> int:
        """Read the session's revision from the store itself, never a cache; 0 = no session."""
        ...

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
        ...

    async def find_request(
        self, key: SessionKey, method: str, request_id: str, actor: str = ""
    ) -> Change | None:
        """Read the change that a request made; always None for request_id ""."""
        ...

    async def find_task(self, tenant: str, task_id: str) -> TaskRow | None:
        """Read one task of any session."""
        ...

    async def list_tasks(
        self, key: SessionKey, *, after: TaskCursor = TASKS_START, limit: int
    ) -> list[TaskRow]:
        """Read the session's tasks after a place, in the order of (create_us, task_id).

        The place of the next page is ``page[-1].cursor``.
        """
        ...

    async def append_audit(self, entry: AuditEntry) -> None:
        """Store one audit entry; durable when it returns. Raises AppendRefused, TooLarge."""
        ...

    async def count_audit(self, key: SessionKey, kind: str, request_id: str) -> int:
        """Count the entries of one kind that one request left in a session."""
        ...

    async def read_audit(
        self, tenant: str, session_id: str | None, cursor: bytes, limit: int
    ) -> tuple[list[AuditEntry], bytes]:
        """Read a tenant's entries after the cursor, oldest first, and the cursor after them.

        session_id None = of all sessions. An empty page gives a cursor that later entries are
        after. Raises CursorInvalid.
        """
        ...

    async def list_sessions(
        self, tenant: str, cursor: bytes, limit: int
    ) -> tuple[list[SessionRow], bytes]:
        """Read a tenant's sessions in the order of their ids (by code point), and a cursor.

        By id, not by time: a session that is used while a caller pages is neither skipped
        nor listed twice. Raises CursorInvalid.
        """
        ...

    async def find_session(self, key: SessionKey) -> SessionRow | None:
        """Read one session's row, as fresh as ``head_revision``; None = no such session."""
        ...

    async def list_tenants(self, after: str, limit: int) -> list[str]:
        """Read the tenants with a session, an audit entry or a setting, by code point.

        after: the last name of the page before, "" = from the first. Complete for every write that
        returned before the call; a tenant with nothing left may stay listed.
        """
        ...

    async def read_log(
        self, cursor: bytes, limit: int
    ) -> tuple[list[tuple[SessionKey, Change]], bytes]:
        """Read the changes of all sessions of all tenants after the cursor, and the next cursor.

        Every committed change comes at least once and a session's in the order of its revisions;
        nothing is promised across sessions. Raises CursorInvalid.
        """
        ...

    async def log_end(self) -> bytes:
        """Return a cursor that every change appended from now on comes after."""
        ...

    async def get_setting(self, tenant: str, name: str) -> bytes | None:
        """Read a setting as last put by anyone, never from a cache."""
        ...

    async def list_settings(self, tenant: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        """Read a tenant's settings by code point of their names, each as last put by anyone.

        after: the last name of the page before, "" = from the first.
        """
        ...

    async def put_setting(self, tenant: str, name: str, value: bytes) -> None:
        """Store a setting, replacing the one before; durable when it returns."""
        ...

    async def swap_setting(
        self, tenant: str, name: str, before: bytes | None, value: bytes
    ) -> bool:
        """Store a setting if its value is still ``before``; return whether it was.

        before: None = there was no such setting, DAMAGED = its checksum does not fit. Atomic across
        processes; durable when it returns. After StoreUnavailable the swap may have happened: read
        the setting again.
        """
        ...

    async def due_sessions(self, now_us: int, limit: int) -> list[SessionKey]:
        """Read the sessions of all tenants whose due_us has come, the earliest first.

        Sessions with due_us = now_us are included. A session stays due until an append changes its
        due_us.
        """
        ...

    async def acquire_lease(self, name: str, holder: str, now_us: int, until_us: int) -> bool:
        """Take or renew a named lease until until_us; False while another holder's runs at now_us.

        Atomic across processes, and durable like a setting. until_us <= now_us gives it up, at
        once for all processes, however their clocks differ. A lease is a hint as to who
        should work: it ends by the holders' clocks, so two may hold it for a while, and callers
        have to stay correct then.
        Raises AppendRefused for a name, holder or time that some engine could not store.
        """
        ...

    async def read_queue(
        self, tenant: str, queue: str, after: QueueEntry | None, limit: int
    ) -> list[QueueItem]:
        """Read a queue's entries after one of them, the oldest first, each with its lease.

        after: None = from the first. It sees every append that returned before the call.
        """
        ...

    async def find_item(self, tenant: str, entry: QueueEntry) -> QueueItem | None:
        """Read one entry with its lease, as fresh as ``read_queue``; None = it is not there."""
        ...

    async def lease_item(self, tenant: str, entry: QueueEntry, wish: LeaseWish) -> QueueItem | None:
        """Take, extend or give back the lease of an entry; return the entry as it then is.

        Atomic across processes. The lease is the caller's if the returned token is wish.token.
        None = there is no such entry. Time is the engine's own, so that the clocks of replicas do
        not count; on DynamoDB it is the replica's, and others wait half a second longer. Not
        durable: a lease that is lost with the store's power is offered again, and the session's
        state decides which answer counts. Raises AppendRefused.
        """
        ...

    async def mend_queue(
        self, tenant: str, put: tuple[QueueEntry, ...], drop: tuple[QueueEntry, ...]
    ) -> None:
        """Put entries that are missing and drop those without work, outside an append.

        Entries are hints: what a change puts at the same time may be dropped by this, and what it
        drops may be put back. Callers look at the session's state again. Raises AppendRefused.
        """
        ...

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
        ...

    async def delete_session(self, key: SessionKey, revision: int) -> None:
        """Remove the session: its head, changes, request ids and tasks; durable when it returns.

        Its audit entries stay, with user_id and data empty. Cursors of the log and of lists stay
        good, and its session id and task ids are free again. All of it happens or none.
        revision: where its head has to be; 0 = there is none (only the audit is then touched).
        Raises RevisionConflict if it is elsewhere; nothing is removed then.
        """
        ...

    async def probe_write(self) -> None:
        """Make a tiny durable write on the same path as appends; raises if they would fail."""
        ...

    async def close(self) -> None:
        """Finish the accepted writes and release everything. Later calls raise StoreClosed.

        Closing twice is not an error.
        """
        ...
