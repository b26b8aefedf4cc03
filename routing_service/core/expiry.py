"""The time of a session's next time-out, and the change that it makes without a call.

Rule: the time is exactly when the change would have its first event; ownership.py alone says what a
time-out does.
"""

from __future__ import annotations

from routing_service.core import events as ev
from routing_service.core import ownership
from routing_service.core.commands import Decision, Expire
from routing_service.core.deadlines import deadline_us
from routing_service.core.draft import Draft
from routing_service.core.facts import Facts
from routing_service.core.queued_messages import is_next_due
from routing_service.core.registry import Registry
from routing_service.core.route_message import send_on
from routing_service.core.session import SessionState


def next_due_us(state: SessionState, registry: Registry) -> int | None:
    """Return when something of the session falls due, None = nothing ever does.

    Microseconds since 1970; a time that has passed is due at once. By this registry: one that is
    reloaded may set another time, which then holds from the session's next change on.
    """
    due_us = None
    # Nearly always one for all agents, and no turn that takes long.
    timeout_us = registry.turn_timeout_of_all_us
    if state.has_work:
        timeout_us = 0
        if is_next_due(state):
            due_us = state.update_us
    for turn in state.open_turns:
        time_us = turn.dispatched_us + timeout_us if timeout_us else deadline_us(turn, registry)
        if due_us is None or time_us < due_us:
            due_us = time_us
    task = state.task
    if task is not None and task.expire_us is not None and task.status.is_open:
        due_us = task.expire_us if due_us is None else min(due_us, task.expire_us)
    approval = state.approval
    if approval is not None and approval.expire_us is not None:
        due_us = approval.expire_us if due_us is None else min(due_us, approval.expire_us)
    if ownership.has_time_outs(state, registry):
        times = ownership.due_times(Draft.standing(state, registry))
        due_us = min(times if due_us is None else (*times, due_us), default=None)
    return None if due_us is None else max(0, due_us)


def decide_expire(draft: Draft, command: Expire, facts: Facts) -> Decision:
    """Let take effect what has fallen due; no events where nothing has."""
    last_used_us = draft.before.last_used_us
    ownership.expire_waits(draft, command.child_seed)
    went_home = ownership.expire_ownership(draft)
    if draft.state.queued:
        send_on(draft, facts, command.new_task_id, stickiness_enabled=command.stickiness_enabled)
    if draft.events:
        draft.add(ev.TimePassed(last_used_us=last_used_us, expired=went_home))
    return Decision(events=tuple(draft.events))
