"""The methods of every adapter: they take a user's message and return its result, or stream it.

Names and arguments are the same for every framework; an adapter only says how one of its
framework's runs works.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

from agent_routing.integrations import steps
from agent_routing.integrations.approvals import Approval
from agent_routing.integrations.routed_program import RoutedProgram
from agent_routing.integrations.routed_run import RoutedRun, Said
from agent_routing.integrations.steps import AnyClient, Segment, Steps
from agent_routing.plain_values import DecisionName
from agent_routing.v1.dispatch_pb2 import Dispatch
from agent_routing.worker import InboxTurn

CameTo = Callable[[object], None]


class RoutedRuns(ABC):
    """Runs a framework's agents: each message goes to the agent that the service names.

    client: the methods that end in _sync need a blocking one. names: of the program's agents, each
    an id or alias of the registry.
    """

    def __init__(self, client: AnyClient, names: Iterable[str]) -> None:
        self._client = client
        self._program = RoutedProgram(client, names)

    async def run(
        self, text: str = "", *, options: Mapping[str, Any] | None = None, **fields: Any
    ) -> RoutedRun:
        """Route a user's message, run its agents, and report how it ended.

        options: of the framework, for this message; they override those of the constructor. fields:
        arguments of Client.route(): session_id, user_id, locale, channel and so on.

        Raises LookupError for an agent of the program that is not in the registry, RoutingError for
        what the service refuses, and the framework's errors, after the turn was reported as failed.
        """
        flow = self._program.converse(text, fields, options)
        return await steps.run(self._client, flow, self._segment)

    def run_sync(
        self, text: str = "", *, options: Mapping[str, Any] | None = None, **fields: Any
    ) -> RoutedRun:
        """Do as run(), in a thread without an event loop."""
        flow = self._program.converse(text, fields, options)
        return steps.run_blocking(self._client, flow, self._segment_blocking)

    async def answer(
        self,
        session_id: str,
        dispatch: Dispatch,
        *,
        options: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> RoutedRun:
        """Run the agents for a message that a frontend already routed.

        fields: user_id, and the locale of instructions. Raises what run() raises, and
        ApprovedRunLost for a decided run that cannot continue.
        """
        flow = self._program.answer(session_id, dispatch, fields, options)
        return await steps.run(self._client, flow, self._segment)

    def answer_sync(
        self,
        session_id: str,
        dispatch: Dispatch,
        *,
        options: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> RoutedRun:
        """Do as answer(), in a thread without an event loop."""
        flow = self._program.answer(session_id, dispatch, fields, options)
        return steps.run_blocking(self._client, flow, self._segment_blocking)

    async def decide(
        self,
        approval: Approval,
        decision: DecisionName,
        *,
        options: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> RoutedRun:
        """Approve or reject what a run waits for, and continue the run.

        approval: RoutedRun.approval, of this process or another. fields: user_id, comment for the
        agent, locale. Raises what Client.resume_task() and answer() raise: TaskNotPaused for an
        approval that was withdrawn.
        """
        flow = self._program.decide(approval, decision, fields, options)
        return await steps.run(self._client, flow, self._segment)

    def decide_sync(
        self,
        approval: Approval,
        decision: DecisionName,
        *,
        options: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> RoutedRun:
        """Do as decide(), in a thread without an event loop."""
        flow = self._program.decide(approval, decision, fields, options)
        return steps.run_blocking(self._client, flow, self._segment_blocking)

    def as_agent(
        self, *, options: Mapping[str, Any] | None = None, **fields: Any
    ) -> Callable[[InboxTurn], Awaitable[None]]:
        """Return a worker's function that runs these agents.

            worker.agent("vat")(routed.as_agent())

        The turn is answered under the worker's lease, and tool calls are reported while the run
        goes on. A handoff ends the run: the next agent's inbox gets the turn. A run that raises is
        tried again by the worker, from its beginning. fields: the locale of instructions.
        """

        async def agent(turn: InboxTurn) -> None:
            flow = self._program.work(turn, {"user_id": turn.user_id, **fields}, options)
            await steps.run(self._client, flow, self._segment)

        return agent

    def stream(
        self, text: str = "", *, options: Mapping[str, Any] | None = None, **fields: Any
    ) -> RoutedStream:
        """Do as run(): iterate over the framework's events, then read .run.

        A stream that is not read to its end leaves its turn open; the next message overtakes it.
        """
        flow = self._program.converse(text, fields, options)
        return RoutedStream(self._client, flow, self._streamed)

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
