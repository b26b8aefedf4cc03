"""The SQLite statements outside the requests' path: due sessions, leases, erasing, deleting.

A write runs inside the group's transaction. A write that refuses has not written yet, so that a
refusal needs no rollback of the other writes.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from routing_service.storage.sqlite.rows import SELECT_HEAD
from routing_service.storage.store import INT_MAX, RevisionConflict, SessionKey

# due_us <= ? is what lets the partial index serve.
SELECT_DUE: Final = (
    "SELECT tenant, session_id FROM sessions WHERE due_us <= ? ORDER BY due_us LIMIT ?"
)
UPSERT_LEASE: Final = (
    "INSERT INTO leases (name, holder, until_us) VALUES (?, ?, ?) "
    "ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until_us = excluded.until_us "
    "WHERE leases.holder = excluded.holder OR leases.until_us <= ?"
)
BLANK_CHANGES: Final = (
    "UPDATE changes SET events = ?3, answer = x'', fingerprint = x'' "
    "WHERE session_no = "
    "(SELECT session_no FROM sessions WHERE tenant = ?1 AND session_id = ?2) "
    "AND revision > ?4 AND revision <= ?5 "
    "AND (events <> ?3 OR answer <> x'' OR fingerprint <> x'')"
)
BLANK_TASKS: Final = (
    "UPDATE tasks SET user_id = '', data = x'' WHERE session_no = "
    "(SELECT session_no FROM sessions WHERE tenant = ? AND session_id = ?) "
    "AND (user_id <> '' OR data <> x'')"
)
BLANK_AUDIT: Final = (
    "UPDATE audit SET user_id = '', data = x'' WHERE tenant = ? AND session_id = ? "
    "AND (user_id <> '' OR data <> x'')"
)
BLANK_OWNER: Final = "UPDATE sessions SET user_id = '' WHERE tenant = ? AND session_id = ?"
DELETE_CHANGES: Final = "DELETE FROM changes WHERE session_no = ?"
DELETE_TASKS: Final = "DELETE FROM tasks WHERE session_no = ?"
DELETE_SESSION: Final = "DELETE FROM sessions WHERE session_no = ?"


def due_sessions(connection: sqlite3.Connection, now_us: int, limit: int) -> list[SessionKey]:
    """Read what is due, the earliest first."""
    rows = connection.execute(SELECT_DUE, (min(now_us, INT_MAX), limit))
    return [SessionKey(*row) for row in rows]


def acquire_lease(
    connection: sqlite3.Connection, name: str, holder: str, now_us: int, until_us: int
) -> bool:
    """Take, renew or give up a lease; whether it was the holder's to do so."""
    ends_us = until_us if until_us > now_us else 0
    written = connection.execute(UPSERT_LEASE, (name, holder, ends_us, now_us))
    return written.rowcount == 1


def blank_beside(connection: sqlite3.Connection, key: SessionKey) -> int:
    """Blank the session's tasks and audit entries; return how many were not blank before."""
    tasks = connection.execute(BLANK_TASKS, key).rowcount
    return tasks + connection.execute(BLANK_AUDIT, key).rowcount


def blank_changes(
    connection: sqlite3.Connection, key: SessionKey, after: int, upto: int, blank: bytes
) -> int:
    """Blank the changes with after < revision <= upto; return how many were not blank before."""
    return connection.execute(BLANK_CHANGES, (*key, blank, after, upto)).rowcount


def blank_owner(connection: sqlite3.Connection, key: SessionKey) -> None:
    """Blank the session's owner."""
    connection.execute(BLANK_OWNER, key)


def delete_session(connection: sqlite3.Connection, key: SessionKey, revision: int) -> None:
    """Remove a session that is at a revision. Raises RevisionConflict."""
    head = connection.execute(SELECT_HEAD, key).fetchone()
    session_no, actual = head if head is not None else (None, 0)
    if actual != revision:
        raise RevisionConflict(key, revision, actual)
    connection.execute(BLANK_AUDIT, key)
    for statement in (DELETE_CHANGES, DELETE_TASKS, DELETE_SESSION):
        connection.execute(statement, (session_no,))
