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
        reason: str = "",
        user_id: str = "",
        request_id: str = "",
        expected_revision: int | None = None,
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.ClaimTurnResponse:
        """Claim a conversation for the person who calls.

        agent_id: of kind human. claimant: required without sign-in. take_over: also from another
        person. reason: for the audit, at most 1 KiB. expected_revision: refuse unless the session
        is at this revision.

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
            reason=reason,
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

    async def say(
        self,
        text: str,
        *,
        session_id: str,
        agent_id: str,
        request_id: str = "",
        task_id: str = "",
        user_id: str = "",
        message_id: str = "",
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.KeepTurnResponse:
        """Say something to the user without ending the turn.

        request_id: the open request; for people without one, task_id. message_id: a repeat with it
        says nothing twice; one is made. A worker says it by
        keep_turn(), with its lease. The answer's status is REQUEST_NOT_OPEN if the turn is
        over, or the conversation is with others.

        Raises Claimed, StoreFormat, UnknownSession, UnknownAgent, InvalidField, OwnerMismatch,
        ScopeMissing, SessionErased, RequestIdReused, StateCorrupt, Unavailable, DeadlineExceeded,
        Overloaded.
        """
        request = pb.KeepTurnRequest(
            session_id=session_id,
            user_id=user_id,
            request_id=request_id,
            task_id=task_id,
            agent_id=agent_id,
            say=text,
            message_id=message_id or new_uuid7(),
        )
        return await self._call(self._open().KeepTurn, request, timeout, info)

    async def add_note(
        self,
        session_id: str,
        text: str,
        *,
        agent_id: str = "",
        author: str = "",
        task_id: str = "",
        user_id: str = "",
        request_id: str = "",
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.AddNoteResponse:
        """Note something about a conversation for other people; users never get it.

        agent_id: for which the person works; required except for operators. author: required
        without sign-in. task_id: an open task; "" = the one in the foreground.

        Raises StoreFormat, UnknownSession, UnknownTask, InvalidField, OwnerMismatch, ScopeMissing,
        SessionErased, RequestIdReused, Unimplemented, StateCorrupt, Unavailable, DeadlineExceeded,
        Overloaded.
        """
        request = pb.AddNoteRequest(
            session_id=session_id,
            user_id=user_id,
            agent_id=agent_id,
            request_id=request_id or new_uuid7(),
            task_id=task_id,
            text=text,
            author=author,
        )
        return await self._call(self._open().AddNote, request, timeout, info)

    async def list_notes(
        self,
        session_id: str,
        *,
        agent_id: str = "",
        user_id: str = "",
        timeout: Seconds | None = None,
        info: CallInfo | None = None,
    ) -> pb.ListNotesResponse:
        """Return the latest notes about a conversation, at most 32, the oldest first.

        Raises UnknownSession, InvalidField, OwnerMismatch, ScopeMissing, SessionErased,
        Unimplemented, StateCorrupt, Unavailable, DeadlineExceeded, Overloaded.
        """
        request = pb.ListNotesRequest(session_id=session_id, user_id=user_id, agent_id=agent_id)
        return await self._call(self._open().ListNotes, request, timeout, info)
