"""What people do with the conversations that they have, as it is stored. From format 2 on."""

from __future__ import annotations

import msgspec

from routing_service.core.vocabulary import Initiator


class Claimed(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="claimed"):
    """A person has claimed the conversation of an agent of kind human.

    claimant: the signed-in subject. expire_us: when the claim ends by itself. taken_from: who had
    claimed it before, the same person if the claim was extended; "" = it was not claimed.
    reason: as the person gave it.
    """

    agent_id: str
    claimant: str
    expire_us: int
    taken_from: str = ""
    reason: str = ""


class ClaimReleased(
    msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="claim_released"
):
    """A claim ended. cause: released | timeout | moved (the conversation left the agent)."""

    agent_id: str
    claimant: str
    cause: str


class TurnAnswered(
    msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="turn_answered"
):
    """A person answered a later request, and this one with it.

    answered_by: the request with the answer, which the same change completes.
    """

    request_id: str
    root_request_id: str
    agent_id: str
    answered_by: str


class WaitBegun(
    msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="wait_begun"
):
    """A conversation began to wait for the people of an agent with unclaimed_timeout.

    Internal: watchers do not get it. given_by: the agent that gets it back if nobody claims it;
    "" = the home agent.
    """

    agent_id: str
    given_by: str = ""


class MessageSaid(
    msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="message_said"
):
    """An agent said something to the user, and its turn goes on.

    request_id: the open request in which it was said; "" = it had none. by: the signed-in subject.
    initiator: OPERATOR = an operator said it while the agent had the conversation; None = the
    agent.
    """

    message_id: str
    request_id: str
    task_id: str
    agent_id: str
    text: str = ""
    by: str = ""
    initiator: Initiator | None = None


class NoteAdded(
    msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="note_added"
):
    """A person noted something about the conversation. Users never get it.

    agent_id: the agent for which the person wrote; "" = an operator. author: the signed-in subject.
    last_used_us: the time of the last call; a note is no use of the session.
    """

    note_id: str
    task_id: str
    agent_id: str
    author: str = ""
    text: str = ""
    last_used_us: int = 0


PersonEvent = WaitBegun | MessageSaid | NoteAdded
ClaimEvent = Claimed | ClaimReleased | TurnAnswered | PersonEvent
