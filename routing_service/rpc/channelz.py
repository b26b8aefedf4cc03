"""Channelz: gRPC's own view of its connections, for finding faults on the wire.

For operators only, and on the admin listener only: it shows the address of every peer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, cast

import grpc
from grpc_channelz.v1 import channelz, channelz_pb2

from routing_service.auth.caller import ADMIN, Metadata, SignIn
from routing_service.core.errors import RoutingError, scope_missing
from routing_service.rpc.status_errors import DETAILS_KEY, code_of, status_of

DESCRIPTOR: Final = channelz_pb2.DESCRIPTOR.services_by_name["Channelz"]

_Context = grpc.aio.ServicerContext[Any, Any]


def channelz_handlers(sign_in: SignIn) -> Sequence[grpc.GenericRpcHandler]:
    """Return the service's handlers, for operators."""
    servicer = channelz.aio.ChannelzServicer()

    def guarded(name: str) -> Callable[[Any, _Context], Awaitable[Any]]:
        answer = getattr(servicer, name)

        async def handle(request: Any, context: _Context) -> Any:
            try:
                metadata = cast("Metadata", context.invocation_metadata() or ())
                caller = await sign_in.caller(metadata, context.auth_context)
                if ADMIN not in caller.scopes:
                    raise scope_missing(f"Channelz's {name}", ADMIN)
            except RoutingError as error:
                status = status_of(error)
                details = ((DETAILS_KEY, status.SerializeToString()),)
                await context.abort(code_of(error), status.message, details)
            return await answer(request, context)

        return handle

    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        method.name: grpc.unary_unary_rpc_method_handler(
            guarded(method.name),
            request_deserializer=getattr(channelz_pb2, method.input_type.name).FromString,
            response_serializer=getattr(channelz_pb2, method.output_type.name).SerializeToString,
        )
        for method in DESCRIPTOR.methods
    }
    return (grpc.method_handlers_generic_handler(DESCRIPTOR.full_name, handlers),)
