"""What one change of a session adds to the figures.

It depends only on the session's own changes up to that one, so every process computes the same at
any time. Events that are not counted, such as kinds of a newer release, are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from routing_service.analytics.counts import (
    CHANNELS_MAX,
    NEVER,
    PAIR_SEPARATOR,
    Counts,
    Pair,
    SuggestionCounts,
    add_word,
    confidence_range,
)
from routing_service.analytics.histogram import bucket_of
from routing_service.analytics.stuck_windows import AgentWindow, AgentWindows, user_bit
from routing_service.core import events as ev
from routing_service.core.vocabulary import (
    HandoffMode,
    Initiator,
    OutcomeStatus,
    RouteReason,
)

HOUR_US: Final = 3_600_000_000

STUCK_TURNS_MAX: Final = 2
"""A user who leaves an agent by a command after at most this many turns with it was stuck."""

PING_PONG_MESSAGES_MAX: Final = 2
"""A conversation that is given back after at most this many messages went back and forth."""

SESSION_CHANNELS_MAX: Final = 8
"""Channels of one session whose last hours are remembered. Most sessions have one."""

RESPONSE_TICK_US: Final = 100
"""Response times are counted in tenths of a millisecond."""

_COUNTED_MODES: Final = (HandoffMode.TRANSFER, HandoffMode.INTERLUDE, HandoffMode.HOP)
_BY_THEMSELVES: Final = (Initiator.USER, Initiator.OPERATOR)
"""Requesters whose handoffs correct a mistake rather than make one."""


class Frame(msgspec.Struct, frozen=True):
    """An agent that an interlude has interrupted.

    pair, hour, channel: the handoff that interrupted it, and the place where it was counted.
    """

    agent_id: str
    turns: int
    pair: str
    hour: int
    channel: str


class ParkedWalk(msgspec.Struct, frozen=True):
    """What is known of a parked task's agents until it goes on."""

    task_id: str
    active: str
    turns: int
    frames: tuple[Frame, ...] = ()


class SessionWalk(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a session's changes so far that is needed to count the next one.

    revision: of the last change. turns: dispatched to the active agent since it became active.
    handed_from, handed_to: the last handoff that was carried out, messages_since: messages since.
    parked: tasks that are parked. offer: the last suggestion, offered_at: its confidence_range.
    last_hour: in which the session had its last message. last_hours: the same by channel.
    user_bit: the user's in the sketches of a window; -1 = no user was named.
    """

    revision: int = 0
    channel: str = ""
    active: str = ""
    turns: int = 0
    frames: tuple[Frame, ...] = ()
    handed_from: str = ""
    handed_to: str = ""
    messages_since: int = 0
    last_hour: int = NEVER
    last_hours: tuple[tuple[str, int], ...] = ()
    user_bit: int = -1
    parked: tuple[ParkedWalk, ...] = ()
    offer: str = ""
    offered_at: int = 0


@dataclass(frozen=True, slots=True)
class HourChannel:
    """The place where an event is counted. hour: since 1970. channel: "" = none was named."""

    hour: int
    channel: str


@dataclass(slots=True)
class Added:
    """The figures that changes add, by place; firsts are those of all channels together.

    channel_firsts: counts with nothing but the firsts within one channel. part_us: the length of a
    part of the tenant's window; 0 = none is kept. windows: its parts by number.
    """

    counts: dict[HourChannel, Counts] = field(default_factory=dict)
    channel_firsts: dict[HourChannel, Counts] = field(default_factory=dict)
    part_us: int = 0
    windows: dict[int, AgentWindows] = field(default_factory=dict)

    def at(self, place: HourChannel) -> Counts:
        """Return the counts of a place, to be added to."""
        return self.counts.setdefault(place, Counts())

    def window(self, agent_id: str, time_us: int) -> AgentWindow | None:
        """Return an agent's part of the window, to be added to; None if none is kept."""
        if not self.part_us:
            return None
        agents = self.windows.setdefault(time_us // self.part_us, {})
        return agents.setdefault(agent_id, AgentWindow())


def step(
    walk: SessionWalk,
    *,
    revision: int,
    time_us: int,
    events: Sequence[ev.Event],
    home_agent_id: str,
    added: Added,
    session_bit: int = 0,
    registry_version: str = "",
) -> SessionWalk:
    """Walk over one change, and return the state after it.

    time_us: the change's. home_agent_id: the agent whose calls stickiness saves. added: receives
    the change's figures. session_bit: stands for the user of a session that names none.
    registry_version: of the registry that decided.
    """
    stride = _Stride(walk, time_us, home_agent_id, added)
    stride.session_bit = session_bit
    stride.registry_version = registry_version
    stride.by_command = any(isinstance(event, ev.CommandHandled) for event in events)
    for event in events:
        stride.take(event)
    return stride.end(revision)


class _Stride:
    """One change while it is counted."""

    def __init__(self, walk: SessionWalk, time_us: int, home_agent_id: str, added: Added) -> None:
        self.hour = time_us // HOUR_US
        self.time_us = time_us
        self.home_agent_id = home_agent_id
        self.by_command = False
        self.session_bit = 0
        self.registry_version = ""
        self.offer, self.offered_at = walk.offer, walk.offered_at
        self.user_bit = walk.user_bit
        self.added = added
        self.channel = walk.channel
        self.active = walk.active
        self.turns = walk.turns
        self.frames = walk.frames
        self.handed = (walk.handed_from, walk.handed_to)
        self.messages_since = walk.messages_since
        self.last_hour = walk.last_hour
        self.last_hours = dict(walk.last_hours)
        self.parked = {each.task_id: each for each in walk.parked}
        self.chosen: str = ""
        self.aside = ParkedWalk("", "", 0)
        self.closed: set[str] = set()

    def end(self, revision: int) -> SessionWalk:
        """Return the walk so far."""
        return SessionWalk(
            revision=revision,
            channel=self.channel,
            active=self.active,
            turns=self.turns,
            frames=self.frames,
            handed_from=self.handed[0],
            handed_to=self.handed[1],
            messages_since=self.messages_since,
            last_hour=self.last_hour,
            last_hours=tuple(self.last_hours.items())[-SESSION_CHANNELS_MAX:],
            user_bit=self.user_bit,
            parked=tuple(self.parked.values()),
            offer=self.offer,
            offered_at=self.offered_at,
        )

    @property
    def _who(self) -> int:
        """The bit that stands for the user."""
        return self.session_bit if self.user_bit < 0 else self.user_bit

    @property
    def here(self) -> Counts:
        """The counts of this change's own place."""
        return self.added.at(HourChannel(self.hour, self.channel))

    def take(self, event: Any) -> None:
        """Count one event."""
        match event:
            case ev.TaskCompleted() | ev.TaskFailed() | ev.TaskCancelled():
                self.closed.add(event.task_id)
            case ev.TaskParked() | ev.TaskForegrounded() | ev.StrandChosen():
                self._change_task(event)
            case _:
                self._count(event)

    def _count(self, event: Any) -> None:
        match event:
            case ev.SessionStarted(profile=profile) | ev.ProfileUpdated(profile=profile):
                self.channel = profile.channel or self.channel
                if profile.user_id:
                    self.user_bit = user_bit(profile.user_id)
            case ev.MessageRouted():
                self._message(event)
            case ev.AgentHandedOff():
                self._handoff(event)
            case ev.TaskResumed():
                self._dispatch(event.agent_id, RouteReason.TASK_RESUMED)
            case ev.TurnCompleted():
                self._answer(event)
            case ev.TurnAbandoned():
                self.here.agent(event.agent_id).abandoned += 1
            case ev.CommandHandled():
                add_word(self.here.commands, f"/{event.command}")
            case ev.SwitchSuggested():
                self._offered(event)
            case ev.SwitchAnswered():
                self._answered(event)
            case ev.AgentCleared():
                self._leave(by_user=event.cause in ("command", "reset"))
                self._end_all()
            case ev.StickinessExpired() | ev.SessionErased():
                self._end_all()
            case ev.LockEngaged():
                if event.agent_id != self.active:
                    # A stand-in or default agent asked the user and takes over.
                    self._end_all()
                    self._activate(event.agent_id)
            case _:
                pass

    def _change_task(self, event: ev.TaskParked | ev.TaskForegrounded | ev.StrandChosen) -> None:
        """Change the task whose agents are counted. Parking ends no stay: it goes on later."""
        match event:
            case ev.TaskParked(task_id=task_id):
                self.parked[task_id] = self._present(task_id)
                self._go_on(ParkedWalk("", "", 0))
            case ev.TaskForegrounded(task_id=task_id):
                self._end_all()
                self._go_on(self.parked.pop(task_id, ParkedWalk("", "", 0)))
            case ev.StrandChosen(task_id=task_id) if task_id:
                self.chosen, self.aside = task_id, self._present("")
                self._go_on(self.parked.pop(task_id, ParkedWalk("", "", 0)))
            case _:
                if self.chosen not in self.closed:
                    self.parked[self.chosen] = self._present(self.chosen)
                else:
                    self._end_all()
                self._go_on(self.aside)
                self.chosen = ""

    def _present(self, task_id: str) -> ParkedWalk:
        return ParkedWalk(task_id, self.active, self.turns, self.frames)

    def _go_on(self, parked: ParkedWalk) -> None:
        self.active, self.turns, self.frames = parked.active, parked.turns, parked.frames

    def _offered(self, event: ev.SwitchSuggested) -> None:
        self.offer, self.offered_at = event.suggestion_id, confidence_range(event.confidence)
        self._offer(event).offered += 1
        self.here.offer(self.offered_at).offered += 1

    def _answered(self, event: ev.SwitchAnswered) -> None:
        figures = [self._offer(event)]
        if event.suggestion_id == self.offer:
            figures.append(self.here.offer(self.offered_at))
        for each in figures:
            each.accepted += event.accepted
            each.declined += not event.accepted

    def _offer(self, event: ev.SwitchSuggested | ev.SwitchAnswered) -> SuggestionCounts:
        return self.here.suggestion(f"{event.from_agent}{PAIR_SEPARATOR}{event.agent_id}")

    def _message(self, event: ev.MessageRouted) -> None:
        counts = self.here
        counts.messages += 1
        counts.saved += event.agent_id != self.home_agent_id
        if self.registry_version:
            add_word(counts.registries, self.registry_version)
        if self.channel:
            add_word(counts.channels, self.channel, CHANNELS_MAX)
        self.messages_since += 1
        self._dispatch(event.agent_id, event.shown_reason)
        if self.last_hour != self.hour:
            counts.count_first(self.last_hour)
            self.last_hour = self.hour
        before = self.last_hours.pop(self.channel, NEVER)
        if before != self.hour:
            place = HourChannel(self.hour, self.channel)
            self.added.channel_firsts.setdefault(place, Counts()).count_first(before)
        self.last_hours[self.channel] = self.hour

    def _dispatch(self, agent_id: str, reason: RouteReason) -> None:
        counts = self.here
        add_word(counts.reasons, reason.value)
        counts.agent(agent_id).turns += 1
        if (window := self.added.window(agent_id, self.time_us)) is not None:
            window.turns += 1
        if agent_id == self.active:
            self.turns += 1

    def _answer(self, event: ev.TurnCompleted) -> None:
        agent = self.here.agent(event.agent_id)
        if event.status is OutcomeStatus.STORED_ONLY:
            agent.stored_only += 1
        else:
            add_word(agent.outcomes, event.outcome.value)
            agent.degraded += event.status is OutcomeStatus.DEGRADED
        if event.dispatched_us is not None:
            bucket = bucket_of(max(0, self.time_us - event.dispatched_us) // RESPONSE_TICK_US)
            agent.responses[bucket] = agent.responses.get(bucket, 0) + 1

    def _handoff(self, event: ev.AgentHandedOff) -> None:
        pair = Pair(event.from_agent, event.to_agent, event.initiator.value, event.mode.value).name
        if event.settles:
            self._move(event, pair)  # It was counted when it was made.
            return
        if event.mode in (*_COUNTED_MODES, HandoffMode.CONSULT):
            counts = self.here
            counts.carried_out += 1
            counts.pair(pair).carried_out += 1
        if event.mode in _COUNTED_MODES:
            self._ping_pong(event, pair)
        if event.moves:
            self._move(event, pair)
        if event.dispatches:
            self._dispatch(event.to_agent, event.route_reason)

    def _ping_pong(self, event: ev.AgentHandedOff, pair: str) -> None:
        goes_back = self.handed == (event.to_agent, event.from_agent)
        is_soon = self.messages_since <= PING_PONG_MESSAGES_MAX
        if goes_back and is_soon and event.initiator not in _BY_THEMSELVES:
            self.here.ping_pongs += 1
            self.here.pair(pair).ping_pongs += 1
        self.handed = (event.from_agent, event.to_agent)
        self.messages_since = 0

    def _move(self, event: ev.AgentHandedOff, pair: str) -> None:
        by_user = (
            self.by_command
            and event.initiator is Initiator.USER
            and event.route_reason is RouteReason.USER_SELECTED
        )
        self._leave(by_user=by_user)
        to_agent = event.to_agent if event.activates else ""
        match event.mode:
            case HandoffMode.INTERLUDE:
                left = Frame(
                    self.active or event.from_agent, self.turns, pair, self.hour, self.channel
                )
                self.frames = (*self.frames, left)
                self.active = ""
                self._activate(to_agent)
            case HandoffMode.RETURN if event.activates and self.frames:
                self._end_stay(self.active, self.turns)
                *kept, frame = self.frames
                self.added.at(HourChannel(frame.hour, frame.channel)).pair(frame.pair).returned += 1
                self.frames = tuple(kept)
                self.active, self.turns = frame.agent_id, frame.turns
            case HandoffMode.HOP if event.activates:
                self._end_stay(self.active, self.turns)
                self._activate(to_agent)
            case _:
                self._end_all()
                self._activate(to_agent)

    def _leave(self, *, by_user: bool) -> None:
        """Count an agent that its user leaves soon after getting it."""
        if by_user and self.active and self.turns <= STUCK_TURNS_MAX:
            counts = self.here
            counts.stuck += 1
            counts.agent(self.active).stuck += 1
            if (window := self.added.window(self.active, self.time_us)) is not None:
                window.leave_stuck(self._who)

    def _activate(self, agent_id: str) -> None:
        self.active, self.turns = agent_id, 0
        if agent_id:
            self.here.agent(agent_id).activations += 1
            if (window := self.added.window(agent_id, self.time_us)) is not None:
                window.activate(self._who)

    def _end_all(self) -> None:
        """End the stay of the active agent and of all that it interrupted."""
        for frame in self.frames:
            self._end_stay(frame.agent_id, frame.turns)
        self._end_stay(self.active, self.turns)
        self.frames, self.active, self.turns = (), "", 0

    def _end_stay(self, agent_id: str, turns: int) -> None:
        if not agent_id:
            return
        agent = self.here.agent(agent_id)
        agent.stays += 1
        agent.turns_stayed += turns
        bucket = bucket_of(turns)
        agent.stay_turns[bucket] = agent.stay_turns.get(bucket, 0) + 1
