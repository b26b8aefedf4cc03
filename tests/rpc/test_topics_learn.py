"""agent-routing topics learn, on a store that a real server has filled."""

import asyncio
import json
import sys

import pytest

from routing_service.registry.file import load_registry
from tests.rpc.live_service import serving
from tests.scripted_topics import ScriptedModel

DESK = """
api_version: agent_routing/v1
version: learn-1
supervisor: front
default_locale: en
topics: {mode: suggest, threshold: 0.5}
agents:
  - {id: front, name: Front desk}
  - {id: sales, name: Sales, description: What we sell., user_selectable: true}
  - {id: support, name: Support, description: Help., user_selectable: true}
"""
SESSIONS = 24


@pytest.fixture
def learned_from(tmp_path, monkeypatch, capsys):
    """Return what fills a store with conversations and runs the command on it."""

    def run(talk, *argv):
        async def fill():
            async with serving(tmp_path, DESK, model=ScriptedModel()) as service:
                for number in range(SESSIONS):
                    await talk(await service.chat(f"learn-{number}").with_agent("sales"), number)

        from routing_service.cli import main  # noqa: PLC0415 - as the command starts

        asyncio.run(fill())
        capsys.readouterr()  # What the server has said.
        given = ["--store", f"sqlite:///{tmp_path / 'routing.db'}"]
        given += ["--agents", str(tmp_path / "agents.yaml")]
        given += ["--detector", "tests.scripted_topics:ScriptedModel", *argv]
        monkeypatch.setattr(sys, "argv", ["agent-routing", "topics", "learn", *given])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code, *capsys.readouterr())

    return run


async def answer_offer(chat, number):
    """Offered support, five of six users stay; each says something else before and after."""
    offered = await chat.say(f"#support=0.6 I ask you number {number} again")
    await chat.answer(offered.dispatch, "let me see")
    accepts = number % 6 == 0
    option = offered.suggestion.options[0 if accepts else 1]
    moved = await chat.say("x", quick_reply_id=option.id)
    if moved.HasField("dispatch"):
        await chat.answer(moved.dispatch, "gladly")
    await chat.answer((await chat.say("thank you")).dispatch, "welcome")


async def test_declined_offers_are_learned_from(learned_from, tmp_path):
    """First what to expect, then a file that does nothing until the registry names it."""
    code, out, err = await asyncio.to_thread(learned_from, answer_offer)
    assert (code, err) == (0, "")
    assert "offer 24" in out
    assert "as it is" in out
    assert "number 1" not in out
    agents = tmp_path / "agents.yaml"
    path = tmp_path / "agents.learned.yml"
    assert f"wrote {path}" in out
    assert load_registry(agents).topics.stay_offset == 0.0
    agents.write_text(DESK + "learned_file: agents.learned.yml\n", "utf-8")
    assert load_registry(agents).topics.stay_offset > 0
    # An offer that most users decline is no longer made.
    async with serving(tmp_path, agents.read_text("utf-8"), model=ScriptedModel()) as service:
        chat = await service.chat("later").with_agent("sales")
        assert not (await chat.say("#support=0.6 I ask again")).HasField("suggestion")


async def leave_by_command(chat, number):
    """The detector says that a message stays; the user goes to support right after."""
    await chat.answer((await chat.say(f"it makes noise number {number}")).dispatch, "no idea")
    await chat.say("/agent support")


async def test_commands_away_from_an_agent_propose_examples(learned_from, tmp_path):
    """With --examples alone: they are users' own messages."""
    code, out, err = await asyncio.to_thread(learned_from, leave_by_command, "--json")
    told = json.loads(out)
    assert (code, err) == (0, "")
    assert told["shown_by"]["command"] == SESSIONS
    assert told["examples"] == {}
    code, out, err = await asyncio.to_thread(learned_from, leave_by_command, "--examples", "--json")
    told = json.loads(out)
    assert (code, err) == (0, "")
    assert told["examples"] == {"sales": 1, "support": 10}
    assert told["examples_after"]["messages"] == told["messages"]
    written = (tmp_path / "agents.learned.yml").read_text("utf-8")
    assert "it makes noise number" in written


async def test_few_conversations_teach_nothing(learned_from):
    """Two numbers fit anything."""

    async def say_nothing(_chat, _number):
        pass

    code, out, err = await asyncio.to_thread(learned_from, say_nothing)
    assert (code, out) == (1, "")
    assert "learning needs 40" in err
