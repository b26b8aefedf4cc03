"""Calls and runs as plain values, so that the same sequence runs in threads and in asyncio.

Owns how a sequence of steps is executed, blocking or not. A sequence is a generator: it yields a
Call or a Segment, and gets its result, or its error as an exception.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from agent_routing.aio import AsyncClient
from agent_routing.client import Client

if TYPE_CHECKING:
    from agent_routing.integrations.routed_turn import RoutedTurn

AnyClient: TypeAlias = Client | AsyncClient

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the service. method: of the client. arguments: its keyword arguments."""

    method: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Work:
    """A function that may block, on a disk for example. Its result is that of the step."""

    function: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Await:
    """A coroutine function, for sequences of an event loop. Its result is that of the step."""

    function: Callable[[], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of the framework's loop, for one dispatch.

    name: of the first agent, in the program. turn: the open turn. The result is a Said.
    """

    name: str
    turn: RoutedTurn


Calls: TypeAlias = Generator[Call | Work | Await, Any, T]
"""A sequence of calls that returns a T."""

Steps: TypeAlias = Generator[Call | Work | Await | Segment, Any, T]
"""A sequence of calls and runs that returns a T."""


def do_blocking(client: AnyClient, calls: Calls[T]) -> T:
    """Execute calls in this thread. Raises TypeError for an AsyncClient."""
    return run_blocking(client, calls, _no_segment)


async def do(client: AnyClient, calls: Calls[T]) -> T:
    """Execute calls in this event loop; the calls of a Client run in worker threads."""
    return await run(client, calls, _no_segment)


def run_blocking(client: AnyClient, steps: Steps[T], run_segment: Callable[[Segment], object]) -> T:
    """Execute calls and runs in this thread. Raises TypeError for an AsyncClient."""
    outcome = _Outcome(steps)
    while (step := outcome.next_step()) is not None:
        try:
            if isinstance(step, Segment):
                outcome.value = run_segment(step)
            else:
                outcome.value = _call_blocking(client, step)
        except Exception as error:  # noqa: BLE001 - raised in the sequence, which decides
            outcome.error = error
    return outcome.returned


async def run(
    client: AnyClient, steps: Steps[T], run_segment: Callable[[Segment], Awaitable[object]]
) -> T:
    """Execute calls and runs in this event loop."""
    outcome = _Outcome(steps)
    while (step := outcome.next_step()) is not None:
        try:
            if isinstance(step, Segment):
                outcome.value = await run_segment(step)
            else:
                outcome.value = await _call(client, step)
        except Exception as error:  # noqa: BLE001 - raised in the sequence, which decides
            outcome.error = error
    return outcome.returned


def stream_blocking(
    client: AnyClient,
    steps: Steps[T],
    stream_segment: Callable[[Segment, Callable[[object], None]], Iterator[Any]],
    returned: Callable[[T], None],
) -> Iterator[Any]:
    """Execute calls and runs, and yield what the runs yield.

    stream_segment: yields a run's events, and calls its second argument with the run's result.
    returned: called with the result of the sequence.
    """
    outcome = _Outcome(steps)
    while (step := outcome.next_step()) is not None:
        try:
            if isinstance(step, Segment):
                yield from stream_segment(step, outcome.take)
            else:
                outcome.value = _call_blocking(client, step)
        except Exception as error:  # noqa: BLE001 - raised in the sequence, which decides
            outcome.error = error
    returned(outcome.returned)


async def stream(
    client: AnyClient,
    steps: Steps[T],
    stream_segment: Callable[[Segment, Callable[[object], None]], AsyncIterator[Any]],
    returned: Callable[[T], None],
) -> AsyncIterator[Any]:
    """Execute calls and runs in this event loop, and yield what the runs yield.

    The arguments are those of stream_blocking().
    """
    outcome = _Outcome(steps)
    while (step := outcome.next_step()) is not None:
        try:
            if isinstance(step, Segment):
                async for event in stream_segment(step, outcome.take):
                    yield event
            else:
                outcome.value = await _call(client, step)
        except Exception as error:  # noqa: BLE001 - raised in the sequence, which decides
            outcome.error = error
    returned(outcome.returned)


class _Outcome(Generic[T]):
    """The state of a sequence: the result of its last step, and its own result."""

    def __init__(self, steps: Steps[T]) -> None:
        self.value: object = None
        self.error: Exception | None = None
        self.returned: T
        self._steps = steps

    def take(self, value: object) -> None:
        """Store the result of a step."""
        self.value = value

    def next_step(self) -> Call | Work | Await | Segment | None:
        """Pass on the result of the last step; return the next step, None at the end."""
        value, error = self.value, self.error
        self.value = self.error = None
        try:
            step = self._steps.send(value) if error is None else self._steps.throw(error)
        except StopIteration as end:
            self.returned = end.value
            return None
        return step


def _call_blocking(client: AnyClient, call: Call | Work | Await) -> object:
    if isinstance(call, Work):
        return call.function()
    if isinstance(call, Await):
        raise TypeError("a worker's turn is answered in the worker's event loop, not in a thread")
    if not isinstance(client, Client):
        raise TypeError(
            "an AsyncClient cannot be called without its event loop; give an agent_routing.Client,"
            " or use the asynchronous method"
        )
    return getattr(client, call.method)(**call.arguments)


async def _call(client: AnyClient, call: Call | Work | Await) -> object:
    if isinstance(call, Work):
        return await asyncio.to_thread(call.function)
    if isinstance(call, Await):
        return await call.function()
    method = getattr(client, call.method)
    if isinstance(client, Client):
        return await asyncio.to_thread(method, **call.arguments)
    return await method(**call.arguments)


def _no_segment(step: Segment) -> Any:
    raise AssertionError(f"{step} in a sequence of calls only")
