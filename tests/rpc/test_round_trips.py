"""What a turn costs in round trips to the store's server, counted on the wire."""

from collections import Counter

import pytest

from tests.engines.counting_line import PostgresReader, RedisReader, counting_line
from tests.rpc.live_service import serving

TURNS = 20

BY_TIME = {
    "postgres": ("agent_routing.settings", "pg_notify", "agent_routing.write_probe"),
    "redis": ("HGET", "HELLO"),
}
"""Round trips that come by the clock and not with each change: the switch of stickiness (twice a
second), hints to other replicas (at most 50 a second), the readiness probe."""


@pytest.fixture(params=["postgres", "redis"])
async def line_and_url(request):
    """A line to an engine that counts, with the store's URL through it."""
    if request.param == "postgres":
        server = request.getfixturevalue("own_postgres")
        url, reader = server.url(query="sslmode=disable"), PostgresReader
    else:
        server = request.getfixturevalue("own_redis")
        url, reader = server.url(), RedisReader
    async with counting_line(server.port, reader) as line:
        yield request.param, line, url.replace(f":{server.port}/", f":{line.port}/")


def kind_of(engine, trip):
    """What a round trip was for: an append, something by the clock, or itself."""
    if engine == "postgres" and len(trip) == 1 and "append_group(" in trip[0]:
        return "append"
    if engine == "redis" and len(trip) == 3 and trip[0].startswith("EVALSHA"):
        return "append" if trip[1:] == ["SET", "WAITAOF"] else trip
    if trip and all(any(name in asked for name in BY_TIME[engine]) for asked in trip):
        return "by time"
    return " | ".join(trip)


async def test_each_call_of_a_steady_turn_is_one_round_trip(line_and_url, tmp_path):
    """The append checks the revision and waits for the disk: nothing is read before or after it."""
    engine, line, url = line_and_url
    async with serving(tmp_path, "tax", store=url) as service:
        chat = service.chat()
        for _ in range(3):
            # Until the session is known, and the driver has prepared its statements.
            routed = await chat.say("how much tax?")
            await chat.answer(routed.dispatch, "a lot")
        line.round_trips.clear()
        for _ in range(TURNS):
            routed = await chat.say("how much tax?")
            await chat.answer(routed.dispatch, "a lot")
        counted = Counter(kind_of(engine, trip) for trip in line.round_trips if trip)
    counted.pop("by time", None)
    assert counted == {"append": 2 * TURNS}
