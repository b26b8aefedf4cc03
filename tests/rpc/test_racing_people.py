"""People, the user and operators act on one conversation at once, over two replicas.

Whatever comes first, one person has the conversation, and one answer ends a turn.
"""

import asyncio
import random
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise

import pytest

from agent_routing.v1 import admin_service_pb2 as admin
from agent_routing.v1 import routing_service_pb2 as pb
from agent_routing.v1 import turn_pb2
from tests.replicas.stale_pairs import SharedStore
from tests.rpc.live_service import Clock, fresh_id, proceed, read_refusal
from tests.rpc.signed_in import outcome_of, serving_signed_in, signed
from tests.rpc.test_people import SHOP, at_signed_in_desk, person

ROUNDS = 4
PEOPLE = ("bea", "cem", "dan")
CLAIM_TIMEOUT_S = 2 * 3600

MAY_BE_REFUSED = {
    "CLAIMED",
    "NOTHING_TO_CLAIM",
    "REQUEST_NOT_OPEN",
    "HANDOFF_REFUSED",
    "REVISION_MISMATCH",
    "SCOPE_MISSING",
    "TASK_CLOSED",
}


@asynccontextmanager
async def sharing(folder, registry):
    """Run two servers with one store and one clock, where callers sign in."""
    store, clock = SharedStore(), Clock()
    async with AsyncExitStack() as running:
        servers = []
        for name in ("one", "two"):
            own = folder / name
            await asyncio.to_thread(own.mkdir)
            entered = serving_signed_in(own, registry, shared=store, clock=clock)
            servers.append(await running.enter_async_context(entered))
        yield servers


@pytest.fixture
async def replicas(tmp_path):
    """Two servers of the shop."""
    async with sharing(tmp_path, SHOP) as servers:
        yield servers


def everybody(session_id, task_id, open_requests, draw):
    """Return what each caller does, as (caller, RPC, request)."""
    desk = {"session_id": session_id, "agent_id": "desk"}
    for who in PEOPLE:
        yield who, "ClaimTurn", pb.ClaimTurnRequest(**desk)
        yield who, "ClaimTurn", pb.ClaimTurnRequest(**desk, take_over=True)
        yield who, "ReleaseTurn", pb.ReleaseTurnRequest(**desk)
        for request_id in open_requests:
            answer = pb.CompleteTurnRequest(
                **desk, request_id=request_id, text=f"by {who}", **proceed()
            )
            yield who, "CompleteTurn", answer
    text = {"session_id": session_id, "text": "and another thing"}
    yield "ana", "Route", pb.RouteRequest(**text, request_id=fresh_id())
    match draw.randrange(4):
        case 0:
            yield "cem", "ClearActiveAgent", pb.ClearActiveAgentRequest(session_id=session_id)
        case 1:
            cancelled = pb.CancelTaskRequest(session_id=session_id, task_id=task_id)
            yield "dan", "CancelTask", cancelled
        case 2:
            moved = {"agent_id": "orders", "initiator": "INITIATOR_OPERATOR", "reason": "test"}
            yield "olga", "SetActiveAgent", pb.SetActiveAgentRequest(session_id=session_id, **moved)
        case _:
            yield "olga", "ReleaseTurn", pb.ReleaseTurnRequest(**desk)


def calls_of(service):
    """Return each caller's calls to one replica."""
    return {
        "ana": signed(service, "route", user="ana"),
        "olga": signed(service, "admin", subject="olga"),
        **{who: person(service, who) for who in PEOPLE},
    }


async def records_of(service, session_id):
    """Return the audit of a session, in the order of its revisions."""
    operator = signed(service, "admin", subject="olga")
    asked = admin.ListEventsRequest(
        session_id=session_id, page_size=1000, order=admin.EVENT_ORDER_OLDEST_FIRST
    )
    page = await operator("ListEvents", asked)
    assert not page.next_page_token
    return list(page.records)


def check(records):
    """Fold the audit; return who has the conversation at its end."""
    claimant, until = "", None
    ended = set()
    for record in records:
        event = record.event
        match event.WhichOneof("kind"):
            case "claimed":
                assert record.actor == event.claimed.claimant
                assert event.claimed.taken_from == claimant, "two people had the conversation"
                claimant, until = event.claimed.claimant, event.claimed.expire_time.ToDatetime()
            case "claim_released":
                assert event.claim_released.claimant == claimant, "another one's claim has ended"
                claimant = ""
            case "turn_answered":
                assert event.turn_answered.request_id not in ended, "a turn has ended twice"
                ended.add(event.turn_answered.request_id)
            case "turn_completed" if event.turn_completed.agent.agent_id == "desk":
                done = event.turn_completed
                # Claims that have run out end with the next change.
                is_over = until is not None and event.event_time.ToDatetime() >= until
                assert claimant in ("", record.actor) or is_over, "another one answered"
                if done.outcome_status == turn_pb2.OUTCOME_STATUS_APPLIED:
                    assert done.request_id not in ended, "a turn has ended twice"
                    ended.add(done.request_id)
            case _:
                pass
    revisions = sorted({record.event.revision for record in records})
    assert revisions[0] == 1
    assert all(later == earlier + 1 for earlier, later in pairwise(revisions))
    return claimant


@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_one_person_has_a_conversation_however_many_act_at_once(replicas, seed):
    """Three people, the user and an operator, twice at once; between, the claims run out."""
    draw = random.Random(seed)
    one, two = replicas
    session_id = f"race-{seed}"
    given = await at_signed_in_desk(one, session_id)
    open_requests = [given.request_id]
    callers = [calls_of(each) for each in replicas]
    for _ in range(2):
        said = pb.RouteRequest(session_id=session_id, text="Order 17", request_id=fresh_id())
        open_requests.append((await callers[0]["ana"]("Route", said)).request_id)
        acts = list(everybody(session_id, given.task_id, open_requests[-2:], draw))
        draw.shuffle(acts)
        refused = await asyncio.gather(
            *(outcome_of(draw.choice(callers)[who](rpc, made)) for who, rpc, made in acts)
        )
        assert {read_refusal(each).reason for each in refused if each} <= MAY_BE_REFUSED
        assert None in refused
        one.clock.advance(CLAIM_TIMEOUT_S + 1)
    # A call that nobody else races with: it applies what has run out.
    freed = pb.ReleaseTurnRequest(session_id=session_id, agent_id="desk")
    await callers[1]["olga"]("ReleaseTurn", freed)
    claimant = check(await records_of(two, session_id))
    for each in callers:
        asked = pb.StatusRequest(session_id=session_id)
        assert (await each["olga"]("Status", asked)).claim.claimant == claimant
