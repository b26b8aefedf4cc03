"""What every test gets: no configuration from outside, known random seeds, one Hypothesis profile.

Fixtures for one area (a running server, an engine) live in that area's own conftest.py.
"""

import logging
import os
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.engines.fixtures import (  # noqa: F401 - fixtures
    dynamodb_tables,
    own_postgres,
    own_redis,
    postgres_database,
    redis_database,
    run_folder,
)
from tests.forked_commands import forked_commands

if find_spec("agent_routing_topics") is None:
    pytest.exit("agent-routing-topics is not in this environment: run make install", returncode=4)

# Hypothesis: on CI every run draws the same examples, so that a red run can be repeated by its
# commit alone; elsewhere each run looks somewhere new. Deadlines are off in both: this suite runs
# on shared machines, where one slow example says nothing.
settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("dev"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

LONG_FIRST = (
    "tests/deploy/test_image.py",
    "tests/deploy/test_release_whole.py",
    "tests/clients/test_frontends_together.py",
    "tests/clients/test_java_client.py",
    "tests/clients/test_go_client.py",
    "tests/clients/test_browser_chat.py",
    "tests/clients/test_typescript_client.py",
    "tests/clients/test_graph_worker.py",
    "tests/clients/test_workers.py",
    "tests/torture/test_planted_bugs.py",
    "tests/docs/test_pages.py",
    "tests/replicas/",
    "tests/torture/",
    "tests/stored_data/",
)
"""What takes seconds a test, the longest first. A long test that begins last is waited for by all
workers but one. Builds share locks, so they lie beside each other, with one worker."""


LONG_TIMEOUT_S = 300
"""For a long test without a limit of its own: a quarter of a minute alone was over a minute on a
machine that also ran engines and toolchains."""

LONG = (
    "tests/clients/test_browser_chat.py",
    "tests/clients/test_console_desk.py",
    "tests/clients/test_console_operations.py",
    "tests/clients/test_console_figures.py",
    "tests/clients/test_console_outages.py",
    "tests/clients/test_console_page.py",
    "tests/clients/test_console_session.py",
    "tests/clients/test_frontends_together.py",
    "tests/clients/test_go_client.py",
    "tests/clients/test_graph_worker.py",
    "tests/clients/test_java_client.py",
    "tests/clients/test_typescript_client.py",
    "tests/clients/test_vectors.py",
    "tests/clients/test_workers.py",
    "tests/compatibility/",
    "tests/conformance/test_damaged_rows.py",
    "tests/deploy/",
    "tests/dialogues/",
    "tests/docs/test_pages.py",
    "tests/replicas/",
    "tests/rpc/test_auto_off.py",
    "tests/rpc/test_damaged_stats.py",
    "tests/rpc/test_erasure.py",
    "tests/rpc/test_histories.py::test_pages_list_a_conversation_of_tasks_and_people",
    "tests/rpc/test_exit_in_time.py",
    "tests/rpc/test_round_trips.py",
    "tests/rpc/test_server_lifecycle.py",
    "tests/rpc/test_watch_all_restarts.py",
    "tests/simulation/",
    "tests/stored_data/",
    "tests/telemetry/test_otlp_metrics.py",
    "tests/torture/",
    "tests/unit/cli/test_check.py",
    "tests/unit/cli/test_doctor_target.py",
    "tests/unit/cli/test_init.py",
    "tests/unit/cli/test_replay.py",
    "tests/unit/cli/test_topic_examples.py",
    "tests/unit/cli/test_topics.py",
    "tests/unit/storage/postgres/",
    "tests/unit/storage/redis/",
    "tests/unit/test_packaging.py",
    "tests/unit/test_touched_files.py",
    "tests/unit/topics/model/test_detector.py",
)
"""What `make test` leaves to `make test-long`: processes that are killed, engines that fail, pages
and changes that are tried out, public conversations, histories, clients in other languages."""


@pytest.hookimpl(tryfirst=True)  # Before tests are chosen by their marks.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what takes long and begin with it; the rest keeps its order."""
    for item in items:
        if item.nodeid.startswith(LONG):
            item.add_marker("long")
            # The command gives the torture tests their limit.
            if not any(map(item.get_closest_marker, ("timeout", "torture"))):
                item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_S))

    def place(item: pytest.Item) -> int:
        long = (at for at, path in enumerate(LONG_FIRST) if item.nodeid.startswith(path))
        return next(long, len(LONG_FIRST))

    items.sort(key=place)


@pytest.fixture(scope="session", autouse=True)
def _no_settings_from_outside() -> Iterator[None]:
    """A developer's own AGENT_ROUTING_* variables change no test."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AGENT_ROUTING_")]:
            patch.delenv(name)
        yield


@pytest.fixture(scope="session", autouse=True)
def _loggers_are_asked_each_time() -> Iterator[None]:
    """A logger that keeps how it was first set up would not see that a later test captures logs."""
    configure = structlog.configure

    def configure_without_cache(*args: Any, **settings_of_logging: Any) -> None:
        configure(*args, **(settings_of_logging | {"cache_logger_on_first_use": False}))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structlog, "configure", configure_without_cache)
        yield


@pytest.fixture(scope="session")
def commands_folder() -> Iterator[Path]:
    """A folder for PATH whose ``agent-routing`` starts quickly."""
    with (
        tempfile.TemporaryDirectory(prefix="commands-") as folder,
        forked_commands(Path(folder)) as ready,
    ):
        yield ready


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Logging is the process's: what a test sets up, as every command does, is taken away again."""
    root = logging.getLogger()
    handlers = list(root.handlers)
    yield
    if structlog.is_configured():
        structlog.reset_defaults()
        root.handlers[:] = handlers
