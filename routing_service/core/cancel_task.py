"""Deciding that a task is cancelled.

Rule: what waits for the task goes with it: its open turns, its approval, its agent.
"""

from __future__ import annotations

from routing_service.core import ownership
from routing_service.core.claims import check_runtime
from routing_service.core.commands import CancelTask, Decision
from routing_service.core.draft import Draft
from routing_service.core.errors import scope_missing, task_closed, unknown_task
from routing_service.core.facts import Facts, StoredTaskStatus
from routing_service.core.session import SessionState, Task


def decide_cancel(draft: Draft, command: CancelTask, facts: Facts) -> Decision:
    """Cancel an open task. The next message goes to the home agent.

    Raises RoutingError UNKNOWN_TASK, TASK_CLOSED; SCOPE_MISSING for a runtime without the task;
    CLAIMED for a person where another one has claimed it.
    """
    ownership.expire_waits(draft)
    task = named_task(draft, command.task_id, facts)
    state = draft.state
    home_id = draft.registry.home_agent_id
    if command.speaks_for is not None and command.speaks_for.isdisjoint(_holders(state, home_id)):
        raise scope_missing("cancelling a task that another agent has", "admin")
    check_runtime(draft, command.speaks_for, command.subject)
    previous = state.active_id
    ownership.clear_all(draft, "clear", command.reason, turns="cancelled")
    return Decision(
        events=tuple(draft.events),
        task_id=task.task_id,
        previous_agent=previous,
        agent_id=home_id,
    )


def named_task(draft: Draft, task_id: str, facts: Facts) -> Task:
    """Return the open task that a call names: that of the draft. Raises UNKNOWN_TASK, TASK_CLOSED.

    The draft is seen from it already if it is parked.
    """
    task, session_id = draft.state.task, draft.state.session_id
    if task is None or task.task_id != task_id:
        status = facts.of(StoredTaskStatus)
        if not status:
            raise unknown_task(session_id, task_id)
        raise task_closed(session_id, task_id, status)
    if not task.status.is_open:
        raise task_closed(session_id, task_id, task.status.value)
    return task


def _holders(state: SessionState, home_id: str) -> set[str]:
    """Return the agents that have the task: active, at work on it, or waiting for an approval."""
    live = state.live_turn
    return {
        home_id,
        state.active_id,
        live.holder if live else "",
        state.paused.holder if state.paused else "",
    }
