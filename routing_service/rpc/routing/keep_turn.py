"""KeepTurn: what workers say of their turns while they work.

The lease is extended first, then steps and a later deadline are stored, then notes and deltas are
sent, each only if what comes before it was granted.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from google.protobuf import duration_pb2

from agent_routing.v1 import routing_service_pb2 as pb
from agent_routing.v1 import session_event_pb2
from routing_service.auth import rights
from routing_service.auth.caller import Caller
from routing_service.core import commands as cmd
from routing_service.core.claims import check_claim
from routing_service.core.deadlines import deadline_us, extended_us
from routing_service.core.events import MessageSaid
from routing_service.core.identifiers import (
    LEASE_TOKEN_BYTES_MAX,
    NOTE_BYTES_MAX,
    TEXT_BYTES_MAX,
)
from routing_service.core.inbox import find_live, find_worked, place_of, place_with
from routing_service.core.keep_turn import steps_known
from routing_service.core.marker_stream import CONTEXT_CHARS, shown_part
from routing_service.core.registry import Registry
from routing_service.core.session import OpenTurn, SessionState
from routing_service.ids import new_uuid7
from routing_service.rpc import proto_mapping as pm
from routing_service.rpc.call_outcome import describe, identify
from routing_service.rpc.event_mapping import KEEP_TURN
from routing_service.rpc.request_checks import FieldChecks, parse
from routing_service.rpc.request_fingerprints import Fingerprint
from routing_service.rpc.routing.inbox import lease_in
from routing_service.rpc.rpc_method import Methods, RpcAnswer
from routing_service.sessions.calls import Answer, Call, Made
from routing_service.sessions.command_handler import CommandHandler
from routing_service.sessions.inbox import Inbox
from routing_service.sessions.inbox_entries import entry_at
from routing_service.sessions.live_feed import LiveFeed, LiveKind, LiveMessage
from routing_service.storage.store import SessionKey
from routing_service.telemetry.call_record import CallRecord

OFFSET_MAX: Final = 2**40
"""Far more than any answer has, and an integer in every language."""

SAY_FINGERPRINT: Final = Fingerprint(("request_id", "task_id", "agent_id", "say"))

_SECOND_US: Final = 1_000_000
_STORED: Final = Answer(b"")


class KeepTurnCalls:
    """The RPC of workers besides their stream and CompleteTurn."""

    def __init__(self, handler: CommandHandler, inbox: Inbox, live: LiveFeed) -> None:
        """Keep the leases of one inbox."""
        self._handler = handler
        self._inbox = inbox
        self._live = live

    @property
    def methods(self) -> Methods:
        """This RPC by name."""
        return {KEEP_TURN: self.keep_turn}

    async def keep_turn(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """Extend a lease or give it back; store steps; send a note or a part of the answer."""
        request = parse(pb.KeepTurnRequest, data)
        if request.say or request.message_id or request.task_id:
            return await self._say(caller, request, record)
        request_id, lease_us = self._check(request)
        registry = self._handler.registry
        agent_id = registry.resolve(request.agent_id) or request.agent_id
        key = SessionKey(caller.tenant, request.session_id)
        record.tenant, record.session_id = key
        record.request_id, record.agent_id = request_id, agent_id
        access = rights.as_agent(caller, KEEP_TURN, request.user_id, agent_id)
        state = (await self._handler.read(key, access, (request_id, agent_id))).stored
        record.revision = state.revision
        turn, status = _turn_of(state, request_id, agent_id, registry)
        if turn is None:
            return await self._gone(key, request_id, status)
        if agent_id in registry.people:
            check_claim(
                place_with(state, turn), key.session_id, caller.subject, self._handler.now_us()
            )
        said = len(request.note.encode()) + len(request.delta.text.encode())
        if said:
            self._live.admit(key, request_id, said)
        response = pb.KeepTurnResponse(status=pb.KEEP_TURN_STATUS_KEPT)
        attempt = 1
        entry = entry_at(place_of(turn), key.session_id)
        if lease_us == 0 and not request.lease_token:
            await self._inbox.take_back(key.tenant, entry)
        elif request.lease_token:
            item = await self._inbox.keep(key.tenant, entry, request.lease_token, lease_us)
            if item is None:
                return _answer(pb.KeepTurnResponse(status=pb.KEEP_TURN_STATUS_LEASE_LOST))
            attempt = item.attempt
            if lease_us:
                response.lease.CopyFrom(_duration(item.left_us))
        if request.steps or (lease_us and self._is_due(turn)):
            call = Call(
                key,
                KEEP_TURN,
                "",
                b"",
                access=access,
                subject=caller.subject,
                trace_id=record.trace_id,
            )
            command = cmd.KeepTurn(
                request_id=request_id,
                agent_id=agent_id,
                extends=bool(lease_us),
                attempt=attempt,
                first_step=request.first_step,
                steps=pm.steps_in(request.steps),
            )
            handled = await self._handler.handle(call, command, lambda _: _STORED)
            record.revision = handled.revision
            assert handled.decided is not None
            state = handled.decided.state
            turn, status = _turn_of(state, request_id, agent_id, registry)
            if turn is None:
                return await self._gone(key, request_id, status)
        if find_live(state, request_id) is None:
            response.cause = session_event_pb2.TURN_ABANDON_CAUSE_OVERTAKEN
        response.deadline.CopyFrom(pm.timestamp(deadline_us(turn, registry)))
        response.steps_known = steps_known(turn, attempt)
        if said and not turn.asker:
            response.relay = await self._send(key, turn, attempt, request)
        return _answer(response)

    async def _say(
        self, caller: Caller, request: pb.KeepTurnRequest, record: CallRecord
    ) -> RpcAnswer:
        """Store a message to the user without ending the turn."""
        message_id = self._check_said(request)
        registry = self._handler.registry
        agent_id = registry.resolve(request.agent_id) or request.agent_id
        key = SessionKey(caller.tenant, request.session_id)
        access = rights.as_agent(caller, KEEP_TURN, request.user_id, agent_id)
        record.agent_id = agent_id
        if request.lease_token:
            state = (await self._handler.read(key, access)).stored
            turn, status = _turn_of(state, request.request_id, agent_id, registry)
            if turn is None:
                return await self._gone(key, request.request_id, status)
            entry = entry_at(place_of(turn), key.session_id)
            if await self._inbox.keep(key.tenant, entry, request.lease_token, None) is None:
                return _answer(pb.KeepTurnResponse(status=pb.KEEP_TURN_STATUS_LEASE_LOST))
        call = Call(
            key,
            KEEP_TURN,
            message_id,
            SAY_FINGERPRINT.of(request, dict(request.ListFields())),
            access=access,
            subject=caller.subject,
            trace_id=record.trace_id,
        )
        identify(record, call)
        command = cmd.Say(
            message_id, agent_id, request.say, request.request_id, request.task_id, caller.subject
        )
        handled = await self._handler.handle(call, command, partial(_said_out, message_id))
        describe(record, handled, registry)
        return RpcAnswer(handled.answer.stored, handled.replayed)

    async def _gone(
        self, key: SessionKey, request_id: str, status: pb.KeepTurnStatus.ValueType
    ) -> RpcAnswer:
        """Answer for a turn that is no longer the agent's, with why it was abandoned."""
        response = pb.KeepTurnResponse(status=status)
        if status == pb.KEEP_TURN_STATUS_REQUEST_NOT_OPEN:
            cause = await self._handler.turns.abandon_cause(key, request_id)
            if cause:
                response.cause = pm.abandon_cause_out(cause)
        return _answer(response)

    def _check_said(self, request: pb.KeepTurnRequest) -> str:
        """Return the message's id. Raises INVALID_FIELD."""
        checks = FieldChecks()
        checks.session("session_id", request.session_id, required=True)
        checks.user("user_id", request.user_id)
        checks.agent("agent_id", request.agent_id, self._handler.registry, required=True)
        checks.text("lease_token", request.lease_token, LEASE_TOKEN_BYTES_MAX)
        checks.uuid("request_id", request.request_id, required=not request.task_id)
        checks.uuid("task_id", request.task_id)
        message_id = checks.uuid("message_id", request.message_id) or new_uuid7()
        checks.text("say", request.say, TEXT_BYTES_MAX)
        if not request.say:
            checks.refuse("say", "is required with task_id and message_id")
        if request.task_id and request.request_id:
            checks.refuse("task_id", "is for a conversation without an open request; leave one out")
        does = request.WhichOneof("act") or request.steps or request.note
        if does or request.HasField("delta"):
            checks.refuse("say", "cannot be set together with another field that does something")
        checks.done()
        return message_id

    def _check(self, request: pb.KeepTurnRequest) -> tuple[str, int | None]:
        """Return the request's id and the lease that is asked for, 0 to give it back.

        Raises INVALID_FIELD.
        """
        checks = FieldChecks()
        checks.session("session_id", request.session_id, required=True)
        checks.user("user_id", request.user_id)
        request_id = checks.uuid("request_id", request.request_id, required=True)
        checks.agent("agent_id", request.agent_id, self._handler.registry, required=True)
        checks.text("lease_token", request.lease_token, LEASE_TOKEN_BYTES_MAX)
        checks.steps("steps", request.steps)
        checks.number("first_step", request.first_step, 0, OFFSET_MAX)
        checks.text("note", request.note, NOTE_BYTES_MAX)
        says = bool(request.steps or request.note)
        if request.HasField("delta"):
            says = True
            _check_delta(checks, request.delta)
        act = request.WhichOneof("act")
        lease_us: int | None = None
        if act == "extend":
            lease_us = int(lease_in(checks, "extend", request.extend) * _SECOND_US)
        elif act == "release" and request.release:
            lease_us = 0
            if says:
                checks.refuse("release", "cannot be set together with steps, note or delta")
        elif not says:
            checks.refuse("act", "is required; set extend, release, steps, note, delta or say")
        checks.done()
        return request_id, lease_us

    def _is_due(self, turn: OpenTurn) -> bool:
        """Say whether the turn's deadline is to be moved, or has passed."""
        registry, now_us = self._handler.registry, self._handler.now_us()
        is_over = now_us >= deadline_us(turn, registry)
        return is_over or extended_us(turn, registry, now_us) is not None

    async def _send(
        self, key: SessionKey, turn: OpenTurn, attempt: int, request: pb.KeepTurnRequest
    ) -> pb.Relay.ValueType:
        """Send a note and a part of an answer to watchers."""
        reaches_all = True

        async def send(kind: LiveKind, text: str, begin: int = 0, end: int = 0) -> bool:
            message = LiveMessage(
                kind, *key, turn.request_id, turn.holder, attempt, text, begin, end
            )
            return await self._live.send(message)

        if request.note:
            reaches_all = await send(LiveKind.NOTE, request.note)
        if request.delta.text:
            begin, end, text = self._shown(turn.holder, request.delta)
            if end > begin:
                reaches_all = await send(LiveKind.DELTA, text, begin, end) and reaches_all
        return pb.RELAY_ALL if reaches_all else pb.RELAY_LOCAL

    def _shown(self, agent_id: str, delta: pb.AnswerDelta) -> tuple[int, int, str]:
        """Return what of a part can be shown, and its place in bytes."""
        agent = self._handler.registry.agent(agent_id)
        text = delta.text
        if agent is None or not agent.markers:
            return delta.offset, delta.offset + len(text.encode()), text
        before = delta.before[-CONTEXT_CHARS:]
        begin, end, shown = shown_part(before, text)
        start = delta.offset - len(before.encode())
        whole = before + text
        return start + len(whole[:begin].encode()), start + len(whole[:end].encode()), shown


def _check_delta(checks: FieldChecks, delta: pb.AnswerDelta) -> None:
    checks.number("delta.offset", delta.offset, 0, OFFSET_MAX)
    if not delta.text:
        checks.refuse("delta.text", "is empty; leave delta out")
    checks.text("delta.text", delta.text, TEXT_BYTES_MAX)
    if len(delta.before) > CONTEXT_CHARS:
        checks.refuse(
            "delta.before", f"has {len(delta.before)} characters; send the last {CONTEXT_CHARS}"
        )
    size = len(delta.before.encode())
    is_whole = size == delta.offset or len(delta.before) == CONTEXT_CHARS
    if size > delta.offset or not is_whole:
        checks.refuse(
            "delta.before",
            f"has {size} bytes, and {delta.offset} come before the text; send the last "
            f"{CONTEXT_CHARS} characters, or all if there are fewer",
        )


def _turn_of(
    state: SessionState, request_id: str, agent_id: str, registry: Registry
) -> tuple[OpenTurn | None, pb.KeepTurnStatus.ValueType]:
    """Return the turn if it is still the agent's, or overtaken; otherwise what became of it."""
    turn = find_worked(state, request_id, registry)
    if turn is None:
        return None, pb.KEEP_TURN_STATUS_REQUEST_NOT_OPEN
    if turn.holder != agent_id:
        return None, pb.KEEP_TURN_STATUS_LEASE_LOST
    return turn, pb.KEEP_TURN_STATUS_KEPT


def _said_out(message_id: str, made: Made) -> Answer:
    """Return the answer to what was said; to a turn that is gone nothing is."""
    events = made.decided.decision.events
    response = pb.KeepTurnResponse(status=pb.KEEP_TURN_STATUS_REQUEST_NOT_OPEN)
    if any(isinstance(event, MessageSaid) for event in events):
        response = pb.KeepTurnResponse(
            status=pb.KEEP_TURN_STATUS_KEPT, message_id=message_id, revision=made.revision
        )
    return Answer(response.SerializeToString())


def _answer(response: pb.KeepTurnResponse) -> RpcAnswer:
    return RpcAnswer(response.SerializeToString())


def _duration(left_us: int) -> duration_pb2.Duration:
    made = duration_pb2.Duration()
    made.FromMicroseconds(max(0, left_us))
    return made
