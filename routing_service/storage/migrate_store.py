"""Bringing a store's tables up to date as a separate step from serving.

It does what a starting server would do to the tables, so that a server started later, by a user
with no right to change tables, has nothing left to do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from routing_service.storage.checked_store import Store
from routing_service.storage.open_store import (
    StoreUrlInvalid,
    dynamodb_place,
    open_store,
    postgres_place,
    redis_place,
    without_secrets,
)
from routing_service.storage.store_format import (
    NEWEST_FORMAT,
    OLDEST_FORMAT,
    present_format,
    raise_format,
)


@dataclass(frozen=True, slots=True)
class Migrated:
    """What became of a store's tables."""

    store: str
    """The store, without its password."""
    before: int | None
    """The schema version that was found, 0 = no tables; None = the engine does not tell."""
    after: int | None
    format_before: int = 0
    """The store's format number before, see store_format; 0 = not looked at yet."""
    format_after: int = 0
    entries_mended: int = 0
    """Entries of queues that were put or removed before the format was raised."""


async def migrate_store(
    url: str,
    *,
    grant_to: str = "",
    raise_to: int | None = None,
    mend: Callable[[Store], Awaitable[int]] | None = None,
) -> Migrated:
    """Bring a store's tables to this release's version; having nothing to do is not an error.

    grant_to: a user who then gets the rights that serving needs; "" = none. Only for engines that
    have users. raise_to: the store's new format number; None = it stays as it is.
    mend: puts the entries of queues right before the format is raised, and returns how many.
    Raises StoreUrlInvalid, FormatRefused and what open_store does.
    """
    migrated = await _migrate_tables(url, grant_to)
    store = await open_store(url)
    try:
        before = after = await present_format(store)
        mended = 0
        if raise_to is not None:
            if mend is not None and OLDEST_FORMAT < raise_to <= NEWEST_FORMAT:
                mended = await mend(store)
            before = await raise_format(store, raise_to)
            after = raise_to
    finally:
        await store.close()
    return replace(migrated, format_before=before, format_after=after, entries_mended=mended)


async def _migrate_tables(url: str, grant_to: str) -> Migrated:
    engine = url.partition(":")[0].lower()
    if engine in {"postgres", "postgresql"}:
        return await _migrate_postgres(url, grant_to)
    if grant_to:
        raise StoreUrlInvalid(
            f'the engine "{engine}" has no users to grant anything to; leave --grant-to out'
        )
    if engine in {"redis", "rediss"}:
        return await _migrate_redis(url)
    if engine == "dynamodb" and not grant_to:
        table = dynamodb_place(url)
        from routing_service.storage.dynamodb.store import (  # noqa: PLC0415 - when asked for
            migrate_dynamodb,
        )

        before, after = await migrate_dynamodb(table)
        return Migrated(table.shown, before, after)
    # The others do it as they open.
    return Migrated(without_secrets(url), None, None)


async def _migrate_postgres(url: str, grant_to: str) -> Migrated:
    from routing_service.storage.postgres.store import (  # noqa: PLC0415 - when asked for
        migrate_postgres,
    )

    place = postgres_place(url)
    before, after = await migrate_postgres(place, grant_to=grant_to)
    return Migrated(place.shown, before, after)


async def _migrate_redis(url: str) -> Migrated:
    place = redis_place(url)
    from routing_service.storage.redis.store import migrate_redis  # noqa: PLC0415 - when asked for

    before, after = await migrate_redis(place)
    return Migrated(place.shown, before, after)
