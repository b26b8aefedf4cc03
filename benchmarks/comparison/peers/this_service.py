"""A contender: this service, `agent-routing serve` over SQLite, called by its Python client.

As its README shows: route, run the agent, complete_turn, until nothing is dispatched. A repeat is
routed with its request id, and what is still open of it is taken up, as the framework adapters do.
Runs in the project's own environment; the registry is that of the example, unchanged.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripted import (
    ADDRESS,
    Decision,
    HandOver,
    LookUp,
    Say,
    Seen,
    Story,
    decide,
    look_up,
    main,
)

from agent_routing import Client, errors, outcomes
from agent_routing.v1.dispatch_pb2 import Dispatch

USER = "ana"
CHANNEL = "web"


class ThisService:
    """The story's agents, as functions of this program."""

    async def open(self, story: Story, folder: Path) -> None:
        """Connect."""
        del folder
        self.story = story
        self.client = Client(os.environ[ADDRESS])

    async def send(self, session: str, text: str, request_id: str) -> Mapping[str, Any]:
        """Route the message and let the agents answer."""
        routed = self.client.route(
            text,
            session_id=session,
            user_id=USER,
            channel=CHANNEL,
            locale="en",
            request_id=request_id or None,
        )
        told = {"reason": routed.reason, "replayed": routed.replayed}
        dispatch = routed.dispatch
        if routed.replayed:
            # The handoffs of the first try stand: its open request is with the agent that has it.
            still_open = self.client.status(session, user_id=USER).open_requests
            dispatch = next((each for each in still_open if each.text == routed.text), None)
            if dispatch is None:
                turns = self.client.list_turns(session, user_id=USER)
                said = [each.agent_text for each in turns if each.user_text == routed.text]
                return {**told, "answer": said[-1]}
        return {**told, **self._answer(session, dispatch)}

    def _answer(self, session: str, dispatch: Dispatch | None) -> Mapping[str, Any]:
        told: dict[str, Any] = {"answer": ""}
        while dispatch is not None and dispatch.request_id:
            decision = self._decide(session, dispatch, result="")
            if isinstance(decision, LookUp):
                decision = self._decide(session, dispatch, result=look_up())
            try:
                done = self._complete(session, dispatch, decision)
            except errors.HandoffRefused as refused:
                told["refused"] = refused.message
                decision = self._decide(session, dispatch, result=refused.message)
                done = self._complete(session, dispatch, decision)
            told["answer"] = done.text
            told["outcome"] = int(done.outcome_status)
            dispatch = done.next if done.next.request_id else None
        return told

    def _decide(self, session: str, dispatch: Dispatch, result: str) -> Decision:
        del session
        seen = Seen(
            text=dispatch.text,
            speaker=next(
                (
                    each.agent_id
                    for each in reversed(dispatch.history)
                    if each.agent_id in self.story.specialists
                ),
                "",
            ),
            result=result,
            targets=self.story.handoffs[dispatch.agent.agent_id],
            messages=len(dispatch.history) + 1,
        )
        return decide(self.story, dispatch.agent.agent_id, seen)

    def _complete(self, session: str, dispatch: Dispatch, decision: Decision) -> Any:
        match decision:
            case HandOver(completes=True):
                outcome: Any = outcomes.complete(summary="done")
            case HandOver():
                outcome = outcomes.handoff(decision.target)
            case Say(completes=True):
                outcome = outcomes.complete(summary="done")
            case Say(asks=True):
                outcome = outcomes.follow_up()
            case _:
                outcome = outcomes.proceed()
        return self.client.complete_turn(
            session,
            dispatch.request_id,
            dispatch.agent.agent_id,
            outcome,
            text=decision.text,
            user_id=USER,
        )

    async def resume(self, session: str, text: str, request_id: str) -> Mapping[str, Any]:
        """Send the message again, with its request id."""
        return await self.send(session, text, request_id)

    async def read(self, session: str) -> Mapping[str, Any]:
        """Read the history and the state."""
        turns = list(self.client.list_turns(session, user_id=USER))
        texts: list[str] = []
        for turn in turns:
            # The turns of the agents that a message was handed on to repeat its text.
            own = () if turn.parent_request_id else (turn.user_text,)
            texts += [each for each in (*own, turn.agent_text) if each]
        status = self.client.status(session, user_id=USER)
        open_now = [each.agent.agent_id for each in status.open_requests]
        return {
            "texts": texts,
            "active": status.active_agent.agent_id,
            "unfinished": json.dumps(open_now) if open_now else "",
        }

    async def close(self) -> None:
        """Disconnect."""
        self.client.close()


if __name__ == "__main__":
    main(ThisService())
