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
from contextlib import AsyncExitStack, suppress
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

REFUSED: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    }
)
"""How a server under load refuses a call."""

REFUSED_PAUSE_S: Final = 0.05

WARM_UP: Final = 20
"""Lone calls that are not counted."""

PART_S_MAX: Final = 120.0
QUICK_PART_S_MAX: Final = 15.0
"""How long each of the three parts may take: the lone calls, filling an inbox, emptying it. The
figure is what was done by then."""


def measure(scale: Scale) -> list[Figure]:
    """Run both measurements, each on a new SQLite store."""
    share = QUICK_SHARE if scale.is_quick else 1
    part_s = QUICK_PART_S_MAX if scale.is_quick else PART_S_MAX
    with server_process("", registry=REGISTRY) as (address, _):
        direct_ms, inbox_ms = asyncio.run(_one_by_one(address, scale.lone_calls, part_s))
    figures = [_printed(_added(direct_ms, inbox_ms, part)) for part in (50, 99)]
    with server_process("", registry=REGISTRY) as (address, _):
        cleared = asyncio.run(
            emptied(address, WAITING // share, WORKERS // share, part_s_max=part_s)
        )
    unit = f"turns a second, {cleared['waiting']:,} waiting, {cleared['workers']:,} workers"
    figures.append(
        _printed(Figure("inbox_turns_per_s", cleared["turns_per_s"], unit, beside=cleared))
    )
    return figures


def _printed(figure: Figure) -> Figure:
    """Print a figure as soon as it is there: the rest of the run may be cut off."""
    beside = ", ".join(f"{name} {value:,.2f}" for name, value in figure.beside.items())
    print(f"{figure.key}: {figure.value:,.2f} {figure.unit} ({beside})", flush=True)
    return figure


def _added(direct_ms: list[float], inbox_ms: list[float], part: int) -> Figure:
    """Return how much later a worker has a turn than a caller of Route, of the same run."""
    direct, inbox = _quantile(direct_ms, part), _quantile(inbox_ms, part)
    return Figure(
        f"inbox_added_p{part}_ms",
        inbox - direct,
        "ms over a direct Route",
        beside={"direct_ms": direct, "inbox_ms": inbox, "ratio": inbox / direct},
    )


async def _one_by_one(address: str, calls: int, s_max: float) -> tuple[list[float], list[float]]:
    """Return the times of direct Routes, and from a Route until a worker has its turn, in ms.

    s_max: after it there are fewer, but two at least.
    """
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = rpc.RoutingServiceStub(channel)
        await stub.SetActiveAgent(
            pb.SetActiveAgentRequest(session_id="carried", agent_id="carried")
        )
        stream = stub.WatchInbox(pb.WatchInboxRequest(agent_ids=["worked"], worker_id="one"))
        await stream.read()
        direct: list[float] = []
        waited: list[float] = []
        until_s = time.perf_counter() + s_max
        for number in range(calls + WARM_UP):
            if time.perf_counter() > until_s and number >= WARM_UP + 2:
                break
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
    return direct[WARM_UP:], waited[WARM_UP:]


async def emptied(
    address: str,
    waiting: int,
    workers: int,
    senders: int = SENDERS,
    part_s_max: float = PART_S_MAX,
) -> dict[str, float]:
    """Fill an inbox, then let workers empty it; return the rates.

    part_s_max: of filling and of emptying. "waiting" and "done" say how far they came.
    """
    async with AsyncExitStack() as opened:
        stubs: list[Any] = []
        for _ in range(-(-workers // STREAMS_PER_CHANNEL)):
            channel = grpc.aio.insecure_channel(
                address, options=[("grpc.use_local_subchannel_pool", 1)]
            )
            stubs.append(rpc.RoutingServiceStub(await opened.enter_async_context(channel)))
        numbers = itertools.count()

        filled = refused = 0

        async def fill(stub: Any, until_s: float) -> None:
            nonlocal filled, refused
            while time.perf_counter() < until_s and (number := next(numbers)) < waiting:
                refused += await _taken(stub.Route, _message(f"chat-{number}"))
                filled += 1

        begun_s = time.perf_counter()
        until_s = begun_s + part_s_max
        await asyncio.gather(*(fill(stubs[n % len(stubs)], until_s) for n in range(senders)))
        waiting = filled
        routes_per_s = waiting / (time.perf_counter() - begun_s)
        done = 0
        finished = asyncio.Event()

        async def work(stub: Any, number: int) -> None:
            watch = pb.WatchInboxRequest(agent_ids=["worked"], worker_id=f"worker-{number}")
            while True:
                # A server under load refuses streams too; a worker connects again.
                with suppress(grpc.aio.AioRpcError):
                    await answer_all(stub, stub.WatchInbox(watch))
                await asyncio.sleep(REFUSED_PAUSE_S)

        async def answer_all(stub: Any, stream: Any) -> None:
            nonlocal done, refused
            while (message := await stream.read()) is not grpc.aio.EOF:
                if message.HasField("item"):
                    item = message.item
                    answer = _answer(item.session_id, item.dispatch, item.lease_token)
                    refused += await _taken(stub.CompleteTurn, answer)
                    done += 1
                    if done == waiting:
                        finished.set()

        begun_s = time.perf_counter()
        tasks = [asyncio.ensure_future(work(stubs[n % len(stubs)], n)) for n in range(workers)]
        with suppress(TimeoutError):
            await asyncio.wait_for(finished.wait(), part_s_max)
        seconds = time.perf_counter() - begun_s
        done_in_time = done
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return {
        "waiting": waiting,
        "workers": workers,
        "seconds": seconds,
        "done": done_in_time,
        "refused_calls": refused,
        "turns_per_s": done_in_time / seconds,
        "routes_per_s": routes_per_s,
        # A turn is an offer with its lease, and an answer; a Route is one change.
        "ratio_to_routes": done_in_time / seconds / routes_per_s,
    }


def _message(session_id: str) -> pb.RouteRequest:
    return pb.RouteRequest(session_id=session_id, text="hello", request_id=new_uuid7())


async def _complete(stub: Any, session_id: str, dispatch: Any, lease_token: str) -> None:
    await stub.CompleteTurn(_answer(session_id, dispatch, lease_token))


def _answer(session_id: str, dispatch: Any, lease_token: str) -> pb.CompleteTurnRequest:
    return pb.CompleteTurnRequest(
        session_id=session_id,
        request_id=dispatch.request_id,
        agent_id=dispatch.agent.agent_id,
        text="done",
        proceed=pb.ProceedOutcome(),
        lease_token=lease_token,
    )


async def _taken(call: Any, request: Any) -> int:
    """Make a call, again while the server refuses it under load; return how often it did.

    Each request has its id, so that a repeat does nothing twice.
    """
    for refused in itertools.count():
        try:
            await call(request)
        except grpc.aio.AioRpcError as error:
            if error.code() not in REFUSED:
                raise
            await asyncio.sleep(REFUSED_PAUSE_S)
        else:
            return refused
    raise AssertionError


def _quantile(values: list[float], part: int) -> float:
    return statistics.quantiles(values, n=100)[part - 1]
