"""A worker process for the kill tests: two agents that hand over, and a log of what they began.

    python -m tests.torture.inbox_worker ADDRESS LOG LEASE_S NAME

Each line of the log is "TIME_S REQUEST_ID ATTEMPT", by the clock that all processes share.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time

from agent_routing import AsyncClient, RetryPolicy, outcomes
from agent_routing.outcomes import Answer
from agent_routing.worker import InboxTurn, Worker

WORK_S_MAX = 0.2
HANDS_OVER = 0.3


async def main() -> None:
    """Serve until killed."""
    address, log, lease_s, name = sys.argv[1:]
    retry = RetryPolicy(attempts_max=5, backoff_first_s=0.02, backoff_max_s=0.3)
    options = [("grpc.max_reconnect_backoff_ms", 200)]
    async with AsyncClient(address, retry=retry, options=options, timeout=20) as client:
        worker = Worker(client, worker_id=name, concurrency=4, lease=float(lease_s))
        with open(log, "a", buffering=1, encoding="utf-8") as lines:  # noqa: ASYNC230, PTH123

            async def begin(turn: InboxTurn) -> None:
                lines.write(f"{time.monotonic()} {turn.request_id} {turn.attempt}\n")
                await asyncio.sleep(random.random() * WORK_S_MAX)

            @worker.agent("front")
            async def front(turn: InboxTurn) -> Answer:
                await begin(turn)
                if random.random() < HANDS_OVER:
                    return Answer(f"front: {turn.text}", outcomes.handoff("vat"))
                return Answer(f"front: {turn.text}", outcomes.proceed())

            @worker.agent("vat")
            async def vat(turn: InboxTurn) -> Answer:
                await begin(turn)
                return Answer(f"vat: {turn.text}", outcomes.complete())

            await worker.serve()


asyncio.run(main())
