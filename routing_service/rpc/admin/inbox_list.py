"""ListInbox: the turns that wait for workers, or that workers have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from google.protobuf.duration_pb2 import Duration

from agent_routing.v1 import admin_service_pb2 as pb
from routing_service.auth.caller import Caller
from routing_service.core.deadlines import deadline_us
from routing_service.core.registry import Registry
from routing_service.rpc import proto_mapping as pm
from routing_service.rpc.admin.request_fields import check_one_tenant, tenant_of
from routing_service.rpc.agent_cards import AgentCards
from routing_service.rpc.page_tokens import bad_token, cursor_in, entry_in, entry_token, token_of
from routing_service.rpc.request_checks import PAGE_SIZE_MAX, FieldChecks, parse
from routing_service.rpc.rpc_method import Methods, RpcAnswer
from routing_service.sessions.command_handler import CommandHandler
from routing_service.sessions.inbox_turns import HeldTurn
from routing_service.storage.queue_entries import QueueEntry
from routing_service.telemetry.call_record import CallRecord

INBOX_PAGE_DEFAULT: Final = 100

SCANNED_MAX: Final = 1_000
"""Entries that one page looks at, as ListApprovals does."""


class InboxListCalls:
    """The RPC that lists inboxes."""

    def __init__(self, handler: CommandHandler, cards_in_force: Callable[[], AgentCards]) -> None:
        """Read through one handler. cards_in_force: returns the cards of the registry in force."""
        self._handler = handler
        self._cards = cards_in_force

    @property
    def methods(self) -> Methods:
        """This RPC by name."""
        return {"ListInbox": self.list_inbox}

    async def list_inbox(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """List the turns in inboxes: agent by agent, the oldest first."""
        request = parse(pb.ListInboxRequest, data)
        checks = FieldChecks()
        tenant = tenant_of(checks, caller, request.tenant, record)
        checks.identifier("agent_id", request.agent_id)
        checks.number("page_size", request.page_size, 0, PAGE_SIZE_MAX)
        checks.done()
        check_one_tenant(tenant)
        registry = self._handler.registry
        queues, after = _position(request, registry)
        left = request.page_size or INBOX_PAGE_DEFAULT
        scans_left = SCANNED_MAX
        response = pb.ListInboxResponse()
        for queue in queues:
            while room := min(left, scans_left):
                entries, held = await self._handler.inbox.list(tenant, queue, after, room)
                response.entries.extend(self._entry_out(each, registry) for each in held)
                left -= len(held)
                scans_left -= len(entries)
                if len(entries) < room:
                    after = None
                    break
                after = entries[-1]
            else:
                response.next_page_token = _token(queue, after)
                break
        return RpcAnswer(response.SerializeToString())

    def _entry_out(self, held: HeldTurn, registry: Registry) -> pb.InboxEntry:
        item, turn, state = held.item, held.turn, held.state
        made = pb.InboxEntry(
            session_id=state.session_id,
            user_id=state.owner,
            request_id=turn.request_id,
            task_id=turn.task_id,
            agent=self._cards().card(turn.holder, pm.locale_of(state)),
            dispatch_time=pm.timestamp(turn.dispatched_us),
            deadline=pm.timestamp(deadline_us(turn, registry)),
            attempt=item.attempt,
        )
        if not item.is_free:
            made.worker_id = item.worker
            made.lease.CopyFrom(Duration())
            made.lease.FromMicroseconds(item.left_us)
        return made


def _position(
    request: pb.ListInboxRequest, registry: Registry
) -> tuple[list[str], QueueEntry | None]:
    """Return the inboxes that are left to list, and the entry to go on after in the first one.

    Raises INVALID_FIELD for a token that this list did not make.
    """
    asked = registry.resolve(request.agent_id) or request.agent_id
    queues = [asked] if asked else sorted(registry.agents)
    if not request.page_token:
        return queues, None
    try:
        queue, is_own, entry = cursor_in(request.page_token).decode().partition("\n")
    except UnicodeDecodeError as error:
        raise bad_token() from error
    if not is_own or (asked and queue != asked):
        raise bad_token()
    # In the order of names: an agent that a reload has removed keeps its place.
    return [each for each in queues if each >= queue], entry_in(entry, queue)


def _token(queue: str, after: QueueEntry | None) -> str:
    return token_of(f"{queue}\n{entry_token(after) if after else ''}".encode())
