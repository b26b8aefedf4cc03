"""A server and clients for the adapters' tests.

These tests run in the environments of their frameworks (`make test-integrations`), where the
service is not installed: only the client and pytest are.
"""

import asyncio
import itertools

import pytest

from agent_routing import AsyncClient, Client
from tests.integrations.tax_server import TaxServer

CALL_TIMEOUT_S = 20

_session_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory):
    """A server with the agents of tax_server.REGISTRY, for tests that leave it running."""
    running = TaxServer(tmp_path_factory.mktemp("server"))
    running.start()
    yield running
    running.kill()


@pytest.fixture
def server(tmp_path):
    """A server for one test, which may kill it."""
    running = TaxServer(tmp_path)
    running.start()
    yield running
    running.kill()


@pytest.fixture
def session():
    """The id of a session that no test has used."""
    return f"chat-{next(_session_numbers)}"


@pytest.fixture
def client(shared_server):
    """A blocking client."""
    with Client(shared_server.address, timeout=CALL_TIMEOUT_S) as made:
        yield made


@pytest.fixture(params=["Client", "AsyncClient"])
async def either_client(request, shared_server):
    """A client of either kind, for tests in an event loop."""
    if request.param == "AsyncClient":
        async with AsyncClient(shared_server.address, timeout=CALL_TIMEOUT_S) as made:
            yield made
    else:
        made = Client(shared_server.address, timeout=CALL_TIMEOUT_S)
        yield made
        await asyncio.to_thread(made.close)
