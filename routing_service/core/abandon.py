"""A turn in an inbox that no worker answers any more."""

from __future__ import annotations

from routing_service.core import events as ev
from routing_service.core.commands import Abandon, Decision
from routing_service.core.draft import Draft
from routing_service.core.inbox import InboxPlace, find_placed, overtaken_of_task
from routing_service.core.ownership import abandon
from routing_service.core.people import end_claim


def drop_overtaken(draft: Draft) -> None:
    """Abandon the turns of the task that is decided about which no worker can finish any more."""
    for turn in overtaken_of_task(draft.state, draft.registry):
        if turn.request_id not in draft.leased:
            abandon(draft, turn, "overtaken")


def decide_abandon(draft: Draft, command: Abandon) -> Decision:
    """Close the turn at a place; no events if it is not there any more.

    One that was overtaken has lost its worker, any other one too many of them.
    """
    state = draft.before
    place = InboxPlace(command.agent_id, command.dispatched_us, command.request_id)
    turn = find_placed(state, place)
    if turn is not None:
        abandon(draft, turn, "attempts" if state.is_live(turn) else "overtaken")
        if draft.state.claim is not None:
            end_claim(draft)
        draft.add(ev.TimePassed(last_used_us=state.last_used_us))
    return Decision(events=tuple(draft.events))
