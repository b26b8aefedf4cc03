"""A worker of the invoice desk in a process of its own, for worker_stories.

python -m tests.integrations.worker_process MODULE ADDRESS PLACE
"""

from __future__ import annotations

import asyncio
import importlib
import signal
import sys
from pathlib import Path

from agent_routing import AsyncClient
from agent_routing.worker import Worker
from tests.integrations.worker_stories import dying_script

LEASE_S = 4
"""Short, so that the next worker gets the turn soon; a busy machine can keep it."""


async def main(module: str, address: str, place: str) -> None:
    """Serve until SIGTERM."""
    program = importlib.import_module(module)
    async with AsyncClient(address, timeout=20) as client:
        routed = program.approving(client, dying_script(Path(place)), Path(place))
        worker = Worker(client, lease=LEASE_S)
        worker.agent("invoices")(routed.as_agent(options=getattr(program, "WORKER_OPTIONS", None)))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        await worker.serve()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
