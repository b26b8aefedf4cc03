"""Claims of people, as answers and events have them."""

from __future__ import annotations

from typing import Final, assert_never

from agent_routing.v1 import note_pb2, session_event_pb2
from agent_routing.v1 import routing_service_pb2 as pb
from routing_service.core import events as ev
from routing_service.core.people import claim_of
from routing_service.core.session import SessionState
from routing_service.rpc import proto_mapping as pm
from routing_service.rpc.agent_cards import AgentCards

_CAUSES: Final = {
    "released": session_event_pb2.CLAIM_RELEASE_CAUSE_RELEASED,
    "timeout": session_event_pb2.CLAIM_RELEASE_CAUSE_TIMEOUT,
    "moved": session_event_pb2.CLAIM_RELEASE_CAUSE_MOVED,
}


def claim_out(state: SessionState, cards: AgentCards, locale: str) -> pb.Claim | None:
    """Return who has claimed a session; None if nobody has."""
    claim = claim_of(state)
    if claim is None:
        return None
    return pb.Claim(
        agent=cards.card(claim.agent_id, locale),
        claimant=claim.claimant,
        claim_time=pm.timestamp(claim.claimed_us),
        expire_time=pm.timestamp(claim.expire_us),
    )


def fill_claim(
    made: session_event_pb2.SessionEvent, event: ev.ClaimEvent, cards: AgentCards
) -> None:
    """Set the kind of an event about a claim."""
    match event:
        case ev.Claimed():
            made.claimed.agent.CopyFrom(cards.card(event.agent_id, ""))
            made.claimed.claimant = event.claimant
            made.claimed.taken_from = event.taken_from
            made.claimed.expire_time.CopyFrom(pm.timestamp(event.expire_us))
            made.claimed.reason = event.reason
        case ev.ClaimReleased():
            made.claim_released.agent.CopyFrom(cards.card(event.agent_id, ""))
            made.claim_released.claimant = event.claimant
            made.claim_released.cause = _CAUSES[event.cause]
        case ev.TurnAnswered():
            made.turn_answered.request_id = event.request_id
            made.turn_answered.agent.CopyFrom(cards.card(event.agent_id, ""))
            made.turn_answered.answered_by = event.answered_by
        case ev.MessageSaid():
            said = made.message_said
            said.message_id, said.request_id = event.message_id, event.request_id
            said.task_id = event.task_id
            if event.agent_id:
                said.agent.CopyFrom(cards.card(event.agent_id, ""))
            if event.initiator is not None:
                said.initiator = pm.INITIATORS[event.initiator]
        case ev.NoteAdded():
            noted = made.note_added
            noted.note_id, noted.task_id, noted.author = event.note_id, event.task_id, event.author
            if event.agent_id:
                noted.agent.CopyFrom(cards.card(event.agent_id, ""))
        case ev.WaitBegun():
            pass  # Internal.
        case _:
            assert_never(event)


def note_out(
    note: ev.NoteAdded, time_us: int, cards: AgentCards, *, with_text: bool = True
) -> note_pb2.Note:
    """Return a note about a conversation."""
    return note_pb2.Note(
        note_id=note.note_id,
        task_id=note.task_id,
        agent=cards.card(note.agent_id, "") if note.agent_id else None,
        author=note.author,
        text=note.text if with_text else "",
        create_time=pm.timestamp(time_us),
    )
