"""ListEvents and WatchEvents: every event, and every refused handoff."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import handoff_pb2, session_event_pb2
from routing_service.analytics.time_index import log_place_before
from routing_service.auth import rights
from routing_service.auth.caller import Caller
from routing_service.core.errors import invalid_field
from routing_service.core.identifiers import REASON_BYTES_MAX
from routing_service.rpc import proto_mapping as pm
from routing_service.rpc.admin.audit_records import (
    ENTRY_KINDS,
    NO_ARCHIVE,
    archived_records,
    entry_record,
    read_entries,
    records_in,
    shown_records,
    unreadable_record,
)
from routing_service.rpc.admin.request_fields import (
    check_one_tenant,
    check_times,
    operator_of,
    tenant_of,
    time_bound_us,
)
from routing_service.rpc.admin.watched_changes import WatchedChanges, heartbeat
from routing_service.rpc.agent_cards import AgentCards
from routing_service.rpc.page_tokens import (
    PAGE_BYTES_MAX,
    bad_token,
    cursor_in,
    revision_in,
    token_of,
)
from routing_service.rpc.request_checks import (
    PAGE_SIZE_MAX,
    FieldChecks,
    parse,
)
from routing_service.rpc.rpc_method import Methods, RpcAnswer
from routing_service.rpc.tenant_audit import (
    READ_MAX,
    SCANNED_MAX,
    AuditPosition,
    fill_page,
    read_position,
)
from routing_service.sessions.audit_log import (
    NO_SESSION,
    is_about,
)
from routing_service.sessions.event_feed import EventFeed
from routing_service.sessions.refusals import HANDOFF_REFUSED
from routing_service.sessions.text_reads import TextReads
from routing_service.storage.audit_archive import (
    SESSION_ARCHIVED,
    ArchiveOf,
    archived_in,
    read_archive,
)
from routing_service.storage.checked_store import Store
from routing_service.storage.event_codec import BLANK_EVENTS
from routing_service.storage.store import (
    CURSOR_START,
    AuditEntry,
    Change,
    CursorInvalid,
    SessionKey,
    SessionRow,
    StoreCorrupt,
)
from routing_service.telemetry.call_record import CallRecord

_log = structlog.get_logger(__name__)

RECORDS_PAGE_DEFAULT: Final = 100
KINDS_MAX: Final = 32

SCANNED_CHANGES_MAX: Final = 5_000
"""Changes that are read for one page of ListEvents. If few pass the filter, the page is short and
has a token to go on: no call reads a whole store."""


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
        text_reads: TextReads,
        *,
        read_max: int = READ_MAX,
        scanned_max: int = SCANNED_MAX,
    ) -> None:
        """Read one store, watch one feed.

        cards_in_force: returns the cards of the registry in force. text_reads: records the reads
        that give a reason. read_max, scanned_max: changes
        that are read at once, and for one page, of a tenant's audit.
        """
        self._read_max = read_max
        self._scanned_max = scanned_max
        self._store = store
        self._feed = feed
        self._cards = cards_in_force
        self._watched = WatchedChanges(cards_in_force)
        self._text_reads = text_reads

    @property
    def methods(self) -> Methods:
        """These RPCs by name."""
        return {"ListEvents": self.list_events, "WatchEvents": self.watch_events}

    async def list_events(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """List the audit of one session, or of all sessions of a tenant."""
        request = parse(pb.ListEventsRequest, data)
        checks = FieldChecks()
        tenant = tenant_of(checks, caller, request.tenant, record)
        checks.session("session_id", request.session_id)
        for field in ("owner", "actor"):
            checks.user(field, getattr(request, field))
        checks.uuid("request_id", request.request_id)
        for field in ("agent_id", "from_agent_id", "to_agent_id"):
            checks.identifier(field, getattr(request, field))
        checks.number("page_size", request.page_size, 0, PAGE_SIZE_MAX)
        checks.word("order", request.order, pb.EventOrder.values(), "NEWEST_FIRST or OLDEST_FIRST")
        _check_kinds(checks, request.kinds)
        check_times(checks, request, ("event_time_from", "event_time_before"))
        checks.reason("read_reason", request.read_reason, REASON_BYTES_MAX)
        checks.done()
        check_one_tenant(tenant)
        if request.read_reason:
            rights.check_texts(caller)
            operator = operator_of(caller, record)
            await self._text_reads.note(
                operator, tenant, request.session_id, "ListEvents", request.read_reason
            )
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
        archives: dict[SessionKey, ArchiveOf] = {}

        async def make_records(
            key: SessionKey, entry: Change | AuditEntry
        ) -> Iterable[pb.AuditRecord]:
            if isinstance(entry, Change):
                if entry.events == BLANK_EVENTS and key not in archives:
                    row = await self._store.find_session(key)
                    archives[key] = await self._archive_of(key, row)
                made = records_in(key, entry, cards, archives.get(key, NO_ARCHIVE))
            elif entry.kind == SESSION_ARCHIVED:
                made = await self._archived_records(entry, cards)
            else:
                made = records_in(key, entry, cards, NO_ARCHIVE)
            found = [record for record in made if event_filter(record)]
            if found and request.owner and key.session_id:
                if key.session_id == NO_SESSION:
                    return [each for each in found if _is_about(each, request.owner)]
                if key not in owners:
                    row = await self._store.find_session(key)
                    owners[key] = row.user_id if row else ""
                if owners[key] != request.owner:
                    return ()
            return found

        response = pb.ListEventsResponse()
        try:
            position = read_position(cursor_in(request.page_token))
            if not request.page_token and event_filter.from_us is not None:
                position = AuditPosition(await log_place_before(self._store, event_filter.from_us))
            after = await fill_page(
                self._store,
                response,
                position,
                tenant=tenant,
                records_max=request.page_size or RECORDS_PAGE_DEFAULT,
                bytes_max=PAGE_BYTES_MAX,
                make_records=make_records,
                read_max=self._read_max,
                scanned_max=self._scanned_max,
                # Who asks for operators' acts does not wait for the log to be read.
                reads_log=not event_filter.kinds or not event_filter.kinds <= ENTRY_KINDS,
            )
        except CursorInvalid as error:
            raise bad_token() from error
        response.next_page_token = token_of(after)
        return RpcAnswer(response.SerializeToString())

    async def _archive_of(self, key: SessionKey, row: SessionRow | None) -> ArchiveOf:
        return ArchiveOf(await read_archive(self._store, key), row.create_us if row else None)

    async def _archived_records(self, entry: AuditEntry, cards: AgentCards) -> list[pb.AuditRecord]:
        """Return what an entry of the archive adds to the records of the sessions themselves."""
        try:
            found = archived_in(entry)
        except StoreCorrupt as error:
            return [unreadable_record(SessionKey(entry.tenant, ""), entry, error)]
        key = SessionKey(entry.tenant, found.session_id)
        row = await self._store.find_session(key)
        if row is None or row.create_us != found.create_us:
            return archived_records(key, found, cards)
        if found.is_purge:
            # The session was used meanwhile, and so it was not purged.
            return []
        return archived_records(key, msgspec.structs.replace(found, changes=()), cards)

    async def _events_of_session(self, key: SessionKey, request: pb.ListEventsRequest) -> RpcAnswer:
        """List one session's audit: a revision's events, then what was refused at it."""
        response = pb.ListEventsResponse()
        row = await self._store.find_session(key)
        if request.owner and (row is None or row.user_id != request.owner):
            return RpcAnswer(response.SerializeToString())
        cards = self._cards()
        archive = await self._archive_of(key, row)
        refused = [entry.shown(key) for entry in archive.entries if entry.kind == HANDOFF_REFUSED]
        left = [made for each in archive.former for made in archived_records(key, each, cards)]
        archived = {(entry.time_us, entry.revision) for entry in archive.entries}
        for entry in await read_entries(self._store, key):
            if not entry.data and (entry.time_us, entry.revision) in archived:
                continue
            is_refusal = entry.kind == HANDOFF_REFUSED and entry.revision > 0
            if is_refusal and row is not None and entry.time_us >= row.create_us:
                refused.append(entry)
            elif (made := entry_record(key, entry, cards)) is not None:
                left.append(made)
        left.sort(key=lambda made: pm.time_us(made.event.event_time))
        passes = _EventFilter.of(request)
        page = _SessionPage.of(request, response, [made for made in left if passes(made)], archive)
        if page.newest_first:
            if page.before is None:
                await self._fill_events(page, key, request, refused)
            if not response.next_page_token:
                page.add_before()
        elif page.before is None or page.add_before():
            await self._fill_events(page, key, request, refused)
        return RpcAnswer(response.SerializeToString())

    async def _fill_events(
        self,
        page: _SessionPage,
        key: SessionKey,
        request: pb.ListEventsRequest,
        refused: list[AuditEntry],
    ) -> None:
        event_filter = _EventFilter.of(request)
        response, newest_first, count = page.response, page.newest_first, page.records_max
        cards = self._cards()
        revision = page.revision
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
                records = shown_records(key, change, refused, cards, page.archive)
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
        heartbeat_s = checks.heartbeat_s(request)
        batch_s = checks.batch_s(request)
        checks.done()
        cursor = cursor_in(request.cursor, "cursor")
        if not request.cursor:
            cursor = CURSOR_START if request.from_beginning else await self._store.log_end()
        kinds = frozenset(request.kinds)
        # The first message tells the reader where the stream starts, before anything happens.
        yield heartbeat(cursor), {"cursor": token_of(cursor)}
        wanted = tenant, kinds
        try:
            async for entries, after in self._feed.log_changes(cursor, heartbeat_s, batch_s):
                if not entries:
                    yield heartbeat(after), {"cursor": token_of(after)}
                elif batch_s:
                    for batch in self._watched.batches(entries, cursor, after, wanted):
                        yield batch, {"cursor": token_of(after)}
                else:
                    for body, token in self._watched.each(entries, cursor, after, wanted):
                        yield body, {"cursor": token}
                cursor = after
        except CursorInvalid as error:
            raise bad_token("cursor") from error


@dataclass(slots=True)
class _SessionPage:
    """A page of one session's audit: its changes, and what is known from before its first one.

    Before it come refusals in a session that did not exist yet, and what is left of an earlier
    session of the same name. revision: where the changes go on. before: where those go on; None =
    they are not next.
    """

    response: pb.ListEventsResponse
    records: list[pb.AuditRecord]
    archive: ArchiveOf
    newest_first: bool
    records_max: int
    revision: int | None = None
    before: int | None = None

    @classmethod
    def of(
        cls,
        request: pb.ListEventsRequest,
        response: pb.ListEventsResponse,
        records: list[pb.AuditRecord],
        archive: ArchiveOf,
    ) -> _SessionPage:
        """Return the page that a request asks for. records: from before. Raises INVALID_FIELD."""
        newest_first = request.order != pb.EVENT_ORDER_OLDEST_FIRST
        made = cls(
            response,
            records[::-1] if newest_first else records,
            archive,
            newest_first,
            request.page_size or RECORDS_PAGE_DEFAULT,
        )
        token = cursor_in(request.page_token)
        if token.startswith(_BEFORE):
            if not token[len(_BEFORE) :].isdigit():
                raise bad_token()
            made.before = int(token[len(_BEFORE) :])
        elif token:
            made.revision = revision_in(request.page_token)
        elif not newest_first:
            made.before = 0
        return made

    def add_before(self) -> bool:
        """Add what is from before the changes; say whether all of it is sent."""
        start = self.before or 0
        end = start + max(self.records_max - len(self.response.records), 0)
        self.response.records.extend(self.records[start:end])
        if end < len(self.records):
            self.response.next_page_token = token_of(_BEFORE + str(end).encode())
            return False
        return True


_BEFORE: Final = b"b"
"""How the token begins of a page that goes on before the changes."""


@dataclass(frozen=True, slots=True)
class _EventFilter:
    """The filter of a ListEvents."""

    actor: str = ""
    request_id: str = ""
    agent_id: str = ""
    from_agent_id: str = ""
    to_agent_id: str = ""
    kinds: frozenset[str] = frozenset()
    from_us: int | None = None
    before_us: int | None = None

    @classmethod
    def of(cls, request: pb.ListEventsRequest) -> _EventFilter:
        return cls(
            actor=request.actor,
            request_id=request.request_id,
            agent_id=request.agent_id,
            from_agent_id=request.from_agent_id,
            to_agent_id=request.to_agent_id,
            kinds=frozenset(request.kinds),
            from_us=time_bound_us(request, "event_time_from"),
            before_us=time_bound_us(request, "event_time_before"),
        )

    def __call__(self, record: pb.AuditRecord) -> bool:
        """Say whether a record passes."""
        event = record.event
        if record.HasField("unreadable"):
            # What it was is unknown: it passes all filters but those of what is known of it.
            is_in_time = not event.HasField("event_time") or self._is_in_time(event)
            return is_in_time and (
                "" in (self.request_id, event.request_id) or self.request_id == event.request_id
            )
        if self.kinds and event.WhichOneof("kind") not in self.kinds:
            return False
        if self.request_id and event.request_id != self.request_id:
            return False
        if self.actor and record.actor != self.actor:
            return False
        if not self._is_in_time(event):
            return False
        if self.agent_id and self.agent_id not in _agents_in(event):
            return False
        return not (self.from_agent_id or self.to_agent_id) or self._is_between(event)

    def _is_between(self, event: session_event_pb2.SessionEvent) -> bool:
        handoff = _handoff_of(event)
        if handoff is None:
            return False
        is_from = self.from_agent_id in ("", getattr(handoff, "from").agent_id)
        return is_from and self.to_agent_id in ("", handoff.to.agent_id)

    def _is_in_time(self, event: session_event_pb2.SessionEvent) -> bool:
        time_us = pm.time_us(event.event_time)
        is_late_enough = self.from_us is None or time_us >= self.from_us
        return is_late_enough and (self.before_us is None or time_us < self.before_us)


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


def _handoff_of(event: session_event_pb2.SessionEvent) -> handoff_pb2.Handoff | None:
    """Return the handoff that an event carried out or refused; None for other events."""
    kind = event.WhichOneof("kind")
    if kind not in ("agent_handoff", "handoff_refused"):
        return None
    found: handoff_pb2.Handoff = getattr(event, kind).handoff
    return found


def _is_about(record: pb.AuditRecord, user_id: str) -> bool:
    """Say whether an operator's act was about a user."""
    return is_about(record.event.operator_act.target, user_id)
