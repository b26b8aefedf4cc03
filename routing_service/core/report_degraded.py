"""Turns that clients decided alone while the service was away: kept in history, moving nothing."""

from __future__ import annotations

from routing_service.core import events as ev
from routing_service.core import ownership
from routing_service.core.commands import Decision, ReportDegraded
from routing_service.core.draft import Draft
from routing_service.core.errors import Reason, RoutingError
from routing_service.core.vocabulary import OutcomeKind, OutcomeStatus


def decide_report(draft: Draft, command: ReportDegraded, *, is_new: bool) -> Decision:
    """Keep a turn that a client decided alone.

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
    draft.add(
        ev.TurnCompleted(
            request_id=command.request_id,
            root_request_id=command.request_id,
            task_id=task_id,
            agent_id=agent_id,
            outcome=OutcomeKind.PROCEED,
            status=OutcomeStatus.STORED_ONLY,
            text=command.text,
            items=command.items,
            own_entry=True,
            detail=ev.DEGRADED_DETAIL,
            user_text=command.user_text,
            user_items=command.user_items,
            decided_us=command.decided_us,
        )
    )
    return Decision(events=tuple(draft.events), task_id=task_id, status=OutcomeStatus.STORED_ONLY)
