"""The engines that the conformance suite runs on, and helpers for its tests.

A new engine is one line in ENGINES. Tests that need data to outlive a closed store use the fixture
``lasting_engine``, which skips engines without persistence.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from routing_service.storage.checked_store import Store
from routing_service.storage.open_store import open_store
from routing_service.storage.store import Append, AuditEntry, Change, SessionKey, TaskRow


def remove_files(folder: Path, _server: Any) -> None:
    """Remove an engine's files from its folder."""
    for file in folder.iterdir():
        file.unlink()


def dynamodb_url(folder: Path, tables: Any) -> str:
    """Return the URL of the test's table."""
    from tests.engines.dynamodb_server import patient  # noqa: PLC0415 - as its fixture

    return patient(tables.store_url(folder))


@dataclass(frozen=True)
class Engine:
    name: str
    url: Callable[[Path, Any], str]
    """Of the store that belongs to a folder, on the server if there is one."""
    lasting: bool
    """Whether closing and opening again finds the same data."""
    server: str = ""
    """The fixture that has its server, and skips where none can be had; "" = it needs none."""
    clear: Callable[[Path, Any], None] = remove_files
    """Takes away what a folder's store has."""
    sorts_groups: bool = True
    """Whether appends of several sessions that are sent at once end as if sorted by key. Each is
    one transaction of its own where not, and which of two sessions gets a task is chance."""
    heavy: frozenset[str] = frozenset()
    """Tests for `make torture` on this engine: its stand-in takes long, and they ask for much."""


ENGINES = (
    Engine("memory", lambda _folder, _server: "memory:", lasting=False),
    Engine("sqlite", lambda folder, _server: f"sqlite:///{folder / 'store.db'}", lasting=True),
    Engine(
        "postgres",
        lambda folder, database: database.store_url(folder),
        lasting=True,
        server="postgres_database",
        clear=lambda folder, database: database.clear(folder),
    ),
    Engine(
        "redis",
        lambda folder, database: database.store_url(folder),
        lasting=True,
        server="redis_database",
        clear=lambda folder, database: database.clear(folder),
    ),
    Engine(
        "dynamodb",
        dynamodb_url,
        lasting=True,
        server="dynamodb_tables",
        clear=lambda folder, tables: tables.clear(folder),
        sorts_groups=False,
        # A call to its stand-in takes a millisecond or two. Other tests cover the same with fewer
        # calls.
        heavy=frozenset(
            {
                "test_any_groups_have_the_outcome_of_one_after_the_other",
                "test_deep_pages_of_changes_pass_over_nothing",
                "test_erasing_takes_the_content_and_keeps_the_order",
                "test_many_sessions_are_there_after_reopening",
                "test_thousand_appends_at_once_are_all_stored",
            }
        ),
    ),
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that are slow on one engine, before marks are evaluated."""
    for item in items:
        chosen = getattr(item, "callspec", None) and item.callspec.params.get("engine")
        if isinstance(chosen, Engine) and chosen.heavy & {item.name, item.originalname}:
            item.add_marker(pytest.mark.torture)


@dataclass
class OpenEngine:
    """Opens stores on the same data, and closes what a test left open."""

    engine: Engine
    folder: Path
    server: Any
    opened: list[Store] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.engine.url(self.folder, self.server)

    def clear(self) -> None:
        """Remove the stored data. Opened stores must be closed before."""
        self.engine.clear(self.folder, self.server)

    async def open(self) -> Store:
        store = await open_store(self.url)
        self.opened.append(store)
        return store


@pytest.fixture(params=ENGINES, ids=lambda engine: engine.name)
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenEngine]:
    """Each engine in turn, on empty data of its own."""
    chosen: Engine = request.param
    server = request.getfixturevalue(chosen.server) if chosen.server else None
    opener = OpenEngine(chosen, tmp_path, server)
    yield opener
    for store in opener.opened:
        await store.close()
    opener.clear()


@pytest.fixture
async def store(engine: OpenEngine) -> Store:
    """Open one empty store on each engine in turn."""
    return await engine.open()


@pytest.fixture
def lasting_engine(engine: OpenEngine) -> OpenEngine:
    """Each engine in turn whose data outlives a closed store."""
    if not engine.engine.lasting:
        pytest.skip(f"{engine.engine.name} keeps nothing once it is closed, as it says")
    return engine


class Make:
    """Values with every field set, so that a test names only the fields it is about."""

    @staticmethod
    def key(session_id: str = "chat-1", tenant: str = "acme") -> SessionKey:
        return SessionKey(tenant, session_id)

    @staticmethod
    def task(session_id: str = "chat-1", task_id: str = "task-1", **fields: object) -> TaskRow:
        values: dict[str, object] = {
            "user_id": "ana",
            "status": "running",
            "create_us": 1_000,
            "update_us": 2_000,
            "expire_us": None,
            "data": b"task data",
        }
        return TaskRow(task_id=task_id, session_id=session_id, **{**values, **fields})

    @staticmethod
    def change(revision: int = 1, **fields: object) -> Change:
        values: dict[str, object] = {
            "time_us": 1_000 + revision,
            "method": "Route",
            "request_id": f"request-{revision}",
            "actor": "",
            "fingerprint": b"fingerprint %d" % revision,
            "events": b"events %d" % revision,
            "answer": b"answer %d" % revision,
        }
        return Change(revision=revision, **{**values, **fields})

    def append(
        self,
        key: SessionKey | None = None,
        base: int = 0,
        *,
        state: bytes | None = None,
        user_id: str = "ana",
        tasks: tuple[TaskRow, ...] = (),
        **change: object,
    ) -> Append:
        return Append(
            key=key or self.key(),
            base_revision=base,
            change=self.change(base + 1, **change),
            state=b"state %d" % (base + 1) if state is None else state,
            user_id=user_id,
            tasks=tasks,
        )

    @staticmethod
    def audit(session_id: str = "chat-1", tenant: str = "acme", **fields: object) -> AuditEntry:
        values: dict[str, object] = {
            "time_us": 1_000,
            "revision": 3,
            "kind": "handoff_refused",
            "request_id": "request-1",
            "user_id": "ana",
            "data": b"why",
        }
        return AuditEntry(tenant=tenant, session_id=session_id, **{**values, **fields})

    async def session(self, store: Store, key: SessionKey, revisions: int) -> None:
        """Append the revisions 1 to ``revisions``."""
        for base in range(revisions):
            await store.append(self.append(key, base))


@pytest.fixture
def make() -> Make:
    """Values to store."""
    return Make()
