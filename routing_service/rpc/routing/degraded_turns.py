"""ReportDegraded: what clients decided alone while the service could not be reached."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Final

from agent_routing.v1 import routing_service_pb2 as pb
from routing_service.auth import rights
from routing_service.auth.caller import Caller
from routing_service.core import commands as cmd
from routing_service.core import events as ev
from routing_service.core.access import Access
from routing_service.core.errors import Reason, RoutingError
from routing_service.core.events import Profile
from routing_service.core.identifiers import TEXT_BYTES_MAX
from routing_service.core.registry import Registry
from routing_service.ids import derived_session_id
from routing_service.rpc import proto_mapping as pm
from routing_service.rpc.request_checks import FieldChecks, parse
from routing_service.rpc.request_fingerprints import Fingerprint
from routing_service.rpc.rpc_method import Methods, RpcAnswer
from routing_service.sessions.calls import Answer, Call, Made
from routing_service.sessions.command_handler import CommandHandler
from routing_service.storage.store import SessionKey
from routing_service.telemetry.call_record import CallRecord

TURNS_MAX: Final = 100
"""Of one report. Each is a change of its own; a client with more reports them in several calls."""

ATTEMPTS_MAX: Final = 5
"""Looks at a session that others write to at the same time, before its turn is a conflict."""

METHOD: Final = "ReportDegraded"

FINGERPRINT: Final = Fingerprint(
    ("agent_id", "text", "items", "agent_text", "agent_items", "decide_time")
)

_CONFLICTS: Final = frozenset(
    {
        Reason.REVISION_MISMATCH,
        Reason.REQUEST_ID_REUSED,
        Reason.SESSION_ERASED,
        Reason.OWNER_MISMATCH,
    }
)
"""What is wrong with one turn and not with the call."""


class DegradedTurnCalls:
    """The RPC that takes what clients decided alone."""

    def __init__(self, handler: CommandHandler) -> None:
        """Call one handler."""
        self._handler = handler

    @property
    def methods(self) -> Methods:
        """The RPC by name."""
        return {METHOD: self.report}

    async def report(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """Store the turns one by one, each in its session. Raises what any of them raises."""
        request = parse(pb.ReportDegradedRequest, data)
        record.tenant = caller.tenant
        _check(request, self._handler.registry)
        accesses = [rights.as_speaker(caller, turn.user_id) for turn in request.turns]
        response = pb.ReportDegradedResponse()
        for turn, access in zip(request.turns, accesses, strict=True):
            response.results.append(await self._store(caller, turn, access, record))
        return RpcAnswer(response.SerializeToString())

    async def _store(
        self, caller: Caller, turn: pb.DegradedTurn, access: Access, record: CallRecord
    ) -> pb.DegradedTurnResult:
        request_id = turn.request_id.lower()
        session_id = turn.session_id or derived_session_id(
            caller.tenant, access.user_id, request_id
        )
        key = SessionKey(caller.tenant, session_id)
        detail = ""
        for _ in range(ATTEMPTS_MAX):
            expected: int | None = None
            detail = ""
            if await self._handler.reads.routed_already(key, request_id):
                detail = "the service routed this message itself"
            elif turn.HasField("base_revision"):
                expected = await self._handler.reads.unmoved_head(key, turn.base_revision)
                if expected is None:
                    detail = f"the session was moved after revision {turn.base_revision}"
            call = Call(
                key=key,
                method=METHOD,
                request_id=request_id,
                fingerprint=FINGERPRINT.of(turn, dict(turn.ListFields())),
                access=access,
                subject=caller.subject,
                trace_id=record.trace_id,
                # A turn that was stored before gets its first answer, whatever happened since.
                expected_revision=-1 if detail else expected,
            )
            command = self._command(
                caller, turn, access, request_id, is_checked=expected is not None
            )
            try:
                handled = await self._handler.handle(call, command, partial(_answer, turn))
            except RoutingError as error:
                if error.reason not in _CONFLICTS:
                    raise
                if error.reason is Reason.REVISION_MISMATCH and not detail and expected is not None:
                    detail = error.message
                    continue
                detail = detail or error.message
                break
            return pb.DegradedTurnResult.FromString(handled.answer.stored)
        return pb.DegradedTurnResult(
            session_id=session_id,
            request_id=request_id,
            status=pb.DEGRADED_TURN_STATUS_CONFLICT,
            detail=detail,
        )

    def _command(
        self,
        caller: Caller,
        turn: pb.DegradedTurn,
        access: Access,
        request_id: str,
        *,
        is_checked: bool,
    ) -> cmd.ReportDegraded:
        agent_id = self._handler.registry.resolve(turn.agent_id) or turn.agent_id
        return cmd.ReportDegraded(
            request_id=request_id,
            agent_id=turn.agent_id,
            user_text=turn.text,
            user_items=pm.items_in(turn.items),
            text=turn.agent_text,
            items=pm.items_in(turn.agent_items),
            by_agent=rights.is_runtime_of(caller, agent_id),
            decided_us=pm.time_us(turn.decide_time) if turn.HasField("decide_time") else 0,
            is_checked=is_checked,
            profile=Profile(
                user_id=access.user_id,
                locale=turn.locale,
                channel=turn.channel,
                entitlements=rights.entitlements_of(caller, access.user_id, ()),
            ),
        )


def _check(request: pb.ReportDegradedRequest, registry: Registry) -> None:
    """Raise INVALID_FIELD with every bad field."""
    checks = FieldChecks()
    checks.number("turns", len(request.turns), 1, TURNS_MAX)
    for place, turn in enumerate(request.turns[:TURNS_MAX]):
        at = f"turns[{place}]"
        checks.session(f"{at}.session_id", turn.session_id)
        checks.uuid(f"{at}.request_id", turn.request_id, required=True)
        checks.user(f"{at}.user_id", turn.user_id)
        checks.agent(f"{at}.agent_id", turn.agent_id, registry, required=True)
        checks.text(f"{at}.text", turn.text, TEXT_BYTES_MAX)
        checks.items(f"{at}.items", turn.items)
        checks.text(f"{at}.agent_text", turn.agent_text, TEXT_BYTES_MAX)
        checks.items(f"{at}.agent_items", turn.agent_items)
        checks.locale(f"{at}.locale", turn.locale)
        checks.channel(f"{at}.channel", turn.channel)
        checks.revision(f"{at}.base_revision", turn.base_revision)
        if turn.HasField("decide_time"):
            checks.timestamp(f"{at}.decide_time", turn.decide_time)
    checks.done()


def _answer(turn: pb.DegradedTurn, made: Made) -> Answer:
    response = pb.DegradedTurnResult(
        session_id=made.call.key.session_id,
        request_id=made.call.request_id,
        revision=made.revision,
        status=pb.DEGRADED_TURN_STATUS_STORED,
    )
    stored = next(e for e in made.decided.decision.events if isinstance(e, ev.TurnCompleted))
    details: list[str] = []
    if (turn.agent_text or turn.agent_items) and not (stored.text or stored.items):
        response.answer_left_out = True
        is_person = stored.agent_id in made.registry.people
        why = "is people" if is_person else "is not one that this credential speaks for"
        details.append(f'the answer was left out: agent "{stored.agent_id}" {why}')
    if turn.HasField("decide_time") and not stored.decided_us:
        given = datetime.fromtimestamp(turn.decide_time.seconds, UTC).isoformat()
        details.append(f"decide_time {given} is not within the last 24 hours, so it is now")
    response.detail = "; ".join(details)
    return Answer(response.SerializeToString())
