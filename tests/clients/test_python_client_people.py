"""What a user of ask() sees of people: what they said on the way, and then the answer."""

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


async def test_ask_shows_what_a_person_said_before_the_answer(tmp_path):
    """A user reads it in the order in which it was written."""
    async with (
        serving(tmp_path, PEOPLE, store="memory:") as service,
        AsyncClient(service.server.address, fallback=None) as client,
    ):
        await client.set_active_agent("p-1", "desk", user_id="ana")
        message = {"session_id": "p-1", "user_id": "ana"}
        asked = await client.ask("My parcel is lost", **message)
        assert (asked.outcome, asked.claimed, asked.text) == ("WITH_PEOPLE", False, "")
        at = {"session_id": "p-1", "agent_id": "desk"}
        await client.claim_turn(**at, claimant="bea")
        await client.say("One moment.", **at, request_id=asked.request_id)
        message |= {"request_id": asked.request_id}
        again = await client.ask("My parcel is lost", **message)
        assert (again.outcome, again.claimed, again.text) == ("WITH_PEOPLE", True, "One moment.")
        await client.complete_turn(
            "p-1", asked.request_id, "desk", outcomes.proceed(), text="It is on its way."
        )
        again = await client.ask("My parcel is lost", **message)
        assert (again.outcome, again.replayed) == ("PROCEED", True)
        assert again.text == "One moment.\n\nIt is on its way."
