"""Where a message goes that is not a command: ROUTE_LINES, of which the first that applies decides.

The documentation's table is made from the same rows (scripts/make_state_machine.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import compress, repeat
from operator import call

import msgspec

from routing_service.core import ownership
from routing_service.core.draft import Draft
from routing_service.core.handoff_rules import why_unreachable
from routing_service.core.session import SessionState
from routing_service.core.vocabulary import RouteReason

# The state machine, in short.
#
# A session is either with the home agent (no agent is active) or with one active agent. That is the
# first state variable. Three more hang on it, and each of them is empty while no agent is active or
# no task is open:
#
#   active agent   none, or an agent; an active agent may be LOCKED: it has asked something
#   return stack   the agents that interludes have interrupted, each with its own lock
#   task           none, RUNNING or PAUSED, or closed; PAUSED also names the turn that waits
#   newest turn    the only turn whose answer may still change any of the above
#
# Two kinds of input move them. A user's message (Route) never changes the active agent by itself:
# it only asks who gets it, and the table below answers that. What does change the active agent is
# an answer (CompleteTurn, see OUTCOMES in complete_turn.py), a handoff (SetActiveAgent, see
# HANDOFF_RULES), a user's command, a topic, or a time-out.
#
# Time is not an input of its own. Nothing happens in a session when a time-out passes; instead,
# every message first applies the time-outs that have passed (ownership.expire_turns and
# expire_ownership), so the table only ever sees a session that is up to date. A sweeper may do the
# same earlier; then the message finds it done, and gets the same reason (SessionState.expired).
#
# That is why the order of the lines can be read as a list of priorities:
#
#   - what switches the whole machine off comes first (stickiness);
#   - then what makes the active agent unusable, though it is kept (it may come back);
#   - then what waits for a person, which no message may disturb;
#   - then what has just ended (a time-out);
#   - then the active agent, with the most specific reason first;
#   - and at the end the home agent, so that every message has somewhere to go.
#
# Exactly one line is chosen, the last two apply between them to every session without an active
# agent, and every line before them names an agent that exists: so choosing never fails.
#
# Topics stand between these lines: they are asked only if the line that applies is one of those
# below them (asks_topic), and what they may then do is decided by the handoff rules.


class Arrival(msgspec.Struct, frozen=True):
    """A message as the lines see it.

    draft: with all time-outs applied. expired: one of them has just sent the session home.
    """

    draft: Draft
    state: SessionState
    stickiness_enabled: bool
    expired: bool


@dataclass(frozen=True, slots=True)
class Line:
    """One line of Route as the documentation shows it. reasons: it gives one of them."""

    name: str
    when: str
    goes_to: str
    reasons: tuple[RouteReason, ...]


@dataclass(frozen=True, slots=True)
class RouteLine(Line):
    """A line that is chosen by its predicate.

    agent: returns the id of the agent that gets the message. asks_topic: topic detection comes
    before this line.
    """

    applies: Callable[[Arrival], bool]
    agent: Callable[[Arrival], str]
    asks_topic: bool = False


def choose_line(arrival: Arrival) -> RouteLine:
    """Return the first line that applies to a message that is not a command."""
    # Every message comes here, so the loop is left to C: it stops at the first that applies. The
    # last line applies to every session.
    return next(compress(ROUTE_LINES, map(call, _PREDICATES, repeat(arrival))))


def _stickiness_is_off(arrival: Arrival) -> bool:
    return not arrival.stickiness_enabled


def _holder_is_away(arrival: Arrival) -> bool:
    """Say whether the agent that would get the message, active or paused, is unavailable."""
    state = arrival.state
    active = state.active
    if active is not None and not ownership.is_available(arrival.draft, active.agent_id):
        return True
    paused = state.paused
    if paused is None or paused.holder == arrival.draft.registry.home_agent_id:
        return False
    return not ownership.is_available(arrival.draft, paused.holder)


def why_away(draft: Draft) -> str:
    """Return why the agent that would get a message is away, for the home agent that gets it."""
    state = draft.state
    agent_id = state.active_id
    if (not agent_id or ownership.is_available(draft, agent_id)) and state.paused is not None:
        agent_id = state.paused.holder
    return "; ".join(said for _, said in why_unreachable(agent_id, state, draft.registry))


def _is_paused(arrival: Arrival) -> bool:
    return arrival.state.paused is not None


def _has_expired(arrival: Arrival) -> bool:
    # By this message, or by the sweeper since the last one.
    return arrival.expired or (arrival.state.expired and arrival.state.active is None)


def _has_returned(arrival: Arrival) -> bool:
    return arrival.state.returned and arrival.state.active is not None


def _is_locked(arrival: Arrival) -> bool:
    active = arrival.state.active
    return active is not None and active.locked


def _has_active(arrival: Arrival) -> bool:
    return arrival.state.active is not None


def _is_swarm(arrival: Arrival) -> bool:
    return arrival.draft.registry.is_swarm


def _always(_: Arrival) -> bool:
    return True


def _home(arrival: Arrival) -> str:
    return arrival.draft.registry.home_agent_id


def _active(arrival: Arrival) -> str:
    return arrival.state.active_id


def _paused(arrival: Arrival) -> str:
    assert arrival.state.paused is not None
    return arrival.state.paused.holder


COMMAND_LINE = Line(
    "command",
    "the text is a command: `/supervisor`, `/agent ID`, …",
    "as the command says; the rest of the text goes along",
    (RouteReason.COMMAND, RouteReason.USER_SELECTED),
)

_BEFORE_TOPICS = (
    RouteLine(
        "stickiness_off",
        "stickiness is off (not while a person has the conversation)",
        "the home agent",
        (RouteReason.STICKINESS_DISABLED,),
        applies=_stickiness_is_off,
        agent=_home,
    ),
    RouteLine(
        "away",
        "the active or paused agent is not available (disabled, another channel, not for this "
        "user)",
        "the home agent; the session keeps the other one",
        (RouteReason.AGENT_UNAVAILABLE,),
        applies=_holder_is_away,
        agent=_home,
    ),
    RouteLine(
        "paused",
        "the task is paused for an approval",
        "the paused agent",
        (RouteReason.AWAITING_APPROVAL,),
        applies=_is_paused,
        agent=_paused,
    ),
    RouteLine(
        "expired",
        "the idle timeout has passed, or the lock's of an agent that does not stick (not while a "
        "person has the conversation)",
        "the home agent",
        (RouteReason.EXPIRED,),
        applies=_has_expired,
        agent=_home,
    ),
)

AWAY_LINE = _BEFORE_TOPICS[1]

TOPIC_LINE = Line(
    "topic",
    "topic detection is sure that it is for another agent, and nothing forbids it",
    "that agent, or a suggestion to the user; if it is unsure, as `topics.when_unsure` says",
    (RouteReason.TOPIC_SWITCH, RouteReason.TOPIC_UNSURE),
)

_AFTER_TOPICS = (
    RouteLine(
        "returned",
        "the active agent has just come back from an interlude",
        "the active agent",
        (RouteReason.RETURNED,),
        applies=_has_returned,
        agent=_active,
        asks_topic=True,
    ),
    RouteLine(
        "locked",
        "the active agent has asked something and waits for the answer",
        "the active agent",
        (RouteReason.FOLLOW_UP_LOCK,),
        applies=_is_locked,
        agent=_active,
        asks_topic=True,
    ),
    RouteLine(
        "sticky",
        "an agent is active",
        "the active agent",
        (RouteReason.STICKY,),
        applies=_has_active,
        agent=_active,
        asks_topic=True,
    ),
    RouteLine(
        "swarm",
        "no agent is active, in a swarm",
        "the default agent",
        (RouteReason.DEFAULT_AGENT,),
        applies=_is_swarm,
        agent=_home,
        asks_topic=True,
    ),
    RouteLine(
        "home",
        "no agent is active",
        "the supervisor",
        (RouteReason.NO_ACTIVE_AGENT,),
        applies=_always,
        agent=_home,
        asks_topic=True,
    ),
)

ROUTE_LINES: tuple[RouteLine, ...] = (*_BEFORE_TOPICS, *_AFTER_TOPICS)

_PREDICATES = tuple(line.applies for line in ROUTE_LINES)

ALL_LINES: tuple[Line, ...] = (COMMAND_LINE, *_BEFORE_TOPICS, TOPIC_LINE, *_AFTER_TOPICS)
"""Every line of Route in the order in which they apply."""
