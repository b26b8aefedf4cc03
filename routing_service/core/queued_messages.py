"""Messages that wait for the answer to the one before (double_text: queue).

Rule: a message waits only behind a turn that a worker may be at work on, which is therefore never
overtaken by the user's next message. Expire sends the oldest on once no turn is live.
"""

from __future__ import annotations

from typing import Final

from routing_service.core import events as ev
from routing_service.core.commands import Decision, RouteMessage
from routing_service.core.draft import Draft
from routing_service.core.errors import Reason, RoutingError
from routing_service.core.inbox import is_in_inbox
from routing_service.core.registry import Registry
from routing_service.core.session import OpenTurn, QueuedMessage, SessionState
from routing_service.core.strand_fold import live_turn

QUEUED_MAX: Final = 8
"""Messages of one session that wait. They are part of the bounded state; more are TURN_OPEN."""

Blocker = OpenTurn | QueuedMessage


def blocking_turn(state: SessionState, registry: Registry) -> Blocker | None:
    """Return what a new message has to wait for, or is refused because of; None for nothing."""
    if not registry.double_text_queues:
        return state.live_turn
    if state.queued:
        return state.queued[0]
    turn = state.live_turn
    return turn if turn is not None and is_in_inbox(registry, turn) else None


def queue_message(draft: Draft, command: RouteMessage) -> Decision:
    """Let a message wait. Raises TURN_OPEN if QUEUED_MAX wait."""
    state = draft.state
    if queued_count(state) >= QUEUED_MAX:
        parked = state.apart.parked if state.apart is not None else ()
        waiting = next(filter(None, (state.queued, *(strand.queued for strand in parked))))
        raise RoutingError(
            Reason.TURN_OPEN,
            f"{QUEUED_MAX} messages of this session wait for the answer to the one before; send it "
            "again after an answer",
            metadata={
                "session_id": state.session_id,
                "request_id": waiting[0].request_id,
                "agent_id": state.live_turn.holder if state.live_turn else "",
            },
        )
    draft.add(
        ev.MessageQueued(
            request_id=command.request_id,
            task_id=command.task_id,
            text=command.text,
            items=command.items,
            metadata=command.metadata,
            task_expire_us=command.task_expire_us,
            inbox=command.inbox,
        )
    )
    task_id = state.task.task_id if state.task else command.task_id
    return Decision(events=tuple(draft.events), task_id=task_id, queued=True)


def queued_count(state: SessionState) -> int:
    """Return how many messages wait, those behind turns of parked tasks too."""
    parked = state.apart.parked if state.apart is not None else ()
    return len(state.queued) + sum(len(strand.queued) for strand in parked)


def is_next_due(state: SessionState) -> bool:
    """Say whether the oldest message that waits in the foreground may go on."""
    return bool(state.queued) and state.live_turn is None


def is_any_due(state: SessionState) -> bool:
    """Say whether a message that waits may go on, in the foreground or in a parked task."""
    if is_next_due(state):
        return True
    parked = state.apart.parked if state.apart is not None else ()
    return any(strand.queued and live_turn(strand) is None for strand in parked)


def next_queue(state: SessionState) -> tuple[str, QueuedMessage] | None:
    """Return the message that a time-out's change may send on, and its task if that is parked.

    One whose turn is still live comes last: the turn may end in the same change.
    """
    parked = state.apart.parked if state.apart is not None else ()
    queues = [("", state.queued, state.live_turn)] if state.queued else []
    queues += [(each.task_id, each.queued, live_turn(each)) for each in parked if each.queued]
    queues.sort(key=lambda queue: queue[2] is not None)
    return (queues[0][0], queues[0][1][0]) if queues else None
