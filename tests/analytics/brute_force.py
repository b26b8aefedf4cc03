"""The figures counted a second time: from the whole log, with sets and sorted lists.

Owns a second definition of each figure, independent of the fold. It follows a session with the
core's evolve, and keeps every single counted item.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from routing_service.core import events as ev
from routing_service.core.evolve import evolve
from routing_service.core.session import SessionState
from routing_service.core.vocabulary import HandoffMode, Initiator, OutcomeStatus, RouteReason

HOUR_US = 3_600_000_000
GOES_ON = (HandoffMode.TRANSFER, HandoffMode.INTERLUDE, HandoffMode.HOP)


@dataclass(frozen=True)
class Fact:
    """One item to count: where, what, and its name there."""

    tenant: str
    session_id: str
    hour: int
    channel: str
    what: str
    name: object = ""
    size: int = 0


@dataclass
class Hold:
    """An agent that has the conversation or was interrupted, and how that came about."""

    agent_id: str
    turns: int = 0
    interrupted_by: tuple = ()


@dataclass
class SessionCounter:
    """Goes through one session's log."""

    tenant: str
    session_id: str
    home: str
    state: SessionState | None = None
    facts: list[Fact] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    handed: tuple[str, str] = ("", "")
    since: int = 0

    def take(self, time_us, events):
        """Take one change."""
        hour = time_us // HOUR_US
        if self.state is None:
            self.state = SessionState(self.session_id, 0, time_us, time_us)
        typed = any(isinstance(event, ev.CommandHandled) for event in events)
        for event in events:
            before = self.state
            self.state = evolve(before, event)
            channel = self.state.channel

            def fact(what, name="", size=0, *, at=(hour, channel)):
                self.facts.append(Fact(self.tenant, self.session_id, *at, what, name, size))

            self._owner(event, before, fact, hour, channel, typed=typed)
            self._plain(event, fact, time_us)
        # The state decides who has the conversation, whatever was counted.
        now = [tenure.agent_id for tenure in self.state.stack]
        now += [self.state.active_id] if self.state.active else []
        assert [hold.agent_id for hold in self.holds] == now

    def _owner(self, event, before, fact, hour, channel, *, typed):
        """Count stays, activations, returns and stuck users, before dispatches are counted."""
        active = self.holds[-1] if before.active else None
        by_user = isinstance(event, ev.AgentCleared) and event.cause in ("command", "reset")
        by_user |= (
            isinstance(event, ev.AgentHandedOff)
            and event.moves
            and typed
            and (event.initiator, event.route_reason) == (Initiator.USER, RouteReason.USER_SELECTED)
        )
        if by_user and active is not None and active.turns <= 2:
            fact("stuck", active.agent_id)
        enters = ""
        if isinstance(event, ev.AgentHandedOff) and event.moves:
            enters = event.to_agent if event.activates else ""
            if event.mode is HandoffMode.INTERLUDE:
                if active is None:
                    self.holds.append(Hold(event.from_agent))
                self.holds[-1].interrupted_by = (_pair(event), (hour, channel))
                gone = []
            elif event.mode is HandoffMode.RETURN and event.activates:
                gone, enters = [self.holds.pop()], ""
                pair, place = self.holds[-1].interrupted_by
                fact("returned", pair, at=place)
            elif event.mode is HandoffMode.HOP and event.activates:
                gone = [self.holds.pop()] if active else []
            else:
                gone, self.holds = self.holds, []
        elif isinstance(event, ev.AgentCleared | ev.StickinessExpired | ev.SessionErased) or (
            isinstance(event, ev.LockEngaged) and event.agent_id != before.active_id
        ):
            gone, self.holds = self.holds, []
            enters = event.agent_id if isinstance(event, ev.LockEngaged) else ""
        else:
            return
        for hold in gone:
            fact("stay", hold.agent_id, hold.turns)
        if enters:
            self.holds.append(Hold(enters))
            fact("activation", enters)

    def _plain(self, event, fact, time_us):
        match event:
            case ev.MessageRouted():
                self.since += 1
                fact("message", event.agent_id != self.home)
                self._dispatch(event.agent_id, event.reason, fact)
            case ev.AgentHandedOff() if not event.settles:
                if event.mode in (*GOES_ON, HandoffMode.CONSULT):
                    fact("handoff", _pair(event))
                if event.mode in GOES_ON:
                    back = self.handed == (event.to_agent, event.from_agent)
                    meant = event.initiator in (Initiator.USER, Initiator.OPERATOR)
                    if back and self.since <= 2 and not meant:
                        fact("ping_pong", _pair(event))
                    self.handed, self.since = (event.from_agent, event.to_agent), 0
                if event.dispatches:
                    self._dispatch(event.to_agent, event.route_reason, fact)
            case ev.TaskResumed():
                self._dispatch(event.agent_id, RouteReason.TASK_RESUMED, fact)
            case ev.TurnCompleted():
                stored = event.status is OutcomeStatus.STORED_ONLY
                fact("stored" if stored else "outcome", (event.agent_id, event.outcome.value))
                if event.status is OutcomeStatus.DEGRADED:
                    fact("degraded", event.agent_id)
                if event.dispatched_us is not None:
                    fact("response", event.agent_id, max(0, time_us - event.dispatched_us))
            case ev.TurnAbandoned():
                fact("abandoned", event.agent_id)
            case ev.CommandHandled():
                fact("command", f"/{event.command}")

    def _dispatch(self, agent_id, reason, fact):
        fact("turn", agent_id)
        fact("reason", reason.value)
        if self.state.active_id == agent_id and self.holds:
            self.holds[-1].turns += 1


def _pair(event):
    return (event.from_agent, event.to_agent, event.initiator.value, event.mode.value)


def count(facts, *, tenant, channel="", start_hour=0):
    """Return the figures of a tenant ("*" = all), a channel ("" = all) and a span."""
    chosen = [
        fact
        for fact in facts
        if tenant in ("*", fact.tenant)
        and channel in ("", fact.channel)
        and fact.hour >= start_hour
    ]
    named = defaultdict(Counter)
    sizes = defaultdict(lambda: defaultdict(list))
    for fact in chosen:
        named[fact.what][fact.name] += 1
        sizes[fact.what][fact.name].append(fact.size)
    messages = [fact for fact in chosen if fact.what == "message"]
    return {
        "messages": len(messages),
        "saved": named["message"][True],
        "sessions": len({(fact.tenant, fact.session_id) for fact in messages}),
        "channels": Counter(fact.channel for fact in messages if fact.channel),
        "hours": Counter(fact.hour for fact in messages),
        "reasons": named["reason"],
        "commands": named["command"],
        "handoffs": named["handoff"],
        "returned": named["returned"],
        "ping_pongs": named["ping_pong"],
        "refused": named["refused"],
        "rules": named["rule"],
        "turns": named["turn"],
        "outcomes": named["outcome"],
        "stored": Counter(fact.name[0] for fact in chosen if fact.what == "stored"),
        "degraded": named["degraded"],
        "abandoned": named["abandoned"],
        "activations": named["activation"],
        "stuck": named["stuck"],
        "stays": named["stay"],
        "stay_sizes": sizes["stay"],
        "response_sizes": sizes["response"],
    }


def at_rank(sizes, share):
    """Return the size at a share's rank."""
    return sorted(sizes)[max(0, math.ceil(share * len(sizes)) - 1)]
