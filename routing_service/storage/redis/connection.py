"""One connection to Redis, set up as the store needs it, and the messages for its errors.

Only a primary is used, so that reads there see the latest. The driver sends nothing a second time.
A password is in no message and no log.

The driver's connection is used and not its client: the client retries calls unasked, and its
pipeline cannot tell what was sent from what was not.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import structlog
from redis.asyncio.connection import Connection as TcpConnection
from redis.asyncio.connection import SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from routing_service.storage.store import StoreCorrupt, StoreError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from routing_service.storage.redis.scripts import Command
    from routing_service.storage.redis.url import RedisPlace

SERVER_VERSION_MIN: Final = (7, 2)
"""Redis 7.2 and Valkey 7.2: the first with WAITAOF."""

RECONNECT_PAUSE_S: Final = 0.2
"""After a failed attempt to connect, calls fail at once for this long: with the server away, a
thousand callers make five attempts a second and not a thousand."""

RESP_VERSION: Final = 2
"""Of the protocol. The newer one may send other messages between the replies."""

Connection: TypeAlias = TcpConnection | UnixDomainSocketConnection

Reply: TypeAlias = Any
"""bytes, int, None or a list of such; an error reply is a ResponseError in its place."""

DRIVER_ERRORS: Final = (RedisError, OSError, TimeoutError)
"""What a connection may raise. asyncio's time-out is an OSError too."""

_log = structlog.get_logger(__name__)


class Connector:
    """Makes connections to one place."""

    def __init__(
        self, place: RedisPlace, server_version_min: tuple[int, int] = SERVER_VERSION_MIN
    ) -> None:
        """Connect to nothing yet. server_version_min: an older server is refused."""
        self._place = place
        self._server_version_min = server_version_min
        self._failed: StoreUnavailable | None = None
        self._failed_at_s = 0.0

    @property
    def place(self) -> RedisPlace:
        """Where it connects to."""
        return self._place

    async def connect(self) -> Connection:
        """Make a connection. Raises StoreUnavailable; for a while after it did, at once."""
        now_s = asyncio.get_running_loop().time()
        if self._failed is not None and now_s < self._failed_at_s + RECONNECT_PAUSE_S:
            raise StoreUnavailable(self._failed.reason) from self._failed.__cause__
        try:
            async with asyncio.timeout(self._place.options.connect_timeout_s):
                connection = await self._connect()
        except DRIVER_ERRORS as error:
            failed = _connect_error(error)
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
        connection = _make(self._place)
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
            (hello,) = await exchange(connection, [("HELLO",)])
            _check_server(hello, self._server_version_min)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection

    def error_fields(self, error: BaseException) -> dict[str, object]:
        """Return an error's full text for the log, without the password.

        A driver's error comes without a traceback: it would always show the same place, and a log
        that prints variables too would print users' texts.
        """
        if isinstance(error, DRIVER_ERRORS):
            text = self._place.without_secrets(str(error)) or type(error).__name__
            return {"error": text, "kind": type(error).__name__}
        return {"exc_info": error}


def _make(place: RedisPlace) -> Connection:
    options = place.options
    settings: dict[str, Any] = {
        "db": place.database,
        "username": place.user or None,
        "password": place.password or None,
        "protocol": RESP_VERSION,
        "client_name": "agent-routing",
        "driver_info": None,
        # Time limits are applied here, for a group as a whole.
        "socket_timeout": None,
        "socket_connect_timeout": options.connect_timeout_s,
        "retry": Retry(NoBackoff(), 0),
    }
    if options.socket:
        return UnixDomainSocketConnection(path=options.socket, **settings)
    settings |= {"host": place.host, "port": place.port, "socket_keepalive": True}
    if not place.tls:
        return TcpConnection(**settings)
    return SSLConnection(
        ssl_ca_certs=options.ssl_ca_certs or None,
        ssl_certfile=options.ssl_certfile or None,
        ssl_keyfile=options.ssl_keyfile or None,
        ssl_check_hostname=options.ssl_check_hostname,
        **settings,
    )


async def exchange(connection: Connection, commands: Sequence[Command]) -> list[Reply]:
    """Send commands in one piece and read their replies; error replies are values among them.

    Raises DRIVER_ERRORS; the connection is then unusable.
    """
    await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
    replies: list[Reply] = []
    for _ in commands:
        try:
            replies.append(await connection.read_response())
        except ResponseError as error:
            replies.append(error)
    return replies


async def is_usable(connection: Connection) -> bool:
    """Whether an idle connection is still usable.

    It should have nothing to receive: any data would be the server's end of the connection, or the
    reply to a call that was given up.
    """
    # Data that arrived while this process was busy is read first.
    await asyncio.sleep(0)
    try:
        return connection.is_connected and not await connection.can_read()
    except DRIVER_ERRORS:
        return False


def role_of(hello: Reply) -> bytes:
    """Read a server's role out of its answer to HELLO."""
    return bytes(_hello_fields(hello).get(b"role", b""))


def _hello_fields(hello: Reply) -> dict[bytes, Any]:
    if isinstance(hello, ResponseError):
        raise hello
    return dict(zip(hello[::2], hello[1::2], strict=True))


def _check_server(hello: Reply, version_min: tuple[int, int]) -> None:
    found = _hello_fields(hello)
    name, version = found[b"server"].decode(), found[b"version"].decode()
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < version_min:
        least = ".".join(map(str, version_min))
        raise StoreUnavailable(
            f"the server is {name} {version}, the store needs {least} or newer; upgrade the server"
        )
    if found[b"mode"] == b"sentinel":
        raise StoreUnavailable("the server is a sentinel; give the address of the primary")
    check_primary(hello)


def check_primary(hello: Reply) -> None:
    """Raise StoreUnavailable if the server is a replica."""
    if role_of(hello) != b"master":
        raise StoreUnavailable(
            "the server is a replica, which may lack the latest and takes no writes; give the "
            "address of the primary"
        )


def _connect_error(error: BaseException) -> StoreUnavailable:
    if isinstance(error, AuthenticationError | NoPermissionError):
        return StoreUnavailable("the store's server refuses this user or password")
    if isinstance(error, BusyLoadingError):
        return StoreUnavailable("the store's server is loading its data; try again")
    return StoreUnavailable("the store's server cannot be reached; try again")


_WORDS: Final = (
    ("WRONGTYPE", StoreCorrupt, "a key of the store holds something else; restore a backup"),
    ("CORRUPT", StoreCorrupt, "what the store has of it is damaged; restore it from a backup"),
    ("MISCONF", StoreUnavailable, "the store's server cannot write to its disk; try again"),
    ("NOREPLICAS", StoreUnavailable, "the store's server misses its replicas; try again"),
    ("BUSY", StoreUnavailable, "the store's server is busy; try again"),
    ("TRYAGAIN", StoreUnavailable, "the store's cluster moves its data; try again"),
    ("CLUSTERDOWN", StoreUnavailable, "the store's cluster is down; try again"),
    ("NOPERM", StoreUnavailable, "the store's server does not let this user do that"),
    ("ACL failure", StoreUnavailable, "the store's server does not let this user do that"),
)
"""The beginnings of error replies, and the store's errors for them."""

MOVED_ON: Final = ("READONLY", "MASTERDOWN", "CLUSTERDOWN", "MOVED", "ASK", "UNBLOCKED")
"""Error replies of a server that has stopped being the primary."""


def error_text(error: ResponseError) -> str:
    """Return an error reply as the server sent it, or nearly: the driver takes off some codes."""
    code = error.status_code or ""
    text = str(error)
    return text if text.startswith(code) else f"{code} {text}"


def reply_error(error: ResponseError) -> StoreError:
    """Return the store's error for an error reply; callers may see its message."""
    if isinstance(error, OutOfMemoryError):
        return StoreUnavailable("the store's server has no memory left; try again when it has")
    if isinstance(error, ReadOnlyError):
        return StoreUnavailable("the store's server takes no writes; try again")
    text = error_text(error)
    for code, kind, words in _WORDS:
        if text.startswith(code):
            return kind(words)
    return StoreUnavailable("the store's server refused a call; the log has the reason")
