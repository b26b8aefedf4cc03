"""The pipe to the process of a replay, on the server's own event loop."""

from __future__ import annotations

import asyncio

import pytest

from routing_service.rpc.admin import replay_runs
from routing_service.server.event_loop import loop_factory

WAIT_S = 60


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, loop_factory()])
def test_a_process_that_has_ended_is_no_fault_of_who_sends_to_it(factory):
    """It is the operating system's when memory runs out; its reader says so."""

    async def run() -> str:
        process = replay_runs._Process()
        await process.start()
        process.kill()
        said = await process.why_ended()
        # The loop closes the pipe some time after the process has ended.
        async with asyncio.timeout(WAIT_S):
            while not process._writer.is_closing():
                await process.send(b"x" * 100_000)
                await asyncio.sleep(0.01)
        await process.send(b"x")
        await process.ended()
        return said

    with asyncio.Runner(loop_factory=factory) as runner:
        assert "its process was killed" in runner.run(run())
