"""GetRoutingStats, SetStickiness and GetStickiness: figures, and a switch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from agent_routing.v1 import admin_service_pb2 as pb
from routing_service.analytics.keeper import StatsKeeper
from routing_service.analytics.report import read_report
from routing_service.auth.caller import Caller
from routing_service.core.identifiers import REASON_BYTES_MAX
from routing_service.registry.live_registry import RegistrySource
from routing_service.rpc import proto_mapping as pm
from routing_service.rpc.admin.request_fields import (
    check_expected,
    check_times,
    operator_of,
    tenant_of,
    time_bound_us,
)
from routing_service.rpc.request_checks import FieldChecks, parse
from routing_service.rpc.rpc_method import Methods, RpcAnswer
from routing_service.rpc.stats_mapping import stats_out
from routing_service.sessions.audit_log import AuditLog
from routing_service.sessions.stickiness_switch import (
    AGENTS_OFF_MAX,
    Source,
    StickinessSwitch,
    Switched,
    is_same,
    switch_entry,
)
from routing_service.storage.checked_store import Store
from routing_service.telemetry.call_record import CallRecord

USERS_PERCENT_MAX: Final = 99
"""All users are what a switch without a percentage is for."""

_SOURCES: Final = {
    Source.REGISTRY: pb.STICKINESS_SOURCE_REGISTRY,
    Source.SETTING: pb.STICKINESS_SOURCE_SETTING,
    Source.TENANT: pb.STICKINESS_SOURCE_TENANT,
    Source.ALL_TENANTS: pb.STICKINESS_SOURCE_ALL_TENANTS,
}


class OperationsCalls:
    """The RPCs that observe and steer the running service."""

    def __init__(
        self,
        store: Store,
        *,
        source: RegistrySource,
        switch: StickinessSwitch,
        stats: StatsKeeper,
        audit: AuditLog,
        clock_us: Callable[[], int],
    ) -> None:
        """Operate the given parts. clock_us: microseconds since 1970."""
        self._audit = audit
        self._store = store
        self._source = source
        self._switch = switch
        self._stats = stats
        self._clock_us = clock_us

    @property
    def methods(self) -> Methods:
        """These RPCs by name."""
        return {
            "GetRoutingStats": self.get_routing_stats,
            "SetStickiness": self.set_stickiness,
            "GetStickiness": self.get_stickiness,
        }

    async def get_routing_stats(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """Return the figures of routing."""
        request = parse(pb.GetRoutingStatsRequest, data)
        checks = FieldChecks()
        tenant = tenant_of(checks, caller, request.tenant, record)
        checks.channel("channel", request.channel)
        check_times(checks, request, ("start_time", "end_time"))
        start_us = time_bound_us(request, "start_time")
        end_us = time_bound_us(request, "end_time")
        if start_us is not None and end_us is not None and end_us < start_us:
            checks.refuse("end_time", "is before start_time; swap them")
        checks.done()
        report = await read_report(
            self._store,
            self._stats,
            tenant=tenant,
            start_us=start_us,
            end_us=end_us,
            channel=request.channel,
        )
        stickiness = await self._switch.read(tenant)
        response = stats_out(report, stickiness_enabled=stickiness.enabled)
        return RpcAnswer(response.SerializeToString())

    async def set_stickiness(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """Switch stickiness for a tenant, or for all."""
        request = parse(pb.SetStickinessRequest, data)
        checks = FieldChecks()
        tenant = tenant_of(checks, caller, request.tenant, record)
        checks.text("reason", request.reason, REASON_BYTES_MAX)
        if not request.HasField("enabled"):
            checks.refuse("enabled", "is required; send true or false")
        if request.fresh and not request.enabled:
            checks.refuse("fresh", "is only for enabled = true")
        agent_ids = self._agents_off(checks, request)
        checks.done()
        new = Switched(
            request.enabled,
            self._clock_us(),
            request.reason,
            by=caller.subject,
            agent_ids=agent_ids,
            users_percent=request.users_percent,
        )
        before = await self._switch.read(tenant)
        expected = request.expected_state_version
        if expected:
            check_expected("expected_state_version", expected, before.version)
        stored = None
        if not request.validate_only:
            only_after = before.switched if expected else None
            before, stored = await self._switch.switch(
                tenant, new, fresh=request.fresh, only_after=only_after
            )
            if expected and stored is None and not is_same(before.switched, new):
                # Another operator switched in this moment.
                found = await self._switch.read(tenant)
                check_expected("expected_state_version", expected, found.version)
        response = pb.SetStickinessResponse(
            enabled=request.enabled, previously_enabled=before.enabled
        )
        if not is_same(before.switched, new):
            response.update_time.CopyFrom(pm.timestamp(new.time_us))
        if stored is not None:
            operator = operator_of(caller, record)
            await self._audit.add(switch_entry(operator, tenant, before, stored))
        return RpcAnswer(response.SerializeToString())

    def _agents_off(self, checks: FieldChecks, request: pb.SetStickinessRequest) -> tuple[str, ...]:
        """Check for whom stickiness is to be off; return the ids of the agents."""
        registry = self._source.registry
        if request.enabled and request.agent_ids:
            checks.refuse("agent_ids", "are only for enabled = false; on is on for all")
        if request.enabled and request.users_percent:
            checks.refuse("users_percent", "is only for enabled = false; on is on for all")
        checks.number("users_percent", request.users_percent, 0, USERS_PERCENT_MAX)
        if len(request.agent_ids) > AGENTS_OFF_MAX:
            given = len(request.agent_ids)
            checks.refuse("agent_ids", f"has {given} entries; send at most {AGENTS_OFF_MAX}")
        found = []
        for name in request.agent_ids[:AGENTS_OFF_MAX]:
            agent_id = registry.resolve(name)
            if agent_id is None:
                checks.refuse("agent_ids", f'"{name[:64]}" is not registered; list the agents')
            elif agent_id == registry.home_agent_id:
                checks.refuse("agent_ids", f'"{agent_id}" is the home agent, which gets messages')
            else:
                found.append(agent_id)
        return tuple(dict.fromkeys(found))

    async def get_stickiness(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """Say whether stickiness is on, since when, by whom and why."""
        request = parse(pb.GetStickinessRequest, data)
        checks = FieldChecks()
        tenant = tenant_of(checks, caller, request.tenant, record)
        checks.done()
        stickiness = await self._switch.read(tenant)
        switched = stickiness.switched
        response = pb.GetStickinessResponse(
            enabled=switched.enabled,
            agent_ids=switched.agent_ids,
            users_percent=switched.users_percent,
            source=_SOURCES[stickiness.source],
            start_enabled=self._switch.start_enabled,
            actor=switched.by,
            reason=switched.reason,
            state_version=stickiness.version,
        )
        if stickiness.is_stored:
            response.switch_time.CopyFrom(pm.timestamp(switched.time_us))
        return RpcAnswer(response.SerializeToString())
