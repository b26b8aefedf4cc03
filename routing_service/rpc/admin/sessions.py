"""ListSessions: the sessions of a tenant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from agent_routing.v1 import admin_service_pb2 as pb
from routing_service.auth.caller import Caller
from routing_service.core.session import SessionState
from routing_service.core.strand_fold import every_open_turn
from routing_service.rpc import proto_mapping as pm
from routing_service.rpc.admin.request_fields import check_one_tenant, check_times, tenant_of
from routing_service.rpc.admin.unreadable import UnreadableError, unreadable
from routing_service.rpc.agent_cards import AgentCards
from routing_service.rpc.page_tokens import bad_token, cursor_in, token_of
from routing_service.rpc.request_checks import PAGE_SIZE_MAX, FieldChecks, parse
from routing_service.rpc.rpc_method import Methods, RpcAnswer
from routing_service.storage.checked_store import Store
from routing_service.storage.event_codec import decode_state
from routing_service.storage.store import (
    CursorInvalid,
    SchemaTooNew,
    SessionKey,
    SessionRow,
    StoreCorrupt,
)
from routing_service.telemetry.call_record import CallRecord

SESSIONS_PAGE_DEFAULT: Final = 100

SCANNED_SESSIONS_MAX: Final = 2_000
"""Sessions that are read for one page of ListSessions. If few pass the filter, the page is short
and has a token to go on: no call reads a whole store."""

READ_MAX: Final = 500


class SessionListCalls:
    """The RPC that lists sessions."""

    def __init__(self, store: Store, cards_in_force: Callable[[], AgentCards]) -> None:
        """List a store's sessions. cards_in_force: returns the cards of the registry in force."""
        self._store = store
        self._cards = cards_in_force

    @property
    def methods(self) -> Methods:
        """This RPC by name."""
        return {"ListSessions": self.list_sessions}

    async def list_sessions(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """List sessions in the order of their ids."""
        request = parse(pb.ListSessionsRequest, data)
        checks = FieldChecks()
        tenant = tenant_of(checks, caller, request.tenant, record)
        checks.user("owner", request.owner)
        checks.identifier("active_agent_id", request.active_agent_id)
        checks.channel("channel", request.channel)
        checks.number("page_size", request.page_size, 0, PAGE_SIZE_MAX)
        statuses = {0, *pm.TASK_STATUSES.values()}
        checks.word("task_status", request.task_status, statuses, "a TaskStatus")
        check_times(checks, request, ("update_time_from", "update_time_before"))
        checks.done()
        check_one_tenant(tenant)
        cards = self._cards()
        count = request.page_size or SESSIONS_PAGE_DEFAULT
        response = pb.ListSessionsResponse()
        cursor = cursor_in(request.page_token)
        scanned = 0
        while len(response.sessions) < count and scanned < SCANNED_SESSIONS_MAX:
            # The cursor is behind the last row read, so no more rows are read than fit the page.
            room = min(count - len(response.sessions), READ_MAX)
            try:
                rows, cursor = await self._store.list_sessions(tenant, cursor, room)
            except CursorInvalid as error:
                raise bad_token() from error
            scanned += len(rows)
            for row in rows:
                listed = await self._listed(request, row, cards)
                if listed is not None:
                    response.sessions.append(listed)
            if len(rows) < room:
                return RpcAnswer(response.SerializeToString())
        response.next_page_token = token_of(cursor)
        return RpcAnswer(response.SerializeToString())

    async def _listed(
        self, request: pb.ListSessionsRequest, row: SessionRow, cards: AgentCards
    ) -> pb.SessionSummary | None:
        """Return a session's entry; None if the filter excludes it or it has just been purged."""
        if request.owner and row.user_id != request.owner:
            return None
        if not _is_in_time(request, row.update_us):
            return None
        head = await self._store.load(row.key)
        if head is None:
            return None
        try:
            state = decode_state(head.state)
        except (StoreCorrupt, SchemaTooNew) as error:
            # It must not hide the others. It is listed with what its row has.
            return None if _filters_by_state(request) else row_summary(row, error)
        return summary(row.key, state, cards) if _passes(request, state) else None


def summary(key: SessionKey, state: SessionState, cards: AgentCards) -> pb.SessionSummary:
    """Return a session as lists and exports show it."""
    made = pb.SessionSummary(
        tenant=key.tenant,
        session_id=key.session_id,
        owner=state.owner,
        revision=state.revision,
        locked=state.active is not None and state.active.locked,
        open_turns=len(every_open_turn(state)),
        locale=state.locale,
        channel=state.channel,
        create_time=pm.timestamp(state.create_us),
        update_time=pm.timestamp(state.update_us),
    )
    if state.active is not None:
        made.active_agent.CopyFrom(cards.card(state.active_id, ""))
    if state.task is not None:
        made.task_id = state.task.task_id
        made.task_status = pm.TASK_STATUSES[state.task.status]
    return made


def row_summary(row: SessionRow, error: UnreadableError) -> pb.SessionSummary:
    """Return what is known of a session whose state cannot be read."""
    return pb.SessionSummary(
        tenant=row.key.tenant,
        session_id=row.key.session_id,
        owner=row.user_id,
        revision=row.revision,
        create_time=pm.timestamp(row.create_us),
        update_time=pm.timestamp(row.update_us),
        unreadable=unreadable(row.key, row.revision, error),
    )


def _is_in_time(request: pb.ListSessionsRequest, update_us: int) -> bool:
    if request.HasField("update_time_from") and update_us < pm.time_us(request.update_time_from):
        return False
    return not (
        request.HasField("update_time_before")
        and update_us >= pm.time_us(request.update_time_before)
    )


def _passes(request: pb.ListSessionsRequest, state: SessionState) -> bool:
    """Say whether a session passes the filters that need its state."""
    locked = state.active is not None and state.active.locked
    status = pm.TASK_STATUSES[state.task.status] if state.task else None
    return (
        (not request.active_agent_id or state.active_id == request.active_agent_id)
        and (not request.channel or state.channel == request.channel)
        and (not request.task_status or status == request.task_status)
        and (not request.HasField("locked") or locked == request.locked)
    )


def _filters_by_state(request: pb.ListSessionsRequest) -> bool:
    """Say whether a filter is set that needs a session's state."""
    return bool(
        request.active_agent_id
        or request.channel
        or request.task_status
        or request.HasField("locked")
    )
