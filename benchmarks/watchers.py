"""Many watchers of one session, in a process of their own: `python -m benchmarks.watchers`.

It opens COUNT watches on ADDRESS, prints "ready" once each has heard from the server, and waits for
lines. Each line sends a message to the session and prints the milliseconds until all watchers have
seen it. It ends with its input.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Final

import grpc

from agent_routing.v1 import routing_service_pb2 as pb
from agent_routing.v1 import routing_service_pb2_grpc as rpc
from benchmarks import talk

STREAMS_PER_CONNECTION: Final = 90
"""A connection carries at most a hundred calls."""

AT_ONCE: Final = 25


async def watch(address: str, count: int) -> None:
    """Watch until the input ends."""
    [session] = talk.names(1)
    stubs = []
    for place in range(-(-count // STREAMS_PER_CONNECTION)):
        options = [("grpc.use_local_subchannel_pool", 1), ("benchmark.place", place)]
        stubs.append(rpc.RoutingServiceStub(grpc.aio.insecure_channel(address, options)))
    message = pb.RouteRequest(session_id=session, user_id="user", text="hello")
    await stubs[0].Route(message)
    request = pb.WatchSessionRequest(session_id=session, user_id="user")
    watches: list[grpc.aio.UnaryStreamCall[pb.WatchSessionRequest, pb.WatchSessionResponse]] = []
    while len(watches) < count:
        # The server rightly refuses a thousand calls at once.
        places = range(len(watches), min(count, len(watches) + AT_ONCE))
        opened = [stubs[place % len(stubs)].WatchSession(request) for place in places]
        await asyncio.gather(*(each.read() for each in opened))
        watches += opened
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while await asyncio.to_thread(sys.stdin.readline):
        reads = [asyncio.ensure_future(each.read()) for each in watches]
        await asyncio.sleep(0)
        await stubs[0].Route(message)
        begun_s = time.perf_counter()
        await asyncio.gather(*reads)
        sys.stdout.write(f"{(time.perf_counter() - begun_s) * 1e3:.1f}\n")
        sys.stdout.flush()
    os._exit(0)  # A thousand open streams need not be closed one by one.


if __name__ == "__main__":
    asyncio.run(watch(sys.argv[1], int(sys.argv[2])))
