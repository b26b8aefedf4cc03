"""The figures of routing as GetRoutingStats returns them.

Rows have a fixed order, so that equal figures are equal bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import handoff_pb2
from routing_service.analytics.counts import (
    CONFIDENCE_RANGES,
    PAIR_SEPARATOR,
    WORDS_MAX,
    AgentCounts,
    Counts,
    Pair,
)
from routing_service.analytics.histogram import Histogram, quantile
from routing_service.analytics.report import Period, Report
from routing_service.analytics.session_walk import HOUR_US, RESPONSE_TICK_US
from routing_service.core.vocabulary import HandoffMode, Initiator, OutcomeKind, RouteReason
from routing_service.rpc import proto_mapping as pm

_MEDIAN: Final = 0.5
_NINETY_FIVE: Final = 0.95

_INITIATORS: Final = {each.value: number for each, number in pm.INITIATORS.items()}
_MODES: Final = {each.value: number for each, number in pm.MODES.items()}
_REASONS: Final = {each.value: pm.REASONS[each] for each in RouteReason}
_OUTCOMES: Final = {each.value: pm.OUTCOMES[each] for each in OutcomeKind}
assert set(_INITIATORS) == {each.value for each in Initiator}
assert set(_MODES) == {each.value for each in HandoffMode}


def stats_out(report: Report, *, stickiness_enabled: bool) -> pb.GetRoutingStatsResponse:
    """Return a report as the answer to GetRoutingStats."""
    counts = report.counts
    activations = sum(agent.activations for agent in counts.agents.values())
    made = pb.GetRoutingStatsResponse(
        as_of_time=pm.timestamp(report.as_of_us),
        end_time=pm.timestamp(report.end_us),
        user_messages=counts.messages,
        supervisor_calls_saved=counts.saved,
        supervisor_calls_saved_share=_share(counts.saved, counts.messages),
        reasons=[
            pb.RouteReasonCount(reason=_REASONS[reason], count=count)
            for reason, count in _by_size(counts.reasons)
            if reason in _REASONS
        ],
        commands=counts.commands,
        handoffs=[_handoff(name, counts) for name in sorted(counts.handoffs)],
        refusals_by_rule=counts.refusals,
        agents=[_agent(agent_id, agent) for agent_id, agent in sorted(counts.agents.items())],
        sessions=report.sessions,
        stuck=counts.stuck,
        stuck_share=_share(counts.stuck, activations),
        stickiness_enabled=stickiness_enabled,
        ping_pongs=counts.ping_pongs,
        messages_by_channel=counts.channels,
        periods=[_period(period) for period in report.periods],
        handoffs_total=counts.carried_out,
        refusals_total=counts.refused,
        suggestions=[_suggestion(name, counts) for name in sorted(counts.suggestions)],
        suggestions_by_confidence=[_offers(each, counts) for each in sorted(counts.offers)],
        registry_versions=_registry_versions(report.periods),
    )
    if report.start_us is not None:
        made.start_time.CopyFrom(pm.timestamp(report.start_us))
    return made


def _suggestion(name: str, counts: Counts) -> pb.SuggestionCount:
    from_agent_id, to_agent_id = name.split(PAIR_SEPARATOR)
    figures = counts.suggestions[name]
    return pb.SuggestionCount(
        from_agent_id=from_agent_id,
        to_agent_id=to_agent_id,
        offered=figures.offered,
        accepted=figures.accepted,
        declined=figures.declined,
        ignored=figures.ignored,
    )


def _offers(confidence: int, counts: Counts) -> pb.ConfidenceCount:
    figures = counts.offers[confidence]
    return pb.ConfidenceCount(
        confidence_from=confidence / CONFIDENCE_RANGES,
        confidence_before=(confidence + 1) / CONFIDENCE_RANGES,
        offered=figures.offered,
        accepted=figures.accepted,
        declined=figures.declined,
        ignored=figures.ignored,
    )


def _registry_versions(periods: Sequence[Period]) -> list[pb.RegistryVersionCount]:
    """Return the registries that decided, in the order of their last periods."""
    found: dict[str, pb.RegistryVersionCount] = {}
    for period in periods:
        for version, count in period.counts.registries.items():
            row = found.pop(version, None) or pb.RegistryVersionCount(
                registry_version=version, start_time=pm.timestamp(period.start_hour * HOUR_US)
            )
            row.user_messages += count
            row.end_time.CopyFrom(pm.timestamp((period.start_hour + period.hours) * HOUR_US))
            found[version] = row
    return list(found.values())[-WORDS_MAX:]


def _handoff(name: str, counts: Counts) -> pb.HandoffCount:
    pair, row = Pair.of(name), counts.handoffs[name]
    return pb.HandoffCount(
        from_agent_id=pair.from_agent,
        to_agent_id=pair.to_agent,
        initiator=_INITIATORS.get(pair.initiator, handoff_pb2.INITIATOR_UNSPECIFIED),
        mode=_MODES.get(pair.mode, handoff_pb2.HANDOFF_MODE_UNSPECIFIED),
        count=row.carried_out,
        refused=row.refused,
        returned=row.returned,
        ping_pongs=row.ping_pongs,
    )


def _agent(agent_id: str, counts: AgentCounts) -> pb.AgentStats:
    made = pb.AgentStats(
        agent_id=agent_id,
        turns=counts.turns,
        outcomes=[
            pb.TurnOutcomeCount(outcome=_OUTCOMES[outcome], count=count)
            for outcome, count in _by_size(counts.outcomes)
            if outcome in _OUTCOMES
        ],
        abandoned=counts.abandoned,
        activations=counts.activations,
        stuck=counts.stuck,
        stored_only=counts.stored_only,
        degraded=counts.degraded,
        stays=counts.stays,
        stay_turns=counts.turns_stayed,
        stay_turns_p50=_rounded(counts.stay_turns, _MEDIAN),
        stay_turns_p95=_rounded(counts.stay_turns, _NINETY_FIVE),
    )
    for field, share in (
        (made.response_duration_p50, _MEDIAN),
        (made.response_duration_p95, _NINETY_FIVE),
    ):
        ticks = quantile(counts.responses, share)
        if ticks is not None:
            field.CopyFrom(pm.duration(round(ticks * RESPONSE_TICK_US)))
    return made


def _period(period: Period) -> pb.StatsPeriod:
    counts = period.counts
    return pb.StatsPeriod(
        start_time=pm.timestamp(period.start_hour * HOUR_US),
        length=pm.duration(period.hours * HOUR_US),
        user_messages=counts.messages,
        supervisor_calls_saved=counts.saved,
        handoffs=counts.carried_out,
        refused=counts.refused,
        stuck=counts.stuck,
        suggested=sum(pair.offered for pair in counts.suggestions.values()),
        accepted=sum(pair.accepted for pair in counts.suggestions.values()),
        declined=sum(pair.declined for pair in counts.suggestions.values()),
    )


def _by_size(table: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(table.items(), key=lambda row: (-row[1], row[0]))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _rounded(histogram: Histogram, share: float) -> int:
    return round(quantile(histogram, share) or 0)
