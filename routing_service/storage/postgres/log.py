"""Reading the log and the audit of PostgreSQL in an order that misses nothing.

Only rows below every running transaction are read, because only there no row can come in between
any more. (migrations/0001_sessions.sql says how labels are given.)

A transaction that has written and stays open holds the log back, in whichever database of the
server it is. A read that finds committed rows held back waits a little for them, so that a caller
who appended and then reads the log usually finds its own change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import structlog

from routing_service.storage.page_cursor import Places, check_reached
from routing_service.storage.postgres.bounds import DEFAULT_BOUNDS, PostgresBounds
from routing_service.storage.postgres.connection import Connection
from routing_service.storage.store import INT_MAX, AuditEntry, Change, SessionKey

HELD_BACK_POLL_S: Final = 0.002
"""The first pause between two reads; each is twice the one before."""

HELD_BACK_WARN_S: Final = 60.0
"""How often a log that is held back is logged."""

PLACES: Final = 2
"""A place in a list is the label and the position of the row before it."""

_CHANGE: Final = "revision, time_us, method, request_id, actor, fingerprint, events, answer"
_ENTRY: Final = "time_us, tenant, session_id, revision, kind, request_id, user_id, data"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Page:
    """The bounds of a list at one read."""

    rows: list[tuple[Any, ...]]
    complete_label: int
    """No row can be added below it any more."""
    newest_label: int
    """The label of the newest committed row, held back or not; 0 = no rows."""
    last_position: int
    """The last position that was given out in the requested list."""


Look = Callable[[], Awaitable[_Page]]
Fetch = Callable[[Callable[[Connection], Awaitable[_Page]]], Awaitable[_Page]]


class LogReader:
    """Reads the log and the audit of one schema, through connections of the caller's."""

    def __init__(self, schema: str, fetch: Fetch, bounds: PostgresBounds = DEFAULT_BOUNDS) -> None:
        """Name the tables. fetch: calls its argument with a connection."""

        def statement(table: str, columns: str, wanted: str) -> bytes:
            text = _SELECT_PAGE.replace("@", f"{schema}.")
            text = text.replace("<table>", table).replace("<columns>", columns)
            return text.replace("<wanted>", wanted).encode()

        self._fetch = fetch
        self._held_back_wait_s = bounds.held_back_wait_s
        changes = f"tenant, session_id, {_CHANGE}"
        self._select_log = statement("changes", changes, "")
        # position > 0 holds for every row: it names the index that serves (see the migration).
        self._select_audit = statement("audit", _ENTRY, "position > 0 AND tenant = $4 AND")
        self._select_session_audit = statement(
            "audit", _ENTRY, "position > 0 AND tenant = $4 AND session_id = $5 AND"
        )
        self._select_end = _SELECT_END.replace("@", f"{schema}.").encode()
        self._warned_at_s = -HELD_BACK_WARN_S

    async def read_log(
        self, after: Places, limit: int
    ) -> tuple[list[tuple[SessionKey, Change]], Places]:
        """Read the changes after a place, and the place after them. Raises CursorInvalid."""
        rows, place = await self._read(self._select_log, after, limit)
        entries = [
            (SessionKey(tenant, session_id), Change(*change))
            for _, _, tenant, session_id, *change in rows
        ]
        return entries, place

    async def read_audit(
        self, tenant: str, session_id: str | None, after: Places, limit: int
    ) -> tuple[list[AuditEntry], Places]:
        """Read audit entries after a place, and the place after them. Raises CursorInvalid."""
        if session_id is None:
            rows, place = await self._read(self._select_audit, after, limit, tenant)
        else:
            chosen = self._select_session_audit
            rows, place = await self._read(chosen, after, limit, tenant, session_id)
        return [AuditEntry(*entry) for _, _, *entry in rows], place

    async def log_end(self) -> Places:
        """Find the place after all that is committed and not held back."""

        async def look() -> _Page:
            return await self._fetch(self._end_page)

        page = await self._complete(look, limit=INT_MAX)
        return page.rows[0][:2] if page.rows else (0,) * PLACES

    async def _end_page(self, connection: Connection) -> _Page:
        cursor = await connection.execute(self._select_end, binary=True)
        return _as_page(await cursor.fetchall())

    async def _read(
        self, statement: bytes, after: Places, limit: int, *wanted: str
    ) -> tuple[list[tuple[Any, ...]], Places]:
        async def fetch_page(connection: Connection) -> _Page:
            values = (*after, limit, *wanted)
            cursor = await connection.execute(statement, values, binary=True)
            return _as_page(await cursor.fetchall())

        async def look() -> _Page:
            return await self._fetch(fetch_page)

        page = await self._complete(look, limit=limit)
        if not page.rows:
            check_reached(after[1], page.last_position)
            return [], after
        return page.rows, page.rows[-1][:2]

    async def _complete(self, look: Look, *, limit: int) -> _Page:
        """Read until all rows committed at the first read are visible, or time is up."""
        page = await look()
        wanted_label = page.newest_label
        now_s = asyncio.get_running_loop().time
        ends_s = now_s() + self._held_back_wait_s
        pause_s = HELD_BACK_POLL_S
        while len(page.rows) < limit and page.complete_label <= wanted_label:
            left_s = ends_s - now_s()
            if left_s <= 0:
                self._warn(page)
                break
            await asyncio.sleep(min(pause_s, left_s))
            pause_s *= 2
            page = await look()
        return page

    def _warn(self, page: _Page) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s < self._warned_at_s + HELD_BACK_WARN_S:
            return
        self._warned_at_s = now_s
        _log.warning(
            "store_log_held_back",
            by_transaction=page.complete_label,
            newest=page.newest_label,
            remedy="end what keeps a transaction open: pg_stat_activity has it by backend_xid",
        )


def _as_page(rows: list[tuple[Any, ...]]) -> _Page:
    complete_label, newest_label, last_position = rows[0][:3]
    found = [row[3:] for row in rows if row[3] is not None]
    return _Page(found, complete_label, newest_label or 0, last_position or 0)


# At least one row comes back, with the bounds of the list even if it has no rows.
_SELECT_PAGE: Final = """
SELECT bounds.*, page.*
FROM (
    SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint + log_offset AS complete_label,
        (
            SELECT label FROM @<table>
            WHERE <wanted> (label, position) > ($1, $2)
            ORDER BY label DESC, position DESC LIMIT 1
        ) AS newest_label,
        (SELECT last_value FROM @<table>_position_seq) AS last_position
    FROM @store
) AS bounds
LEFT JOIN LATERAL (
    SELECT label, position, <columns> FROM @<table>
    WHERE <wanted> (label, position) > ($1, $2) AND label < bounds.complete_label
    ORDER BY label, position LIMIT $3
) AS page ON true
ORDER BY label, position
"""

_SELECT_END: Final = """
SELECT bounds.*, page.*
FROM (
    SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint + log_offset AS complete_label,
        (SELECT max(label) FROM @changes) AS newest_label,
        (SELECT last_value FROM @changes_position_seq) AS last_position
    FROM @store
) AS bounds
LEFT JOIN LATERAL (
    SELECT label, position FROM @changes
    WHERE label < bounds.complete_label
    ORDER BY label DESC, position DESC LIMIT 1
) AS page ON true
"""
