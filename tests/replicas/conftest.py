"""The engines that several replicas may share, for the tests that start some."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.conftest import ENGINES, Engine

SHARED = ("postgres", "redis")
"""Engines that are servers of their own, which replicas in other processes can reach."""


@dataclass(frozen=True)
class SharedStoreUrl:
    """An empty store on a server. A test's replicas open it by its URL."""

    engine: str
    url: str


@pytest.fixture(
    params=[engine for engine in ENGINES if engine.name in SHARED],
    ids=lambda engine: engine.name,
)
def shared_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SharedStoreUrl]:
    """An empty store of each engine in turn."""
    engine: Engine = request.param
    server: Any = request.getfixturevalue(engine.server)
    yield SharedStoreUrl(engine.name, engine.url(tmp_path, server))
    engine.clear(tmp_path, server)
