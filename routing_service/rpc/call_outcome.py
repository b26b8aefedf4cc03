"""What a call to a session was and what it decided, as its record and log line have it."""

from __future__ import annotations

from routing_service.core.decide import Decided
from routing_service.core.registry import Registry
from routing_service.sessions.calls import Call, Handled
from routing_service.telemetry.call_record import CallRecord


def identify(record: CallRecord, call: Call) -> None:
    """Fill in the ids of a call, before it is carried out."""
    record.tenant, record.session_id = call.key
    record.request_id = call.request_id
    record.user_id = call.access.user_id


def describe(record: CallRecord, handled: Handled, registry: Registry) -> None:
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
