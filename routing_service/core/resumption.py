"""A paused turn goes on: the request with which its agent gets the decision."""

from __future__ import annotations

from routing_service.core import events as ev
from routing_service.core.draft import Draft
from routing_service.core.session import OpenTurn
from routing_service.core.turn_ids import child_request_id
from routing_service.core.vocabulary import ApprovalDecision


def make_room(draft: Draft) -> None:
    """Abandon the oldest open turns where one more would be too many."""
    turns = draft.state.open_turns
    excess = len(turns) + 1 - draft.registry.limits.open_turns
    for turn in turns[: max(0, excess)]:
        draft.add(
            ev.TurnAbandoned(
                request_id=turn.request_id,
                root_request_id=turn.root_request_id,
                agent_id=turn.holder,
                cause="limit",
            )
        )


def resume(
    draft: Draft, paused: OpenTurn, decision: ApprovalDecision, child_seed: str, comment: str
) -> str:
    """Let the paused agent go on with a decision; return its new request."""
    previous = draft.state.previous_agent
    child_id = child_request_id(child_seed, draft.state.revision)
    draft.add(
        ev.TaskResumed(
            task_id=paused.task_id,
            request_id=paused.request_id,
            agent_id=paused.holder,
            decision=decision,
            child_request_id=child_id,
            root_request_id=paused.root_request_id,
            message_revision=paused.message_revision,
            comment=comment,
            # Mostly the agent itself; another one where messages have gone elsewhere meanwhile.
            previous_agent="" if previous == paused.holder else previous,
        )
    )
    return child_id
