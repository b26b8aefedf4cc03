"""Opening and marking the store in Redis or Valkey: any number of replicas on one primary."""

from __future__ import annotations

from routing_service.storage.checked_store import Store
from routing_service.storage.redis import schema as redis_schema
from routing_service.storage.redis.bounds import DEFAULT_BOUNDS, RedisBounds
from routing_service.storage.redis.connection import Connector
from routing_service.storage.redis.engine import RedisEngine
from routing_service.storage.redis.keys import Keys
from routing_service.storage.redis.url import RedisPlace
from routing_service.storage.store import StoreUnavailable


async def open_redis_store(place: RedisPlace, *, bounds: RedisBounds = DEFAULT_BOUNDS) -> Store:
    """Connect, check the server's settings, and mark an empty place as a store.

    Raises StoreUnavailable (not reached, no rights, settings that lose data), StoreCorrupt (another
    application's keys), SchemaTooNew.
    """
    connector = Connector(place)
    keys = Keys(place.options.prefix)
    try:
        store_id, _, _ = await redis_schema.prepare(connector, keys)
    except StoreUnavailable as error:
        raise StoreUnavailable(f'store "{place.shown}": {error.reason}') from error.__cause__
    return Store(RedisEngine(store_id, connector, keys, bounds))


async def migrate_redis(place: RedisPlace) -> tuple[int, int]:
    """Mark an empty place as a store; return the schema versions before and after.

    Raises StoreError.
    """
    try:
        _, before, after = await redis_schema.prepare(Connector(place), Keys(place.options.prefix))
    except StoreUnavailable as error:
        raise StoreUnavailable(f'store "{place.shown}": {error.reason}') from error.__cause__
    return before, after
