"""What an RPC is to the code around it: a function from a caller and bytes to bytes.

Each module of rpc/routing and rpc/admin offers its RPCs in a table by name, ``methods``. Whether an
RPC streams is read from the contract.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol

import msgspec

from agent_routing.v1 import routing_service_pb2
from routing_service.auth.caller import Caller
from routing_service.telemetry.call_record import CallRecord


class RpcAnswer(msgspec.Struct, frozen=True):
    """A serialised answer. replayed: it is the stored answer to an earlier, equal request."""

    body: bytes
    replayed: bool = False


StreamMessage = routing_service_pb2.RouteStreamRequest | bytes
"""A message of a request stream, parsed once. Bytes that do not parse stay bytes."""

UnaryMethod = Callable[[Caller, bytes, CallRecord], Awaitable[RpcAnswer]]
MessageMethod = Callable[[Caller, StreamMessage, CallRecord], Awaitable[RpcAnswer]]
"""Answers one message of a stream both ways."""
StreamMethod = Callable[[Caller, bytes, CallRecord], AsyncGenerator[tuple[bytes, dict[str, str]]]]
"""Yields messages, each with the position from which a reader can resume, as error metadata."""

Methods = Mapping[str, Callable[..., Any]]
"""The RPCs of a service, or of a part of one, by their names in the contract."""


class HasMethods(Protocol):
    """A part of a service."""

    @property
    def methods(self) -> Methods:
        """The part's RPCs by name."""
        ...


def all_methods(parts: Iterable[HasMethods]) -> Methods:
    """Return the RPCs of all parts of a service."""
    return {name: method for part in parts for name, method in part.methods.items()}
