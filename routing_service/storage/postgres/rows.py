"""The statements of the PostgreSQL store: rows in and out, on a connection of the caller's.

Each method is one statement, which is one round trip and, as connections commit by themselves, one
transaction. The functions that write have their text in migrations/.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from routing_service.storage.engine import Span
from routing_service.storage.postgres.arrays import (
    bytes_array,
    int_array,
    optional_int_array,
    text_array,
)
from routing_service.storage.postgres.connection import Connection
from routing_service.storage.queue_entries import QueueEntry
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
    StoreError,
    StoreUnavailable,
    TaskCursor,
    TaskRow,
    TaskTaken,
)

_Row = tuple[Any, ...]

_CHANGE: Final = "revision, time_us, method, request_id, actor, fingerprint, events, answer"
_TASK: Final = "task_id, session_id, user_id, status, create_us, update_us, expire_us, data"

_APPEND_ARRAYS: Final = (
    *("text", "text", "bigint", "text", "bytea", "bigint", "text", "text", "text"),
    *("bytea", "bytea", "bytea"),
    *("bigint", "text", "text", "text", "text", "text", "bigint", "bigint", "bigint", "bytea"),
    "bigint",
    "bigint",
)
_ENTRY_ARRAYS: Final = ("bigint", "text", "text", "text", "bigint", "text", "text")
_AUDIT_ARRAYS: Final = ("text", "text", "bigint", "bigint", "text", "text", "text", "bytea")


def _values(types: Sequence[str]) -> str:
    return ", ".join(f"${number}::{name}[]" for number, name in enumerate(types, start=1))


_DURABLE: Final = (
    "WITH durable AS (SELECT CASE WHEN "
    "current_setting('synchronous_commit') IN ('on', 'remote_apply') THEN '' "
    "ELSE set_config('synchronous_commit', 'on', true) END AS done) "
)
"""The same as be_durable() of the migrations, for a statement outside functions."""


def _statement(schema: str, text: str) -> bytes:
    """Return a statement with the names of a schema.

    Names are written out rather than found by a search path, which a pooler's connection may have
    from another client.
    """
    return (
        text.replace("@", f"{schema}.")
        .replace("<change>", _CHANGE)
        .replace("<task>", _TASK)
        .replace("<durable>", _DURABLE)
        .encode()
    )


class Rows:
    """The statements on the tables of one schema."""

    def __init__(self, schema: str) -> None:
        """Name the tables. schema: a name that needs no quotes."""
        statement = partial(_statement, schema)
        self._prepare_writes(statement)
        self._prepare_reads(statement)

    def _prepare_writes(self, statement: Callable[[str], bytes]) -> None:
        self._append_group = statement(
            "SELECT * FROM @append_group(<values>)".replace("<values>", _values(_APPEND_ARRAYS))
        )
        self._append_group_entries = statement(
            "SELECT * FROM @append_group(<values>)".replace(
                "<values>", _values((*_APPEND_ARRAYS, *_ENTRY_ARRAYS))
            )
        )
        self._append_audit = statement(
            "SELECT @append_audit(<values>)".replace("<values>", _values(_AUDIT_ARRAYS))
        )
        self._put_setting = statement("SELECT @put_setting($1::text, $2::text, $3::bytea)")
        self._insert_setting = statement(
            "<durable>INSERT INTO @settings (tenant, name, value) "
            "SELECT $1::text, $2::text, $3::bytea FROM durable WHERE done IS NOT NULL "
            "ON CONFLICT (tenant, name) DO NOTHING RETURNING 1"
        )
        self._update_setting = statement(
            "<durable>UPDATE @settings SET value = $3::bytea FROM durable WHERE done IS NOT NULL "
            "AND tenant = $1::text AND name = $2::text AND value = $4::bytea RETURNING 1"
        )
        self._write_probe = statement("SELECT @write_probe()")

    def _prepare_reads(self, statement: Callable[[str], bytes]) -> None:
        self._select_state = statement(
            "SELECT revision, state FROM @sessions WHERE tenant = $1 AND session_id = $2"
        )
        self._select_revision = statement(
            "SELECT revision FROM @sessions WHERE tenant = $1 AND session_id = $2"
        )
        # revision > 0, request_id <> '' and create_us >= 0 hold for every row that is meant: they
        # name the index that serves (see the migration).
        changes = (
            "SELECT <change> FROM @changes WHERE tenant = $1 AND session_id = $2 "
            "AND revision > 0 AND revision > $3 AND revision < $4 "
            "ORDER BY revision <order> LIMIT $5"
        )
        self._select_changes = statement(changes.replace("<order>", ""))
        self._select_changes_newest_first = statement(changes.replace("<order>", "DESC"))
        self._select_request = statement(
            "SELECT <change> FROM @changes WHERE tenant = $1 AND session_id = $2 "
            "AND request_id = $3 AND method = $4 AND actor = $5 AND request_id <> ''"
        )
        self._select_task = statement(
            "SELECT <task> FROM @tasks WHERE tenant = $1 AND task_id = $2"
        )
        self._select_tasks = statement(
            "SELECT <task> FROM @tasks WHERE tenant = $1 AND session_id = $2 "
            "AND create_us >= 0 AND (create_us, task_id) > ($3, $4) "
            "ORDER BY create_us, task_id LIMIT $5"
        )
        self._select_sessions = statement(
            "SELECT session_id, user_id, revision, create_us, update_us, due_us FROM @sessions "
            "WHERE tenant = $1 AND session_id > $2 ORDER BY session_id LIMIT $3"
        )
        self._select_session = statement(
            "SELECT user_id, revision, create_us, update_us, due_us FROM @sessions "
            "WHERE tenant = $1 AND session_id = $2"
        )
        # From one name to the next by the indexes: one step per tenant, independent of its rows.
        self._select_tenants = statement(
            'WITH RECURSIVE names (name) AS (SELECT $1::text COLLATE "C" UNION ALL SELECT least('
            "(SELECT min(tenant) FROM @sessions WHERE tenant > names.name), "
            "(SELECT min(tenant) FROM @audit WHERE tenant > names.name AND position > 0), "
            "(SELECT min(tenant) FROM @settings WHERE tenant > names.name)) "
            "FROM names WHERE name IS NOT NULL) "
            'SELECT name FROM names WHERE name > $1::text COLLATE "C" LIMIT $2'
        )
        self._select_settings = statement(
            "SELECT name, value FROM @settings WHERE tenant = $1 AND name > $2 "
            "ORDER BY name LIMIT $3"
        )
        self._count_audit = statement(
            "SELECT count(*) FROM @audit "
            "WHERE tenant = $1 AND session_id = $2 AND request_id = $3 AND kind = $4"
        )
        self._select_setting = statement(
            "SELECT value FROM @settings WHERE tenant = $1 AND name = $2"
        )
        self._select_store_id = statement("SELECT store_id, clusters_home FROM @store")
        self._settle_log = statement("SELECT @settle_log()")

    async def append_group(
        self, connection: Connection, appends: Sequence[Append]
    ) -> dict[int, StoreError]:
        """Write a group and return the refusals by their place in it.

        appends: sorted by key; no session and no task id in two of them.
        """
        keys = [append.key for append in appends]
        changes = [append.change for append in appends]
        tasks = sorted(
            (append.key.tenant, task.task_id, item, task)
            for item, append in enumerate(appends, start=1)
            for task in _without_repeats(append.tasks)
        )
        entries = sorted(
            (append.key.tenant, entry, item, act)
            for item, append in enumerate(appends, start=1)
            for act, changed in (("put", append.inbox_put), ("drop", append.inbox_drop))
            for entry in changed
        )
        # Groups without entries, which are all where no agent has an inbox, send what they did.
        statement = self._append_group_entries if entries else self._append_group
        rows = await _fetch(
            connection,
            statement,
            text_array([key.tenant for key in keys]),
            text_array([key.session_id for key in keys]),
            int_array([append.base_revision for append in appends]),
            text_array([append.user_id for append in appends]),
            bytes_array([append.state for append in appends]),
            int_array([change.time_us for change in changes]),
            text_array([change.method for change in changes]),
            text_array([change.request_id for change in changes]),
            text_array([change.actor for change in changes]),
            bytes_array([change.fingerprint for change in changes]),
            bytes_array([change.events for change in changes]),
            bytes_array([change.answer for change in changes]),
            int_array([item for _, _, item, _ in tasks]),
            text_array([tenant for tenant, _, _, _ in tasks]),
            text_array([task.session_id for *_, task in tasks]),
            text_array([task.task_id for *_, task in tasks]),
            text_array([task.user_id for *_, task in tasks]),
            text_array([task.status for *_, task in tasks]),
            int_array([task.create_us for *_, task in tasks]),
            int_array([task.update_us for *_, task in tasks]),
            optional_int_array([task.expire_us for *_, task in tasks]),
            bytes_array([task.data for *_, task in tasks]),
            optional_int_array([append.due_us for append in appends]),
            optional_int_array([append.begun_us for append in appends]),
            *(_entry_arrays(entries) if entries else ()),
        )
        return _refusals(appends, rows)

    async def append_audit(self, connection: Connection, entries: Sequence[AuditEntry]) -> None:
        """Write audit entries."""
        await _fetch(
            connection,
            self._append_audit,
            text_array([entry.tenant for entry in entries]),
            text_array([entry.session_id for entry in entries]),
            int_array([entry.time_us for entry in entries]),
            int_array([entry.revision for entry in entries]),
            text_array([entry.kind for entry in entries]),
            text_array([entry.request_id for entry in entries]),
            text_array([entry.user_id for entry in entries]),
            bytes_array([entry.data for entry in entries]),
        )

    async def put_setting(
        self, connection: Connection, tenant: str, name: str, value: bytes
    ) -> None:
        """Write one setting."""
        await _fetch(connection, self._put_setting, tenant, name, value)

    async def swap_setting(
        self, connection: Connection, tenant: str, name: str, before: bytes | None, value: bytes
    ) -> bool:
        """Write one setting if it is unchanged; return whether it was."""
        if before is None:
            return bool(await _fetch(connection, self._insert_setting, tenant, name, value))
        return bool(await _fetch(connection, self._update_setting, tenant, name, value, before))

    async def write_probe(self, connection: Connection) -> None:
        """Change one row, so that the commit has to sync."""
        await _fetch(connection, self._write_probe)

    async def load(self, connection: Connection, key: SessionKey) -> Head | None:
        """Read a session's revision and state."""
        row = await _fetch_one(connection, self._select_state, *key)
        return None if row is None else Head(*row)

    async def head_revision(self, connection: Connection, key: SessionKey) -> int:
        """Read a session's revision; 0 if it does not exist."""
        row = await _fetch_one(connection, self._select_revision, *key)
        return 0 if row is None else int(row[0])

    async def read_changes(
        self, connection: Connection, key: SessionKey, span: Span
    ) -> list[Change]:
        """Read the changes with span.after < revision < span.before."""
        chosen = self._select_changes_newest_first if span.newest_first else self._select_changes
        rows = await _fetch(connection, chosen, *key, span.after, span.before, span.limit)
        return [Change(*row) for row in rows]

    async def find_request(
        self, connection: Connection, key: SessionKey, method: str, request_id: str, actor: str
    ) -> Change | None:
        """Read the change that a request made."""
        wanted = (*key, request_id, method, actor)
        row = await _fetch_one(connection, self._select_request, *wanted)
        return None if row is None else Change(*row)

    async def find_task(self, connection: Connection, tenant: str, task_id: str) -> TaskRow | None:
        """Read one task."""
        row = await _fetch_one(connection, self._select_task, tenant, task_id)
        return None if row is None else TaskRow(*row)

    async def list_tasks(
        self, connection: Connection, key: SessionKey, after: TaskCursor, limit: int
    ) -> list[TaskRow]:
        """Read a session's tasks in the order of (create_us, task_id)."""
        place = after
        rows = await _fetch(connection, self._select_tasks, *key, *place, limit)
        return [TaskRow(*row) for row in rows]

    async def list_sessions(
        self, connection: Connection, tenant: str, last_id: str, limit: int
    ) -> list[SessionRow]:
        """Read a tenant's sessions after an id."""
        rows = await _fetch(connection, self._select_sessions, tenant, last_id, limit)
        return [SessionRow(SessionKey(tenant, session_id), *rest) for session_id, *rest in rows]

    async def find_session(self, connection: Connection, key: SessionKey) -> SessionRow | None:
        """Read one session's row."""
        row = await _fetch_one(connection, self._select_session, *key)
        return None if row is None else SessionRow(key, *row)

    async def list_tenants(self, connection: Connection, after: str, limit: int) -> list[str]:
        """Read the names of tenants after a name."""
        return [name for (name,) in await _fetch(connection, self._select_tenants, after, limit)]

    async def list_settings(
        self, connection: Connection, tenant: str, after: str, limit: int
    ) -> list[tuple[str, bytes]]:
        """Read a tenant's settings after a name."""
        rows = await _fetch(connection, self._select_settings, tenant, after, limit)
        return [(name, bytes(value)) for name, value in rows]

    async def count_audit(
        self, connection: Connection, key: SessionKey, kind: str, request_id: str
    ) -> int:
        """Count the entries of one kind and request."""
        row = await _fetch_one(connection, self._count_audit, *key, request_id, kind)
        return 0 if row is None else int(row[0])

    async def get_setting(self, connection: Connection, tenant: str, name: str) -> bytes | None:
        """Read one setting."""
        row = await _fetch_one(connection, self._select_setting, tenant, name)
        return None if row is None else bytes(row[0])

    async def store_id(self, connection: Connection) -> bytes:
        """Read the store's id, which its cursors contain. Raises StoreError."""
        row = await _fetch_one(connection, self._select_store_id)
        if row is None:
            raise StoreCorrupt("the store has lost its identity; restore it from a backup")
        store_id, clusters_home = row
        if clusters_home is not None:
            # Its other tenants are in databases that this URL does not name.
            raise StoreUnavailable(
                "it is one of several clusters of a store, which this release does not serve; "
                "docs/scaling.md says how a gateway divides tenants"
            )
        return bytes(store_id)

    async def settle_log(self, connection: Connection) -> bool:
        """Raise the log's order above the stored rows; return whether that was needed."""
        row = await _fetch_one(connection, self._settle_log)
        return row is not None and bool(row[0])


def _without_repeats(tasks: Sequence[TaskRow]) -> list[TaskRow]:
    """Keep the last row of each task, as one statement writes each row once."""
    return list({task.task_id: task for task in tasks}.values())


def _entry_arrays(entries: Sequence[tuple[str, QueueEntry, int, str]]) -> tuple[bytes, ...]:
    return (
        int_array([item for _, _, item, _ in entries]),
        text_array([act for *_, act in entries]),
        text_array([tenant for tenant, *_ in entries]),
        text_array([entry.queue for _, entry, _, _ in entries]),
        int_array([entry.place_us for _, entry, _, _ in entries]),
        text_array([entry.session_id for _, entry, _, _ in entries]),
        text_array([entry.request_id for _, entry, _, _ in entries]),
    )


def _refusals(appends: Sequence[Append], rows: Sequence[_Row]) -> dict[int, StoreError]:
    refusals: dict[int, StoreError] = {}
    taken: dict[int, dict[str, str]] = {}
    for item, refusal, revision, *change, task_id, task_session_id in rows:
        place = item - 1
        append = appends[place]
        if refusal == "seen":
            refusals[place] = RequestSeen(append.key, Change(revision, *change))
        elif refusal == "conflict":
            refusals[place] = RevisionConflict(append.key, append.base_revision, revision)
        else:
            assert refusal == "taken", refusal
            taken.setdefault(place, {})[task_id] = task_session_id
    for place, owners in taken.items():
        first = next(task.task_id for task in appends[place].tasks if task.task_id in owners)
        refusals[place] = TaskTaken(first, owners[first])
    return refusals


async def _fetch(connection: Connection, statement: bytes, *values: object) -> list[_Row]:
    cursor = await connection.execute(statement, values, binary=True)
    return await cursor.fetchall()


async def _fetch_one(connection: Connection, statement: bytes, *values: object) -> _Row | None:
    cursor = await connection.execute(statement, values, binary=True)
    return await cursor.fetchone()
