"""What every adapter offers: a message of a user in, what came of it out, streaming or not.

Owns: these methods, and the streams. Must not know: any framework; its adapter says how one of its
runs goes. Rule: the same names and arguments for every framework.
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
    """Runs a framework's agents, each message at the agent that the service names.

    client: of the service; the methods that end in _sync need a blocking one. names: of the
    program's agents, each an id or alias of the registry.
    """

    def __init__(self, client: AnyClient, names: Iterable[str]) -> None:
        self._client = client
        self._program = RoutedProgram(client, names)

    async def run(self, text: str = "", **fields: Any) -> RoutedRun:
        """Route a user's message, run its agents, and report how it ended.

        fields: what Client.route() takes: session_id, user_id, locale, channel and so on.

        Raises LookupError for an agent of the program that the registry lacks, RoutingError for
        what the service refuses, and what the framework raises, after the turn has been reported as
        failed.
        """
        return await steps.run(self._client, self._program.converse(text, fields), self._segment)

    def run_sync(self, text: str = "", **fields: Any) -> RoutedRun:
        """Do as run(), in a thread without an event loop."""
        flow = self._program.converse(text, fields)
        return steps.run_blocking(self._client, flow, self._segment_blocking)

    async def answer(self, session_id: str, dispatch: Dispatch, **fields: Any) -> RoutedRun:
        """Run the agents for a message that a frontend has routed already.

        fields: user_id, and the locale of instructions. Otherwise as run().
        """
        flow = self._program.answer(session_id, dispatch, fields)
        return await steps.run(self._client, flow, self._segment)

    def answer_sync(self, session_id: str, dispatch: Dispatch, **fields: Any) -> RoutedRun:
        """Do as answer(), in a thread without an event loop."""
        flow = self._program.answer(session_id, dispatch, fields)
        return steps.run_blocking(self._client, flow, self._segment_blocking)

    def stream(self, text: str = "", **fields: Any) -> RoutedStream:
        """Do as run(): iterate over the framework's events, then read .run.

        A stream that is left early leaves its turn open: the next message overtakes it.
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
        """Do as _segment(), yielding events; came_to takes the Said at the end."""


class RoutedStream:
    """A framework's events of one message. run: what came of it, once all have been read."""

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
