"""The table of the DynamoDB store: how it is made, and its schema version.

Only ``migrate`` makes or changes a table, because that takes rights that serving does not need. A
table of another application is left alone. A version of a newer release is served if that release
says that this one still can.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, Final

import structlog

from routing_service import __version__
from routing_service.storage.dynamodb import keys
from routing_service.storage.dynamodb.api import Api
from routing_service.storage.dynamodb.errors import ConditionFailed
from routing_service.storage.dynamodb.items import binary, integer, key, text, to_bytes, to_integer
from routing_service.storage.page_cursor import STORE_ID_BYTES
from routing_service.storage.store import (
    AppendRefused,
    SchemaTooNew,
    StoreCorrupt,
    StoreUnavailable,
)

SCHEMA_VERSION: Final = 1
COMPATIBLE_FROM: Final = 1
"""The oldest release, by its schema version, that can work with what this one writes."""

CREATE_TIMEOUT_S: Final = 120.0
"""Time limit for making a table. AWS: within a minute, usually some seconds."""

CREATE_POLL_S: Final = 0.5

_META: Final = key(keys.META, keys.META)

_log = structlog.get_logger(__name__)


async def check(api: Api) -> bytes:
    """Check that the table exists and is usable, and return the store's identity.

    Raises StoreUnavailable (no table, not reached, no rights), StoreCorrupt (another
    application's), SchemaTooNew.
    """
    version, store_id = await _read(api)
    if version == 0:
        raise StoreUnavailable(
            f'the table "{api.place.table}" in {api.place.region} is empty; make it ready: '
            "agent-routing migrate --store URL"
        )
    return store_id


async def migrate(api: Api) -> tuple[int, int]:
    """Make the table if it is missing and bring it to this release's version.

    Returns the versions before and after; 0 = there was no table, or an empty one. Safe to repeat,
    and while other processes do the same. Raises StoreError.
    """
    made = await _make_table(api)
    await _wait_until_ready(api)
    before = 0 if made else (await _read(api))[0]
    if before >= SCHEMA_VERSION:
        return before, before
    if await _has_items(api):
        # Unless another process has made it ready just now.
        version, _ = await _read(api)
        if version:
            return before, version
        raise _foreign(api)
    try:
        await api.on_table(
            "put_item",
            Item={
                **_META,
                "schema_version": integer(SCHEMA_VERSION),
                "compatible_from": integer(COMPATIBLE_FROM),
                "store_id": binary(os.urandom(STORE_ID_BYTES)),
                "release_made": text(__version__),
            },
            ConditionExpression="attribute_not_exists(pk)",
        )
    except ConditionFailed:
        pass  # Another process has just done it.
    else:
        _log.info("store_migrated", store=api.place.shown, version=SCHEMA_VERSION)
    return before, SCHEMA_VERSION


async def _read(api: Api) -> tuple[int, bytes]:
    """Read the schema version and the store's identity; version 0 = nothing is recorded."""
    try:
        item = await api.get(_META)
    except AppendRefused as error:
        # Its keys differ from ours.
        raise _foreign(api) from error
    if item is None:
        return 0, b""
    version = to_integer(item, "schema_version")
    if version > SCHEMA_VERSION and to_integer(item, "compatible_from") > SCHEMA_VERSION:
        raise SchemaTooNew(f'store "{api.place.shown}"', version, SCHEMA_VERSION)
    return version, to_bytes(item, "store_id")


async def _make_table(api: Api) -> bool:
    """Make the table; False = it existed."""
    if await _status(api) is not None:
        return False
    await api.on_table(
        "create_table",
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[_part("pk", "HASH"), _part("sk", "RANGE")],
        AttributeDefinitions=[
            {"AttributeName": name, "AttributeType": kind}
            for name, kind in (("pk", "S"), ("sk", "S"), ("due_shard", "S"), ("due_us", "N"))
        ],
        GlobalSecondaryIndexes=[
            {
                "IndexName": keys.DUE_INDEX,
                "KeySchema": [_part("due_shard", "HASH"), _part("due_us", "RANGE")],
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            }
        ],
    )
    return True


async def _wait_until_ready(api: Api) -> None:
    ends_s = asyncio.get_running_loop().time() + CREATE_TIMEOUT_S
    while await _status(api) not in {"ACTIVE", "UPDATING"}:
        if asyncio.get_running_loop().time() > ends_s:
            raise StoreUnavailable(
                f'the table "{api.place.table}" is not ready after {CREATE_TIMEOUT_S:.0f} s; '
                "run agent-routing migrate again"
            )
        await asyncio.sleep(CREATE_POLL_S)


async def _status(api: Api) -> str | None:
    """Ask for the table's status; None = it does not exist."""
    tables = await api.describe()
    if tables is None:
        return None
    found = [(part["AttributeName"], part["KeyType"]) for part in tables["KeySchema"]]
    indexes = {index["IndexName"] for index in tables.get("GlobalSecondaryIndexes", [])}
    if found != [("pk", "HASH"), ("sk", "RANGE")] or keys.DUE_INDEX not in indexes:
        raise _foreign(api)
    return str(tables["TableStatus"])


async def _has_items(api: Api) -> bool:
    """Whether there is any item, of another application or of a store whose record was lost."""
    answer = await api.on_table("scan", Limit=1, ConsistentRead=True)
    return bool(answer.get("Items"))


def _foreign(api: Api) -> StoreCorrupt:
    return StoreCorrupt(
        f'the table "{api.place.table}" in {api.place.region} belongs to something else; give the '
        "store one of its own"
    )


def _part(name: str, kind: str) -> dict[str, Any]:
    return {"AttributeName": name, "KeyType": kind}
