"""The calls of people who decide: what waits for an approval, and the decision.

The service validates the fields. What a client adds, the channel and how a call waits, is declared
here for all calls of RoutingService.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, TypeVar

from agent_routing.approval_watch import ApprovalWatch
from agent_routing.calls import CallInfo, CallSettings
from agent_routing.messages import dispatch_pb2
from agent_routing.messages import routing_service_pb2 as pb
from agent_routing.plain_values import (
    DecisionName,
    Seconds,
    duration,
    enum_value,
    positive_seconds,
)
from agent_routing.watching import AWAY_S_DEFAULT

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from agent_routing.rpc_types import AsyncRpc
    from agent_routing.v1.routing_service_pb2_grpc import RoutingServiceAsyncStub

RequestT = TypeVar("RequestT", bound="Message")
AnswerT = TypeVar("AnswerT", bound="Message")


class AsyncApprovalCalls(ABC):
    """The calls about approvals."""

    _settings: CallSettings

    @abstractmethod
    def _open(self) -> RoutingServiceAsyncStub:
        """Return the stub; the first call creates it and its channel."""

    @abstractmethod
    async def _call(
        self,
        rpc: AsyncRpc[RequestT, AnswerT],
        request: RequestT,
        timeout: Seconds | None,
        info: CallInfo | None,
    ) -> AnswerT:
        """Send a request until it is answered, refused, or out of time or attempts."""

    @abstractmethod
    def _watch_approvals(self, watch: ApprovalWatch) -> AsyncIterator[pb.WatchApprovalsResponse]:
        """Yield what a watch has to say, over as many connections as necessary."""

    async def resume_task(
        self,
        task_id: str,
        request_id: str,
        decision: DecisionName,
        *,
        session_id: str = "",
        user_id: str = "",
        comment: str = "",
        validate_only: bool = False,
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.ResumeTaskResponse:
        """Approve or reject what a paused task is waiting for; return the dispatch to its agent.

        request_id: the request that waits. decision: the first decision counts; the same one
        repeated gets the same answer. session_id: empty: found by the task. comment: for the agent,
        at most 4 KiB. validate_only: only return what would follow. The dispatch is unset while
        more people have to approve.

        Raises UnknownTask, UnknownRequest, UnknownSession, TaskNotPaused, RequestNotOpen,
        ApprovalDecided, ApproverRefused, AgentUnavailable, InvalidField, OwnerMismatch,
        SessionErased, RevisionMismatch, Unimplemented, StateCorrupt, Unavailable,
        DeadlineExceeded, Overloaded.
        """
        request = pb.ResumeTaskRequest(
            session_id=session_id,
            user_id=user_id,
            task_id=task_id,
            request_id=request_id,
            decision=enum_value(dispatch_pb2.Decision, "DECISION_", "decision", decision),
            comment=comment,
            validate_only=validate_only,
        )
        return await self._call(self._open().ResumeTask, request, timeout, info)

    async def list_approvals(
        self,
        *,
        agent_id: str = "",
        role: str = "",
        mine: bool = False,
        page_size: int = 0,
        timeout: Seconds | None = None,
    ) -> AsyncIterator[pb.WaitingApproval]:
        """Iterate over what waits for an approval in all sessions of the tenant, oldest first.

        Needs the scope approve or admin. agent_id: only what this agent asked. role: only what a
        caller with this role may decide. mine: only what this caller may decide and has not
        approved yet. page_size: 0-1,000; 0: 100. timeout: of each page. The iteration raises what
        list_approvals_page() raises.
        """
        token = ""
        while True:
            page = await self.list_approvals_page(
                agent_id=agent_id,
                role=role,
                mine=mine,
                page_size=page_size,
                page_token=token,
                timeout=timeout,
            )
            for approval in page.approvals:
                yield approval
            token = page.next_page_token
            if not token:
                return

    async def list_approvals_page(
        self,
        *,
        agent_id: str = "",
        role: str = "",
        mine: bool = False,
        page_size: int = 0,
        page_token: str = "",
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.ListApprovalsResponse:
        """Return one page of what waits for an approval.

        page_token: next_page_token of the previous page; the other arguments must be the same. A
        page may have fewer than page_size.

        Raises InvalidField, ScopeMissing, StoreFormat, Unimplemented, Unavailable,
        DeadlineExceeded, Overloaded.
        """
        request = pb.ListApprovalsRequest(
            agent_id=agent_id, role=role, mine=mine, page_size=page_size, page_token=page_token
        )
        return await self._call(self._open().ListApprovals, request, timeout, info)

    def watch_approvals(
        self,
        *,
        agent_id: str = "",
        role: str = "",
        mine: bool = False,
        heartbeat_interval: Seconds | None = None,
        away_timeout: Seconds = AWAY_S_DEFAULT,
    ) -> AsyncIterator[pb.WatchApprovalsResponse]:
        """Iterate over what waits for an approval, and then over what begins, changes and ends.

        Yields messages with waiting or ended. After a lost connection the client connects again,
        and yields only what is different from what it yielded before. Only an error or closing the
        iterator ends the watch. agent_id, role, mine: as list_approvals(). heartbeat_interval,
        away_timeout: as watch_session().

        The iteration raises InvalidField, ScopeMissing, StoreFormat, Unimplemented; after
        away_timeout Unavailable or Overloaded.
        """
        request = pb.WatchApprovalsRequest(
            agent_id=agent_id,
            role=role,
            mine=mine,
            heartbeat_interval=duration(heartbeat_interval),
        )
        away_s_max = positive_seconds("away_timeout", away_timeout)
        return self._watch_approvals(ApprovalWatch(self._settings, request, away_s_max))
