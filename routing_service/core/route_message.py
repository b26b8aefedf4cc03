"""Deciding which agent gets a user's message.

Owns: the order of the rules for Route. Must not know: stores, protobuf, languages.
Rule: the first line that applies decides, and the reason names that line.
"""

from __future__ import annotations

from typing import NoReturn

import msgspec
from msgspec.structs import replace

from routing_service.core import events as ev
from routing_service.core import ownership
from routing_service.core.commands import Decision, DispatchPlan, HandoffPlan, RouteMessage
from routing_service.core.draft import Draft
from routing_service.core.errors import Reason, RoutingError, invalid_field
from routing_service.core.slash_commands import parse
from routing_service.core.user_commands import answer_command
from routing_service.core.vocabulary import RouteReason, TaskStatus


class Choice(msgspec.Struct, frozen=True):
    """Where a message goes. agent_id "": nowhere, the reply is all."""

    agent_id: str
    reason: RouteReason
    text: str
    handoff: HandoffPlan | None = None


def decide_route(draft: Draft, command: RouteMessage, *, is_new: bool) -> Decision:
    """Decide a user's message. draft: the session, or a new one.

    Raises RoutingError: TASK_OPEN, TASK_CLOSED, TURN_OPEN, INVALID_FIELD, REQUEST_ID_REUSED.
    """
    if command.task_expire_us is not None and command.task_expire_us <= draft.now_us:
        raise invalid_field("task_expire_time", "is in the past; give a later time or leave it out")
    _refuse_known_request(draft, command)
    ownership.meet_user(draft, command.profile, is_new=is_new)
    ownership.expire_turns(draft)
    # A task that only a command opened has had no message yet: nobody is in the middle of it.
    mid_task = draft.state.open_task is not None and bool(draft.state.newest_turn)
    parsed = None if command.literal_text else parse(command.text)
    if parsed is None:
        _refuse_double_text(draft)
        agent_id, reason = _choose_agent(draft, stickiness_enabled=command.stickiness_enabled)
        choice = Choice(agent_id, reason, command.text)
        decision = Decision()
    else:
        answered = answer_command(
            draft,
            parsed,
            mid_task=mid_task,
            stickiness_enabled=command.stickiness_enabled,
            has_items=bool(command.items),
            typed=command.text,
        )
        choice = Choice(answered.dispatch_to, answered.reason, parsed.rest, answered.handoff)
        decision = Decision(reply=answered.reply, verdicts=answered.verdicts)
    if choice.agent_id:
        wanted = command.task_id
        if parsed is not None and parsed.name == "reset" and not draft.state.open_task:
            # "/reset and now something else" may name the task that it has just cancelled.
            wanted = "" if draft.before.task and wanted == draft.before.task.task_id else wanted
        task_id = _join_task(draft, command, wanted)
        plan = _dispatch(draft, command, choice, task_id=task_id, mid_task=mid_task)
        decision = replace(decision, dispatch=plan)
    else:
        task_id = _name_task(draft, command)
    return replace(decision, events=tuple(draft.events), task_id=task_id)


def _choose_agent(draft: Draft, *, stickiness_enabled: bool) -> tuple[str, RouteReason]:
    """Apply the rules for a message that is no command, first match first."""
    home_id = draft.registry.home_agent_id
    if not stickiness_enabled:
        ownership.expire_ownership(draft)
        return home_id, RouteReason.STICKINESS_DISABLED
    active_id = draft.state.active_id
    if active_id and not ownership.is_available(draft, active_id):
        return home_id, RouteReason.AGENT_UNAVAILABLE
    if draft.state.paused is not None:
        waiting_id = draft.state.paused.holder
        if waiting_id != home_id and not ownership.is_available(draft, waiting_id):
            return home_id, RouteReason.AGENT_UNAVAILABLE
        return waiting_id, RouteReason.AWAITING_APPROVAL
    if ownership.expire_ownership(draft):
        return home_id, RouteReason.EXPIRED
    active = draft.state.active
    if active is None and draft.state.expired:
        return home_id, RouteReason.EXPIRED
    if active is None:
        is_swarm = draft.registry.is_swarm
        return home_id, RouteReason.DEFAULT_AGENT if is_swarm else RouteReason.NO_ACTIVE_AGENT
    if not ownership.is_available(draft, active.agent_id):
        # A lock that ran out gave the session back to an agent that is away.
        return home_id, RouteReason.AGENT_UNAVAILABLE
    if draft.state.returned:
        return active.agent_id, RouteReason.RETURNED
    return active.agent_id, RouteReason.FOLLOW_UP_LOCK if active.locked else RouteReason.STICKY


def _refuse_known_request(draft: Draft, command: RouteMessage) -> None:
    """Refuse the id of another request of the session: an answer to one would close both."""
    request_id = command.request_id
    paused = draft.state.paused
    is_paused = paused is not None and paused.request_id == request_id
    if is_paused or command.names_child or draft.state.find_turn(request_id) is not None:
        raise RoutingError(
            Reason.REQUEST_ID_REUSED,
            f'request id "{request_id}" is that of another request of this session; make a new id '
            "for a new message",
            metadata={
                "session_id": draft.state.session_id,
                "request_id": request_id,
                "method": "Route",
            },
        )


def _refuse_double_text(draft: Draft) -> None:
    live = draft.state.live_turn
    # While an approval is awaited no turn moves anything.
    moves = live is not None and draft.state.paused is None
    if draft.registry.double_text_rejects and live is not None and moves:
        raise RoutingError(
            Reason.TURN_OPEN,
            f'request "{live.request_id}" of agent "{live.holder}" is still open, and this '
            "registry takes one message at a time; send it again after the answer",
            metadata={
                "session_id": draft.state.session_id,
                "request_id": live.request_id,
                "agent_id": live.holder,
            },
        )


def _join_task(draft: Draft, command: RouteMessage, wanted: str) -> str:
    """Return the task that the message belongs to, made now if need be."""
    latest = draft.state.task
    status = command.known_task_status
    if latest is not None and wanted == latest.task_id:
        status = latest.status.value
    if wanted and status and not TaskStatus(status).is_open:
        _refuse_closed(draft.state.session_id, wanted, status)
    if latest is not None and latest.status.is_open:
        if wanted and wanted != latest.task_id:
            raise RoutingError(
                Reason.TASK_OPEN,
                f'task "{latest.task_id}" is open in this session, the request names "{wanted}"; '
                "finish or reset the open one first, or leave task_id out to join it",
                metadata={
                    "session_id": draft.state.session_id,
                    "open_task_id": latest.task_id,
                    "task_id": wanted,
                },
            )
        return latest.task_id
    return _begin_task(draft, command, wanted or command.new_task_id)


def _begin_task(draft: Draft, command: RouteMessage, task_id: str) -> str:
    draft.add(
        ev.TaskCreated(task_id=task_id, expire_us=command.task_expire_us, metadata=command.metadata)
    )
    return task_id


def _name_task(draft: Draft, command: RouteMessage) -> str:
    """Return the task id for an answer that dispatches nothing: no command opens a second task."""
    if draft.state.task is not None:
        return draft.state.task.task_id
    return _begin_task(draft, command, command.task_id or command.new_task_id)


def _refuse_closed(session_id: str, task_id: str, status: str) -> NoReturn:
    raise RoutingError(
        Reason.TASK_CLOSED,
        f'task "{task_id}" is {status}; leave task_id out to begin another',
        metadata={"session_id": session_id, "task_id": task_id, "status": status},
    )


def _dispatch(
    draft: Draft, command: RouteMessage, choice: Choice, *, task_id: str, mid_task: bool
) -> DispatchPlan:
    """Open a turn with the chosen agent, and close the oldest where there are too many."""
    excess = len(draft.state.open_turns) + 1 - draft.registry.limits.open_turns
    for turn in draft.state.open_turns[: max(0, excess)]:
        ownership.abandon(draft, turn, "limit")
    state = draft.state
    locked = (
        state.active is not None
        and state.active.agent_id == choice.agent_id
        and (state.active.locked)
    )
    plan = DispatchPlan(
        request_id=command.request_id,
        task_id=task_id,
        agent_id=choice.agent_id,
        reason=choice.reason,
        previous_agent=state.previous_agent,
        locked=locked,
        handoff=choice.handoff,
        text=choice.text,
    )
    draft.add(
        ev.MessageRouted(
            request_id=command.request_id,
            task_id=task_id,
            agent_id=choice.agent_id,
            reason=choice.reason,
            text=choice.text,
            items=command.items,
            previous_agent=state.previous_agent,
            locked=locked,
            mid_task=mid_task,
            metadata=command.metadata,
            task_expire_us=command.task_expire_us,
        )
    )
    return plan
