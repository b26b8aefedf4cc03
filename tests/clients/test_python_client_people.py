"""What a user of ask() sees of people: what they said on the way, and then the answer."""

import asyncio

from agent_routing import AsyncClient, outcomes
from tests.rpc.live_service import serving

PEOPLE = """
api_version: agent_routing/v1
version: people-1
supervisor: front
agents:
  - {id: front, name: Front desk}
  - {id: desk, name: Help desk, kind: human}
"""


async def until_waiting(client):
    """Return what waits for the desk, once something does."""
    while True:
        found = [entry async for entry in client.list_waiting("desk")]
        if found:
            return found[0]
        await asyncio.sleep(0.02)


async def test_ask_shows_what_a_person_said_before_the_answer(tmp_path):
    """A user reads it in the order in which it was written."""
    async with (
        serving(tmp_path, PEOPLE, store="memory:") as service,
        AsyncClient(service.server.address, fallback=None) as client,
    ):
        await client.set_active_agent("p-1", "desk", user_id="ana")
        asking = asyncio.ensure_future(
            client.ask("My parcel is lost", session_id="p-1", user_id="ana", wait=30)
        )
        entry = await asyncio.wait_for(until_waiting(client), 30)
        asked = entry.open_requests[-1]
        at = {"session_id": "p-1", "agent_id": "desk"}
        await client.claim_turn(**at, claimant="bea")
        await client.say("One moment.", **at, request_id=asked.request_id)
        await client.complete_turn(
            "p-1", asked.request_id, "desk", outcomes.proceed(), text="It is on its way."
        )
        assert (await asking).text == "One moment.\n\nIt is on its way."
