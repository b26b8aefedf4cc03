"""The benchmarks' own client and report: a load with failures gives no figure."""

import asyncio
import json

import pytest

from agent_routing.v1 import routing_service_pb2
from benchmarks import __main__ as bench
from benchmarks import talk, topic_cost, transcript, wire
from benchmarks.figure import QUICK, Figure, median_interval, ratios
from benchmarks.service import REGISTRY
from routing_service.registry.file import parse_registry
from routing_service.server.server import RoutingServer
from routing_service.settings.settings import Settings

ISSUED = {
    "route_vs_echo",
    "route_p50_over_echo_ms",
    "turn_vs_langgraph_swarm_sqlite",
    "turn_vs_adk_sqlite",
    "turn_vs_openai_agents_sqlite",
    "stream_vs_unary",
    "throughput_1m_over_1k_sessions",
    "p99_1m_over_1k_sessions",
    "p50_10k_over_10_turns",
    "rss_mb_1m_sessions",
    "start_s_1m_sessions",
    "bytes_per_idle_session",
    "followup_latency_reduction",
    "import_client_ms",
    "topic_p99_ms_20",
    "topic_p99_ms_200",
    "topic_route_share",
    "route_vs_echo_cpu",
    "turns_vs_postgres_commits",
    "processes_2_vs_1_turns_per_cpu_s",
    "processes_2_vs_1_turns_per_s",
}
"""Keys that others read in build/bench.json."""


@pytest.fixture
async def address(tmp_path):
    """A server in this process."""
    agents = tmp_path / "agents.yaml"
    agents.write_text(REGISTRY)
    server = await RoutingServer.start(
        Settings(listen="127.0.0.1:0", agents=str(agents), store="memory://")
    )
    yield server.address
    await server.stop(0)


async def play(address, conversations):
    """Play from a thread, since the client has a loop of its own."""
    return await asyncio.to_thread(wire.play, address, conversations, connections=2, at_once=3)


async def test_conversations_are_played_to_their_ends(address):
    """Each turn is a message and an answer, the first one's two."""
    heard = []
    names = talk.names(5)
    played = await play(address, [talk.turns(name, 2, heard.append) for name in names])
    assert len(played.call_seconds) == len(heard) == 5 * (2 + 3)
    assert heard.count("route") == 5 * 2


async def test_a_refused_call_ends_the_load(address):
    """HTTP says 200 all the same: the status is in the trailers."""
    bad = routing_service_pb2.RouteRequest(session_id="a\nb", text="hello").SerializeToString()
    calls = iter([(talk.ROUTE, bad)])
    with pytest.raises(wire.CallFailed, match="grpc-status"):
        await play(address, [lambda _answer: next(calls, None)])


def test_the_report_has_the_keys_that_others_read(tmp_path, monkeypatch):
    """And what else is measured is not among them."""
    monkeypatch.setattr(bench, "REPORT", tmp_path / "bench.json")
    monkeypatch.setattr(bench, "PLOTS", tmp_path / "bench")
    made = [Figure(key, 1.0, "of it", 0.5, rounds={"ours": [1.0]}) for key in bench.KEYS]
    bench._write([*made, Figure("another", 2.0, "of it")], QUICK, 1.0, [])
    report = json.loads((tmp_path / "bench.json").read_text())
    assert set(report["figures"]) == ISSUED | {"fsync_ms", "grpc_import_ms"}
    assert set(bench.WHOLE) <= set(bench.MORE)
    assert report["more"] == {"another": 2.0}
    assert (tmp_path / "bench" / "route_vs_echo.svg").read_text().startswith("<svg")


def test_interval_of_a_figure_is_that_of_the_sign_test():
    """Known places: the ends of six values, the second of nine, the third of twelve."""
    assert median_interval([5, 4, 3, 2, 1]) is None
    assert median_interval([6, 2, 1, 4, 5, 3]) == (1, 6)
    assert median_interval(list(range(1, 10))) == (2, 8)
    assert median_interval(list(range(1, 13))) == (3, 10)


def test_round_that_other_load_spoils_hardly_moves_a_figure():
    """Each round has its own ratio, so a slow minute counts for neither side."""
    ours, reference = [50.0] * 11, [100.0] * 11
    quiet = Figure.of("a", ratios({"o": ours, "r": reference}, "o", "r"), "of r", rounds={})
    # A whole round at a tenth of the speed, and one in which only ours was slow.
    ours[3], reference[3], ours[7] = 5.0, 10.0, 5.0
    noisy = Figure.of("a", ratios({"o": ours, "r": reference}, "o", "r"), "of r", rounds={})
    assert (noisy.value, noisy.interval) == (quiet.value, quiet.interval) == (0.5, (0.5, 0.5))


def test_report_has_the_intervals(tmp_path, monkeypatch):
    """Of figures with rounds enough, in the file and in the table."""
    monkeypatch.setattr(bench, "REPORT", tmp_path / "bench.json")
    monkeypatch.setattr(bench, "PLOTS", tmp_path / "bench")
    made = [
        Figure.of("route_vs_echo", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], "of echo", rounds={}),
        Figure.of("short", [0.1, 0.2], "of it", rounds={}),
    ]
    bench._write(made, QUICK, 1.0, [])
    report = json.loads((tmp_path / "bench.json").read_text())
    assert report["intervals"] == {"route_vs_echo": [0.1, 0.6]}
    table = bench._table(made, QUICK, 1.0)
    assert list(table.columns[2].cells) == ["0.1-0.6", ""]


def test_cost_of_a_verdict_is_a_figure_with_what_is_around_it():
    """After a restart and in the middle of a conversation, by the clock and in processor time."""
    figure = topic_cost._verdicts(QUICK, 20, questions_quick=4)
    assert (figure.key, figure.bound, figure.is_most) == ("topic_p99_ms_20", 1.0, True)
    assert figure.value >= figure.beside["p50_ms"] > 0
    assert "take_in_mib" not in figure.beside  # It takes seconds.


def test_servers_that_topics_are_measured_on_differ_in_topics_alone():
    """Any other difference would be counted as the cost of topics."""
    files = {mode: topic_cost._registry_file(mode) for mode in topic_cost.MODES}
    registries = {mode: parse_registry(text, mode) for mode, text in files.items()}
    assert {mode: registry.topics.mode for mode, registry in registries.items()} == {
        mode: mode for mode in topic_cost.MODES
    }
    assert len(registries["off"].specialists) == 20
    assert all(each.agents == registries["off"].agents for each in registries.values())


async def test_transcript_of_a_seed_is_always_the_same():
    """Otherwise a difference between two versions would say nothing."""
    first, second = [await transcript.record(transcript.REGISTRIES[1], range(3)) for _ in range(2)]
    assert first == second
    assert sum(" -> StatusCode" not in line for line in first) > len(first) / 2
