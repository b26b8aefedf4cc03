"""The gRPC servers of a process, one for each address, and the services that each offers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import grpc
from google.protobuf.descriptor import FileDescriptor, ServiceDescriptor

from agent_routing.v1 import error_reason_pb2
from routing_service.auth.caller import SignIn
from routing_service.rpc.reflection import ReflectionService
from routing_service.server.channel_options import RECEIVE_BYTES_MAX, channel_options
from routing_service.server.tls_files import TlsFiles
from routing_service.server.unread_calls import UnreadCalls
from routing_service.settings.listen_address import ListenAddress, ListenFailed, check_is_free
from routing_service.settings.settings import Settings

# The enum of error reasons: no message refers to it.
_ALSO_REFLECTED: Sequence[FileDescriptor] = (error_reason_pb2.DESCRIPTOR,)


class Listeners:
    """The gRPC servers of one process."""

    def __init__(
        self, settings: Settings, tls: TlsFiles | None, sign_in: SignIn, unread: UnreadCalls
    ) -> None:
        """Listen nowhere yet. tls: None = unencrypted. sign_in: checked by reflection."""
        self._sign_in = sign_in
        self._unread = unread
        self._settings = settings
        self._tls = tls
        self._servers: list[grpc.aio.Server] = []
        self._reflections: list[ReflectionService] = []

    async def listen(
        self,
        wanted: ListenAddress,
        services: Iterable[ServiceDescriptor],
        handlers: Iterable[grpc.GenericRpcHandler],
        receive_bytes_max: int = RECEIVE_BYTES_MAX,
    ) -> ListenAddress:
        """Serve at an address; return it with its real port. Raises ListenFailed.

        services: listed by reflection. receive_bytes_max: of one request.
        """
        server = grpc.aio.server(options=channel_options(self._settings, receive_bytes_max))
        self._servers.append(server)
        self._unread.count_of(server)
        reflection = ReflectionService(services, _ALSO_REFLECTED, sign_in=self._sign_in)
        self._reflections.append(reflection)
        server.add_generic_rpc_handlers((*handlers, *reflection.handlers()))
        is_shared = self._settings.processes > 1
        address = _bind(server, wanted, self._tls, is_shared=is_shared)
        await server.start()
        return address

    def drain(self) -> None:
        """End the reflection streams, which have no end of their own."""
        for reflection in self._reflections:
            reflection.drain()

    async def stop(self, grace_s: float | None = None) -> None:
        """Let calls in flight finish. grace_s: then they are cancelled; None = at once."""
        await asyncio.gather(*(server.stop(grace_s) for server in self._servers))


def _bind(
    server: grpc.aio.Server, address: ListenAddress, tls: TlsFiles | None, *, is_shared: bool
) -> ListenAddress:
    """Open a port, and return the address with its real number. Raises ListenFailed.

    is_shared: with other processes of the same supervisor, which has checked it.
    """
    if not is_shared:
        check_is_free(address)
    try:
        if tls is None:
            port = server.add_insecure_port(str(address))
        else:
            port = server.add_secure_port(str(address), tls.credentials())
    except RuntimeError as error:
        raise ListenFailed(
            f"cannot listen on {address}: another program took it just now; stop that one, or "
            "choose another address"
        ) from error
    return address if address.unix_path else address.with_port(port)
