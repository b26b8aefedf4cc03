# Generated from admin_aio.py by scripts/make_sync.py. Do not edit.
"""The calls of AdminService that a client may need: one method for each RPC.

A method builds its request, makes the call, and returns the generated response.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import grpc
from google.protobuf.message import Message

from agent_routing.calls import CallInfo
from agent_routing.client import Client
from agent_routing.plain_values import (
    Seconds,
    TaskStatusName,
    duration,
    enum_value,
    positive_seconds,
    timestamp,
)
from agent_routing.status_details import routing_error
from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import admin_service_pb2_grpc as stubs
from agent_routing.v1.task_pb2 import TaskStatus
from agent_routing.watching import AWAY_S_DEFAULT, LogWatch

EXPORT_S_MAX = 600.0
"""How long the export of one user may take: it reads all of the user's sessions."""


class Admin(Client):
    """A client that can also make the calls that need the scope admin.

    Its constructor and its rules for arguments, times, errors and retries are the base class's.
    """

    def _admin(self) -> stubs.AdminServiceStub:
        """Return the stub of AdminService, on the client's channel."""
        self._open()
        channel = self._given_channel or self._channel
        assert channel is not None
        return stubs.AdminServiceStub(channel)

    def list_sessions_page(
        self,
        *,
        tenant: str = "",
        owner: str = "",
        active_agent_id: str = "",
        task_status: TaskStatusName | None = None,
        channel: str = "",
        locked: bool | None = None,
        update_time_from: datetime | None = None,
        update_time_before: datetime | None = None,
        page_size: int = 0,
        page_token: str = "",
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.ListSessionsResponse:
        """Return one page of the sessions that pass all the given filters.

        tenant: empty: the caller's. task_status: of the session's current task. locked: whether the
        active agent waits for an answer. Times have a time zone. page_size: 0-1,000; 0: 100. A page
        may have few sessions, or none, and still have a token for the next page.

        Raises InvalidField, ScopeMissing, Unavailable, DeadlineExceeded, Overloaded.
        """
        request = pb.ListSessionsRequest(
            tenant=tenant,
            owner=owner,
            active_agent_id=active_agent_id,
            task_status=enum_value(TaskStatus, "TASK_STATUS_", "task_status", task_status),
            channel=channel,
            locked=locked,
            update_time_from=timestamp("update_time_from", update_time_from),
            update_time_before=timestamp("update_time_before", update_time_before),
            page_size=page_size,
            page_token=page_token,
        )
        return self._call(self._admin().ListSessions, request, timeout, info)

    def list_inbox_page(
        self,
        agent_id: str = "",
        *,
        tenant: str = "",
        page_size: int = 0,
        page_token: str = "",
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.ListInboxResponse:
        """Return a page of the turns that wait for workers, or that workers have.

        They come in the order of the agents' ids, for each agent the oldest first. agent_id: empty:
        all agents of the registry. tenant: empty: the caller's.

        Raises InvalidField, ScopeMissing, Unavailable, DeadlineExceeded, Overloaded.
        """
        request = pb.ListInboxRequest(
            tenant=tenant, agent_id=agent_id, page_size=page_size, page_token=page_token
        )
        return self._call(self._admin().ListInbox, request, timeout, info)

    def get_session_at(
        self,
        session_id: str,
        revision: int = 0,
        *,
        tenant: str = "",
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.GetSessionAtResponse:
        """Return the state of a session as it was after one of its changes.

        revision: 0: the latest one. tenant: empty: the caller's.

        Raises UnknownSession, InvalidField for a later revision than the latest, SessionErased for
        one whose content was erased, RevisionCompacted, ScopeMissing, StateCorrupt, Unavailable,
        DeadlineExceeded, Overloaded.
        """
        request = pb.GetSessionAtRequest(tenant=tenant, session_id=session_id, revision=revision)
        return self._call(self._admin().GetSessionAt, request, timeout, info)

    def list_events_page(
        self,
        *,
        tenant: str = "",
        session_id: str = "",
        owner: str = "",
        actor: str = "",
        request_id: str = "",
        agent_id: str = "",
        kinds: Iterable[str] = (),
        event_time_from: datetime | None = None,
        event_time_before: datetime | None = None,
        oldest_first: bool | None = None,
        page_size: int = 0,
        page_token: str = "",
        read_reason: str = "",
        from_agent_id: str = "",
        to_agent_id: str = "",
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.ListEventsResponse:
        """Return one page of the audit: events and refusals.

        session_id: empty: all sessions, which is only possible oldest first. owner: of the
        sessions. actor: the caller. agent_id: an agent that takes part. kinds: such as
        "agent_handoff". oldest_first: None: the service's default. A page may have few records, or
        none, and still have a token for the next page. read_reason: why the texts are read, for the
        audit; needs the scope read_words. from_agent_id, to_agent_id: only handoffs between these.

        Raises InvalidField, ScopeMissing, StateCorrupt, Unavailable, DeadlineExceeded, Overloaded.
        """
        order = pb.EVENT_ORDER_UNSPECIFIED
        if oldest_first is not None:
            order = pb.EVENT_ORDER_OLDEST_FIRST if oldest_first else pb.EVENT_ORDER_NEWEST_FIRST
        request = pb.ListEventsRequest(
            tenant=tenant,
            session_id=session_id,
            owner=owner,
            actor=actor,
            request_id=request_id,
            agent_id=agent_id,
            kinds=kinds,
            event_time_from=timestamp("event_time_from", event_time_from),
            event_time_before=timestamp("event_time_before", event_time_before),
            order=order,
            page_size=page_size,
            page_token=page_token,
            read_reason=read_reason,
            from_agent_id=from_agent_id,
            to_agent_id=to_agent_id,
        )
        return self._call(self._admin().ListEvents, request, timeout, info)

    def routing_stats(
        self,
        *,
        tenant: str = "",
        start_time: datetime | None = None,
        end_time: datetime | None = None,
        channel: str = "",
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.GetRoutingStatsResponse:
        """Return routing statistics for a time span.

        start_time, end_time: rounded to whole hours; None: no limit. channel: only messages of this
        one; empty: all. The answer's as_of_time says up to when everything is counted.

        Raises InvalidField, ScopeMissing, Unavailable, DeadlineExceeded, Overloaded.
        """
        request = pb.GetRoutingStatsRequest(
            tenant=tenant,
            start_time=timestamp("start_time", start_time),
            end_time=timestamp("end_time", end_time),
            channel=channel,
        )
        return self._call(self._admin().GetRoutingStats, request, timeout, info)

    def reload_agents(
        self,
        *,
        reason: str = "",
        validate_only: bool = False,
        registry: str = "",
        candidate: bytes = b"",
        expected_registry_version: str = "",
        expected_file_version: str = "",
        with_agents: bool = False,
        with_sessions: bool = False,
        tenant: str = "",
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.ReloadAgentsResponse:
        """Make the server that answers read its registry file again, or replace it.

        reason: why, for the audit. validate_only: only return what would change. candidate: the
        content of another file; with validate_only it is compared, without it replaces the server's
        file. expected_registry_version: refuse unless it is in force (empty: any).
        expected_file_version: refuse unless the server's file has it (empty: any). registry: the
        text of another file to compare. with_agents: also return the agents and warnings of the
        registry. with_sessions: also return the live sessions of the tenant that the change would
        touch.

        Raises InvalidField, RegistryInvalid with every mistake, RegistryReadOnly,
        RevisionMismatch, StateChanged, ScopeMissing, Unavailable, DeadlineExceeded.
        """
        request = pb.ReloadAgentsRequest(
            validate_only=validate_only,
            reason=reason,
            registry=registry,
            candidate=candidate,
            expected_registry_version=expected_registry_version,
            expected_file_version=expected_file_version,
            with_agents=with_agents,
            with_sessions=with_sessions,
            tenant=tenant,
        )
        return self._call(self._admin().ReloadAgents, request, timeout, info)

    def get_registry(
        self, *, timeout: Seconds | None = None, info: CallInfo | None = None
    ) -> pb.GetRegistryResponse:
        """Return the registry in force: agents, to whom each may hand over, and warnings.

        Raises ScopeMissing, Unavailable, DeadlineExceeded, Overloaded.
        """
        request = pb.GetRegistryRequest()
        return self._call(self._admin().GetRegistry, request, timeout, info)

    def start_replay(
        self,
        candidate: bytes,
        *,
        tenant: str = "",
        update_time_from: datetime | None = None,
        update_time_before: datetime | None = None,
        channel: str = "",
        sessions_max: int = 0,
        reason: str = "",
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.StartReplayResponse:
        """Begin to play stored conversations with the registry in force and with a candidate.

        candidate: the text of a registry file, UTF-8, at most 1 MiB. update_time_from: without it
        the last seven days. sessions_max: 0-10,000; 0: 1,000. reason: for the audit.

        Raises RegistryInvalid, ReplayRunning, InvalidField, ScopeMissing, Unavailable,
        DeadlineExceeded, Overloaded.
        """
        request = pb.StartReplayRequest(
            candidate=candidate,
            tenant=tenant,
            update_time_from=timestamp("update_time_from", update_time_from),
            update_time_before=timestamp("update_time_before", update_time_before),
            channel=channel,
            sessions_max=sessions_max,
            reason=reason,
        )
        return self._call(self._admin().StartReplay, request, timeout, info)

    def watch_replay(
        self,
        replay_id: str = "",
        *,
        tenant: str = "",
        after_position: int = 0,
        read_reason: str = "",
        timeout: Seconds = EXPORT_S_MAX,
    ) -> Iterator[pb.WatchReplayResponse]:
        """Iterate over a replay's progress and the turns that differ, until it has ended.

        replay_id: empty: the tenant's latest one on the replica that answers. after_position: that
        of the last message received, if a watch broke off. read_reason: why the texts are read,
        with the scope read_words; empty: turns come without texts.

        The iteration raises UnknownReplay, InvalidField, ScopeMissing, Unavailable,
        DeadlineExceeded, Overloaded.
        """
        request = pb.WatchReplayRequest(
            replay_id=replay_id,
            tenant=tenant,
            after_position=after_position,
            read_reason=read_reason,
        )
        return self._streamed(self._admin().WatchReplay, "WatchReplay", request, timeout)

    def cancel_replay(
        self,
        replay_id: str,
        *,
        tenant: str = "",
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.CancelReplayResponse:
        """End a replay before it is finished; what was found so far stays.

        Raises UnknownReplay, InvalidField, ScopeMissing, Unavailable, DeadlineExceeded, Overloaded.
        """
        request = pb.CancelReplayRequest(replay_id=replay_id, tenant=tenant)
        return self._call(self._admin().CancelReplay, request, timeout, info)

    def set_stickiness(
        self,
        enabled: bool,  # noqa: FBT001 - the one thing that the call is about
        *,
        tenant: str = "",
        reason: str = "",
        agent_ids: Iterable[str] = (),
        users_percent: int = 0,
        fresh: bool = False,
        validate_only: bool = False,
        expected_state_version: str = "",
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.SetStickinessResponse:
        """Switch stickiness on or off for a tenant, on all replicas.

        reason: for the audit, at most 1 KiB. agent_ids, users_percent: off for these agents and
        this share of the users alone. fresh: on, and sessions that had messages while it was off
        begin with the home agent. validate_only: only return what would change.
        expected_state_version: state_version of get_stickiness(); refuse if it was switched since.

        Raises InvalidField, StateChanged, ScopeMissing, Unavailable, DeadlineExceeded, Overloaded.
        """
        request = pb.SetStickinessRequest(
            tenant=tenant,
            enabled=enabled,
            reason=reason,
            agent_ids=agent_ids,
            users_percent=users_percent,
            fresh=fresh,
            validate_only=validate_only,
            expected_state_version=expected_state_version,
        )
        return self._call(self._admin().SetStickiness, request, timeout, info)

    def get_stickiness(
        self,
        *,
        tenant: str = "",
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.GetStickinessResponse:
        """Return whether stickiness is on for a tenant, since when, by whom and why.

        Raises InvalidField, ScopeMissing, Unavailable, DeadlineExceeded, Overloaded.
        """
        request = pb.GetStickinessRequest(tenant=tenant)
        return self._call(self._admin().GetStickiness, request, timeout, info)

    def server_status(
        self, *, timeout: Seconds | None = None, info: CallInfo | None = None
    ) -> pb.GetServerStatusResponse:
        """Return how the server that answers is doing. Each replica speaks for itself.

        Raises ScopeMissing, Unavailable, DeadlineExceeded, Overloaded.
        """
        request = pb.GetServerStatusRequest()
        return self._call(self._admin().GetServerStatus, request, timeout, info)

    def verify_audit(
        self,
        *,
        expected: Sequence[tuple[int, str]] = (),
        tenant: str = "",
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.VerifyAuditResponse:
        """Follow the whole audit of a tenant and name its breaks. Large stores take long.

        expected: seals noted elsewhere, each its number and hash, which the store must have.
        Raises InvalidField, ScopeMissing, Unavailable, DeadlineExceeded, Overloaded.
        """
        seals = [pb.ExpectedSeal(seal=seal, hash=link) for seal, link in expected]
        request = pb.VerifyAuditRequest(tenant=tenant, expected=seals)
        return self._call(self._admin().VerifyAudit, request, timeout, info)

    def export_user(
        self,
        user_id: str,
        *,
        reason: str = "",
        tenant: str = "",
        timeout: Seconds = EXPORT_S_MAX,
    ) -> Iterator[pb.ExportUserResponse]:
        """Iterate over everything that is stored about a user, session by session.

        The export is complete if the iteration ends without an error. If it fails, start again.
        reason: why, for the audit.

        The iteration raises InvalidField, ScopeMissing, Unavailable, DeadlineExceeded.
        """
        request = pb.ExportUserRequest(tenant=tenant, user_id=user_id, reason=reason)
        return self._streamed(self._admin().ExportUser, "ExportUser", request, timeout)

    def _streamed(
        self, call: Callable[..., Any], method: str, request: Message, timeout: Seconds
    ) -> Iterator[Any]:
        """Iterate over one answer stream, without another connection after a failure."""
        timeout_s = positive_seconds("timeout", timeout)
        metadata = self._settings.metadata_now()
        messages = call(request, timeout=timeout_s, metadata=metadata)
        try:
            for message in messages:
                yield message
        except grpc.RpcError as failure:
            raise routing_error(
                failure,
                method=method,
                target=self._settings.target,
                request_id="",
                timeout_s=timeout_s,
                attempts=1,
            ) from failure
        finally:
            messages.cancel()

    def watch_events(
        self,
        *,
        tenant: str = "",
        cursor: str = "",
        from_beginning: bool = False,
        kinds: Iterable[str] = (),
        heartbeat_interval: Seconds | None = None,
        away_timeout: Seconds = AWAY_S_DEFAULT,
    ) -> Iterator[pb.WatchEventsResponse]:
        """Iterate over the changes of all sessions as they happen, each at least once.

        cursor: continue after this one, which each message carries; empty: only new changes, or
        with from_beginning all. kinds: only changes with an event of one of these. After a lost
        connection the client connects again, from the last message; deduplicate by tenant, session
        and revision.

        The iteration raises InvalidField, RevisionCompacted, ScopeMissing; after away_timeout
        Unavailable or Overloaded.
        """
        request = pb.WatchEventsRequest(
            tenant=tenant,
            cursor=cursor,
            from_beginning=from_beginning,
            kinds=kinds,
            heartbeat_interval=duration(heartbeat_interval),
        )
        watch = LogWatch(self._settings, request, positive_seconds("away_timeout", away_timeout))
        while True:
            metadata = self._settings.metadata_now()
            failure: grpc.RpcError | None = None
            try:
                with self._stream(
                    stubs.AdminServiceStub, "WatchEvents", watch.connect(), metadata=metadata
                ) as stream:
                    for message in stream:
                        if watch.received(message):
                            yield message
            except grpc.RpcError as ended:
                failure = ended
            time.sleep(watch.wait_after(failure))
