"""CompleteTurn: an agent's answer and the outcome of its turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from agent_routing.v1 import routing_service_pb2 as pb
from agent_routing.v1 import task_pb2
from routing_service.auth import rights
from routing_service.auth.caller import Caller
from routing_service.core import commands as cmd
from routing_service.core.decide import view
from routing_service.core.identifiers import LEASE_TOKEN_BYTES_MAX, TEXT_BYTES_MAX
from routing_service.core.registry import Registry
from routing_service.ids import new_uuid7
from routing_service.rpc import proto_mapping as pm
from routing_service.rpc.agent_cards import CardCache
from routing_service.rpc.call_outcome import describe, identify
from routing_service.rpc.dispatch_bytes import answer_with, dispatch_bytes, whole_answer
from routing_service.rpc.outcomes import OUTCOMES, check_outcome, read_outcome
from routing_service.rpc.reply_mapping import reply_out
from routing_service.rpc.request_checks import FieldChecks, parse
from routing_service.rpc.request_fingerprints import Fingerprint, Present
from routing_service.rpc.rpc_method import Methods, RpcAnswer
from routing_service.rpc.wire_format import framed, tag_of
from routing_service.sessions.calls import Answer, Call, Made
from routing_service.sessions.command_handler import CommandHandler
from routing_service.storage.store import SessionKey
from routing_service.telemetry.call_record import CallRecord

COMPLETE_FINGERPRINT: Final = Fingerprint(("text", "items", "steps", "parse_markers", *OUTCOMES))

_ITEMS: Final = pb.CompleteTurnRequest.DESCRIPTOR.fields_by_name["items"]
_STEPS: Final = pb.CompleteTurnRequest.DESCRIPTOR.fields_by_name["steps"]
_LEASE: Final = pb.CompleteTurnRequest.DESCRIPTOR.fields_by_name["lease_token"]
_ACTIVE: Final = tag_of(pb.CompleteTurnResponse, "active_agent")
_NOTICE: Final = tag_of(pb.CompleteTurnResponse, "notice")
_NEXT: Final = tag_of(pb.CompleteTurnResponse, "next")


class CompleteTurnCalls:
    """The RPC that takes an agent's answer."""

    def __init__(
        self, handler: CommandHandler, cards: CardCache, new_id: Callable[[], str] = new_uuid7
    ) -> None:
        """Call one handler. new_id: makes the ids of what an answer starts."""
        self._handler = handler
        self._cards = cards
        self._new_id = new_id

    @property
    def methods(self) -> Methods:
        """This RPC by name."""
        return {"CompleteTurn": self.complete_turn}

    async def complete_turn(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """Take an agent's answer."""
        request = parse(pb.CompleteTurnRequest, data)
        registry = self._handler.registry
        present = dict(request.ListFields())
        outcome = request.WhichOneof("outcome")
        command = _complete_in(request, present, outcome, registry, self._new_id)
        if registry.people and command.agent_id in registry.people:
            # As a PersonsAnswer; asdict() would convert the outcome too.
            fields = {name: getattr(command, name) for name in command.__struct_fields__}
            command = cmd.PersonsAnswer(**fields, subject=caller.subject)
        call = Call(
            key=SessionKey(caller.tenant, request.session_id),
            method="CompleteTurn",
            request_id=command.request_id,
            actor=command.agent_id,
            fingerprint=COMPLETE_FINGERPRINT.of(request, present),
            access=rights.as_agent(caller, "CompleteTurn", request.user_id, command.agent_id),
            subject=caller.subject,
            trace_id=record.trace_id,
            lease_token=request.lease_token if _LEASE in present else "",
        )
        identify(record, call)
        record.agent_id = command.agent_id
        record.outcome = outcome or ""
        handled = await self._handler.handle(call, command, self._complete_out)
        describe(record, handled, registry)
        return RpcAnswer(whole_answer(_NEXT, handled, record, caller), handled.replayed)

    def _complete_out(self, made: Made) -> Answer:
        decision = made.decided.decision
        state = made.decided.state
        active = state.active
        if active is not None and active.lock_expire_us is not None:
            # As Status shows it: a lock may have expired while its agent was interrupted.
            active = view(state, made.registry, made.decided.now_us).active
        cards = self._cards.of(made.registry)
        locale = pm.locale_of(state)
        response = pb.CompleteTurnResponse(
            session_id=made.call.key.session_id,
            task_id=decision.task_id,
            request_id=made.call.request_id,
            revision=made.revision,
            outcome_status=pm.OUTCOME_STATUSES[decision.status],
            task_status=pm.TASK_STATUSES[made.task_status]
            if made.task_status
            else task_pb2.TASK_STATUS_UNSPECIFIED,
            text=decision.text,
            locked=active is not None and active.locked,
        )
        if decision.verdicts:
            response.verdicts.extend(pm.verdicts_out(decision.verdicts))
        body = response.SerializeToString()
        if active is not None:
            body += framed(_ACTIVE, cards.card_bytes(active.agent_id, locale))
        if decision.reply is not None:  # The task was parked; another one may have come forward.
            notice = reply_out(made, decision.reply, locale)
            body += framed(_NOTICE, notice.SerializeToString())
        dispatch = b""
        if decision.dispatch is not None:
            dispatch = dispatch_bytes(decision.dispatch, cards, locale)
        return answer_with(body, _NEXT, dispatch)


def _complete_in(
    request: pb.CompleteTurnRequest,
    present: Present,
    outcome: str | None,
    registry: Registry,
    new_id: Callable[[], str],
) -> cmd.CompleteTurn:
    """Check an agent's answer and return its command. outcome: the name of the outcome's field.

    Raises INVALID_FIELD.
    """
    checks = FieldChecks()
    checks.session("session_id", request.session_id, required=True)
    checks.user("user_id", request.user_id)
    request_id = checks.uuid("request_id", request.request_id, required=True)
    checks.agent("agent_id", request.agent_id, registry, required=True)
    checks.text("text", request.text, TEXT_BYTES_MAX)
    if _LEASE in present:
        checks.text("lease_token", request.lease_token, LEASE_TOKEN_BYTES_MAX)
    if _ITEMS in present:
        checks.items("items", request.items)
    if _STEPS in present:
        checks.steps("steps", request.steps)
    check_outcome(checks, request, outcome, registry)
    checks.done()
    return cmd.CompleteTurn(
        request_id=request_id,
        # An alias and the id that it stands for are the same caller.
        agent_id=registry.resolve(request.agent_id) or request.agent_id,
        outcome=read_outcome(request, outcome),
        child_seed=new_id(),
        text=request.text,
        items=pm.items_in(request.items) if _ITEMS in present else (),
        steps=pm.steps_in(request.steps) if _STEPS in present else (),
        parse_markers=request.parse_markers if request.HasField("parse_markers") else None,
    )
