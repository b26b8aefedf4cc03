"""WatchInbox: the turns that wait for workers."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from typing import Final

from google.protobuf import duration_pb2

from agent_routing.v1 import routing_service_pb2 as pb
from routing_service.auth import rights
from routing_service.auth.caller import Caller
from routing_service.core.commands import DispatchPlan
from routing_service.core.deadlines import deadline_us
from routing_service.core.identifiers import HISTORY_TURNS_MAX, HISTORY_TURNS_MIN
from routing_service.core.keep_turn import steps_known
from routing_service.rpc import proto_mapping as pm
from routing_service.rpc.agent_cards import CardCache
from routing_service.rpc.request_checks import FieldChecks, parse
from routing_service.rpc.rpc_method import Methods
from routing_service.sessions.command_handler import CommandHandler
from routing_service.sessions.inbox import Inbox, InboxWatch, Offer, new_resume_token
from routing_service.telemetry.call_record import CallRecord

AGENTS_MAX: Final = 32
"""Of one stream. A worker of more opens several."""

CAPACITY_MAX: Final = 1_000
"""Turns that one stream takes at a time."""

LEASE_S_DEFAULT: Final = 30.0
LEASE_S_MIN: Final = 1.0
LEASE_S_MAX: Final = 3_600.0

_SECOND_US: Final = 1_000_000
_RESUME: Final = re.compile(r"\A[0-9a-f]{32}\Z")


class InboxCalls:
    """The stream of a worker's turns."""

    def __init__(self, handler: CommandHandler, inbox: Inbox, cards: CardCache) -> None:
        """Offer the turns of one inbox."""
        self._handler = handler
        self._inbox = inbox
        self._cards = cards

    @property
    def methods(self) -> Methods:
        """This RPC by name."""
        return {"WatchInbox": self.watch_inbox}

    async def watch_inbox(
        self, caller: Caller, data: bytes, record: CallRecord
    ) -> AsyncGenerator[tuple[bytes, dict[str, str]]]:
        """Send a worker the turns of its agents."""
        request = parse(pb.WatchInboxRequest, data)
        watch, heartbeat_s = self._watch_in(caller, request)
        record.tenant = caller.tenant
        record.agent_id = watch.agent_ids[0]
        for agent_id in watch.agent_ids:
            rights.as_agent(caller, "WatchInbox", "", agent_id)
        position = {"resume_token": watch.resume_token}
        heartbeat = pb.WatchInboxResponse(
            heartbeat=pb.InboxHeartbeat(resume_token=watch.resume_token)
        ).SerializeToString()
        yield heartbeat, position
        async for offer in self._inbox.offers(watch, heartbeat_s):
            yield (heartbeat if offer is None else self._item_out(offer)), position

    def _watch_in(self, caller: Caller, request: pb.WatchInboxRequest) -> tuple[InboxWatch, float]:
        """Return a checked stream and its heartbeat interval. Raises INVALID_FIELD."""
        checks = FieldChecks()
        registry = self._handler.registry
        checks.number("agent_ids", len(request.agent_ids), 1, AGENTS_MAX)
        for place, agent_id in enumerate(request.agent_ids):
            checks.agent(f"agent_ids[{place}]", agent_id, registry, required=True)
            if registry.resolve(agent_id) in registry.people:
                checks.refuse(
                    f"agent_ids[{place}]",
                    "is of kind human, whose turns have no leases; use ListWaiting and ClaimTurn",
                )
        checks.identifier("worker_id", request.worker_id, required=True)
        checks.number("capacity", request.capacity, 0, CAPACITY_MAX)
        checks.number("history_turns", request.history_turns, HISTORY_TURNS_MIN, HISTORY_TURNS_MAX)
        if request.resume_token and not _RESUME.match(request.resume_token):
            checks.refuse("resume_token", "is not one of this service; leave it empty")
        lease_s = LEASE_S_DEFAULT
        if request.HasField("lease"):
            lease_s = lease_in(checks, "lease", request.lease)
        heartbeat_s = checks.heartbeat_s(request)
        checks.done()
        ids = [registry.resolve(agent_id) or agent_id for agent_id in request.agent_ids]
        watch = InboxWatch(
            tenant=caller.tenant,
            agent_ids=tuple(dict.fromkeys(ids)),
            worker_id=request.worker_id,
            capacity=request.capacity or 1,
            lease_us=int(lease_s * _SECOND_US),
            history_turns=request.history_turns,
            resume_token=request.resume_token or new_resume_token(),
        )
        return watch, heartbeat_s

    def _item_out(self, offer: Offer) -> bytes:
        waiting, item = offer.waiting, offer.item
        cards = self._cards.of(self._handler.registry)
        message = waiting.message
        dispatch = pm.dispatch_out(
            waiting.plan,
            message.text if message else "",
            message.items if message else (),
            cards,
            pm.locale_of(waiting.state),
        )
        dispatch.history.extend(pm.turn_out(turn, with_steps=False) for turn in waiting.history)
        dispatch.traceparent = _traceparent(waiting.plan)
        return pb.WatchInboxResponse(
            item=pb.InboxItem(
                session_id=offer.key.session_id,
                user_id=waiting.state.owner,
                dispatch=dispatch,
                lease_token=item.token,
                lease=_duration(item.left_us),
                attempt=item.attempt,
                dispatch_time=pm.timestamp(waiting.turn.dispatched_us),
                deadline=pm.timestamp(deadline_us(waiting.turn, self._handler.registry)),
                steps_known=steps_known(waiting.turn, item.attempt),
            )
        ).SerializeToString()


def _traceparent(plan: DispatchPlan) -> str:
    """Return where a turn's trace continues, "" for none: its stream's is another one.

    The span of the call is not stored, so a made-up one of the request stands for it.
    """
    if not plan.trace_id:
        return ""
    return f"00-{plan.trace_id}-{plan.request_id.replace('-', '')[16:]}-01"


def lease_in(checks: FieldChecks, field: str, value: duration_pb2.Duration) -> float:
    """Check the length of a lease and return it in seconds."""
    seconds = value.seconds + value.nanos / 1e9
    if not LEASE_S_MIN <= seconds <= LEASE_S_MAX:
        checks.refuse(field, f"is not between {LEASE_S_MIN:g} and {LEASE_S_MAX:g} seconds")
    return seconds


def _duration(left_us: int) -> duration_pb2.Duration:
    made = duration_pb2.Duration()
    made.FromMicroseconds(max(0, left_us))
    return made
