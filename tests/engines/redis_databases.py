"""A place for each test's store, on one Redis server for the whole run.

Owns the server's start (by the first process that needs it) and stop (by the last), and leaves no
test data on it. The server is in cluster mode, so the suite also shows that no script and no
command uses two slots.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import redis

from tests.engines.redis_server import URL_VARIABLE, RedisServer, start_cluster_of_one


@dataclass
class TestDatabase:
    """One database, in which each test has its own prefix."""

    __test__ = False

    url: str
    _prefixes: dict[Path, str] = field(default_factory=dict)
    """Of the tests that run, by their folders."""

    def prefix(self, folder: Path) -> str:
        """Return the prefix of a test, identified by its folder."""
        return self._prefixes.setdefault(folder, f"agent-routing-test-{secrets.token_hex(8)}")

    def store_url(self, folder: Path, query: str = "") -> str:
        """Return the URL of a test's store."""
        parts = [f"prefix={self.prefix(folder)}", query]
        return f"{self.url}?{'&'.join(part for part in parts if part)}"

    def client(self) -> redis.Redis:
        """Return a client for tests that look behind the store; the caller closes it."""
        return redis.Redis.from_url(self.url, socket_timeout=30)

    def clear(self, folder: Path) -> None:
        """Remove the data of a test's store."""
        prefix = self._prefixes.pop(folder, None)
        if prefix is None:
            return
        with self.client() as client:
            keys = list(client.scan_iter(match=f"{prefix}:*", count=1_000))
            for key in keys:
                client.unlink(key)


@contextmanager
def test_database(shared_folder: Path) -> Iterator[TestDatabase]:
    """Yield a database on the server given by its URL, or on the run's own.

    shared_folder: the same for all processes of the run. Raises CannotStart.
    """
    given = os.environ.get(URL_VARIABLE)
    if given:
        yield TestDatabase(given)
        return
    with _shared_server(shared_folder) as server:
        yield TestDatabase(server.url())


@contextmanager
def _shared_server(folder: Path) -> Iterator[RedisServer]:
    state = folder / "redis.json"
    with _locked(folder):
        found = _read(state)
        server, users = found or (start_cluster_of_one(), [])
        _write(state, server, [*users, os.getpid()])
    try:
        yield server
    finally:
        with _locked(folder):
            _, users = _read(state) or (server, [])
            # A killed process does not count.
            left = [pid for pid in users if pid != os.getpid() and Path(f"/proc/{pid}").exists()]
            if left:
                _write(state, server, left)
            else:
                state.unlink(missing_ok=True)
                server.remove()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "redis.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _read(state: Path) -> tuple[RedisServer, list[int]] | None:
    if not state.exists():
        return None
    fields = json.loads(state.read_text())
    users = fields.pop("users")
    return RedisServer(folder=Path(fields.pop("folder")), **fields), users


def _write(state: Path, server: RedisServer, users: list[int]) -> None:
    state.write_text(json.dumps({**asdict(server), "users": users}, default=str))
