"""RoutingService, one short method per RPC: check, map, call, map back.

Owns: which fields a request's repeat is compared by, and what each answer holds. Must not know:
stores, status codes. Rule: bytes in, bytes out; every RPC of the contract is here or refused with a
clear word.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any, Final

import msgspec
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from google.rpc import status_pb2

from agent_routing.v1 import (
    clear_scope_pb2,
    dispatch_pb2,
    routing_service_pb2,
    task_pb2,
)
from routing_service.auth import rights
from routing_service.auth.caller import ANY_AGENT, Caller
from routing_service.core import commands as cmd
from routing_service.core.access import Access
from routing_service.core.decide import Decided
from routing_service.core.errors import (
    RoutingError,
    invalid_field,
    session_erased,
    unknown_agent,
)
from routing_service.core.events import Item, Profile
from routing_service.core.handoff_rules import agent_is_reachable
from routing_service.core.history import TurnRecord
from routing_service.core.refusals import HandoffRefused
from routing_service.core.registry import Agent, Registry
from routing_service.core.session import OpenTurn, Task
from routing_service.core.vocabulary import Initiator, TaskStatus
from routing_service.ids import derived_session_id, new_uuid7
from routing_service.rpc import proto_mapping as pm
from routing_service.rpc.event_mapping import ChangeMapper
from routing_service.rpc.request_checks import (
    HEARTBEAT_S_DEFAULT,
    LOCK_TIMEOUT_S_MAX,
    MESSAGE_BYTES_MAX,
    PAGE_SIZE_MAX,
    REASON_BYTES_MAX,
    TEXT_BYTES_MAX,
    FieldChecks,
    parse,
)
from routing_service.sessions.calls import Answer, Call, Handled, Made, SessionView
from routing_service.sessions.command_handler import CommandHandler
from routing_service.sessions.event_feed import EventFeed
from routing_service.storage.event_codec import ERASE_USER
from routing_service.storage.store import TASKS_START, SessionKey, TaskCursor
from routing_service.telemetry.call_record import CallRecord
from routing_service.texts.agent_instructions import InstructionWriter, handoff_targets
from routing_service.texts.replies import render_reply

TURNS_PAGE_DEFAULT: Final = 50
TASKS_PAGE_DEFAULT: Final = 100

PAGE_BYTES_MAX: Final = 1024 * 1024
"""A page stays well below the 4 MiB that clients accept by default."""

HISTORY_TURNS_MIN: Final = -1
HISTORY_TURNS_MAX: Final = 100

# What makes a repeat the same request, beside its ids. Whatever else a request has says how to
# answer (history_turns) or under which condition (expected_revision), not what is asked.
ROUTE_FINGERPRINT: Final = (
    "task_id",
    "text",
    "items",
    "locale",
    "channel",
    "entitlements",
    "metadata",
    "task_expire_time",
    "quick_reply_id",
    "literal_text",
)
SET_ACTIVE_FINGERPRINT: Final = (
    "agent_id",
    "turn_request_id",
    "initiator",
    "from_agent_id",
    "reason",
    "context",
    "message",
    "mode",
    "suggestion_id",
)
CLEAR_FINGERPRINT: Final = ("scope", "reason")
COMPLETE_FINGERPRINT: Final = (
    "text",
    "items",
    "steps",
    "parse_markers",
    "proceed",
    "follow_up",
    "complete",
    "handoff",
    "approval_needed",
    "failure",
)
RESUME_FINGERPRINT: Final = ("task_id", "decision", "comment")
_FINGERPRINT_UUIDS: Final = frozenset(
    {"task_id", "turn_request_id", "quick_reply_id", "suggestion_id"}
)
_FINGERPRINT_SETS: Final = frozenset({"entitlements"})
_FINGERPRINT_BYTES: Final = 16

_SHAPES_MAX: Final = 512
"""Combinations of fields that are remembered; callers have a handful, and could have thousands."""

_SHOWN: Final = attrgetter("shown")


_WORDS_ALONE: Final = frozenset(
    routing_service_pb2.RouteRequest.DESCRIPTOR.fields_by_name[name]
    for name in ("session_id", "user_id", "request_id", "text", "literal_text", "validate_only")
)
_ANSWER_ITEMS: Final = routing_service_pb2.CompleteTurnRequest.DESCRIPTOR.fields_by_name["items"]
_ANSWER_STEPS: Final = routing_service_pb2.CompleteTurnRequest.DESCRIPTOR.fields_by_name["steps"]

Present = Mapping[FieldDescriptor, Any]
"""The fields that a request has, as ListFields gives them, with their values."""


class Answered(msgspec.Struct, frozen=True):
    """An answer as it goes on the wire."""

    body: bytes
    replayed: bool = False


class RoutingServicer:
    """The RPCs of agent_routing.v1.RoutingService."""

    def __init__(
        self, handler: CommandHandler, feed: EventFeed, clock_us: Callable[[], int]
    ) -> None:
        """Answer from one handler. clock_us: microseconds since 1970."""
        self._handler = handler
        self._feed = feed
        self._changes = ChangeMapper()
        self._clock_us = clock_us
        self._cards = pm.AgentCards(handler.registry)

    def _cards_now(self) -> pm.AgentCards:
        """Return the cards of the registry in force."""
        return self._cards_of(self._handler.registry)

    def _cards_of(self, registry: Registry) -> pm.AgentCards:
        if self._cards.registry is not registry:
            self._cards = pm.AgentCards(registry)
        return self._cards

    def route(self, caller: Caller, data: bytes, record: CallRecord) -> Awaitable[Answered]:
        """Take a user's message."""
        return self._route(caller, parse(routing_service_pb2.RouteRequest, data), record)

    async def _route(
        self, caller: Caller, request: routing_service_pb2.RouteRequest, record: CallRecord
    ) -> Answered:
        present = dict(request.ListFields())
        command, access = _route_in(request, present, caller)
        session_id, begins = request.session_id, False
        if not session_id:
            session_id, begins = await self._session_for(caller, request, command, access)
        call = Call(
            key=SessionKey(caller.tenant, session_id),
            method="Route",
            request_id=command.request_id,
            fingerprint=_fingerprint(request, present, ROUTE_FINGERPRINT),
            access=access,
            subject=caller.subject,
            expected_revision=_expected_revision(request),
            history_turns=request.history_turns,
            dry_run=request.validate_only,
            explains_topic=request.validate_only or request.explain_topic,
            begins=begins,
        )
        _identify(record, call)
        handled = await self._handler.handle(call, command, self._route_out)
        _describe(record, handled, self._cards.registry)
        return Answered(_whole(_ROUTE_DISPATCH_TAG, handled, record), handled.replayed)

    async def route_on_stream(
        self,
        caller: Caller,
        message: routing_service_pb2.RouteStreamRequest | bytes,
        record: CallRecord,
    ) -> Answered:
        """Take a user's message of a stream; its request_id tells which answer is whose."""
        if isinstance(message, bytes):
            # They are none, or it would have been read; this says why.
            message = parse(routing_service_pb2.RouteStreamRequest, message)
        request = message.route
        record.request_id, record.session_id = request.request_id, request.session_id
        if not request.request_id:
            raise invalid_field(
                "route.request_id", "is required on a stream; send a UUID of your own"
            )
        answered = await self._route(caller, request, record)
        body = (
            _framed(_STREAM_REQUEST_ID_TAG, record.request_id.encode())
            + _framed(_STREAM_SESSION_ID_TAG, record.session_id.encode())
            + _framed(_STREAM_ROUTE_TAG, answered.body)
        )
        return Answered(body, answered.replayed)

    async def watch_session(
        self, caller: Caller, data: bytes, record: CallRecord
    ) -> AsyncGenerator[tuple[bytes, dict[str, str]]]:
        """Send a session's changes after a revision, then as they happen."""
        request = parse(routing_service_pb2.WatchSessionRequest, data)
        checks = FieldChecks()
        heartbeat_s = HEARTBEAT_S_DEFAULT
        if request.HasField("heartbeat_interval"):
            heartbeat_s = checks.heartbeat("heartbeat_interval", request.heartbeat_interval)
        key, access = self._reader(caller, request, record, checks)
        try:
            view = await self._handler.read(key, access)
        except RoutingError:
            # Of a session that was erased by another replica nothing stays here either.
            self._changes.forget(key)
            raise
        head = view.stored.revision
        after = request.after_revision if request.HasField("after_revision") else head
        if not 0 <= after <= head:
            raise invalid_field(
                "after_revision",
                f'is {after}, and session "{key.session_id}" is at revision {head}; give a '
                "revision that you have seen, or leave it out",
            )
        place = {"session_id": key.session_id, "revision": str(after)}
        yield _heartbeat(head), place
        async for changes in self._feed.session_changes(key, after, heartbeat_s):
            for change in changes:
                after = change.revision
                body = self._changes.change_bytes(key, change, self._cards_now())
                place = {"session_id": key.session_id, "revision": str(after)}
                if body:
                    yield _framed(_WATCH_CHANGE_TAG, body), place
                if change.method == ERASE_USER:
                    raise session_erased(key.session_id)
            if not changes:
                yield _heartbeat(after), place

    async def _session_for(
        self,
        caller: Caller,
        request: routing_service_pb2.RouteRequest,
        command: cmd.RouteMessage,
        access: Access,
    ) -> tuple[str, bool]:
        """Find the session of a message that names none, and say whether it begins here."""
        if command.task_id:
            found = await self._handler.reads.session_of_task(
                caller.tenant, command.task_id, access
            )
            return found, False
        if request.request_id:
            # A repeat of the call has to find the same one.
            return derived_session_id(caller.tenant, access.user_id, command.request_id), False
        return new_uuid7(), True

    def _route_out(self, made: Made) -> Answer:
        decision = made.decided.decision
        state = made.decided.state
        cards = self._cards_of(made.registry)
        locale = pm.locale_of(state)
        response = routing_service_pb2.RouteResponse(
            session_id=made.call.key.session_id,
            task_id=decision.task_id,
            request_id=made.call.request_id,
            revision=made.revision,
        )
        dispatch = b""
        if decision.dispatch is not None:
            dispatch = _dispatch_bytes(decision.dispatch, cards, locale)
            home_id = cards.registry.home_agent_id
            response.supervisor_bypassed = decision.dispatch.agent_id != home_id
        if decision.reply is not None:
            rendered = render_reply(decision.reply, cards.registry, locale, made.turns)
            # What answers no command has no name.
            response.reply.command = f"/{decision.reply.command}" if decision.reply.command else ""
            response.reply.text = rendered.text
            response.reply.locale = rendered.locale
        if decision.suggestion is not None:
            present = decision.dispatch.agent_id if decision.dispatch else ""
            response.suggestion.CopyFrom(
                pm.suggestion_out(decision.suggestion, present, cards, locale)
            )
        if made.call.explains_topic and decision.topic is not None:
            response.topic_trace.CopyFrom(pm.topic_trace_out(decision.topic))
        return _answer(response.SerializeToString(), _ROUTE_DISPATCH_TAG, dispatch)

    async def set_active_agent(self, caller: Caller, data: bytes, record: CallRecord) -> Answered:
        """Carry out a validated handoff."""
        request = parse(routing_service_pb2.SetActiveAgentRequest, data)
        command, access = _set_active_in(request, self._handler.registry, caller)
        call = Call(
            key=SessionKey(caller.tenant, request.session_id),
            method="SetActiveAgent",
            request_id=command.request_id,
            fingerprint=_fingerprint(request, dict(request.ListFields()), SET_ACTIVE_FINGERPRINT),
            access=access,
            subject=caller.subject,
            expected_revision=_expected_revision(request),
            dry_run=request.validate_only,
        )
        _identify(record, call)
        try:
            handled = await self._handler.handle(call, command, self._set_active_out)
        except HandoffRefused as refused:
            if not request.validate_only:
                raise
            return Answered(self._refused_out(call, refused))
        _describe(record, handled, self._handler.registry)
        body = _whole(_SET_ACTIVE_DISPATCH_TAG, handled, record)
        return Answered(body, handled.replayed)

    def _set_active_out(self, made: Made) -> Answer:
        decision = made.decided.decision
        cards = self._cards_of(made.registry)
        locale = pm.locale_of(made.decided.state)
        response = routing_service_pb2.SetActiveAgentResponse(
            session_id=made.call.key.session_id,
            task_id=decision.task_id,
            request_id=made.call.request_id,
            revision=made.revision,
            agent=cards.card(decision.agent_id, locale),
            verdicts=pm.verdicts_out(decision.verdicts),
        )
        if decision.handoff is not None:
            response.handoff.CopyFrom(pm.handoff_out(decision.handoff, cards, locale))
        if decision.dispatch is not None:
            response.dispatch.CopyFrom(_dispatch_out(made, cards, locale))
        return Answer(response.SerializeToString())

    def _refused_out(self, call: Call, refused: HandoffRefused) -> bytes:
        """Answer a trial that the rules refuse: its verdicts are what was asked for."""
        response = routing_service_pb2.SetActiveAgentResponse(
            session_id=call.key.session_id,
            request_id=call.request_id,
            revision=refused.revision,
            verdicts=pm.verdicts_out(refused.verdicts),
        )
        return response.SerializeToString()

    async def clear_active_agent(self, caller: Caller, data: bytes, record: CallRecord) -> Answered:
        """Give the conversation back to the home agent."""
        request = parse(routing_service_pb2.ClearActiveAgentRequest, data)
        checks = FieldChecks()
        checks.identifier("session_id", request.session_id, required=True)
        checks.user("user_id", request.user_id)
        request_id = checks.uuid("request_id", request.request_id) or new_uuid7()
        checks.word("scope", request.scope, pm.CLEAR_SCOPES, "CLEAR_SCOPE_ACTIVE_AGENT or _SESSION")
        checks.text("reason", request.reason, REASON_BYTES_MAX)
        _check_revision(checks, request)
        checks.done()
        access = rights.on_session(caller, "ClearActiveAgent", request.user_id)
        scope = pm.CLEAR_SCOPES[clear_scope_pb2.ClearScope.ValueType(request.scope)]
        command = cmd.ClearActiveAgent(
            request_id=request_id,
            scope=scope,
            reason=request.reason,
            speaks_for=rights.check_clear(caller, access, self._handler.registry, scope),
        )
        call = Call(
            key=SessionKey(caller.tenant, request.session_id),
            method="ClearActiveAgent",
            request_id=request_id,
            fingerprint=_fingerprint(request, dict(request.ListFields()), CLEAR_FINGERPRINT),
            access=access,
            subject=caller.subject,
            expected_revision=_expected_revision(request),
        )
        _identify(record, call)
        handled = await self._handler.handle(call, command, self._clear_out)
        _describe(record, handled, self._handler.registry)
        return Answered(handled.answer.stored, handled.replayed)

    def _clear_out(self, made: Made) -> Answer:
        decision = made.decided.decision
        state = made.decided.state
        cards = self._cards_of(made.registry)
        locale = pm.locale_of(state)
        previous = decision.previous_agent
        response = routing_service_pb2.ClearActiveAgentResponse(
            session_id=made.call.key.session_id,
            task_id=state.task.task_id if state.task else "",
            request_id=made.call.request_id,
            revision=made.revision,
            previous_agent=cards.card(previous, locale) if previous else None,
            agent=cards.card(decision.agent_id, locale),
        )
        return Answer(response.SerializeToString())

    async def complete_turn(self, caller: Caller, data: bytes, record: CallRecord) -> Answered:
        """Take an agent's answer."""
        request = parse(routing_service_pb2.CompleteTurnRequest, data)
        registry = self._handler.registry
        present = dict(request.ListFields())
        outcome = request.WhichOneof("outcome")
        command = _complete_in(request, present, outcome, registry)
        call = Call(
            key=SessionKey(caller.tenant, request.session_id),
            method="CompleteTurn",
            request_id=command.request_id,
            actor=command.agent_id,
            fingerprint=_fingerprint(request, present, COMPLETE_FINGERPRINT),
            access=rights.as_agent(caller, "CompleteTurn", request.user_id, command.agent_id),
            subject=caller.subject,
        )
        _identify(record, call)
        record.agent_id = command.agent_id
        record.outcome = outcome or ""
        handled = await self._handler.handle(call, command, self._complete_out)
        _describe(record, handled, registry)
        return Answered(_whole(_COMPLETE_NEXT_TAG, handled, record), handled.replayed)

    def _complete_out(self, made: Made) -> Answer:
        decision = made.decided.decision
        state = made.decided.state
        cards = self._cards_of(made.registry)
        locale = pm.locale_of(state)
        response = routing_service_pb2.CompleteTurnResponse(
            session_id=made.call.key.session_id,
            task_id=decision.task_id,
            request_id=made.call.request_id,
            revision=made.revision,
            outcome_status=pm.OUTCOME_STATUSES[decision.status],
            task_status=pm.TASK_STATUSES[made.task_status]
            if made.task_status
            else task_pb2.TASK_STATUS_UNSPECIFIED,
            text=decision.text,
            locked=state.active is not None and state.active.locked,
        )
        if decision.verdicts:
            response.verdicts.extend(pm.verdicts_out(decision.verdicts))
        body = response.SerializeToString()
        if state.active is not None:
            body += _framed(_COMPLETE_ACTIVE_TAG, cards.card_bytes(state.active_id, locale))
        dispatch = b""
        if decision.dispatch is not None:
            dispatch = _dispatch_bytes(decision.dispatch, cards, locale)
        return _answer(body, _COMPLETE_NEXT_TAG, dispatch)

    async def resume_task(self, caller: Caller, data: bytes, record: CallRecord) -> Answered:
        """Take a person's decision about a paused task."""
        request = parse(routing_service_pb2.ResumeTaskRequest, data)
        checks = FieldChecks()
        checks.identifier("session_id", request.session_id)
        checks.user("user_id", request.user_id)
        task_id = checks.uuid("task_id", request.task_id, required=True)
        request_id = checks.uuid("request_id", request.request_id, required=True)
        decisions = {number: decision for decision, number in pm.DECISIONS.items()}
        checks.word("decision", request.decision, decisions, "DECISION_APPROVE or DECISION_REJECT")
        checks.text("comment", request.comment, MESSAGE_BYTES_MAX)
        checks.done()
        access = rights.on_session(caller, "ResumeTask", request.user_id)
        session_id = request.session_id or await self._handler.reads.session_of_task(
            caller.tenant, task_id, access
        )
        call = Call(
            key=SessionKey(caller.tenant, session_id),
            method="ResumeTask",
            request_id=request_id,
            fingerprint=_fingerprint(request, dict(request.ListFields()), RESUME_FINGERPRINT),
            access=access,
            subject=caller.subject,
        )
        _identify(record, call)
        command = cmd.ResumeTask(
            request_id=request_id,
            task_id=task_id,
            decision=decisions[request.decision],
            child_seed=new_uuid7(),
            comment=request.comment,
        )
        handled = await self._handler.handle(call, command, self._resume_out)
        _describe(record, handled, self._handler.registry)
        return Answered(_whole(_RESUME_DISPATCH_TAG, handled, record), handled.replayed)

    def _resume_out(self, made: Made) -> Answer:
        cards = self._cards_of(made.registry)
        locale = pm.locale_of(made.decided.state)
        response = routing_service_pb2.ResumeTaskResponse(
            session_id=made.call.key.session_id,
            task_id=made.decided.decision.task_id,
            request_id=made.call.request_id,
            revision=made.revision,
            dispatch=_dispatch_out(made, cards, locale),
        )
        return Answer(response.SerializeToString())

    async def status(self, caller: Caller, data: bytes, record: CallRecord) -> Answered:
        """Tell how a session stands."""
        request = parse(routing_service_pb2.StatusRequest, data)
        key, access = self._reader(caller, request, record)
        view = await self._handler.read(key, access)
        state = view.effective
        record.revision = state.revision
        cards = self._cards_now()
        registry = cards.registry
        locale = pm.locale_of(state)
        next_id = await self._next_agent(view, key.tenant)
        active = state.active
        response = routing_service_pb2.StatusResponse(
            session_id=key.session_id,
            revision=state.revision,
            active_agent=cards.card(active.agent_id, locale) if active else None,
            next_agent=cards.card(next_id, locale),
            locked=active is not None and active.locked,
            return_stack=[pm.frame_out(frame, cards, locale) for frame in state.stack],
            registry_version=registry.version,
            locale=state.locale,
            channel=state.channel,
            owner=state.owner,
            create_time=pm.timestamp(state.create_us),
            update_time=pm.timestamp(state.update_us),
            turns_by_agent=state.turns_by_agent,
        )
        if active is not None and active.locked and active.lock_expire_us is not None:
            response.lock_expire_time.CopyFrom(pm.timestamp(active.lock_expire_us))
        if state.task is not None:
            metadata = await self._handler.tasks.metadata(key.tenant, state.task.task_id)
            response.task.CopyFrom(pm.task_out(state.task, metadata, key.session_id, state.owner))
        if state.paused is not None:
            paused = await self._handler.reads.pending_approval(key, state.paused)
            response.pending_approval.CopyFrom(
                routing_service_pb2.PendingApproval(
                    task_id=state.paused.task_id,
                    request_id=state.paused.request_id,
                    agent=cards.card(state.paused.holder, locale),
                    prompt=paused.prompt,
                    pause_time=pm.timestamp(paused.pause_us),
                )
            )
        if state.suggestion is not None:
            offer = state.suggestion
            plan = cmd.SuggestionPlan(offer.suggestion_id, offer.agent_id, offer.confidence)
            present = state.active_id or registry.home_agent_id
            response.suggestion.CopyFrom(pm.suggestion_out(plan, present, cards, locale))
        for turn in state.open_turns:
            if not _is_told(turn, access, registry):
                continue
            response.open_requests.append(await self._open_request(key, turn, cards, locale))
        return Answered(response.SerializeToString())

    async def _next_agent(self, view: SessionView, tenant: str) -> str:
        """Return who gets the next ordinary message."""
        registry = self._handler.registry
        if view.reachable(registry) and await self._handler.stickiness_enabled(tenant):
            return view.effective.active_id
        return registry.home_agent_id

    async def _open_request(
        self, key: SessionKey, turn: OpenTurn, cards: pm.AgentCards, locale: str
    ) -> dispatch_pb2.Dispatch:
        """Rebuild the dispatch that an open request came with, so that nobody has to keep it."""
        plan, message = await self._handler.reads.open_dispatch(key, turn)
        return pm.dispatch_out(
            plan,
            message.text if message else "",
            message.items if message else (),
            cards,
            locale,
        )

    async def list_tasks(self, caller: Caller, data: bytes, record: CallRecord) -> Answered:
        """List a session's tasks, oldest first."""
        request = parse(routing_service_pb2.ListTasksRequest, data)
        checks = FieldChecks()
        checks.number("page_size", request.page_size, 0, PAGE_SIZE_MAX)
        wanted = {
            status for status, number in pm.TASK_STATUSES.items() if number in request.statuses
        }
        for number in request.statuses:
            checks.word(
                "statuses", number, pm.TASK_STATUSES.values(), "a TaskStatus but UNSPECIFIED"
            )
        key, access = self._reader(caller, request, record, checks)
        after = _task_cursor(request.page_token)
        view = await self._handler.read(key, access)
        count = request.page_size or TASKS_PAGE_DEFAULT
        response = routing_service_pb2.ListTasksResponse()
        room_bytes = PAGE_BYTES_MAX
        while len(response.tasks) < count and room_bytes > 0:
            rows = await self._handler.reads.list_tasks(key, after, count)
            for row, metadata in rows:
                status = TaskStatus(row.status)
                after = row.cursor
                if wanted and status not in wanted:
                    continue
                task = Task(row.task_id, status, row.create_us, row.update_us, row.expire_us)
                # The row is written when its status changes; the state knows the latest message.
                if view.stored.task and view.stored.task.task_id == row.task_id:
                    task = view.stored.task
                made = pm.task_out(task, metadata, key.session_id, row.user_id)
                response.tasks.append(made)
                room_bytes -= made.ByteSize()
                if len(response.tasks) == count or room_bytes <= 0:
                    break
            if len(rows) < count:
                break
        if len(response.tasks) == count or room_bytes <= 0:
            response.next_page_token = _token(after.create_us, after.task_id)
        return Answered(response.SerializeToString())

    async def list_turns(self, caller: Caller, data: bytes, record: CallRecord) -> Answered:
        """List a session's history."""
        request = parse(routing_service_pb2.ListTurnsRequest, data)
        checks = FieldChecks()
        checks.agent("agent_id", request.agent_id, self._handler.registry)
        task_id = checks.uuid("task_id", request.task_id)
        checks.number("page_size", request.page_size, 0, PAGE_SIZE_MAX)
        checks.word(
            "order",
            request.order,
            routing_service_pb2.TurnOrder.values(),
            "TURN_ORDER_OLDEST_FIRST or _NEWEST_FIRST",
        )
        key, access = self._reader(caller, request, record, checks)
        place = _turn_cursor(request.page_token)
        registry = self._handler.registry
        agent_id = registry.resolve(request.agent_id) or request.agent_id
        rights.check_turns_of(access, registry, agent_id)
        await self._handler.read(key, access)
        sees_all = not agent_id or agent_id == registry.home_agent_id

        def wanted(turn: TurnRecord) -> bool:
            return (sees_all or turn.agent_id == agent_id) and (
                not task_id or turn.task_id == task_id
            )

        count = request.page_size or TURNS_PAGE_DEFAULT
        turns = self._handler.turns
        if request.order == routing_service_pb2.TURN_ORDER_NEWEST_FIRST:
            found = await turns.newest_first(key, place, count + 1, wanted)
        else:
            found = await turns.oldest_first(key, place or (0, -1), count + 1, wanted)
        return Answered(_turns_page(found, count).SerializeToString())

    async def list_agents(self, caller: Caller, data: bytes, record: CallRecord) -> Answered:
        """List the registry's agents."""
        request = parse(routing_service_pb2.ListAgentsRequest, data)
        checks = FieldChecks()
        checks.identifier("session_id", request.session_id)
        checks.user("user_id", request.user_id)
        checks.locale("locale", request.locale)
        registry = self._handler.registry
        checks.agent("from_agent_id", request.from_agent_id, registry)
        checks.done()
        access = rights.on_session(caller, "ListAgents", request.user_id)
        if request.include_instructions:
            rights.check_instructions(caller)
        cards = self._cards_now()
        agents: Iterable[Agent] = registry.agents.values()
        locale = request.locale
        if request.session_id:
            key = SessionKey(caller.tenant, request.session_id)
            record.tenant, record.session_id = key
            view = await self._handler.read(key, access)
            state = view.effective
            locale = pm.locale_of(state, request.locale)
            agents = [agent for agent in agents if agent_is_reachable(agent, state)]
        if request.from_agent_id:
            agents = _targets_of(registry, request.from_agent_id, agents)
        agents = list(agents)
        instructions: dict[str, str] = {}
        if request.include_instructions:
            # Hundreds of agents take a while; the other calls go on meanwhile.
            agent_ids = [agent.agent_id for agent in agents]
            instructions = await asyncio.to_thread(_instructions, registry, agent_ids, locale)
        response = routing_service_pb2.ListAgentsResponse(
            agents=[cards.card(agent.agent_id, locale) for agent in agents],
            home_agent_id=registry.home_agent_id,
            registry_version=registry.version,
            instructions=instructions,
            agent_id_by_alias={
                alias: agent.agent_id for agent in agents for alias in agent.aliases
            },
        )
        return Answered(response.SerializeToString())

    def _reader(
        self,
        caller: Caller,
        request: routing_service_pb2.StatusRequest
        | routing_service_pb2.ListTurnsRequest
        | routing_service_pb2.ListTasksRequest
        | routing_service_pb2.WatchSessionRequest,
        record: CallRecord,
        checks: FieldChecks | None = None,
    ) -> tuple[SessionKey, Access]:
        """Check what every read of a session has; return its key and as whom the caller reads."""
        checks = checks or FieldChecks()
        checks.identifier("session_id", request.session_id, required=True)
        checks.user("user_id", request.user_id)
        checks.done()
        record.tenant, record.session_id = caller.tenant, request.session_id
        record.user_id = request.user_id or caller.user
        access = rights.on_session(caller, record.method, request.user_id)
        return SessionKey(caller.tenant, request.session_id), access


def _is_told(turn: OpenTurn, access: Access, registry: Registry) -> bool:
    """Say whether a caller is shown an open request: a runtime sees its own agents' alone."""
    agents = access.agents
    return agents is None or turn.holder in agents or registry.home_agent_id in agents


def _route_in(
    request: routing_service_pb2.RouteRequest, present: Present, caller: Caller
) -> tuple[cmd.RouteMessage, Access]:
    """Check a message and return it as the core has it, and as whom its caller comes.

    What a request does not have needs no check, and most have ids and words alone.
    """
    checks = FieldChecks()
    text = request.text
    checks.identifier("session_id", request.session_id)
    checks.user("user_id", request.user_id)
    request_id = checks.uuid("request_id", request.request_id)
    checks.text("text", text, TEXT_BYTES_MAX)
    if not (text or request.items or request.quick_reply_id):
        checks.refuse("text", "is empty, and there are no items; send one or the other")
    task_id = locale = channel = quick_reply_id = ""
    items: tuple[Item, ...] = ()
    entitlements: tuple[str, ...] = ()
    metadata: dict[str, str] = {}
    expire_us = None
    if not present.keys() <= _WORDS_ALONE:
        task_id = checks.uuid("task_id", request.task_id)
        checks.items("items", request.items)
        checks.locale("locale", request.locale)
        checks.channel("channel", request.channel)
        entitlements = checks.entitlements("entitlements", request.entitlements)
        checks.metadata("metadata", request.metadata)
        checks.number("history_turns", request.history_turns, HISTORY_TURNS_MIN, HISTORY_TURNS_MAX)
        quick_reply_id = checks.uuid("quick_reply_id", request.quick_reply_id)
        if request.HasField("task_expire_time"):
            checks.timestamp("task_expire_time", request.task_expire_time)
            expire_us = pm.time_us(request.task_expire_time)
        _check_revision(checks, request)
        items, metadata = pm.items_in(request.items), dict(request.metadata)
        locale, channel = request.locale, request.channel
    checks.done()
    access = rights.as_speaker(caller, request.user_id)
    user_id = access.user_id
    command = cmd.RouteMessage(
        request_id=request_id or new_uuid7(),
        text=text,
        new_task_id=new_uuid7(),
        items=items,
        task_id=task_id,
        profile=Profile(
            user_id=user_id,
            locale=locale,
            channel=channel,
            entitlements=rights.entitlements_of(caller, user_id, entitlements),
        ),
        metadata=metadata,
        task_expire_us=expire_us,
        literal_text=request.literal_text,
        quick_reply_id=quick_reply_id,
    )
    return command, access


def _set_active_in(
    request: routing_service_pb2.SetActiveAgentRequest, registry: Registry, caller: Caller
) -> tuple[cmd.SetActiveAgent, Access]:
    checks = FieldChecks()
    checks.identifier("session_id", request.session_id, required=True)
    checks.user("user_id", request.user_id)
    checks.agent("agent_id", request.agent_id, registry, required=True)
    request_id = checks.uuid("request_id", request.request_id) or new_uuid7()
    turn_request_id = checks.uuid("turn_request_id", request.turn_request_id)
    suggestion_id = checks.uuid("suggestion_id", request.suggestion_id)
    checks.agent("from_agent_id", request.from_agent_id, registry)
    checks.text("reason", request.reason, REASON_BYTES_MAX)
    checks.text("message", request.message, MESSAGE_BYTES_MAX)
    checks.context("context", request.context)
    checks.word(
        "initiator", request.initiator, pm.CALLERS_INITIATORS, "SUPERVISOR, AGENT, USER or OPERATOR"
    )
    checks.word("mode", request.mode, pm.CALLERS_MODES, "TRANSFER or INTERLUDE")
    _check_revision(checks, request)
    checks.done()
    access = _set_active_access(request, registry, caller)
    entitlements: tuple[str, ...] = ()
    if access.must_be_owner:
        entitlements = rights.entitlements_of(caller, access.user_id, ())
    command = cmd.SetActiveAgent(
        request_id=request_id,
        agent_id=request.agent_id,
        turn_request_id=turn_request_id,
        initiator=pm.CALLERS_INITIATORS[request.initiator],
        from_agent_id=request.from_agent_id,
        reason=request.reason,
        context=pm.context_in(request.context) if request.HasField("context") else None,
        message=request.message,
        mode=pm.CALLERS_MODES[request.mode],
        profile=Profile(user_id=access.user_id, entitlements=entitlements),
        suggestion_id=suggestion_id,
        # What accepting it may have to open.
        new_task_id=new_uuid7() if suggestion_id else "",
        child_seed=new_uuid7() if suggestion_id else "",
    )
    return command, access


def _set_active_access(
    request: routing_service_pb2.SetActiveAgentRequest, registry: Registry, caller: Caller
) -> Access:
    """Return as whom a handoff is asked for. What the caller may leave out is filled in.

    Here rather than where it is decided, so that it is part of what a repeat is compared by: no
    other runtime gets an answer by a repeat.
    """
    initiator = pm.CALLERS_INITIATORS[request.initiator]
    if caller.signed_in and request.suggestion_id and initiator is None:
        # A suggestion is the user's to accept.
        initiator = Initiator.USER
    match initiator:
        case Initiator.USER:
            return rights.as_speaker(caller, request.user_id)
        case Initiator.OPERATOR:
            return rights.as_operator(caller, request.user_id)
        case _:
            named = rights.who_hands_over(caller, registry, initiator, request.from_agent_id)
            request.from_agent_id = named
            agent_id = registry.resolve(named) or named or ANY_AGENT
            return rights.as_agent(caller, "SetActiveAgent", request.user_id, agent_id)


def _complete_in(
    request: routing_service_pb2.CompleteTurnRequest,
    present: Present,
    outcome: str | None,
    registry: Registry,
) -> cmd.CompleteTurn:
    """Check an agent's answer and return it as the core has it. outcome: the name of its field."""
    checks = FieldChecks()
    checks.identifier("session_id", request.session_id, required=True)
    checks.user("user_id", request.user_id)
    request_id = checks.uuid("request_id", request.request_id, required=True)
    checks.agent("agent_id", request.agent_id, registry, required=True)
    checks.text("text", request.text, TEXT_BYTES_MAX)
    if _ANSWER_ITEMS in present:
        checks.items("items", request.items)
    if _ANSWER_STEPS in present:
        checks.steps("steps", request.steps)
    match outcome:
        case "proceed":
            pass
        case None:
            checks.refuse(
                "outcome",
                "is missing or not known here; set proceed, follow_up, complete, handoff, "
                "approval_needed or failure",
            )
        case "follow_up":
            if request.follow_up.HasField("timeout"):
                checks.duration(
                    "follow_up.timeout",
                    request.follow_up.timeout,
                    seconds_max=LOCK_TIMEOUT_S_MAX,
                    positive=True,
                )
        case "complete":
            checks.text("complete.summary", request.complete.summary, MESSAGE_BYTES_MAX)
            checks.text("complete.message", request.complete.message, MESSAGE_BYTES_MAX)
        case "handoff":
            _check_handoff(checks, request, registry)
        case "approval_needed":
            checks.text("approval_needed.prompt", request.approval_needed.prompt, MESSAGE_BYTES_MAX)
        case "failure":
            checks.text("failure.message", request.failure.message, MESSAGE_BYTES_MAX)
        case _:
            pass
    checks.done()
    return cmd.CompleteTurn(
        request_id=request_id,
        # An alias and the id it stands for are one caller.
        agent_id=registry.resolve(request.agent_id) or request.agent_id,
        outcome=pm.outcome_in(request, outcome),
        child_seed=new_uuid7(),
        text=request.text,
        items=pm.items_in(request.items) if _ANSWER_ITEMS in present else (),
        steps=pm.steps_in(request.steps) if _ANSWER_STEPS in present else (),
        parse_markers=request.parse_markers if request.HasField("parse_markers") else None,
    )


def _check_handoff(
    checks: FieldChecks, request: routing_service_pb2.CompleteTurnRequest, registry: Registry
) -> None:
    handoff = request.handoff
    checks.agent("handoff.agent_id", handoff.agent_id, registry, required=True)
    checks.text("handoff.reason", handoff.reason, REASON_BYTES_MAX)
    checks.text("handoff.message", handoff.message, MESSAGE_BYTES_MAX)
    checks.context("handoff.context", handoff.context)
    checks.word("handoff.mode", handoff.mode, pm.OUTCOME_MODES, "TRANSFER, INTERLUDE or CONSULT")


def _check_revision(
    checks: FieldChecks,
    request: routing_service_pb2.RouteRequest
    | routing_service_pb2.SetActiveAgentRequest
    | routing_service_pb2.ClearActiveAgentRequest,
) -> None:
    if request.HasField("expected_revision") and request.expected_revision < 0:
        checks.refuse("expected_revision", f"is {request.expected_revision}; use 0 or more")


def _expected_revision(
    request: routing_service_pb2.RouteRequest
    | routing_service_pb2.SetActiveAgentRequest
    | routing_service_pb2.ClearActiveAgentRequest,
) -> int | None:
    return request.expected_revision if request.HasField("expected_revision") else None


def _fingerprint(request: Message, present: Present, fields: tuple[str, ...]) -> bytes:
    """Digest the fields that make a repeat the same request, as protobuf writes them.

    Words and messages are put together here, as protobuf would: copying a request and clearing what
    does not count costs several times as much. What is rarer, protobuf writes itself. Never
    changes: fingerprints are stored, and a repeat may come after an upgrade.
    """
    data = b""
    for field, tag, is_uuid in _compared(fields, tuple(present)):
        value = present[field]
        if isinstance(value, str):
            data += _framed(tag, (value.lower() if is_uuid else value).encode())
        elif isinstance(value, Message):
            data += _framed(tag, value.SerializeToString(deterministic=True))
        else:
            data = _compared_bytes(request, fields)
            break
    if len(UnknownFieldSet(request)):
        data = _compared_bytes(request, fields)
    return hashlib.blake2b(data, digest_size=_FINGERPRINT_BYTES).digest()


@lru_cache(_SHAPES_MAX)
def _compared(
    fields: tuple[str, ...], present: tuple[FieldDescriptor, ...]
) -> tuple[tuple[FieldDescriptor, bytes, bool], ...]:
    """Return those of a request's fields that are compared, in the order in which they are written.

    With each goes how it begins where its length follows, and whether it is an id.
    """
    return tuple(
        (field, _tag(field.number), field.name in _FINGERPRINT_UUIDS)
        for field in sorted(present, key=attrgetter("number"))
        if field.name in fields
    )


def _compared_bytes(request: Message, fields: tuple[str, ...]) -> bytes:
    """Return a request as bytes without what is not compared."""
    compared = type(request)()
    compared.CopyFrom(request)
    cleared, uuids, sets = _comparison(fields, request.DESCRIPTOR)
    clear = compared.ClearField
    for name in cleared:
        clear(name)
    for name in uuids:
        if value := getattr(request, name):
            setattr(compared, name, value.lower())
    for name in sets:
        # Clients may send them in any order.
        if values := getattr(request, name):
            compared.ClearField(name)
            getattr(compared, name).extend(sorted(set(values)))
    return compared.SerializeToString(deterministic=True)


@cache
def _comparison(
    fields: tuple[str, ...], request: Descriptor
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the fields of a request that are not compared, and those compared as ids and sets."""
    return (
        tuple(field.name for field in request.fields if field.name not in fields),
        tuple(name for name in fields if name in _FINGERPRINT_UUIDS),
        tuple(name for name in fields if name in _FINGERPRINT_SETS),
    )


def _dispatch_out(made: Made, cards: pm.AgentCards, locale: str) -> dispatch_pb2.Dispatch:
    """Return a dispatch as it is stored: without the user's words, which _whole adds."""
    plan = made.decided.decision.dispatch
    assert plan is not None
    return pm.dispatch_out(plan, "", (), cards, locale)


def _dispatch_bytes(plan: cmd.DispatchPlan, cards: pm.AgentCards, locale: str) -> bytes:
    """Return the same as bytes. The agent's card, most of it, is serialised once for all."""
    if plan.handoff is not None or plan.resume is not None or plan.consult is not None:
        return pm.dispatch_out(plan, "", (), cards, locale).SerializeToString()
    made = dispatch_pb2.Dispatch(
        request_id=plan.request_id,
        task_id=plan.task_id,
        reason=pm.REASONS[plan.reason],
        reason_detail=plan.reason_detail,
        locked=plan.locked,
        previous_agent_id=plan.previous_agent,
    )
    return made.SerializeToString() + _framed(_AGENT_TAG, cards.card_bytes(plan.agent_id, locale))


def _answer(head: bytes, dispatch_tag: bytes, dispatch: bytes) -> Answer:
    """Return an answer whose last field is its dispatch, if it has one: joined as bytes."""
    if not dispatch:
        return Answer(head)
    return Answer(head + _framed(dispatch_tag, dispatch), head, dispatch)


def _whole(dispatch_tag: bytes, handled: Handled, record: CallRecord) -> bytes:
    """Return an answer with what its dispatch has and is not stored: words, history, trace.

    So the stored answer stays small, and each turn is serialised once however often it goes along.
    """
    answer, message, history = handled.answer, handled.message, handled.history
    more = b""
    if message is not None:
        if message.items or record.traceparent:
            words = dispatch_pb2.Dispatch(
                text=message.text,
                items=pm.items_out(message.items),
                traceparent=record.traceparent,
            )
            more = words.SerializeToString()
        elif message.text:
            more = _framed(_TEXT_TAG, message.text.encode())
    if history:
        shown = list(map(_SHOWN, history))
        while b"" in shown:  # Nearly always one: the turn before.
            place = shown.index(b"")
            shown[place] = _show(history[place])
        more += b"".join(shown)
    if not more:
        return answer.stored
    if answer.dispatch:
        return answer.head + _framed(dispatch_tag, answer.dispatch + more)
    return _with_more(answer.stored, dispatch_tag, more)


def _with_more(answer: bytes, tag: bytes, more: bytes) -> bytes:
    """Return a serialised message with more fields in one of its messages, named by its key.

    Into the message itself, and not behind the answer as a second one: the encoding says that
    readers merge the two ("Last One Wins"), but some do not (protobufjs, so gRPC's own loader in
    Node): they would keep the words and lose the agent.
    """
    place = 0
    while place < len(answer):
        begin = place
        key, place = _read_varint(answer, place)
        match key & 7:
            case 0:  # A number.
                _, place = _read_varint(answer, place)
            case 2:  # Bytes, or a message.
                after_key = place
                size, place = _read_varint(answer, place)
                end = place + size
                if answer[begin:after_key] == tag:
                    inner = answer[place:end] + more
                    return answer[:begin] + _framed(tag, inner) + answer[end:]
                place = end
            case 1:
                place += 8
            case _:
                place += 4
    return answer + _framed(tag, more)


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    """Return a number in groups of seven bits, and where it ends."""
    byte = data[place]
    if byte < 0x80:  # noqa: PLR2004 - the last group
        return byte, place + 1
    number, shift = byte & 0x7F, 7
    while True:
        place += 1
        byte = data[place]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the last group
            return number, place + 1
        shift += 7


def _show(record: TurnRecord) -> bytes:
    """Return a turn as an entry of Dispatch.history, and keep it with the record."""
    turn = pm.turn_out(record, with_steps=False)
    shown = _framed(_HISTORY_TAG, turn.SerializeToString())
    record.keep_shown(shown)
    return shown


def _tag(number: int) -> bytes:
    """Return the key of a field on the wire that has a length: its number, and that one follows."""
    return _varint(number << 3 | 2)


def _tag_of(message: type[Message], field: str) -> bytes:
    return _tag(message.DESCRIPTOR.fields_by_name[field].number)


def _framed(tag: bytes, body: bytes) -> bytes:
    size = len(body)
    if size < _SIZES_MADE:
        return tag + _SIZES[size] + body
    if size < 1 << 14:  # As _varint, which is slow: a dispatch with twenty turns.
        return tag + bytes((size & 0x7F | 0x80, size >> 7)) + body
    return tag + _varint(size) + body


def _varint(number: int) -> bytes:
    """Return a number in groups of seven bits, the lowest first."""
    groups = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


_SIZES_MADE: Final = 1 << 12
"""Up to here lengths are made beforehand: of all that is in an answer but its history."""
_SIZES: Final = tuple(map(_varint, range(_SIZES_MADE)))

_AGENT_TAG: Final = _tag_of(dispatch_pb2.Dispatch, "agent")
_TEXT_TAG: Final = _tag_of(dispatch_pb2.Dispatch, "text")
_HISTORY_TAG: Final = _tag_of(dispatch_pb2.Dispatch, "history")
_ROUTE_DISPATCH_TAG: Final = _tag_of(routing_service_pb2.RouteResponse, "dispatch")
_COMPLETE_ACTIVE_TAG: Final = _tag_of(routing_service_pb2.CompleteTurnResponse, "active_agent")
_SET_ACTIVE_DISPATCH_TAG: Final = _tag_of(routing_service_pb2.SetActiveAgentResponse, "dispatch")
_COMPLETE_NEXT_TAG: Final = _tag_of(routing_service_pb2.CompleteTurnResponse, "next")


_RESUME_DISPATCH_TAG: Final = _tag_of(routing_service_pb2.ResumeTaskResponse, "dispatch")
_STREAM_REQUEST_ID_TAG: Final = _tag_of(routing_service_pb2.RouteStreamResponse, "request_id")
_STREAM_SESSION_ID_TAG: Final = _tag_of(routing_service_pb2.RouteStreamResponse, "session_id")
_STREAM_ROUTE_TAG: Final = _tag_of(routing_service_pb2.RouteStreamResponse, "route")
_WATCH_CHANGE_TAG: Final = _tag_of(routing_service_pb2.WatchSessionResponse, "change")


def _heartbeat(revision: int) -> bytes:
    response = routing_service_pb2.WatchSessionResponse()
    response.heartbeat.revision = revision
    response.heartbeat.SetInParent()
    return response.SerializeToString()


def stream_error(request_id: str, session_id: str, status: status_pb2.Status) -> bytes:
    """Return the answer to a message of a stream that was refused."""
    response = routing_service_pb2.RouteStreamResponse(
        request_id=request_id, session_id=session_id, error=status
    )
    return response.SerializeToString()


def _turns_page(found: list[TurnRecord], count: int) -> routing_service_pb2.ListTurnsResponse:
    """Return a page of at most count turns, and fewer where they are large."""
    response = routing_service_pb2.ListTurnsResponse()
    total = 0
    for place, record in enumerate(found):
        turn = pm.turn_out(record)
        total += turn.ByteSize()
        if place == count or (place and total > PAGE_BYTES_MAX):
            last = found[place - 1]
            response.next_page_token = _token(*last.position)
            break
        response.turns.append(turn)
    return response


def _token(*parts: int | str) -> str:
    joined = ":".join(map(str, parts))
    return base64.urlsafe_b64encode(joined.encode()).decode().rstrip("=")


def _token_parts(token: str) -> list[str]:
    padded = token + "=" * (-len(token) % 4)
    return base64.b64decode(padded, altchars=b"-_", validate=True).decode("ascii").split(":")


def _turn_cursor(token: str) -> tuple[int, int] | None:
    if not token:
        return None
    try:
        revision, place = map(int, _token_parts(token))
    except (ValueError, binascii.Error) as error:
        raise _bad_token() from error
    return revision, place


def _task_cursor(token: str) -> TaskCursor:
    if not token:
        return TASKS_START
    try:
        create_us, task_id = _token_parts(token)
        return TaskCursor(int(create_us), task_id)
    except (ValueError, binascii.Error) as error:
        raise _bad_token() from error


def _bad_token() -> RoutingError:
    return invalid_field(
        "page_token", "was not made by this list; send the next_page_token as it came"
    )


def _targets_of(registry: Registry, from_agent_id: str, agents: Iterable[Agent]) -> list[Agent]:
    """Return the agents that one agent may hand over to."""
    source_id = registry.resolve(from_agent_id)
    source = registry.agent(source_id) if source_id else None
    if source is None:
        raise unknown_agent(from_agent_id, tuple(registry.agents))
    targets = {target.agent_id for target in handoff_targets(registry, source)}
    return [agent for agent in agents if agent.agent_id in targets]


def _instructions(registry: Registry, agent_ids: list[str], locale: str) -> dict[str, str]:
    """Return the text for the prompt of each agent."""
    writer = InstructionWriter(registry, locale)
    return {agent_id: writer.text(agent_id) for agent_id in agent_ids}


def _identify(record: CallRecord, call: Call) -> None:
    record.tenant, record.session_id = call.key
    record.request_id = call.request_id
    record.user_id = call.access.user_id


def _describe(record: CallRecord, handled: Handled, registry: Registry) -> None:
    """Fill in what a call decided."""
    record.revision = handled.revision
    record.replayed = handled.replayed
    decided: Decided | None = handled.decided
    if decided is None:
        return
    decision, dispatch = decided.decision, decided.decision.dispatch
    record.task_id = decision.task_id
    if decision.verdicts:
        record.refused_rules = tuple(v.rule for v in decision.verdicts if not v.allowed)
    if decision.reply is not None:
        record.command = decision.reply.command
    if record.method == "CompleteTurn":
        record.outcome_status = decision.status.value
    elif decision.agent_id:
        record.agent_id = decision.agent_id
        record.previous_agent_id = decision.previous_agent
    if decision.handoff is not None:
        record.initiator = decision.handoff.initiator.value
        record.previous_agent_id = decision.handoff.from_agent
    if dispatch is not None:
        record.reason = dispatch.reason.value
        record.agent_id = dispatch.agent_id
        record.previous_agent_id = dispatch.previous_agent
        record.supervisor_bypassed = dispatch.agent_id != registry.home_agent_id
    if decision.topic is not None and decision.topic.opinion is not None:
        record.topic_outcome = decision.topic.outcome.value
        record.topic_agent_id = decision.topic.agent_id
        record.topic_confidence = round(decision.topic.confidence, 4)
        record.topic_model = decision.topic.opinion.model
