"""Fields that requests of several AdminService RPCs have: the tenant and time bounds."""

from __future__ import annotations

from agent_routing.v1 import admin_service_pb2 as pb
from routing_service.auth import rights
from routing_service.auth.caller import Caller
from routing_service.core.errors import Reason, RoutingError, invalid_field
from routing_service.rpc import proto_mapping as pm
from routing_service.rpc.request_checks import FieldChecks
from routing_service.sessions.audit_log import Operator
from routing_service.sessions.stickiness_switch import ALL_TENANTS
from routing_service.telemetry.call_record import CallRecord


def tenant_of(checks: FieldChecks, caller: Caller, asked: str, record: CallRecord) -> str:
    """Return the tenant that a call is about; ALL_TENANTS for all. Raises SCOPE_MISSING."""
    if asked and asked != ALL_TENANTS:
        checks.identifier("tenant", asked)
    record.tenant = asked or caller.tenant
    rights.check_tenant(caller, asked)
    return record.tenant


def operator_of(caller: Caller, record: CallRecord) -> Operator:
    """Return who acts, for the audit."""
    return Operator(caller.tenant, caller.subject, record.trace_id)


def check_one_tenant(tenant: str) -> None:
    """Refuse a list of all tenants. Raises INVALID_FIELD."""
    if tenant == ALL_TENANTS:
        raise invalid_field(
            "tenant", 'is "*"; this release lists one tenant at a time: name the tenant'
        )


def check_user(
    checks: FieldChecks, request: pb.ExportUserRequest | pb.EraseUserRequest, tenant: str
) -> None:
    """Check that a request names one user of one tenant."""
    if tenant == ALL_TENANTS:
        checks.refuse("tenant", 'is "*"; name the user\'s own tenant')
    if not request.user_id:
        checks.refuse("user_id", "is required; name the user")
    checks.user("user_id", request.user_id)


def check_expected(field: str, expected: str | int, actual: str | int) -> None:
    """Raise STATE_CHANGED unless something is still as the operator has read it."""
    if expected != actual:
        raise state_changed(field, expected, actual)


def state_changed(field: str, expected: str | int, actual: str | int) -> RoutingError:
    """Return the error for something that is not as the operator has read it."""
    return RoutingError(
        Reason.STATE_CHANGED,
        f'{field} is "{expected}" and "{actual}" is found now; read it again and decide again',
        metadata={"field": field, "expected": str(expected), "actual": str(actual)},
    )


def check_times(
    checks: FieldChecks,
    request: pb.ListSessionsRequest
    | pb.ListEventsRequest
    | pb.GetRoutingStatsRequest
    | pb.StartReplayRequest,
    fields: tuple[str, str],
) -> None:
    """Check those of the time fields that are set."""
    given = {descriptor.name for descriptor, _ in request.ListFields()}
    for field in given.intersection(fields):
        checks.timestamp(field, getattr(request, field))


def time_bound_us(
    request: pb.ListEventsRequest | pb.GetRoutingStatsRequest, field: str
) -> int | None:
    """Return a time of a request in microseconds since 1970; None if it is not set."""
    given = {descriptor.name for descriptor, _ in request.ListFields()}
    return pm.time_us(getattr(request, field)) if field in given else None
