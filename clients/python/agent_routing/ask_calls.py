# Generated from ask_calls_aio.py by scripts/make_sync.py. Do not edit.
"""ask() and ask_parts(): a message, and its answer by the workers of agents with inboxes."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any

from agent_routing.asking import (
    ASK_S_DEFAULT,
    ASK_TURNS,
    AnswerParts,
    Asked,
    AskedPart,
    Asking,
    check_inbox,
)
from agent_routing.calls import CallInfo
from agent_routing.errors import RoutingError, StoreFormat
from agent_routing.ids import new_uuid7
from agent_routing.messages import routing_service_pb2 as pb
from agent_routing.messages import turn_pb2
from agent_routing.plain_values import Seconds, positive_seconds
from agent_routing.route_result import RouteResult
from agent_routing.routing_calls import RoutingCalls


class AskCalls(RoutingCalls):
    """What a frontend calls that carries no turn itself."""

    def ask(
        self,
        text: str,
        *,
        session_id: str,
        user_id: str = "",
        request_id: str = "",
        wait: Seconds = ASK_S_DEFAULT,
        **fields: Any,
    ) -> Asked:
        """Route a message to agents with inboxes, and return what became of it.

        Waits as long as one of them may still answer; after a handoff, for the next agent too. A
        command is answered at once. Returns also as soon as no answer can come, or people have to
        act first: see Asked.outcome.

        session_id: required, so that a repeat finds the session. request_id: with the same one a
        repeat waits for the same turn. wait: how long, in seconds; while the service is away, the
        client connects again and goes on waiting. fields: the other arguments of route(), such as
        locale, channel and items.

        Raises NoAnswerYet, a TimeoutError, after wait: the turn goes on; ask again with the
        error's request_id. NoInbox, a ValueError, if the agent has no inbox: carry the turn, which
        route() with the error's request_id returns. What route(), status() and list_turns() raise,
        each with request_id: Unavailable if the service cannot be reached at first, as an inbox
        needs it, or is away when wait is over.
        """
        given = {"session_id": session_id, "user_id": user_id, "request_id": request_id, **fields}
        with closing(self._answer(text, wait, given)) as parts:
            for part in parts:
                if part.asked is not None:
                    return part.asked
        raise AssertionError("the last part has the answer")

    def ask_parts(
        self,
        text: str,
        *,
        session_id: str,
        user_id: str = "",
        request_id: str = "",
        wait: Seconds = ASK_S_DEFAULT,
        **fields: Any,
    ) -> Iterator[AskedPart]:
        """Ask as ask() does, and yield the answer as it is written, with notes for the user.

        Parts are best effort; those of the whole answer that did not come before come at its end,
        and a part with replaces set stands for everything of its request so far. The last part has
        asked, which is what ask() returns. Agents that send no parts come as one part.

        Arguments and errors: as of ask().
        """
        given = {"session_id": session_id, "user_id": user_id, "request_id": request_id, **fields}
        return self._answer(text, wait, given, pb.WATCH_INCLUDE_DELTAS, pb.WATCH_INCLUDE_NOTES)

    def _answer(
        self, text: str, wait: Seconds, given: dict[str, Any], *include: pb.WatchInclude.ValueType
    ) -> Generator[AskedPart]:
        """Yield the parts of an answer; the last one has asked."""
        wait_s = positive_seconds("wait", wait)
        until_s = time.monotonic() + wait_s
        routed, replayed = self._ask(text, given)
        asking = Asking(
            routed, given["user_id"], (wait_s, until_s), replayed=replayed, include=include
        )
        if asking.is_done():
            yield AskedPart(asking.asked.text, request_id=routed.request_id, asked=asking.asked)
            return
        if routed.reply_text:
            yield AskedPart(routed.reply_text, request_id=routed.request_id)
        parts = AnswerParts()
        while True:
            try:
                self._look(asking)
                parts.know(asking.turns)
                if asking.is_done():
                    break
                # The stream stays open while the session is read, so that no part is lost.
                with closing(self._live(asking.watched, asking.begin_watch_s())) as live:
                    for response in live:
                        if asking.received(response):
                            self._look(asking)
                            parts.know(asking.turns)
                        parts.take(response)
                        for part in parts.ready():
                            yield part
                        if asking.is_done():
                            break
            except RoutingError as error:
                asking.failed(error)
            if asking.is_done():
                break
            time.sleep(asking.pause_s(self._settings.retry))
        for part in parts.rest(asking.asked):
            yield part

    def _ask(self, text: str, given: dict[str, Any]) -> tuple[RouteResult, bool]:
        """Route a message to inboxes; also say whether an earlier call had sent it.

        Raises NoInbox for a turn that the caller has to carry.
        """
        info = given.get("info") or CallInfo()
        given |= {"info": info, "request_id": given["request_id"] or new_uuid7()}
        try:
            routed = self.route(text, deliver="INBOX", **given)
        except StoreFormat:
            # Agents with inboxes can be asked all the same.
            routed = self.route(text, **given)
        if routed.error is not None:
            raise routed.error
        if routed.dispatch is not None:
            check_inbox(routed.dispatch)
        # An attempt of this very call may be the earlier one, so a repeat within it says nothing.
        return routed, routed.replayed and info.attempts == 1

    def _look(self, asking: Asking) -> None:
        """Read what became of a message."""
        session_id, user_id = asking.watched.session_id, asking.watched.user_id
        # First: a turn that is open now is in the history that is read next.
        state = self.status(session_id, user_id=user_id)
        turns: list[turn_pb2.Turn] = []
        page_token = ""
        while True:
            page = self.list_turns_page(
                session_id,
                user_id=user_id,
                order="NEWEST_FIRST",
                page_size=ASK_TURNS,
                page_token=page_token,
            )
            turns += page.turns
            page_token = page.next_page_token
            if not page_token or asking.is_found(turns, state):
                break
        asking.look(state, turns)

    @abstractmethod
    def _live(
        self, request: pb.WatchSessionRequest, timeout_s: float
    ) -> Generator[pb.WatchSessionResponse]:
        """Yield what one connection of a watch brings, until its time is up or it fails."""
