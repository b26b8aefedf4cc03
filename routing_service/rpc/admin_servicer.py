"""AdminService, one short method per RPC: what operators may ask and do.

Owns: the checks and answers of these RPCs. Must not know: who may call them (that is decided before
a call comes here). Rule: within the caller's tenant, unless another one is named; lists are pages,
and a page is bounded work.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import session_event_pb2
from routing_service.analytics.keeper import StatsKeeper
from routing_service.analytics.report import read_report
from routing_service.auth import rights
from routing_service.auth.caller import Caller
from routing_service.core.errors import Reason, RoutingError, Violation, invalid_field
from routing_service.core.session import SessionState, Task
from routing_service.core.vocabulary import TaskStatus
from routing_service.registry.file import RegistryFileError
from routing_service.registry.live_registry import RegistrySource
from routing_service.rpc import proto_mapping as pm
from routing_service.rpc.event_mapping import change_out, event_out, method_path, refusal_out
from routing_service.rpc.request_checks import (
    HEARTBEAT_S_DEFAULT,
    PAGE_SIZE_MAX,
    REASON_BYTES_MAX,
    FieldChecks,
    parse,
)
from routing_service.rpc.routing_servicer import PAGE_BYTES_MAX, Answered
from routing_service.rpc.stats_mapping import stats_out
from routing_service.rpc.tenant_audit import fill_page, read_place
from routing_service.sessions.command_handler import CommandHandler
from routing_service.sessions.event_feed import EventFeed
from routing_service.sessions.refusals import HANDOFF_REFUSED
from routing_service.sessions.retention import PURGE_SESSIONS_MAX, Retention
from routing_service.sessions.stickiness_switch import ALL_TENANTS, StickinessSwitch
from routing_service.storage.event_codec import decode_change, decode_state
from routing_service.storage.store import (
    CURSOR_START,
    TASKS_START,
    AuditEntry,
    Change,
    CursorInvalid,
    SessionKey,
    SessionRow,
    Store,
    StoreCorrupt,
)
from routing_service.telemetry.call_record import CallRecord

_log = structlog.get_logger(__name__)

PAGE_SIZE_DEFAULT: Final = 100
KINDS_MAX: Final = 32
PURGE_SESSIONS_DEFAULT: Final = 1_000

SCANNED_SESSIONS_MAX: Final = 2_000
"""Sessions that one page of ListSessions looks at. A filter that few pass makes short pages, with a
token to go on, rather than a call that reads a whole store."""

SCANNED_CHANGES_MAX: Final = 5_000
"""Changes that one page of ListEvents looks at, for the same reason."""

READ_MAX: Final = 500

READ_CHANGES_MAX: Final = 50
"""Changes read at once for a page of ListEvents: each may have as much as 300 KB of words, which
no event shows."""

EXPORT_TURNS: Final = 50
"""Turns read at once for an export: with their words they may be large."""

_KINDS: Final = frozenset(
    field.name for field in session_event_pb2.SessionEvent.DESCRIPTOR.oneofs_by_name["kind"].fields
)


@dataclass(frozen=True, slots=True)
class _EventFilter:
    """What ListEvents and WatchEvents are narrowed to."""

    actor: str = ""
    request_id: str = ""
    agent_id: str = ""
    kinds: frozenset[str] = frozenset()
    from_us: int | None = None
    before_us: int | None = None

    def takes(self, record: pb.AuditRecord) -> bool:
        """Say whether a record is wanted."""
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


class AdminServicer:
    """The RPCs of agent_routing.v1.AdminService."""

    def __init__(
        self,
        store: Store,
        handler: CommandHandler,
        feed: EventFeed,
        *,
        source: RegistrySource,
        switch: StickinessSwitch,
        stats: StatsKeeper,
        clock_us: Callable[[], int],
    ) -> None:
        """Answer from one store. clock_us: microseconds since 1970."""
        self._store = store
        self._handler = handler
        self._feed = feed
        self._source = source
        self._switch = switch
        self._stats = stats
        self._clock_us = clock_us
        self._retention = Retention(store, handler, feed, clock_us)

    def _cards(self) -> pm.AgentCards:
        return pm.AgentCards(self._source.registry)

    async def list_sessions(self, caller: Caller, data: bytes, record: CallRecord) -> Answered:
        """List sessions, in the order of their ids."""
        request = parse(pb.ListSessionsRequest, data)
        checks = FieldChecks()
        tenant = _tenant(checks, caller, request.tenant, record)
        checks.user("owner", request.owner)
        checks.identifier("active_agent_id", request.active_agent_id)
        checks.channel("channel", request.channel)
        checks.number("page_size", request.page_size, 0, PAGE_SIZE_MAX)
        statuses = {0, *pm.TASK_STATUSES.values()}
        checks.word("task_status", request.task_status, statuses, "a TaskStatus")
        _check_times(checks, request, ("update_time_from", "update_time_before"))
        checks.done()
        _one_tenant(tenant)
        cards = self._cards()
        count = request.page_size or PAGE_SIZE_DEFAULT
        response = pb.ListSessionsResponse()
        cursor = _cursor(request.page_token)
        scanned = 0
        while len(response.sessions) < count and scanned < SCANNED_SESSIONS_MAX:
            # No more rows than the page has room for: the cursor is behind the last one read.
            room = min(count - len(response.sessions), READ_MAX)
            try:
                rows, cursor = await self._store.list_sessions(tenant, cursor, room)
            except CursorInvalid as error:
                raise _bad_token("page_token") from error
            scanned += len(rows)
            for row in rows:
                if request.owner and row.user_id != request.owner:
                    continue
                if not _in_time(request, row.update_us):
                    continue
                head = await self._store.load(row.key)
                if head is None:
                    continue
                try:
                    state = decode_state(head.state)
                except StoreCorrupt:
                    # The others are listed all the same, and this one for as much as is known.
                    if not _asks_for_state(request):
                        response.sessions.append(_outline(row))
                    continue
                if _wanted(request, state):
                    response.sessions.append(_summary(row.key, state, cards))
            if len(rows) < room:
                return Answered(response.SerializeToString())
        response.next_page_token = _token(cursor)
        return Answered(response.SerializeToString())

    async def list_events(self, caller: Caller, data: bytes, record: CallRecord) -> Answered:
        """List the audit: every event, and every refused handoff."""
        request = parse(pb.ListEventsRequest, data)
        checks = FieldChecks()
        tenant = _tenant(checks, caller, request.tenant, record)
        checks.identifier("session_id", request.session_id)
        for field in ("owner", "actor"):
            checks.user(field, getattr(request, field))
        checks.uuid("request_id", request.request_id)
        checks.identifier("agent_id", request.agent_id)
        checks.number("page_size", request.page_size, 0, PAGE_SIZE_MAX)
        checks.word("order", request.order, pb.EventOrder.values(), "NEWEST_FIRST or OLDEST_FIRST")
        _check_kinds(checks, request.kinds)
        _check_times(checks, request, ("event_time_from", "event_time_before"))
        checks.done()
        _one_tenant(tenant)
        if not request.session_id:
            return await self._events_of_all(tenant, request)
        key = SessionKey(tenant, request.session_id)
        record.session_id = request.session_id
        head = await self._store.load(key)
        response = pb.ListEventsResponse()
        if head is None:
            return Answered(response.SerializeToString())
        if request.owner and decode_state(head.state).owner != request.owner:
            return Answered(response.SerializeToString())
        wanted = _event_filter(request)
        newest_first = request.order != pb.EVENT_ORDER_OLDEST_FIRST
        refused = await self._refusals(key)
        await self._fill_events(response, key, request, wanted, refused, newest_first=newest_first)
        return Answered(response.SerializeToString())

    async def _events_of_all(self, tenant: str, request: pb.ListEventsRequest) -> Answered:
        """List the audit of all sessions of a tenant, as the log has it: the oldest first."""
        if request.order == pb.EVENT_ORDER_NEWEST_FIRST:
            raise invalid_field(
                "order",
                "is NEWEST_FIRST without a session_id; name a session, or read OLDEST_FIRST from "
                "event_time_from on",
            )
        wanted = _event_filter(request)
        cards = self._cards()
        owners: dict[SessionKey, str] = {}

        async def make_records(
            key: SessionKey, what: Change | AuditEntry
        ) -> Iterable[pb.AuditRecord]:
            if isinstance(what, AuditEntry):
                if what.kind != HANDOFF_REFUSED or not what.data:
                    return ()
                event, method = refusal_out(key, what, cards)
                made = [_record(key, event, _actor_of(what), method)]
            else:
                try:
                    made = _records(key, what, [], cards)
                except StoreCorrupt as error:
                    # One damaged row must not hide all others.
                    _log.error("change_unreadable", revision=what.revision, error=str(error))
                    return ()
            found = [record for record in made if wanted.takes(record)]
            if found and request.owner:
                if key not in owners:
                    row = await self._store.find_session(key)
                    owners[key] = row.user_id if row else ""
                if owners[key] != request.owner:
                    return ()
            return found

        response = pb.ListEventsResponse()
        try:
            place = await fill_page(
                self._store,
                response,
                read_place(_cursor(request.page_token)),
                tenant=tenant,
                records_max=request.page_size or PAGE_SIZE_DEFAULT,
                bytes_max=PAGE_BYTES_MAX,
                make_records=make_records,
            )
        except CursorInvalid as error:
            raise _bad_token("page_token") from error
        response.next_page_token = _token(place)
        return Answered(response.SerializeToString())

    async def _fill_events(
        self,
        response: pb.ListEventsResponse,
        key: SessionKey,
        request: pb.ListEventsRequest,
        wanted: _EventFilter,
        refused: list[AuditEntry],
        *,
        newest_first: bool,
    ) -> None:
        """Fill one page, a revision at a time: its events, then what was refused at it."""
        count = request.page_size or PAGE_SIZE_DEFAULT
        cards = self._cards()
        place = _revision_token(request.page_token)
        scanned = 0
        room_bytes = PAGE_BYTES_MAX
        while scanned < SCANNED_CHANGES_MAX:
            changes = await self._store.read_changes(
                key,
                after=0 if newest_first else place or 0,
                before=place if newest_first else None,
                limit=READ_CHANGES_MAX,
                newest_first=newest_first,
            )
            for change in changes:
                records = _records(key, change, refused, cards)
                found = [record for record in records if wanted.takes(record)]
                if newest_first:
                    found.reverse()
                response.records.extend(found)
                room_bytes -= sum(record.ByteSize() for record in found)
                place = change.revision
                if len(response.records) >= count or room_bytes <= 0:
                    response.next_page_token = _token(str(place).encode())
                    return
            scanned += len(changes)
            if len(changes) < READ_CHANGES_MAX:
                return
        response.next_page_token = _token(str(place).encode())

    async def _refusals(self, key: SessionKey) -> list[AuditEntry]:
        entries: list[AuditEntry] = []
        cursor = CURSOR_START
        while True:
            page, cursor = await self._store.read_audit(
                key.tenant, key.session_id, cursor, READ_MAX
            )
            entries += [entry for entry in page if entry.kind == HANDOFF_REFUSED]
            if len(page) < READ_MAX:
                return entries

    async def watch_events(
        self, caller: Caller, data: bytes, record: CallRecord
    ) -> AsyncGenerator[tuple[bytes, dict[str, str]]]:
        """Send the changes of all sessions of a tenant, at least once each."""
        request = parse(pb.WatchEventsRequest, data)
        checks = FieldChecks()
        tenant = _tenant(checks, caller, request.tenant, record)
        _check_kinds(checks, request.kinds)
        heartbeat_s = HEARTBEAT_S_DEFAULT
        if request.HasField("heartbeat_interval"):
            heartbeat_s = checks.heartbeat("heartbeat_interval", request.heartbeat_interval)
        checks.done()
        cursor = _cursor(request.cursor, "cursor")
        if not request.cursor:
            cursor = CURSOR_START if request.from_beginning else await self._store.log_end()
        kinds = frozenset(request.kinds)
        # The first message says where the stream begins, before anything has happened.
        yield _log_message(cursor), {"cursor": _token(cursor)}
        try:
            async for entries, after in self._feed.log_changes(cursor, heartbeat_s):
                cards = self._cards()
                for key, change in entries:
                    try:
                        message = _log_change(key, change, tenant, kinds, cards)
                    except StoreCorrupt as error:
                        # Its own watchers are told; a stream of all sessions goes on.
                        _log.error(
                            "change_unreadable",
                            tenant=key.tenant,
                            session_id=key.session_id,
                            revision=change.revision,
                            error=str(error),
                        )
                        continue
                    if message is not None:
                        # Only the last entry of a batch moves the cursor: what comes again after a
                        # broken stream is known by its revision.
                        message.cursor = _token(after if change is entries[-1][1] else cursor)
                        yield message.SerializeToString(), {"cursor": message.cursor}
                cursor = after
                if not entries:
                    yield _log_message(cursor), {"cursor": _token(cursor)}
        except CursorInvalid as error:
            raise _bad_token("cursor") from error

    async def get_routing_stats(self, caller: Caller, data: bytes, record: CallRecord) -> Answered:
        """Tell how routing does."""
        request = parse(pb.GetRoutingStatsRequest, data)
        checks = FieldChecks()
        tenant = _tenant(checks, caller, request.tenant, record)
        checks.channel("channel", request.channel)
        _check_times(checks, request, ("start_time", "end_time"))
        start_us, end_us = _bound(request, "start_time"), _bound(request, "end_time")
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
        stickiness_enabled = await self._switch.read(tenant)
        response = stats_out(report, stickiness_enabled=stickiness_enabled)
        return Answered(response.SerializeToString())

    async def reload_agents(self, caller: Caller, data: bytes, record: CallRecord) -> Answered:
        """Read the registry file again."""
        request = parse(pb.ReloadAgentsRequest, data)
        record.tenant = caller.tenant
        try:
            made = await self._source.reload(validate_only=request.validate_only)
        except RegistryFileError as error:
            raise _registry_invalid(error) from error
        response = pb.ReloadAgentsResponse(
            registry_version=made.registry.version,
            previous_registry_version=made.previous.version,
            added_agent_ids=made.added,
            removed_agent_ids=made.removed,
            changed_agent_ids=made.changed,
        )
        return Answered(response.SerializeToString())

    async def set_stickiness(self, caller: Caller, data: bytes, record: CallRecord) -> Answered:
        """Switch stickiness for a tenant, or for all."""
        request = parse(pb.SetStickinessRequest, data)
        checks = FieldChecks()
        tenant = _tenant(checks, caller, request.tenant, record)
        checks.text("reason", request.reason, REASON_BYTES_MAX)
        if not request.HasField("enabled"):
            checks.refuse("enabled", "is required; send true or false")
        checks.done()
        before = await self._switch.read(tenant)
        now_us = self._clock_us()
        changed = await self._switch.switch(
            tenant, enabled=request.enabled, now_us=now_us, reason=request.reason
        )
        response = pb.SetStickinessResponse(enabled=request.enabled, previously_enabled=before)
        if changed:
            response.update_time.CopyFrom(pm.timestamp(now_us))
        return Answered(response.SerializeToString())

    async def export_user(
        self, caller: Caller, data: bytes, record: CallRecord
    ) -> AsyncGenerator[tuple[bytes, dict[str, str]]]:
        """Send everything that is kept about a user, session by session."""
        request = parse(pb.ExportUserRequest, data)
        checks = FieldChecks()
        tenant = _tenant(checks, caller, request.tenant, record)
        if tenant == ALL_TENANTS:
            checks.refuse("tenant", 'is "*"; name the user\'s own tenant')
        if not request.user_id:
            checks.refuse("user_id", "is required; name the user")
        checks.user("user_id", request.user_id)
        checks.done()
        cursor = CURSOR_START
        while True:
            rows, cursor = await self._store.list_sessions(tenant, cursor, READ_MAX)
            for row in rows:
                if row.user_id == request.user_id:
                    record.session_id = row.key.session_id
                    async for part in self._export(row.key):
                        part.session_id = row.key.session_id
                        yield part.SerializeToString(), {"session_id": row.key.session_id}
            if len(rows) < READ_MAX:
                return

    async def erase_user(self, caller: Caller, data: bytes, record: CallRecord) -> Answered:
        """Erase the content of all sessions of a user."""
        request = parse(pb.EraseUserRequest, data)
        checks = FieldChecks()
        tenant = _tenant(checks, caller, request.tenant, record)
        if tenant == ALL_TENANTS:
            checks.refuse("tenant", 'is "*"; name the user\'s own tenant')
        if not request.user_id:
            checks.refuse("user_id", "is required; name the user")
        checks.user("user_id", request.user_id)
        checks.text("reason", request.reason, REASON_BYTES_MAX)
        checks.done()
        erased = await self._retention.erase_user(
            tenant,
            request.user_id,
            reason=request.reason,
            validate_only=request.validate_only,
        )
        response = pb.EraseUserResponse(
            sessions_erased=erased.sessions,
            turns_erased=erased.turns,
            records_stripped=erased.records,
        )
        if not request.validate_only:
            response.erase_time.CopyFrom(pm.timestamp(self._clock_us()))
        return Answered(response.SerializeToString())

    async def purge_sessions(self, caller: Caller, data: bytes, record: CallRecord) -> Answered:
        """Remove sessions that did not change since a time."""
        request = parse(pb.PurgeSessionsRequest, data)
        checks = FieldChecks()
        tenant = _tenant(checks, caller, request.tenant, record)
        checks.number("sessions_max", request.sessions_max, 0, PURGE_SESSIONS_MAX)
        checks.text("reason", request.reason, REASON_BYTES_MAX)
        if not request.HasField("update_time_before"):
            checks.refuse("update_time_before", "is required; nothing is removed unless asked for")
        else:
            checks.timestamp("update_time_before", request.update_time_before)
        checks.done()
        before_us = pm.time_us(request.update_time_before)
        if before_us > self._clock_us():
            raise invalid_field("update_time_before", "is in the future; give a time in the past")
        purged = await self._retention.purge(
            tenant,
            before_us,
            sessions_max=request.sessions_max or PURGE_SESSIONS_DEFAULT,
            reason=request.reason,
            validate_only=request.validate_only,
        )
        response = pb.PurgeSessionsResponse(sessions_purged=purged.sessions, more=purged.more)
        return Answered(response.SerializeToString())

    async def _export(self, key: SessionKey) -> AsyncGenerator[pb.ExportUserResponse]:
        """Make the parts of one session: itself, its tasks, turns and audit."""
        head = await self._store.load(key)
        if head is None:
            return
        cards = self._cards()
        state = decode_state(head.state)
        yield pb.ExportUserResponse(session=_summary(key, state, cards))
        after = TASKS_START
        while tasks := await self._handler.reads.list_tasks(key, after, READ_MAX):
            for row, metadata in tasks:
                after = row.cursor
                task = Task(
                    row.task_id,
                    TaskStatus(row.status),
                    row.create_us,
                    row.update_us,
                    row.expire_us,
                )
                made = pm.task_out(task, metadata, key.session_id, row.user_id)
                yield pb.ExportUserResponse(task=made)
        place = (0, -1)
        while turns := await self._handler.turns.oldest_first(
            key, place, EXPORT_TURNS, lambda _: True
        ):
            for turn in turns:
                place = turn.position
                yield pb.ExportUserResponse(turn=pm.turn_out(turn))
        refused = await self._refusals(key)
        revision = 0
        while changes := await self._store.read_changes(key, after=revision, limit=READ_MAX):
            for change in changes:
                revision = change.revision
                for made_record in _records(key, change, refused, cards):
                    yield pb.ExportUserResponse(record=made_record)


def _tenant(checks: FieldChecks, caller: Caller, asked: str, record: CallRecord) -> str:
    """Return the tenant that a call is about; ALL_TENANTS where all are meant."""
    if asked and asked != ALL_TENANTS:
        checks.identifier("tenant", asked)
    record.tenant = asked or caller.tenant
    rights.check_tenant(caller, asked)
    return record.tenant


def _one_tenant(tenant: str) -> None:
    if tenant == ALL_TENANTS:
        raise invalid_field("tenant", 'is "*"; in this release this list is of one tenant: name it')


def _check_times(
    checks: FieldChecks,
    request: pb.ListSessionsRequest | pb.ListEventsRequest | pb.GetRoutingStatsRequest,
    fields: tuple[str, str],
) -> None:
    given = {descriptor.name for descriptor, _ in request.ListFields()}
    for field in given.intersection(fields):
        checks.timestamp(field, getattr(request, field))


def _check_kinds(checks: FieldChecks, kinds: Iterable[str]) -> None:
    listed = list(kinds)
    if len(listed) > KINDS_MAX:
        checks.refuse("kinds", f"has {len(listed)} entries; send at most {KINDS_MAX}")
    for kind in listed[:KINDS_MAX]:
        if kind not in _KINDS:
            checks.refuse("kinds", f'"{kind[:64]}" is no kind of event; see SessionEvent.kind')


def _in_time(request: pb.ListSessionsRequest, update_us: int) -> bool:
    if request.HasField("update_time_from") and update_us < pm.time_us(request.update_time_from):
        return False
    return not (
        request.HasField("update_time_before")
        and update_us >= pm.time_us(request.update_time_before)
    )


def _wanted(request: pb.ListSessionsRequest, state: SessionState) -> bool:
    """Say whether a session passes the filters that only its state can answer."""
    locked = state.active is not None and state.active.locked
    status = pm.TASK_STATUSES[state.task.status] if state.task else None
    return (
        (not request.active_agent_id or state.active_id == request.active_agent_id)
        and (not request.channel or state.channel == request.channel)
        and (not request.task_status or status == request.task_status)
        and (not request.HasField("locked") or locked == request.locked)
    )


def _asks_for_state(request: pb.ListSessionsRequest) -> bool:
    """Say whether a filter is set that only a session's state can answer."""
    return bool(
        request.active_agent_id
        or request.channel
        or request.task_status
        or request.HasField("locked")
    )


def _outline(row: SessionRow) -> pb.SessionSummary:
    """Return what is known of a session whose state cannot be read."""
    return pb.SessionSummary(
        tenant=row.key.tenant,
        session_id=row.key.session_id,
        owner=row.user_id,
        revision=row.revision,
        create_time=pm.timestamp(row.create_us),
        update_time=pm.timestamp(row.update_us),
    )


def _summary(key: SessionKey, state: SessionState, cards: pm.AgentCards) -> pb.SessionSummary:
    made = pb.SessionSummary(
        tenant=key.tenant,
        session_id=key.session_id,
        owner=state.owner,
        revision=state.revision,
        locked=state.active is not None and state.active.locked,
        open_turns=len(state.open_turns),
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


def _bound(request: pb.ListEventsRequest | pb.GetRoutingStatsRequest, field: str) -> int | None:
    """Return a time of a request; None where it is not given."""
    given = {descriptor.name for descriptor, _ in request.ListFields()}
    return pm.time_us(getattr(request, field)) if field in given else None


def _event_filter(request: pb.ListEventsRequest) -> _EventFilter:
    return _EventFilter(
        actor=request.actor,
        request_id=request.request_id,
        agent_id=request.agent_id,
        kinds=frozenset(request.kinds),
        from_us=_bound(request, "event_time_from"),
        before_us=_bound(request, "event_time_before"),
    )


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


def _record(
    key: SessionKey, event: session_event_pb2.SessionEvent, actor: str, method: str
) -> pb.AuditRecord:
    return pb.AuditRecord(tenant=key.tenant, event=event, actor=actor, method=method)


def _actor_of(entry: AuditEntry) -> str:
    """Return who asked for what was refused."""
    data = msgspec.json.decode(entry.data) if entry.data else {}
    return str(data.get("actor") or entry.user_id)


def _records(
    key: SessionKey, change: Change, refused: list[AuditEntry], cards: pm.AgentCards
) -> list[pb.AuditRecord]:
    """Return a change's events as the audit has them, then what was refused at its revision."""
    stored = decode_change(change.events)
    method = method_path(change.method)
    records = []
    if not stored.events:
        # Erased: that there was something, when and by which call is all that is left.
        left = session_event_pb2.SessionEvent(
            event_id=f"{change.revision}.0",
            session_id=key.session_id,
            revision=change.revision,
            event_time=pm.timestamp(change.time_us),
            request_id=change.request_id,
        )
        records.append(pb.AuditRecord(tenant=key.tenant, event=left, method=method))
    for place in range(len(stored.events)):
        event = event_out(key, change, stored, place, cards)
        if event is not None:
            made = _record(key, event, stored.actor or stored.user_id, method)
            if stored.actor and stored.actor != stored.user_id:
                made.acting_for = stored.user_id
            records.append(made)
    for entry in refused:
        if entry.revision == change.revision:
            event, refused_method = refusal_out(key, entry, cards)
            records.append(_record(key, event, _actor_of(entry), refused_method))
    return records


def _log_message(cursor: bytes) -> bytes:
    message = pb.WatchEventsResponse(cursor=_token(cursor))
    message.heartbeat.SetInParent()
    return message.SerializeToString()


def _log_change(
    key: SessionKey, change: Change, tenant: str, kinds: frozenset[str], cards: pm.AgentCards
) -> pb.WatchEventsResponse | None:
    """Return a change for a watcher of the log; None where it is not wanted."""
    if tenant not in (ALL_TENANTS, key.tenant):
        return None
    made = change_out(key, change, cards)
    if kinds and all(event.WhichOneof("kind") not in kinds for event in made.events):
        return None
    if not made.events:
        return None
    return pb.WatchEventsResponse(tenant=key.tenant, change=made)


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


def _token(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _cursor(token: str, field: str = "page_token") -> bytes:
    if not token:
        return bytes(CURSOR_START)
    try:
        return base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error) as error:
        raise _bad_token(field) from error


def _revision_token(token: str) -> int | None:
    if not token:
        return None
    try:
        return int(_cursor(token))
    except ValueError as error:
        raise _bad_token("page_token") from error


def _bad_token(field: str) -> RoutingError:
    return invalid_field(field, "was not made by this list; send it as it came")
