"""The statements of the SQLite store: rows in and out, on a connection's own thread.

A write runs inside the group's transaction. A write that refuses has not written yet, so that a
refusal needs no rollback of the other writes.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from routing_service.storage import page_cursor
from routing_service.storage.engine import Span
from routing_service.storage.sqlite.queue_rows import write_entries
from routing_service.storage.store import (
    Append,
    AuditEntry,
    Change,
    Head,
    RequestSeen,
    RevisionConflict,
    SessionKey,
    SessionRow,
    StoreCorrupt,
    TaskCursor,
    TaskRow,
    TaskTaken,
)

SELECT_HEAD: Final = "SELECT session_no, revision FROM sessions WHERE tenant = ? AND session_id = ?"
SELECT_STATE: Final = "SELECT revision, state FROM sessions WHERE tenant = ? AND session_id = ?"
SELECT_BASE: Final = (
    "SELECT session_no, revision, create_us FROM sessions WHERE tenant = ? AND session_id = ?"
)
INSERT_SESSION: Final = (
    "INSERT INTO sessions (tenant, session_id, user_id, revision, create_us, update_us, state, "
    "due_us) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
UPDATE_SESSION: Final = (
    "UPDATE sessions SET user_id = ?, revision = ?, update_us = ?, state = ?, due_us = ? "
    "WHERE session_no = ?"
)
INSERT_CHANGE: Final = (
    "INSERT INTO changes (session_no, revision, time_us, method, request_id, actor, "
    "fingerprint, events, answer) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
)
# request_id <> '' again: only so does the partial index serve.
SELECT_REQUEST: Final = (
    "SELECT revision, time_us, method, request_id, actor, fingerprint, events, answer "
    "FROM changes WHERE session_no = "
    "(SELECT session_no FROM sessions WHERE tenant = ? AND session_id = ?) "
    "AND request_id = ? AND method = ? AND actor = ? AND request_id <> ''"
)
SELECT_CHANGES: Final = (
    "SELECT revision, time_us, method, request_id, actor, fingerprint, events, answer "
    "FROM changes WHERE session_no = "
    "(SELECT session_no FROM sessions WHERE tenant = ? AND session_id = ?) "
    "AND revision > ? AND revision < ? ORDER BY revision LIMIT ?"
)
SELECT_CHANGES_NEWEST_FIRST: Final = SELECT_CHANGES.replace("BY revision", "BY revision DESC")
SELECT_TASK_SESSION: Final = (
    "SELECT session_no, session_id FROM tasks JOIN sessions USING (session_no) "
    "WHERE tasks.tenant = ? AND task_id = ?"
)
# create_us stays: it is the task's place in its list.
UPSERT_TASK: Final = (
    "INSERT INTO tasks (tenant, task_id, session_no, user_id, status, create_us, update_us, "
    "expire_us, data) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (tenant, task_id) DO UPDATE SET user_id = excluded.user_id, "
    "status = excluded.status, update_us = excluded.update_us, expire_us = excluded.expire_us, "
    "data = excluded.data"
)
SELECT_TASK: Final = (
    "SELECT task_id, session_id, tasks.user_id, status, tasks.create_us, tasks.update_us, "
    "expire_us, data FROM tasks JOIN sessions USING (session_no) "
    "WHERE tasks.tenant = ? AND task_id = ?"
)
SELECT_TASKS: Final = (
    "SELECT task_id, ?, user_id, status, create_us, update_us, expire_us, data FROM tasks "
    "WHERE session_no = (SELECT session_no FROM sessions WHERE tenant = ? AND session_id = ?) "
    "AND (create_us, task_id) > (?, ?) "
    "ORDER BY create_us, task_id LIMIT ?"
)
SELECT_SESSIONS: Final = (
    "SELECT session_id, user_id, revision, create_us, update_us, due_us FROM sessions "
    "WHERE tenant = ? AND session_id > ? ORDER BY session_id LIMIT ?"
)
SELECT_SESSION: Final = (
    "SELECT user_id, revision, create_us, update_us, due_us FROM sessions "
    "WHERE tenant = ? AND session_id = ?"
)
# From one name to the next by the indexes: one step per tenant, independent of its rows.
SELECT_TENANTS: Final = (
    "WITH RECURSIVE names (name) AS (SELECT ? UNION ALL "
    "SELECT (SELECT min(next) FROM ("
    "SELECT min(tenant) AS next FROM sessions WHERE tenant > names.name "
    "UNION ALL SELECT min(tenant) FROM audit WHERE tenant > names.name "
    "UNION ALL SELECT min(tenant) FROM settings WHERE tenant > names.name)) "
    "FROM names WHERE name IS NOT NULL) "
    "SELECT name FROM names WHERE name > ? LIMIT ?"
)
# CROSS JOIN: the log is read in its order and each session looked up, never the other way round.
SELECT_LOG: Final = (
    "SELECT position, tenant, session_id, changes.revision, time_us, method, request_id, actor, "
    "fingerprint, events, answer FROM changes CROSS JOIN sessions USING (session_no) "
    "WHERE position > ? ORDER BY position LIMIT ?"
)
# Positions are never given twice, so this is the last one given, even if its row is gone.
SELECT_END: Final = "SELECT seq FROM sqlite_sequence WHERE name = ?"
INSERT_AUDIT: Final = (
    "INSERT INTO audit (time_us, tenant, session_id, revision, kind, request_id, user_id, data) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
COUNT_AUDIT: Final = (
    "SELECT count(*) FROM audit WHERE tenant = ? AND session_id = ? AND request_id = ? AND kind = ?"
)
SELECT_AUDIT: Final = (
    "SELECT position, time_us, tenant, session_id, revision, kind, request_id, user_id, data "
    "FROM audit WHERE tenant = ? AND position > ? ORDER BY position LIMIT ?"
)
SELECT_SESSION_AUDIT: Final = (
    "SELECT position, time_us, tenant, session_id, revision, kind, request_id, user_id, data "
    "FROM audit WHERE tenant = ? AND session_id = ? AND position > ? ORDER BY position LIMIT ?"
)
SELECT_SETTING: Final = "SELECT value FROM settings WHERE tenant = ? AND name = ?"
SELECT_SETTINGS: Final = (
    "SELECT name, value FROM settings WHERE tenant = ? AND name > ? ORDER BY name LIMIT ?"
)
UPSERT_SETTING: Final = (
    "INSERT INTO settings (tenant, name, value) VALUES (?, ?, ?) "
    "ON CONFLICT (tenant, name) DO UPDATE SET value = excluded.value"
)
SELECT_STORE_ID: Final = "SELECT store_id FROM store"
UPDATE_PROBE: Final = "UPDATE store SET write_probes = write_probes + 1"


def write_append(connection: sqlite3.Connection, append: Append) -> None:
    """Write one append. Raises RequestSeen, RevisionConflict, TaskTaken."""
    key, change = append.key, append.change
    head = connection.execute(SELECT_BASE, key).fetchone()
    session_no, revision, create_us = head if head is not None else (None, 0, append.begun_us)
    if revision != append.base_revision or append.begun_us not in (None, create_us):
        _refuse_if_seen(connection, key, change)
        raise RevisionConflict(key, append.base_revision, revision)
    for task in append.tasks:
        _check_task_owner(connection, append, task, session_no)
    if session_no is None:
        session_no = connection.execute(
            INSERT_SESSION,
            (
                *key,
                append.user_id,
                change.revision,
                change.time_us,
                change.time_us,
                append.state,
                append.due_us,
            ),
        ).lastrowid
        _insert_change(connection, session_no, append)
    else:
        # The change first: if it is a repeat then nothing has been written yet.
        _insert_change(connection, session_no, append)
        connection.execute(
            UPDATE_SESSION,
            (
                append.user_id,
                change.revision,
                change.time_us,
                append.state,
                append.due_us,
                session_no,
            ),
        )
    for task in append.tasks:
        connection.execute(
            UPSERT_TASK,
            (
                key.tenant,
                task.task_id,
                session_no,
                task.user_id,
                task.status,
                task.create_us,
                task.update_us,
                task.expire_us,
                task.data,
            ),
        )
    if append.inbox_put or append.inbox_drop:
        write_entries(connection, key.tenant, append.inbox_put, append.inbox_drop)


def _insert_change(connection: sqlite3.Connection, session_no: int | None, append: Append) -> None:
    change = append.change
    inserted = connection.execute(
        INSERT_CHANGE,
        (
            session_no,
            change.revision,
            change.time_us,
            change.method,
            change.request_id,
            change.actor,
            change.fingerprint,
            change.events,
            change.answer,
        ),
    )
    if inserted.rowcount != 1:
        _refuse_if_seen(connection, append.key, change)
        raise StoreCorrupt(
            f'session "{append.key}" has changes after its head, revision {append.base_revision}; '
            "restore it from a backup"
        )


def _check_task_owner(
    connection: sqlite3.Connection, append: Append, task: TaskRow, session_no: int | None
) -> None:
    owner = connection.execute(SELECT_TASK_SESSION, (append.key.tenant, task.task_id)).fetchone()
    if owner is not None and owner[0] != session_no:
        _refuse_if_seen(connection, append.key, append.change)
        raise TaskTaken(task.task_id, owner[1])


def _refuse_if_seen(connection: sqlite3.Connection, key: SessionKey, change: Change) -> None:
    seen = find_request(connection, key, change.method, change.request_id, change.actor)
    if seen is not None:
        raise RequestSeen(key, seen)


def write_audit(connection: sqlite3.Connection, entry: AuditEntry) -> None:
    """Write one audit entry."""
    connection.execute(
        INSERT_AUDIT,
        (
            entry.time_us,
            entry.tenant,
            entry.session_id,
            entry.revision,
            entry.kind,
            entry.request_id,
            entry.user_id,
            entry.data,
        ),
    )


def write_setting(connection: sqlite3.Connection, tenant: str, name: str, value: bytes) -> None:
    """Write one setting."""
    connection.execute(UPSERT_SETTING, (tenant, name, value))


def swap_setting(
    connection: sqlite3.Connection, tenant: str, name: str, before: bytes | None, value: bytes
) -> bool:
    """Write one setting if it is unchanged; return whether it was."""
    if get_setting(connection, tenant, name) != before:
        return False
    write_setting(connection, tenant, name, value)
    return True


def write_probe(connection: sqlite3.Connection) -> None:
    """Change one page, so that the commit has to sync."""
    connection.execute(UPDATE_PROBE)


def load(connection: sqlite3.Connection, key: SessionKey) -> Head | None:
    """Read a session's revision and state."""
    row = connection.execute(SELECT_STATE, key).fetchone()
    return None if row is None else Head(*row)


def head_revision(connection: sqlite3.Connection, key: SessionKey) -> int:
    """Read a session's revision; 0 if it does not exist."""
    row = connection.execute(SELECT_HEAD, key).fetchone()
    return 0 if row is None else int(row[1])


def read_changes(connection: sqlite3.Connection, key: SessionKey, span: Span) -> list[Change]:
    """Read the changes with span.after < revision < span.before."""
    statement = SELECT_CHANGES_NEWEST_FIRST if span.newest_first else SELECT_CHANGES
    rows = connection.execute(statement, (*key, span.after, span.before, span.limit))
    return [Change(*row) for row in rows]


def find_request(
    connection: sqlite3.Connection, key: SessionKey, method: str, request_id: str, actor: str
) -> Change | None:
    """Read the change that a request made."""
    row = connection.execute(SELECT_REQUEST, (*key, request_id, method, actor)).fetchone()
    return None if row is None else Change(*row)


def find_task(connection: sqlite3.Connection, tenant: str, task_id: str) -> TaskRow | None:
    """Read one task."""
    row = connection.execute(SELECT_TASK, (tenant, task_id)).fetchone()
    return None if row is None else TaskRow(*row)


def list_tasks(
    connection: sqlite3.Connection, key: SessionKey, after: TaskCursor, limit: int
) -> list[TaskRow]:
    """Read a session's tasks in the order of (create_us, task_id)."""
    place = after
    rows = connection.execute(SELECT_TASKS, (key.session_id, *key, *place, limit))
    return [TaskRow(*row) for row in rows]


def list_sessions(
    connection: sqlite3.Connection, tenant: str, last_id: str, limit: int
) -> list[SessionRow]:
    """Read a tenant's sessions after an id."""
    rows = connection.execute(SELECT_SESSIONS, (tenant, last_id, limit))
    return [SessionRow(SessionKey(tenant, session_id), *rest) for session_id, *rest in rows]


def find_session(connection: sqlite3.Connection, key: SessionKey) -> SessionRow | None:
    """Read one session's row."""
    row = connection.execute(SELECT_SESSION, key).fetchone()
    return None if row is None else SessionRow(key, *row)


def list_tenants(connection: sqlite3.Connection, after: str, limit: int) -> list[str]:
    """Read the names of tenants after a name."""
    return [name for (name,) in connection.execute(SELECT_TENANTS, (after, after, limit))]


def read_log(
    connection: sqlite3.Connection, position: int, limit: int
) -> list[tuple[int, SessionKey, Change]]:
    """Read the log after a position: each row's position, session and change."""
    rows = connection.execute(SELECT_LOG, (position, limit)).fetchall()
    if not rows:
        page_cursor.check_reached(position, log_end(connection))
    return [
        (place, SessionKey(tenant, session_id), Change(*change))
        for place, tenant, session_id, *change in rows
    ]


def log_end(connection: sqlite3.Connection) -> int:
    """Read the last position that was given to a change."""
    return _end(connection, "changes")


def count_audit(connection: sqlite3.Connection, key: SessionKey, kind: str, request_id: str) -> int:
    """Count the entries of one kind and request."""
    (count,) = connection.execute(COUNT_AUDIT, (*key, request_id, kind)).fetchone()
    return int(count)


def read_audit(
    connection: sqlite3.Connection,
    tenant: str,
    session_id: str | None,
    position: int,
    limit: int,
) -> list[tuple[int, AuditEntry]]:
    """Read audit entries after a position, each with its own."""
    if session_id is None:
        rows = connection.execute(SELECT_AUDIT, (tenant, position, limit)).fetchall()
    else:
        chosen = (tenant, session_id, position, limit)
        rows = connection.execute(SELECT_SESSION_AUDIT, chosen).fetchall()
    if not rows:
        page_cursor.check_reached(position, _end(connection, "audit"))
    return [(place, AuditEntry(*entry)) for place, *entry in rows]


def get_setting(connection: sqlite3.Connection, tenant: str, name: str) -> bytes | None:
    """Read one setting."""
    row = connection.execute(SELECT_SETTING, (tenant, name)).fetchone()
    return None if row is None else bytes(row[0])


def list_settings(
    connection: sqlite3.Connection, tenant: str, after: str, limit: int
) -> list[tuple[str, bytes]]:
    """Read a tenant's settings after a name."""
    rows = connection.execute(SELECT_SETTINGS, (tenant, after, limit))
    return [(name, bytes(value)) for name, value in rows]


def store_id(connection: sqlite3.Connection) -> bytes:
    """Read the store's id, which its cursors contain."""
    row = connection.execute(SELECT_STORE_ID).fetchone()
    if row is None:
        raise StoreCorrupt("the store's file has lost its identity; restore it from a backup")
    return bytes(row[0])


def _end(connection: sqlite3.Connection, table: str) -> int:
    row = connection.execute(SELECT_END, (table,)).fetchone()
    return 0 if row is None else int(row[0])
