"""The calls of people who answer: what waits in their inbox, and who has claimed it."""

from __future__ import annotations

from collections.abc import AsyncIterator

from agent_routing.approval_calls_aio import AsyncApprovalCalls
from agent_routing.calls import CallInfo
from agent_routing.ids import new_uuid7
from agent_routing.messages import routing_service_pb2 as pb
from agent_routing.plain_values import Seconds


class AsyncPeopleCalls(AsyncApprovalCalls):
    """The calls about conversations that wait for people."""

    async def list_waiting(
        self, agent_id: str, *, page_size: int = 0, timeout: Seconds | None = None
    ) -> AsyncIterator[pb.WaitingConversation]:
        """Iterate over what waits in an agent's inbox, the longest waiting first.

        page_size: 0-100; 0: 50. timeout: of each page. The iteration raises what
        list_waiting_page() raises.
        """
        token = ""
        while True:
            page = await self.list_waiting_page(
                agent_id, page_size=page_size, page_token=token, timeout=timeout
            )
            for entry in page.entries:
                yield entry
            token = page.next_page_token
            if not token:
                return

    async def list_waiting_page(
        self,
        agent_id: str,
        *,
        page_size: int = 0,
        page_token: str = "",
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.ListWaitingResponse:
        """Return one page of what waits in an agent's inbox.

        page_token: next_page_token of the previous page. A page may be short while more follow.

        Raises InvalidField, ScopeMissing, Unimplemented, Unavailable, DeadlineExceeded, Overloaded.
        """
        request = pb.ListWaitingRequest(
            agent_id=agent_id, page_size=page_size, page_token=page_token
        )
        return await self._call(self._open().ListWaiting, request, timeout, info)

    async def claim_turn(
        self,
        session_id: str,
        agent_id: str,
        *,
        claimant: str = "",
        take_over: bool = False,
        user_id: str = "",
        request_id: str = "",
        expected_revision: int | None = None,
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.ClaimTurnResponse:
        """Claim a conversation for the person who calls.

        agent_id: of kind human. claimant: required without sign-in. take_over: also from another
        person. expected_revision: refuse unless the session is at this revision.

        Raises Claimed, NothingToClaim, StoreFormat, UnknownSession, UnknownAgent, InvalidField,
        OwnerMismatch, ScopeMissing, SessionErased, RevisionMismatch, RequestIdReused,
        Unimplemented, StateCorrupt, Unavailable, DeadlineExceeded, Overloaded.
        """
        request = pb.ClaimTurnRequest(
            session_id=session_id,
            user_id=user_id,
            agent_id=agent_id,
            request_id=request_id or new_uuid7(),
            claimant=claimant,
            take_over=take_over,
            expected_revision=expected_revision,
        )
        return await self._call(self._open().ClaimTurn, request, timeout, info)

    async def release_turn(
        self,
        session_id: str,
        agent_id: str,
        *,
        claimant: str = "",
        user_id: str = "",
        request_id: str = "",
        expected_revision: int | None = None,
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.ReleaseTurnResponse:
        """Give a claim up; the conversation waits again.

        claimant: required without sign-in. expected_revision: refuse unless the session is at this
        revision.

        Raises Claimed, UnknownSession, UnknownAgent, InvalidField, OwnerMismatch, ScopeMissing,
        SessionErased, RevisionMismatch, RequestIdReused, Unimplemented, StateCorrupt, Unavailable,
        DeadlineExceeded, Overloaded.
        """
        request = pb.ReleaseTurnRequest(
            session_id=session_id,
            user_id=user_id,
            agent_id=agent_id,
            request_id=request_id or new_uuid7(),
            claimant=claimant,
            expected_revision=expected_revision,
        )
        return await self._call(self._open().ReleaseTurn, request, timeout, info)
