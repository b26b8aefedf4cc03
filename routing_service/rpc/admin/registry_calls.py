"""GetRegistry and ReloadAgents: the registry in force, and another one in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from agent_routing.v1 import admin_service_pb2 as pb
from routing_service.auth import rights
from routing_service.auth.caller import Caller
from routing_service.core.errors import Reason, RoutingError, Violation, invalid_field
from routing_service.core.identifiers import REASON_BYTES_MAX
from routing_service.core.registry import Registry
from routing_service.registry.file import RegistryFileError
from routing_service.registry.file_replacement import FileReadOnly
from routing_service.registry.live_registry import (
    OtherInFile,
    OtherInForce,
    RegistrySource,
    Reloaded,
)
from routing_service.registry.yaml_document import FileProblem
from routing_service.rpc.admin.request_fields import operator_of, state_changed, tenant_of
from routing_service.rpc.agent_cards import AgentCards
from routing_service.rpc.request_checks import FieldChecks, parse
from routing_service.rpc.rpc_method import Methods, RpcAnswer
from routing_service.sessions.audit_log import AuditLog
from routing_service.sessions.stickiness_switch import ALL_TENANTS
from routing_service.sessions.touched_sessions import count_touched
from routing_service.storage.checked_store import Store
from routing_service.telemetry.call_record import CallRecord

REGISTRY_BYTES_MAX: Final = 192 * 1024
"""Of the field registry, whose request may have 256 KiB. The largest example has 12 KiB."""

VERSION_BYTES_MAX: Final = 1024
"""Of the versions that callers expect. A file's version is one line that people compare."""

TENANTS_READ_MAX: Final = 1_000

WARNINGS_MAX: Final = 200
"""Warnings in an answer: more than a person reads."""


class RegistryCalls:
    """The RPCs about the registry."""

    def __init__(
        self,
        store: Store,
        *,
        source: RegistrySource,
        audit: AuditLog,
        shown_id: Callable[[str], str] = str,
    ) -> None:
        """Show and change the registry of one source.

        shown_id: a session id as operators see it in examples: hashed as in the log, or as it is.
        """
        self._store = store
        self._source = source
        self._audit = audit
        self._shown_id = shown_id

    @property
    def methods(self) -> Methods:
        """These RPCs by name."""
        return {"GetRegistry": self.get_registry, "ReloadAgents": self.reload_agents}

    async def get_registry(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """Return the registry in force."""
        parse(pb.GetRegistryRequest, data)
        record.tenant = caller.tenant
        registry = self._source.registry
        response = pb.GetRegistryResponse(
            registry_version=registry.version,
            home_agent_id=registry.home_agent_id,
            agents=_agents_out(registry),
            warnings=_warnings_out(self._source.warnings),
            read_only_reason=self._source.read_only_reason,
        )
        return RpcAnswer(response.SerializeToString())

    async def reload_agents(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """Read the registry file again, take another one, or say what that would change."""
        request = parse(pb.ReloadAgentsRequest, data)
        checks = FieldChecks()
        record.tenant = caller.tenant
        tenant = tenant_of(checks, caller, request.tenant, record) if request.tenant else ""
        _check(checks, request)
        checks.done()
        text = candidate_text(request.candidate) or request.registry
        if text and not request.validate_only:
            rights.check_all_tenants(caller, "replacing the registry, which is for all tenants,")
        try:
            made = await self._made(request, text)
        except RegistryFileError as error:
            raise registry_invalid(error) from error
        if not request.validate_only:
            kept = f', the former file is "{made.previous_file}"' if made.previous_file else ""
            await self._audit.act(
                operator_of(caller, record),
                caller.tenant,
                "ReloadAgents",
                reason=request.reason,
                target=f'registry "{made.previous.version}" to "{made.registry.version}"{kept}',
            )
        response = pb.ReloadAgentsResponse(
            registry_version=made.registry.version,
            previous_registry_version=made.previous.version,
            added_agent_ids=made.added,
            removed_agent_ids=made.removed,
            changed_agent_ids=made.changed,
            changed_settings=made.changed_settings,
            previous_file=made.previous_file,
        )
        if request.with_agents:
            response.agents.extend(_agents_out(made.registry))
            response.warnings.extend(_warnings_out(made.warnings))
        if request.with_sessions:
            await self._add_touched(response, made, tenant or caller.tenant)
        return RpcAnswer(response.SerializeToString())

    async def _made(self, request: pb.ReloadAgentsRequest, text: str) -> Reloaded:
        """Reload, take the text, or compare. Raises RegistryFileError, RoutingError."""
        expected = request.expected_registry_version
        if text and request.validate_only:
            return await self._source.compare(text)
        try:
            if text:
                return await self._source.take(text, expected)
            return await self._source.reload(
                validate_only=request.validate_only,
                expected_version=expected,
                expected_file_version=request.expected_file_version,
            )
        except OtherInFile as error:
            field = "expected_file_version"
            raise state_changed(field, request.expected_file_version, error.version) from error
        except OtherInForce as error:
            raise RoutingError(
                Reason.REVISION_MISMATCH,
                f'registry "{error.version}" is in force, and the request expected '
                f'"{request.expected_registry_version}"; try it again',
                metadata={"registry_version": error.version},
            ) from error
        except FileReadOnly as error:
            raise RoutingError(
                Reason.REGISTRY_READ_ONLY,
                f"the registry file cannot be replaced: {error}; change the file where it comes "
                "from, then reload",
            ) from error

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


def _check(checks: FieldChecks, request: pb.ReloadAgentsRequest) -> None:
    checks.text("reason", request.reason, REASON_BYTES_MAX)
    checks.text("registry", request.registry, REGISTRY_BYTES_MAX)
    checks.text("expected_registry_version", request.expected_registry_version, VERSION_BYTES_MAX)
    if request.candidate and request.registry:
        checks.refuse("registry", "was sent with a candidate; send one of the two")
    checks.text("expected_file_version", request.expected_file_version, VERSION_BYTES_MAX)
    if request.expected_file_version and (request.candidate or request.registry):
        checks.refuse("expected_file_version", "is only for the server's own file")
    if not request.validate_only:
        for name in ("registry", "with_sessions", "tenant"):
            if getattr(request, name):
                checks.refuse(name, "is only for validate_only = true")


def candidate_text(candidate: bytes) -> str:
    """Return the text of a candidate. Raises INVALID_FIELD."""
    try:
        return candidate.decode()
    except UnicodeDecodeError as error:
        wrong = candidate[error.start]
        raise invalid_field(
            "candidate",
            f"byte 0x{wrong:02x} at offset {error.start} is not UTF-8; send the file as UTF-8",
        ) from None


def registry_invalid(error: RegistryFileError) -> RoutingError:
    """Return the error for a registry that is refused."""
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


def _agents_out(registry: Registry) -> list[pb.RegistryAgent]:
    cards = AgentCards(registry)
    return [
        pb.RegistryAgent(
            agent=cards.card(agent_id, registry.default_locale),
            handoff_to=sorted(agent.handoff_to or ()),
            lists_handoffs=agent.handoff_to is not None,
            aliases=agent.aliases,
        )
        for agent_id, agent in sorted(registry.agents.items())
    ]


def _warnings_out(warnings: Iterable[FileProblem]) -> list[pb.RegistryWarning]:
    return [
        pb.RegistryWarning(
            line=each.line,
            column=each.column,
            message=": ".join(filter(None, (each.path, f"{each.message}; {each.remedy}"))),
        )
        for each in list(warnings)[:WARNINGS_MAX]
    ]
