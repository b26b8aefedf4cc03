"""Clients with random calls that do not give up, for servers that are killed.

Owns the calls, by a seed; every call is repeated with its ids until it is answered or refused. The
recorder keeps answered calls, so that they can be checked afterwards.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

from agent_routing import RoutingError, outcomes
from routing_service.ids import new_uuid7
from tests.torture.recorder import REFUSALS, RecordedClient

AGENTS: Final = ("sales", "support", "asks_only", "interrupts", "front")

REPEATED_MAX: Final = 40
"""Answered calls of each talker that it may send again."""

PAUSE_S: Final = 0.1
"""Before a call is sent again that even the client has given up."""

Send = Callable[[], Awaitable[Any]]


class Talker:
    """One client in one session; several may share a session."""

    def __init__(
        self, client: RecordedClient, session_id: str, seed: object, pause_s: float = PAUSE_S
    ) -> None:
        self.client = client
        self._pause_s = pause_s
        self.session_id = session_id
        self.dice = random.Random(str(seed))
        self.answered = 0
        self._dispatch: Any = None
        self._sent: deque[Send] = deque(maxlen=REPEATED_MAX)

    async def talk(self, stopped: Callable[[], bool]) -> None:
        """Run until stopped."""
        while not stopped():
            await self.step()

    async def step(self) -> None:
        """Make a call of a frontend, an agent or an operator, until it is answered or refused."""
        dice = self.dice.random()
        if dice < 0.05:
            await self._settle(lambda: self.client.status(self.session_id))
        elif dice < 0.08 and self._sent:
            await self._settle(self.dice.choice(self._sent))
        elif self._dispatch is not None and dice < 0.6:
            dispatch, self._dispatch = self._dispatch, None
            answer = await self._write(self._completion(dispatch))
            if answer is not None and answer.HasField("next"):
                self._dispatch = answer.next
        elif dice < 0.9:
            given = {"session_id": self.session_id, "request_id": new_uuid7()}
            text = self.dice.choice(["hello", "and then?", "/status", "/supervisor go on", "more"])
            history_turns = self.dice.choice([-1, -1, -1, 2])
            answer = await self._write(
                lambda: self.client.route(text, history_turns=history_turns, **given)
            )
            if answer is not None:
                self._dispatch = answer.dispatch
        else:
            agent_id, request_id = self.dice.choice(AGENTS), new_uuid7()
            await self._write(
                lambda: self.client.set_active_agent(
                    self.session_id, agent_id, request_id=request_id
                )
            )

    async def repeat_all(self) -> None:
        """Repeat the last answered calls; the recorder compares the answers."""
        for send in tuple(self._sent):
            await self._settle(send)

    def _completion(self, dispatch: Any) -> Send:
        outcome = self.dice.choice(
            [
                outcomes.proceed(),
                outcomes.proceed(),
                outcomes.follow_up(),
                outcomes.complete(),
                outcomes.handoff(self.dice.choice(AGENTS)),
            ]
        )
        return lambda: self.client.complete_turn(
            self.session_id,
            dispatch.request_id,
            dispatch.agent.agent_id,
            outcome,
            text="so it is",
        )

    async def _write(self, send: Send) -> Any:
        """Make a write, and keep it for a repeat if it was answered."""
        answer = await self._settle(send)
        if answer is not None:
            self.answered += 1
            self._sent.append(send)
        return answer

    async def _settle(self, send: Send) -> Any:
        """Send a call until it is answered, or refused (None)."""
        while True:
            try:
                return await send()
            except RoutingError as error:
                if error.code in REFUSALS:
                    return None
            await asyncio.sleep(self._pause_s)
