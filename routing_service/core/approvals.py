"""Approvals: asking for one, who may decide it, counting votes, and how it ends undecided.

Rule: an approval ends by exactly one event (decided, withdrawn, expired), in the change in which
its task stops being paused. One that was asked for in a store of format 1 has none of these events.
"""

from __future__ import annotations

from typing import Final

import msgspec

from routing_service.core import events as ev
from routing_service.core import resumption
from routing_service.core.commands import AskApproval, Decider, ResumeTask
from routing_service.core.draft import Draft
from routing_service.core.errors import Reason, RoutingError
from routing_service.core.handoff_rules import agent_is_reachable
from routing_service.core.identifiers import folded
from routing_service.core.registry import OTHER_THAN_OWNER, ROLE_PREFIX
from routing_service.core.session import Approval, OpenTurn
from routing_service.core.task_fold import voter_hash
from routing_service.core.vocabulary import ApprovalDecision, TaskStatus

EXPIRED_COMMENT: Final = "nobody decided in time"
"""The comment of a rejection by time, for the agent."""

_SHOWN_BY_REPLY: Final = frozenset({"command", "reset"})
"""Causes of a withdrawal that are a user's own command, whose reply says so."""


def request(draft: Draft, turn: OpenTurn, outcome: AskApproval) -> None:
    """Pause the task of a turn until a person has decided."""
    rule = draft.registry.approvals
    draft.add(
        ev.TaskPaused(
            task_id=turn.task_id,
            request_id=turn.request_id,
            agent_id=turn.holder,
            prompt=outcome.prompt,
        )
    )
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


def withdraw(draft: Draft, cause: str, paused: OpenTurn | None = None) -> None:
    """End a pending approval without a decision; the event that follows says what did it.

    cause: see ApprovalWithdrawn. paused: the turn that waited, where it waits no more: then the
    events before say what did it, and the user is still to be told.
    """
    paused = paused or draft.state.paused
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


class Standing(msgspec.Struct, frozen=True):
    """What a person may still do about an approval.

    why_not: why its rule does not let this person decide, "" = it does. has_approved: this person's
    approval is counted already.
    """

    why_not: str
    has_approved: bool


def standing(
    approval: Approval, owner: str, request_id: str, decider: Decider, voters: frozenset[str]
) -> Standing:
    """Return what a person may do about an approval, for lists and for the decision alike.

    owner: of the session, "" = none. voters: the hashes of all names of those who have approved.
    One name in common is enough to be the owner, or somebody who has approved.
    """
    by = approval.by
    why = ""
    if by == OTHER_THAN_OWNER and not decider.names.isdisjoint((owner, folded(owner))):
        why = "the session's own user may not decide it; another person has to"
    elif (by == OTHER_THAN_OWNER or approval.needs > 1) and not decider.is_person:
        why = (
            "the credential names no person, and people decide it; give the token or the "
            "certificate a user"
            if decider.subject
            else "decisions are counted by person; sign in"
        )
    elif by.startswith(ROLE_PREFIX) and (role := by.removeprefix(ROLE_PREFIX)) not in decider.roles:
        why = f'the credential has no role or scope "{role}"'
    known = voters.union(approval.voters)
    has_approved = bool(known) and any(voter_hash(request_id, n) in known for n in decider.names)
    return Standing(why, has_approved)


def check_decider(
    draft: Draft, approval: Approval, command: ResumeTask, voters: frozenset[str]
) -> Standing:
    """Return what the person who decides may do. voters: as for standing().

    Raises APPROVER_REFUSED for one that the approval's rule does not let decide, TASK_NOT_PAUSED if
    its time has passed.
    """
    metadata = {"session_id": draft.state.session_id, "task_id": command.task_id}
    if is_over(approval, draft.now_us):
        raise RoutingError(
            Reason.TASK_NOT_PAUSED,
            f'the time to decide request "{command.request_id}" has passed; it counts as rejected',
            metadata={**metadata, "status": TaskStatus.PAUSED.value},
        )
    found = standing(approval, draft.state.owner, command.request_id, command.decider, voters)
    if found.why_not:
        raise RoutingError(
            Reason.APPROVER_REFUSED,
            f'request "{command.request_id}" cannot be decided by this caller: {found.why_not}',
            metadata={**metadata, "request_id": command.request_id, "by": approval.by},
        )
    return found


def is_enough(approval: Approval, command: ResumeTask) -> bool:
    """Say whether a person's decision is the one that counts: one rejection is enough."""
    rejects = command.decision is ApprovalDecision.REJECT
    return rejects or len(approval.voters) + 1 >= approval.needs


def vote(draft: Draft, command: ResumeTask) -> None:
    """Count an approval after which more are needed."""
    decider = command.decider
    others = sorted(decider.names - {decider.subject})
    draft.add(
        ev.ApprovalVoted(
            task_id=command.task_id,
            request_id=command.request_id,
            decider=decider.subject,
            comment=command.comment,
            other_names=tuple(voter_hash(command.request_id, name) for name in others),
        )
    )


def settle(draft: Draft, approval: Approval, command: ResumeTask, found: Standing) -> None:
    """Record the decision that counts; the task's resumption follows."""
    draft.add(
        ev.ApprovalDecided(
            task_id=command.task_id,
            request_id=command.request_id,
            decision=command.decision,
            decider=command.decider.subject,
            decisions=len(approval.voters) + (not found.has_approved),
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
