"""The calls of one conversation, answered in this process by a store in memory.

Rule: it decides as a server does, by the same code, and at the times of the record. It has no
listener, so nobody else reaches the conversation, and nothing of it is written to a disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from google.protobuf.message import Message

from agent_routing.errors import ERRORS_BY_REASON
from agent_routing.errors import RoutingError as CallError
from agent_routing.v1 import routing_service_pb2 as pb
from routing_service.auth.caller import Caller
from routing_service.core.errors import RoutingError
from routing_service.core.registry import Registry
from routing_service.rpc.routing_servicer import RoutingServicer
from routing_service.rpc.status_errors import code_of
from routing_service.sessions.approval_watches import ApprovalWatches
from routing_service.sessions.command_handler import CommandHandler
from routing_service.sessions.event_feed import EventFeed
from routing_service.sessions.inbox import Inbox
from routing_service.sessions.live_feed import LiveFeed
from routing_service.sessions.stickiness_switch import Source, StickinessSwitch
from routing_service.storage.checked_store import Store
from routing_service.telemetry.call_record import CallRecord
from routing_service.topics.detection import TopicJudge

_CALLER: Final = Caller("replay", signed_in=False)

_SESSIONS_MAX: Final = 4
"""Sessions in the cache: a conversation is one."""

M = TypeVar("M", bound=Message)


class LocalServer:
    """A server of one registry and one store.

    clock_us: the time of decisions, microseconds since 1970; its user sets it.
    """

    def __init__(self, registry: Registry, topics: TopicJudge, store: Store) -> None:
        """Serve a registry from an empty store. topics: prepared for the registry."""
        self.clock_us = 0
        feed, inbox, approvals = EventFeed(store), Inbox(store), ApprovalWatches(store)
        switch = StickinessSwitch(
            store, lambda: registry.stickiness_enabled, start_source=Source.REGISTRY
        )
        handler = CommandHandler(
            store,
            lambda: registry,
            lambda: self.clock_us,
            stickiness=switch.now,
            cache_sessions_max=_SESSIONS_MAX,
            publish=feed.publish,
            doubt=feed.doubt,
            topics=topics,
        )
        inbox.serve(handler)
        approvals.serve(handler.approvals)
        calls = RoutingServicer(handler, feed, inbox, approvals, LiveFeed(store)).methods
        self._route, self._complete = calls["Route"], calls["CompleteTurn"]

    async def route(self, request: pb.RouteRequest) -> pb.RouteResponse:
        """See RoutingService.Route."""
        return await self._call("Route", self._route, request, pb.RouteResponse)

    async def complete_turn(self, request: pb.CompleteTurnRequest) -> pb.CompleteTurnResponse:
        """See RoutingService.CompleteTurn."""
        return await self._call("CompleteTurn", self._complete, request, pb.CompleteTurnResponse)

    async def _call(
        self,
        name: str,
        # As in Methods: the contract decides what a method takes.
        method: Callable[..., object],
        request: Message,
        answer_class: type[M],
    ) -> M:
        try:
            answered = await method(_CALLER, request.SerializeToString(), CallRecord(name))  # type: ignore[misc]
        except RoutingError as error:
            kind = ERRORS_BY_REASON.get(error.reason.value, CallError)
            raise kind(error.message, code=code_of(error), reason=error.reason.value) from error
        return answer_class.FromString(answered.body)
