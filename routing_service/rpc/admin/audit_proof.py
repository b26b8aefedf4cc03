"""VerifyAudit: the chains and seals of a tenant's audit, followed on request."""

from __future__ import annotations

import asyncio
from typing import Final

from agent_routing.v1 import admin_service_pb2 as pb
from routing_service.auth.caller import Caller
from routing_service.rpc import proto_mapping as pm
from routing_service.rpc.admin.request_fields import tenant_of
from routing_service.rpc.request_checks import FieldChecks, parse
from routing_service.rpc.rpc_method import Methods, RpcAnswer
from routing_service.sessions.stickiness_switch import ALL_TENANTS
from routing_service.storage.checked_store import Store
from routing_service.stored_data.audit_verification import TenantAudit, verify_audit
from routing_service.stored_data.noted_seals import NotASeal, NotedSeal, noted_seal
from routing_service.telemetry.call_record import CallRecord

EXPECTED_MAX: Final = 100
"""Seals that one call compares; the command compares any number."""

PROBLEM_CHARS_MAX: Final = 500
"""Of one break in an answer: with 100 of them it stays far below the limit of a message."""


class AuditProofCalls:
    """The RPC that proves the audit."""

    def __init__(self, store: Store) -> None:
        """Follow the audit of one store."""
        self._store = store
        self._one_at_a_time = asyncio.Lock()

    @property
    def methods(self) -> Methods:
        """This RPC by name."""
        return {"VerifyAudit": self.verify_audit}

    async def verify_audit(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """Follow the whole audit of one tenant. A second call waits for the first."""
        request = parse(pb.VerifyAuditRequest, data)
        checks = FieldChecks()
        tenant = tenant_of(checks, caller, request.tenant, record)
        if tenant == ALL_TENANTS:
            checks.refuse("tenant", 'is "*"; name one tenant')
        checks.number("expected", len(request.expected), 0, EXPECTED_MAX)
        expected: list[NotedSeal] = []
        for place, seal in enumerate(request.expected):
            try:
                expected.append(noted_seal(tenant, f"{seal.seal}:{seal.hash}"))
            except NotASeal as error:
                checks.refuse(f"expected[{place}]", f"is not a seal: {error}")
        checks.done()
        found = TenantAudit(tenant)
        async with self._one_at_a_time:
            async for each in verify_audit(self._store, tenant, expected):
                found = each
        made = pb.VerifyAuditResponse(
            sessions=found.sessions,
            changes=found.changes,
            entries=found.entries,
            unchained=found.unchained,
            unsealed=found.unsealed,
            seals=found.seals,
            last_seal=found.last_seal,
            last_seal_hash=found.last_seal_hash,
            problems=[problem[:PROBLEM_CHARS_MAX] for problem in found.problems],
            problems_left_out=found.problems_left_out,
        )
        if found.sealed_until_us:
            made.sealed_time.CopyFrom(pm.timestamp(found.sealed_until_us))
        return RpcAnswer(made.SerializeToString())
