"""Approvals: asking for one, who may decide it, counting votes, and how it ends undecided.

Rule: an approval ends by exactly one event (decided, withdrawn, expired), in the change in which
its task stops being paused. One that was asked for in a store of format 1 has none of these events.
"""

from __future__ import annotations

from typing import Final

from routing_service.core import events as ev
from routing_service.core import resumption
from routing_service.core.commands import AskApproval, ResumeTask
from routing_service.core.draft import Draft
from routing_service.core.errors import Reason, RoutingError, store_too_old
from routing_service.core.handoff_rules import agent_is_reachable
from routing_service.core.registry import ANYONE, OTHER_THAN_OWNER, ROLE_PREFIX
from routing_service.core.session import Approval, OpenTurn
from routing_service.core.task_fold import voter_hash
from routing_service.core.vocabulary import ApprovalDecision

APPROVALS_FORMAT: Final = 2
"""The store's format from which an approval has events and a rule of its own."""

EXPIRED_COMMENT: Final = "nobody decided in time"
"""The comment of a rejection by time, for the agent."""

_SHOWN_BY_REPLY: Final = frozenset({"command", "reset"})
"""Causes of a withdrawal that are a user's own command, whose reply says so."""


def request(draft: Draft, turn: OpenTurn, outcome: AskApproval, store_format: int) -> None:
    """Pause the task of a turn until a person has decided.

    Raises RoutingError STORE_FORMAT if the store cannot hold what the registry or the agent asks.
    """
    rule = draft.registry.approvals
    can_hold = store_format >= APPROVALS_FORMAT
    if not can_hold and not (rule.is_plain and outcome.fields is None):
        what = "fields of an approval" if rule.is_plain else "the registry's rule for approvals"
        session_id = draft.state.session_id
        raise store_too_old(f"{what} cannot be stored", store_format, APPROVALS_FORMAT, session_id)
    draft.add(
        ev.TaskPaused(
            task_id=turn.task_id,
            request_id=turn.request_id,
            agent_id=turn.holder,
            prompt=outcome.prompt,
        )
    )
    if can_hold:
        draft.add(
            ev.ApprovalRequested(
                task_id=turn.task_id,
                request_id=turn.request_id,
                agent_id=turn.holder,
                by=rule.by,
                needs=rule.needs,
                expire_us=None if rule.expires_us is None else draft.now_us + rule.expires_us,
                fields=outcome.fields,
                rejects=rule.rejects_on_expiry,
            )
        )


def withdraw(draft: Draft, cause: str) -> None:
    """End a pending approval without a decision; the event that follows says what did it.

    cause: see ApprovalWithdrawn.
    """
    paused = draft.state.paused
    if paused is not None and draft.state.approval is not None:
        draft.add(
            ev.ApprovalWithdrawn(
                task_id=paused.task_id,
                request_id=paused.request_id,
                cause=cause,
                was_shown=cause in _SHOWN_BY_REPLY,
            )
        )


def expire(draft: Draft, child_seed: str = "") -> None:
    """Cancel the task whose approval has not come in time, or let its agent go on, rejected.

    child_seed: as in ResumeTask; "" = a caller's own change, which leaves what rejects to the
    service's. An agent that is away, or has no inbox any more, cannot go on.
    """
    approval, paused = draft.state.approval, draft.state.paused
    if approval is None or paused is None or not is_over(approval, draft.now_us):
        return
    if approval.rejects and not child_seed:
        return
    rejects = approval.rejects and _can_go_on(draft, paused)
    if rejects:
        resumption.make_room(draft)
    draft.add(
        ev.ApprovalExpired(task_id=paused.task_id, request_id=paused.request_id, rejects=rejects)
    )
    if rejects:
        resumption.resume(draft, paused, ApprovalDecision.REJECT, child_seed, EXPIRED_COMMENT)
    else:
        draft.add(ev.TaskCancelled(task_id=paused.task_id, cause="approval_expired"))


def is_over(approval: Approval, now_us: int) -> bool:
    """Say whether an approval's time has passed."""
    return approval.expire_us is not None and now_us >= approval.expire_us


def _can_go_on(draft: Draft, paused: OpenTurn) -> bool:
    """Say whether a worker can get the rejection: no frontend waits for it."""
    registry = draft.registry
    agent = registry.agent(paused.holder)
    if agent is None or not agent.has_inbox:
        return False
    return agent.agent_id == registry.home_agent_id or agent_is_reachable(agent, draft.state)


def why_not_decider(
    approval: Approval, owner: str, decider: str, user_id: str, roles: frozenset[str]
) -> str:
    """Return why an approval's rule does not let a person decide; "" = it does.

    decider: the signed-in subject; roles: its own. user_id: the user it acts for, "" for none.
    """
    by = approval.by
    if by == ANYONE:
        is_right = bool(decider) or approval.needs == 1
        why = "decisions are counted by person; sign in"
    elif by == OTHER_THAN_OWNER:
        # A frontend that acts for the user is the user, whatever its own name is.
        is_right = bool(decider) and not (owner and owner in {decider, user_id})
        why = "the session's own user may not decide it; another person has to"
    else:
        role = by.removeprefix(ROLE_PREFIX)
        is_right = bool(decider) and role in roles
        why = f'the credential has no role or scope "{role}"'
    return "" if is_right else why


def check_decider(draft: Draft, approval: Approval, command: ResumeTask) -> None:
    """Raise APPROVER_REFUSED for a person that the approval's rule does not let decide."""
    why = why_not_decider(
        approval, draft.state.owner, command.decider, command.user_id, command.roles
    )
    if why:
        raise RoutingError(
            Reason.APPROVER_REFUSED,
            f'request "{command.request_id}" cannot be decided by this caller: {why}',
            metadata={
                "session_id": draft.state.session_id,
                "task_id": command.task_id,
                "request_id": command.request_id,
                "by": approval.by,
            },
        )


def is_repeated(approval: Approval, command: ResumeTask) -> bool:
    """Say whether this person has approved already."""
    voter = voter_hash(command.request_id, command.decider)
    return command.decision is ApprovalDecision.APPROVE and voter in approval.voters


def is_enough(approval: Approval, command: ResumeTask) -> bool:
    """Say whether a person's decision is the one that counts: one rejection is enough."""
    rejects = command.decision is ApprovalDecision.REJECT
    return rejects or len(approval.voters) + 1 >= approval.needs


def vote(draft: Draft, command: ResumeTask) -> None:
    """Count an approval after which more are needed."""
    draft.add(
        ev.ApprovalVoted(
            task_id=command.task_id,
            request_id=command.request_id,
            decider=command.decider,
            comment=command.comment,
        )
    )


def settle(draft: Draft, approval: Approval, command: ResumeTask) -> None:
    """Record the decision that counts; the task's resumption follows."""
    draft.add(
        ev.ApprovalDecided(
            task_id=command.task_id,
            request_id=command.request_id,
            decision=command.decision,
            decider=command.decider,
            decisions=len(approval.voters) + 1,
            needs=approval.needs,
        )
    )


def ended_unseen(draft: Draft) -> str:
    """Return how an approval ended that the user has not been told of; "" = none did.

    withdrawn | expired. Also one that ends in this change.
    """
    before = draft.before
    if before.approval is not None and before.approval.ended:
        return before.approval.ended
    if before.paused is None or draft.state.paused is not None:
        return ""
    if any(isinstance(event, ev.TaskParked) for event in draft.events):
        return ""  # It still waits.
    expired = any(isinstance(event, ev.ApprovalExpired) for event in draft.events)
    return "expired" if expired else "withdrawn"
