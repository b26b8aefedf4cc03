"""Where a plain message goes: a second, simple implementation of the routing rules.

It covers messages that are not commands. It shares only data types with the state machine, and is
not optimised.
"""

from __future__ import annotations

from dataclasses import dataclass

from routing_service.core.registry import Agent, AgentKind, Registry, Sticks
from routing_service.core.session import SessionState
from routing_service.core.vocabulary import RouteReason, TaskStatus
from tests.simulation.never import ends_us
from tests.simulation.strategies import About


@dataclass
class Expected:
    """Where the message goes and why, and who has the conversation afterwards."""

    agent_id: str
    reason: RouteReason
    active: str
    locked: bool
    stack: list[str]


@dataclass
class Held:
    """An agent's hold on the conversation."""

    agent_id: str
    locked: bool
    expire_us: int | None


class Reference:
    """One message against one state."""

    def __init__(self, state: SessionState, registry: Registry, now_us: int) -> None:
        self.state = state
        self.registry = registry
        self.now_us = max(now_us, state.update_us)
        self.held = [
            Held(tenure.agent_id, tenure.locked, tenure.lock_expire_us)
            for tenure in (*state.stack, *([state.active] if state.active else []))
        ]
        self.returned = state.returned

    def expects(self, *, stickiness: bool) -> Expected:
        """Apply the rules in order; the first matching line decides."""
        home = self.registry.home_agent_id
        if stickiness and self.state.meanwhile is not None and self.state.paused is None:
            # What agents did while it was off takes effect first.
            self.held = [
                Held(tenure.agent_id, tenure.locked, tenure.lock_expire_us)
                for tenure in self.state.meanwhile
            ]
            self.returned = False
        if not stickiness:
            # Timers run; rule 3 comes before them, so an unavailable agent is not changed.
            if self.held and not self.is_away() and not self.is_paused():
                self.run_timers()
            return self.answer(home, RouteReason.STICKINESS_DISABLED)
        if self.held and self.is_away():
            return self.answer(home, RouteReason.AGENT_UNAVAILABLE)
        if self.is_paused():
            # The paused agent may be the supervisor; an unavailable one cannot be asked either.
            paused = self.state.paused.holder
            if paused != home and self.is_away(paused):
                return self.answer(home, RouteReason.AGENT_UNAVAILABLE)
            return self.answer(paused, RouteReason.AWAITING_APPROVAL)
        had_someone = bool(self.held)
        self.run_timers()
        if had_someone and not self.held:
            return self.answer(home, RouteReason.EXPIRED)
        if not self.held and self.state.expired:
            return self.answer(home, RouteReason.EXPIRED)
        if not self.held:
            nobody = RouteReason.NO_ACTIVE_AGENT
            if self.registry.is_swarm:
                nobody = RouteReason.DEFAULT_AGENT
            return self.answer(home, nobody)
        if self.is_away():
            return self.answer(home, RouteReason.AGENT_UNAVAILABLE)
        active = self.held[-1]
        if self.returned:
            return self.answer(active.agent_id, RouteReason.RETURNED)
        if active.locked:
            return self.answer(active.agent_id, RouteReason.FOLLOW_UP_LOCK)
        return self.answer(active.agent_id, RouteReason.STICKY)

    def topic(self, about: About | None) -> str:
        """Return what topics do with a message that no earlier line matched: "", or who and how.

        "auto ID": it is dispatched; "suggest ID": it is offered. Call it after expects().
        """
        topics = self.registry.topics
        if topics.mode == "off" or about is None or self.is_paused():
            return ""
        agent = self.registry.agents.get(about.agent_id)
        if agent is None or agent.kind is not AgentKind.SPECIALIST or self.is_away(about.agent_id):
            return ""
        mode = agent.topics.mode or topics.mode
        needed = topics.threshold if agent.topics.threshold is None else agent.topics.threshold
        owners = {
            held.agent_id
            for held in self.held
            if held.agent_id in self.registry.agents
            and self.registry.agents[held.agent_id].owns_session
        }
        if not self.held:
            if self.state.sent_home or topics.first_message != "auto":
                return ""
            if about.agent_id == self.registry.home_agent_id:
                return ""
        else:
            active = self.held[-1]
            is_begun = self.has_open_task() and bool(self.state.newest_turn)
            if active.agent_id == about.agent_id or (owners and (is_begun or mode == "suggest")):
                return ""
            if active.locked and topics.lock_threshold is None:
                return ""
            if active.locked:
                needed = max(needed, topics.lock_threshold)
        rests = {rest.agent_id for rest in self.state.rests}
        if mode == "off" or about.confidence < needed or about.confidence <= about.stay:
            return ""
        if about.agent_id in rests or self.is_refused(agent):
            return ""
        return f"{mode if self.held else 'auto'} {about.agent_id}"

    def is_refused(self, agent: Agent) -> bool:
        """Say whether a return stack forbids the target, which would interrupt the active one."""
        below = [held.agent_id for held in self.held[:-1]]
        gives_back = bool(below) and below[-1] == agent.agent_id
        interrupts = agent.receives_as_interlude and not gives_back
        if agent.agent_id == self.registry.home_agent_id or not interrupts:
            return False
        if not self.held and not self.registry.is_swarm:
            return False
        return agent.agent_id in below or len(below) >= self.registry.limits.return_depth

    def answer(self, agent_id: str, reason: RouteReason) -> Expected:
        """Return where the message goes, and what is left of the session's holders."""
        active = self.held[-1] if self.held else None
        return Expected(
            agent_id,
            reason,
            active.agent_id if active else "",
            active.locked if active else False,
            [held.agent_id for held in self.held[:-1]],
        )

    def is_away(self, agent_id: str = "") -> bool:
        """The agent is missing, disabled, or not allowed for this user."""
        agent = self.registry.agents.get(agent_id or self.held[-1].agent_id)
        if agent is None or not agent.enabled or agent.kind is AgentKind.SUPERVISOR:
            return True
        if any(needed not in self.state.entitlements for needed in agent.requires):
            return True
        return agent.channels is not None and self.state.channel not in agent.channels

    def is_paused(self) -> bool:
        """A task waits for an approval, and has not expired."""
        return self.has_open_task() and self.state.task.status is TaskStatus.PAUSED

    def run_timers(self) -> None:
        """Run timers: the idle timeout clears the agent; lock timeouts unlock it or return."""
        if not self.held or self.is_with_person():
            return
        if self.is_idle():
            self.held = []
            return
        while self.held:
            active = self.held[-1]
            if self.is_away() or active.expire_us is None or self.now_us < active.expire_us:
                return
            agent = self.registry.agents[active.agent_id]
            if agent.sticks is not Sticks.SESSION and self.is_answering():
                return
            active.locked, active.expire_us = False, None
            if agent.sticks is Sticks.SESSION:
                return
            self.held.pop()
            self.returned = bool(self.held)

    def is_with_person(self) -> bool:
        """A person has the conversation, so no time-out takes it away."""
        agent = self.registry.agents.get(self.held[-1].agent_id)
        return agent is not None and agent.kind is AgentKind.HUMAN

    def is_answering(self) -> bool:
        """The user has answered the question, and the message would be lost if the agent left."""
        live = self.state.live_turn
        return live is not None and self.now_us < ends_us(live, self.registry)

    def is_idle(self) -> bool:
        """No turn is open, and nothing has happened for the idle timeout."""
        for turn in self.state.open_turns:
            if self.now_us < ends_us(turn, self.registry):
                return False
        present = [self.registry.agents.get(held.agent_id) for held in self.held]
        if self.has_open_task() and any(agent and agent.owns_session for agent in present):
            return False
        agent = self.registry.agents[self.held[-1].agent_id]
        timeout_us = self.registry.limits.idle_timeout_us
        if agent.idle_timeout_us is not None:
            timeout_us = agent.idle_timeout_us
        return timeout_us is not None and self.now_us - self.last_used_us() >= timeout_us

    def last_used_us(self) -> int:
        """Return the time of the last call, without the service's own changes."""
        return self.state.used_us or self.state.update_us

    def has_open_task(self) -> bool:
        """A task is open, and has not expired."""
        task = self.state.task
        if task is None or task.status not in (TaskStatus.RUNNING, TaskStatus.PAUSED):
            return False
        return task.expire_us is None or self.now_us < task.expire_us
