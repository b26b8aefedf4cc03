"""ListEvents and WatchEvents: every event, and every refused handoff."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import session_event_pb2
from routing_service.auth.caller import Caller
from routing_service.core.errors import invalid_field
from routing_service.rpc import proto_mapping as pm
from routing_service.rpc.admin.request_fields import (
    check_one_tenant,
    check_times,
    tenant_of,
    time_bound_us,
)
from routing_service.rpc.agent_cards import AgentCards
from routing_service.rpc.event_mapping import (
    change_out,
    event_out,
    method_path,
    refusal_out,
    switch_out,
)
from routing_service.rpc.page_tokens import (
    PAGE_BYTES_MAX,
    bad_token,
    cursor_in,
    revision_in,
    token_of,
)
from routing_service.rpc.request_checks import (
    HEARTBEAT_S_DEFAULT,
    PAGE_SIZE_MAX,
    FieldChecks,
    parse,
)
from routing_service.rpc.rpc_method import Methods, RpcAnswer
from routing_service.rpc.tenant_audit import READ_MAX, SCANNED_MAX, fill_page, read_position
from routing_service.sessions.event_feed import EventFeed
from routing_service.sessions.refusals import HANDOFF_REFUSED
from routing_service.sessions.stickiness_switch import ALL_TENANTS, STICKINESS_SWITCHED
from routing_service.storage.event_codec import decode_change, decode_state
from routing_service.storage.store import (
    CURSOR_START,
    AuditEntry,
    Change,
    CursorInvalid,
    SessionKey,
    Store,
    StoreCorrupt,
)
from routing_service.telemetry.call_record import CallRecord

_log = structlog.get_logger(__name__)

RECORDS_PAGE_DEFAULT: Final = 100
KINDS_MAX: Final = 32

SCANNED_CHANGES_MAX: Final = 5_000
"""Changes that are read for one page of ListEvents. If few pass the filter, the page is short and
has a token to go on: no call reads a whole store."""

READ_REFUSALS_MAX: Final = 500

READ_CHANGES_MAX: Final = 50
"""Changes read at once for a page of ListEvents: each may have 300 KB of text, which no event
shows."""

_KINDS: Final = frozenset(
    field.name for field in session_event_pb2.SessionEvent.DESCRIPTOR.oneofs_by_name["kind"].fields
)


class AuditCalls:
    """The RPCs that list and watch events."""

    def __init__(
        self,
        store: Store,
        feed: EventFeed,
        cards_in_force: Callable[[], AgentCards],
        *,
        read_max: int = READ_MAX,
        scanned_max: int = SCANNED_MAX,
    ) -> None:
        """Read one store, watch one feed.

        cards_in_force: returns the cards of the registry in force. read_max, scanned_max: changes
        that are read at once, and for one page, of a tenant's audit.
        """
        self._read_max = read_max
        self._scanned_max = scanned_max
        self._store = store
        self._feed = feed
        self._cards = cards_in_force

    @property
    def methods(self) -> Methods:
        """These RPCs by name."""
        return {"ListEvents": self.list_events, "WatchEvents": self.watch_events}

    async def list_events(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """List the audit of one session, or of all sessions of a tenant."""
        request = parse(pb.ListEventsRequest, data)
        checks = FieldChecks()
        tenant = tenant_of(checks, caller, request.tenant, record)
        checks.identifier("session_id", request.session_id)
        for field in ("owner", "actor"):
            checks.user(field, getattr(request, field))
        checks.uuid("request_id", request.request_id)
        checks.identifier("agent_id", request.agent_id)
        checks.number("page_size", request.page_size, 0, PAGE_SIZE_MAX)
        checks.word("order", request.order, pb.EventOrder.values(), "NEWEST_FIRST or OLDEST_FIRST")
        _check_kinds(checks, request.kinds)
        check_times(checks, request, ("event_time_from", "event_time_before"))
        checks.done()
        check_one_tenant(tenant)
        if not request.session_id:
            return await self._events_of_tenant(tenant, request)
        record.session_id = request.session_id
        return await self._events_of_session(SessionKey(tenant, request.session_id), request)

    async def _events_of_tenant(self, tenant: str, request: pb.ListEventsRequest) -> RpcAnswer:
        """List the audit of all sessions of a tenant in the order of the log: oldest first."""
        if request.order == pb.EVENT_ORDER_NEWEST_FIRST:
            raise invalid_field(
                "order",
                "is NEWEST_FIRST without a session_id; name a session, or read OLDEST_FIRST from "
                "event_time_from on",
            )
        event_filter = _EventFilter.of(request)
        cards = self._cards()
        owners: dict[SessionKey, str] = {}

        async def make_records(
            key: SessionKey, entry: Change | AuditEntry
        ) -> Iterable[pb.AuditRecord]:
            found = [record for record in _records_in(key, entry, cards) if event_filter(record)]
            if found and request.owner:
                if key not in owners:
                    row = await self._store.find_session(key)
                    owners[key] = row.user_id if row else ""
                if owners[key] != request.owner:
                    return ()
            return found

        response = pb.ListEventsResponse()
        try:
            position = await fill_page(
                self._store,
                response,
                read_position(cursor_in(request.page_token)),
                tenant=tenant,
                records_max=request.page_size or RECORDS_PAGE_DEFAULT,
                bytes_max=PAGE_BYTES_MAX,
                make_records=make_records,
                read_max=self._read_max,
                scanned_max=self._scanned_max,
            )
        except CursorInvalid as error:
            raise bad_token() from error
        response.next_page_token = token_of(position)
        return RpcAnswer(response.SerializeToString())

    async def _events_of_session(self, key: SessionKey, request: pb.ListEventsRequest) -> RpcAnswer:
        """List one session's audit: a revision's events, then what was refused at it."""
        response = pb.ListEventsResponse()
        head = await self._store.load(key)
        if head is None:
            return RpcAnswer(response.SerializeToString())
        if request.owner and decode_state(head.state).owner != request.owner:
            return RpcAnswer(response.SerializeToString())
        refused = await read_refusals(self._store, key)
        await self._fill_events(response, key, request, refused)
        return RpcAnswer(response.SerializeToString())

    async def _fill_events(
        self,
        response: pb.ListEventsResponse,
        key: SessionKey,
        request: pb.ListEventsRequest,
        refused: list[AuditEntry],
    ) -> None:
        event_filter = _EventFilter.of(request)
        newest_first = request.order != pb.EVENT_ORDER_OLDEST_FIRST
        count = request.page_size or RECORDS_PAGE_DEFAULT
        cards = self._cards()
        revision = revision_in(request.page_token)
        scanned = 0
        room_bytes = PAGE_BYTES_MAX
        while scanned < SCANNED_CHANGES_MAX:
            changes = await self._store.read_changes(
                key,
                after=0 if newest_first else revision or 0,
                before=revision if newest_first else None,
                limit=READ_CHANGES_MAX,
                newest_first=newest_first,
            )
            for change in changes:
                records = records_of(key, change, refused, cards)
                found = [record for record in records if event_filter(record)]
                if newest_first:
                    found.reverse()
                response.records.extend(found)
                room_bytes -= sum(record.ByteSize() for record in found)
                revision = change.revision
                if len(response.records) >= count or room_bytes <= 0:
                    response.next_page_token = token_of(str(revision).encode())
                    return
            scanned += len(changes)
            if len(changes) < READ_CHANGES_MAX:
                return
        response.next_page_token = token_of(str(revision).encode())

    async def watch_events(
        self, caller: Caller, data: bytes, record: CallRecord
    ) -> AsyncGenerator[tuple[bytes, dict[str, str]]]:
        """Send the changes of all sessions of a tenant, each at least once."""
        request = parse(pb.WatchEventsRequest, data)
        checks = FieldChecks()
        tenant = tenant_of(checks, caller, request.tenant, record)
        _check_kinds(checks, request.kinds)
        heartbeat_s = HEARTBEAT_S_DEFAULT
        if request.HasField("heartbeat_interval"):
            heartbeat_s = checks.heartbeat("heartbeat_interval", request.heartbeat_interval)
        checks.done()
        cursor = cursor_in(request.cursor, "cursor")
        if not request.cursor:
            cursor = CURSOR_START if request.from_beginning else await self._store.log_end()
        kinds = frozenset(request.kinds)
        # The first message tells the reader where the stream starts, before anything happens.
        yield _heartbeat(cursor), {"cursor": token_of(cursor)}
        try:
            async for entries, after in self._feed.log_changes(cursor, heartbeat_s):
                cards = self._cards()
                for key, change in entries:
                    message = _watched_change(key, change, tenant, kinds, cards)
                    if message is not None:
                        # Only the last entry of a batch moves the cursor. After a broken stream a
                        # reader recognises repeated changes by their revisions.
                        message.cursor = token_of(after if change is entries[-1][1] else cursor)
                        yield message.SerializeToString(), {"cursor": message.cursor}
                cursor = after
                if not entries:
                    yield _heartbeat(cursor), {"cursor": token_of(cursor)}
        except CursorInvalid as error:
            raise bad_token("cursor") from error


async def read_refusals(store: Store, key: SessionKey) -> list[AuditEntry]:
    """Return the audit entries of a session's refused handoffs."""
    entries: list[AuditEntry] = []
    cursor = CURSOR_START
    while True:
        page, cursor = await store.read_audit(key.tenant, key.session_id, cursor, READ_REFUSALS_MAX)
        entries += [entry for entry in page if entry.kind == HANDOFF_REFUSED]
        if len(page) < READ_REFUSALS_MAX:
            return entries


def records_of(
    key: SessionKey, change: Change, refused: list[AuditEntry], cards: AgentCards
) -> list[pb.AuditRecord]:
    """Return a change's events as audit records, then what was refused at its revision.

    Raises SchemaTooNew, StoreCorrupt.
    """
    stored = decode_change(change.events)
    method = method_path(change.method)
    records = []
    if not stored.events:
        # Erased: what remains is that there was a change, when, and by which call.
        left = session_event_pb2.SessionEvent(
            event_id=f"{change.revision}.0",
            session_id=key.session_id,
            revision=change.revision,
            event_time=pm.timestamp(change.time_us),
            request_id=change.request_id,
        )
        records.append(pb.AuditRecord(tenant=key.tenant, event=left, method=method))
    for index in range(len(stored.events)):
        event = event_out(key, change, stored, index, cards)
        if event is not None:
            made = pb.AuditRecord(
                tenant=key.tenant,
                event=event,
                actor=stored.actor or stored.user_id,
                method=method,
            )
            if stored.actor and stored.actor != stored.user_id:
                made.acting_for = stored.user_id
            records.append(made)
    records += [
        _refusal_record(key, entry, cards) for entry in refused if entry.revision == change.revision
    ]
    return records


@dataclass(frozen=True, slots=True)
class _EventFilter:
    """The filter of a ListEvents."""

    actor: str = ""
    request_id: str = ""
    agent_id: str = ""
    kinds: frozenset[str] = frozenset()
    from_us: int | None = None
    before_us: int | None = None

    @classmethod
    def of(cls, request: pb.ListEventsRequest) -> _EventFilter:
        return cls(
            actor=request.actor,
            request_id=request.request_id,
            agent_id=request.agent_id,
            kinds=frozenset(request.kinds),
            from_us=time_bound_us(request, "event_time_from"),
            before_us=time_bound_us(request, "event_time_before"),
        )

    def __call__(self, record: pb.AuditRecord) -> bool:
        """Say whether a record passes."""
        event = record.event
        if self.kinds and event.WhichOneof("kind") not in self.kinds:
            return False
        if self.request_id and event.request_id != self.request_id:
            return False
        if self.actor and record.actor != self.actor:
            return False
        time_us = pm.time_us(event.event_time)
        if self.from_us is not None and time_us < self.from_us:
            return False
        if self.before_us is not None and time_us >= self.before_us:
            return False
        return not self.agent_id or self.agent_id in _agents_in(event)


def _check_kinds(checks: FieldChecks, kinds: Iterable[str]) -> None:
    listed = list(kinds)
    if len(listed) > KINDS_MAX:
        checks.refuse("kinds", f"has {len(listed)} entries; send at most {KINDS_MAX}")
    for kind in listed[:KINDS_MAX]:
        if kind not in _KINDS:
            checks.refuse("kinds", f'"{kind[:64]}" is not a kind of event; see SessionEvent.kind')


def _agents_in(event: session_event_pb2.SessionEvent) -> set[str]:
    """Return the agents that take part in an event."""
    kind = event.WhichOneof("kind")
    if kind is None:
        return set()
    body = getattr(event, kind)
    found = set()
    for field, value in body.ListFields():
        if field.name in ("agent", "previous_agent"):
            found.add(value.agent_id)
        elif field.name == "handoff":
            found |= {getattr(value, "from").agent_id, value.to.agent_id}
    return found


def _records_in(
    key: SessionKey, entry: Change | AuditEntry, cards: AgentCards
) -> list[pb.AuditRecord]:
    """Return the records of one change or audit entry; none if it cannot be read."""
    if isinstance(entry, AuditEntry):
        if entry.kind == STICKINESS_SWITCHED:
            event, actor = switch_out(entry)
            method = method_path("SetStickiness")
            return [pb.AuditRecord(tenant=key.tenant, event=event, actor=actor, method=method)]
        is_refusal = entry.kind == HANDOFF_REFUSED and entry.data
        return [_refusal_record(key, entry, cards)] if is_refusal else []
    try:
        return records_of(key, entry, [], cards)
    except StoreCorrupt as error:
        # One damaged row must not hide the others.
        _log.error("change_unreadable", revision=entry.revision, error=str(error))
        return []


def _refusal_record(key: SessionKey, entry: AuditEntry, cards: AgentCards) -> pb.AuditRecord:
    event, method = refusal_out(key, entry, cards)
    data = msgspec.json.decode(entry.data) if entry.data else {}
    actor = str(data.get("actor") or entry.user_id)
    return pb.AuditRecord(tenant=key.tenant, event=event, actor=actor, method=method)


def _heartbeat(cursor: bytes) -> bytes:
    message = pb.WatchEventsResponse(cursor=token_of(cursor))
    message.heartbeat.SetInParent()
    return message.SerializeToString()


def _watched_change(
    key: SessionKey, change: Change, tenant: str, kinds: frozenset[str], cards: AgentCards
) -> pb.WatchEventsResponse | None:
    """Return a change for a watcher; None if it is not wanted, is empty or cannot be read."""
    if tenant not in (ALL_TENANTS, key.tenant):
        return None
    try:
        made = change_out(key, change, cards)
    except StoreCorrupt as error:
        # A watch of all sessions goes on; the watchers of this session get the error.
        _log.error(
            "change_unreadable",
            tenant=key.tenant,
            session_id=key.session_id,
            revision=change.revision,
            error=str(error),
        )
        return None
    if kinds and all(event.WhichOneof("kind") not in kinds for event in made.events):
        return None
    if not made.events:
        return None
    return pb.WatchEventsResponse(tenant=key.tenant, change=made)
