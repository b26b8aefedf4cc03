"""The answer of a worker's turn: given under the turn's lease, and at most once.

Rule: an answer that the service refuses leaves the turn open, so that the function can give
another.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from agent_routing.aio import AsyncClient
from agent_routing.errors import (
    DeadlineExceeded,
    LeaseLost,
    Overloaded,
    RequestNotOpen,
    RoutingError,
    Unavailable,
)
from agent_routing.outcomes import Answer
from agent_routing.turn_reports import TurnReports, fitting
from agent_routing.v1 import routing_service_pb2 as pb

AGAIN_S: Final = 1.0
"""The pause before an answer is sent again to a service that was away."""


@dataclass(slots=True)
class TurnAnswer:
    """The answer of one turn. reports: of the same turn; what they have not sent goes with it."""

    client: AsyncClient
    item: pb.InboxItem
    reports: TurnReports
    is_given: bool = field(default=False, init=False)
    """Whether the service has stored the answer."""

    async def give(self, answer: Answer) -> pb.CompleteTurnResponse:
        """Report the answer, for as long as it takes.

        Raises LeaseLost or RequestNotOpen if the turn is no longer this worker's, and what
        complete_turn() raises for an answer that is refused; RuntimeError for a second answer.
        """
        if self.is_given:
            raise RuntimeError(f"request {self.item.dispatch.request_id} is answered already")
        steps = fitting([*await self.reports.finish(), *answer.steps])
        while True:
            try:
                answered = await self.client.complete_turn(
                    self.item.session_id,
                    self.item.dispatch.request_id,
                    self.item.dispatch.agent.agent_id,
                    answer.outcome,
                    text=answer.text,
                    items=answer.items,
                    steps=steps,
                    lease_token=self.item.lease_token,
                )
            except (Unavailable, DeadlineExceeded, Overloaded):
                await asyncio.sleep(AGAIN_S)
            except (LeaseLost, RequestNotOpen):
                raise
            except RoutingError:
                self.reports.go_on()
                raise
            else:
                self.is_given = True
                return answered
