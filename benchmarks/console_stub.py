"""A stub of the console's listener: the page's files, and changes at 2,000 a second.

It runs in a process of its own, so that the page is measured and not the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator
from multiprocessing.connection import Connection
from typing import Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import route_reason_pb2, routing_service_pb2
from routing_service.web.console import page_files

CHANGES_PER_S: Final = 2_000
EVERY_S: Final = 0.01
SESSIONS: Final = 50
ADMIN: Final = "/agent_routing.v1.AdminService"


@contextlib.contextmanager
def playing() -> Iterator[tuple[str, Callable[[], dict[int, float]]]]:
    """Run the stub; yield its URL, and what returns when each revision was sent, in ms."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,))
    process.start()

    def read_sent() -> dict[int, float]:
        ours.send("sent")
        found: dict[int, float] = ours.recv()
        return found

    try:
        yield f"http://127.0.0.1:{ours.recv()}", read_sent
    finally:
        process.kill()
        process.join()


def _serve(connection: Connection) -> None:
    sent: dict[int, float] = {}
    files = page_files()

    def file(request: Request) -> Response:
        content, kind = files[request.url.path]
        return Response(content, media_type=kind)

    def sign_in(_request: Request) -> Response:
        return Response(json.dumps({"kind": "none", "issuer": "", "clientId": "", "scopes": ""}))

    def sessions(_request: Request) -> Response:
        listed = pb.ListSessionsResponse()
        for number in range(SESSIONS):
            row = listed.sessions.add(session_id=_name(number), owner="user", channel="web")
            row.active_agent.agent_id = row.active_agent.display_name = "billing"
            row.update_time.GetCurrentTime()
        return Response(listed.SerializeToString(), media_type="application/proto")

    def agents(_request: Request) -> Response:
        body = routing_service_pb2.ListAgentsResponse().SerializeToString()
        return Response(body, media_type="application/proto")

    async def play() -> AsyncIterator[bytes]:
        revision = 0
        begun_s = time.monotonic()
        while True:
            await asyncio.sleep(EVERY_S)
            due = int((time.monotonic() - begun_s) * CHANGES_PER_S)
            batch = []
            while revision < due:
                revision += 1
                sent[revision] = time.time() * 1e3
                batch.append(_change(revision))
            yield b"".join(batch)

    async def watch(request: Request) -> Response:
        await request.body()
        return StreamingResponse(play(), media_type="application/connect+proto")

    app = Starlette(
        routes=[
            *(Route(path, file) for path in files),
            Route("/sign-in.json", sign_in),
            Route(f"{ADMIN}/ListSessions", sessions, methods=["POST"]),
            Route("/agent_routing.v1.RoutingService/ListAgents", agents, methods=["POST"]),
            Route(f"{ADMIN}/WatchEvents", watch, methods=["POST"]),
        ]
    )
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))

    async def run() -> None:
        serving = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        connection.send(server.servers[0].sockets[0].getsockname()[1])
        while not serving.done():
            await asyncio.to_thread(connection.recv)
            connection.send(sent)

    asyncio.run(run())


def _name(number: int) -> str:
    return f"live-{number:02}"


def _change(revision: int) -> bytes:
    """Return a change of one of the sessions, in an envelope of Connect."""
    message = pb.WatchEventsResponse(cursor=str(revision), tenant="default")
    session_id = _name(revision % SESSIONS)
    message.change.session_id = session_id
    message.change.revision = revision
    event = message.change.events.add(
        event_id=f"{session_id}-{revision}", session_id=session_id, revision=revision
    )
    event.event_time.GetCurrentTime()
    event.active_agent.agent_id = event.active_agent.display_name = "billing"
    event.message_routed.reason = route_reason_pb2.ROUTE_REASON_STICKY
    event.message_routed.agent.agent_id = "billing"
    body = message.SerializeToString()
    return struct.pack(">BI", 0, len(body)) + body
