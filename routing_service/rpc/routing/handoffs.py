"""SetActiveAgent, ClearActiveAgent, ResumeTask and CancelTask: who has the conversation next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from agent_routing.v1 import clear_scope_pb2, handoff_pb2
from agent_routing.v1 import routing_service_pb2 as pb
from routing_service.auth import rights
from routing_service.auth.caller import ANY_AGENT, Caller
from routing_service.core import commands as cmd
from routing_service.core import events as ev
from routing_service.core.access import Access
from routing_service.core.events import Profile
from routing_service.core.identifiers import MESSAGE_BYTES_MAX, REASON_BYTES_MAX
from routing_service.core.refusals import HandoffRefused
from routing_service.core.registry import Registry
from routing_service.core.strand_fold import find_strand
from routing_service.core.vocabulary import ClearScope, Initiator, TurnFate
from routing_service.ids import new_uuid7
from routing_service.rpc import proto_mapping as pm
from routing_service.rpc.agent_cards import CardCache
from routing_service.rpc.call_outcome import describe, describe_refusal, identify
from routing_service.rpc.dispatch_bytes import dispatch_to_store, whole_answer
from routing_service.rpc.request_checks import FieldChecks, parse
from routing_service.rpc.request_fingerprints import Fingerprint
from routing_service.rpc.rpc_method import Methods, RpcAnswer
from routing_service.rpc.wire_format import tag_of
from routing_service.sessions.calls import Answer, Call, Made
from routing_service.sessions.command_handler import CommandHandler
from routing_service.storage.store import SessionKey
from routing_service.telemetry.call_record import CallRecord

SET_ACTIVE_FINGERPRINT: Final = Fingerprint(
    (
        "agent_id",
        "turn_request_id",
        "initiator",
        "from_agent_id",
        "reason",
        "context",
        "message",
        "mode",
        "suggestion_id",
        "task_id",
        "open_turn",
    ),
    uuids=frozenset({"turn_request_id", "suggestion_id", "task_id"}),
)
CLEAR_FINGERPRINT: Final = Fingerprint(
    ("scope", "reason", "task_id", "open_turn"), uuids=frozenset({"task_id"})
)
RESUME_FINGERPRINT: Final = Fingerprint(
    ("task_id", "decision", "comment"), uuids=frozenset({"task_id"})
)
CANCEL_FINGERPRINT: Final = Fingerprint(("task_id", "reason"), uuids=frozenset({"task_id"}))

_SET_ACTIVE_DISPATCH: Final = tag_of(pb.SetActiveAgentResponse, "dispatch")
_RESUME_DISPATCH: Final = tag_of(pb.ResumeTaskResponse, "dispatch")


class HandoffCalls:
    """The RPCs that move a conversation or a paused task."""

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
        return {
            "SetActiveAgent": self.set_active_agent,
            "ClearActiveAgent": self.clear_active_agent,
            "ResumeTask": self.resume_task,
            "CancelTask": self.cancel_task,
        }

    async def set_active_agent(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """Check a handoff and carry it out."""
        request = parse(pb.SetActiveAgentRequest, data)
        command, access = _set_active_in(request, self._handler.registry, caller, self._new_id)
        session_id = request.session_id or await self._handler.reads.session_of_task(
            caller.tenant, command.task_id, access
        )
        call = Call(
            key=SessionKey(caller.tenant, session_id),
            method="SetActiveAgent",
            request_id=command.request_id,
            fingerprint=SET_ACTIVE_FINGERPRINT.of(request, dict(request.ListFields())),
            access=access,
            subject=caller.subject,
            trace_id=record.trace_id,
            expected_revision=pm.expected_revision(request),
            dry_run=request.validate_only,
        )
        identify(record, call)
        try:
            handled = await self._handler.handle(call, command, self._set_active_out)
        except HandoffRefused as refused:
            if not request.validate_only:
                raise
            describe_refusal(record, refused)
            return RpcAnswer(_refused_out(call, refused))
        describe(record, handled, self._handler.registry)
        body = whole_answer(_SET_ACTIVE_DISPATCH, handled, record, caller)
        return RpcAnswer(body, handled.replayed)

    def _set_active_out(self, made: Made) -> Answer:
        decision = made.decided.decision
        cards = self._cards.of(made.registry)
        locale = pm.locale_of(made.decided.state)
        response = pb.SetActiveAgentResponse(
            session_id=made.call.key.session_id,
            task_id=decision.task_id,
            request_id=made.call.request_id,
            revision=made.revision,
            agent=cards.card(decision.agent_id, locale),
            verdicts=pm.verdicts_out(decision.verdicts),
            moved_turn=pm.moved_turn_out(decision.moved, cards, locale),
        )
        if decision.handoff is not None:
            response.handoff.CopyFrom(pm.handoff_out(decision.handoff, cards, locale))
        if decision.dispatch is not None:
            response.dispatch.CopyFrom(dispatch_to_store(made, cards, locale))
        return Answer(response.SerializeToString())

    async def clear_active_agent(
        self, caller: Caller, data: bytes, record: CallRecord
    ) -> RpcAnswer:
        """Give the conversation back to the home agent."""
        request = parse(pb.ClearActiveAgentRequest, data)
        checks = FieldChecks()
        task_id = checks.uuid("task_id", request.task_id)
        checks.session("session_id", request.session_id, required=not task_id)
        checks.user("user_id", request.user_id)
        request_id = checks.uuid("request_id", request.request_id) or self._new_id()
        checks.word("scope", request.scope, pm.CLEAR_SCOPES, "CLEAR_SCOPE_ACTIVE_AGENT or _SESSION")
        checks.text("reason", request.reason, REASON_BYTES_MAX)
        checks.revision("expected_revision", request.expected_revision)
        _check_open_turn(checks, request)
        checks.done()
        access = rights.on_session(caller, "ClearActiveAgent", request.user_id)
        scope = pm.CLEAR_SCOPES[clear_scope_pb2.ClearScope.ValueType(request.scope)]
        command = cmd.ClearActiveAgent(
            request_id=request_id,
            scope=scope,
            reason=request.reason,
            speaks_for=rights.check_clear(caller, access, self._handler.registry, scope),
            subject=caller.subject,
            task_id=task_id,
            initiator=rights.who_clears(access),
            open_turn=pm.TURN_FATES[request.open_turn],
            child_seed=self._new_id(),
        )
        session_id = request.session_id or await self._handler.reads.session_of_task(
            caller.tenant, task_id, access
        )
        call = Call(
            key=SessionKey(caller.tenant, session_id),
            method="ClearActiveAgent",
            request_id=request_id,
            fingerprint=CLEAR_FINGERPRINT.of(request, dict(request.ListFields())),
            access=access,
            subject=caller.subject,
            trace_id=record.trace_id,
            expected_revision=pm.expected_revision(request),
            dry_run=request.validate_only,
        )
        identify(record, call)
        handled = await self._handler.handle(call, command, self._clear_out)
        describe(record, handled, self._handler.registry)
        return RpcAnswer(handled.answer.stored, handled.replayed)

    def _clear_out(self, made: Made) -> Answer:
        decision = made.decided.decision
        state = made.decided.state
        cards = self._cards.of(made.registry)
        locale = pm.locale_of(state)
        previous = decision.previous_agent
        response = pb.ClearActiveAgentResponse(
            session_id=made.call.key.session_id,
            task_id=decision.task_id,
            request_id=made.call.request_id,
            revision=made.revision,
            previous_agent=cards.card(previous, locale) if previous else None,
            agent=cards.card(decision.agent_id, locale),
            moved_turn=pm.moved_turn_out(decision.moved, cards, locale),
        )
        return Answer(response.SerializeToString())

    async def resume_task(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """Take a person's decision about a paused task."""
        request = parse(pb.ResumeTaskRequest, data)
        checks = FieldChecks()
        checks.session("session_id", request.session_id)
        checks.user("user_id", request.user_id)
        task_id = checks.uuid("task_id", request.task_id, required=True)
        request_id = checks.uuid("request_id", request.request_id, required=True)
        decisions = {number: decision for decision, number in pm.DECISIONS.items()}
        checks.word("decision", request.decision, decisions, "DECISION_APPROVE or DECISION_REJECT")
        checks.text("comment", request.comment, MESSAGE_BYTES_MAX)
        checks.done()
        access = rights.to_decide(caller, request.user_id)
        session_id = request.session_id or await self._handler.reads.session_of_task(
            caller.tenant, task_id, access
        )
        command = cmd.ResumeTask(
            request_id=request_id,
            task_id=task_id,
            decision=decisions[request.decision],
            child_seed=self._new_id(),
            comment=request.comment,
            decider=rights.decider_of(caller, access.user_id),
        )
        call = Call(
            key=SessionKey(caller.tenant, session_id),
            method="ResumeTask",
            request_id=request_id,
            fingerprint=RESUME_FINGERPRINT.of(request, dict(request.ListFields())),
            access=access,
            subject=caller.subject,
            trace_id=record.trace_id,
            deciding=command,
            dry_run=request.validate_only,
        )
        identify(record, call)
        handled = await self._handler.handle(call, command, self._resume_out)
        describe(record, handled, self._handler.registry)
        if not rights.may_see_resumed(caller, request.user_id):
            response = pb.ResumeTaskResponse.FromString(handled.answer.stored)
            response.ClearField("dispatch")
            return RpcAnswer(response.SerializeToString(), handled.replayed)
        return RpcAnswer(whole_answer(_RESUME_DISPATCH, handled, record, caller), handled.replayed)

    def _resume_out(self, made: Made) -> Answer:
        cards = self._cards.of(made.registry)
        decision, state = made.decided.decision, made.decided.state
        decisions, needed = 1, 1
        for event in decision.events:
            if isinstance(event, ev.ApprovalDecided):
                decisions, needed = event.decisions, event.needs
        if decision.is_vote:
            strand = find_strand(state, decision.task_id)
            approval = strand.approval if strand else state.approval
            if approval is not None:
                decisions, needed = len(approval.voters), approval.needs
        response = pb.ResumeTaskResponse(
            session_id=made.call.key.session_id,
            task_id=decision.task_id,
            request_id=made.call.request_id,
            revision=made.revision,
            decisions=decisions,
            decisions_needed=needed,
        )
        if decision.dispatch is not None:
            response.dispatch.CopyFrom(dispatch_to_store(made, cards, pm.locale_of(state)))
        return Answer(response.SerializeToString())

    async def cancel_task(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """Cancel an open task, which its id alone names."""
        request = parse(pb.CancelTaskRequest, data)
        checks = FieldChecks()
        checks.session("session_id", request.session_id)
        checks.user("user_id", request.user_id)
        task_id = checks.uuid("task_id", request.task_id, required=True)
        request_id = checks.uuid("request_id", request.request_id) or self._new_id()
        checks.text("reason", request.reason, REASON_BYTES_MAX)
        checks.revision("expected_revision", request.expected_revision)
        checks.done()
        access = rights.on_session(caller, "CancelTask", request.user_id)
        session_id = request.session_id or await self._handler.reads.session_of_task(
            caller.tenant, task_id, access
        )
        command = cmd.CancelTask(
            request_id=request_id,
            task_id=task_id,
            reason=request.reason,
            speaks_for=rights.check_clear(
                caller, access, self._handler.registry, ClearScope.SESSION
            ),
            subject=caller.subject,
        )
        call = Call(
            key=SessionKey(caller.tenant, session_id),
            method="CancelTask",
            request_id=request_id,
            fingerprint=CANCEL_FINGERPRINT.of(request, dict(request.ListFields())),
            access=access,
            subject=caller.subject,
            trace_id=record.trace_id,
            expected_revision=pm.expected_revision(request),
            dry_run=request.validate_only,
        )
        identify(record, call)
        handled = await self._handler.handle(call, command, self._cancel_out)
        describe(record, handled, self._handler.registry)
        return RpcAnswer(handled.answer.stored, handled.replayed)

    def _cancel_out(self, made: Made) -> Answer:
        decision = made.decided.decision
        cards = self._cards.of(made.registry)
        locale = pm.locale_of(made.decided.state)
        previous = decision.previous_agent
        response = pb.CancelTaskResponse(
            session_id=made.call.key.session_id,
            task_id=decision.task_id,
            request_id=made.call.request_id,
            revision=made.revision,
            previous_agent=cards.card(previous, locale) if previous else None,
            agent=cards.card(decision.agent_id, locale),
        )
        return Answer(response.SerializeToString())


def _refused_out(call: Call, refused: HandoffRefused) -> bytes:
    """Return the answer to a dry run that the rules refuse: the verdicts, and no error."""
    response = pb.SetActiveAgentResponse(
        session_id=call.key.session_id,
        request_id=call.request_id,
        revision=refused.revision,
        verdicts=pm.verdicts_out(refused.verdicts),
    )
    return response.SerializeToString()


def _check_open_turn(
    checks: FieldChecks, request: pb.SetActiveAgentRequest | pb.ClearActiveAgentRequest
) -> None:
    names = "OPEN_TURN_TAKE_ALONG, _LEAVE or _ABANDON"
    checks.word("open_turn", request.open_turn, pm.TURN_FATES, names)
    if isinstance(request, pb.ClearActiveAgentRequest):
        takes_all = request.scope == clear_scope_pb2.CLEAR_SCOPE_SESSION
        if takes_all and pm.TURN_FATES.get(request.open_turn) not in (None, TurnFate.ABANDON):
            checks.refuse(
                "open_turn", "is for CLEAR_SCOPE_ACTIVE_AGENT; SESSION abandons all turns"
            )


def _set_active_in(
    request: pb.SetActiveAgentRequest,
    registry: Registry,
    caller: Caller,
    new_id: Callable[[], str],
) -> tuple[cmd.SetActiveAgent, Access]:
    """Check a handoff. Return its command and the access that its caller has.

    Raises INVALID_FIELD, OWNER_MISMATCH, SCOPE_MISSING.
    """
    checks = FieldChecks()
    task_id = checks.uuid("task_id", request.task_id)
    checks.session("session_id", request.session_id, required=not task_id)
    checks.user("user_id", request.user_id)
    checks.agent("agent_id", request.agent_id, registry, required=True)
    request_id = checks.uuid("request_id", request.request_id) or new_id()
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
    checks.revision("expected_revision", request.expected_revision)
    _check_open_turn(checks, request)
    if request.open_turn and turn_request_id:
        checks.refuse("open_turn", "is for a handoff outside a turn; leave turn_request_id out")
    if request.initiator == handoff_pb2.INITIATOR_USER:
        for field in ("context", "message"):
            if request.HasField("context") if field == "context" else request.message:
                checks.refuse(
                    field, "is of agents and operators; a user's own words are the reason"
                )
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
        # Accepting a suggestion may open a task and a turn.
        new_task_id=new_id() if suggestion_id else "",
        child_seed=new_id(),
        subject=caller.subject,
        task_id=task_id,
        open_turn=pm.TURN_FATES[request.open_turn],
    )
    return command, access


def _set_active_access(
    request: pb.SetActiveAgentRequest, registry: Registry, caller: Caller
) -> Access:
    """Return the access with which a handoff is asked for, and fill in an omitted from_agent_id.

    The field is filled in before the fingerprint is taken, so that another runtime cannot get the
    answer by repeating the request. Raises OWNER_MISMATCH, SCOPE_MISSING, INVALID_FIELD.
    """
    initiator = pm.CALLERS_INITIATORS[request.initiator]
    if caller.signed_in and request.suggestion_id and initiator is None:
        # Only the user can accept a suggestion.
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
