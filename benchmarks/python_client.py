"""The load of a busy gateway, by the Python client that its users have."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import cast

from agent_routing import AsyncClient
from benchmarks.figure import Scale
from benchmarks.story import USER_TEXT

MESSAGES_PER_SESSION = 5


def play(address: str, sessions: Sequence[str], scale: Scale, *, by_stream: bool) -> float:
    """Send messages to sessions, so many at once; return how many were answered a second."""
    try:
        from uvloop import run  # noqa: PLC0415 - not on every platform
    except ImportError:
        run = asyncio.run
    return cast("float", run(_play(address, sessions, scale, by_stream=by_stream)))


async def _play(address: str, sessions: Sequence[str], scale: Scale, *, by_stream: bool) -> float:
    async with AsyncExitStack() as opened:
        client = await opened.enter_async_context(AsyncClient(address))
        calls = await opened.enter_async_context(client.stream()) if by_stream else client
        waiting = iter(sessions)

        async def talk() -> None:
            for session in waiting:
                for _ in range(MESSAGES_PER_SESSION):
                    await calls.route(USER_TEXT, session_id=session, user_id="user")

        begun_s = time.perf_counter()
        await asyncio.gather(*(talk() for _ in range(scale.at_once)))
        taken_s = time.perf_counter() - begun_s
    return len(sessions) * MESSAGES_PER_SESSION / taken_s
