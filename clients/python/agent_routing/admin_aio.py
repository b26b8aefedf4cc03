"""The client for asyncio, of those who run the service.

Owns: one method for each RPC of AdminService that a client may need. Must not know: how a call is
made and repeated (AsyncClient does that). Rule: as AsyncClient's: a method builds its request,
calls, and returns the generated response.
"""

# ruff: noqa: ASYNC109 - gRPC keeps the deadline and sends it along; asyncio.timeout would do neither

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from typing import TYPE_CHECKING

import grpc

from agent_routing import admin_messages
from agent_routing.aio import AsyncClient
from agent_routing.calls import CallInfo
from agent_routing.log_watching import LogWatch
from agent_routing.plain_values import Seconds, positive_seconds
from agent_routing.request_messages import TaskStatusName
from agent_routing.status_details import routing_error
from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1.admin_service_pb2_grpc import AdminServiceStub
from agent_routing.watching import AWAY_S_DEFAULT

if TYPE_CHECKING:
    from agent_routing.v1.admin_service_pb2_grpc import AdminServiceAsyncStub

EXPORT_S_MAX = 600.0
"""How long the export of one user may take: it reads every session of theirs."""


class AsyncAdmin(AsyncClient):
    """As Admin, with await."""

    def _admin(self) -> AdminServiceAsyncStub:
        """Return the stub of AdminService, on the same channel as everything else."""
        self._open()
        channel = self._given_channel or self._channel
        assert channel is not None
        return AdminServiceStub(channel)

    async def list_sessions_page(
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
        """As Admin.list_sessions_page()."""
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
        return await self._call(self._admin().ListSessions, request, timeout, info)

    async def list_events_page(
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
        """As Admin.list_events_page()."""
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
        return await self._call(self._admin().ListEvents, request, timeout, info)

    async def routing_stats(
        self,
        *,
        tenant: str = "",
        start_time: datetime | None = None,
        end_time: datetime | None = None,
        channel: str = "",
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.GetRoutingStatsResponse:
        """As Admin.routing_stats()."""
        request = admin_messages.get_routing_stats(
            tenant=tenant, start_time=start_time, end_time=end_time, channel=channel
        )
        return await self._call(self._admin().GetRoutingStats, request, timeout, info)

    async def reload_agents(
        self,
        *,
        validate_only: bool = False,
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.ReloadAgentsResponse:
        """As Admin.reload_agents()."""
        request = pb.ReloadAgentsRequest(validate_only=validate_only)
        return await self._call(self._admin().ReloadAgents, request, timeout, info)

    async def set_stickiness(
        self,
        enabled: bool,  # noqa: FBT001 - the one thing that the call is about
        *,
        tenant: str = "",
        reason: str = "",
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.SetStickinessResponse:
        """As Admin.set_stickiness()."""
        request = pb.SetStickinessRequest(tenant=tenant, enabled=enabled, reason=reason)
        return await self._call(self._admin().SetStickiness, request, timeout, info)

    async def export_user(
        self, user_id: str, *, tenant: str = "", timeout: Seconds = EXPORT_S_MAX
    ) -> AsyncIterator[pb.ExportUserResponse]:
        """As Admin.export_user(), to iterate over with async for."""
        request = pb.ExportUserRequest(tenant=tenant, user_id=user_id)
        timeout_s = positive_seconds("timeout", timeout)
        parts = self._admin().ExportUser(
            request, timeout=timeout_s, metadata=await self._settings.metadata_soon()
        )
        try:
            async for part in parts:
                yield part
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

    async def watch_events(
        self,
        *,
        tenant: str = "",
        cursor: str = "",
        from_beginning: bool = False,
        kinds: Iterable[str] = (),
        heartbeat_interval: Seconds | None = None,
        away_timeout: Seconds = AWAY_S_DEFAULT,
    ) -> AsyncIterator[pb.WatchEventsResponse]:
        """As Admin.watch_events(), to iterate over with async for."""
        request = admin_messages.watch_events(
            tenant=tenant,
            cursor=cursor,
            from_beginning=from_beginning,
            kinds=kinds,
            heartbeat_interval=heartbeat_interval,
        )
        watch = LogWatch(self._settings, request, positive_seconds("away_timeout", away_timeout))
        while True:
            metadata = await self._settings.metadata_soon()
            stream = self._admin().WatchEvents(watch.connect(), metadata=metadata)
            failure: grpc.RpcError | None = None
            try:
                async for message in stream:
                    if watch.received(message):
                        yield message
            except grpc.RpcError as ended:
                failure = ended
            finally:
                # Also when the caller leaves the loop: the service must not go on sending.
                stream.cancel()
            await asyncio.sleep(watch.wait_after(failure))
