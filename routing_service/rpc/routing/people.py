"""ListWaiting, ClaimTurn and ReleaseTurn: what people do with conversations that wait for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from agent_routing.v1 import routing_service_pb2 as pb
from routing_service.auth import rights
from routing_service.auth.caller import Caller
from routing_service.core import commands as cmd
from routing_service.core import events as ev
from routing_service.core.errors import Reason, RoutingError
from routing_service.core.identifiers import REASON_BYTES_MAX
from routing_service.ids import new_uuid7
from routing_service.rpc import proto_mapping as pm
from routing_service.rpc.agent_cards import CardCache
from routing_service.rpc.call_outcome import describe, identify
from routing_service.rpc.claim_mapping import claim_out
from routing_service.rpc.masked_answers import hide_texts
from routing_service.rpc.page_tokens import PAGE_BYTES_MAX, entry_in, entry_token
from routing_service.rpc.request_checks import FieldChecks, parse
from routing_service.rpc.request_fingerprints import Fingerprint
from routing_service.rpc.rpc_method import Methods, RpcAnswer
from routing_service.sessions.calls import Answer, Call, Made
from routing_service.sessions.command_handler import CommandHandler
from routing_service.sessions.inbox_turns import WaitingConversation
from routing_service.storage.store import SessionKey
from routing_service.telemetry.call_record import CallRecord

INBOX_PAGE_DEFAULT: Final = 50
INBOX_PAGE_MAX: Final = 100

SCANNED_MAX: Final = 1_000
"""Entries that one call looks at: a page may be short, and more may follow."""

CLAIM_FINGERPRINT: Final = Fingerprint(("agent_id", "claimant", "take_over", "reason"))
RELEASE_FINGERPRINT: Final = Fingerprint(("agent_id", "claimant"))


class PeopleCalls:
    """The RPCs of people who answer."""

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
            "ListWaiting": self.list_waiting,
            "ClaimTurn": self.claim_turn,
            "ReleaseTurn": self.release_turn,
        }

    async def list_waiting(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """List what waits in an agent's inbox."""
        request = parse(pb.ListWaitingRequest, data)
        registry = self._handler.registry
        checks = FieldChecks()
        checks.agent("agent_id", request.agent_id, registry, required=True)
        checks.number("page_size", request.page_size, 0, INBOX_PAGE_MAX)
        checks.done()
        agent_id = registry.resolve(request.agent_id) or request.agent_id
        rights.as_person(caller, "ListWaiting", "", agent_id)
        record.tenant, record.agent_id = caller.tenant, agent_id
        with_texts = rights.is_runtime_of(caller, agent_id)
        after = entry_in(request.page_token, agent_id)
        count = request.page_size or INBOX_PAGE_DEFAULT
        response = pb.ListWaitingResponse()
        scanned, room_bytes, is_last = 0, PAGE_BYTES_MAX, False
        while len(response.entries) < count and scanned < SCANNED_MAX and room_bytes > 0:
            found = await self._handler.inbox.waiting(caller.tenant, agent_id, after, count)
            for entry, waiting in found:
                if len(response.entries) == count or room_bytes <= 0:
                    break
                after = entry
                scanned += 1
                if waiting is not None:
                    made = self._entry_out(waiting, entry.place_us, with_texts=with_texts)
                    response.entries.append(made)
                    room_bytes -= made.ByteSize()
            else:
                is_last = len(found) < count
            if is_last:
                break
        if not is_last and after is not None:
            response.next_page_token = entry_token(after)
        return RpcAnswer(response.SerializeToString())

    def _entry_out(
        self, waiting: WaitingConversation, since_us: int, *, with_texts: bool
    ) -> pb.WaitingConversation:
        cards = self._cards.of(self._handler.registry)
        state = waiting.state
        locale = pm.locale_of(state)
        made = pb.WaitingConversation(
            session_id=waiting.key.session_id,
            user_id=state.owner,
            open_requests=[
                pm.dispatch_out(
                    plan,
                    message.text if message and with_texts else "",
                    message.items if message and with_texts else (),
                    cards,
                    locale,
                )
                for plan, message in waiting.requests
            ],
            dispatch_time=pm.timestamp(since_us),
            claim=claim_out(state, cards, locale) if waiting.is_with_person else None,
        )
        if not with_texts:
            for each in made.open_requests:
                hide_texts(each)
        return made

    async def claim_turn(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """Claim a conversation for the person who calls."""
        request = parse(pb.ClaimTurnRequest, data)
        checks = FieldChecks()
        checks.text("reason", request.reason, REASON_BYTES_MAX)
        request_id, agent_id = self._check(checks, caller, request)
        call = Call(
            key=SessionKey(caller.tenant, request.session_id),
            method="ClaimTurn",
            request_id=request_id,
            fingerprint=CLAIM_FINGERPRINT.of(request, dict(request.ListFields())),
            access=rights.as_person(caller, "ClaimTurn", request.user_id, agent_id),
            subject=caller.subject,
            trace_id=record.trace_id,
            expected_revision=pm.expected_revision(request),
        )
        command = cmd.ClaimTurn(
            request_id, agent_id, request.claimant, request.take_over, request.reason
        )
        identify(record, call)
        record.agent_id = agent_id
        handled = await self._handler.handle(call, command, self._claim_out)
        describe(record, handled, self._handler.registry)
        return RpcAnswer(handled.answer.stored, handled.replayed)

    def _claim_out(self, made: Made) -> Answer:
        decision, state = made.decided.decision, made.decided.state
        claimed = [event for event in decision.events if isinstance(event, ev.Claimed)]
        response = pb.ClaimTurnResponse(
            session_id=made.call.key.session_id,
            task_id=decision.task_id,
            request_id=made.call.request_id,
            revision=made.revision,
            claim=claim_out(state, self._cards.of(made.registry), pm.locale_of(state)),
        )
        if claimed and claimed[0].taken_from != claimed[0].claimant:
            response.taken_from = claimed[0].taken_from
        return Answer(response.SerializeToString())

    async def release_turn(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """Give a claim up."""
        request = parse(pb.ReleaseTurnRequest, data)
        request_id, agent_id = self._check(FieldChecks(), caller, request)
        call = Call(
            key=SessionKey(caller.tenant, request.session_id),
            method="ReleaseTurn",
            request_id=request_id,
            fingerprint=RELEASE_FINGERPRINT.of(request, dict(request.ListFields())),
            access=rights.as_person(caller, "ReleaseTurn", request.user_id, agent_id),
            subject=caller.subject,
            trace_id=record.trace_id,
            expected_revision=pm.expected_revision(request),
        )
        command = cmd.ReleaseTurn(
            request_id, agent_id, request.claimant, is_operator=rights.is_operator(caller)
        )
        identify(record, call)
        record.agent_id = agent_id
        handled = await self._handler.handle(call, command, self._release_out)
        describe(record, handled, self._handler.registry)
        return RpcAnswer(handled.answer.stored, handled.replayed)

    def _release_out(self, made: Made) -> Answer:
        decision = made.decided.decision
        response = pb.ReleaseTurnResponse(
            session_id=made.call.key.session_id,
            task_id=decision.task_id,
            request_id=made.call.request_id,
            revision=made.revision,
        )
        for event in decision.events:
            if isinstance(event, ev.ClaimReleased) and event.cause == "released":
                response.released_from = event.claimant
        return Answer(response.SerializeToString())

    def _check(
        self,
        checks: FieldChecks,
        caller: Caller,
        request: pb.ClaimTurnRequest | pb.ReleaseTurnRequest,
    ) -> tuple[str, str]:
        """Return the request's id and its agent's, and fill in the claimant.

        The claimant is filled in before the fingerprint is taken, so that another person cannot get
        the answer by repeating the request. checks: already has those of one call's own fields.
        Raises INVALID_FIELD, OWNER_MISMATCH.
        """
        registry = self._handler.registry
        checks.session("session_id", request.session_id, required=True)
        checks.user("user_id", request.user_id)
        checks.agent("agent_id", request.agent_id, registry, required=True)
        request_id = checks.uuid("request_id", request.request_id) or self._new_id()
        checks.revision("expected_revision", request.expected_revision)
        checks.user("claimant", request.claimant)
        if not (request.claimant or caller.signed_in):
            checks.refuse("claimant", "is required where callers do not sign in; name the person")
        checks.done()
        if caller.signed_in:
            if request.claimant not in ("", caller.subject):
                raise RoutingError(
                    Reason.OWNER_MISMATCH,
                    "claimant is not the credential's subject; leave it out",
                    metadata={"field": "claimant"},
                )
            request.claimant = caller.subject
        return request_id, registry.resolve(request.agent_id) or request.agent_id
