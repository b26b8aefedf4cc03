"""Moves that agents make while stickiness is off: they are kept, and take effect once it is on.

Rule: only the agent that would have the conversation moves it, by completing or handing over. What
is active, locked and on the stack stays as stored until then.
"""

from __future__ import annotations

from msgspec.structs import replace

from routing_service.core import events as ev
from routing_service.core import ownership
from routing_service.core.draft import Draft
from routing_service.core.evolve import held_meanwhile
from routing_service.core.session import OpenTurn, SessionState
from routing_service.core.vocabulary import HandoffMode, Initiator, RouteReason


def holds_meanwhile(state: SessionState, agent_id: str) -> bool:
    """Say whether the agent would have the conversation if stickiness were on."""
    held = held_meanwhile(state)
    return bool(held) and held[-1].agent_id == agent_id


def settle(draft: Draft, turn: OpenTurn) -> OpenTurn:
    """Let take effect what was kept. Return the live turn, which goes on in the new ownership."""
    settle_session(draft)
    return draft.state.find_turn(turn.request_id) or turn


def settle_session(draft: Draft) -> None:
    """Let take effect what was kept; not while an approval is pending."""
    held = draft.state.meanwhile
    if held is None or draft.state.paused is not None:
        return
    left = draft.state.active_id
    if not any(frame.agent_id == left and frame.locked for frame in held):
        ownership.unlock(draft, "answered" if not held else "handoff")
    if not held:
        draft.add(ev.AgentCleared(left, "complete", "while stickiness was off", settles=True))
        return
    draft.add(
        ev.AgentHandedOff(
            from_agent=left,
            to_agent=held[-1].agent_id,
            initiator=Initiator.AGENT,
            mode=HandoffMode.TRANSFER,
            route_reason=RouteReason.AGENT_HANDOFF,
            reason="while stickiness was off",
            locked=held[-1].locked,
            settles=True,
        )
    )


def settled(state: SessionState) -> SessionState:
    """Return the session as it will be once stickiness is on. Nothing is written."""
    held = state.meanwhile
    if held is None or state.paused is not None:
        return state
    active = held[-1] if held else None
    return replace(state, active=active, stack=held[:-1], meanwhile=None)
