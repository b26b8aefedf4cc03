"""Named points in the course of a write, at which a test can inject an action.

Owns the points, the actions, and their wrappers around the service's functions. The service has no
hook for this and pays nothing for it; a point is a wrapper around a function or a statement, put
there by a test or by spoilt_server.py, which reads TORTURE_FAILPOINTS once, at its start.

append.begin      before the transaction of a group with an append in it begins
    append.insert     before the first of its rows is written
    append.commit     before COMMIT
    append.committed  after COMMIT, on the writer's thread
    acknowledge       in the event loop, before a write's caller hears of it
    publish           before watchers hear of a change
    published         after they did
    answer            after the handler is done, before the answer leaves

TORTURE_FAILPOINTS="append.commit=crash@3;publish=delay:0.2"

An action is crash (SIGKILL), error (what the disk or a bug would raise) or delay:SECONDS, at the
n-th time (@n, first if left out), counted from the moment that the server serves.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from routing_service.rpc.routing.complete_turn import CompleteTurnCalls
from routing_service.rpc.routing.handoffs import HandoffCalls
from routing_service.rpc.routing.route import RouteCalls
from routing_service.server import process
from routing_service.sessions import event_feed
from routing_service.storage.sqlite import connection as sqlite_connection
from routing_service.storage.sqlite import writer as sqlite_writer
from routing_service.storage.store import StoreUnavailable

POINTS: Final = (
    "append.begin",
    "append.insert",
    "append.commit",
    "append.committed",
    "acknowledge",
    "publish",
    "published",
    "answer",
)

ACTIONS: Final = ("crash", "error", "delay")

WRITING_RPCS: Final = (
    (RouteCalls, "route"),
    (HandoffCalls, "set_active_agent"),
    (HandoffCalls, "clear_active_agent"),
    (CompleteTurnCalls, "complete_turn"),
)

_SPEC: Final = re.compile(
    r"(?P<point>[a-z.]+)=(?P<action>[a-z]+)(:(?P<delay_s>[0-9.]+))?(@(?P<nth>[0-9]+))?"
)


class Failed(Exception):
    """An error as a bug in the service would raise it."""


@dataclass(frozen=True, slots=True)
class Failpoint:
    """One action at one point. nth: the pass that triggers it, from 1."""

    point: str
    action: str
    delay_s: float = 0.0
    nth: int = 1


@dataclass(slots=True)
class Failpoints:
    """The failpoints of one process. armed: whether points are counted. met: passes of each.

    released: a test sets it to end delays in other threads at once.
    """

    planned: tuple[Failpoint, ...]
    armed: bool = False
    met: Counter[str] = field(default_factory=Counter)
    released: threading.Event = field(default_factory=threading.Event)

    def due(self, point: str) -> Failpoint | None:
        """Count a pass, and return the action that is due."""
        if not self.armed:
            return None
        self.met[point] += 1
        for failpoint in self.planned:
            if failpoint.point == point and failpoint.nth == self.met[point]:
                return failpoint
        return None

    def pass_by(self, point: str, error: Callable[[], Exception] = Failed) -> None:
        """Do what is due at a point; a delay blocks the thread."""
        failpoint = self.due(point)
        if failpoint is not None:
            _act(failpoint, error)
            self.released.wait(failpoint.delay_s)


def parse(text: str) -> tuple[Failpoint, ...]:
    """Read a specification. Raises ValueError."""
    found = []
    for part in filter(None, text.split(";")):
        read = _SPEC.fullmatch(part)
        if read is None or read["point"] not in POINTS or read["action"] not in ACTIONS:
            raise ValueError(
                f'"{part}" is no failpoint; give POINT=ACTION[:SECONDS][@N] with one of '
                f"{', '.join(POINTS)} and one of {', '.join(ACTIONS)}"
            )
        found.append(
            Failpoint(
                read["point"], read["action"], float(read["delay_s"] or 0), int(read["nth"] or 1)
            )
        )
    return tuple(found)


def install(planned: tuple[Failpoint, ...]) -> Failpoints:
    """Install the points for the rest of the process; they count once it serves."""
    points = Failpoints(planned)
    for owner, name, replacement in _wrappers(points):
        setattr(owner, name, replacement)
    announce = process._announce

    def armed_announce(*addresses: str) -> None:
        points.armed = True
        announce(*addresses)

    process._announce = armed_announce
    return points


@contextmanager
def installed(text: str) -> Iterator[Failpoints]:
    """Install the points in this process for a block; the test arms them."""
    points = Failpoints(parse(text))
    before = []
    try:
        for owner, name, replacement in _wrappers(points):
            before.append((owner, name, getattr(owner, name)))
            setattr(owner, name, replacement)
        yield points
    finally:
        for owner, name, original in reversed(before):
            setattr(owner, name, original)


def _act(failpoint: Failpoint, error: Callable[[], Exception]) -> None:
    if failpoint.action == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if failpoint.action == "error":
        raise error()


def _disk_error() -> Exception:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
    error.sqlite_errorname = "SQLITE_IOERR"
    return error


def _wrappers(points: Failpoints) -> list[tuple[Any, str, Any]]:
    """Return the functions to replace, and their wrappers."""
    return [
        *_around_transactions(points),
        (sqlite_writer, "_settle", _around_settle(points)),
        (event_feed.EventFeed, "publish", _around_publish(points)),
        *((calls, name, _around_answer(points, calls, name)) for calls, name in WRITING_RPCS),
    ]


def _around_transactions(points: Failpoints) -> list[tuple[Any, str, Any]]:
    """Watch for the statements of a group that contains an append."""
    in_transaction = sqlite_writer._in_transaction
    connect = sqlite_connection.sqlite3.connect
    now = threading.local()

    class Connection(sqlite3.Connection):
        def executescript(self, statements: str) -> sqlite3.Cursor:
            if getattr(now, "watched", False) and statements.startswith("BEGIN"):
                points.pass_by("append.begin", _disk_error)
            return super().executescript(statements)

        def execute(self, statement: str, *args: Any) -> sqlite3.Cursor:
            watched = getattr(now, "watched", False)
            if watched and statement.startswith(("INSERT", "UPDATE")) and not now.inserted:
                now.inserted = True
                points.pass_by("append.insert", _disk_error)
            return super().execute(statement, *args)

        def commit(self) -> None:
            watched = getattr(now, "watched", False)
            if watched:
                points.pass_by("append.commit", _disk_error)
            super().commit()
            if watched:
                points.pass_by("append.committed", _disk_error)

    def watched_transaction(connection: Any, writes: Any) -> Any:
        now.watched, now.inserted = any(write.append is not None for write in writes), False
        try:
            return in_transaction(connection, writes)
        finally:
            now.watched = False

    def watched_connect(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        return connect(*args, **(kwargs | {"factory": Connection}))

    return [
        (sqlite_writer, "_in_transaction", watched_transaction),
        (sqlite_connection.sqlite3, "connect", watched_connect),
    ]


def _around_settle(points: Failpoints) -> Any:
    settle = sqlite_writer._settle

    def watched_settle(waiting: Any, outcome: Any) -> None:
        if waiting.write.append is not None:
            try:
                points.pass_by("acknowledge", lambda: StoreUnavailable("the store failed"))
            except StoreUnavailable as error:
                outcome = error
        settle(waiting, outcome)

    return watched_settle


def _around_publish(points: Failpoints) -> Any:
    publish = event_feed.EventFeed.publish

    def watched_publish(feed: Any, key: Any, change: Any) -> None:
        points.pass_by("publish")
        publish(feed, key, change)
        points.pass_by("published")

    return watched_publish


def _around_answer(points: Failpoints, calls: type, name: str) -> Any:
    method = getattr(calls, name)

    async def watched_method(*args: Any) -> Any:
        answered = await method(*args)
        failpoint = points.due("answer")
        if failpoint is not None:
            _act(failpoint, Failed)
            await asyncio.sleep(failpoint.delay_s)
        return answered

    return watched_method
