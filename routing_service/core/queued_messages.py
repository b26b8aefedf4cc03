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
from routing_service.core.inbox import waiting_place
from routing_service.core.registry import Registry
from routing_service.core.session import OpenTurn, QueuedMessage, SessionState

QUEUED_MAX: Final = 8
"""Messages of one session that wait. They are part of the bounded state; more are TURN_OPEN."""

Blocker = OpenTurn | QueuedMessage


def blocking_turn(state: SessionState, registry: Registry) -> Blocker | None:
    """Return what a new message has to wait for, or is refused because of; None for nothing."""
    if not registry.double_text_queues:
        return state.live_turn
    if state.queued:
        return state.queued[0]
    return state.live_turn if waiting_place(state, registry) is not None else None


def queue_message(draft: Draft, command: RouteMessage) -> Decision:
    """Let a message wait. Raises TURN_OPEN if QUEUED_MAX wait."""
    state = draft.state
    if len(state.queued) >= QUEUED_MAX:
        raise RoutingError(
            Reason.TURN_OPEN,
            f"{QUEUED_MAX} messages of this session wait for the answer to the one before; send it "
            "again after an answer",
            metadata={
                "session_id": state.session_id,
                "request_id": state.queued[0].request_id,
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


def is_next_due(state: SessionState) -> bool:
    """Say whether the oldest message that waits may go on."""
    return bool(state.queued) and state.live_turn is None
