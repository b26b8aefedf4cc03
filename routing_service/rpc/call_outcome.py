"""What a call to a session was and what it decided, as its record and log line have it.

Rule: a line names the agent that has the message or the conversation now, the one before, and why.
"""

from __future__ import annotations

from routing_service.core import events as ev
from routing_service.core.commands import Decision
from routing_service.core.decide import Decided
from routing_service.core.refusals import HandoffRefused
from routing_service.core.registry import Registry
from routing_service.core.vocabulary import RouteReason
from routing_service.sessions.calls import Call, Handled
from routing_service.telemetry.call_record import CallRecord
from routing_service.telemetry.metrics import MESSAGE_METHODS


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
    record.channel = decided.state.channel
    if decision.verdicts:
        record.refused_rules = tuple(v.rule for v in decision.verdicts if not v.allowed)
    if record.method == "CompleteTurn":
        record.outcome_status = decision.status.value
    if decision.reply is not None:
        record.command = decision.reply.command
    if decision.handoff is not None:
        record.initiator = decision.handoff.initiator.value
    if dispatch is not None:
        record.dispatched = True
        record.reason = dispatch.reason.value
        record.agent_id = dispatch.agent_id
        record.previous_agent_id = dispatch.previous_agent
        # What follows within a message saves nothing: its first dispatch says who was asked.
        record.supervisor_bypassed = (
            record.method in MESSAGE_METHODS and dispatch.agent_id != registry.home_agent_id
        )
    elif record.method != "CompleteTurn":
        _describe_move(record, decided, registry)
    topic = decision.topic
    if topic is not None and topic.opinion is not None:
        record.topic_outcome = topic.outcome.value
        record.topic_agent_id = topic.agent_id
        record.topic_confidence = round(topic.confidence, 4)
        record.topic_model = topic.opinion.model


def describe_refusal(record: CallRecord, refused: HandoffRefused) -> None:
    """Fill in a handoff that was refused: agent_id is its target, previous_agent_id its source."""
    record.refused_rules = tuple(violation.subject for violation in refused.violations)
    record.agent_id = refused.metadata["agent_id"]
    record.previous_agent_id = refused.metadata["from_agent_id"]
    record.initiator = refused.metadata["initiator"]
    record.task_id = refused.task_id
    record.channel = refused.channel
    record.revision = refused.revision


def _describe_move(record: CallRecord, decided: Decided, registry: Registry) -> None:
    """Fill in who has the conversation after a call that dispatched nothing, and why."""
    decision = decided.decision
    if decision.reply is not None and record.refused_rules:
        # A user asked for an agent and may not have it.
        record.agent_id = decision.reply.agent_id
        record.previous_agent_id = decided.state.active_id or registry.home_agent_id
        record.reason = RouteReason.USER_SELECTED.value
        return
    record.agent_id = decided.state.active_id or registry.home_agent_id
    record.previous_agent_id = _agent_left(decision) or record.agent_id
    record.reason = _reason_of_move(record, decided, registry).value


def _agent_left(decision: Decision) -> str:
    """Return the agent that the conversation left, "" if it stayed."""
    for event in reversed(decision.events):
        match event:
            case ev.AgentHandedOff():
                return event.from_agent
            case ev.AgentCleared() if event.agent_id:
                return event.agent_id
            case _:
                pass
    return ""


def _reason_of_move(record: CallRecord, decided: Decided, registry: Registry) -> RouteReason:
    for event in decided.decision.events:
        if isinstance(event, ev.AgentHandedOff):
            return event.route_reason
    if record.command:
        return RouteReason.COMMAND
    if decided.state.active is not None:
        return RouteReason.STICKY
    return RouteReason.DEFAULT_AGENT if registry.is_swarm else RouteReason.NO_ACTIVE_AGENT
