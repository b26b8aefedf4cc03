"""A turn in an inbox that no worker could answer."""

from __future__ import annotations

from routing_service.core import events as ev
from routing_service.core.commands import Abandon, Decision
from routing_service.core.draft import Draft
from routing_service.core.inbox import InboxPlace, find_waiting
from routing_service.core.ownership import abandon
from routing_service.core.people import end_claim


def decide_abandon(draft: Draft, command: Abandon) -> Decision:
    """Close the turn at a place; no events if it is not there any more."""
    state = draft.before
    place = InboxPlace(command.agent_id, command.dispatched_us, command.request_id)
    turn = find_waiting(state, place)
    if turn is not None:
        abandon(draft, turn, "limit")
        if draft.state.claim is not None:
            end_claim(draft)
        draft.add(ev.TimePassed(last_used_us=state.last_used_us))
    return Decision(events=tuple(draft.events))
