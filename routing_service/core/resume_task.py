"""Deciding how a paused task goes on.

Rule: exactly one decision counts; either way the paused agent goes on and gets the decision.
"""

from __future__ import annotations

from routing_service.core import approvals, ownership, resumption
from routing_service.core.abandon import drop_overtaken
from routing_service.core.commands import Decision, DispatchPlan, ResumePlan, ResumeTask
from routing_service.core.draft import Draft
from routing_service.core.errors import Reason, RoutingError, unknown_task
from routing_service.core.facts import Facts, StoredTaskStatus, VoterNames
from routing_service.core.handoff_rules import why_unreachable
from routing_service.core.vocabulary import ApprovalDecision, RouteReason


def decide_resume(draft: Draft, command: ResumeTask, facts: Facts) -> Decision:
    """Decide a person's approval or rejection.

    Raises RoutingError: UNKNOWN_TASK, TASK_NOT_PAUSED, REQUEST_NOT_OPEN, APPROVER_REFUSED,
    AGENT_UNAVAILABLE.
    """
    ownership.expire_waits(draft)
    state = draft.state
    task = state.task
    metadata = {"session_id": state.session_id, "task_id": command.task_id}
    if task is None or task.task_id != command.task_id:
        status = facts.of(StoredTaskStatus)
        if not status:
            raise unknown_task(state.session_id, command.task_id)
        raise RoutingError(
            Reason.TASK_NOT_PAUSED,
            f'task "{command.task_id}" is {status}, and no longer the latest of session '
            f'"{state.session_id}"; there is nothing to approve',
            metadata={**metadata, "status": status},
        )
    paused = state.paused
    if paused is None:
        raise RoutingError(
            Reason.TASK_NOT_PAUSED,
            f'task "{task.task_id}" is {task.status.value}, not paused; there is nothing to '
            "approve",
            metadata={**metadata, "status": task.status.value},
        )
    if paused.request_id != command.request_id:
        raise RoutingError(
            Reason.REQUEST_NOT_OPEN,
            f'task "{task.task_id}" waits for request "{paused.request_id}", not for '
            f'"{command.request_id}"; decide that one',
            metadata={**metadata, "request_id": command.request_id, "agent_id": paused.holder},
        )
    approval, standing = state.approval, None
    if approval is not None:
        standing = approvals.check_decider(draft, approval, command, facts.of(VoterNames))
        if standing.has_approved and command.decision is ApprovalDecision.APPROVE:
            # Its first answer is stored with the vote.
            return Decision(task_id=task.task_id, is_vote=True)
        if not approvals.is_enough(approval, command):
            approvals.vote(draft, command)
            return Decision(events=tuple(draft.events), task_id=task.task_id, is_vote=True)
    is_home = paused.holder == draft.registry.home_agent_id
    if not is_home and not ownership.is_available(draft, paused.holder):
        why = why_unreachable(paused.holder, state, draft.registry)
        said = "".join(f"; {detail}" for _, detail in why)
        raise RoutingError(
            Reason.AGENT_UNAVAILABLE,
            f'agent "{paused.holder}" paused the task and is away or not allowed to this user; '
            f"bring it back, or clear the session{said}",
            metadata={"session_id": state.session_id, "agent_id": paused.holder},
        )
    resumption.make_room(draft)
    if approval is not None and standing is not None:
        approvals.settle(draft, approval, command, standing)
    child_id = resumption.resume(
        draft, paused, command.decision, command.child_seed, command.comment
    )
    drop_overtaken(draft)
    active = state.active
    dispatch = DispatchPlan(
        request_id=child_id,
        task_id=task.task_id,
        agent_id=paused.holder,
        reason=RouteReason.TASK_RESUMED,
        previous_agent=state.previous_agent,
        locked=active is not None and active.agent_id == paused.holder and active.locked,
        message_revision=paused.message_revision,
        resume=ResumePlan(command.decision, command.comment),
        inbox=paused.is_delivered,
    )
    return Decision(events=tuple(draft.events), task_id=task.task_id, dispatch=dispatch)
