"""What an inbox adds to a Route, and how fast many workers empty a long one.

`python -m benchmarks inbox`. One worker waits while messages are sent one by one: from the call of
Route until the worker has the turn, next to a Route whose dispatch the caller carries. Then a long
inbox is emptied by many workers, each with a stream of its own and one turn at a time.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from contextlib import AsyncExitStack
from typing import Any, Final

import grpc

from agent_routing.v1 import routing_service_pb2 as pb
from agent_routing.v1 import routing_service_pb2_grpc as rpc
from benchmarks.figure import Figure, Scale
from benchmarks.service import server_process
from routing_service.ids import new_uuid7

REGISTRY: Final = """\
api_version: agent_routing/v1
version: benchmark
default_agent: worked
limits: {turn_timeout: 24h}
agents:
  - {id: worked, name: Worked, delivery: inbox}
  - {id: carried, name: Carried}
"""

WAITING: Final = 10_000
WORKERS: Final = 1_000
QUICK_SHARE: Final = 20
"""A quick run has a twentieth of both."""

STREAMS_PER_CHANNEL: Final = 50
"""Half of the streams that a server allows on one connection, so that calls have room."""

SENDERS: Final = 64


def measure(scale: Scale) -> list[Figure]:
    """Run both measurements, each on a new SQLite store."""
    share = QUICK_SHARE if scale.is_quick else 1
    with server_process("", registry=REGISTRY) as (address, _):
        direct_ms, inbox_ms = asyncio.run(_one_by_one(address, scale.lone_calls))
    with server_process("", registry=REGISTRY) as (address, _):
        cleared = asyncio.run(emptied(address, WAITING // share, WORKERS // share))
    return [
        *(_added(direct_ms, inbox_ms, part) for part in (50, 99)),
        Figure(
            "inbox_turns_per_s",
            cleared["turns_per_s"],
            f"turns a second, {cleared['waiting']:,} waiting, {cleared['workers']:,} workers",
            beside=cleared,
        ),
    ]


def _added(direct_ms: list[float], inbox_ms: list[float], part: int) -> Figure:
    """Return how much later a worker has a turn than a caller of Route, of the same run."""
    direct, inbox = _quantile(direct_ms, part), _quantile(inbox_ms, part)
    return Figure(
        f"inbox_added_p{part}_ms",
        inbox - direct,
        "ms over a direct Route",
        beside={"direct_ms": direct, "inbox_ms": inbox, "ratio": inbox / direct},
    )


async def _one_by_one(address: str, calls: int) -> tuple[list[float], list[float]]:
    """Return the times of direct Routes, and from a Route until a worker has its turn, in ms."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = rpc.RoutingServiceStub(channel)
        await stub.SetActiveAgent(
            pb.SetActiveAgentRequest(session_id="carried", agent_id="carried")
        )
        stream = stub.WatchInbox(pb.WatchInboxRequest(agent_ids=["worked"], worker_id="one"))
        await stream.read()
        direct: list[float] = []
        waited: list[float] = []
        for number in range(calls + 20):
            begun_s = time.perf_counter()
            routed = await stub.Route(_message("carried"))
            direct.append((time.perf_counter() - begun_s) * 1e3)
            await _complete(stub, "carried", routed.dispatch, "")
            begun_s = time.perf_counter()
            sent = asyncio.ensure_future(stub.Route(_message(f"worked-{number}")))
            item = (await stream.read()).item
            waited.append((time.perf_counter() - begun_s) * 1e3)
            await sent
            await _complete(stub, item.session_id, item.dispatch, item.lease_token)
        stream.cancel()
    return direct[20:], waited[20:]


async def emptied(
    address: str, waiting: int, workers: int, senders: int = SENDERS
) -> dict[str, float]:
    """Fill an inbox, then let workers empty it; return the rates."""
    async with AsyncExitStack() as opened:
        stubs: list[Any] = []
        for _ in range(-(-workers // STREAMS_PER_CHANNEL)):
            channel = grpc.aio.insecure_channel(
                address, options=[("grpc.use_local_subchannel_pool", 1)]
            )
            stubs.append(rpc.RoutingServiceStub(await opened.enter_async_context(channel)))
        numbers = itertools.count()

        async def fill(stub: Any) -> None:
            while (number := next(numbers)) < waiting:
                await stub.Route(_message(f"chat-{number}"))

        begun_s = time.perf_counter()
        await asyncio.gather(*(fill(stubs[n % len(stubs)]) for n in range(senders)))
        routes_per_s = waiting / (time.perf_counter() - begun_s)
        done = 0
        finished = asyncio.Event()

        async def work(stub: Any, number: int) -> None:
            nonlocal done
            stream = stub.WatchInbox(
                pb.WatchInboxRequest(agent_ids=["worked"], worker_id=f"worker-{number}")
            )
            while True:
                message = await stream.read()
                if message is grpc.aio.EOF:
                    return
                if message.HasField("item"):
                    item = message.item
                    await _complete(stub, item.session_id, item.dispatch, item.lease_token)
                    done += 1
                    if done == waiting:
                        finished.set()

        begun_s = time.perf_counter()
        tasks = [asyncio.ensure_future(work(stubs[n % len(stubs)], n)) for n in range(workers)]
        await asyncio.wait_for(finished.wait(), 600)
        seconds = time.perf_counter() - begun_s
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return {
        "waiting": waiting,
        "workers": workers,
        "seconds": seconds,
        "turns_per_s": waiting / seconds,
        "routes_per_s": routes_per_s,
        # A turn is an offer with its lease, and an answer; a Route is one change.
        "ratio_to_routes": waiting / seconds / routes_per_s,
    }


def _message(session_id: str) -> pb.RouteRequest:
    return pb.RouteRequest(session_id=session_id, text="hello", request_id=new_uuid7())


async def _complete(stub: Any, session_id: str, dispatch: Any, lease_token: str) -> None:
    await stub.CompleteTurn(
        pb.CompleteTurnRequest(
            session_id=session_id,
            request_id=dispatch.request_id,
            agent_id=dispatch.agent.agent_id,
            text="done",
            proceed=pb.ProceedOutcome(),
            lease_token=lease_token,
        )
    )


def _quantile(values: list[float], part: int) -> float:
    return statistics.quantiles(values, n=100)[part - 1]
