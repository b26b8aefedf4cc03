# Generated from routing_calls_aio.py by scripts/make_sync.py. Do not edit.
"""The calls of RoutingService: one method for each RPC, with a parameter for each request field.

Owns how arguments become a request. An empty value is an unset field. The service validates the
fields, so that the caller gets one InvalidField with every bad field.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, overload

from agent_routing.calls import CallInfo
from agent_routing.circuit import Circuit
from agent_routing.errors import RoutingError
from agent_routing.ids import new_uuid7
from agent_routing.messages import (
    clear_scope_pb2,
    dispatch_pb2,
    handoff_pb2,
    item_pb2,
    moved_turn_pb2,
    outcomes,
    session_event_pb2,
    task_pb2,
    turn_pb2,
)
from agent_routing.messages import routing_service_pb2 as pb
from agent_routing.people_calls import PeopleCalls
from agent_routing.plain_values import (
    ClearScopeName,
    DeliveryName,
    HandoffModeName,
    InitiatorName,
    OpenTurnName,
    Seconds,
    TaskStatusName,
    TurnOrderName,
    WatchIncludeName,
    duration,
    enum_value,
    positive_seconds,
    struct,
    texts,
    timestamp,
)
from agent_routing.route_result import RouteResult
from agent_routing.watching import AWAY_S_DEFAULT, Watch, Watched


class RouteCall(ABC):
    """The Route call, which clients and streams both offer."""

    def route(
        self,
        text: str = "",
        *,
        session_id: str = "",
        user_id: str = "",
        request_id: str = "",
        task_id: str = "",
        items: Iterable[item_pb2.Item] = (),
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
        deliver: DeliveryName | None = None,
        shown_revision: int | None = None,
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> RouteResult:
        """Route a user's message: return the agent that gets it, or a reply to show.

        Opens a turn, which complete_turn() ends. If the service cannot be reached, the result is
        the last known agent of the session, or else the supervisor, with degraded set. To have the
        message stored, route it again later with the session_id and request_id of the result.

        text: at most 32 KiB; a command at its beginning is executed, unless literal_text is set.
        session_id: empty: the session of task_id, or a new one, whose id is in the result; a repeat
        with the same request_id finds it again. task_id: empty: the session's
        open task, or a new one. items: images and files (agent_routing.content), at most 16.
        locale (BCP 47), channel (such as "web"), entitlements (of the user; only from trusted
        callers): stored with the session; empty: unchanged. history_turns: how many past turns the
        dispatch carries, up to 100; 0: 20; -1: none. expected_revision: refuse unless the session
        is at this revision; 0: the session is new. quick_reply_id: of the SuggestionOption that the
        user chose. validate_only: only return what would happen; never degraded. explain_topic:
        return why the topic moved the message or did not. metadata: stored with the task, at most
        32 entries. task_expire_time: when the task expires; None: unchanged. deliver: "INBOX":
        workers take the whole turn from inboxes; None: as the registry says of each agent.
        shown_revision: the revision that the user had seen when writing; a question that came
        forward by itself after it is not answered by the message.

        Raises InvalidField, UnknownTask, UnknownSuggestion, TaskOpen, TaskClosed, TasksOpen,
        TurnOpen, StoreFormat (deliver; a new task_id with tasks: new), SessionErased,
        OwnerMismatch, RevisionMismatch, RequestIdReused, TooLarge, StateCorrupt; Unavailable,
        DeadlineExceeded and Overloaded only without a fallback.
        """
        request = pb.RouteRequest(
            session_id=session_id,
            user_id=user_id,
            text=text,
            request_id=request_id or new_uuid7(),
            task_id=task_id,
            items=items,
            locale=locale,
            channel=channel,
            history_turns=history_turns,
            expected_revision=expected_revision,
            entitlements=texts("entitlements", entitlements),
            quick_reply_id=quick_reply_id,
            literal_text=literal_text,
            validate_only=validate_only,
            explain_topic=explain_topic,
            metadata=metadata,
            task_expire_time=timestamp("task_expire_time", task_expire_time),
            deliver=dispatch_pb2.Delivery.DELIVERY_UNSPECIFIED
            if deliver is None
            else enum_value(dispatch_pb2.Delivery, "DELIVERY_", "deliver", deliver),
            shown_revision=shown_revision,
        )
        return self._route(request, timeout, info)

    @abstractmethod
    def _route(
        self, request: pb.RouteRequest, timeout: Seconds | None, info: CallInfo | None
    ) -> RouteResult:
        """Send the request; return the answer, or a degraded one."""


class RoutingCalls(PeopleCalls, RouteCall):
    """The calls of RoutingService. A client adds the channel, and how a call waits."""

    @property
    def circuit(self) -> Circuit:
        """The state of the circuit breaker, for metrics."""
        return self._settings.circuit

    def learn_home(self, *, timeout: Seconds | None = None) -> str:
        """Ask once for the home agent, as at a process's start; return its id.

        During an outage it gets the messages of sessions that this client does not know. Raises
        Unavailable, DeadlineExceeded, Overloaded.
        """
        return (self.list_agents(timeout=timeout)).home_agent_id

    @abstractmethod
    def _watch(self, watch: Watch) -> Iterator[Watched]:
        """Yield the changes of a watch, over as many connections as necessary."""

    def _route(
        self, request: pb.RouteRequest, timeout: Seconds | None, info: CallInfo | None
    ) -> RouteResult:
        info = CallInfo() if info is None else info
        limit_s = self._settings.limited_s(request, timeout)
        if not limit_s and (decided := self._settings.decided_now(request)):
            return decided
        try:
            answer = self._call(self._open().Route, request, limit_s or timeout, info)
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
        task_id: str = "",
        open_turn: OpenTurnName | None = None,
        expected_revision: int | None = None,
        validate_only: bool = False,
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.SetActiveAgentResponse:
        """Hand the conversation to an agent, if the rules allow it.

        session_id: created if it does not exist; empty: found by task_id. agent_id: the target.
        turn_request_id: the open turn during which this happens; the target then holds and
        completes that turn; empty: the target gets the next message. initiator: None: derived from
        the agent that hands over. from_agent_id: the agent that hands over, so that a stale handoff
        is refused; empty: the agent that has the conversation. reason: at most 1 KiB. context: what
        the target needs to know, a JSON object of at most 16 KiB; numbers arrive as floats.
        message: text for the user, at most 4 KiB. mode: None: as in the target's registry entry, or
        else TRANSFER. suggestion_id: the suggestion that the user accepts. task_id: the open task
        whose agent it is about, which may be parked; empty: that of the turn, or else the one in
        front. open_turn: what becomes of a message that waits for its answer, outside of its turn:
        TAKE_ALONG, to the new agent; LEAVE; or ABANDON. None: as the initiator says, see
        OPEN_TURN_UNSPECIFIED; moved_turn of the answer names it. expected_revision: refuse unless
        the session is at this revision; 0: the session is new. validate_only: only evaluate the
        rules; the answer has a verdict for each, and no error is raised.

        Raises HandoffRefused with every rule that refused, UnknownAgent, UnknownRequest,
        UnknownSuggestion, UnknownTask, TaskClosed, Claimed, InvalidField, OwnerMismatch,
        ScopeMissing, SessionErased, RevisionMismatch, RequestIdReused, TooLarge, StateCorrupt,
        Unavailable, DeadlineExceeded, Overloaded.
        """
        request = pb.SetActiveAgentRequest(
            session_id=session_id,
            user_id=user_id,
            agent_id=agent_id,
            request_id=request_id or new_uuid7(),
            turn_request_id=turn_request_id,
            initiator=enum_value(handoff_pb2.Initiator, "INITIATOR_", "initiator", initiator),
            from_agent_id=from_agent_id,
            reason=reason,
            context=struct("context", context),
            message=message,
            mode=enum_value(handoff_pb2.HandoffMode, "HANDOFF_MODE_", "mode", mode),
            suggestion_id=suggestion_id,
            task_id=task_id,
            open_turn=enum_value(
                moved_turn_pb2.MovedTurn.OpenTurn, "OPEN_TURN_", "open_turn", open_turn
            ),
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
        task_id: str = "",
        open_turn: OpenTurnName | None = None,
        expected_revision: int | None = None,
        validate_only: bool = False,
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.ClearActiveAgentResponse:
        """Return the conversation to the supervisor, or to a swarm's default agent.

        If it is there already, nothing changes and no error is raised. scope: None and
        ACTIVE_AGENT: the task stays; SESSION: the task is cancelled and open turns are abandoned.
        reason: for the audit, at most 1 KiB. task_id: the open task to clear, which may be parked;
        empty: the one in front. open_turn: as of set_active_agent; TAKE_ALONG: to the supervisor.
        expected_revision: refuse unless the session is at this revision. validate_only: only return
        what would change.

        Raises UnknownSession, UnknownTask, TaskClosed, Claimed, InvalidField, OwnerMismatch,
        SessionErased, RevisionMismatch, RequestIdReused, StateCorrupt, Unavailable,
        DeadlineExceeded, Overloaded.
        """
        request = pb.ClearActiveAgentRequest(
            session_id=session_id,
            user_id=user_id,
            request_id=request_id or new_uuid7(),
            scope=enum_value(clear_scope_pb2.ClearScope, "CLEAR_SCOPE_", "scope", scope),
            reason=reason,
            task_id=task_id,
            open_turn=enum_value(
                moved_turn_pb2.MovedTurn.OpenTurn, "OPEN_TURN_", "open_turn", open_turn
            ),
            expected_revision=expected_revision,
            validate_only=validate_only,
        )
        return self._call(self._open().ClearActiveAgent, request, timeout, info)

    def cancel_task(
        self,
        task_id: str,
        *,
        session_id: str = "",
        user_id: str = "",
        request_id: str = "",
        reason: str = "",
        expected_revision: int | None = None,
        validate_only: bool = False,
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.CancelTaskResponse:
        """Cancel an open task; its id alone is enough.

        Its open turns are abandoned, a pending approval is withdrawn, and the next message goes to
        the home agent. session_id: empty: found by the task. reason: for the audit, at most 1 KiB.
        expected_revision: refuse unless the session is at this revision. validate_only: only return
        what would change.

        Raises UnknownTask, TaskClosed, Claimed, UnknownSession, InvalidField, OwnerMismatch,
        ScopeMissing, SessionErased, RevisionMismatch, RequestIdReused, Unimplemented, StateCorrupt,
        Unavailable, DeadlineExceeded, Overloaded.
        """
        request = pb.CancelTaskRequest(
            session_id=session_id,
            user_id=user_id,
            task_id=task_id,
            request_id=request_id or new_uuid7(),
            reason=reason,
            expected_revision=expected_revision,
            validate_only=validate_only,
        )
        return self._call(self._open().CancelTask, request, timeout, info)

    def status(
        self,
        session_id: str = "",
        *,
        user_id: str = "",
        task_id: str = "",
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.StatusResponse:
        """Return the current state of a session. Changes nothing.

        task_id: a task of the session, which finds it where session_id is empty.

        Raises UnknownSession, UnknownTask, InvalidField, OwnerMismatch, SessionErased,
        StateCorrupt, Unavailable, DeadlineExceeded, Overloaded.
        """
        request = pb.StatusRequest(session_id=session_id, user_id=user_id, task_id=task_id)
        return self._call(self._open().Status, request, timeout, info)

    def complete_turn(
        self,
        session_id: str,
        request_id: str,
        agent_id: str,
        outcome: outcomes.Outcome,
        *,
        text: str = "",
        user_id: str = "",
        items: Iterable[item_pb2.Item] = (),
        steps: Iterable[turn_pb2.Step] = (),
        parse_markers: bool | None = None,
        lease_token: str = "",
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.CompleteTurnResponse:
        """Report an agent's answer and how its turn ended; return where the message goes next.

        Show the text of the answer first. If next is set, then send the message to that agent, and
        complete it under the request_id of next.

        request_id: Dispatch.request_id, from route(), next or status(). agent_id: the agent that
        answers. outcome: made with agent_routing.outcomes. text: the answer for the user, at most
        32 KiB. items: other content of the answer, at most 16. steps: the execution trace, at most
        64. Both are made with agent_routing.content. parse_markers: whether "[HANDOFF_TO:agent]" in
        text is executed and removed; None: as in the agent's registry entry; True cannot enable
        what the registry disables. lease_token: of a turn from an inbox; empty: not checked.

        Raises UnknownRequest (also for a degraded decision, which the service does not know),
        UnknownSession, UnknownAgent, HandoffRefused, RequestNotOpen, LeaseLost, StoreFormat,
        InvalidField, OwnerMismatch, SessionErased, RevisionMismatch, TooLarge, StateCorrupt,
        Unavailable, DeadlineExceeded, Overloaded; TypeError for an outcome of another type.
        """
        request = pb.CompleteTurnRequest(
            session_id=session_id,
            request_id=request_id,
            agent_id=agent_id,
            text=text,
            user_id=user_id,
            items=items,
            steps=steps,
            parse_markers=parse_markers,
            lease_token=lease_token,
        )
        outcomes.set_outcome(request, outcome)
        return self._call(self._open().CompleteTurn, request, timeout, info)

    def keep_turn(
        self,
        session_id: str,
        request_id: str,
        agent_id: str,
        *,
        lease_token: str = "",
        extend: Seconds | None = None,
        release: bool = False,
        steps: Iterable[turn_pb2.Step] = (),
        first_step: int = 0,
        note: str = "",
        delta: pb.AnswerDelta | None = None,
        say: str = "",
        task_id: str = "",
        message_id: str = "",
        user_id: str = "",
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.KeepTurnResponse:
        """Say something of a turn while its agent works: whether it is still open is the answer.

        agent_routing.worker does this for its turns. lease_token: of the InboxItem; empty for a
        turn that the caller carries. extend: how long the lease runs from now on, 1 s to 1 h; it
        also moves the turn's deadline. release: give the turn back, to any worker. steps: what was
        done since the last report, at least 5 s apart; first_step: steps_known of the last answer.
        note: a text for the user while they wait. delta: the next part of the answer. say, task_id,
        message_id: see say(). Give at least one of extend, release, steps, note, delta and say.

        Raises StoreFormat (steps, say), Claimed (steps, note, delta, say), UnknownSession,
        InvalidField, OwnerMismatch, ScopeMissing, SessionErased, RequestIdReused (say),
        StateCorrupt, Unimplemented, Unavailable, DeadlineExceeded, Overloaded.
        """
        request = pb.KeepTurnRequest(
            session_id=session_id,
            user_id=user_id,
            request_id=request_id,
            agent_id=agent_id,
            lease_token=lease_token,
            extend=duration(extend),
            steps=steps,
            first_step=first_step,
            note=note,
            delta=delta,
            say=say,
            task_id=task_id,
            message_id=message_id,
        )
        if release:
            request.release = True
        return self._call(self._open().KeepTurn, request, timeout, info)

    def report_degraded(
        self,
        turns: Iterable[pb.DegradedTurn],
        *,
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.ReportDegradedResponse:
        """Report turns that were decided without the service; return what became of each.

        turns: 1-100, in the order in which they happened; RouteResult.degraded_turn() makes them.
        A turn is stored in the history, or is a conflict: the service knows better. Nothing moves.
        Each is stored once by its request_id, so after a lost answer report all of them again.

        Raises InvalidField, ScopeMissing, Unavailable, DeadlineExceeded, Overloaded.
        """
        request = pb.ReportDegradedRequest(turns=turns)
        return self._call(self._open().ReportDegraded, request, timeout, info)

    def list_tasks(
        self,
        session_id: str = "",
        *,
        user_id: str = "",
        task_id: str = "",
        statuses: Iterable[TaskStatusName] = (),
        page_size: int = 0,
        timeout: Seconds | None = None,
    ) -> Iterator[task_pb2.Task]:
        """Iterate over the tasks of a session, oldest first; pages are fetched when needed.

        task_id: only this task; it finds the session where session_id is empty. statuses: only
        tasks with one of these; empty: all. page_size: 0-1,000; 0: 100. timeout: of each page. The
        iteration raises what list_tasks_page() raises.
        """
        chosen = tuple(statuses)
        token = ""
        while True:
            page = self.list_tasks_page(
                session_id,
                user_id=user_id,
                task_id=task_id,
                statuses=chosen,
                page_size=page_size,
                page_token=token,
                timeout=timeout,
            )
            for task in page.tasks:
                yield task
            token = page.next_page_token
            if not token:
                return

    def list_tasks_page(
        self,
        session_id: str = "",
        *,
        user_id: str = "",
        task_id: str = "",
        statuses: Iterable[TaskStatusName] = (),
        page_size: int = 0,
        page_token: str = "",
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.ListTasksResponse:
        """Return one page of a session's tasks, oldest first.

        page_token: next_page_token of the previous page; the other arguments must be the same.

        Raises UnknownSession, UnknownTask, InvalidField, OwnerMismatch, SessionErased,
        Unimplemented, StateCorrupt, Unavailable, DeadlineExceeded, Overloaded.
        """
        request = pb.ListTasksRequest(
            session_id=session_id,
            user_id=user_id,
            task_id=task_id,
            statuses=[
                enum_value(task_pb2.TaskStatus, "TASK_STATUS_", "status", each) for each in statuses
            ],
            page_size=page_size,
            page_token=page_token,
        )
        return self._call(self._open().ListTasks, request, timeout, info)

    def list_turns(
        self,
        session_id: str = "",
        *,
        user_id: str = "",
        agent_id: str = "",
        task_id: str = "",
        order: TurnOrderName | None = None,
        page_size: int = 0,
        timeout: Seconds | None = None,
    ) -> Iterator[turn_pb2.Turn]:
        """Iterate over the history of a session; pages are fetched when needed.

        agent_id: only what this agent may see; empty: all turns. task_id: only turns of this task,
        which finds the session where session_id is empty. order: None: oldest first. page_size:
        0-1,000; 0: 50. timeout: of each page. The iteration raises what list_turns_page() raises.
        """
        token = ""
        while True:
            page = self.list_turns_page(
                session_id,
                user_id=user_id,
                agent_id=agent_id,
                task_id=task_id,
                order=order,
                page_size=page_size,
                page_token=token,
                timeout=timeout,
            )
            for turn in page.turns:
                yield turn
            token = page.next_page_token
            if not token:
                return

    def list_turns_page(
        self,
        session_id: str = "",
        *,
        user_id: str = "",
        agent_id: str = "",
        task_id: str = "",
        order: TurnOrderName | None = None,
        page_size: int = 0,
        page_token: str = "",
        read_reason: str = "",
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.ListTurnsResponse:
        """Return one page of a session's history.

        page_token: next_page_token of the previous page; the other arguments must be the same. A
        page stays below 1 MiB, so it may have fewer turns than page_size. read_reason: why an
        operator reads the texts, for the audit; needs the scope read_words.

        Raises UnknownSession, UnknownTask, UnknownAgent, InvalidField, OwnerMismatch,
        SessionErased, StateCorrupt, Unavailable, DeadlineExceeded, Overloaded.
        """
        request = pb.ListTurnsRequest(
            session_id=session_id,
            user_id=user_id,
            agent_id=agent_id,
            task_id=task_id,
            page_size=page_size,
            page_token=page_token,
            order=enum_value(pb.TurnOrder, "TURN_ORDER_", "order", order),
            read_reason=read_reason,
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
    ) -> pb.ListAgentsResponse:
        """Return the agents in the order of the registry, and which one is the home agent.

        session_id: only the agents that its user may reach there; empty: all. locale: of names and
        descriptions, BCP 47; empty: the session's, or else the registry's. from_agent_id: only the
        agents to which this one may hand over. include_instructions: also return instructions for
        the agents' prompts.

        Raises UnknownSession, UnknownAgent, InvalidField, OwnerMismatch, SessionErased,
        Unimplemented, StateCorrupt, Unavailable, DeadlineExceeded, Overloaded.
        """
        request = pb.ListAgentsRequest(
            session_id=session_id,
            user_id=user_id,
            locale=locale,
            from_agent_id=from_agent_id,
            include_instructions=include_instructions,
        )
        return self._call(self._open().ListAgents, request, timeout, info)

    @overload
    def watch_session(
        self,
        session_id: str = "",
        *,
        user_id: str = "",
        task_id: str = "",
        after_revision: int | None = None,
        heartbeat_interval: Seconds | None = None,
        away_timeout: Seconds = AWAY_S_DEFAULT,
    ) -> Iterator[session_event_pb2.Change]: ...

    @overload
    def watch_session(
        self,
        session_id: str = "",
        *,
        include: Iterable[WatchIncludeName],
        user_id: str = "",
        task_id: str = "",
        after_revision: int | None = None,
        heartbeat_interval: Seconds | None = None,
        away_timeout: Seconds = AWAY_S_DEFAULT,
    ) -> Iterator[session_event_pb2.Change | pb.TurnDelta | pb.TurnNote]: ...

    def watch_session(
        self,
        session_id: str = "",
        *,
        include: Iterable[WatchIncludeName] = (),
        user_id: str = "",
        task_id: str = "",
        after_revision: int | None = None,
        heartbeat_interval: Seconds | None = None,
        away_timeout: Seconds = AWAY_S_DEFAULT,
    ) -> Iterator[Any]:
        """Iterate over the changes of a session as they happen.

        Yields each change exactly once and in order: after a lost connection the client connects
        again, from the last revision that it yielded. Only an error or closing the iterator ends
        the watch.

        after_revision: the last revision that the caller has seen; 0: from the beginning; None:
        only new changes. task_id: a task of the session, which finds it where session_id is empty;
        all changes of the session come. include: "STEPS" for changes with steps_reported; "DELTAS"
        and "NOTES" for parts of answers and notes, which come between the changes and may be lost.
        heartbeat_interval: the longest silence of the connection before the service sends a
        heartbeat, 1 s to 5 min; None: 15 s. away_timeout: how long the service may be away before
        the watch fails.

        The iteration raises UnknownSession, UnknownTask, InvalidField, OwnerMismatch,
        SessionErased, RevisionCompacted, StateCorrupt, Unimplemented; after away_timeout
        Unavailable or Overloaded.
        """
        request = pb.WatchSessionRequest(
            session_id=session_id,
            user_id=user_id,
            task_id=task_id,
            after_revision=after_revision,
            heartbeat_interval=duration(heartbeat_interval),
            include=[
                enum_value(pb.WatchInclude, "WATCH_INCLUDE_", "include", each) for each in include
            ],
        )
        away_s_max = positive_seconds("away_timeout", away_timeout)
        return self._watch(Watch(self._settings, request, away_s_max))
