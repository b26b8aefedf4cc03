"""Session heads read together: the loads asked for during one read are the next read.

If few writes are in hand, a read does not wait for others. Each caller gets its own session or the
error.

Why: a read costs two thread switches and a dozen turns at the interpreter lock, and each session's
row adds next to nothing.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from typing import Final

from routing_service.storage.in_hand import WritesInHand
from routing_service.storage.sqlite import rows as sqlite_rows
from routing_service.storage.sqlite.bounds import DEFAULT_BOUNDS, SqliteBounds
from routing_service.storage.sqlite.bulk import run_with_rows
from routing_service.storage.sqlite.connection import ConnectionThread
from routing_service.storage.store import Head, SessionKey, StoreClosed

_SELECT_STATES: Final = (
    "SELECT wanted.column1, revision, state FROM ({rows}) AS wanted CROSS JOIN sessions "
    "ON tenant = wanted.column2 AND session_id = wanted.column3"
)


class HeadReader:
    """Reads heads through one connection."""

    def __init__(
        self,
        connection: ConnectionThread,
        in_hand: WritesInHand,
        *,
        bounds: SqliteBounds = DEFAULT_BOUNDS,
    ) -> None:
        """Use a connection that the caller closes."""
        self._connection = connection
        self._in_hand = in_hand
        self._bounds = bounds
        self._had_company = True
        self._company: asyncio.Future[None] | None = None
        self._is_closing = False
        self._waiting: list[tuple[SessionKey, asyncio.Future[Head | None]]] = []
        self._reading: asyncio.Task[None] | None = None

    async def load(self, key: SessionKey) -> Head | None:
        """Return a session's head, or None if it does not exist. Raises sqlite3.Error."""
        outcome: asyncio.Future[Head | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((key, outcome))
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(), name="sqlite heads")
        return await outcome

    async def close(self) -> None:
        """Finish the waiting reads. No reads may be asked for any more."""
        self._is_closing = True
        _end(self._company)
        if self._reading is not None:
            await asyncio.wait([self._reading])

    async def _read(self) -> None:
        try:
            while self._waiting:
                await self._gather_company()
                reads_max = self._bounds.reads_max
                group, self._waiting = self._waiting[:reads_max], self._waiting[reads_max:]
                self._had_company = len(group) > 1
                try:
                    heads = await self._connection.run(load_heads, [key for key, _ in group])
                except Exception as error:  # noqa: BLE001 - every waiting caller gets it
                    for _, outcome in group:
                        _fail(outcome, error)
                except asyncio.CancelledError:
                    self._waiting += group
                    raise
                else:
                    for (_, outcome), head in zip(group, heads, strict=True):
                        if not outcome.done():  # It is, where the caller was cancelled.
                            outcome.set_result(head)
        finally:
            self._reading = None
            waiting, self._waiting = self._waiting, []
            for _, outcome in waiting:
                _fail(outcome, StoreClosed())

    async def _gather_company(self) -> None:
        """Let a read wait for others if many write and the previous read was shared.

        Rare reads would wait in vain; frequent ones soon meet without a wait.
        """
        are_many = self._in_hand.are_many
        bounds = self._bounds
        wait_s = self._in_hand.lately * bounds.read_company_pace_s
        wait_s = min(wait_s, bounds.read_company_s_max)
        self._in_hand.fade()
        if not (are_many and self._had_company) or self._is_closing:
            return
        loop = asyncio.get_running_loop()
        self._company = loop.create_future()
        timer = loop.call_later(wait_s, _end, self._company)
        try:
            await self._company
        finally:
            timer.cancel()
            self._company = None


def load_heads(connection: sqlite3.Connection, keys: Sequence[SessionKey]) -> list[Head | None]:
    """Read the heads of sessions, in the order of their keys."""
    if len(keys) == 1:
        return [sqlite_rows.load(connection, keys[0])]
    rows = run_with_rows(
        connection, _SELECT_STATES, [(place, *key) for place, key in enumerate(keys)]
    )
    heads: list[Head | None] = [None] * len(keys)
    for place, revision, state in rows.fetchall():
        heads[place] = Head(revision, state)
    return heads


def _fail(outcome: asyncio.Future[Head | None], error: Exception) -> None:
    if not outcome.done():
        outcome.set_exception(error)


def _end(company: asyncio.Future[None] | None) -> None:
    if company is not None and not company.done():
        company.set_result(None)
