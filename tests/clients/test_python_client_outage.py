"""What an outage costs the Python client's callers: circuit breaker, file of the home agent."""

import pytest

from agent_routing import AsyncClient, Fallback
from agent_routing.circuit import FAILURES_MAX, OPEN_S_FIRST, OPEN_S_MAX, PROBE_S, Circuit
from agent_routing.fallback import KnownAgents
from agent_routing.integrations.local_memory import LocalMemory
from agent_routing.v1.dispatch_pb2 import Dispatch
from agent_routing.v1.routing_service_pb2 import ListAgentsResponse
from tests.clients import vector_runner


class Clock:
    """A clock that a test moves."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    """Return a clock that stands still."""
    return Clock()


def opened(clock):
    """Return a circuit that has just opened."""
    circuit = Circuit(clock)
    for _ in range(FAILURES_MAX):
        assert circuit.limit_s() == float("inf")
        circuit.failed()
    return circuit


def test_an_open_circuit_refuses_until_a_probe(clock):
    """One probe at a time; a probe that never ends is followed by another."""
    circuit = opened(clock)
    assert (circuit.state, circuit.opened_total) == ("open", 1)
    assert circuit.limit_s() == 0
    clock.now_s += OPEN_S_FIRST
    assert circuit.limit_s() == PROBE_S
    assert (circuit.state, circuit.limit_s()) == ("half_open", 0)
    clock.now_s += PROBE_S
    assert circuit.limit_s() == PROBE_S
    circuit.succeeded()
    assert (circuit.state, circuit.limit_s(), circuit.skipped_total) == ("closed", float("inf"), 2)


def test_probes_become_rarer_while_they_fail(clock):
    """A failure of a call that was sent before the circuit opened changes nothing."""
    circuit = opened(clock)
    waits = []
    for _ in range(6):
        circuit.failed()
        begun_s = clock.now_s
        while not circuit.limit_s():
            clock.now_s += 0.25
        waits.append(clock.now_s - begun_s)
        circuit.failed()
    assert waits == [OPEN_S_FIRST, 2, 4, OPEN_S_MAX, OPEN_S_MAX, OPEN_S_MAX]


def test_an_answer_in_between_keeps_it_closed(clock):
    """Only failures in a row count."""
    circuit = Circuit(clock)
    for _ in range(5 * FAILURES_MAX):
        circuit.failed()
        circuit.succeeded()
    assert (circuit.state, circuit.opened_total) == ("closed", 0)


def test_a_new_process_finds_the_home_agent_in_the_file(tmp_path):
    """A file that cannot be written or read is no reason to fail."""
    path = tmp_path / "home"
    KnownAgents(Fallback(home_file=str(path))).learn(
        ListAgentsResponse(), ListAgentsResponse(home_agent_id="coordinator")
    )
    assert path.read_text("ascii") == "coordinator\n"
    assert KnownAgents(Fallback(home_file=str(path)))._home_id == "coordinator"
    nowhere = KnownAgents(Fallback(home_file=str(path / "none")))
    nowhere.learn(ListAgentsResponse(), ListAgentsResponse(home_agent_id="coordinator"))
    assert nowhere._home_id == "coordinator"


async def test_a_process_that_starts_in_an_outage_knows_the_home_agent(tmp_path):
    """From the file that an earlier process wrote; the service itself is asked once at start."""
    path = str(tmp_path / "home")
    async with vector_runner.vector_server() as server:
        async with AsyncClient(server.address, fallback=Fallback(home_file=path)) as client:
            assert await client.learn_home() == "coordinator"
        await server.obey("away")
        options = [("grpc.use_local_subchannel_pool", 1)]
        late = AsyncClient(
            server.address, timeout=2, fallback=Fallback(home_file=path), options=options
        )
        async with late as client:
            turn = await client.route("hello", session_id="chat-1", user_id="ana")
            assert (turn.agent_id, turn.degraded) == ("coordinator", True)
            report = turn.degraded_turn("Hi!", user_id="ana")
            assert (report.agent_id, report.agent_text) == ("coordinator", "Hi!")
            assert not report.HasField("base_revision")
            await server.obey("back")


def test_messages_without_a_session_share_no_memory():
    """Two users' messages in an outage name no session; neither may find the other's text."""
    memory = LocalMemory()
    memory.remember("", Dispatch(request_id="r", text="my salary"), "tutor", "is secret")
    memory.moved_away("", "billing")
    assert memory.turns("", "tutor", "tutor") == []
    assert memory.fill("", Dispatch(), "tutor").agent.agent_id == ""
    memory.remember("chat-1", Dispatch(request_id="r", text="kept"), "tutor", "yes")
    assert [turn.user_text for turn in memory.turns("chat-1", "tutor", "tutor")] == ["kept"]
