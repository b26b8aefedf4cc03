"""One connection to PostgreSQL, set up as the store needs it, and the messages for its errors.

Only a server that takes writes is used, so that reads there see the latest. A password is in no
message and no log.

Why psycopg and not asyncpg. psycopg sends a statement with its values in one round trip without
preparing it, so that it works behind a pooler that gives each transaction another connection.
asyncpg, without its cache as it then has to be, takes two, and the pooler may change the
connection between them. In the event loop's time they are even: µs a call, the best of 12 rounds,

    group of appends           1      32     256     lookup
    psycopg, prepared        168     287   1,544         68
    psycopg, not prepared    165     289   1,514         95
    asyncpg, cached           87     216   1,937         25
    asyncpg, not cached      167     305   2,144         90
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import psycopg
import structlog
from psycopg import errors, pq

from routing_service.storage.postgres import arrays as postgres_arrays
from routing_service.storage.store import (
    AppendRefused,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from routing_service.storage.postgres.url import PostgresPlace

SERVER_VERSION_MIN: Final = 140000
"""PostgreSQL 14. pg_current_xact_id and gen_random_uuid need 13, which is out of support."""

RECONNECT_PAUSE_S: Final = 0.2
"""After a failed attempt to connect, calls fail at once for this long: with the server away, a
thousand callers make five attempts a second and not a thousand."""

PREPARE_AFTER_CALLS: Final = 5
"""A statement sent this often on one connection is prepared there. That saves the server parsing
and planning: half the cost of a lookup by key."""

IDLE_IN_TRANSACTION_S: Final = 30
"""The server ends our transactions that stay open and idle for this long. Only a hanging process
has such a transaction, and its row locks would stop others."""

KEEPALIVES: Final = {
    "keepalives": "1",
    "keepalives_idle": "30",
    "keepalives_interval": "5",
    "keepalives_count": "3",
}
"""An idle connection whose server vanished without closing it is detected within a minute."""

Connection: TypeAlias = psycopg.AsyncConnection[tuple[Any, ...]]

_log = structlog.get_logger(__name__)


class Connector:
    """Makes connections to one place."""

    def __init__(self, place: PostgresPlace) -> None:
        """Connect to nothing yet."""
        self._place = place
        self._parameters = _driver_parameters(place)
        self._failed: StoreUnavailable | None = None
        self._failed_at_s = 0.0

    @property
    def place(self) -> PostgresPlace:
        """Where it connects to."""
        return self._place

    async def connect(self) -> Connection:
        """Make a connection. Raises StoreUnavailable; for a while after it did, at once."""
        now_s = asyncio.get_running_loop().time()
        if self._failed is not None and now_s < self._failed_at_s + RECONNECT_PAUSE_S:
            raise StoreUnavailable(self._failed.reason) from self._failed.__cause__
        timeout_s = self._place.options.connect_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._connect()
        except (psycopg.Error, OSError, TimeoutError) as error:
            failed = StoreUnavailable("the store's server cannot be reached; try again")
            _log.error("store_connect_failed", store=self._place.shown, **self.error_fields(error))
            self._failed, self._failed_at_s = failed, asyncio.get_running_loop().time()
            raise failed from error
        except StoreUnavailable as failed:
            _log.error("store_connect_failed", store=self._place.shown, error=failed.reason)
            self._failed, self._failed_at_s = failed, asyncio.get_running_loop().time()
            raise
        self._failed = None
        return connection

    async def _connect(self) -> Connection:
        options = self._place.options
        connection = await psycopg.AsyncConnection.connect(
            **self._parameters,
            autocommit=True,
            cursor_factory=psycopg.AsyncRawCursor,
            prepare_threshold=None if options.transaction_pooler else PREPARE_AFTER_CALLS,
        )
        try:
            _check_server(connection)
        except BaseException:
            await connection.close()
            raise
        postgres_arrays.register(connection)
        return connection

    def error_fields(self, error: BaseException) -> dict[str, object]:
        """Return an error's full text for the log, without the password: see ``error_fields``."""
        fields = error_fields(error)
        if "error" in fields:
            fields["error"] = self._place.without_secrets(str(fields["error"]))
        return fields


def _driver_parameters(place: PostgresPlace) -> dict[str, Any]:
    options = place.options
    parameters: dict[str, Any] = {
        "application_name": "agent-routing",
        "connect_timeout": str(max(2, round(options.connect_timeout_s))),
        **KEEPALIVES,
        **place.parameters,
        # A standby that only reads may answer with old data.
        "target_session_attrs": "read-write",
        "client_encoding": "UTF8",
    }
    if not options.transaction_pooler:
        # Sent with the start of the connection: they cost no round trip. A pooler would have to
        # give them on to connections that others use too; there the role's own settings count.
        settings = {
            "statement_timeout": f"{options.call_timeout_s * 1000:.0f}",
            "lock_timeout": f"{options.lock_timeout_s * 1000:.0f}",
            "idle_in_transaction_session_timeout": f"{IDLE_IN_TRANSACTION_S * 1000}",
            "default_transaction_isolation": r"read\ committed",
            # Compiling pays for long queries only; the store's are short.
            "jit": "off",
        }
        parameters["options"] = " ".join(f"-c {name}={value}" for name, value in settings.items())
    return parameters


def _check_server(connection: Connection) -> None:
    version = connection.info.server_version
    if version < SERVER_VERSION_MIN:
        raise StoreUnavailable(
            f"the server is PostgreSQL {version // 10000}, the store needs "
            f"{SERVER_VERSION_MIN // 10000} or newer; upgrade the server"
        )
    encoding = connection.info.parameter_status("server_encoding")
    # A pooler need not report it.
    if encoding not in {"UTF8", None}:
        raise StoreUnavailable(
            f"the database has the encoding {encoding}, which cannot hold every text; "
            "create one with ENCODING 'UTF8'"
        )


def is_whole(connection: Connection) -> bool:
    """Whether a connection is open and idle."""
    return not connection.closed and connection.info.transaction_status == pq.TransactionStatus.IDLE


def is_usable(connection: Connection) -> bool:
    """Whether an idle connection is still usable.

    It checks the socket once: a server that has gone away has sent its end, and an idle connection
    has nothing else to receive. (What a reload of the server's settings sends costs a new
    connection, no more.)
    """
    if not is_whole(connection):
        return False
    if sys.platform == "win32":
        return not select.select([connection.fileno()], [], [], 0)[0]
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN | select.POLLPRI)
    return not poll.poll(0)


def sever(connection: Connection) -> None:
    """Cut a connection's line, so that every task waiting on it learns at once that it is lost.

    Closing would not do: the driver may be waiting for this very socket, whose number could by
    then be another one's. Cut, it ends by the driver's own way for a lost connection.
    """
    with (
        suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(connection.fileno())) as line,
    ):
        line.shutdown(socket.SHUT_RDWR)


_UNSTORABLE: Final = (
    errors.DataError,
    errors.IntegrityError,
    errors.ProgramLimitExceeded,
    errors.CardinalityViolation,
)
"""Errors about a value, which a repeat would get again."""


def error_fields(error: BaseException) -> dict[str, object]:
    """Return an error's full text for the log: the driver's message, or a bug's traceback.

    A driver's error comes without a traceback: it would always show the same place, and a log that
    prints variables too would print users' texts.
    """
    if isinstance(error, psycopg.Error):
        return {"error": str(error), "code": error.sqlstate or ""}
    if isinstance(error, OSError):
        # A time-out is one of these, and has no message of its own.
        return {"error": str(error) or type(error).__name__, "code": ""}
    return {"exc_info": error}


def store_error(error: psycopg.Error) -> StoreError:
    """Return the store's error for a driver's error; callers may see its message."""
    match error:
        case errors.DataCorrupted() | errors.IndexCorrupted():
            return StoreCorrupt("what the store's server has is damaged; restore it from a backup")
        case errors.SerializationFailure() | errors.DeadlockDetected():
            return StoreUnavailable("other replicas write the same sessions; try again")
        case errors.LockNotAvailable():
            return StoreUnavailable("the session is locked by another transaction; try again")
        case errors.QueryCanceled():
            return StoreUnavailable("the store's server took too long; try again")
        case errors.DiskFull():
            return StoreUnavailable("the store's disk is full; try again when there is room")
        case errors.InsufficientResources():
            return StoreUnavailable("the store's server has no room for more; try again")
        case errors.ReadOnlySqlTransaction():
            return StoreUnavailable("the store's server takes no writes; try again")
        case errors.InsufficientPrivilege() | errors.UndefinedTable() | errors.UndefinedFunction():
            return StoreUnavailable("the store's tables are not ready for this service; try again")
        case errors.InternalError() | errors.SystemError():
            return StoreUnavailable("the store's server fails; try again")
    if isinstance(error, _UNSTORABLE):
        return AppendRefused("the store cannot hold these values")
    return StoreUnavailable("the connection to the store's server was lost; try again")


def is_away(error: StoreUnavailable) -> bool:
    """Whether the server, rather than one call to it, is what failed."""
    cause = error.__cause__
    if not isinstance(cause, psycopg.Error):
        return True
    # Without a code the connection failed. 08: connection exceptions. 57P: shutdown or start.
    return cause.sqlstate is None or cause.sqlstate.startswith(("08", "57P"))
