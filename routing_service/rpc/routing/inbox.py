"""WatchInbox and KeepTurn: what workers call besides CompleteTurn."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from typing import Final

from google.protobuf import duration_pb2

from agent_routing.v1 import routing_service_pb2 as pb
from routing_service.auth import rights
from routing_service.auth.caller import Caller
from routing_service.core.identifiers import (
    HISTORY_TURNS_MAX,
    HISTORY_TURNS_MIN,
    LEASE_TOKEN_BYTES_MAX,
)
from routing_service.core.inbox import place_of
from routing_service.rpc import proto_mapping as pm
from routing_service.rpc.agent_cards import CardCache
from routing_service.rpc.request_checks import HEARTBEAT_S_DEFAULT, FieldChecks, parse
from routing_service.rpc.rpc_method import Methods, RpcAnswer
from routing_service.sessions.command_handler import CommandHandler
from routing_service.sessions.inbox import Inbox, InboxWatch, Offer, new_resume_token
from routing_service.sessions.inbox_entries import entry_at
from routing_service.storage.store import SessionKey
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
    """The RPCs of workers."""

    def __init__(self, handler: CommandHandler, inbox: Inbox, cards: CardCache) -> None:
        """Offer the turns of one inbox."""
        self._handler = handler
        self._inbox = inbox
        self._cards = cards

    @property
    def methods(self) -> Methods:
        """These RPCs by name."""
        return {"WatchInbox": self.watch_inbox, "KeepTurn": self.keep_turn}

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
            yield (heartbeat if offer is None else self._item_out(offer, record)), position

    def _watch_in(self, caller: Caller, request: pb.WatchInboxRequest) -> tuple[InboxWatch, float]:
        """Return a checked stream and its heartbeat interval. Raises INVALID_FIELD."""
        checks = FieldChecks()
        registry = self._handler.registry
        checks.number("agent_ids", len(request.agent_ids), 1, AGENTS_MAX)
        for place, agent_id in enumerate(request.agent_ids):
            checks.agent(f"agent_ids[{place}]", agent_id, registry, required=True)
        checks.identifier("worker_id", request.worker_id, required=True)
        checks.number("capacity", request.capacity, 0, CAPACITY_MAX)
        checks.number("history_turns", request.history_turns, HISTORY_TURNS_MIN, HISTORY_TURNS_MAX)
        if request.resume_token and not _RESUME.match(request.resume_token):
            checks.refuse("resume_token", "is not one of this service; leave it empty")
        lease_s = LEASE_S_DEFAULT
        if request.HasField("lease"):
            lease_s = _lease_in(checks, "lease", request.lease)
        heartbeat_s = HEARTBEAT_S_DEFAULT
        if request.HasField("heartbeat_interval"):
            heartbeat_s = checks.heartbeat("heartbeat_interval", request.heartbeat_interval)
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

    def _item_out(self, offer: Offer, record: CallRecord) -> bytes:
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
        dispatch.traceparent = record.traceparent
        return pb.WatchInboxResponse(
            item=pb.InboxItem(
                session_id=offer.key.session_id,
                user_id=waiting.state.owner,
                dispatch=dispatch,
                lease_token=item.token,
                lease=_duration(item.left_us),
                attempt=item.attempt,
                dispatch_time=pm.timestamp(waiting.turn.dispatched_us),
            )
        ).SerializeToString()

    async def keep_turn(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """Extend a lease, or give it back."""
        request = parse(pb.KeepTurnRequest, data)
        registry = self._handler.registry
        checks = FieldChecks()
        checks.session("session_id", request.session_id, required=True)
        checks.user("user_id", request.user_id)
        request_id = checks.uuid("request_id", request.request_id, required=True)
        checks.agent("agent_id", request.agent_id, registry, required=True)
        checks.text("lease_token", request.lease_token, LEASE_TOKEN_BYTES_MAX)
        act = request.WhichOneof("act")
        lease_s = 0.0
        if act == "extend":
            lease_s = _lease_in(checks, "extend", request.extend)
        elif act is None or not request.release:
            checks.refuse("act", "is required; set extend or release")
        checks.done()
        agent_id = registry.resolve(request.agent_id) or request.agent_id
        key = SessionKey(caller.tenant, request.session_id)
        record.tenant, record.session_id = key
        record.request_id, record.agent_id = request_id, agent_id
        access = rights.as_agent(caller, "KeepTurn", request.user_id, agent_id)
        state = (await self._handler.read(key, access)).stored
        record.revision = state.revision
        turn = state.find_turn(request_id)
        if turn is None or not state.is_live(turn):
            return _kept(pb.KEEP_TURN_STATUS_REQUEST_NOT_OPEN)
        if turn.holder != agent_id:
            return _kept(pb.KEEP_TURN_STATUS_LEASE_LOST)
        if not request.lease_token:
            return _kept(pb.KEEP_TURN_STATUS_KEPT)
        entry = entry_at(place_of(turn), key.session_id)
        lease_us = int(lease_s * _SECOND_US)
        left_us = await self._inbox.keep(key.tenant, entry, request.lease_token, lease_us)
        if left_us is None:
            return _kept(pb.KEEP_TURN_STATUS_LEASE_LOST)
        return _kept(pb.KEEP_TURN_STATUS_KEPT, left_us)


def _lease_in(checks: FieldChecks, field: str, value: duration_pb2.Duration) -> float:
    """Check the length of a lease and return it in seconds."""
    seconds = value.seconds + value.nanos / 1e9
    if not LEASE_S_MIN <= seconds <= LEASE_S_MAX:
        checks.refuse(field, f"is not between {LEASE_S_MIN:g} and {LEASE_S_MAX:g} seconds")
    return seconds


def _kept(status: pb.KeepTurnStatus.ValueType, left_us: int = 0) -> RpcAnswer:
    response = pb.KeepTurnResponse(status=status)
    if left_us > 0:
        response.lease.CopyFrom(_duration(left_us))
    return RpcAnswer(response.SerializeToString())


def _duration(left_us: int) -> duration_pb2.Duration:
    made = duration_pb2.Duration()
    made.FromMicroseconds(max(0, left_us))
    return made
