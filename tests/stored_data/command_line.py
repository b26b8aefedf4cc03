"""Runs the command as a separate process, as an operator does next to a server.

Owns starting it and waiting for its end.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

END_TIMEOUT_S = 50


async def command(*argv: object) -> tuple[int | None, str, str]:
    """Run it to its end: (exit code, stdout, stderr)."""
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).parent / "agent-routing"),
        *map(str, argv),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), END_TIMEOUT_S)
    return process.returncode, out.decode(), err.decode()
