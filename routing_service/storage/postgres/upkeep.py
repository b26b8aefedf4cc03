"""The PostgreSQL statements outside the requests' path: due sessions, leases, erasing, deleting.

Each method is one statement, which is one round trip and one transaction.
"""

from __future__ import annotations

from typing import Any

from routing_service.storage.postgres.connection import Connection
from routing_service.storage.store import INT_MAX, SessionKey


class UpkeepRows:
    """The statements on the tables of one schema."""

    def __init__(self, schema: str) -> None:
        """Name the tables. schema: a name that needs no quotes."""

        def statement(text: str) -> bytes:
            return text.replace("@", f"{schema}.").encode()

        # due_us <= $1 is what lets the partial index serve.
        self._select_due = statement(
            "SELECT due_us, tenant, session_id FROM @sessions WHERE due_us <= $1::bigint "
            "ORDER BY due_us LIMIT $2"
        )
        self._acquire_lease = statement(
            "SELECT @acquire_lease($1::text, $2::text, $3::bigint, $4::bigint)"
        )
        self._blank_beside = statement("SELECT @blank_beside($1::text, $2::text)")
        self._blank_changes = statement(
            "SELECT @blank_changes($1::text, $2::text, $3::bigint, $4::bigint, $5::bytea)"
        )
        self._blank_owner = statement("SELECT @blank_owner($1::text, $2::text)")
        self._delete_session = statement("SELECT @delete_session($1::text, $2::text, $3::bigint)")

    async def due_rows(
        self, connection: Connection, now_us: int, limit: int
    ) -> list[tuple[int, SessionKey]]:
        """Read what is due and since when, the earliest first."""
        wanted = (min(now_us, INT_MAX), limit)
        cursor = await connection.execute(self._select_due, wanted, binary=True)
        return [(due_us, SessionKey(*key)) for due_us, *key in await cursor.fetchall()]

    async def acquire_lease(
        self, connection: Connection, name: str, holder: str, now_us: int, until_us: int
    ) -> bool:
        """Take, renew or give up a lease; whether it was the holder's to do so."""
        ends_us = until_us if until_us > now_us else 0
        taken = await _value(connection, self._acquire_lease, name, holder, now_us, ends_us)
        return bool(taken)

    async def blank_beside(self, connection: Connection, key: SessionKey) -> int:
        """Blank the session's tasks and audit entries; return the head's revision, 0 = none."""
        return int(await _value(connection, self._blank_beside, *key))

    async def blank_changes(
        self, connection: Connection, key: SessionKey, after: int, upto: int, blank: bytes
    ) -> int:
        """Blank the changes with after < revision <= upto; return how many were not blank."""
        return int(await _value(connection, self._blank_changes, *key, after, upto, blank))

    async def blank_owner(self, connection: Connection, key: SessionKey) -> None:
        """Blank the session's owner."""
        await _value(connection, self._blank_owner, *key)

    async def delete_session(self, connection: Connection, key: SessionKey, revision: int) -> int:
        """Remove a session that is at a revision; return where it is, anything else = it stays."""
        return int(await _value(connection, self._delete_session, *key, revision))


async def _value(connection: Connection, statement: bytes, *values: object) -> Any:
    cursor = await connection.execute(statement, values, binary=True)
    row = await cursor.fetchone()
    assert row is not None, "a function's call has one row"
    return row[0]
