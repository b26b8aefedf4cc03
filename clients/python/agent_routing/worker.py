"""A worker: runs agents as functions, on turns from their inboxes.

    worker = Worker("127.0.0.1:50051")

    @worker.agent("vat")
    async def vat(turn):
        return outcomes.follow_up("Monthly or quarterly?")

    worker.run()

Rule: a turn is answered under its lease. The worker extends the lease while the function runs, and
stops the function when the turn is no longer its own. A worker that crashes lets the lease lapse,
and the turn is delivered again: so a function may run more than once for a turn, and one answer
counts.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import re
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeAlias

import grpc

from agent_routing.aio import AsyncClient
from agent_routing.errors import (
    DeadlineExceeded,
    LeaseLost,
    Overloaded,
    RequestNotOpen,
    RoutingError,
    Unavailable,
)
from agent_routing.ids import new_uuid7
from agent_routing.outcomes import Answer, Outcome, failure, proceed
from agent_routing.plain_values import Seconds, duration, positive_seconds
from agent_routing.turn_answer import TurnAnswer
from agent_routing.turn_reports import TurnReports, made_step
from agent_routing.v1 import routing_service_pb2 as pb
from agent_routing.v1.dispatch_pb2 import Dispatch
from agent_routing.v1.item_pb2 import Item
from agent_routing.v1.turn_pb2 import Turn as PastTurn
from agent_routing.watching import Reconnecting
from agent_routing.worker_spans import working_span

CONCURRENCY_DEFAULT: Final = 10
"""Turns at a time: agents wait for models most of the time."""

LEASE_S_DEFAULT: Final = 30.0
"""After a crash a turn waits this long for another worker."""

ATTEMPTS_DEFAULT: Final = 3
"""How often a function that raises is tried, before its turn ends with a failure. The service
abandons a turn after five leases without an answer."""

STOP_S_DEFAULT: Final = 20.0
"""How long running functions may take to end when the worker stops; then their turns are given
back. Kubernetes kills a process after 30 s."""

RETRY_S_MAX: Final = 30.0
"""The longest pause before a function that raised is tried again; the first is a second."""

KEEPS_PER_LEASE: Final = 3
"""How often a lease is extended while it runs, so that one lost call does not lose it."""

FAILED_MESSAGE: Final = "the agent failed"
"""What the history says of a turn whose function raised each time. The log has the error."""

_FOREVER_S: Final = 10.0 * 365 * 24 * 3600
_AWAY_ATTEMPTS: Final = 3
"""So many connections fail before it is said: a broken one alone is mended by the next."""

_WORKER_ID_CHARS_MAX: Final = 128

_log: Final = logging.getLogger("agent_routing.worker")


@dataclass(frozen=True, slots=True)
class InboxTurn:
    """A turn for an agent's function.

    item: the generated message, with everything. reports: where step(), note() and delta() send.
    given: the answer, once complete() gave it.
    """

    item: pb.InboxItem
    reports: TurnReports = field(repr=False, compare=False)
    given: TurnAnswer = field(repr=False, compare=False)

    @property
    def text(self) -> str:
        """The user's message, without its command."""
        return self.item.dispatch.text

    @property
    def items(self) -> Iterable[Item]:
        """Images and files of the message."""
        return self.item.dispatch.items

    @property
    def history(self) -> Iterable[PastTurn]:
        """Past turns that the agent may see, the oldest first."""
        return self.item.dispatch.history

    @property
    def session_id(self) -> str:
        """The session."""
        return self.item.session_id

    @property
    def user_id(self) -> str:
        """The user of the session; empty if it has none."""
        return self.item.user_id

    @property
    def agent_id(self) -> str:
        """The agent that must answer."""
        return self.item.dispatch.agent.agent_id

    @property
    def request_id(self) -> str:
        """The request to answer, the same in each attempt.

        Use it as the key of what must happen once, such as a payment.
        """
        return self.item.dispatch.request_id

    @property
    def attempt(self) -> int:
        """1 for the first delivery of this turn."""
        return self.item.attempt

    @property
    def dispatch(self) -> Dispatch:
        """The whole dispatch: the handoff that led here, a decision, a question."""
        return self.item.dispatch

    async def step(
        self,
        name: str,
        *,
        kind: str = "tool",
        input: str = "",  # noqa: A002 - as the contract names it
        output: str = "",
        duration: Seconds | None = None,
    ) -> None:
        """Report something that was done, for the history and for watchers that ask for it.

        It is sent at once, or 5 s after the report before: what was sent survives a crash. Of a
        turn 256 steps are kept. Never raises; what could not be sent goes with the answer.
        """
        self.reports.step(made_step(name, kind, input, output, duration))
        await asyncio.sleep(0)

    async def note(self, text: str) -> None:
        """Show the user a line while they wait, such as "still looking". It is stored nowhere.

        At most 1 KiB. Never raises: a note that cannot be sent is dropped.
        """
        await self.reports.note(text)

    async def delta(self, text: str) -> None:
        """Show the next part of the answer. It is stored nowhere: return the whole text as well.

        Never raises. A function that yields its text does this by itself.
        """
        self.reports.delta(text)
        await asyncio.sleep(0)

    async def complete(self, answer: Answer) -> pb.CompleteTurnResponse:
        """Give the answer now, and learn what became of it; the function then returns None.

        For an outcome that may be refused, such as a handoff: the function catches HandoffRefused
        and gives another answer. Waits while the service is away.

        Raises what complete_turn() raises: LeaseLost or RequestNotOpen if the turn is no longer
        this worker's. RuntimeError for a second answer.
        """
        return await self.given.give(answer)


Result: TypeAlias = Answer | Outcome | str | None
AgentFunction: TypeAlias = Callable[[InboxTurn], Awaitable[Result] | AsyncIterator[Result] | Result]


class Worker:
    """Runs functions on the turns of their agents, until it is stopped.

    client: an AsyncClient, which stays the caller's, or the address of the service. worker_id:
    shown to operators; None: host and process. concurrency: turns at a time. lease: how long, in
    seconds, a crash keeps a turn back. attempts: how often a function that raises is tried.
    stop_timeout: how long functions may take to end. history_turns: as in route().
    """

    def __init__(
        self,
        client: AsyncClient | str,
        *,
        worker_id: str | None = None,
        concurrency: int = CONCURRENCY_DEFAULT,
        lease: Seconds = LEASE_S_DEFAULT,
        attempts: int = ATTEMPTS_DEFAULT,
        stop_timeout: Seconds = STOP_S_DEFAULT,
        history_turns: int = 0,
    ) -> None:
        self._given = client
        self._client: AsyncClient | None = None if isinstance(client, str) else client
        self._worker_id = worker_id or _own_name()
        self._concurrency = concurrency
        self._lease_s = positive_seconds("lease", lease)
        self._attempts = attempts
        self._stop_s = positive_seconds("stop_timeout", stop_timeout)
        self._history_turns = history_turns
        self._functions: dict[str, AgentFunction] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        """By lease token."""
        self._stopping: asyncio.Event | None = None

    def agent(self, agent_id: str) -> Callable[[AgentFunction], AgentFunction]:
        """Register a function for an agent, by its id.

        The function gets an InboxTurn and returns a text, an outcome, or an outcome with a text
        (outcomes.follow_up("Monthly or quarterly?")). An async generator yields the text in parts,
        which watchers see at once, and at the end an outcome if it is not proceed. If it is neither
        it runs in a thread, which cannot be stopped when the turn is lost.
        """
        if agent_id in self._functions:
            raise ValueError(f'agent "{agent_id}" has a function already')

        def register(function: AgentFunction) -> AgentFunction:
            self._functions[agent_id] = function
            return function

        return register

    def run(self) -> None:
        """Serve until SIGINT or SIGTERM. Raises what serve() raises."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(NotImplementedError):  # On Windows Ctrl-C raises KeyboardInterrupt.
                loop.add_signal_handler(number, self.stop)
        await self.serve()

    def stop(self) -> None:
        """Take no more turns, and end serve() once the running functions have ended."""
        if self._stopping is not None:
            self._stopping.set()

    async def serve(self) -> None:
        """Take turns until stop(). A service that is away is waited for, however long.

        Raises ValueError without functions; InvalidField, ScopeMissing, Unauthenticated and the
        other refusals of the service.
        """
        if not self._functions:
            raise ValueError("the worker has no functions; register them with @worker.agent(ID)")
        self._stopping = asyncio.Event()
        client = self._client
        if client is None:
            assert isinstance(self._given, str)
            client = self._client = AsyncClient(self._given)
        taking = asyncio.create_task(self._take(client), name="inbox worker")
        stopping = asyncio.create_task(self._stopping.wait(), name="inbox worker's stop")
        try:
            await asyncio.wait([taking, stopping], return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if taking.done():
                taking.result()
            taking.cancel()
            await asyncio.wait([taking])
            if self._running:
                await asyncio.wait(self._running.values(), timeout=self._stop_s)
        finally:
            taking.cancel()
            stopping.cancel()
            running = list(self._running.values())
            for task in running:
                task.cancel()
            await asyncio.gather(taking, *running, return_exceptions=True)
            if isinstance(self._given, str):
                self._client = None
                await client.close()

    async def _take(self, client: AsyncClient) -> None:
        """Read the inbox, over as many connections as it takes."""
        request = pb.WatchInboxRequest(
            agent_ids=self._functions,
            worker_id=self._worker_id,
            capacity=self._concurrency,
            lease=duration(self._lease_s),
            history_turns=self._history_turns,
        )
        again = Reconnecting(client._settings, "WatchInbox", _FOREVER_S)  # noqa: SLF001 - one package
        target = client._settings.target  # noqa: SLF001 - as above
        is_away = False
        while True:
            again.connecting()
            failed: grpc.RpcError | None = None
            try:
                async for message in client._watch_inbox(request):  # noqa: SLF001 - as above
                    again.alive()
                    if is_away:
                        is_away = False
                        _log.warning("service_back target=%s", target)
                    if message.HasField("heartbeat"):
                        request.resume_token = message.heartbeat.resume_token
                    elif message.HasField("item"):
                        self._begin(client, message.item)
            except grpc.RpcError as ended:
                failed = ended
            wait_s = again.wait_after(failed)
            if again.attempts == _AWAY_ATTEMPTS:
                is_away = True
                why = "the stream ended"
                if isinstance(failed, grpc.aio.AioRpcError):
                    why = failed.details() or failed.code().name
                _log.warning("service_away target=%s, trying on: %s", target, why)
            await asyncio.sleep(wait_s)

    def _begin(self, client: AsyncClient, item: pb.InboxItem) -> None:
        if item.lease_token in self._running:
            return  # Sent again after a lost connection; its function still runs.
        task = asyncio.create_task(self._work(client, item), name="inbox turn")
        self._running[item.lease_token] = task
        task.add_done_callback(lambda _: self._running.pop(item.lease_token, None))

    async def _work(self, client: AsyncClient, item: pb.InboxItem) -> None:
        """Answer one turn, or leave it to another attempt. Never raises but when cancelled."""
        reports = TurnReports(partial(self._say, client, item), item.steps_known)
        turn = InboxTurn(item, reports, TurnAnswer(client, item, reports))
        working = asyncio.create_task(self._answer(turn), name="agent function")
        keeping = asyncio.create_task(self._keep(client, turn), name="inbox lease")
        try:
            await asyncio.wait([working, keeping], return_when=asyncio.FIRST_COMPLETED)
            if turn.given.is_given:
                # Its lease ended with it; what the function still does costs nobody a turn.
                await asyncio.wait([working])
            if not working.done():
                _log.warning("turn_lost request_id=%s agent_id=%s", turn.request_id, turn.agent_id)
                return
            error = working.exception()
            if isinstance(error, (LeaseLost, RequestNotOpen)):
                _log.warning("answer_not_taken request_id=%s error=%s", turn.request_id, error)
            elif error is not None:
                await self._failed(client, turn, error)
        except asyncio.CancelledError:
            # The worker stops: another one gets the turn at once.
            with suppress(RoutingError):
                await self._tell(client, turn, release=True)
            raise
        except RoutingError as error:
            _log.warning("turn_left request_id=%s error=%s", turn.request_id, error)
        finally:
            working.cancel()
            keeping.cancel()
            await asyncio.gather(working, keeping, return_exceptions=True)
            await turn.reports.stop()

    async def _answer(self, turn: InboxTurn) -> None:
        """Run an agent's function and report what it returned."""
        function: Any = self._functions[turn.agent_id]
        with working_span(turn.dispatch, turn.session_id):
            if inspect.isasyncgenfunction(function):
                result: Any = await _streamed(turn, function(turn))
            elif inspect.iscoroutinefunction(function):
                result = await function(turn)
            else:
                result = await asyncio.to_thread(function, turn)
                if inspect.isawaitable(result):
                    result = await result
            if turn.given.is_given and result is None:
                return
            await turn.given.give(_answer_of(result))

    async def _failed(self, client: AsyncClient, turn: InboxTurn, error: BaseException) -> None:
        """Let a turn be tried again after a pause, or end it with a failure."""
        _log.error(
            "agent_failed request_id=%s agent_id=%s attempt=%d",
            turn.request_id,
            turn.agent_id,
            turn.attempt,
            exc_info=error,
        )
        if turn.given.is_given:
            return
        if turn.attempt >= self._attempts:
            await turn.given.give(Answer("", failure(FAILED_MESSAGE)))
        else:
            # The lease lapses after the pause, and counts as an attempt.
            pause_s = min(2.0 ** (turn.attempt - 1), RETRY_S_MAX)
            await self._tell(client, turn, extend=pause_s)

    async def _keep(self, client: AsyncClient, turn: InboxTurn) -> None:
        """Extend a lease until the turn is no longer this worker's."""
        every_s = self._lease_s / KEEPS_PER_LEASE
        took_s = 0.0
        while True:
            # A call that timed out is repeated at once: after another pause the lease is over.
            await asyncio.sleep(max(0.0, every_s - took_s))
            begun_s = time.monotonic()
            try:
                kept = await self._tell(client, turn, extend=self._lease_s)
            except (Unavailable, DeadlineExceeded, Overloaded):
                # An answer may still count: no other worker may have the turn.
                took_s = time.monotonic() - begun_s
                continue
            except RoutingError as error:
                _log.warning("lease_not_kept request_id=%s error=%s", turn.request_id, error)
                return
            if kept.status != pb.KEEP_TURN_STATUS_KEPT:
                return
            took_s = 0.0

    async def _say(
        self, client: AsyncClient, item: pb.InboxItem, **fields: Any
    ) -> pb.KeepTurnResponse:
        """Report something of a turn, without a change of its lease."""
        return await client.keep_turn(
            item.session_id,
            item.dispatch.request_id,
            item.dispatch.agent.agent_id,
            lease_token=item.lease_token,
            timeout=self._lease_s / KEEPS_PER_LEASE,
            **fields,
        )

    async def _tell(
        self,
        client: AsyncClient,
        turn: InboxTurn,
        *,
        extend: float | None = None,
        release: bool = False,
    ) -> pb.KeepTurnResponse:
        return await client.keep_turn(
            turn.session_id,
            turn.request_id,
            turn.agent_id,
            lease_token=turn.item.lease_token,
            extend=extend,
            release=release,
            timeout=self._lease_s / KEEPS_PER_LEASE,
        )


async def _streamed(turn: InboxTurn, parts: AsyncIterator[Result]) -> Answer:
    """Send the parts of an answer as they come, and return the whole."""
    last: Answer | None = None
    async for part in parts:
        if last is not None:
            raise TypeError("the agent's function yielded something after its outcome")
        if isinstance(part, str):
            turn.reports.delta(part)
            continue
        last = _answer_of(part)
        if last.text:
            turn.reports.delta(last.text)
    return replace(last or Answer("", proceed()), text=turn.reports.written)


def _answer_of(result: Result) -> Answer:
    """Return what a function returned as an answer. Raises TypeError for None."""
    if isinstance(result, Answer):
        return result
    if isinstance(result, str):
        return Answer(result, proceed())
    if result is None:
        raise TypeError("the agent's function returned None; return a text or an outcome")
    return Answer("", result)


def _own_name() -> str:
    """Return a worker's name: its host, its process, and what tells two of one process apart."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())
    return f"{host[: _WORKER_ID_CHARS_MAX - 32]}-{os.getpid()}-{new_uuid7()[-8:]}"
