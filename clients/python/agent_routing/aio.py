"""The client for asyncio.

Owns: one method for each RPC, the channel, and how a call waits. Must not know: what a field may
hold, or what makes a call worth repeating. Rule: the same methods, arguments and answers as
client.py has.
"""

# ruff: noqa: ASYNC109 - gRPC keeps the deadline and sends it along; asyncio.timeout would do neither

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from agent_routing import request_messages
from agent_routing.calls import (
    DEADLINE_S_DEFAULT,
    CallInfo,
    CallSettings,
    GivenMetadata,
    call_metadata,
    closed_error,
    forked_error,
)
from agent_routing.channel import channel_options
from agent_routing.errors import RoutingError
from agent_routing.fallback import FALLBACK_DEFAULT, Fallback, KnownAgents
from agent_routing.outcomes import Outcome
from agent_routing.plain_values import Seconds, positive_seconds, seconds
from agent_routing.request_messages import (
    ClearScopeName,
    DecisionName,
    HandoffModeName,
    InitiatorName,
    TaskStatusName,
    TurnOrderName,
)
from agent_routing.retry import RETRY_DEFAULT, RetryPolicy
from agent_routing.route_result import RouteResult
from agent_routing.tokens import AsyncToken, token_source
from agent_routing.v1.item_pb2 import Item
from agent_routing.v1.routing_service_pb2 import (
    ClearActiveAgentResponse,
    CompleteTurnResponse,
    ListAgentsResponse,
    ListTasksResponse,
    ListTurnsResponse,
    ResumeTaskResponse,
    SetActiveAgentResponse,
    StatusResponse,
)
from agent_routing.v1.routing_service_pb2_grpc import RoutingServiceStub
from agent_routing.v1.session_event_pb2 import Change
from agent_routing.v1.task_pb2 import Task
from agent_routing.v1.turn_pb2 import Step, Turn
from agent_routing.watching import AWAY_S_DEFAULT, Watch

if TYPE_CHECKING:
    from agent_routing.aio_stream import AsyncRouteStream

    # For type checkers alone: at run time both stubs are one class.
    from agent_routing.v1.routing_service_pb2_grpc import RoutingServiceAsyncStub

RequestT = TypeVar("RequestT", bound=Message)
AnswerT = TypeVar("AnswerT", bound=Message)


class AsyncClient:
    """Calls the agent routing service from asyncio.

    async with agent_routing.AsyncClient("127.0.0.1:50051") as client:
        turn = await client.route("hello", session_id="chat-42", user_id="ana")

    Everything is as Client has it, arguments and answers included; calls are awaited, and
    list_turns() and list_tasks() are iterated over with async for.

    Belongs to one event loop: that of its first call. Any number of its tasks may call at the same
    time. A call that is cancelled may still have been carried out; a repeat with its request_id
    says. Nothing is opened before the first call, so a client may be made before the loop is.
    """

    def __init__(
        self,
        target: str,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        token: AsyncToken | None = None,
        tenant: str = "",
        metadata: GivenMetadata = (),
        timeout: Seconds = DEADLINE_S_DEFAULT,
        retry: RetryPolicy = RETRY_DEFAULT,
        fallback: Fallback | None = FALLBACK_DEFAULT,
        options: Iterable[tuple[str, Any]] = (),
        channel: grpc.aio.Channel | None = None,
    ) -> None:
        self._settings = CallSettings(
            target=target,
            timeout_s=positive_seconds("timeout", timeout),
            metadata=call_metadata(tenant, metadata),
            metadata_giver=metadata if callable(metadata) else None,
            retry=retry,
            known=None if fallback is None else KnownAgents(fallback),
            token=token_source(token, target, is_encrypted=bool(credentials or channel)),
        )
        self._credentials = credentials
        self._options = channel_options(target, options)
        self._given_channel = channel
        self._channel: grpc.aio.Channel | None = None
        self._stub: RoutingServiceAsyncStub | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self, *, grace: Seconds | None = None) -> None:
        """Close the channel; calls on their way in other tasks raise RuntimeError.

        grace: how long they may take to end by themselves, in seconds or as a timedelta; None: not
        at all. A second time nothing happens.
        """
        self._closed = True
        channel, self._channel, self._stub = self._channel, None, None
        if channel is not None and self._pid == os.getpid():
            await channel.close(None if grace is None else seconds(grace))

    async def route(
        self,
        text: str = "",
        *,
        session_id: str = "",
        user_id: str = "",
        request_id: str = "",
        task_id: str = "",
        items: Iterable[Item] = (),
        locale: str = "",
        channel: str = "",
        history_turns: int = 0,
        expected_revision: int | None = None,
        entitlements: Iterable[str] = (),
        quick_reply_id: str = "",
        literal_text: bool = False,
        validate_only: bool = False,
        explain_topic: bool = False,
        metadata: Mapping[str, str] | None = None,
        task_expire_time: datetime | None = None,
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> RouteResult:
        """As Client.route()."""
        request = request_messages.route(
            text,
            session_id=session_id,
            user_id=user_id,
            request_id=request_id,
            task_id=task_id,
            items=items,
            locale=locale,
            channel=channel,
            history_turns=history_turns,
            expected_revision=expected_revision,
            entitlements=entitlements,
            quick_reply_id=quick_reply_id,
            literal_text=literal_text,
            validate_only=validate_only,
            explain_topic=explain_topic,
            metadata=metadata,
            task_expire_time=task_expire_time,
        )
        info = CallInfo() if info is None else info
        try:
            answer = await self._call(self._open().Route, request, timeout, info)
        except RoutingError as error:
            degraded = self._settings.degraded(request, error)
            if degraded is None:
                raise
            return degraded
        return RouteResult(answer, replayed=info.replayed)

    async def set_active_agent(
        self,
        session_id: str,
        agent_id: str,
        *,
        user_id: str = "",
        request_id: str = "",
        turn_request_id: str = "",
        initiator: InitiatorName | None = None,
        from_agent_id: str = "",
        reason: str = "",
        context: Mapping[str, Any] | None = None,
        message: str = "",
        mode: HandoffModeName | None = None,
        suggestion_id: str = "",
        expected_revision: int | None = None,
        validate_only: bool = False,
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> SetActiveAgentResponse:
        """As Client.set_active_agent()."""
        request = request_messages.set_active_agent(
            session_id,
            agent_id,
            user_id=user_id,
            request_id=request_id,
            turn_request_id=turn_request_id,
            initiator=initiator,
            from_agent_id=from_agent_id,
            reason=reason,
            context=context,
            message=message,
            mode=mode,
            suggestion_id=suggestion_id,
            expected_revision=expected_revision,
            validate_only=validate_only,
        )
        return await self._call(self._open().SetActiveAgent, request, timeout, info)

    async def clear_active_agent(
        self,
        session_id: str,
        *,
        user_id: str = "",
        request_id: str = "",
        scope: ClearScopeName | None = None,
        reason: str = "",
        expected_revision: int | None = None,
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> ClearActiveAgentResponse:
        """As Client.clear_active_agent()."""
        request = request_messages.clear_active_agent(
            session_id,
            user_id=user_id,
            request_id=request_id,
            scope=scope,
            reason=reason,
            expected_revision=expected_revision,
        )
        return await self._call(self._open().ClearActiveAgent, request, timeout, info)

    async def status(
        self,
        session_id: str,
        *,
        user_id: str = "",
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> StatusResponse:
        """As Client.status()."""
        request = request_messages.status(session_id, user_id=user_id)
        return await self._call(self._open().Status, request, timeout, info)

    async def complete_turn(
        self,
        session_id: str,
        request_id: str,
        agent_id: str,
        outcome: Outcome,
        *,
        text: str = "",
        user_id: str = "",
        items: Iterable[Item] = (),
        steps: Iterable[Step] = (),
        parse_markers: bool | None = None,
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> CompleteTurnResponse:
        """As Client.complete_turn()."""
        request = request_messages.complete_turn(
            session_id,
            request_id,
            agent_id,
            outcome,
            text=text,
            user_id=user_id,
            items=items,
            steps=steps,
            parse_markers=parse_markers,
        )
        return await self._call(self._open().CompleteTurn, request, timeout, info)

    async def resume_task(
        self,
        task_id: str,
        request_id: str,
        decision: DecisionName,
        *,
        session_id: str = "",
        user_id: str = "",
        comment: str = "",
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> ResumeTaskResponse:
        """As Client.resume_task()."""
        request = request_messages.resume_task(
            task_id,
            request_id,
            decision,
            session_id=session_id,
            user_id=user_id,
            comment=comment,
        )
        return await self._call(self._open().ResumeTask, request, timeout, info)

    def list_tasks(
        self,
        session_id: str,
        *,
        user_id: str = "",
        statuses: Iterable[TaskStatusName] = (),
        page_size: int = 0,
        timeout: Seconds | None = None,
    ) -> AsyncIterator[Task]:
        """As Client.list_tasks(), to iterate over with async for."""
        chosen = tuple(statuses)

        async def page(token: str) -> ListTasksResponse:
            return await self.list_tasks_page(
                session_id,
                user_id=user_id,
                statuses=chosen,
                page_size=page_size,
                page_token=token,
                timeout=timeout,
            )

        return _over_pages(page, lambda answer: answer.tasks)

    async def list_tasks_page(
        self,
        session_id: str,
        *,
        user_id: str = "",
        statuses: Iterable[TaskStatusName] = (),
        page_size: int = 0,
        page_token: str = "",
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> ListTasksResponse:
        """As Client.list_tasks_page()."""
        request = request_messages.list_tasks(
            session_id,
            user_id=user_id,
            statuses=statuses,
            page_size=page_size,
            page_token=page_token,
        )
        return await self._call(self._open().ListTasks, request, timeout, info)

    def list_turns(
        self,
        session_id: str,
        *,
        user_id: str = "",
        agent_id: str = "",
        task_id: str = "",
        order: TurnOrderName | None = None,
        page_size: int = 0,
        timeout: Seconds | None = None,
    ) -> AsyncIterator[Turn]:
        """As Client.list_turns(), to iterate over with async for."""

        async def page(token: str) -> ListTurnsResponse:
            return await self.list_turns_page(
                session_id,
                user_id=user_id,
                agent_id=agent_id,
                task_id=task_id,
                order=order,
                page_size=page_size,
                page_token=token,
                timeout=timeout,
            )

        return _over_pages(page, lambda answer: answer.turns)

    async def list_turns_page(
        self,
        session_id: str,
        *,
        user_id: str = "",
        agent_id: str = "",
        task_id: str = "",
        order: TurnOrderName | None = None,
        page_size: int = 0,
        page_token: str = "",
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> ListTurnsResponse:
        """As Client.list_turns_page()."""
        request = request_messages.list_turns(
            session_id,
            user_id=user_id,
            agent_id=agent_id,
            task_id=task_id,
            order=order,
            page_size=page_size,
            page_token=page_token,
        )
        return await self._call(self._open().ListTurns, request, timeout, info)

    async def list_agents(
        self,
        *,
        session_id: str = "",
        user_id: str = "",
        locale: str = "",
        from_agent_id: str = "",
        include_instructions: bool = False,
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> ListAgentsResponse:
        """As Client.list_agents()."""
        request = request_messages.list_agents(
            session_id=session_id,
            user_id=user_id,
            locale=locale,
            from_agent_id=from_agent_id,
            include_instructions=include_instructions,
        )
        return await self._call(self._open().ListAgents, request, timeout, info)

    def watch_session(
        self,
        session_id: str,
        *,
        user_id: str = "",
        after_revision: int | None = None,
        heartbeat_interval: Seconds | None = None,
        away_timeout: Seconds = AWAY_S_DEFAULT,
    ) -> AsyncIterator[Change]:
        """As Client.watch_session(), to iterate over with async for."""
        request = request_messages.watch_session(
            session_id,
            user_id=user_id,
            after_revision=after_revision,
            heartbeat_interval=heartbeat_interval,
        )
        away_s_max = positive_seconds("away_timeout", away_timeout)
        return self._watch(Watch(self._settings, request, away_s_max))

    def stream(self) -> AsyncRouteStream:
        """As Client.stream(), in an async with block.

        async with client.stream() as stream:
            turn = await stream.route("hello", session_id="chat-42", user_id="ana")
        """
        from agent_routing.aio_stream import (  # noqa: PLC0415 - few clients have one
            AsyncRouteStream,
        )

        return AsyncRouteStream(self._settings, self._open)

    def _open(self) -> RoutingServiceAsyncStub:
        """Return the stub, made with its channel when it is first needed."""
        loop = asyncio.get_running_loop()
        if self._stub is None:
            if self._closed:
                raise closed_error(self._settings.target)
            self._pid = os.getpid()
            self._loop = loop
            self._stub = RoutingServiceStub(self._given_channel or self._new_channel())
        if self._pid != os.getpid():
            raise forked_error(self._settings.target)
        if self._loop is not loop:
            raise RuntimeError(
                f'the client of "{self._settings.target}" belongs to another event loop; make one'
                " client for each"
            )
        return self._stub

    def _new_channel(self) -> grpc.aio.Channel:
        target = self._settings.target
        if self._credentials is None:
            self._channel = grpc.aio.insecure_channel(target, options=self._options)
        else:
            self._channel = grpc.aio.secure_channel(
                target, self._credentials, options=self._options
            )
        return self._channel

    async def _call(
        self,
        rpc: grpc.aio.UnaryUnaryMultiCallable[RequestT, AnswerT],
        request: RequestT,
        timeout: Seconds | None,
        info: CallInfo | None,
    ) -> AnswerT:
        """Send a request until it is answered, refused, or out of time or attempts."""
        call = self._settings.begin(request, timeout, info)
        while True:
            metadata = await self._settings.metadata_soon()
            try:
                sent = rpc(request, timeout=call.next_timeout_s(), metadata=metadata)
                answer = await sent
                trailing_metadata = await sent.trailing_metadata()
            except asyncio.CancelledError as failure:
                self._raise_if_closed(failure)
                raise
            except (grpc.RpcError, grpc.aio.UsageError) as failure:
                if self._closed:
                    raise closed_error(self._settings.target) from failure
                if not isinstance(failure, grpc.RpcError):
                    raise
                wait_s = call.wait_after(failure)
            else:
                call.succeeded(answer, trailing_metadata)
                return answer
            await asyncio.sleep(wait_s)

    async def _watch(self, watch: Watch) -> AsyncIterator[Change]:
        """Give a watch's changes, over as many connections as it takes."""
        while True:
            metadata = await self._settings.metadata_soon()
            stream = self._open().WatchSession(watch.connect(), metadata=metadata)
            failure: grpc.RpcError | None = None
            try:
                async for response in stream:
                    change = watch.received(response)
                    if change is not None:
                        yield change
            except grpc.RpcError as ended:
                failure = ended
            except asyncio.CancelledError as ended:
                self._raise_if_closed(ended)
                raise
            finally:
                # Also when the caller leaves the loop: the service must not go on sending.
                stream.cancel()
            if self._closed:
                raise closed_error(self._settings.target) from failure
            await asyncio.sleep(watch.wait_after(failure))

    def _raise_if_closed(self, failure: asyncio.CancelledError) -> None:
        """Raise RuntimeError where a call was cancelled by closing, and not the task that waits."""
        task = asyncio.current_task()
        if self._closed and task is not None and not task.cancelling():
            raise closed_error(self._settings.target) from failure


PageT = TypeVar("PageT", ListTasksResponse, ListTurnsResponse)
EntryT = TypeVar("EntryT")


async def _over_pages(
    page: Callable[[str], Awaitable[PageT]], entries: Callable[[PageT], Iterable[EntryT]]
) -> AsyncIterator[EntryT]:
    """Iterate over the entries of all pages; page returns the one of a token."""
    token = ""
    while True:
        answer = await page(token)
        for entry in entries(answer):
            yield entry
        token = answer.next_page_token
        if not token:
            return
