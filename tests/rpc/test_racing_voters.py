"""Several people vote at once, each several times, over two replicas: each has one vote."""

import asyncio
import random
from itertools import pairwise

import pytest

from agent_routing.v1 import admin_service_pb2 as admin
from tests.rpc.signed_in import outcome_of, signed
from tests.rpc.test_approval_rules import APPROVE, REJECT, decision, desk, paused_signed_in
from tests.rpc.test_racing_people import sharing

VOTERS = ("bea", "cem", "dan")
VOTES = 3

RULE = desk("{by: other_than_owner, needs: 2}")


@pytest.mark.parametrize("may_reject", [False, True])
async def test_voters_at_once_have_one_vote_each(tmp_path, may_reject):
    """Two different people decide, or one rejects; the user, who may not, never counts."""
    draw = random.Random(may_reject)
    opinions = (APPROVE, APPROVE, REJECT) if may_reject else (APPROVE,)
    async with sharing(tmp_path, RULE) as replicas:
        paused = await paused_signed_in(replicas[0], "s")
        acts = [(who, draw.choice(opinions)) for who in VOTERS for _ in range(VOTES)]
        acts.append(("ana", APPROVE))
        draw.shuffle(acts)
        refused = await asyncio.gather(
            *(
                outcome_of(
                    signed(draw.choice(replicas), "approve", "route", subject=who, user=who)(
                        "ResumeTask", decision("s", paused, opinion)
                    )
                )
                for who, opinion in acts
            )
        )
        assert None in refused
        operator = signed(replicas[1], "admin", subject="olga")
        asked = admin.ListEventsRequest(
            session_id="s", page_size=1000, order=admin.EVENT_ORDER_OLDEST_FIRST
        )
        records = (await operator("ListEvents", asked)).records
    revisions = sorted({record.event.revision for record in records})
    assert all(later == earlier + 1 for earlier, later in pairwise(revisions))
    by_kind = {}
    for record in records:
        by_kind.setdefault(record.event.WhichOneof("kind"), []).append(record)
    voters = [record.actor for record in by_kind.get("approval_voted", ())]
    assert len(voters) == len(set(voters))
    assert "ana" not in voters
    (decided,) = by_kind["approval_decided"]
    assert len(by_kind["task_resumed"]) == 1
    assert decided.actor in VOTERS
    if decided.event.approval_decided.decision == APPROVE:
        assert len({*voters, decided.actor}) > 1
