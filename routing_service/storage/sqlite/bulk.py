"""Many appends in a few statements: what makes a group cheap.

It writes the appends that are certain to succeed and says which those are; the caller writes the
others one by one, so that each gets an answer of its own.

Why: every step of a statement releases Python's interpreter lock and has to get it back from the
thread of the event loop. Row by row that is a dozen times for each append, and a busy event loop
can keep it for milliseconds each time. Together it is some twenty times for the whole group.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from routing_service.storage.sqlite.queue_rows import write_entries
from routing_service.storage.store import Append

APPENDS_MAX: Final = 256
"""Appends in one group. Beyond this the disk's share of a write is a few microseconds, and the
first of the group would only wait longer for the last. (With eight tasks in each it makes 18,432
parameters in one statement; SQLite takes 32,766.)"""

_Row = tuple[Any, ...]


def write_together(connection: sqlite3.Connection, appends: Sequence[Append]) -> list[bool]:
    """Write the appends that certainly have no conflict; return for each whether it was written.

    Skipped are several appends of one session, one task id in several appends, a base revision that
    is not the head, and a task of another session. Raises sqlite3.IntegrityError, with half of the
    group written, if an append was stored before under its request id, which only writing shows.
    """
    assert len(appends) <= APPENDS_MAX, len(appends)
    heads = _read_heads(connection, appends)
    owners = _read_task_owners(connection, appends)
    alone = _without_neighbours(appends)
    # Every new session takes the next number, so it need not be read.
    session_no_next = 0
    if len(heads) < len(appends):
        session_no_next = 1 + connection.execute(_LAST_SESSION_NO).fetchone()[0]
    written: list[bool] = []
    chosen: list[tuple[int, Append]] = []
    for place, append in enumerate(appends):
        session_no, revision, create_us = heads.get(place, (session_no_next, 0, 0))
        is_base = revision == append.base_revision and append.begun_us in (None, create_us)
        sure = alone[place] and is_base and owners[place] <= {session_no}
        written.append(sure)
        if sure:
            chosen.append((session_no, append))
            session_no_next += session_no == session_no_next
    if chosen:
        _write(connection, chosen)
    return written


def _without_neighbours(appends: Sequence[Append]) -> list[bool]:
    """Return for each append whether no other has its session or one of its tasks."""
    sessions = Counter(append.key for append in appends)
    tasks = Counter(name for append in appends for name in _task_names(append))
    return [
        sessions[append.key] == 1 and all(tasks[name] == 1 for name in _task_names(append))
        for append in appends
    ]


def _task_names(append: Append) -> set[tuple[str, str]]:
    return {(append.key.tenant, task.task_id) for task in append.tasks}


def _read_heads(
    connection: sqlite3.Connection, appends: Sequence[Append]
) -> dict[int, tuple[int, int, int]]:
    """Read (session_no, revision, create_us) by the append's place in the group."""
    wanted = [(place, *append.key) for place, append in enumerate(appends)]
    found = _execute_look(connection, _SELECT_HEADS, wanted)
    return {place: (number, revision, begun_us) for place, number, revision, begun_us in found}


def _read_task_owners(
    connection: sqlite3.Connection, appends: Sequence[Append]
) -> dict[int, set[int]]:
    """Read the session_nos that have the append's tasks, by its place in the group."""
    owners: defaultdict[int, set[int]] = defaultdict(set)
    wanted = [
        (place, *name) for place, append in enumerate(appends) for name in _task_names(append)
    ]
    if wanted:
        for place, session_no in _execute_look(connection, _SELECT_TASK_OWNERS, wanted):
            owners[place].add(session_no)
    return owners


def _write(connection: sqlite3.Connection, chosen: Sequence[tuple[int, Append]]) -> None:
    changes: list[_Row] = []
    new_sessions: list[_Row] = []
    sessions: list[_Row] = []
    tasks: list[_Row] = []
    for session_no, append in chosen:
        change, key = append.change, append.key
        changes.append(
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
            )
        )
        head = (
            session_no,
            append.user_id,
            change.revision,
            change.time_us,
            append.state,
            append.due_us,
        )
        if append.base_revision == 0:
            new_sessions.append((*head, *key, change.time_us))
        else:
            sessions.append(head)
        tasks.extend(
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
            )
            for task in append.tasks
        )
    for statement, rows in (
        (_INSERT_SESSIONS, new_sessions),
        (_UPDATE_SESSIONS, sessions),
        (_INSERT_CHANGES, changes),
        (_UPSERT_TASKS, tasks),
    ):
        if rows:
            run_with_rows(connection, statement, rows)
    for _, append in chosen:
        if append.inbox_put or append.inbox_drop:
            write_entries(connection, append.key.tenant, append.inbox_put, append.inbox_drop)


# Each statement has {rows} in place of its rows, whose number is a power of two, so the driver has
# only ten forms of each statement to keep prepared. Surplus rows are all NULL.
# OR FAIL: without it SQLite copies every page aside to be able to undo half a statement, which is
# not needed: a group that fails is rolled back whole. Measured: 12 % of the time of a group of 32,
# 31 % of one of 8.

_LAST_SESSION_NO: Final = "SELECT ifnull(max(session_no), 0) FROM sessions"
# group_concat returns one row, and so takes one step, for any number of matches.
_SELECT_HEADS: Final = (
    "SELECT group_concat(wanted.column1 || ' ' || session_no || ' ' || revision "
    "|| ' ' || create_us) "
    "FROM ({rows}) AS wanted CROSS JOIN sessions "
    "ON tenant = wanted.column2 AND session_id = wanted.column3"
)
_SELECT_TASK_OWNERS: Final = (
    "SELECT group_concat(wanted.column1 || ' ' || session_no) "
    "FROM ({rows}) AS wanted CROSS JOIN tasks "
    "ON tenant = wanted.column2 AND task_id = wanted.column3"
)
_INSERT_CHANGES: Final = (
    "INSERT OR FAIL INTO changes (session_no, revision, time_us, method, request_id, actor, "
    "fingerprint, events, answer) SELECT * FROM ({rows}) WHERE column1 IS NOT NULL"
)
_INSERT_SESSIONS: Final = (
    "INSERT OR FAIL INTO sessions (session_no, user_id, revision, update_us, state, due_us, "
    "tenant, session_id, create_us) SELECT * FROM ({rows}) WHERE column1 IS NOT NULL"
)
_UPDATE_SESSIONS: Final = (
    "UPDATE OR FAIL sessions SET user_id = now.column2, revision = now.column3, "
    "update_us = now.column4, state = now.column5, due_us = now.column6 FROM ({rows}) AS now "
    "WHERE session_no = now.column1"
)
_UPSERT_TASKS: Final = (
    "INSERT OR FAIL INTO tasks (tenant, task_id, session_no, user_id, status, create_us, "
    "update_us, expire_us, data) SELECT * FROM ({rows}) WHERE column1 IS NOT NULL "
    "ON CONFLICT (tenant, task_id) DO UPDATE SET user_id = excluded.user_id, "
    "status = excluded.status, update_us = excluded.update_us, expire_us = excluded.expire_us, "
    "data = excluded.data"
)


def _execute_look(
    connection: sqlite3.Connection, statement: str, rows: Sequence[_Row]
) -> list[list[int]]:
    """Run a statement that returns numbers as one text, "1 2 3,4 5 6"."""
    (found,) = run_with_rows(connection, statement, rows).fetchone()
    return [
        [int(number) for number in entry.split()] for entry in (found or "").split(",") if entry
    ]


def run_with_rows(
    connection: sqlite3.Connection, statement: str, rows: Sequence[_Row]
) -> sqlite3.Cursor:
    """Run a statement that has {rows} in place of its rows."""
    columns = len(rows[0])
    size = 1 << (len(rows) - 1).bit_length()
    values = [value for row in rows for value in row]
    values.extend([None] * (columns * (size - len(rows))))
    return connection.execute(_with_rows(statement, size, columns), values)


@cache
def _with_rows(statement: str, size: int, columns: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return statement.format(rows=f"VALUES {', '.join([row] * size)}")
