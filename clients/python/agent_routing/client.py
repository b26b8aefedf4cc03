"""The client for threads.

Owns: one method for each RPC, the channel, and how a call waits. Must not know: what a field may
hold, or what makes a call worth repeating. Rule: a method builds its request, calls, and returns
the generated response; only route() may answer in the service's place.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import grpc
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
from agent_routing.plain_values import Seconds, positive_seconds
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
from agent_routing.tokens import Token, token_source
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
    from agent_routing.client_stream import RouteStream

    # Generic for type checkers alone.
    Stub = RoutingServiceStub

RequestT = TypeVar("RequestT", bound=Message)
AnswerT = TypeVar("AnswerT", bound=Message)


class Client:
    """Calls the agent routing service, blocking.

    with agent_routing.Client("127.0.0.1:50051") as client:
        turn = client.route("hello", session_id="chat-42", user_id="ana")

    target: "HOST:PORT", or several replicas as "dns:///HOST:PORT" or "ipv4:10.0.0.1:50051,10.0.0.2:
    50051", over which calls are spread, sparing those that report themselves not ready.
    credentials: for TLS, agent_routing.tls_credentials() from files, or any of gRPC's; None: plain
    text, for loopback and meshes. token: who calls, an access token, or a function that returns
    the one to send now: it is called for each attempt, and once more where its token is refused;
    AsyncClient also takes a coroutine function.
    tenant: where the service has no sign-in; empty: "default". metadata: sent with every call;
    a function is asked for it at each attempt, such as one that gives the trace context.
    timeout: of a call with all its attempts, in seconds or as a timedelta; each call may give
    another. retry: how often and when a call that nobody answered is sent again. fallback: what
    route() may decide while the service cannot be reached; None: nothing, it raises.
    options: gRPC channel options, which win over the client's own. channel: use this one rather
    than make one; it is not closed with the client.

    What holds for all methods:

    Ids. request_id and session_id are made (UUIDv7) where they are left out, so that a repeat is
    the same request, which the service handles once.
    Times. timeout is in seconds or a timedelta; a point in time is a datetime with a time zone.
    Enums. By name without the prefix ("INTERLUDE"), or as the generated enum has them.
    Answers. The generated messages of agent_routing.v1; route() wraps its own in a RouteResult.
    info. A CallInfo to be filled: attempts, and whether the answer is a stored one.
    Errors. A RoutingError of the reason's class (agent_routing.errors). ValueError or TypeError for
    a value that no request can carry, RuntimeError for a client that is closed or was forked.
    Retries. UNAVAILABLE, and calls that an overloaded server refused unread: 4 attempts with
    exponential backoff and full jitter, after the delay that the service asks for, within timeout.

    Safe in threads. Nothing is opened before the first call, so a client may be made before a fork
    and used after it; one used before cannot be used in the child.
    """

    def __init__(
        self,
        target: str,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        token: Token | None = None,
        tenant: str = "",
        metadata: GivenMetadata = (),
        timeout: Seconds = DEADLINE_S_DEFAULT,
        retry: RetryPolicy = RETRY_DEFAULT,
        fallback: Fallback | None = FALLBACK_DEFAULT,
        options: Iterable[tuple[str, Any]] = (),
        channel: grpc.Channel | None = None,
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
        self._channel: grpc.Channel | None = None
        self._stub: Stub | None = None
        self._pid = 0
        self._closed = False
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the channel; calls on their way in other threads raise RuntimeError.

        A second time nothing happens.
        """
        with self._lock:
            self._closed = True
            channel, self._channel, self._stub = self._channel, None, None
        if channel is not None and self._pid == os.getpid():
            channel.close()

    def route(
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
        """Take a user's message, and return the agent to send it to, or a reply to show.

        Opens a turn, which complete_turn() ends. While the service cannot be reached the result is
        the last agent known of the session, else the supervisor, with degraded set; route the
        message again later, with the result's session_id and request_id, to have it stored.

        text: at most 32 KiB; a command at its beginning is carried out, unless literal_text.
        session_id: empty: a new session, or with task_id the task's. task_id: empty: the session's
        open task, or a new one. items: pictures and the like (agent_routing.content), at most 16.
        locale: BCP 47, channel: a word such as "web"; both are kept with the session; empty: as
        before. history_turns: how many past turns to send along, -1 to 100; 0: 20; -1: none.
        expected_revision: refuse unless the session is there; 0: it is new. entitlements: of the
        user, from callers trusted with it; empty: as before. quick_reply_id: of the
        SuggestionOption that the user picked. validate_only: only say what would happen; never
        degraded. explain_topic: say why the topic of the message moved it, or did not. metadata:
        kept on the task, at most 32 entries. task_expire_time: when the task expires; None: as
        before.

        Raises InvalidField, UnknownTask, UnknownSuggestion, TaskOpen, TaskClosed, TurnOpen,
        SessionErased, OwnerMismatch, RevisionMismatch, RequestIdReused, TooLarge, StateCorrupt;
        Unavailable, DeadlineExceeded and Overloaded only where there is nothing to fall back to.
        """
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
            answer = self._call(self._open().Route, request, timeout, info)
        except RoutingError as error:
            degraded = self._settings.degraded(request, error)
            if degraded is None:
                raise
            return degraded
        return RouteResult(answer, replayed=info.replayed)

    def set_active_agent(
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
        """Hand the conversation to an agent, if the rules allow it.

        session_id: one not seen before is made. agent_id: the target. turn_request_id: the open
        turn in which it happens, which the target then holds and completes; empty: only the next
        message goes there. initiator: None: derived from who hands over. from_agent_id: who hands
        over, so that a stale handoff is refused; empty: who has the conversation. reason: why, at
        most 1 KiB. context: what the target needs to know, as in JSON, at most 16 KiB; numbers
        arrive as floats. message: words for the user, at most 4 KiB. mode: None: as the target's
        registry entry says, else TRANSFER. suggestion_id: the suggestion that the user accepts.
        expected_revision: refuse unless the session is there; 0: it is new. validate_only: only
        evaluate the rules: the answer's verdicts say what each said, and nothing is refused.

        Raises HandoffRefused with every rule that refused, UnknownAgent, UnknownRequest,
        UnknownSuggestion, InvalidField, OwnerMismatch, ScopeMissing, SessionErased,
        RevisionMismatch, RequestIdReused, TooLarge, StateCorrupt, Unavailable, DeadlineExceeded,
        Overloaded.
        """
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
        return self._call(self._open().SetActiveAgent, request, timeout, info)

    def clear_active_agent(
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
        """Give the conversation back to the supervisor, or to a swarm's default agent.

        Clearing what is clear is no error, and changes nothing. scope: None and ACTIVE_AGENT: the
        task stays; SESSION: it is cancelled, and open turns are abandoned. reason: for the audit,
        at most 1 KiB. expected_revision: refuse unless the session is there.

        Raises UnknownSession, InvalidField, OwnerMismatch, SessionErased, RevisionMismatch,
        RequestIdReused, StateCorrupt, Unavailable, DeadlineExceeded, Overloaded.
        """
        request = request_messages.clear_active_agent(
            session_id,
            user_id=user_id,
            request_id=request_id,
            scope=scope,
            reason=reason,
            expected_revision=expected_revision,
        )
        return self._call(self._open().ClearActiveAgent, request, timeout, info)

    def status(
        self,
        session_id: str,
        *,
        user_id: str = "",
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> StatusResponse:
        """Return how a session stands. Changes nothing.

        Raises UnknownSession, InvalidField, OwnerMismatch, SessionErased, StateCorrupt,
        Unavailable, DeadlineExceeded, Overloaded.
        """
        request = request_messages.status(session_id, user_id=user_id)
        return self._call(self._open().Status, request, timeout, info)

    def complete_turn(
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
        """Report what an agent answered and how its turn ended; return where the message goes next.

        Show the answer's text first; then, if next is set, send the message to that agent and
        complete it under next's own request_id.

        request_id: Dispatch.request_id, of route(), of next, or of status(). agent_id: who answers.
        outcome: made with agent_routing.outcomes. text: the answer, for the user, at most 32 KiB.
        items: what else it has, at most 16; steps: the execution trace, at most 64; both are made
        with agent_routing.content. parse_markers: whether "[HANDOFF_TO:agent]" in text counts and
        is removed; None: as the agent's registry entry says; True widens nothing.

        Raises UnknownRequest (also for a degraded decision, of which the service never heard),
        UnknownSession, UnknownAgent, HandoffRefused, RequestNotOpen, InvalidField, OwnerMismatch,
        SessionErased, RevisionMismatch, TooLarge, StateCorrupt, Unavailable, DeadlineExceeded,
        Overloaded.
        """
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
        return self._call(self._open().CompleteTurn, request, timeout, info)

    def resume_task(
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
        """Approve or reject what a paused task waits for; return the dispatch to its agent.

        request_id: the request that waits. decision: the first one wins, and the same one repeated
        gets the same answer. session_id: empty: found by the task. comment: for the agent, at most
        4 KiB.

        Raises UnknownTask, UnknownRequest, UnknownSession, TaskNotPaused, RequestNotOpen,
        AgentUnavailable, InvalidField, OwnerMismatch, SessionErased, RevisionMismatch,
        Unimplemented, StateCorrupt, Unavailable, DeadlineExceeded, Overloaded.
        """
        request = request_messages.resume_task(
            task_id,
            request_id,
            decision,
            session_id=session_id,
            user_id=user_id,
            comment=comment,
        )
        return self._call(self._open().ResumeTask, request, timeout, info)

    def list_tasks(
        self,
        session_id: str,
        *,
        user_id: str = "",
        statuses: Iterable[TaskStatusName] = (),
        page_size: int = 0,
        timeout: Seconds | None = None,
    ) -> Iterator[Task]:
        """Iterate over the tasks of a session, oldest first; pages are fetched as they are needed.

        statuses: only tasks with one of these; empty: all. page_size: 0-1,000; 0: 100. timeout: of
        each page. Errors as list_tasks_page(), from the iteration.
        """
        chosen = tuple(statuses)

        def page(token: str) -> ListTasksResponse:
            return self.list_tasks_page(
                session_id,
                user_id=user_id,
                statuses=chosen,
                page_size=page_size,
                page_token=token,
                timeout=timeout,
            )

        return _over_pages(page, lambda answer: answer.tasks)

    def list_tasks_page(
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
        """Return one page of a session's tasks, oldest first.

        page_token: next_page_token of the page before, with all else unchanged.

        Raises UnknownSession, InvalidField, OwnerMismatch, SessionErased, Unimplemented,
        StateCorrupt, Unavailable, DeadlineExceeded, Overloaded.
        """
        request = request_messages.list_tasks(
            session_id,
            user_id=user_id,
            statuses=statuses,
            page_size=page_size,
            page_token=page_token,
        )
        return self._call(self._open().ListTasks, request, timeout, info)

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
    ) -> Iterator[Turn]:
        """Iterate over the history of a session; pages are fetched as they are needed.

        agent_id: only what this agent may see; empty: all turns. task_id: only turns of this task.
        order: None: oldest first. page_size: 0-1,000; 0: 50. timeout: of each page. Errors as
        list_turns_page(), from the iteration.
        """

        def page(token: str) -> ListTurnsResponse:
            return self.list_turns_page(
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

    def list_turns_page(
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
        """Return one page of a session's history.

        page_token: next_page_token of the page before, with all else unchanged. A page may hold
        fewer turns than page_size, to stay below 1 MiB.

        Raises UnknownSession, UnknownAgent, InvalidField, OwnerMismatch, SessionErased,
        StateCorrupt, Unavailable, DeadlineExceeded, Overloaded.
        """
        request = request_messages.list_turns(
            session_id,
            user_id=user_id,
            agent_id=agent_id,
            task_id=task_id,
            order=order,
            page_size=page_size,
            page_token=page_token,
        )
        return self._call(self._open().ListTurns, request, timeout, info)

    def list_agents(
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
        """Return the agents, in the order of the registry, and who the home agent is.

        session_id: only those that its user may reach there; empty: every one. locale: of names
        and descriptions, BCP 47; empty: the session's, else the registry's. from_agent_id: only
        those to which this agent may hand over. include_instructions: send instructions for their
        prompts along.

        Raises UnknownSession, UnknownAgent, InvalidField, OwnerMismatch, SessionErased,
        Unimplemented, StateCorrupt, Unavailable, DeadlineExceeded, Overloaded.
        """
        request = request_messages.list_agents(
            session_id=session_id,
            user_id=user_id,
            locale=locale,
            from_agent_id=from_agent_id,
            include_instructions=include_instructions,
        )
        return self._call(self._open().ListAgents, request, timeout, info)

    def watch_session(
        self,
        session_id: str,
        *,
        user_id: str = "",
        after_revision: int | None = None,
        heartbeat_interval: Seconds | None = None,
        away_timeout: Seconds = AWAY_S_DEFAULT,
    ) -> Iterator[Change]:
        """Iterate over the changes of a session as they happen.

        Gives each change exactly once and in order: a lost connection is made again, from the last
        revision that was given. Ends with an error only, or when the iterator is closed.

        after_revision: the last revision that the caller has seen; 0: from the beginning; None:
        only what comes from now on. heartbeat_interval: how long the connection may be silent
        before the service gives a sign of life, 1 s to 5 min; None: 15 s. away_timeout: how long
        the service may be away before the watch gives up; both in seconds or as a timedelta.

        Raises, from the iteration, UnknownSession, InvalidField, OwnerMismatch, SessionErased,
        RevisionCompacted, StateCorrupt, Unimplemented, and after away_timeout Unavailable or
        Overloaded.
        """
        request = request_messages.watch_session(
            session_id,
            user_id=user_id,
            after_revision=after_revision,
            heartbeat_interval=heartbeat_interval,
        )
        away_s_max = positive_seconds("away_timeout", away_timeout)
        return self._watch(Watch(self._settings, request, away_s_max))

    def stream(self) -> RouteStream:
        """Return a stream for many messages, to be used in a with block.

        with client.stream() as stream:
            turn = stream.route("hello", session_id="chat-42", user_id="ana")

        For gateways that route hundreds of messages a second, from many threads: route() looks and
        answers as ever, its messages share one HTTP/2 stream. A connection that breaks is made
        again, and what was not answered is sent again under the same request ids, in the same
        order.
        """
        from agent_routing.client_stream import (  # noqa: PLC0415 - few clients have one
            RouteStream,
        )

        return RouteStream(self._settings, self._open)

    def _open(self) -> Stub:
        """Return the stub, made with its channel when it is first needed."""
        stub = self._stub
        if stub is None:
            with self._lock:
                if self._closed:
                    raise closed_error(self._settings.target)
                if self._stub is None:
                    self._pid = os.getpid()
                    self._stub = RoutingServiceStub(self._given_channel or self._new_channel())
                stub = self._stub
        if self._pid != os.getpid():
            raise forked_error(self._settings.target)
        return stub

    def _new_channel(self) -> grpc.Channel:
        target = self._settings.target
        if self._credentials is None:
            self._channel = grpc.insecure_channel(target, options=self._options)
        else:
            self._channel = grpc.secure_channel(target, self._credentials, options=self._options)
        return self._channel

    def _call(
        self,
        rpc: grpc.UnaryUnaryMultiCallable[RequestT, AnswerT],
        request: RequestT,
        timeout: Seconds | None,
        info: CallInfo | None,
    ) -> AnswerT:
        """Send a request until it is answered, refused, or out of time or attempts."""
        call = self._settings.begin(request, timeout, info)
        while True:
            metadata = self._settings.metadata_now()
            try:
                answer, sent = rpc.with_call(
                    request, timeout=call.next_timeout_s(), metadata=metadata
                )
            except (grpc.RpcError, ValueError) as failure:
                # A closed channel: ValueError for what begins, CANCELLED for what is on its way.
                if self._closed:
                    raise closed_error(self._settings.target) from failure
                if isinstance(failure, ValueError):
                    raise
                wait_s = call.wait_after(failure)
            else:
                call.succeeded(answer, sent.trailing_metadata())
                return answer
            time.sleep(wait_s)

    def _watch(self, watch: Watch) -> Iterator[Change]:
        """Give a watch's changes, over as many connections as it takes."""
        while True:
            stream = self._open().WatchSession(
                watch.connect(), metadata=self._settings.metadata_now()
            )
            failure: grpc.RpcError | None = None
            try:
                for response in stream:
                    change = watch.received(response)
                    if change is not None:
                        yield change
            except grpc.RpcError as ended:
                failure = ended
            finally:
                # Also when the caller leaves the loop: the service must not go on sending.
                stream.cancel()
            if self._closed:
                raise closed_error(self._settings.target) from failure
            time.sleep(watch.wait_after(failure))


PageT = TypeVar("PageT", ListTasksResponse, ListTurnsResponse)
EntryT = TypeVar("EntryT")


def _over_pages(
    page: Callable[[str], PageT], entries: Callable[[PageT], Iterable[EntryT]]
) -> Iterator[EntryT]:
    """Iterate over the entries of all pages; page returns the one of a token."""
    token = ""
    while True:
        answer = page(token)
        yield from entries(answer)
        token = answer.next_page_token
        if not token:
            return
