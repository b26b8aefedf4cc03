"""ListApprovals and WatchApprovals: what waits for a decision, across the sessions of a tenant."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from typing import Final, assert_never

from agent_routing.v1 import routing_service_pb2 as pb
from routing_service.auth import rights
from routing_service.auth.caller import Caller
from routing_service.core import approvals
from routing_service.core.registry import ROLE_PREFIX
from routing_service.core.session import OpenTurn, SessionState
from routing_service.rpc import proto_mapping as pm
from routing_service.rpc.agent_cards import AgentCards, CardCache
from routing_service.rpc.page_tokens import PAGE_BYTES_MAX, entry_in, entry_token
from routing_service.rpc.request_checks import (
    PAGE_SIZE_MAX,
    FieldChecks,
    parse,
)
from routing_service.rpc.rpc_method import Methods, RpcAnswer
from routing_service.sessions.approval_reads import WaitingApproval, Wanted
from routing_service.sessions.approval_watches import ApprovalWatches, Beat, Ended
from routing_service.sessions.calls import PendingApproval
from routing_service.sessions.command_handler import CommandHandler
from routing_service.storage.queue_entries import APPROVALS_QUEUE
from routing_service.telemetry.call_record import CallRecord

APPROVALS_PAGE_DEFAULT: Final = 100

SCANNED_MAX: Final = 1_000
"""Entries that one page looks at: with a filter that few requests pass it ends early."""

_ROLE: Final = re.compile(r"\A[A-Za-z0-9._:/@+=-]{1,64}\Z")
"""A role as the registry's rule names it."""

_Request = pb.ListApprovalsRequest | pb.WatchApprovalsRequest


class ApprovalCalls:
    """The RPCs of people who decide."""

    def __init__(self, handler: CommandHandler, watches: ApprovalWatches, cards: CardCache) -> None:
        """Read through one handler."""
        self._handler = handler
        self._watches = watches
        self._cards = cards

    @property
    def methods(self) -> Methods:
        """These RPCs by name."""
        return {"ListApprovals": self.list_approvals, "WatchApprovals": self.watch_approvals}

    async def list_approvals(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """List the tenant's requests that wait for an approval, the oldest first."""
        request = parse(pb.ListApprovalsRequest, data)
        checks = FieldChecks()
        checks.number("page_size", request.page_size, 0, PAGE_SIZE_MAX)
        wanted = self._wanted_in(caller, request, checks)
        record.tenant = caller.tenant
        after = entry_in(request.page_token, APPROVALS_QUEUE)
        reads, tenant = self._handler.approvals, caller.tenant
        count = request.page_size or APPROVALS_PAGE_DEFAULT
        response = pb.ListApprovalsResponse()
        scanned, room_bytes, is_last = 0, PAGE_BYTES_MAX, False
        while len(response.approvals) < count and scanned < SCANNED_MAX and room_bytes > 0:
            part = min(count, SCANNED_MAX - scanned)
            entries = await reads.entries(tenant, after, part)
            found = await reads.find_all(tenant, entries, wanted)
            for entry, waiting in zip(entries, found, strict=True):
                if len(response.approvals) == count or room_bytes <= 0:
                    break
                after = entry
                scanned += 1
                if waiting is not None:
                    made = self._waiting_out(waiting, caller)
                    response.approvals.append(made)
                    room_bytes -= made.ByteSize()
            else:
                is_last = len(entries) < part
            if is_last:
                break
        if not is_last and after is not None:
            response.next_page_token = entry_token(after)
        return RpcAnswer(response.SerializeToString())

    async def watch_approvals(
        self, caller: Caller, data: bytes, record: CallRecord
    ) -> AsyncGenerator[tuple[bytes, dict[str, str]]]:
        """Send what waits for an approval, then what begins, changes and ends."""
        request = parse(pb.WatchApprovalsRequest, data)
        checks = FieldChecks()
        heartbeat_s = checks.heartbeat_s(request)
        wanted = self._wanted_in(caller, request, checks)
        record.tenant = caller.tenant
        yield _beat_out(is_complete=False), {}
        async for seen in self._watches.watch(caller.tenant, wanted, heartbeat_s):
            match seen:
                case Beat():
                    body = _beat_out(is_complete=seen.is_complete)
                case Ended():
                    ended = pb.EndedApproval(
                        session_id=seen.entry.session_id, request_id=seen.entry.request_id
                    )
                    body = pb.WatchApprovalsResponse(ended=ended).SerializeToString()
                case WaitingApproval():
                    waiting = self._waiting_out(seen, caller)
                    body = pb.WatchApprovalsResponse(waiting=waiting).SerializeToString()
                case _:
                    assert_never(seen)
            yield body, {}

    def _wanted_in(self, caller: Caller, request: _Request, checks: FieldChecks) -> Wanted:
        """Return which requests pass the filters of a call. Raises INVALID_FIELD."""
        registry = self._handler.registry
        checks.agent("agent_id", request.agent_id, registry)
        if request.role and not _ROLE.match(request.role):
            checks.refuse("role", "is not 1-64 characters of A-Z a-z 0-9 . _ : / @ + = -")
        checks.done()
        agent_id = registry.resolve(request.agent_id) or request.agent_id
        role, mine = request.role, request.mine

        def wanted(state: SessionState, paused: OpenTurn, voters: frozenset[str]) -> bool:
            approval = state.approval
            if agent_id and paused.holder != agent_id:
                return False
            if role and (approval is None or approval.by != f"{ROLE_PREFIX}{role}"):
                return False
            if not mine:
                return True
            found = _standing(state, paused, voters, caller)
            return not (found.why_not or found.has_approved)

        return wanted

    def _waiting_out(self, waiting: WaitingApproval, caller: Caller) -> pb.WaitingApproval:
        state = waiting.state
        cards = self._cards.of(self._handler.registry)
        found = _standing(state, waiting.paused, waiting.voters, caller)
        return pb.WaitingApproval(
            session_id=waiting.key.session_id,
            user_id=state.owner,
            approval=pending_out(state, waiting.paused, waiting.pending, cards),
            may_decide=not found.why_not,
            has_approved=found.has_approved,
        )


def pending_out(
    state: SessionState, paused: OpenTurn, pending: PendingApproval, cards: AgentCards
) -> pb.PendingApproval:
    """Return what a paused task waits for."""
    approval = state.approval
    made = pb.PendingApproval(
        task_id=paused.task_id,
        request_id=paused.request_id,
        agent=cards.card(paused.holder, pm.locale_of(state)),
        prompt=pending.prompt,
        pause_time=pm.timestamp(pending.pause_us),
        by=approval.by if approval else "",
        decisions=len(approval.voters) if approval else 0,
        decisions_needed=approval.needs if approval else 1,
        rejects_on_expiry=approval is not None and approval.rejects,
    )
    if pending.fields is not None:
        made.fields.CopyFrom(pm.context_out(pending.fields))
    if approval is not None and approval.expire_us is not None:
        made.expire_time.CopyFrom(pm.timestamp(approval.expire_us))
    return made


def _standing(
    state: SessionState, paused: OpenTurn, voters: frozenset[str], caller: Caller
) -> approvals.Standing:
    """Return what a caller may do about a request in its own name."""
    approval = state.approval
    if approval is None:
        return approvals.Standing("", has_approved=False)
    decider = rights.decider_of(caller, "")
    return approvals.standing(approval, state.owner, paused.request_id, decider, voters)


def _beat_out(*, is_complete: bool) -> bytes:
    heartbeat = pb.ApprovalsHeartbeat(is_complete=is_complete)
    heartbeat.send_time.GetCurrentTime()
    return pb.WatchApprovalsResponse(heartbeat=heartbeat).SerializeToString()
