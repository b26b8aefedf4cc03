"""The generated messages, and what needs them: imported at the first use of one of its names.

Importing protobuf and the messages takes longer than importing the rest of the client, and programs
import a client long before they make one, or without making one. Client() and AsyncClient() import
all of them, so that no call is slower.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.protobuf import duration_pb2, struct_pb2, timestamp_pb2

    from agent_routing import outcomes
    from agent_routing.v1 import (
        agent_pb2,
        clear_scope_pb2,
        dispatch_pb2,
        handoff_pb2,
        item_pb2,
        moved_turn_pb2,
        route_reason_pb2,
        routing_service_pb2,
        session_event_pb2,
        task_pb2,
        turn_pb2,
    )
    from agent_routing.v1.routing_service_pb2_grpc import RoutingServiceStub
else:

    class _AtFirstUse(ModuleType):
        """Stands for a module: takes each name from it when it is first used."""

        def __getattr__(self, name: str) -> object:
            value = getattr(importlib.import_module(self.__name__), name)
            self.__dict__[name] = value
            return value

    outcomes = _AtFirstUse("agent_routing.outcomes")
    duration_pb2 = _AtFirstUse("google.protobuf.duration_pb2")
    struct_pb2 = _AtFirstUse("google.protobuf.struct_pb2")
    timestamp_pb2 = _AtFirstUse("google.protobuf.timestamp_pb2")
    agent_pb2 = _AtFirstUse("agent_routing.v1.agent_pb2")
    clear_scope_pb2 = _AtFirstUse("agent_routing.v1.clear_scope_pb2")
    dispatch_pb2 = _AtFirstUse("agent_routing.v1.dispatch_pb2")
    handoff_pb2 = _AtFirstUse("agent_routing.v1.handoff_pb2")
    item_pb2 = _AtFirstUse("agent_routing.v1.item_pb2")
    moved_turn_pb2 = _AtFirstUse("agent_routing.v1.moved_turn_pb2")
    route_reason_pb2 = _AtFirstUse("agent_routing.v1.route_reason_pb2")
    routing_service_pb2 = _AtFirstUse("agent_routing.v1.routing_service_pb2")
    session_event_pb2 = _AtFirstUse("agent_routing.v1.session_event_pb2")
    task_pb2 = _AtFirstUse("agent_routing.v1.task_pb2")
    turn_pb2 = _AtFirstUse("agent_routing.v1.turn_pb2")

__all__ = [
    "agent_pb2",
    "clear_scope_pb2",
    "dispatch_pb2",
    "duration_pb2",
    "handoff_pb2",
    "item_pb2",
    "moved_turn_pb2",
    "outcomes",
    "route_reason_pb2",
    "routing_service_pb2",
    "session_event_pb2",
    "struct_pb2",
    "stub_class",
    "task_pb2",
    "timestamp_pb2",
    "turn_pb2",
]


def stub_class() -> type[RoutingServiceStub]:
    """Import all messages of RoutingService, and return the class of its stub."""
    from agent_routing.v1.routing_service_pb2_grpc import (  # noqa: PLC0415 - see the module's header
        RoutingServiceStub,
    )

    return RoutingServiceStub
