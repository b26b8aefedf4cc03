"""How offers of another agent, and the answers to them, change a session's state."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from routing_service.core import events as ev
from routing_service.core.session import OpenSuggestion, Rest, SessionState

SUGGESTION_REST_MESSAGES: Final = 5
"""Messages of the user for which an agent that was declined is not offered again."""


def evolve_suggestion(
    state: SessionState, event: ev.SwitchSuggested | ev.SwitchAnswered
) -> SessionState:
    """Note an offer, or its answer."""
    if isinstance(event, ev.SwitchSuggested):
        offered = OpenSuggestion(
            suggestion_id=event.suggestion_id,
            agent_id=event.agent_id,
            message_revision=state.revision,
            request_id=event.request_id,
            confidence=event.confidence,
        )
        return replace(state, suggestion=offered)
    if event.accepted:
        return replace(state, suggestion=None)
    others = tuple(rest for rest in state.rests if rest.agent_id != event.agent_id)
    declined = Rest(event.agent_id, SUGGESTION_REST_MESSAGES)
    kept = (*others, declined)[-SUGGESTION_REST_MESSAGES:]
    return replace(state, suggestion=None, rests=kept)
