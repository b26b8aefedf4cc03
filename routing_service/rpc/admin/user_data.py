"""ExportUser, EraseUser and PurgeSessions: what is kept about users, and its removal.

Rule: each call is in the audit before it exports or removes anything.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from typing import Final

from agent_routing.v1 import admin_service_pb2 as pb
from routing_service.auth.caller import Caller
from routing_service.core import events as ev
from routing_service.core.errors import invalid_field
from routing_service.core.events import NoteAdded
from routing_service.core.identifiers import REASON_BYTES_MAX
from routing_service.core.session import SessionState, Task
from routing_service.rpc import proto_mapping as pm
from routing_service.rpc.admin.audit_records import read_refusals, records_of, refusal_record
from routing_service.rpc.admin.request_fields import (
    check_expected,
    check_user,
    operator_of,
    tenant_of,
)
from routing_service.rpc.admin.sessions import READ_MAX, summary
from routing_service.rpc.admin.unreadable import unreadable
from routing_service.rpc.agent_cards import AgentCards
from routing_service.rpc.claim_mapping import note_out
from routing_service.rpc.event_mapping import hide_consult
from routing_service.rpc.request_checks import FieldChecks, parse
from routing_service.rpc.rpc_method import Methods, RpcAnswer
from routing_service.sessions.audit_log import Operator, user_target
from routing_service.sessions.command_handler import CommandHandler
from routing_service.sessions.refusals import HANDOFF_REFUSED
from routing_service.sessions.retention import PURGE_SESSIONS_MAX, Retention, owner_unknown
from routing_service.sessions.stickiness_switch import ALL_TENANTS
from routing_service.storage.audit_pages import audit_of
from routing_service.storage.checked_store import Store
from routing_service.storage.event_codec import decode_events, decode_state
from routing_service.storage.row_content import decode_metadata, task_status
from routing_service.storage.store import (
    CURSOR_START,
    PAGE_ROWS_MAX,
    TASKS_START,
    Change,
    Head,
    SchemaTooNew,
    SessionKey,
    SessionRow,
    StoreCorrupt,
)
from routing_service.telemetry.call_record import CallRecord

PURGE_SESSIONS_DEFAULT: Final = 1_000

EXPORT_TURNS: Final = 50
"""Turns read at once for an export: with their texts they may be large."""


class UserDataCalls:
    """The RPCs that export and remove what is kept about users."""

    def __init__(
        self,
        store: Store,
        handler: CommandHandler,
        retention: Retention,
        cards_in_force: Callable[[], AgentCards],
        clock_us: Callable[[], int],
    ) -> None:
        """Read a store, remove through retention.

        cards_in_force: returns the cards of the registry in force. clock_us: microseconds since
        1970.
        """
        self._store = store
        self._handler = handler
        self._retention = retention
        self._cards = cards_in_force
        self._clock_us = clock_us

    @property
    def methods(self) -> Methods:
        """These RPCs by name."""
        return {
            "ExportUser": self.export_user,
            "EraseUser": self.erase_user,
            "PurgeSessions": self.purge_sessions,
        }

    async def export_user(
        self, caller: Caller, data: bytes, record: CallRecord
    ) -> AsyncGenerator[tuple[bytes, dict[str, str]]]:
        """Send all that is kept about a user, session by session."""
        request = parse(pb.ExportUserRequest, data)
        checks = FieldChecks()
        tenant = tenant_of(checks, caller, request.tenant, record)
        check_user(checks, request, tenant)
        checks.text("reason", request.reason, REASON_BYTES_MAX)
        checks.done()
        await self._handler.audit.act(
            operator_of(caller, record),
            tenant,
            "ExportUser",
            reason=request.reason,
            target=user_target(request.user_id),
        )
        cursor = CURSOR_START
        while True:
            rows, cursor = await self._store.list_sessions(tenant, cursor, READ_MAX)
            for row in rows:
                if not row.revision:
                    entry = unreadable(row.key, 0, owner_unknown(row))
                    # It may be another user's: the log names it, the export does not.
                    entry.ClearField("session_id")
                    yield pb.ExportUserResponse(unreadable=entry).SerializeToString(), {}
                if row.user_id == request.user_id:
                    record.session_id = row.key.session_id
                    async for part in self._export(row):
                        part.session_id = row.key.session_id
                        yield part.SerializeToString(), {"session_id": row.key.session_id}
            if len(rows) < READ_MAX:
                break
        async for part in self._refusals_elsewhere(tenant, request.user_id):
            yield part.SerializeToString(), {"session_id": part.session_id}

    async def _refusals_elsewhere(
        self, tenant: str, user_id: str
    ) -> AsyncGenerator[pb.ExportUserResponse]:
        """Make the records of the user's refusals that the user's sessions do not show."""
        async for entry in audit_of(self._store, tenant, None, per_read=PAGE_ROWS_MAX):
            key = SessionKey(tenant, entry.session_id)
            if entry.user_id != user_id or entry.kind != HANDOFF_REFUSED:
                continue
            row = await self._store.find_session(key)
            if row is None or row.user_id != user_id or not entry.revision:
                made = refusal_record(key, entry, self._cards())
                yield pb.ExportUserResponse(session_id=entry.session_id, record=made)

    async def erase_user(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """Erase the content of all sessions of a user."""
        request = parse(pb.EraseUserRequest, data)
        checks = FieldChecks()
        tenant = tenant_of(checks, caller, request.tenant, record)
        check_user(checks, request, tenant)
        checks.text("reason", request.reason, REASON_BYTES_MAX)
        checks.done()
        operator = operator_of(caller, record)
        await self._check_erasure(operator, tenant, request)
        if not request.validate_only:
            await self._handler.audit.act(
                operator,
                tenant,
                "EraseUser",
                reason=request.reason,
                target=user_target(request.user_id),
            )
        erased = await self._retention.erase_user(
            tenant,
            request.user_id,
            by=operator,
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
        return RpcAnswer(response.SerializeToString())

    async def _check_erasure(
        self, operator: Operator, tenant: str, request: pb.EraseUserRequest
    ) -> None:
        """Raise STATE_CHANGED if a user has not what the operator expects to erase."""
        expected = [
            (name, getattr(request, name))
            for name in ("expected_sessions", "expected_turns")
            if request.HasField(name)
        ]
        if not expected:
            return
        found = await self._retention.erase_user(
            tenant, request.user_id, by=operator, validate_only=True
        )
        actual = {"expected_sessions": found.sessions, "expected_turns": found.turns}
        for name, value in expected:
            check_expected(name, value, actual[name])

    async def purge_sessions(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """Remove sessions that have not changed since a time."""
        request = parse(pb.PurgeSessionsRequest, data)
        checks = FieldChecks()
        tenant = tenant_of(checks, caller, request.tenant, record)
        checks.number("sessions_max", request.sessions_max, 0, PURGE_SESSIONS_MAX)
        checks.text("reason", request.reason, REASON_BYTES_MAX)
        if not request.HasField("update_time_before"):
            checks.refuse(
                "update_time_before", "is required; say up to which time sessions are removed"
            )
        else:
            checks.timestamp("update_time_before", request.update_time_before)
        checks.done()
        before_us = pm.time_us(request.update_time_before)
        if before_us > self._clock_us():
            raise invalid_field("update_time_before", "is in the future; give a time in the past")
        operator = operator_of(caller, record)
        sessions_max = request.sessions_max or PURGE_SESSIONS_DEFAULT
        if request.HasField("expected_sessions"):
            found = await self._retention.purge(
                tenant, before_us, by=operator, sessions_max=sessions_max, validate_only=True
            )
            check_expected("expected_sessions", request.expected_sessions, found.sessions)
        if not request.validate_only:
            before = pm.timestamp(before_us).ToJsonString()
            of_all = tenant == ALL_TENANTS
            await self._handler.audit.act(
                operator,
                operator.tenant if of_all else tenant,
                "PurgeSessions",
                reason=request.reason,
                target=f"sessions {'of all tenants ' if of_all else ''}before {before}",
            )
        purged = await self._retention.purge(
            tenant,
            before_us,
            by=operator,
            sessions_max=sessions_max,
            reason=request.reason,
            validate_only=request.validate_only,
        )
        response = pb.PurgeSessionsResponse(sessions_purged=purged.sessions, more=purged.more)
        return RpcAnswer(response.SerializeToString())

    async def _export(self, listed: SessionRow) -> AsyncGenerator[pb.ExportUserResponse]:
        """Make the parts of one session: its summary, its tasks, turns and audit.

        What cannot be read has a part that says so, and the rest follows.
        """
        key = listed.key
        head = await self._store.load(key)
        if head is None:
            return
        cards = self._cards()
        try:
            state = _state_of(listed, head)
        except (StoreCorrupt, SchemaTooNew) as error:
            entry = unreadable(key, head.revision, error)
            yield pb.ExportUserResponse(unreadable=entry)
            # Whose session it is cannot be read either: the rest may be another user's.
            return
        shown = summary(key, state, cards)
        shown.entitlements.extend(state.entitlements)
        yield pb.ExportUserResponse(session=shown)
        after = TASKS_START
        while tasks := await self._store.list_tasks(key, after=after, limit=READ_MAX):
            for row in tasks:
                after = row.cursor
                try:
                    metadata, status = decode_metadata(row), task_status(row)
                except StoreCorrupt as error:
                    yield pb.ExportUserResponse(unreadable=unreadable(key, 0, error))
                    continue
                task = Task(
                    row.task_id,
                    status,
                    row.create_us,
                    row.update_us,
                    row.expire_us,
                )
                made = pm.task_out(task, metadata, key.session_id, row.user_id)
                yield pb.ExportUserResponse(task=made)
        async for part in self._turns(key):
            yield part
        refused = await read_refusals(self._store, key)
        revision = 0
        while changes := await self._store.read_changes(key, after=revision, limit=READ_MAX):
            for change in changes:
                revision = change.revision
                with suppress(StoreCorrupt, SchemaTooNew):  # Its record says so.
                    for part in _said_in(change, cards):
                        yield part
                records = records_of(key, change, refused, cards)
                hide_consult(each.event for each in records)
                for made_record in records:
                    yield pb.ExportUserResponse(record=made_record)

    async def _turns(self, key: SessionKey) -> AsyncGenerator[pb.ExportUserResponse]:
        """Make the parts of a session's turns, up to the first that cannot be read."""
        position = (0, -1)
        try:
            while turns := await self._handler.turns.oldest_first(
                key, position, EXPORT_TURNS, lambda _: True
            ):
                for turn in turns:
                    position = turn.position
                    shown = turn.without_consult() if turn.consult else turn
                    yield pb.ExportUserResponse(turn=pm.listed_turn_out(shown))
        except (StoreCorrupt, SchemaTooNew) as error:
            yield pb.ExportUserResponse(unreadable=unreadable(key, 0, error))


def _state_of(listed: SessionRow, head: Head) -> SessionState:
    """Return the state of a user's session. Raises StoreCorrupt, SchemaTooNew."""
    state = decode_state(head.state)
    if state.owner != listed.user_id and not state.erased:
        message = f'session "{listed.key}" is listed for a user who does not own it'
        raise StoreCorrupt(message)
    return state


def _said_in(change: Change, cards: AgentCards) -> Iterator[pb.ExportUserResponse]:
    """Make the parts of a change that neither turns nor audit records have."""
    time = pm.timestamp(change.time_us)
    for event in decode_events(change.events):
        match event:
            case ev.SessionStarted() | ev.ProfileUpdated():
                profile = event.profile
                yield pb.ExportUserResponse(
                    profile=pb.UserProfile(
                        revision=change.revision,
                        create_time=time,
                        user_id=profile.user_id,
                        locale=profile.locale,
                        channel=profile.channel,
                        entitlements=profile.entitlements,
                    )
                )
            case NoteAdded():
                yield pb.ExportUserResponse(note=note_out(event, change.time_us, cards))
            case ev.CommandHandled() if event.text:
                yield pb.ExportUserResponse(
                    command=pb.TypedCommand(
                        revision=change.revision, create_time=time, text=event.text
                    )
                )
            case _:
                pass
