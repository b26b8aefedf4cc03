"""Opening and migrating the store in PostgreSQL: any number of replicas on one database."""

from __future__ import annotations

from contextlib import AsyncExitStack

import psycopg
import structlog

from routing_service.storage.checked_store import Store
from routing_service.storage.postgres import schema as postgres_schema
from routing_service.storage.postgres.bounds import DEFAULT_BOUNDS, PostgresBounds
from routing_service.storage.postgres.connection import Connection, Connector, store_error
from routing_service.storage.postgres.engine import PostgresEngine
from routing_service.storage.postgres.pool import ConnectionPool
from routing_service.storage.postgres.rows import Rows
from routing_service.storage.postgres.url import PostgresPlace
from routing_service.storage.store import StoreError, StoreUnavailable

_log = structlog.get_logger(__name__)


async def open_postgres_store(
    place: PostgresPlace, *, may_migrate: bool = True, bounds: PostgresBounds = DEFAULT_BOUNDS
) -> Store:
    """Connect, bring the tables up to date if this user may, and check them.

    may_migrate: False = tables of an older release are refused, as StoreUnavailable.
    Raises StoreUnavailable (not reached, no rights), StoreCorrupt (another application's schema),
    SchemaTooNew.
    """
    options = place.options
    connector = Connector(place)
    async with AsyncExitStack() as opened:
        reads = ConnectionPool(
            connector, size_max=options.read_connections, call_timeout_s=options.call_timeout_s
        )
        opened.push_async_callback(reads.close)
        writes = ConnectionPool(
            connector, size_max=options.write_connections, call_timeout_s=options.call_timeout_s
        )
        opened.push_async_callback(writes.close)
        rows = Rows(options.schema)
        try:
            await _make_ready(connector, writes, may_migrate=may_migrate)
            store_id = await writes.run(rows.store_id)
            if await writes.run(rows.settle_log):
                _log.warning("store_log_moved_up", store=place.shown)
        except StoreUnavailable as error:
            raise _named(error, place) from error.__cause__
        engine = PostgresEngine(
            store_id,
            connector,
            rows,
            reads=reads,
            writes=writes,
            opened=opened.pop_all(),
            bounds=bounds,
        )
    return Store(engine)


async def migrate_postgres(place: PostgresPlace, *, grant_to: str = "") -> tuple[int, int]:
    """Bring the tables up to date, and return the schema versions before and after.

    grant_to: a role that then gets the rights that serving needs; "" = none.
    Raises StoreError.
    """
    connector = Connector(place)
    try:
        connection = await connector.connect()
        try:
            versions = await postgres_schema.migrate(connection, place.options.schema, place.shown)
            if grant_to:
                await postgres_schema.grant(connection, place.options.schema, grant_to)
        finally:
            await connection.close()
    except psycopg.Error as error:
        _log.error("store_migration_failed", store=place.shown, **connector.error_fields(error))
        raise _migration_refused(place, error) from error
    except StoreUnavailable as error:
        raise _named(error, place) from error.__cause__
    return versions


def _named(error: StoreUnavailable, place: PostgresPlace) -> StoreUnavailable:
    """Log once which store it is."""
    name = f'store "{place.shown}"'
    return error if name in error.reason else StoreUnavailable(f"{name}: {error.reason}")


async def _make_ready(connector: Connector, pool: ConnectionPool, *, may_migrate: bool) -> None:
    place = connector.place

    async def find(connection: Connection) -> int:
        return await postgres_schema.schema_version(
            connection, place.options.schema, f'store "{place.shown}"'
        )

    version, needed = await pool.run(find), postgres_schema.supported_version()
    if version < needed and not may_migrate:
        raise StoreUnavailable(
            f"it has schema version {version}, this release reads {needed}; bring it up to date "
            "with agent-routing migrate --store URL"
        )
    if version < needed:
        await migrate_postgres(place)


def _migration_refused(place: PostgresPlace, error: psycopg.Error) -> StoreError:
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return StoreUnavailable(
            f'store "{place.shown}" needs new tables, which this user may not make; run '
            "agent-routing migrate --store URL once with a user that may"
        )
    refused = store_error(error)
    if isinstance(refused, StoreUnavailable):
        return StoreUnavailable(f'store "{place.shown}" was not migrated: {refused.reason}')
    return StoreUnavailable(f'store "{place.shown}" was not migrated; the log has the reason')
