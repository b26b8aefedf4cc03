"""GetSessionAt: the state of a session after any of its changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agent_routing.v1 import admin_service_pb2 as pb
from routing_service.auth.caller import Caller
from routing_service.core.session import OpenTurn, SessionState
from routing_service.core.strand_fold import parked_views
from routing_service.rpc import proto_mapping as pm
from routing_service.rpc.admin.request_fields import tenant_of
from routing_service.rpc.agent_cards import AgentCards
from routing_service.rpc.request_checks import FieldChecks, parse
from routing_service.rpc.rpc_method import Methods, RpcAnswer
from routing_service.sessions.past_states import PastStates
from routing_service.sessions.stickiness_switch import ALL_TENANTS
from routing_service.storage.checked_store import Store
from routing_service.storage.store import SessionKey
from routing_service.telemetry.call_record import CallRecord


class SessionAtCalls:
    """The RPC that shows an earlier state."""

    def __init__(self, store: Store, cards_in_force: Callable[[], AgentCards]) -> None:
        """Fold a store's sessions. cards_in_force: returns the cards of the registry in force."""
        self._past = PastStates(store)
        self._cards = cards_in_force

    @property
    def methods(self) -> Methods:
        """This RPC by name."""
        return {"GetSessionAt": self.get_session_at}

    async def get_session_at(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """Return the state of a session after one of its changes."""
        request = parse(pb.GetSessionAtRequest, data)
        checks = FieldChecks()
        tenant = tenant_of(checks, caller, request.tenant, record)
        if tenant == ALL_TENANTS:
            checks.refuse("tenant", 'is "*"; name the session\'s own tenant')
        checks.session("session_id", request.session_id, required=True)
        checks.revision("revision", request.revision)
        checks.done()
        record.session_id = request.session_id
        key = SessionKey(tenant, request.session_id)
        state, head_revision = await self._past.at(key, request.revision)
        record.revision = state.revision
        answer = _state_out(tenant, state, self._cards())
        answer.head_revision = head_revision
        return RpcAnswer(answer.SerializeToString())


def _state_out(tenant: str, state: SessionState, cards: AgentCards) -> pb.GetSessionAtResponse:
    locale = pm.locale_of(state)
    active, offer = state.active, state.suggestion
    made = pb.GetSessionAtResponse(
        tenant=tenant,
        session_id=state.session_id,
        revision=state.revision,
        registry_version=state.registry_version,
        locale=state.locale,
        channel=state.channel,
        owner=state.owner,
        create_time=pm.timestamp(state.create_us),
        update_time=pm.timestamp(state.update_us),
        turns_by_agent=state.turns_by_agent,
        **_holding(state, cards),
        parked_tasks=[
            _parked_out(seen, strand.number, cards) for strand, seen in parked_views(state)
        ],
    )
    if active is not None and active.locked and active.lock_expire_us is not None:
        made.lock_expire_time.CopyFrom(pm.timestamp(active.lock_expire_us))
    if state.task is not None:
        made.task.CopyFrom(pm.task_out(state.task, {}, state.session_id, state.owner))
    if offer is not None:
        made.suggested_agent.CopyFrom(cards.card(offer.agent_id, locale))
        made.suggestion_confidence = offer.confidence
    return made


def _parked_out(seen: SessionState, number: int, cards: AgentCards) -> pb.ParkedTaskAt:
    """Return a parked task. seen: the session as it was seen from it."""
    assert seen.task is not None
    return pb.ParkedTaskAt(
        task=pm.task_out(seen.task, {}, seen.session_id, seen.owner),
        number=number,
        **_holding(seen, cards),
    )


def _holding(state: SessionState, cards: AgentCards) -> dict[str, Any]:
    """Return the fields that say who has a task and what waits in it."""
    locale, active = pm.locale_of(state), state.active
    return {
        "active_agent": cards.card(active.agent_id, locale) if active else None,
        "locked": active is not None and active.locked,
        "return_stack": [pm.frame_out(frame, cards, locale) for frame in state.stack],
        "open_turns": [_turn_out(state, turn, cards) for turn in state.open_turns],
        "paused_turn": _turn_out(state, state.paused, cards) if state.paused else None,
        "queued_request_ids": [queued.request_id for queued in state.queued],
    }


def _turn_out(state: SessionState, turn: OpenTurn, cards: AgentCards) -> pb.OpenTurn:
    return pb.OpenTurn(
        request_id=turn.request_id,
        root_request_id=turn.root_request_id,
        task_id=turn.task_id,
        agent=cards.card(turn.holder, pm.locale_of(state)),
        reason=pm.REASONS[turn.reason],
        dispatch_time=pm.timestamp(turn.dispatched_us),
        dispatch_revision=turn.dispatch_revision,
        message_revision=turn.message_revision,
        live=state.is_live(turn),
        asker_agent_id=turn.asker,
    )
