"""How events about claims change a session's state."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from msgspec.structs import replace

from routing_service.core.claim_events import Claimed, ClaimEvent, ClaimReleased, TurnAnswered
from routing_service.core.session_parts import Claim
from routing_service.core.task_fold import without_turn

if TYPE_CHECKING:
    from routing_service.core.session import SessionState


def evolve_claim(state: SessionState, event: ClaimEvent) -> SessionState:
    """Change who has claimed the conversation, or which of its turns wait."""
    match event:
        case Claimed():
            claim = Claim(event.agent_id, event.claimant, state.update_us, event.expire_us)
            return replace(state, claim=claim, has_work=True)
        case ClaimReleased(cause="moved"):
            return replace(state, claim=None)
        case ClaimReleased():
            # Since when it is not claimed any more: the next wait begins here.
            return replace(state, claim=Claim(event.agent_id, "", state.update_us))
        case TurnAnswered():
            return without_turn(state, event.request_id)
        case _:
            assert_never(event)
