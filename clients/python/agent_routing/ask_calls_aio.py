"""ask() and ask_parts(): a message, and its answer by the workers of agents with inboxes."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import AsyncIterator
from typing import Any

from agent_routing.asking import (
    ASK_S_DEFAULT,
    ASK_TURNS,
    ASK_WATCH_S,
    AnswerParts,
    Asked,
    AskedPart,
    chain_of,
    check_inbox,
    is_open,
    no_answer_yet,
)
from agent_routing.errors import StoreFormat
from agent_routing.ids import new_uuid7
from agent_routing.messages import routing_service_pb2 as pb
from agent_routing.messages import turn_pb2
from agent_routing.plain_values import Seconds, positive_seconds
from agent_routing.route_result import RouteResult
from agent_routing.routing_calls_aio import AsyncRoutingCalls


class AsyncAskCalls(AsyncRoutingCalls):
    """What a frontend calls that carries no turn itself."""

    async def ask(
        self,
        text: str,
        *,
        session_id: str,
        user_id: str = "",
        request_id: str = "",
        wait: Seconds = ASK_S_DEFAULT,
        **fields: Any,
    ) -> Asked:
        """Route a message to agents with inboxes, wait for their answer, and return it.

        The whole chain is waited for: after a handoff, the answer of the next agent too. A command
        is answered at once.

        session_id: required, so that a repeat finds the session. request_id: with the same one a
        repeat waits for the same turn. wait: how long, in seconds. fields: the other arguments of
        route(), such as locale, channel and items.

        Raises ValueError if the agent has no inbox: then route() the message and carry it; the
        turn is open, and route() with the request_id in the message returns its dispatch.
        TimeoutError after wait: the turn goes on; ask again with the request_id in the message.
        Unavailable if the service cannot be reached: an inbox needs it. What route(), status()
        and list_turns() raise.
        """
        wait_s = positive_seconds("wait", wait)
        until_s = time.monotonic() + wait_s
        routed = await self._ask(text, session_id, user_id, request_id, fields)
        if routed.dispatch is None and not routed.queued:
            return Asked(routed)
        watched = pb.WatchSessionRequest(
            session_id=session_id, user_id=user_id, after_revision=routed.revision
        )
        while True:
            turns, is_done = await self._chain(routed.request_id, session_id, user_id)
            if is_done:
                return Asked(routed, turns)
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(no_answer_yet(routed, wait_s))
            revision = await self._next_revision(watched, min(left_s, ASK_WATCH_S))
            watched.after_revision = max(watched.after_revision, revision)

    async def ask_parts(
        self,
        text: str,
        *,
        session_id: str,
        user_id: str = "",
        request_id: str = "",
        wait: Seconds = ASK_S_DEFAULT,
        **fields: Any,
    ) -> AsyncIterator[AskedPart]:
        """Ask as ask() does, and yield the answer as it is written, with notes for the user.

        Parts are best effort; those of the whole answer that did not come before come at its end,
        and a part with replaces set stands for everything of its request so far. The last part has
        asked, which is what ask() returns. Agents that send no parts come as one part.

        Arguments and errors: as of ask().
        """
        wait_s = positive_seconds("wait", wait)
        until_s = time.monotonic() + wait_s
        routed = await self._ask(text, session_id, user_id, request_id, fields)
        if routed.dispatch is None and not routed.queued:
            asked = Asked(routed)
            yield AskedPart(asked.text, asked=asked)
            return
        watched = pb.WatchSessionRequest(
            session_id=session_id,
            user_id=user_id,
            after_revision=routed.revision,
            include=[pb.WATCH_INCLUDE_DELTAS, pb.WATCH_INCLUDE_NOTES],
        )
        parts = AnswerParts(routed.request_id)
        while True:
            turns, is_done = await self._chain(routed.request_id, session_id, user_id)
            if is_done:
                break
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(no_answer_yet(routed, wait_s))
            async for response in self._live(watched, min(left_s, ASK_WATCH_S)):
                if response.HasField("change"):
                    # The stream stays open while this is read, so that no part is lost.
                    watched.after_revision = response.change.revision
                    turns, is_done = await self._chain(routed.request_id, session_id, user_id)
                    parts.know(turns)
                parts.take(response)
                for part in parts.ready():
                    yield part
                if is_done:
                    break
            if is_done:
                break
        for part in parts.rest(Asked(routed, turns)):
            yield part

    async def _ask(
        self, text: str, session_id: str, user_id: str, request_id: str, fields: dict[str, Any]
    ) -> RouteResult:
        """Route a message to inboxes. Raises ValueError for a turn that the caller has to carry."""
        given = {
            "session_id": session_id,
            "user_id": user_id,
            "request_id": request_id or new_uuid7(),
            **fields,
        }
        try:
            routed = await self.route(text, deliver="INBOX", **given)
        except StoreFormat:
            # Agents with inboxes can be asked all the same.
            routed = await self.route(text, **given)
        if routed.error is not None:
            raise routed.error
        if routed.dispatch is not None:
            check_inbox(routed.dispatch)
        return routed

    async def _chain(
        self, request_id: str, session_id: str, user_id: str
    ) -> tuple[tuple[turn_pb2.Turn, ...], bool]:
        """Return what followed from a request so far, and whether all of it was answered."""
        # First: a turn that is open now is in the history that is read next.
        state = await self.status(session_id, user_id=user_id)
        page = await self.list_turns_page(
            session_id, user_id=user_id, order="NEWEST_FIRST", page_size=ASK_TURNS
        )
        turns = chain_of(request_id, page.turns)
        return turns, not is_open(turns, state.open_requests)

    @abstractmethod
    async def _next_revision(self, request: pb.WatchSessionRequest, timeout_s: float) -> int:
        """Wait for the next change after a revision; return its revision, or 0 if none came."""

    @abstractmethod
    def _live(
        self, request: pb.WatchSessionRequest, timeout_s: float
    ) -> AsyncIterator[pb.WatchSessionResponse]:
        """Yield what one connection of a watch brings, until its time is up or it fails."""
