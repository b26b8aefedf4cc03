"""What people do with the conversations that they have, as it is stored. From format 2 on."""

from __future__ import annotations

import msgspec


class Claimed(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="claimed"):
    """A person has claimed the conversation of an agent of kind human.

    claimant: the signed-in subject. expire_us: when the claim ends by itself. taken_from: who had
    claimed it before, the same person if the claim was extended; "" = it was not claimed.
    """

    agent_id: str
    claimant: str
    expire_us: int
    taken_from: str = ""


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


ClaimEvent = Claimed | ClaimReleased | TurnAnswered
