"""The time of a session's next time-out, and the change that it makes without a call.

Rule: the time is exactly when the change would have its first event; ownership.py alone says what a
time-out does.
"""

from __future__ import annotations

from routing_service.core import events as ev
from routing_service.core import ownership, strands
from routing_service.core.abandon import drop_overtaken
from routing_service.core.commands import Decision, Expire
from routing_service.core.deadlines import deadline_us
from routing_service.core.draft import Draft
from routing_service.core.facts import Facts
from routing_service.core.inbox import overtaken_of_task
from routing_service.core.people import claim_of, turns_of_person, unclaimed_due_us
from routing_service.core.queued_messages import is_any_due, next_queue
from routing_service.core.registry import Registry
from routing_service.core.route_message import send_on
from routing_service.core.session import SessionState
from routing_service.core.strand_fold import find_strand, live_turn
from routing_service.core.unclaimed import give_back_unclaimed


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
        if is_any_due(state):
            due_us = state.update_us
        if state.apart is not None:
            times = [strands.parked_due_us(strand, registry) for strand in state.apart.parked]
            due_us = min(times if due_us is None else (*times, due_us), default=None)
        claim = claim_of(state)
        if claim is not None:
            due_us = claim.expire_us if due_us is None else min(due_us, claim.expire_us)
        unclaimed_us = unclaimed_due_us(state, registry)
        if unclaimed_us is not None:
            due_us = unclaimed_us if due_us is None else min(due_us, unclaimed_us)
    if registry.has_inboxes and state.open_turns and overtaken_of_task(state, registry):
        # Whether a worker still has it is not in the state: the sweeper asks for it.
        due_us = state.update_us
    for turn in state.open_turns:
        if timeout_us:
            time_us = turn.dispatched_us + timeout_us
        elif turn in turns_of_person(state, registry):
            continue
        else:
            time_us = deadline_us(turn, registry)
        if due_us is None or time_us < due_us:
            due_us = time_us
    task = state.task
    if task is not None and task.expire_us is not None and task.status.is_open:
        due_us = task.expire_us if due_us is None else min(due_us, task.expire_us)
    if (approval := state.approval) is not None and approval.expire_us is not None:
        due_us = approval.expire_us if due_us is None else min(due_us, approval.expire_us)
    if ownership.has_time_outs(state, registry):
        times = ownership.due_times(Draft.standing(state, registry))
        due_us = min(times if due_us is None else (*times, due_us), default=None)
    return None if due_us is None else max(0, due_us)


def decide_expire(draft: Draft, command: Expire, facts: Facts) -> Decision:
    """Let take effect what has fallen due; no events where nothing has."""
    last_used_us = draft.before.last_used_us
    ownership.expire_waits(draft, command.child_seed)
    drop_overtaken(draft)
    give_back_unclaimed(draft, command.child_seed, stickiness_enabled=command.stickiness_enabled)
    went_home = ownership.expire_ownership(draft)
    if draft.state.apart is not None:
        strands.expire_parked(
            draft,
            command.child_seed,
            stickiness_enabled=command.stickiness_enabled,
            is_own=True,
        )
    waiting = next_queue(draft.before)
    if waiting is not None:
        _send_on(draft, waiting[0], command, facts)
    if draft.events:
        draft.add(ev.TimePassed(last_used_us=last_used_us, expired=went_home))
    return Decision(events=tuple(draft.events))


def _send_on(draft: Draft, task_id: str, command: Expire, facts: Facts) -> None:
    """Send on the next message in the foreground, or in the task that is parked."""
    if task_id:
        strand = find_strand(draft.state, task_id)
        if strand is None or not strand.queued or live_turn(strand) is not None:
            return
        draft.add(ev.StrandChosen(task_id))
    send_on(draft, facts, command.new_task_id, stickiness_enabled=command.stickiness_enabled)
    if task_id:
        strands.put_back(draft)
