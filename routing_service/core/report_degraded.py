"""Turns that clients decided alone while the service was away: kept in history, moving nothing."""

from __future__ import annotations

from typing import Final

from routing_service.core import events as ev
from routing_service.core import ownership
from routing_service.core.commands import Decision, ReportDegraded
from routing_service.core.draft import Draft
from routing_service.core.errors import Reason, RoutingError
from routing_service.core.vocabulary import OutcomeKind, OutcomeStatus

DECIDED_AGO_US_MAX: Final = 24 * 3600 * 1_000_000
"""How long ago a turn may have been decided. Clients keep what they decided alone for less than a
day, and a later report with its own time cannot place a turn before what people have read."""


def decide_report(draft: Draft, command: ReportDegraded, *, is_new: bool) -> Decision:
    """Keep a turn that a client decided alone.

    An answer is kept from callers that speak for the agent, and never for people: they say it
    themselves. A time that is too long ago or still to come is not kept.
    Raises REVISION_MISMATCH if the conversation is with another agent than the client decided for,
    unless the command says that this was checked against the log.
    """
    owner_id = draft.before.active_id or draft.registry.home_agent_id
    agent_id = draft.registry.resolve(command.agent_id) or command.agent_id
    if not command.is_checked and agent_id != owner_id:
        raise RoutingError(
            Reason.REVISION_MISMATCH,
            f'the conversation is with "{owner_id}", and the client decided for "{agent_id}"',
        )
    ownership.meet_user(draft, command.profile, is_new=is_new)
    task = draft.state.open_task
    task_id = task.task_id if task else ""
    has_answer = command.by_agent and agent_id not in draft.registry.people
    is_in_time = draft.now_us - DECIDED_AGO_US_MAX <= command.decided_us <= draft.now_us
    draft.add(
        ev.TurnCompleted(
            request_id=command.request_id,
            root_request_id=command.request_id,
            task_id=task_id,
            agent_id=agent_id,
            outcome=OutcomeKind.PROCEED,
            status=OutcomeStatus.STORED_ONLY,
            text=command.text if has_answer else "",
            items=command.items if has_answer else (),
            own_entry=True,
            detail=ev.DEGRADED_DETAIL,
            user_text=command.user_text,
            user_items=command.user_items,
            decided_us=command.decided_us if is_in_time else 0,
        )
    )
    return Decision(events=tuple(draft.events), task_id=task_id, status=OutcomeStatus.STORED_ONLY)
