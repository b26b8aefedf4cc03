"""What ``agent-routing top`` shows: changes of the last minute, and the store's recent figures.

It has no clock: the time is an argument. Its rule: an unknown figure is left out, never shown as 0.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC
from typing import Final

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from agent_routing.v1.admin_service_pb2 import GetRoutingStatsResponse
from agent_routing.v1.agent_pb2 import Agent
from agent_routing.v1.route_reason_pb2 import RouteReason
from agent_routing.v1.session_event_pb2 import Change, SessionEvent
from routing_service.cli.admin_answers import event_line
from routing_service.cli.answers import reason_words
from routing_service.cli.screen import agent_text, count_of
from routing_service.telemetry.terminal_text import seen

WINDOW_S: Final = 60
"""The span of "now": long enough for a quiet service to show something, short enough to be new."""
EVENTS_KEPT: Final = 200
"""The latest events; more than the tallest terminal shows."""
AGENTS_SHOWN: Final = 20
BAR_CHARACTERS: Final = 20

_COUNTED: Final = {
    "message_routed": "messages",
    "agent_handoff": "handoffs",
    "command_handled": "commands",
    "agent_cleared": "cleared",
    "turn_abandoned": "abandoned",
    "task_failed": "failed",
}

_ALARMING: Final = {"refused", "failed", "abandoned"}


@dataclass
class Second:
    """The counts of one second."""

    at_s: int
    kinds: Counter[str] = field(default_factory=Counter)
    agents: Counter[str] = field(default_factory=Counter)
    reasons: Counter[RouteReason.ValueType] = field(default_factory=Counter)


class TopState:
    """The state of the screen, updated with each change and answer."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.health = ""
        self.away = ""
        self.stats: GetRoutingStatsResponse | None = None
        self.recent: GetRoutingStatsResponse | None = None
        self._began_s: float | None = None
        # A refusal changes nothing, so watches do not report it: it is in the totals.
        self._refusals: deque[tuple[float, int]] = deque()
        self._agents: dict[str, Agent] = {}
        self._seconds: deque[Second] = deque()
        self._events: deque[tuple[SessionEvent, str]] = deque(maxlen=EVENTS_KEPT)

    def began(self, now_s: float) -> None:
        """Record from when on changes are counted. Until a minute later, the screen says so."""
        self._began_s = now_s

    def knows(self, agents: Iterable[Agent]) -> None:
        """Take the names and colours of agents."""
        self._agents.update({agent.agent_id: agent for agent in agents})

    def changed(self, change: Change, tenant: str, now_s: float) -> None:
        """Count a change that has just arrived."""
        second = self._second(int(now_s))
        for event in change.events:
            kind = event.WhichOneof("kind") or ""
            if kind in _COUNTED:
                second.kinds[_COUNTED[kind]] += 1
            if kind == "message_routed":
                agent = event.message_routed.agent
                self._agents[agent.agent_id] = agent
                second.agents[agent.agent_id] += 1
                second.reasons[event.message_routed.reason] += 1
            self._events.append((event, tenant))

    def totals(
        self,
        stats: GetRoutingStatsResponse,
        now_s: float,
        recent: GetRoutingStatsResponse | None = None,
    ) -> None:
        """Take new figures of the store. recent: those since its start_time."""
        self.stats = stats
        if recent is not None:
            self.recent = recent
        self._refusals.append((now_s, stats.refusals_total))
        while self._refusals[0][0] <= now_s - WINDOW_S:
            self._refusals.popleft()

    def refused(self) -> int:
        """Return the handoffs refused in the last minute, or since began() if that is later."""
        return self._refusals[-1][1] - self._refusals[0][1] if self._refusals else 0

    def counted(self, kind: str, now_s: float) -> int:
        """Return the count of the last minute."""
        return sum(second.kinds[kind] for second in self._recent(now_s))

    def screen(self, now_s: float, *, rows: int) -> RenderableType:
        """Return the screen for a terminal with this many rows."""
        minute = list(self._recent(now_s))
        parts: list[RenderableType] = [
            self._headline(),
            self._figures(minute, now_s),
            self._who(minute),
        ]
        used = 9 + len(self._busy(minute))
        parts.append(self._latest(max(3, rows - used - 3)))
        return Group(*parts)

    def _second(self, at_s: int) -> Second:
        if not self._seconds or self._seconds[-1].at_s < at_s:
            self._seconds.append(Second(at_s))
            while self._seconds[0].at_s <= at_s - WINDOW_S:
                self._seconds.popleft()
        return self._seconds[-1]

    def _recent(self, now_s: float) -> list[Second]:
        return [second for second in self._seconds if second.at_s > now_s - WINDOW_S]

    def _headline(self) -> Text:
        line = Text(f"agent-routing {self.target}  ", style="bold")
        if self.away:
            return line.append(self.away, style="not bold red")
        line.append(self.health, style="not bold green" if self.health == "SERVING" else "red")
        if self.stats is not None and not self.stats.stickiness_enabled:
            line.append("  stickiness is off", style="not bold yellow")
        return line

    def _window(self, now_s: float) -> str:
        """Return how long changes have been counted, at most a minute."""
        counted_s = WINDOW_S if self._began_s is None else int(now_s - self._began_s)
        return "last minute" if counted_s >= WINDOW_S else f"last {max(1, counted_s)} s"

    def _figures(self, minute: list[Second], now_s: float) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column()
        kinds: Counter[str] = Counter()
        for second in minute:
            kinds.update(second.kinds)
        line = Text()
        kinds["refused"] = self.refused()
        for index, name in enumerate([*_COUNTED.values(), "refused"]):
            line.append("  " if index else "")
            style = "red" if name in _ALARMING and kinds[name] else "bold"
            line.append(f"{kinds[name]}", style=style).append(f" {name}", style="dim")
        table.add_row(self._window(now_s), line)
        reasons: Counter[RouteReason.ValueType] = Counter()
        for second in minute:
            reasons.update(second.reasons)
        if reasons:
            told = (f"{reason_words(reason)} {count}" for reason, count in reasons.most_common(6))
            table.add_row("why", Text(", ".join(told)))
        if self.recent is not None:
            table.add_row(self._since(), _totals_line(self.recent))
        if self.stats is not None:
            table.add_row("in all", _totals_line(self.stats))
        return table

    def _since(self) -> str:
        """Return from when on the store's recent figures count, in local time."""
        assert self.recent is not None
        start = self.recent.start_time.ToDatetime(tzinfo=UTC).astimezone()
        return f"since {start:%H:%M}"

    def _busy(self, minute: list[Second]) -> list[tuple[str, int, int]]:
        """Return each agent with its turns since the recent start, and of the last minute."""
        now: Counter[str] = Counter()
        for second in minute:
            now.update(second.agents)
        turns: Counter[str] = Counter()
        if self.recent is not None:
            turns.update({agent.agent_id: agent.turns for agent in self.recent.agents})
        for agent_id, count in now.items():
            # The store counts in the background, so it may be a second behind.
            turns[agent_id] = max(turns[agent_id], count)
        busy = sorted(turns.items(), key=lambda row: (-now[row[0]], -row[1], row[0]))
        return [(name, count, now[name]) for name, count in busy if count][:AGENTS_SHOWN]

    def _who(self, minute: list[Second]) -> RenderableType:
        busy = self._busy(minute)
        if not busy:
            return Text("no messages in the last minute", style="dim")
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("agent", overflow="ellipsis", no_wrap=True)
        table.add_column("now", justify="right")
        if self.recent is not None:
            table.add_column(self._since(), justify="right")
        table.add_column("")
        most = max(count for _, count, _ in busy)
        for agent_id, count, now in busy:
            bar = Text("█" * max(1, round(BAR_CHARACTERS * count / most)), style="blue")
            name = agent_text(self._agents.get(agent_id, Agent(agent_id=agent_id)))
            counts = [str(now)] + ([str(count)] if self.recent is not None else [])
            table.add_row(name, *counts, bar)
        return table

    def _latest(self, rows: int) -> Panel:
        lines = []
        for event, tenant in list(self._events)[-rows:]:
            line = event_line(event, with_session=True, is_brief=True)
            if tenant and tenant != "default":
                line.append(f"  tenant {seen(tenant)}", style="dim")
            line.no_wrap = True
            line.overflow = "ellipsis"
            lines.append(line)
        return Panel(Group(*lines) if lines else Text("none yet", style="dim"), title="events")


def _totals_line(stats: GetRoutingStatsResponse) -> Text:
    """Return the store's figures on one line."""
    line = Text(
        f"{count_of(stats.user_messages, 'message')} in {count_of(stats.sessions, 'session')}, "
    )
    line.append(f"{stats.supervisor_calls_saved_share:.1%}", style="bold")
    line.append(f" of supervisor calls saved, {count_of(stats.handoffs_total, 'handoff')}, ")
    return line.append(f"{stats.refusals_total} refused, {stats.stuck} stuck")
