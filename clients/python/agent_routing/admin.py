"""The client for threads, of those who run the service.

Owns: one method for each RPC of AdminService that a client may need. Must not know: how a call is
made and repeated (Client does that). Rule: as Client's: a method builds its request, calls, and
returns the generated response.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import datetime

import grpc

from agent_routing import admin_messages
from agent_routing.calls import CallInfo
from agent_routing.client import Client
from agent_routing.log_watching import LogWatch
from agent_routing.plain_values import Seconds, positive_seconds
from agent_routing.request_messages import TaskStatusName
from agent_routing.status_details import routing_error
from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1.admin_service_pb2_grpc import AdminServiceStub
from agent_routing.watching import AWAY_S_DEFAULT

EXPORT_S_MAX = 600.0
"""How long the export of one user may take: it reads every session of theirs."""


class Admin(Client):
    """A Client that may also do what needs the scope admin.

    with agent_routing.Admin("127.0.0.1:50051") as admin:
        print(admin.routing_stats().supervisor_calls_saved_share)

    Made as a Client is, and what holds for its methods holds for these.
    """

    def _admin(self) -> AdminServiceStub:
        """Return the stub of AdminService, on the same channel as everything else."""
        self._open()
        channel = self._given_channel or self._channel
        assert channel is not None
        return AdminServiceStub(channel)

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
        """Return one page of the sessions that pass all filters that are given.

        tenant: empty: the caller's. task_status: of the task as it stands. locked: whether the
        active agent waits for an answer. Times have a time zone. page_size: 0-1,000; 0: 100. A page
        may have few sessions, or none, and a token to go on.

        Raises InvalidField, ScopeMissing, Unavailable, DeadlineExceeded, Overloaded.
        """
        request = admin_messages.list_sessions(
            tenant=tenant,
            owner=owner,
            active_agent_id=active_agent_id,
            task_status=task_status,
            channel=channel,
            locked=locked,
            update_time_from=update_time_from,
            update_time_before=update_time_before,
            page_size=page_size,
            page_token=page_token,
        )
        return self._call(self._admin().ListSessions, request, timeout, info)

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
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.ListEventsResponse:
        """Return one page of the audit: events, and what was refused.

        session_id: empty: of all sessions, oldest first alone. owner: whose sessions. actor: who
        called. agent_id: an agent that takes part. kinds: such as "agent_handoff". oldest_first:
        None: as the service does. A page may have few records, or none, and a token to go on.

        Raises InvalidField, ScopeMissing, StateCorrupt, Unavailable, DeadlineExceeded, Overloaded.
        """
        request = admin_messages.list_events(
            tenant=tenant,
            session_id=session_id,
            owner=owner,
            actor=actor,
            request_id=request_id,
            agent_id=agent_id,
            kinds=kinds,
            event_time_from=event_time_from,
            event_time_before=event_time_before,
            oldest_first=oldest_first,
            page_size=page_size,
            page_token=page_token,
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
        """Return how routing does over a span, in whole hours; None: all there is.

        channel: only messages of this one; empty: of all. as_of_time: up to when all is counted.

        Raises InvalidField, ScopeMissing, Unavailable, DeadlineExceeded, Overloaded.
        """
        request = admin_messages.get_routing_stats(
            tenant=tenant, start_time=start_time, end_time=end_time, channel=channel
        )
        return self._call(self._admin().GetRoutingStats, request, timeout, info)

    def reload_agents(
        self,
        *,
        validate_only: bool = False,
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.ReloadAgentsResponse:
        """Let the server that answers read its registry file again.

        validate_only: only say what would change.

        Raises RegistryInvalid with every mistake, ScopeMissing, Unavailable, DeadlineExceeded.
        """
        request = pb.ReloadAgentsRequest(validate_only=validate_only)
        return self._call(self._admin().ReloadAgents, request, timeout, info)

    def set_stickiness(
        self,
        enabled: bool,  # noqa: FBT001 - the one thing that the call is about
        *,
        tenant: str = "",
        reason: str = "",
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.SetStickinessResponse:
        """Switch stickiness on or off for a tenant, on all replicas.

        reason: for the audit, at most 1 KiB.

        Raises InvalidField, ScopeMissing, Unavailable, DeadlineExceeded, Overloaded.
        """
        request = pb.SetStickinessRequest(tenant=tenant, enabled=enabled, reason=reason)
        return self._call(self._admin().SetStickiness, request, timeout, info)

    def export_user(
        self, user_id: str, *, tenant: str = "", timeout: Seconds = EXPORT_S_MAX
    ) -> Iterator[pb.ExportUserResponse]:
        """Iterate over all that is kept of a user, session by session.

        It is complete if the iteration ends without an error; one that broke is begun again.

        Raises, from the iteration, InvalidField, ScopeMissing, Unavailable, DeadlineExceeded.
        """
        request = pb.ExportUserRequest(tenant=tenant, user_id=user_id)
        timeout_s = positive_seconds("timeout", timeout)
        parts = self._admin().ExportUser(
            request, timeout=timeout_s, metadata=self._settings.metadata_now()
        )
        try:
            yield from parts
        except grpc.RpcError as failure:
            raise routing_error(
                failure,
                method="ExportUser",
                target=self._settings.target,
                request_id="",
                timeout_s=timeout_s,
                attempts=1,
            ) from failure
        finally:
            parts.cancel()

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
        """Iterate over the changes of all sessions as they happen, at least once each.

        cursor: go on after this one, which each message carries; empty: what comes from now on, or
        with from_beginning everything. kinds: only changes with an event of one of these. A lost
        connection is made again from the last message; deduplicate by tenant, session and revision.

        Raises, from the iteration, InvalidField, RevisionCompacted, ScopeMissing, and after
        away_timeout Unavailable or Overloaded.
        """
        request = admin_messages.watch_events(
            tenant=tenant,
            cursor=cursor,
            from_beginning=from_beginning,
            kinds=kinds,
            heartbeat_interval=heartbeat_interval,
        )
        watch = LogWatch(self._settings, request, positive_seconds("away_timeout", away_timeout))
        while True:
            stream = self._admin().WatchEvents(
                watch.connect(), metadata=self._settings.metadata_now()
            )
            failure: grpc.RpcError | None = None
            try:
                for message in stream:
                    if watch.received(message):
                        yield message
            except grpc.RpcError as ended:
                failure = ended
            finally:
                # Also when the caller leaves the loop: the service must not go on sending.
                stream.cancel()
            time.sleep(watch.wait_after(failure))
