"""The reference: a bare grpc.aio server that echoes each Route at once.

It shows the minimum cost of a Python service over gRPC. It parses the same request and sends an
answer of the same fields, on uvloop if there is one, and does nothing else: no check, no sign-in,
no log, no count, no store. Run as a process of its own: `python -m benchmarks.echo_server` prints
its address, as the service does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc

from agent_routing.v1 import routing_service_pb2 as pb
from agent_routing.v1 import routing_service_pb2_grpc as rpc


class Echo(rpc.RoutingServiceServicer):
    """Route and RouteStream, echoed."""

    async def Route(  # noqa: N802 - gRPC's name
        self, request: pb.RouteRequest, _context: object
    ) -> pb.RouteResponse:
        """Answer with the request's own text."""
        return _answer(request)

    async def RouteStream(  # noqa: N802 - gRPC's name
        self, request_iterator: AsyncIterator[pb.RouteStreamRequest], _context: object
    ) -> AsyncIterator[pb.RouteStreamResponse]:
        """Answer each message as it comes."""
        async for message in request_iterator:
            route = message.route
            yield pb.RouteStreamResponse(
                request_id=route.request_id, session_id=route.session_id, route=_answer(route)
            )


def _answer(request: pb.RouteRequest) -> pb.RouteResponse:
    answer = pb.RouteResponse(session_id=request.session_id, request_id=request.request_id)
    answer.dispatch.request_id = request.request_id
    answer.dispatch.text = request.text
    return answer


async def serve() -> None:
    """Serve until a stop signal."""
    server = grpc.aio.server()
    rpc.add_RoutingServiceServicer_to_server(Echo(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"serving on 127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


def main() -> None:
    """Serve on the loop that the service uses."""
    try:
        from uvloop import run  # noqa: PLC0415 - not on every platform
    except ImportError:
        run = asyncio.run
    run(serve())


if __name__ == "__main__":
    main()
