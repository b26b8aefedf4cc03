"""Requests of AdminService from plain Python values.

Owns: which argument becomes which field. Must not know: how a request is sent. Rule: as
request_messages: what the service can judge is left to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from google.protobuf.timestamp_pb2 import Timestamp

from agent_routing.plain_values import Seconds, duration, enum_value, timestamp
from agent_routing.request_messages import TaskStatusName
from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1.task_pb2 import TaskStatus


def list_sessions(
    *,
    tenant: str,
    owner: str,
    active_agent_id: str,
    task_status: TaskStatusName | None,
    channel: str,
    locked: bool | None,
    update_time_from: datetime | None,
    update_time_before: datetime | None,
    page_size: int,
    page_token: str,
) -> pb.ListSessionsRequest:
    """Return the request for one page."""
    return pb.ListSessionsRequest(
        tenant=tenant,
        owner=owner,
        active_agent_id=active_agent_id,
        task_status=enum_value(TaskStatus, "TASK_STATUS_", "task_status", task_status),
        channel=channel,
        locked=locked,
        update_time_from=_time("update_time_from", update_time_from),
        update_time_before=_time("update_time_before", update_time_before),
        page_size=page_size,
        page_token=page_token,
    )


def list_events(
    *,
    tenant: str,
    session_id: str,
    owner: str,
    actor: str,
    request_id: str,
    agent_id: str,
    kinds: Iterable[str],
    event_time_from: datetime | None,
    event_time_before: datetime | None,
    oldest_first: bool | None,
    page_size: int,
    page_token: str,
) -> pb.ListEventsRequest:
    """Return the request for one page."""
    order = pb.EVENT_ORDER_UNSPECIFIED
    if oldest_first is not None:
        order = pb.EVENT_ORDER_OLDEST_FIRST if oldest_first else pb.EVENT_ORDER_NEWEST_FIRST
    return pb.ListEventsRequest(
        tenant=tenant,
        session_id=session_id,
        owner=owner,
        actor=actor,
        request_id=request_id,
        agent_id=agent_id,
        kinds=kinds,
        event_time_from=_time("event_time_from", event_time_from),
        event_time_before=_time("event_time_before", event_time_before),
        order=order,
        page_size=page_size,
        page_token=page_token,
    )


def watch_events(
    *,
    tenant: str,
    cursor: str,
    from_beginning: bool,
    kinds: Iterable[str],
    heartbeat_interval: Seconds | None,
) -> pb.WatchEventsRequest:
    """Return the request for the first connection."""
    request = pb.WatchEventsRequest(
        tenant=tenant, cursor=cursor, from_beginning=from_beginning, kinds=kinds
    )
    if heartbeat_interval is not None:
        request.heartbeat_interval.CopyFrom(duration(heartbeat_interval))
    return request


def get_routing_stats(
    *, tenant: str, start_time: datetime | None, end_time: datetime | None, channel: str
) -> pb.GetRoutingStatsRequest:
    """Return the request."""
    return pb.GetRoutingStatsRequest(
        tenant=tenant,
        start_time=_time("start_time", start_time),
        end_time=_time("end_time", end_time),
        channel=channel,
    )


def _time(name: str, value: datetime | None) -> Timestamp | None:
    return None if value is None else timestamp(name, value)
