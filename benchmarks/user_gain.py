"""What users gain: how long a follow-up message takes to reach the agent that it is for.

The simulated supervisor takes SUPERVISOR_S to decide. Threads of three and more messages are played
twice against the service: as it is, and with stickiness off, where every message goes to the
supervisor, as in a chat without this service. Only messages after the first of a thread count: the
first one goes to the supervisor either way.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass, field
from typing import Final

from agent_routing import AsyncClient, outcomes
from benchmarks import service, talk
from benchmarks.figure import Figure, Scale
from benchmarks.story import AGENT_TEXT, HANDOFF_TEXT, SPECIALIST, SUPERVISOR, USER_TEXT

SUPERVISOR_S: Final = 0.15
MESSAGES: Final = (3, 5, 10)
"""Of a thread, in turn."""

AT_ONCE: Final = 8
REDUCTION_LEAST: Final = 0.8


@dataclass
class Seen:
    """What one way of routing did."""

    first_s: list[float] = field(default_factory=list)
    follow_up_s: list[float] = field(default_factory=list)
    supervisor_calls: int = 0
    messages: int = 0


def measure(scale: Scale) -> list[Figure]:
    """Return followup_latency_reduction."""
    sticky, asked = Seen(), Seen()
    with (
        service.server() as with_it,
        service.server_process("", "--stickiness", "disabled") as (without, _),
    ):
        # Alternating, so that other load on the machine affects both.
        for number in range(scale.threads // AT_ONCE + 1):
            asyncio.run(_threads(with_it, number, sticky))
            asyncio.run(_threads(without, number, asked))
    rounds = {
        "with stickiness ms": [value * 1e3 for value in sticky.follow_up_s],
        "by the supervisor ms": [value * 1e3 for value in asked.follow_up_s],
    }
    medians = {name: statistics.median(values) for name, values in rounds.items()}
    reduction = 1 - medians["with stickiness ms"] / medians["by the supervisor ms"]
    return [
        Figure(
            "followup_latency_reduction",
            reduction,
            "of the time",
            REDUCTION_LEAST,
            rounds=rounds,
            beside={
                "supervisor calls with stickiness": sticky.supervisor_calls,
                "supervisor calls without": asked.supervisor_calls,
                "messages": sticky.messages,
                "calls saved": round(1 - sticky.supervisor_calls / asked.supervisor_calls, 3),
            },
        )
    ]


async def _threads(address: str, number: int, seen: Seen) -> None:
    async with AsyncClient(address) as client:
        await asyncio.gather(
            *(
                _thread(client, session, MESSAGES[(number + place) % len(MESSAGES)], seen)
                for place, session in enumerate(talk.names(AT_ONCE))
            )
        )


async def _thread(client: AsyncClient, session: str, messages: int, seen: Seen) -> None:
    for place in range(messages):
        begun_s = time.perf_counter()
        routed = await client.route(USER_TEXT, session_id=session, user_id="user")
        dispatch = routed.dispatch
        assert dispatch is not None
        if dispatch.agent.agent_id == SUPERVISOR:
            seen.supervisor_calls += 1
            await asyncio.sleep(SUPERVISOR_S)
            completed = await client.complete_turn(
                session_id=session,
                request_id=dispatch.request_id,
                agent_id=SUPERVISOR,
                text=HANDOFF_TEXT,
                outcome=outcomes.handoff(SPECIALIST),
            )
            dispatch = completed.next
        taken_s = time.perf_counter() - begun_s
        (seen.follow_up_s if place else seen.first_s).append(taken_s)
        seen.messages += 1
        await client.complete_turn(
            session_id=session,
            request_id=dispatch.request_id,
            agent_id=SPECIALIST,
            text=AGENT_TEXT,
            outcome=outcomes.proceed(),
        )
