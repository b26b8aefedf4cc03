"""``agent-routing top``: the contents of its screen."""

from __future__ import annotations

import io
import sys
import threading
import time
import uuid

import pytest
from rich.console import Console

from agent_routing import Admin, outcomes
from agent_routing.v1 import admin_service_pb2, agent_pb2, route_reason_pb2, session_event_pb2
from routing_service.cli import main
from routing_service.cli.embedded_server import server_in_thread
from routing_service.cli.top_screen import WINDOW_S, TopState
from routing_service.examples import EXAMPLES

NOW_S = 1_760_000_000.0


def routed(agent_id: str, session_id: str = "chat-1") -> session_event_pb2.Change:
    """Return a change that sends a message to an agent."""
    event = session_event_pb2.SessionEvent(session_id=session_id, revision=1)
    event.event_time.FromSeconds(int(NOW_S))
    event.message_routed.agent.CopyFrom(
        agent_pb2.Agent(agent_id=agent_id, display_name=agent_id.title())
    )
    event.message_routed.reason = route_reason_pb2.ROUTE_REASON_STICKY
    return session_event_pb2.Change(events=[event])


def shown(state: TopState, now_s: float, *, rows: int = 30, columns: int = 100) -> str:
    """Return the screen as plain text."""
    out = Console(file=io.StringIO(), width=columns, height=rows, highlight=False)
    out.print(state.screen(now_s, rows=rows))
    return out.file.getvalue()


def test_top_counts_the_last_minute_alone():
    """The screen shows current activity, so older events must disappear."""
    state = TopState("127.0.0.1:50051")
    for _ in range(3):
        state.changed(routed("vat"), "default", NOW_S)
    state.changed(routed("invoices"), "default", NOW_S + 1)
    now = shown(state, NOW_S + 2)
    assert "4 messages" in now
    assert "sticky 4" in now
    assert now.index("Vat") < now.index("Invoices")
    later = shown(state, NOW_S + WINDOW_S + 2)
    assert "0 messages" in later
    assert "no messages in the last minute" in later


def test_top_says_that_the_server_is_away():
    """Old figures without a warning would look like a quiet night."""
    state = TopState("127.0.0.1:50051")
    state.health = "SERVING"
    assert "SERVING" in shown(state, NOW_S)
    state.away = "no answer for 12 s [UNAVAILABLE]"
    assert "no answer for 12 s [UNAVAILABLE]" in shown(state, NOW_S)
    assert "SERVING" not in shown(state, NOW_S)


def test_top_counts_refusals_from_the_totals():
    """A refusal changes no session, so watches do not report it."""
    state = TopState("127.0.0.1:50051")
    state.totals(admin_service_pb2.GetRoutingStatsResponse(refusals_total=7), NOW_S)
    assert "0 refused" in shown(state, NOW_S)
    state.totals(admin_service_pb2.GetRoutingStatsResponse(refusals_total=9), NOW_S + 5)
    assert "2 refused" in shown(state, NOW_S + 5)
    state.totals(admin_service_pb2.GetRoutingStatsResponse(refusals_total=9), NOW_S + 100)
    assert "0 refused" in shown(state, NOW_S + 100)


def test_top_counts_one_in_the_singular():
    """A newcomer's first figures are ones."""
    state = TopState("127.0.0.1:50051")
    stats = admin_service_pb2.GetRoutingStatsResponse(user_messages=1, sessions=1, handoffs_total=2)
    state.totals(stats, NOW_S)
    assert "1 message in 1 session, 0.0% of supervisor calls saved, 2 handoffs" in shown(
        state, NOW_S
    )


def test_top_counts_from_the_store_and_not_from_its_own_start():
    """An operator opens it because something is wrong now: the last hour must be on it at once."""
    state = TopState("127.0.0.1:50051")
    recent = admin_service_pb2.GetRoutingStatsResponse(
        user_messages=179, sessions=51, supervisor_calls_saved_share=0.78, refusals_total=3
    )
    recent.start_time.FromSeconds(int(NOW_S))
    recent.agents.add(agent_id="vat", turns=96)
    recent.agents.add(agent_id="filing")
    state.knows([agent_pb2.Agent(agent_id="vat", display_name="IVA")])
    state.began(NOW_S)
    total = admin_service_pb2.GetRoutingStatsResponse(user_messages=9_000, sessions=800)
    state.totals(total, NOW_S, recent)
    first = shown(state, NOW_S + 12)
    assert "last 12 s" in first
    assert "179 messages in 51 sessions, 78.0% of supervisor calls saved" in first
    assert "9000 messages in 800 sessions" in first
    (agent,) = [line for line in first.splitlines() if "IVA (vat)" in line]
    assert agent.split()[2:4] == ["0", "96"]
    assert "filing" not in first
    assert "last minute" in shown(state, NOW_S + WINDOW_S)


def test_top_fits_a_small_terminal_and_shows_users_words_as_they_are():
    """A session id comes from a caller: it is never markup, and never wider than the screen."""
    state = TopState("127.0.0.1:50051")
    for number in range(50):
        state.changed(routed("vat", f"[red]{number}" + "x" * 100), "acme", NOW_S)
    lines = shown(state, NOW_S, rows=20, columns=80).splitlines()
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 80
    assert any("[red]49xxxxxxxxxxxx…" in line for line in lines)


def test_top_of_a_server(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """The whole command: events during its run are on its last screen."""
    stopped = threading.Event()

    def talk(target: str) -> None:
        with Admin(target, fallback=None, timeout=30) as client:
            while not stopped.is_set():
                name = f"top-{uuid.uuid1(node=1).hex}"  # noqa: TID251 - only has to differ
                turn = client.route("hola", session_id=name, user_id="ana", channel="web")
                client.complete_turn(
                    name, turn.request_id, turn.agent_id, outcomes.handoff("vat"), text="IVA"
                )
                stopped.wait(0.05)

    with server_in_thread(EXAMPLES["tax"].registry_path, "memory:") as target:
        with Admin(target, fallback=None, timeout=30) as client:
            for number in range(7):
                client.route("hola", session_id=f"before-{number}", user_id="ana", channel="web")
            while client.routing_stats().user_messages < 7:
                time.sleep(0.1)
        talker = threading.Thread(target=talk, args=(target,))
        talker.start()
        monkeypatch.setattr(
            sys, "argv", ["agent-routing", "top", "--seconds", "4", "--target", target]
        )
        try:
            with pytest.raises(SystemExit) as ended:
                main()
        finally:
            stopped.set()
            talker.join(30)
    out, err = capsys.readouterr()
    assert (ended.value.code, err) == (0, "")
    assert f"agent-routing {target}" in out
    assert "SERVING" in out
    assert "Coordinadora (coordinator)" in out
    assert "agent handoff" in out
    # Seven messages came before it started.
    (since,) = [line for line in out.splitlines() if line.lstrip().startswith("since")]
    assert int(since.split()[2]) >= 7


def test_top_without_a_server_ends_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Otherwise a mistyped address would look like an idle server."""
    monkeypatch.setattr(
        sys, "argv", ["agent-routing", "top", "--target", "127.0.0.1:1", "--timeout", "1"]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert "no server answers at 127.0.0.1:1" in capsys.readouterr().err
