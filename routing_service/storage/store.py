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

from typing import Final, NamedTuple

import msgspec

from routing_service.storage.queue_entries import (
    QueueEntry,
)

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
