"""What ``topics evaluate`` prints is what a server's users get: the same calls, the same bound."""

from __future__ import annotations

from agent_routing_topics.default_model import load_word_model
from agent_routing_topics.evaluation import UNSURE, judged_messages
from routing_service.registry.file import load_registry
from routing_service.replay.choices import ReplayPolicy, SwitchMode
from routing_service.replay.play import FirstDispatch, Stage, play_dialogue
from routing_service.replay.recorded_dialogue import RecordedDialogue, RecordedTurn
from routing_service.topics.detection import TopicJudge
from tests.rpc.live_service import serving

FILE = """
api_version: agent_routing/v1.1
version: 1
supervisor: desk
default_locale: en
topics: {mode: auto, ask_share: 0.3}
agents:
  - {id: desk, name: Desk}
  - {id: orders, name: Orders, description: Orders of customers and what becomes of them.,
     examples: [Show me order 1042, Where is my parcel?]}
  - {id: stock, name: Stock, description: What is in stock and in which warehouse.,
     examples: [How many blue widgets are in stock?]}
  - {id: invoices, name: Invoices, description: "Invoices, payments and reminders.",
     examples: [Has invoice 77 been paid?]}
"""

SAID = (
    ("orders", "Show me order 1042 please", "It was shipped on Monday. Anything else?", True),
    ("orders", "no thanks, when will it be here", "On Friday.", False),
    ("stock", "and how many green widgets are in stock", "Forty.", False),
    ("stock", "in which warehouse", "In Leeds.", False),
    ("invoices", "has Acme paid its invoice", "Not yet.", False),
    ("orders", "back to the order, cancel it", "Done.", False),
)


def dialogues() -> list[RecordedDialogue]:
    """The same conversation from several places on."""
    found = []
    for first in range(len(SAID) - 1):
        turns = []
        for agent, text, answer, asks in SAID[first:]:
            turns.append(RecordedTurn("user", text, agent))
            turns.append(RecordedTurn("agent", answer, agent, requires_follow_up=asks))
        found.append(RecordedDialogue(f"d{first}", turns, language="en"))
    return found


class Wire:
    """A server's calls over the wire, as a replay makes them."""

    def __init__(self, stub) -> None:
        self._stub = stub

    async def route(self, request):
        """See RoutingService.Route."""
        return await self._stub.Route(request)

    async def complete_turn(self, request):
        """See RoutingService.CompleteTurn."""
        return await self._stub.CompleteTurn(request)


async def test_dispatches_and_bounds_are_those_of_a_server(tmp_path):
    """The figures of a model card were of a path that no user had."""
    path = tmp_path / "agents.yaml"
    path.write_text(FILE)
    registry = load_registry(str(path))
    judge = TopicJudge(load_word_model)
    judge.prepare(registry)
    judge.in_force(registry)
    here = [one async for played in judged_messages(dialogues(), registry, judge) for one in played]
    await judge.close()
    there: list[FirstDispatch] = []
    stage = Stage(ReplayPolicy.STICKY, SwitchMode.AGENT, "desk", "wire")
    async with serving(tmp_path, FILE, model=load_word_model()) as service:
        for dialogue in dialogues():
            _, error = await play_dialogue(dialogue, Wire(service.stub), stage, there)
            assert error == ""
    assert len(here) == len(there) == sum(dialogue.user_turns for dialogue in dialogues())
    for one, other in zip(here, there, strict=True):
        assert (one.dispatched or "desk", one.is_asked) == (
            other.agent_id,
            other.reason == UNSURE,
        )
        assert one.sureness == other.trace.sureness
    assert any(one.is_asked for one in here)
    assert any(one.switched for one in here)
