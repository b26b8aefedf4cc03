"""A complete server without its network: each RPC's handler, called as gRPC would call it.

Owns the stand-ins for gRPC's server and contexts. Everything between the wire and the store is the
real code, so that a million calls take minutes and still cover it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from unittest import mock

import grpc

from routing_service.server.server import RoutingServer
from routing_service.settings.settings import Settings
from routing_service.storage.checked_store import Store
from routing_service.storage.open_store import open_store
from routing_service.telemetry.call_record import CallRecord

HANG_S: Final = 60.0
"""A call that takes longer hangs; each takes less than a millisecond."""

STREAM_BODIES_MAX: Final = 3
"""Messages of a stream after which its reader leaves: a watch has no end of its own."""

UNTIL_READ: Final = frozenset({"Watch", "WatchSession", "WatchEvents"})
"""Streams that are silent after their first message."""

SILENT: Final = frozenset({"WatchInbox", "WatchApprovals"})
"""Streams that may send nothing for minutes: their readers leave after SILENT_S."""

SILENT_S: Final = 0.05


@dataclass(slots=True)
class Answer:
    """The result of a call.

    raised: the error that reached gRPC, which would send it to the caller.
    """

    code: str = "OK"
    message: str = ""
    details: bytes = b""
    bodies: list[bytes] = field(default_factory=list)
    raised: BaseException | None = None


class InProcess:
    """The handlers of one server. Made by ``start``."""

    def __init__(self, server: RoutingServer, gate: _Gate, failures: list[BaseException]) -> None:
        self._server = server
        self._gate = gate
        self.failures = failures
        """Bugs and store failures that the server has met by itself."""
        self._found: dict[str, Any] = {}

    @classmethod
    async def start(
        cls, registry_path: str, store: Store | None = None, **settings: Any
    ) -> InProcess:
        """Start a server over a store in memory, or over the given one."""
        gate = _Gate()
        observer = _Observer()
        given = Settings(store="memory:", agents=registry_path, expiry_sweep=False, **settings)
        with (
            mock.patch("routing_service.server.listeners.grpc.aio.server", return_value=gate),
            mock.patch("routing_service.server.listeners.check_is_free"),
        ):
            server = await RoutingServer.start(
                given, observer=observer, store_opener=_opener(store) if store else open_store
            )
        return cls(server, gate, observer.failures)

    async def stop(self) -> None:
        """Stop it."""
        await self._server.stop(0)

    async def send(
        self,
        path: str,
        data: bytes,
        metadata: Sequence[tuple[str, str | bytes]] = (),
        *,
        remaining_s: float = HANG_S / 2,
    ) -> Answer:
        """Call an RPC with bytes, on a stream as its only message. Raises TimeoutError."""
        handler = self._found.get(path) or self._gate.handler(path)
        self._found[path] = handler
        async with asyncio.timeout(HANG_S):
            if not handler.request_streaming and not handler.response_streaming:
                return await _unary(handler, data, _Context(metadata, remaining_s=remaining_s))
            return await _stream(handler, path, data, metadata)


async def _unary(handler: Any, data: bytes, context: _Context) -> Answer:
    try:
        context.answer.bodies.append(await handler.unary_unary(data, context))
    except grpc.aio.AbortError:
        pass
    except Exception as error:  # noqa: BLE001 - this is what is looked for
        context.answer.raised = error
    return context.answer


async def _stream(
    handler: Any, path: str, data: bytes, metadata: Sequence[tuple[str, str | bytes]]
) -> Answer:
    bodies_max = 1 if path.rpartition("/")[2] in UNTIL_READ else STREAM_BODIES_MAX
    context = _Context(metadata, requests=[data], bodies_max=bodies_max)
    if handler.request_streaming:
        made = handler.stream_stream(context.requests(), context)
    else:
        made = handler.unary_stream(data, context)
    context.task = asyncio.ensure_future(made)
    if path.rpartition("/")[2] in SILENT:
        asyncio.get_running_loop().call_later(SILENT_S, context.leave)
    try:
        await context.task
    except grpc.aio.AbortError:
        pass
    except asyncio.CancelledError:
        if not context.left:
            raise
    except Exception as error:  # noqa: BLE001 - as above
        context.answer.raised = error
    return context.answer


def _opener(store: Store) -> Callable[[str], Awaitable[Store]]:
    async def open_it(_: str) -> Store:
        return store

    return open_it


class _Context:
    """The context that gRPC passes to a handler."""

    def __init__(
        self,
        metadata: Sequence[tuple[str, str | bytes]],
        requests: Iterable[bytes] = (),
        bodies_max: int = 0,
        remaining_s: float = HANG_S / 2,
    ) -> None:
        self._remaining_s = remaining_s
        self.answer = Answer()
        self.task: asyncio.Future[Any] | None = None
        self.left = False
        self._metadata = metadata
        self._requests = list(requests)
        self._bodies_max = bodies_max

    async def requests(self) -> AsyncIterator[bytes]:
        for data in self._requests:
            yield data

    def invocation_metadata(self) -> Sequence[tuple[str, str | bytes]]:
        return self._metadata

    def time_remaining(self) -> float:
        return self._remaining_s

    def auth_context(self) -> dict[str, Iterable[bytes]]:
        return {}

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def set_trailing_metadata(self, _: object) -> None:
        pass

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing: Sequence[Any] = ()
    ) -> None:
        self.answer.code = code.name
        self.answer.message = details
        self.answer.details = dict(trailing).get("grpc-status-details-bin", b"")
        raise grpc.aio.AbortError

    async def read(self) -> object:
        return self._requests.pop(0) if self._requests else grpc.aio.EOF

    async def write(self, body: bytes) -> None:
        self.answer.bodies.append(body)
        if len(self.answer.bodies) == self._bodies_max:
            self.leave()
            await asyncio.sleep(0)

    def leave(self) -> None:
        """End the call as a reader who has read enough."""
        if self.task is not None and not self.task.done():
            self.left = True
            self.task.cancel()


class _Gate:
    """Stands in for gRPC's server: keeps the handlers, and does not listen."""

    def __init__(self) -> None:
        self._handlers: list[grpc.GenericRpcHandler] = []

    def handler(self, path: str) -> Any:
        details = mock.Mock(method=path, invocation_metadata=())
        for handler in self._handlers:
            found = handler.service(details)
            if found is not None:
                return found
        raise LookupError(path)

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        self._handlers += handlers

    def add_insecure_port(self, _: str) -> int:
        return 1

    async def start(self) -> None:
        pass

    async def stop(self, _: object) -> None:
        pass


class _Observer:
    def __init__(self) -> None:
        self.failures: list[BaseException] = []

    def finished(self, record: CallRecord) -> None:
        pass

    def failed(self, _record: CallRecord, error: BaseException) -> str:
        self.failures.append(error)
        return "error-id"
