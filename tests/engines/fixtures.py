"""Servers for the tests that need one: started on first use, or a skip with its reason.

Imported by tests/conftest.py. An engine's imports are made on use, so that a machine without its
driver can run all other tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.engines import redis_databases
    from tests.engines.dynamodb_server import TestTables
    from tests.engines.postgres_databases import TestDatabase
    from tests.engines.postgres_server import PostgresServer
    from tests.engines.redis_server import RedisServer


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that all processes of this test run share."""
    folder = tmp_path_factory.getbasetemp()
    # Each of several workers has its own folder in that of the run.
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def postgres_database(run_folder: Path) -> Iterator[TestDatabase]:
    """This process's PostgreSQL database, on a server that the run's processes share."""
    pytest.importorskip("psycopg", reason="postgres: its driver is not installed (extra postgres)")
    from routing_service.storage.postgres import (  # noqa: PLC0415 - needs the driver
        store as postgres_store,
    )
    from routing_service.storage.postgres.bounds import PostgresBounds  # noqa: PLC0415 - as above
    from tests.engines.postgres_databases import test_database  # noqa: PLC0415 - as above
    from tests.engines.postgres_server import CannotStart  # noqa: PLC0415 - as above

    with ExitStack() as opened:
        # Tests of other processes keep transactions open on the same server, which holds back every
        # log. These tests check the log's content; others check the waiting time.
        patch = opened.enter_context(pytest.MonkeyPatch.context())
        bounds = PostgresBounds(held_back_wait_s=10.0)
        name = "open_postgres_store"
        patch.setattr(
            postgres_store, name, partial(postgres_store.open_postgres_store, bounds=bounds)
        )
        try:
            database = opened.enter_context(test_database(run_folder))
        except CannotStart as error:
            pytest.skip(f"postgres: {error}")
        yield database


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server for one module's tests, which may stop, freeze and damage it.

    It syncs to disk as in production. A test leaves it running.
    """
    pytest.importorskip("psycopg", reason="postgres: its driver is not installed (extra postgres)")
    from tests.engines.postgres_server import (  # noqa: PLC0415 - needs the driver
        CannotStart,
        start_server,
    )

    try:
        server = start_server()
    except CannotStart as error:
        pytest.skip(f"postgres: {error}")
    yield server
    server.remove()


@pytest.fixture(scope="session")
def redis_database(run_folder: Path) -> Iterator[redis_databases.TestDatabase]:
    """A place for stores on a Redis server that the run's processes share."""
    pytest.importorskip("redis", reason="redis: its driver is not installed (extra redis)")
    from tests.engines.redis_databases import test_database  # noqa: PLC0415 - needs the driver
    from tests.engines.redis_server import CannotStart  # noqa: PLC0415 - as above

    with ExitStack() as opened:
        try:
            database = opened.enter_context(test_database(run_folder))
        except CannotStart as error:
            pytest.skip(f"redis: {error}")
        yield database


@pytest.fixture(scope="module")
def own_redis() -> Iterator[RedisServer]:
    """A Redis server for one module's tests, which may stop, freeze and damage it.

    A test leaves it running.
    """
    pytest.importorskip("redis", reason="redis: its driver is not installed (extra redis)")
    from tests.engines.redis_server import (  # noqa: PLC0415 - needs the driver
        CannotStart,
        start_server,
    )

    try:
        server = start_server()
    except CannotStart as error:
        pytest.skip(f"redis: {error}")
    yield server
    server.remove()


@pytest.fixture(scope="session")
def dynamodb_tables(run_folder: Path) -> Iterator[TestTables]:
    """Tables for this process's tests, on a DynamoDB stand-in that all processes share."""
    pytest.importorskip(
        "aiobotocore", reason="dynamodb: its driver is not installed (extra dynamodb)"
    )
    from tests.engines.dynamodb_server import (  # noqa: PLC0415 - needs the driver
        CREDENTIALS,
        URL_VARIABLE,
        CannotStart,
        test_tables,
    )

    with ExitStack() as opened:
        patch = opened.enter_context(pytest.MonkeyPatch.context())
        if URL_VARIABLE not in os.environ:
            for name in [name for name in os.environ if name.startswith("AWS_")]:
                patch.delenv(name)
            for name, value in CREDENTIALS.items():
                patch.setenv(name, value)
        try:
            tables = opened.enter_context(test_tables(run_folder))
        except CannotStart as error:
            pytest.skip(f"dynamodb: {error}")
        yield tables
