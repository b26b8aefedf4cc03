"""The methods of every adapter: they take a user's message and return its result, or stream it.

Names and arguments are the same for every framework; an adapter only says how one of its
framework's runs works.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

from agent_routing.integrations import steps
from agent_routing.integrations.routed_program import RoutedProgram
from agent_routing.integrations.routed_run import RoutedRun, Said
from agent_routing.integrations.steps import AnyClient, Segment, Steps
from agent_routing.v1.dispatch_pb2 import Dispatch

CameTo = Callable[[object], None]


class RoutedRuns(ABC):
    """Runs a framework's agents: each message goes to the agent that the service names.

    client: the methods that end in _sync need a blocking one. names: of the program's agents, each
    an id or alias of the registry.
    """

    def __init__(self, client: AnyClient, names: Iterable[str]) -> None:
        self._client = client
        self._program = RoutedProgram(client, names)

    async def run(self, text: str = "", **fields: Any) -> RoutedRun:
        """Route a user's message, run its agents, and report how it ended.

        fields: arguments of Client.route(): session_id, user_id, locale, channel and so on.

        Raises LookupError for an agent of the program that is not in the registry, RoutingError for
        what the service refuses, and the framework's errors, after the turn was reported as failed.
        """
        return await steps.run(self._client, self._program.converse(text, fields), self._segment)

    def run_sync(self, text: str = "", **fields: Any) -> RoutedRun:
        """Do as run(), in a thread without an event loop."""
        flow = self._program.converse(text, fields)
        return steps.run_blocking(self._client, flow, self._segment_blocking)

    async def answer(self, session_id: str, dispatch: Dispatch, **fields: Any) -> RoutedRun:
        """Run the agents for a message that a frontend already routed.

        fields: user_id, and the locale of instructions. Raises what run() raises.
        """
        flow = self._program.answer(session_id, dispatch, fields)
        return await steps.run(self._client, flow, self._segment)

    def answer_sync(self, session_id: str, dispatch: Dispatch, **fields: Any) -> RoutedRun:
        """Do as answer(), in a thread without an event loop."""
        flow = self._program.answer(session_id, dispatch, fields)
        return steps.run_blocking(self._client, flow, self._segment_blocking)

    def stream(self, text: str = "", **fields: Any) -> RoutedStream:
        """Do as run(): iterate over the framework's events, then read .run.

        A stream that is not read to its end leaves its turn open; the next message overtakes it.
        """
        return RoutedStream(self._client, self._program.converse(text, fields), self._streamed)

    @abstractmethod
    async def _segment(self, segment: Segment) -> Said:
        """Run the framework for a dispatch."""

    @abstractmethod
    def _segment_blocking(self, segment: Segment) -> Said:
        """Do as _segment(), in a thread without an event loop."""

    @abstractmethod
    def _streamed(self, segment: Segment, came_to: CameTo) -> AsyncIterator[Any]:
        """Do as _segment(), yielding events; call came_to with the Said at the end."""


class RoutedStream:
    """A framework's events for one message. run: its result, after all events were read."""

    def __init__(
        self,
        client: AnyClient,
        flow: Steps[RoutedRun],
        streamed: Callable[[Segment, CameTo], AsyncIterator[Any]],
    ) -> None:
        self.run = RoutedRun()
        self._events = steps.stream(client, flow, streamed, self._returned)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._events

    def _returned(self, run: RoutedRun) -> None:
        self.run = run


class RoutedBlockingStream:
    """As RoutedStream, in a thread without an event loop."""

    def __init__(
        self,
        client: AnyClient,
        flow: Steps[RoutedRun],
        streamed: Callable[[Segment, CameTo], Iterator[Any]],
    ) -> None:
        self.run = RoutedRun()
        self._events = steps.stream_blocking(client, flow, streamed, self._returned)

    def __iter__(self) -> Iterator[Any]:
        return self._events

    def _returned(self, run: RoutedRun) -> None:
        self.run = run
