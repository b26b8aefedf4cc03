"""GetRoutingStats, ReloadAgents, SetStickiness and GetStickiness: figures and two switches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from agent_routing.v1 import admin_service_pb2 as pb
from routing_service.analytics.keeper import StatsKeeper
from routing_service.analytics.report import read_report
from routing_service.auth.caller import Caller
from routing_service.core.errors import Reason, RoutingError, Violation
from routing_service.core.identifiers import REASON_BYTES_MAX
from routing_service.registry.file import RegistryFileError
from routing_service.registry.live_registry import RegistrySource, Reloaded
from routing_service.rpc import proto_mapping as pm
from routing_service.rpc.admin.request_fields import (
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
    ALL_TENANTS,
    Source,
    StickinessSwitch,
    Switched,
    is_same,
    switch_entry,
)
from routing_service.sessions.touched_sessions import count_touched
from routing_service.storage.store import Store
from routing_service.telemetry.call_record import CallRecord

REGISTRY_BYTES_MAX: Final = 192 * 1024
"""Of a registry in a request, which may have 256 KiB. The largest example has 12 KiB."""

TENANTS_READ_MAX: Final = 1_000

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
        shown_id: Callable[[str], str] = str,
    ) -> None:
        """Operate the given parts. clock_us: microseconds since 1970.

        shown_id: a session id as operators see it in examples: hashed as in the log, or as it is.
        """
        self._shown_id = shown_id
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
            "ReloadAgents": self.reload_agents,
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

    async def reload_agents(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """Read the registry file again, or say what a registry would change."""
        request = parse(pb.ReloadAgentsRequest, data)
        checks = FieldChecks()
        record.tenant = caller.tenant
        tenant = tenant_of(checks, caller, request.tenant, record) if request.tenant else ""
        checks.text("reason", request.reason, REASON_BYTES_MAX)
        checks.text("registry", request.registry, REGISTRY_BYTES_MAX)
        if not request.validate_only:
            for name in ("registry", "with_sessions", "tenant"):
                if getattr(request, name):
                    checks.refuse(name, "is only for validate_only = true")
        checks.done()
        try:
            if request.registry:
                made = await self._source.compare(request.registry)
            else:
                made = await self._source.reload(validate_only=request.validate_only)
        except RegistryFileError as error:
            raise _registry_invalid(error) from error
        if not request.validate_only:
            await self._audit.act(
                operator_of(caller, record),
                caller.tenant,
                "ReloadAgents",
                reason=request.reason,
                target=f'registry "{made.previous.version}" to "{made.registry.version}"',
            )
        response = pb.ReloadAgentsResponse(
            registry_version=made.registry.version,
            previous_registry_version=made.previous.version,
            added_agent_ids=made.added,
            removed_agent_ids=made.removed,
            changed_agent_ids=made.changed,
            changed_settings=made.changed_settings,
        )
        if request.with_sessions:
            await self._add_touched(response, made, tenant or caller.tenant)
        return RpcAnswer(response.SerializeToString())

    async def _add_touched(
        self, response: pb.ReloadAgentsResponse, made: Reloaded, tenant: str
    ) -> None:
        """Add the live sessions that the change touches."""
        tenants = [tenant]
        if tenant == ALL_TENANTS:
            tenants = await self._all_tenants()
        counted = await count_touched(
            self._store,
            tenants,
            made.touched_agents,
            home_agent_id=made.previous.home_agent_id,
            shown_id=self._shown_id,
        )
        response.sessions_read = counted.sessions_read
        response.all_sessions_read = counted.is_complete
        for agent_id, touched in sorted(counted.by_agent.items()):
            response.touched.add(
                agent_id=agent_id,
                active=touched.active,
                interrupted=touched.interrupted,
                answering=touched.answering,
                example_session_ids=touched.examples,
            )

    async def _all_tenants(self) -> list[str]:
        """Return every tenant of the store."""
        found: list[str] = []
        after = ""
        while page := await self._store.list_tenants(after, TENANTS_READ_MAX):
            found += [each for each in page if each != ALL_TENANTS]
            after = page[-1]
        return found

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
        if request.validate_only:
            before, stored = await self._switch.read(tenant), None
        else:
            before, stored = await self._switch.switch(tenant, new, fresh=request.fresh)
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
        )
        if stickiness.is_stored:
            response.switch_time.CopyFrom(pm.timestamp(switched.time_us))
        return RpcAnswer(response.SerializeToString())


def _registry_invalid(error: RegistryFileError) -> RoutingError:
    first = error.problems[0]
    return RoutingError(
        Reason.REGISTRY_INVALID,
        f"the registry in force stays: {first}",
        metadata={
            "file": error.source,
            "line": str(first.line),
            "problems": str(len(error.problems)),
        },
        violations=tuple(
            Violation(f"{problem.line}:{problem.column}", f"{problem.message}; {problem.remedy}")
            for problem in error.problems
        ),
    )
