"""The client's watch of all sessions, over restarts of the server."""

import asyncio
import signal

import pytest

from agent_routing import AsyncAdmin, AsyncClient, errors

WAIT_S = 40


@pytest.mark.timeout(150)
@pytest.mark.parametrize("ended_by", [signal.SIGTERM, signal.SIGKILL])
async def test_watch_of_all_sessions_goes_on_where_the_last_server_ended(
    serve_process, tmp_path, ended_by
):
    """Every change arrives at least once, in order within a session, without an error."""
    listen = f"unix:{tmp_path / 's'}"
    running = await serve_process(listen=listen)
    seen: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
    async with AsyncAdmin(running.address, fallback=None, timeout=30) as client:

        async def watch():
            async for message in client.watch_events(from_beginning=True, away_timeout=WAIT_S):
                seen.put_nowait((message.change.session_id, message.change.revision))

        async def next_new():
            async with asyncio.timeout(WAIT_S):
                while (found := await seen.get()) in told:
                    pass
            told.append(found)
            return found

        told: list[tuple[str, int]] = []
        watching = asyncio.create_task(watch())
        await client.route("hola", session_id="one", user_id="ana")
        await client.route("hola", session_id="two", user_id="ana")
        assert sorted([await next_new(), await next_new()]) == [("one", 1), ("two", 1)]
        running.send(ended_by)
        await running.end()
        running = await serve_process(listen=listen)
        # Another client with its own connection: the watch's may still be waiting to reconnect.
        own = [("grpc.use_local_subchannel_pool", 1)]
        async with AsyncClient(running.address, fallback=None, timeout=30, options=own) as talking:
            await talking.route("hola", session_id="one", user_id="ana")
            assert await next_new() == ("one", 2)
            await talking.route("hola", session_id="two", user_id="ana")
            assert await next_new() == ("two", 2)
        assert not watching.done()
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching


@pytest.mark.timeout(120)
async def test_watch_of_all_sessions_gives_up_when_nobody_comes_back(serve_process, tmp_path):
    """After away_timeout, with an error that says so."""
    running = await serve_process(listen=f"unix:{tmp_path / 's'}")
    async with AsyncAdmin(running.address, fallback=None, timeout=30) as client:
        await client.route("hola", session_id="one", user_id="ana")
        watching = client.watch_events(from_beginning=True, away_timeout=1)
        async with asyncio.timeout(WAIT_S):
            assert (await anext(watching)).change.session_id == "one"
            running.send(signal.SIGKILL)
            with pytest.raises(errors.Unavailable):
                await anext(watching)
