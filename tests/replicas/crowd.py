"""Many concurrent clients in the same few sessions, through any replica.

Owns the clients' calls and the answers they got. Each call is made once; retries are left to the
client library.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from agent_routing import AsyncClient, RoutingError, outcomes
from agent_routing.v1.routing_service_pb2 import ClearActiveAgentResponse
from routing_service.ids import new_uuid7
from tests.torture.recorder import REFUSALS, RecordedClient, Recorder

AGENTS: Final = ("sales", "support", "asks_only", "interrupts", "front")

DISPATCHES_KEPT_MAX: Final = 4
"""Open requests of a session that somebody may answer: the latest."""

Send = Callable[[RecordedClient], Awaitable[Any]]


@dataclass
class Talk:
    """One session as all its clients know it."""

    session_id: str
    dispatches: deque[Any] = field(default_factory=lambda: deque(maxlen=DISPATCHES_KEPT_MAX))
    answered: deque[Send] = field(default_factory=lambda: deque(maxlen=20))


@dataclass
class Crowd:
    """The clients, their sessions, and the results.

    errors: unexpected errors that clients got after their retries. refused: calls that the rules
    refused, which is an answer.
    """

    clients: list[AsyncClient]
    dice: random.Random
    recorder: Recorder = field(default_factory=Recorder)
    errors: list[RoutingError] = field(default_factory=list)
    refused: int = 0
    answered: int = 0
    repeated: int = 0
    pause_after_error_s: float = 0.0

    async def round(self, name: str, *, sessions: int, steps: int) -> None:
        """Let every client do that many turns in new sessions."""
        talks = [Talk(f"{name}-{number}") for number in range(sessions)]
        await asyncio.gather(
            *(
                self._talk(self.recorder.wrap(client, f"client-{place}"), talks, steps)
                for place, client in enumerate(self.clients)
            )
        )

    async def _talk(self, client: RecordedClient, talks: list[Talk], steps: int) -> None:
        dice = random.Random(self.dice.random())
        for _ in range(steps):
            talk = dice.choice(talks)
            kind = dice.random()
            if kind < 0.10:
                await self._make(lambda c, t=talk: c.status(t.session_id), client)
            elif kind < 0.16 and talk.answered:
                if await self._make(dice.choice(talk.answered), client) is not None:
                    self.repeated += 1
            else:
                await self._change(self._any_write(dice, talk), client, talk)

    async def _change(self, send: Send, client: RecordedClient, talk: Talk) -> None:
        answer = await self._make(send, client)
        if answer is None:
            return
        if not isinstance(answer, ClearActiveAgentResponse):
            # A clear without effect uses up no request id: sent again after its answer, it is a new
            # clear.
            talk.answered.append(send)
        for name in ("dispatch", "next"):
            dispatch = getattr(answer, name, None)
            if dispatch is not None and dispatch.request_id:
                talk.dispatches.append(dispatch)

    async def _make(self, send: Send, client: RecordedClient) -> Any:
        try:
            answer = await send(client)
        except RoutingError as error:
            conflicts_persist = error.reason == "REVISION_MISMATCH"
            if error.code in REFUSALS and not conflicts_persist:
                self.refused += 1
            else:
                self.errors.append(error)
                await asyncio.sleep(self.pause_after_error_s)
            return None
        self.answered += 1
        return answer

    def _any_write(self, dice: random.Random, talk: Talk) -> Send:
        kind, given = dice.random(), {"request_id": new_uuid7()}
        if talk.dispatches and kind < 0.45:
            dispatch = talk.dispatches.popleft()
            outcome = dice.choice(
                [
                    outcomes.proceed(),
                    outcomes.follow_up(),
                    outcomes.complete(),
                    outcomes.handoff(dice.choice(AGENTS)),
                ]
            )
            return lambda client: client.complete_turn(
                talk.session_id,
                dispatch.request_id,
                dispatch.agent.agent_id,
                outcome,
                text="so it is",
            )
        if kind < 0.82:
            text = dice.choice(["hello", "and then?", "/status", "/supervisor go on", "more"])
            turns = dice.choice([-1, -1, 2])
            return lambda client: client.route(
                text, session_id=talk.session_id, history_turns=turns, **given
            )
        if kind < 0.93:
            agent_id = dice.choice(AGENTS)
            return lambda client: client.set_active_agent(talk.session_id, agent_id, **given)
        return lambda client: client.clear_active_agent(talk.session_id, **given)
