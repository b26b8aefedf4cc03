"""Entries of the audit that belong to no change, as the events that lists and exports show."""

from __future__ import annotations

from typing import Final

from agent_routing.v1 import session_event_pb2
from routing_service.core.vocabulary import HandoffMode, Initiator
from routing_service.rpc import proto_mapping as pm
from routing_service.rpc.agent_cards import AgentCards
from routing_service.sessions.stickiness_switch import ALL_TENANTS
from routing_service.storage.audit_seals import seal_in
from routing_service.storage.event_codec import ERASE_USER
from routing_service.storage.row_content import decode_audit
from routing_service.storage.store import AuditEntry, SessionKey

_OF_ADMIN: Final = frozenset(
    {ERASE_USER, "SetStickiness", "PurgeSessions", "ExportUser", "ReloadAgents"}
)


def refusal_out(
    key: SessionKey, entry: AuditEntry, cards: AgentCards
) -> tuple[session_event_pb2.SessionEvent, str]:
    """Return a refused handoff as an event, and the method that asked for it."""
    # The data is empty if the session has been erased since.
    data = decode_audit(entry)
    metadata = data.get("metadata", {})
    made = session_event_pb2.SessionEvent(
        event_id=f"{entry.revision}.r{entry.time_us}",
        session_id=key.session_id,
        revision=entry.revision,
        event_time=pm.timestamp(entry.time_us),
        request_id=entry.request_id,
    )
    refused = made.handoff_refused
    refused.handoff.to.CopyFrom(cards.card(metadata.get("agent_id", ""), ""))
    getattr(refused.handoff, "from").CopyFrom(cards.card(metadata.get("from_agent_id", ""), ""))
    refused.handoff.reason = data.get("reason", "")
    if data.get("mode"):
        refused.handoff.mode = pm.MODES[HandoffMode(data["mode"])]
    initiator = metadata.get("initiator", "")
    if initiator:
        refused.handoff.initiator = pm.INITIATORS[Initiator(initiator)]
    for rule, allowed, detail in data.get("verdicts", ()):
        refused.verdicts.add(rule=rule, allowed=allowed, detail=detail)
    refused.turn_request_id = entry.request_id
    return made, method_path(data.get("method", ""))


def switch_out(entry: AuditEntry) -> session_event_pb2.SessionEvent:
    """Return a switch of stickiness as an event."""
    data = decode_audit(entry)
    made = session_event_pb2.SessionEvent(
        event_id=f"0.s{entry.time_us}", event_time=pm.timestamp(entry.time_us)
    )
    switched = made.stickiness_switched
    switched.enabled = data.get("enabled", False)
    switched.previously_enabled = data.get("was_enabled", False)
    switched.agent_ids.extend(data.get("agent_ids", ()))
    switched.users_percent = data.get("users_percent", 0)
    switched.reason = data.get("reason", "")
    switched.all_tenants = data.get("tenant", "") == ALL_TENANTS
    return made


def act_out(entry: AuditEntry) -> tuple[session_event_pb2.SessionEvent, str]:
    """Return an operator's act that belongs to no session as an event, and its method."""
    data = decode_audit(entry)
    made = session_event_pb2.SessionEvent(
        event_id=f"0.o{entry.time_us}", event_time=pm.timestamp(entry.time_us)
    )
    act = made.operator_act
    act.method = data.get("method", "")
    act.reason = data.get("reason", "")
    act.target = data.get("target", "")
    return made, act.method


def seal_out(entry: AuditEntry) -> session_event_pb2.SessionEvent:
    """Return a seal of the audit as an event. Raises StoreCorrupt."""
    seal = seal_in(entry)
    made = session_event_pb2.SessionEvent(
        event_id=f"0.a{entry.time_us}", event_time=pm.timestamp(entry.time_us)
    )
    made.audit_sealed.seal = seal.n
    made.audit_sealed.hash = seal.link(entry.tenant).hex()
    made.audit_sealed.sessions = len(seal.heads)
    return made


def purge_out(entry: AuditEntry) -> session_event_pb2.SessionEvent:
    """Return the purge of a session as an event."""
    data = decode_audit(entry)
    made = session_event_pb2.SessionEvent(
        event_id=f"{entry.revision}.p{entry.time_us}",
        session_id=entry.session_id,
        revision=entry.revision,
        event_time=pm.timestamp(entry.time_us),
    )
    made.session_purged.reason = data.get("reason", "")
    return made


def method_path(method: str) -> str:
    """Return the RPC that a change or a refusal came by; "" = the service itself."""
    service = "AdminService" if method in _OF_ADMIN else "RoutingService"
    return f"/agent_routing.v1.{service}/{method}" if method else ""
