"""`agent-routing` that reports its tasks and objects on a signal.

TORTURE_COUNTS=/tmp/counts .venv/bin/python -m tests.torture.counted_server serve …

SIGUSR1 writes the number of tasks, and of objects that Python's collector knows after it has looked
for garbage, to that file, on a line of its own.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from pathlib import Path
from typing import Any

from routing_service.cli import main
from routing_service.server import process

_serve = process.serve


async def serve_and_count(*given: Any, **more: Any) -> None:
    """Run the normal command."""
    out = Path(os.environ["TORTURE_COUNTS"])

    def write() -> None:
        gc.collect()
        with out.open("a", encoding="ascii") as file:
            file.write(f"{len(asyncio.all_tasks())} {len(gc.get_objects())}\n")

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, write)
    await _serve(*given, **more)


if __name__ == "__main__":
    process.serve = serve_and_count
    main()
