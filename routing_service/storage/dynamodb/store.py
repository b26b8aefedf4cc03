"""Opening and migrating the store in a DynamoDB table: any number of replicas."""

from __future__ import annotations

from contextlib import AsyncExitStack

from routing_service.storage.checked_store import Store
from routing_service.storage.dynamodb import schema as dynamodb_schema
from routing_service.storage.dynamodb.api import open_api
from routing_service.storage.dynamodb.bounds import DEFAULT_BOUNDS, DynamodbBounds
from routing_service.storage.dynamodb.engine import DynamodbEngine
from routing_service.storage.dynamodb.url import DynamodbPlace
from routing_service.storage.store import StoreUnavailable


async def open_dynamodb_store(
    place: DynamodbPlace, *, bounds: DynamodbBounds = DEFAULT_BOUNDS
) -> Store:
    """Check the table that ``migrate_dynamodb`` made, and open the store.

    Raises StoreUnavailable (not reached, no table, no rights), StoreCorrupt, SchemaTooNew.
    """
    async with AsyncExitStack() as opened:
        api = await opened.enter_async_context(open_api(place))
        try:
            store_id = await dynamodb_schema.check(api)
        except StoreUnavailable as error:
            raise _named(error, place) from error.__cause__
        engine = DynamodbEngine(store_id, api, opened=opened.pop_all(), bounds=bounds)
        return Store(engine)


async def migrate_dynamodb(place: DynamodbPlace) -> tuple[int, int]:
    """Make the table, or bring it up to date; returns the schema versions before and after.

    Raises StoreError.
    """
    async with open_api(place) as api:
        try:
            return await dynamodb_schema.migrate(api)
        except StoreUnavailable as error:
            raise _named(error, place) from error.__cause__


def _named(error: StoreUnavailable, place: DynamodbPlace) -> StoreUnavailable:
    """Log which store it is."""
    return StoreUnavailable(f'store "{place.shown}": {error.reason}')
