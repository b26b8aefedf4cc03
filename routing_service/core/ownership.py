"""How the conversation changes hands: handoffs, returns, releases, expiry.

Rule: exactly one place emits each kind of move, so that locks, frames and epochs agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from routing_service.core import approvals
from routing_service.core import events as ev
from routing_service.core.commands import HandoffPlan
from routing_service.core.deadlines import deadline_us
from routing_service.core.draft import Draft
from routing_service.core.events import WaitBegun
from routing_service.core.handoff_rules import agent_is_reachable
from routing_service.core.people import end_claim, turns_of_person
from routing_service.core.registry import Agent, AgentKind, Registry, Sticks
from routing_service.core.session import OpenTurn, SessionState, Tenure
from routing_service.core.vocabulary import (
    HandoffMode,
    Initiator,
    RouteReason,
    TaskStatus,
    WhenUnsure,
)

_HANDOFF_REASONS = {
    Initiator.SUPERVISOR: RouteReason.SUPERVISOR_HANDOFF,
    Initiator.AGENT: RouteReason.AGENT_HANDOFF,
    Initiator.USER: RouteReason.USER_SELECTED,
    Initiator.OPERATOR: RouteReason.AGENT_HANDOFF,
    Initiator.TOPIC: RouteReason.TOPIC_SWITCH,
    Initiator.COMPLETION: RouteReason.TASK_COMPLETED,
}


# Clears by which a caller asks for the home agent; by the others an agent is done.
_ON_REQUEST = frozenset({"command", "reset", "clear"})

# An agent that leaves by one of these was answered; by the others its lock is taken away.
_BY_ANSWER = frozenset({"proceed", "complete"})


# The reasons that are stored of a turn which the supervisor has though an agent is active, and that
# no other such turn has: see MessageRouted.shown_reason. A consult of the supervisor's may be done.
_UNSURE_TURNS = frozenset({RouteReason.NO_ACTIVE_AGENT, RouteReason.CONSULTED})


_STORED_CAUSES: Final = {
    "overtaken": "limit",
    "attempts": "limit",
    "command": "clear",
    "cancelled": "clear",
}
"""Causes of an abandoned turn that older releases do not know, and what is stored instead."""


class Move(msgspec.Struct, frozen=True):
    """A handoff that the rules allowed. child_request_id: "" keeps the turn's request.

    no_hop: people give back what none of them claimed, or an operator moves the turn.
    along: see AgentHandedOff. brings_paused: the message of the withdrawn approval goes along, and
    the approval ends after that.
    """

    source: str
    target: Agent
    initiator: Initiator
    mode: HandoffMode
    route_reason: RouteReason
    reason: str = ""
    context: Mapping[str, object] | None = None
    message: str = ""
    turn: OpenTurn | None = None
    child_request_id: str = ""
    dispatches: bool = False
    moves: bool = True
    kept: bool = False
    no_hop: bool = False
    along: bool = False
    brings_paused: bool = False


def effective_mode(
    state: SessionState, registry: Registry, source: str, target: Agent, asked: HandoffMode
) -> HandoffMode:
    """Return what a handoff really does. asked: the mode that the caller asked for."""
    if asked is HandoffMode.CONSULT:
        return HandoffMode.CONSULT
    if target.agent_id == registry.home_agent_id:
        return HandoffMode.TRANSFER
    if state.stack and source == state.active_id and target.agent_id == state.stack[-1].agent_id:
        return HandoffMode.RETURN
    if asked is not HandoffMode.INTERLUDE and not target.receives_as_interlude:
        return HandoffMode.TRANSFER
    is_home = source == registry.home_agent_id
    if is_home and not registry.is_swarm:
        return HandoffMode.TRANSFER  # A supervisor is never interrupted.
    if state.active is None:
        # A default agent may be interrupted although it is not active: it has the conversation.
        return HandoffMode.INTERLUDE if is_home else HandoffMode.TRANSFER
    if source and source != state.active_id:
        # An agent that stands in for the active one is not interrupted: it is not active itself.
        return HandoffMode.TRANSFER
    return HandoffMode.INTERLUDE


def hands_back(draft: Draft, turn: OpenTurn, target: Agent) -> bool:
    """Say whether a handoff only returns an unsure message to the agent that is still active.

    The supervisor was asked about the message and says that the agent keeps it: nothing moves but
    the turn, the agent keeps lock and stack, and it counts as no handoff.
    """
    active = draft.state.active
    return (
        active is not None
        and active.agent_id == target.agent_id
        and turn.holder == draft.registry.home_agent_id
        and turn.reason in _UNSURE_TURNS
        and draft.registry.when_unsure is WhenUnsure.SUPERVISOR
    )


def hand_back_reason(state: SessionState) -> RouteReason:
    """Return why a message is with the active agent after it was handed back."""
    is_locked = state.active is not None and state.active.locked
    return RouteReason.FOLLOW_UP_LOCK if is_locked else RouteReason.STICKY


def hand_off(draft: Draft, move: Move) -> HandoffPlan:
    """Emit the events of a handoff and return its plan."""
    turn = move.turn
    is_home_supervisor = move.target.kind is AgentKind.SUPERVISOR
    is_home = move.target.agent_id == draft.registry.home_agent_id
    # Only an operator or a handoff to the home agent gets past a pending approval, and drops it.
    drops_approval = (
        move.moves
        and task_is_paused(draft.state)
        and (is_home or move.initiator is Initiator.OPERATOR)
    )
    if drops_approval and not move.brings_paused:
        approvals.withdraw(draft, "handoff")
    draft.add(
        ev.AgentHandedOff(
            from_agent=move.source,
            to_agent=move.target.agent_id,
            initiator=move.initiator,
            mode=move.mode,
            route_reason=move.route_reason,
            reason=move.reason,
            context=move.context,
            message=move.message,
            turn_request_id=turn.request_id if turn else "",
            child_request_id=move.child_request_id,
            root_request_id=turn.root_request_id if turn else "",
            task_id=turn.task_id if turn else "",
            message_revision=turn.message_revision if turn else 0,
            dispatches=move.dispatches,
            moves=move.moves,
            activates=not is_home_supervisor,
            locked=_finds_lock(draft, move),
            resumes=_resumed_frame(draft, move) is not None,
            kept=move.kept,
            drops_approval=drops_approval,
            # Also where no topic could count: the home agent is told of this handoff.
            sends_home=is_home and move.moves and not move.dispatches,
            is_aside=move.route_reason is RouteReason.CONSULTED,
            to_person=move.no_hop or move.target.kind is AgentKind.HUMAN,
            along=move.along,
        )
    )
    if draft.state.claim is not None:
        end_claim(draft)
    if move.target.unclaimed_timeout_us is not None:
        gave_back = move.no_hop and not move.along
        draft.add(WaitBegun(move.target.agent_id, "" if gave_back else move.source))
    return HandoffPlan(
        from_agent=move.source,
        to_agent=move.target.agent_id,
        initiator=move.initiator,
        mode=move.mode,
        reason=move.reason,
        context=move.context,
        message=move.message,
    )


def _topics_count(draft: Draft) -> bool:
    """Say whether its topic could take the next message away from the home agent."""
    return draft.registry.topics.is_on


def _finds_lock(draft: Draft, move: Move) -> bool:
    """Say whether the target is locked as soon as it has the conversation."""
    state = draft.state
    if not move.moves:
        active = state.active
        return active is not None and active.agent_id == move.target.agent_id and active.locked
    if move.mode is HandoffMode.RETURN:
        return state.stack[-1].locked
    frame = _resumed_frame(draft, move)
    return frame is not None and frame.locked


def _resumed_frame(draft: Draft, move: Move) -> Tenure | None:
    """Return the frame that a transfer goes back to; None for a transfer to any other agent.

    The active agent hands to an agent that was interrupted before the latest one. That agent keeps
    its lock and the agents that it interrupted itself; those interrupted after it leave the stack.
    """
    state = draft.state
    if not (state.stack and move.moves and move.mode is HandoffMode.TRANSFER):
        return None
    target_id = move.target.agent_id
    if move.source != state.active_id or target_id == draft.registry.home_agent_id:
        return None
    return next((frame for frame in state.stack if frame.agent_id == target_id), None)


def unlock(draft: Draft, cause: str) -> None:
    """End the active agent's wait, if it waits."""
    active = draft.state.active
    if active is not None and active.locked:
        draft.add(ev.LockReleased(agent_id=active.agent_id, cause=cause))


def clear(draft: Draft, cause: str, reason: str = "", *, brings_paused: bool = False) -> None:
    """Send the next message to the home agent; the task goes on. brings_paused: see Move."""
    if draft.state.paused is not None and not brings_paused:
        approvals.withdraw(draft, cause)
    unlock(draft, "answered" if cause in _BY_ANSWER else cause)
    draft.add(
        ev.AgentCleared(
            agent_id=draft.state.active_id,
            cause=cause,
            reason=reason,
            sends_home=cause in _ON_REQUEST and _topics_count(draft),
        )
    )
    if draft.state.claim is not None:
        end_claim(draft)


def clear_all(draft: Draft, cause: str, reason: str = "", *, turns: str = "") -> None:
    """Clear, cancel the open task, and abandon every open turn.

    turns: the cause of these, "" = the same.
    """
    abandon_all(draft, turns or cause)
    for queued in draft.state.queued:
        draft.add(ev.MessageDequeued(request_id=queued.request_id, cause=cause))
    task = draft.state.open_task
    if task is not None:
        approvals.withdraw(draft, cause)
        draft.add(ev.TaskCancelled(task_id=task.task_id, cause=cause))
    clear(draft, cause, reason)


def give_back(
    draft: Draft,
    *,
    turn: OpenTurn | None = None,
    child_request_id: str = "",
    reason: str = "",
    message: str = "",
) -> HandoffPlan:
    """Return the conversation to the agent on top of the stack, with the lock it had.

    turn: the message goes on to that agent as well, under child_request_id.
    """
    unlock(draft, "answered")
    frame = draft.state.stack[-1]
    return hand_off(
        draft,
        Move(
            source=draft.state.active_id,
            target=draft.agent(frame.agent_id),
            initiator=Initiator.COMPLETION,
            mode=HandoffMode.RETURN,
            route_reason=RouteReason.RETURNED,
            reason=reason,
            message=message,
            turn=turn,
            child_request_id=child_request_id,
            dispatches=turn is not None,
        ),
    )


def initiator_of(registry: Registry, source: str) -> Initiator:
    """Return the initiator of an agent's handoff. A swarm's default agent counts as an AGENT."""
    is_supervisor = source == registry.home_agent_id and not registry.is_swarm
    return Initiator.SUPERVISOR if is_supervisor else Initiator.AGENT


def handoff_reason(initiator: Initiator, mode: HandoffMode) -> RouteReason:
    """Return the reason of a message that a handoff brought to an agent."""
    if mode is HandoffMode.RETURN:
        return RouteReason.RETURNED
    return _HANDOFF_REASONS[initiator]


def meet_user(draft: Draft, profile: ev.Profile, *, is_new: bool) -> None:
    """Start the session, or store what the call newly says of its user."""
    state = draft.state
    if is_new:
        draft.add(ev.SessionStarted(profile=profile))
        return
    if (
        (state.owner or not profile.user_id)
        and profile.locale in ("", state.locale)
        and profile.channel in ("", state.channel)
        and profile.entitlements in ((), state.entitlements)
    ):
        return  # Nearly always: nothing is new.
    news = ev.Profile(
        user_id="" if state.owner else profile.user_id,
        locale="" if profile.locale == state.locale else profile.locale,
        channel="" if profile.channel == state.channel else profile.channel,
        entitlements=() if profile.entitlements == state.entitlements else profile.entitlements,
    )
    draft.add(ev.ProfileUpdated(profile=news))


def is_available(draft: Draft, agent_id: str) -> bool:
    """Say whether this registry has the agent and this user may be with it.

    An agent that a reload made the supervisor can no longer be active.
    """
    agent = draft.registry.agent(agent_id)
    if agent is None or agent.kind is AgentKind.SUPERVISOR:
        return False
    return agent_is_reachable(agent, draft.state)


def expire_waits(draft: Draft, child_seed: str = "") -> None:
    """Apply the time-outs of turns, of a claim, of the task and of its approval.

    child_seed: see approvals.expire.
    """
    if draft.state.approval is not None:
        approvals.expire(draft, child_seed)
    if draft.state.claim is not None:
        end_claim(draft)
    expire_turns(draft)


def expire_turns(draft: Draft) -> None:
    """Close the turns that were not answered in time, and cancel an expired task.

    A turn waits for a person for as long as that person has the conversation.
    """
    least_us = draft.registry.turn_timeout_least_us
    for turn in draft.state.open_turns:
        # Nearly always the first says no.
        is_old = draft.now_us - turn.dispatched_us >= least_us
        if is_old and draft.now_us >= deadline_us(turn, draft.registry):
            if turn in turns_of_person(draft.state, draft.registry):
                continue
            abandon(draft, turn, "timeout")
    task = draft.state.task
    if task is None or task.expire_us is None:
        return  # Nearly always.
    if task.status.is_open and draft.now_us >= task.expire_us:
        approvals.withdraw(draft, "expired")
        draft.add(ev.TaskCancelled(task_id=task.task_id, cause="expired"))


def abandon(draft: Draft, turn: OpenTurn, cause: str) -> None:
    """Close a turn without an answer; a late one is still kept in the history.

    cause: as TurnAbandoned shows it.
    """
    draft.add(
        ev.TurnAbandoned(
            request_id=turn.request_id,
            root_request_id=turn.root_request_id,
            agent_id=turn.holder,
            cause=_STORED_CAUSES.get(cause, cause),
            exact=cause if cause in _STORED_CAUSES else "",
        )
    )


def abandon_all(draft: Draft, cause: str) -> None:
    """Close every open turn of the task that is decided about."""
    for turn in draft.state.open_turns:
        abandon(draft, turn, cause)


def expire_ownership(draft: Draft) -> bool:
    """Apply idle and lock time-outs; say whether the home agent got the session by it.

    Nothing expires while an approval is pending, while a person has the conversation, or while the
    active agent is not available: its hold is kept unchanged until it comes back or is replaced.
    An agent that would leave when its lock ends stays while it answers: see _answers_in_lock.
    """
    state = draft.state
    active = state.active
    if active is None or not has_time_outs(state, draft.registry) or task_is_paused(state):
        return False
    if active.agent_id in draft.registry.people:
        return False
    lock_is_due = (
        active.locked
        and active.lock_expire_us is not None
        and draft.now_us >= active.lock_expire_us
    )
    is_over = is_idle(draft)
    if lock_is_due and _answers_in_lock(draft):
        return False
    # What nearly always holds first: nothing is due.
    if not (is_over or lock_is_due) or not is_available(draft, active.agent_id):
        return False
    if is_over:
        idle_us = draft.now_us - draft.before.last_used_us
        unlock(draft, "timeout")
        draft.add(ev.StickinessExpired(agent_id=draft.state.active_id, idle_us=idle_us))
        return True
    while (active := draft.state.active) is not None:
        if not active.locked or active.lock_expire_us is None:
            return False
        if draft.now_us < active.lock_expire_us or not is_available(draft, active.agent_id):
            return False
        draft.add(ev.LockReleased(agent_id=active.agent_id, cause="timeout"))
        if draft.agent(active.agent_id).sticks is Sticks.SESSION:
            return False
        if not draft.state.stack:
            clear(draft, "timeout")
            return True
        # The lock of the agent that gets the conversation back may have expired as well.
        give_back(draft, reason="timeout")
    return False


def _answers_in_lock(draft: Draft) -> bool:
    """Say whether a turn is live while an agent waits that leaves when it waits no more.

    The user has answered in time; the message would be lost if the agent left.
    """
    state = draft.state
    if state.active is None or state.live_turn is None:
        return False
    return draft.agent(state.active.agent_id).sticks is not Sticks.SESSION


def is_idle(draft: Draft) -> bool:
    """Say whether the active agent has had no message for longer than it keeps the session."""
    idle_at_us = _idle_at_us(draft)
    return idle_at_us is not None and draft.now_us >= idle_at_us


def _idle_at_us(draft: Draft) -> int | None:
    """Return when the idle timeout of the active agent takes effect; None = never, as it stands.

    Never while a turn is open, nor in the middle of a task if the active or an interrupted agent
    owns the session.
    """
    state = draft.state
    if state.active is None or state.open_turns:
        return None
    agent = draft.agent(state.active.agent_id)
    timeout_us = agent.idle_timeout_us or draft.registry.limits.idle_timeout_us
    if timeout_us is None:
        return None
    present = (state.active, *state.stack)
    is_owned = any(draft.agent(tenure.agent_id).owns_session for tenure in present)
    if is_owned and state.open_task is not None:
        return None
    return draft.before.last_used_us + timeout_us


def has_time_outs(state: SessionState, registry: Registry) -> bool:
    """Say whether a time-out of the active agent may be running: usually none is.

    While a turn is open the idle timeout does not run.
    """
    active = state.active
    if active is None:
        return False
    return active.lock_expire_us is not None or (
        registry.has_idle_time_outs and not state.open_turns
    )


def due_times(draft: Draft) -> list[int]:
    """Return when the idle and lock time-outs of the session take effect."""
    active = draft.state.active
    if active is None or task_is_paused(draft.state) or active.agent_id in draft.registry.people:
        return []
    idle_at_us = _idle_at_us(draft)
    waits = active.locked and not _answers_in_lock(draft)
    lock_at_us = active.lock_expire_us if waits else None
    if idle_at_us is None and lock_at_us is None:
        return []
    if not is_available(draft, active.agent_id):
        return []
    return [time_us for time_us in (idle_at_us, lock_at_us) if time_us is not None]


def task_is_paused(state: SessionState) -> bool:
    """Say whether the task waits for a person's approval."""
    return state.task is not None and state.task.status is TaskStatus.PAUSED
