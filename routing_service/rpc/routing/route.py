"""Route and RouteStream: a user's message.

A new field of RouteRequest is declared here once: its check, its mapping, and whether a repeat is
compared by it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from google.rpc import status_pb2

from agent_routing.v1 import dispatch_pb2
from agent_routing.v1 import routing_service_pb2 as pb
from routing_service.auth import rights
from routing_service.auth.caller import Caller
from routing_service.core import commands as cmd
from routing_service.core.access import Access
from routing_service.core.errors import invalid_field
from routing_service.core.events import Profile
from routing_service.core.identifiers import HISTORY_TURNS_MAX, HISTORY_TURNS_MIN, TEXT_BYTES_MAX
from routing_service.core.typed_text import skip_invisible
from routing_service.ids import derived_session_id, new_uuid7
from routing_service.rpc import proto_mapping as pm
from routing_service.rpc.agent_cards import CardCache
from routing_service.rpc.call_outcome import describe, identify
from routing_service.rpc.dispatch_bytes import answer_with, dispatch_bytes, whole_answer
from routing_service.rpc.reply_mapping import reply_out
from routing_service.rpc.request_checks import FieldChecks, parse
from routing_service.rpc.request_fingerprints import Fingerprint, Present
from routing_service.rpc.rpc_method import Methods, RpcAnswer, StreamMessage
from routing_service.rpc.wire_format import framed, tag_of
from routing_service.sessions.calls import Answer, Call, Made
from routing_service.sessions.command_handler import CommandHandler
from routing_service.storage.store import SessionKey
from routing_service.telemetry.call_record import CallRecord

ROUTE_FINGERPRINT: Final = Fingerprint(
    (
        "task_id",
        "text",
        "items",
        "locale",
        "channel",
        "entitlements",
        "metadata",
        "task_expire_time",
        "quick_reply_id",
        "deliver",
        "literal_text",
    ),
    uuids=frozenset({"task_id", "quick_reply_id"}),
    sets=frozenset({"entitlements"}),
)

_USUAL_FIELDS: Final = frozenset(
    pb.RouteRequest.DESCRIPTOR.fields_by_name[name]
    for name in ("session_id", "user_id", "request_id", "text", "literal_text", "validate_only")
)
"""What most requests consist of. One that has no other field skips the checks of the others."""

_DELIVERIES: Final = (dispatch_pb2.DELIVERY_UNSPECIFIED, dispatch_pb2.DELIVERY_INBOX)

_EXPECTED_REVISION: Final = pb.RouteRequest.DESCRIPTOR.fields_by_name["expected_revision"]

_DISPATCH: Final = tag_of(pb.RouteResponse, "dispatch")
_STREAM_REQUEST_ID: Final = tag_of(pb.RouteStreamResponse, "request_id")
_STREAM_SESSION_ID: Final = tag_of(pb.RouteStreamResponse, "session_id")
_STREAM_ROUTE: Final = tag_of(pb.RouteStreamResponse, "route")


class RouteCalls:
    """The RPCs that take a user's message."""

    def __init__(
        self, handler: CommandHandler, cards: CardCache, new_id: Callable[[], str] = new_uuid7
    ) -> None:
        """Call one handler. new_id: makes the ids that callers leave out."""
        self._handler = handler
        self._cards = cards
        self._new_id = new_id

    @property
    def methods(self) -> Methods:
        """These RPCs by name."""
        return {"Route": self.route, "RouteStream": self.route_on_stream}

    def route(self, caller: Caller, data: bytes, record: CallRecord) -> Awaitable[RpcAnswer]:
        """Take a user's message."""
        return self._route(caller, parse(pb.RouteRequest, data), record)

    async def route_on_stream(
        self, caller: Caller, message: StreamMessage, record: CallRecord
    ) -> RpcAnswer:
        """Take a user's message from a stream. The answer repeats its request_id."""
        if isinstance(message, bytes):
            # They did not parse before; parsing them again raises the error that says why.
            message = parse(pb.RouteStreamRequest, message)
        request = message.route
        record.request_id, record.session_id = request.request_id, request.session_id
        if not request.request_id:
            raise invalid_field(
                "route.request_id", "is required on a stream; send a UUID of your own"
            )
        answer = await self._route(caller, request, record)
        body = (
            framed(_STREAM_REQUEST_ID, record.request_id.encode())
            + framed(_STREAM_SESSION_ID, record.session_id.encode())
            + framed(_STREAM_ROUTE, answer.body)
        )
        return RpcAnswer(body, answer.replayed)

    async def _route(
        self, caller: Caller, request: pb.RouteRequest, record: CallRecord
    ) -> RpcAnswer:
        present = dict(request.ListFields())
        command, access = _route_in(request, present, caller, self._new_id)
        session_id, begins = request.session_id, False
        if not session_id:
            session_id, begins = await self._session_for(caller, request, command, access)
        call = Call(
            key=SessionKey(caller.tenant, session_id),
            method="Route",
            request_id=command.request_id,
            fingerprint=ROUTE_FINGERPRINT.of(request, present),
            access=access,
            subject=caller.subject,
            trace_id=record.trace_id,
            expected_revision=present.get(_EXPECTED_REVISION),
            history_turns=request.history_turns,
            dry_run=request.validate_only,
            explains_topic=request.validate_only or request.explain_topic,
            begins=begins,
        )
        identify(record, call)
        handled = await self._handler.handle(call, command, self._route_out)
        describe(record, handled, self._cards.latest.registry)
        return RpcAnswer(whole_answer(_DISPATCH, handled, record, caller), handled.replayed)

    async def _session_for(
        self,
        caller: Caller,
        request: pb.RouteRequest,
        command: cmd.RouteMessage,
        access: Access,
    ) -> tuple[str, bool]:
        """Return the session of a message that names none, and whether the session starts here."""
        if command.task_id:
            found = await self._handler.reads.session_of_task(
                caller.tenant, command.task_id, access
            )
            return found, False
        if request.request_id:
            # A repeat of the call has to find the same session.
            return derived_session_id(caller.tenant, access.user_id, command.request_id), False
        return self._new_id(), True

    def _route_out(self, made: Made) -> Answer:
        decision = made.decided.decision
        plan = decision.dispatch
        cards = self._cards.of(made.registry)
        locale = pm.locale_of(made.decided.state)
        response = pb.RouteResponse(
            session_id=made.call.key.session_id,
            task_id=decision.task_id,
            request_id=made.call.request_id,
            revision=made.revision,
        )
        dispatch = b""
        if plan is not None:
            dispatch = dispatch_bytes(plan, cards, locale)
            response.supervisor_bypassed = plan.agent_id != cards.registry.home_agent_id
        else:
            response.queued = decision.queued
        if decision.reply is not None:
            response.reply.CopyFrom(reply_out(made, decision.reply, locale))
        if decision.suggestion is not None:
            present = plan.agent_id if plan else ""
            response.suggestion.CopyFrom(
                pm.suggestion_out(
                    decision.suggestion, present, cards, locale, made.decided.state.channel
                )
            )
        if made.call.explains_topic and decision.topic is not None:
            response.topic_trace.CopyFrom(pm.topic_trace_out(decision.topic))
        return answer_with(response.SerializeToString(), _DISPATCH, dispatch)


def stream_error(request_id: str, session_id: str, status: status_pb2.Status) -> bytes:
    """Return the answer to a refused message of a stream."""
    response = pb.RouteStreamResponse(request_id=request_id, session_id=session_id, error=status)
    return response.SerializeToString()


def _route_in(
    request: pb.RouteRequest, present: Present, caller: Caller, new_id: Callable[[], str]
) -> tuple[cmd.RouteMessage, Access]:
    """Check a message. Return its command and the access that its caller has.

    Raises INVALID_FIELD, OWNER_MISMATCH, SCOPE_MISSING.
    """
    checks = FieldChecks()
    text = request.text
    checks.session("session_id", request.session_id)
    checks.user("user_id", request.user_id)
    request_id = checks.uuid("request_id", request.request_id)
    checks.text("text", text, TEXT_BYTES_MAX)
    # The first character of most messages is seen at once.
    if not ("!" <= text[:1] <= "~" or request.items or request.quick_reply_id) and (
        skip_invisible(text, 0) == len(text)
    ):
        checks.refuse("text", "is empty or blank, and there are no items; send one or the other")
    if present.keys() <= _USUAL_FIELDS:
        checks.done()
        access = rights.as_speaker(caller, request.user_id)
        user_id = access.user_id
        return cmd.RouteMessage(
            request_id=request_id or new_id(),
            text=text,
            new_task_id=new_id(),
            profile=Profile(
                user_id=user_id, entitlements=rights.entitlements_of(caller, user_id, ())
            ),
            literal_text=request.literal_text,
        ), access
    task_id = checks.uuid("task_id", request.task_id)
    checks.items("items", request.items)
    checks.locale("locale", request.locale)
    checks.channel("channel", request.channel)
    entitlements = checks.entitlements("entitlements", request.entitlements)
    checks.metadata("metadata", request.metadata)
    checks.number("history_turns", request.history_turns, HISTORY_TURNS_MIN, HISTORY_TURNS_MAX)
    quick_reply_id = checks.uuid("quick_reply_id", request.quick_reply_id)
    expire_us = None
    if request.HasField("task_expire_time"):
        checks.timestamp("task_expire_time", request.task_expire_time)
        expire_us = pm.time_us(request.task_expire_time)
    checks.revision("expected_revision", request.expected_revision)
    checks.revision("shown_revision", request.shown_revision)
    if request.deliver not in _DELIVERIES:
        checks.refuse("deliver", "is not INBOX; leave it out to deliver as the registry says")
    checks.done()
    access = rights.as_speaker(caller, request.user_id)
    user_id = access.user_id
    command = cmd.RouteMessage(
        request_id=request_id or new_id(),
        text=text,
        new_task_id=new_id(),
        items=pm.items_in(request.items),
        task_id=task_id,
        profile=Profile(
            user_id=user_id,
            locale=request.locale,
            channel=request.channel,
            entitlements=rights.entitlements_of(caller, user_id, entitlements),
        ),
        metadata=dict(request.metadata),
        task_expire_us=expire_us,
        literal_text=request.literal_text,
        quick_reply_id=quick_reply_id,
        inbox=request.deliver == dispatch_pb2.DELIVERY_INBOX,
        shown_revision=request.shown_revision if request.HasField("shown_revision") else None,
    )
    return command, access
