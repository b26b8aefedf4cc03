"""Clients with several replicas check health before they call; all replicas may be unhealthy."""

import asyncio
from datetime import timedelta

import agent_routing
from tests.rpc.live_service import serving


async def test_an_outage_of_the_store_keeps_its_reason_where_no_replica_is_asked(tmp_path):
    """After a ten-second outage every replica is NOT_SERVING, and gRPC itself refuses the calls.

    In an earlier version callers then got UNAVAILABLE without a reason and without RetryInfo.
    """
    once = agent_routing.RetryPolicy(attempts_max=1)
    async with serving(tmp_path, "tax") as server:
        address = server.server.address
        client = agent_routing.AsyncClient(
            f"ipv4:{address},{address}", fallback=None, timeout=20, retry=once
        )
        async with client:
            await client.route("hello", session_id="chat", user_id="ana")
            health = server.server._parts.health
            health.set_ready(is_ready=False)
            error = None
            async with asyncio.timeout(20):
                while error is None:
                    try:
                        await client.route("hello", session_id="chat", user_id="ana")
                    except agent_routing.errors.StoreUnavailable as refused:
                        error = refused
            assert (error.code.name, error.reason) == ("UNAVAILABLE", "STORE_UNAVAILABLE")
            assert error.retry_after == timedelta(seconds=0.25)
            assert "repeat with the same request_id" in str(error)
            # Calls succeed again once the replicas are ready.
            health.set_ready(is_ready=True)
        again = agent_routing.AsyncClient(f"ipv4:{address},{address}", fallback=None, timeout=20)
        async with again:
            await again.route("hello", session_id="chat", user_id="ana")
