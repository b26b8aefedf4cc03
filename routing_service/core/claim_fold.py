"""How events about claims change a session's state."""

from __future__ import annotations

from typing import Final, assert_never

from msgspec.structs import replace

from routing_service.core.events import (
    Claimed,
    ClaimEvent,
    ClaimReleased,
    MessageSaid,
    NoteAdded,
    TurnAnswered,
    WaitBegun,
)
from routing_service.core.session import Claim, SessionState
from routing_service.core.task_fold import without_turn

NOTES_LISTED_MAX: Final = 32
"""The latest notes of a session that are listed. Their revisions are part of the bounded state; the
log and the export have all notes."""


def evolve_claim(state: SessionState, event: ClaimEvent) -> SessionState:
    """Change who has claimed the conversation, or which of its turns wait."""
    match event:
        case Claimed():
            given_by = state.claim.given_by if state.claim else ""
            claim = Claim(
                event.agent_id, event.claimant, state.update_us, event.expire_us, given_by
            )
            return replace(state, claim=claim, has_work=True)
        case ClaimReleased(cause="moved"):
            return replace(state, claim=None)
        case ClaimReleased():
            # Since when it is not claimed any more: the next wait begins here.
            given_by = state.claim.given_by if state.claim else ""
            waits = Claim(event.agent_id, "", state.update_us, given_by=given_by)
            return replace(state, claim=waits)
        case WaitBegun():
            waits = Claim(event.agent_id, "", state.update_us, given_by=event.given_by)
            return replace(state, claim=waits, has_work=True)
        case MessageSaid():
            return state
        case NoteAdded():
            notes = (*state.notes, state.revision)[-NOTES_LISTED_MAX:]
            return replace(state, notes=notes, has_work=True, used_us=event.last_used_us)
        case TurnAnswered():
            return without_turn(state, event.request_id)
        case _:
            assert_never(event)
