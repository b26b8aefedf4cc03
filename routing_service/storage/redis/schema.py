"""The mark of the Redis store's form, and the checks of the server's settings before serving.

A server that may evict keys, or whose settings cannot give what the store promises, is refused with
what to set. Settings that only cost time, or that were asked for, are logged.
"""

from __future__ import annotations

import os
from typing import Final

import structlog
from redis.exceptions import ResponseError

from routing_service.storage.page_cursor import STORE_ID_BYTES
from routing_service.storage.redis.connection import (
    DRIVER_ERRORS,
    Connection,
    Connector,
    Reply,
    error_text,
    exchange,
    reply_error,
)
from routing_service.storage.redis.keys import Keys
from routing_service.storage.redis.scripts import Command
from routing_service.storage.redis.url import RedisPlace
from routing_service.storage.store import SchemaTooNew, StoreCorrupt, StoreUnavailable

SCHEMA_VERSION: Final = 1
"""The version of the keys and of their values."""

SYNC_TIMEOUT_S: Final = 10.0
"""How long the mark may take to reach the disk."""

_log = structlog.get_logger(__name__)


async def prepare(connector: Connector, keys: Keys) -> tuple[bytes, int, int]:
    """Check the server, mark an empty place as a store; give its id, schema before and after.

    Raises StoreUnavailable, StoreCorrupt (another application's keys), SchemaTooNew.
    """
    connection = await connector.connect()
    try:
        await _check_server(connection, connector.place)
        return await _mark(connection, connector.place, keys)
    except DRIVER_ERRORS as error:
        _log.error(
            "store_open_failed", store=connector.place.shown, **connector.error_fields(error)
        )
        if isinstance(error, ResponseError):
            raise reply_error(error) from error
        raise StoreUnavailable(
            "the connection to the store's server was lost; try again"
        ) from error
    finally:
        await connection.disconnect(nowait=True)


async def _check_server(connection: Connection, place: RedisPlace) -> None:
    memory, persistence, cluster, fsync = await exchange(
        connection,
        [
            ("INFO", "memory"),
            ("INFO", "persistence"),
            ("CLUSTER", "INFO"),
            ("CONFIG", "GET", "appendfsync"),
        ],
    )
    policy = _info(memory).get("maxmemory_policy", "")
    if policy not in {"noeviction", ""}:
        raise StoreUnavailable(
            f"the server has maxmemory-policy {policy}: it would throw sessions away when its "
            "memory is full; set maxmemory-policy noeviction"
        )
    # An error means that the server is not part of a cluster.
    nodes = 1 if isinstance(cluster, ResponseError) else int(_info(cluster).get("cluster_size", 1))
    if nodes > 1:
        raise StoreUnavailable(
            f"the server is one of a cluster of {nodes} primaries; this release talks to one: "
            "give it a server that is not clustered"
        )
    appendonly = _info(persistence).get("aof_enabled", "")
    _check_durability(place, appendonly, _setting(fsync))


def _check_durability(place: RedisPlace, appendonly: str, appendfsync: str) -> None:
    """Log or refuse settings with which a crash of the server loses writes."""
    if place.options.durability == "memory":
        _log.warning(
            "store_may_lose_writes",
            store=place.shown,
            appendonly=appendonly,
            appendfsync=appendfsync,
            window=_loss_window(appendonly, appendfsync),
            remedy="leave durability=memory out of the store's URL",
        )
        return
    if appendonly == "0":
        raise StoreUnavailable(
            "the server has appendonly no: it keeps nothing on disk; set appendonly yes and "
            "appendfsync always, or say durability=memory in the store's URL"
        )
    if appendfsync == "no":
        raise StoreUnavailable(
            "the server has appendfsync no: it never says that a write is on disk; set appendfsync "
            "always, or say durability=memory in the store's URL"
        )
    if appendfsync == "everysec":
        _log.warning(
            "store_waits_for_sync",
            store=place.shown,
            appendfsync=appendfsync,
            effect="each group of writes waits up to a second for the disk, and a read may show "
            "what a crash within that second takes back",
            remedy="set appendfsync always",
        )
    elif not appendfsync:
        # This user may not read the settings; each group's WAITAOF still confirms the disk.
        _log.info("store_sync_unknown", store=place.shown, effect="WAITAOF decides")


def _loss_window(appendonly: str, appendfsync: str) -> str:
    if appendonly == "0":
        return "all since the last snapshot (RDB), if there are any"
    return {
        "always": "none of this server's, as long as it stays so",
        "everysec": "about the last second",
        "no": "what the operating system has not written, some 30 seconds",
    }.get(appendfsync, "unknown: the server does not tell its appendfsync")


async def _mark(connection: Connection, place: RedisPlace, keys: Keys) -> tuple[bytes, int, int]:
    version, _ = await _read_mark(connection, place, keys)
    if version == 0:
        store_id = os.urandom(STORE_ID_BYTES)
        # If two processes start together, the first one's id stays. The version is written last,
        # so that a store with a version always has an id.
        commands: list[Command] = [
            ("HSETNX", keys.meta, "store_id", store_id),
            ("HSETNX", keys.meta, "schema", str(SCHEMA_VERSION)),
        ]
        if place.options.durability == "disk":
            commands.append(("WAITAOF", 1, 0, round(SYNC_TIMEOUT_S * 1000)))
        replies = await exchange(connection, commands)
        _raise_errors(replies)
        if place.options.durability == "disk" and replies[-1][0] < 1:
            raise StoreUnavailable("the store's server did not get it to its disk in time")
    after, store_id = await _read_mark(connection, place, keys)
    return store_id, version, after


async def _read_mark(connection: Connection, place: RedisPlace, keys: Keys) -> tuple[int, bytes]:
    (reply,) = await exchange(connection, [("HMGET", keys.meta, "schema", "store_id")])
    _raise_errors([reply])
    version, store_id = reply
    if version is None:
        return 0, b""
    if not version.isdigit() or store_id is None or len(store_id) != STORE_ID_BYTES:
        raise StoreCorrupt(f'store "{place.shown}" has lost its identity; restore it from a backup')
    if int(version) > SCHEMA_VERSION:
        raise SchemaTooNew(f'store "{place.shown}"', int(version), SCHEMA_VERSION)
    return int(version), bytes(store_id)


def _raise_errors(replies: list[Reply]) -> None:
    for reply in replies:
        if isinstance(reply, ResponseError):
            raise reply


def _info(reply: Reply) -> dict[str, str]:
    """Read the fields of INFO; empty if this user may not call it."""
    if isinstance(reply, ResponseError):
        return {}
    lines = (line.partition(":") for line in reply.decode().splitlines())
    return {name: value for name, colon, value in lines if colon}


def _setting(reply: Reply) -> str:
    """Read one setting by CONFIG GET; "" if the server does not return it."""
    if isinstance(reply, ResponseError):
        _log.info("store_settings_hidden", error=error_text(reply))
        return ""
    return reply[1].decode() if len(reply) > 1 else ""
