"""Instructions for agents' prompts, over a real server."""

import asyncio
import re
import sys

import pytest

from agent_routing.v1 import routing_service_pb2
from routing_service.cli import main
from routing_service.registry.file import check_registry, parse_registry
from routing_service.texts.agent_instructions import agent_instructions
from tests.rpc.live_service import serving
from tests.rpc.registries import DESK

CLIENT_BYTES_MAX = 4 * 1024 * 1024


@pytest.fixture
async def service(tmp_path):
    """A help desk whose agents differ in one thing each."""
    async with serving(tmp_path, DESK) as running:
        yield running


async def listed(service, **fields):
    """List agents, by default with instructions."""
    request = routing_service_pb2.ListAgentsRequest(**({"include_instructions": True} | fields))
    return await service.call("ListAgents", request)


@pytest.mark.parametrize("locale", ["en", "es-MX", "pt", "fr", ""])
async def test_instructions_come_with_the_list_where_they_are_asked_for(service, locale):
    """By agent id, from the registry in use, in the locale of the list."""
    registry = parse_registry(DESK, "desk")
    answer = await listed(service, locale=locale)
    assert dict(answer.instructions) == {
        agent_id: agent_instructions(registry, agent_id, locale) for agent_id in registry.agents
    }
    assert not (await listed(service, include_instructions=False)).instructions


async def test_instructions_are_those_of_the_agents_listed_in_the_sessions_language(service):
    """A filtered list has no texts for the other agents."""
    chat = service.chat()
    await chat.say(locale="es", channel="telephone")
    answer = await listed(
        service, session_id=chat.session_id, user_id=chat.user_id, from_agent_id="owner"
    )
    ids = [agent.agent_id for agent in answer.agents]
    assert ids == ["front", "sales", "interrupts"]
    assert set(answer.instructions) == set(ids)
    assert answer.instructions["sales"].startswith("Eres Ventas")


async def test_agent_that_does_as_it_is_told_is_followed(service):
    """The rules accept every handoff target that the instructions name."""
    answer = await listed(service)
    lines = answer.instructions["owner"].splitlines()
    told = [line.split()[1].rstrip(":") for line in lines if line.startswith("- ")]
    assert told == ["sales", "interrupts"]
    for agent_id in [*told, "front"]:
        chat = await service.chat().with_agent("owner")
        routed = await chat.say("something else")
        tried = await chat.set_active(
            agent_id,
            turn_request_id=routed.dispatch.request_id,
            initiator=2,
            validate_only=True,
        )
        assert [v.rule for v in tried.verdicts if not v.allowed] == []


async def test_instructions_of_the_largest_registry_fit_into_one_answer(tmp_path):
    """512 agents with long ids and descriptions; the default limit of clients is 4 MiB."""
    agents = "".join(
        f"  - {{id: {'a' * 120}{number}, name: {'ñ' * 60}, description: {'ñ ' * 500}x}}\n"
        for number in range(511)
    )
    head = "api_version: agent_routing/v1\nversion: 1\nsupervisor: home\nagents:\n"
    text = f"{head}  - {{id: home, name: Home}}\n{agents}"
    assert len(text.encode()) > 900_000
    async with serving(tmp_path, text) as service:
        answer = await listed(service)
        assert len(answer.instructions) == 512
        assert answer.ByteSize() < CLIENT_BYTES_MAX
        assert "left out" in answer.instructions["home"]


async def test_command_line_prints_what_the_server_says(service, monkeypatch, capsys):
    """For an unknown agent the error lists the known ones."""

    def run(*argv):
        monkeypatch.setattr(sys, "argv", ["agent-routing", "agents", *argv])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code, *capsys.readouterr())

    place = ("--target", service.server.address)
    answer = await listed(service, locale="es")
    done = await asyncio.to_thread(run, "--instructions", "sales", "--locale", "es", *place)
    assert done == (0, answer.instructions["sales"], "")
    code, out, err = await asyncio.to_thread(run, "--instructions", "nobody", *place)
    assert (code, out) == (1, "")
    assert 'agent "nobody" is not registered; registered agents: front' in err


# English words that no Spanish or Portuguese sentence has.
ENGLISH_WORDS = {
    *("the", "you", "your", "when", "with", "and", "user", "agent", "answer", "message", "back"),
    *("conversation", "of", "to", "is", "this", "what", "it", "by", "ask", "type"),
}
SCHOOL = """
api_version: agent_routing/v1
version: school-1
supervisor: recepcao
default_locale: pt
agents:
  - {id: recepcao, name: Recepção}
  - {id: aulas, name: Aulas, description: As aulas., owns_session: true, markers: true}
  - {id: provas, name: Provas, sticks: follow_up, on_complete: return}
  - {id: apoio, name: Apoio, receives_as: interlude, turns_max: 2}
  - {id: avisos, name: Avisos, sticks: never, on_complete: aulas}
"""


@pytest.mark.parametrize(("registry", "count"), [("tax", 6), (SCHOOL, 5)])
async def test_instructions_have_no_english_in_the_registrys_language(tmp_path, registry, count):
    """Without a locale, only the contract's own names are in English, and each outcome is named."""
    async with serving(tmp_path, registry) as service:
        texts = (await listed(service)).instructions
    assert len(texts) >= count
    for text in texts.values():
        words = set(re.findall(r"\w+", text.lower()))
        assert not words & ENGLISH_WORDS
        if "##" in text:  # All but agents that run next to the conversation.
            outcomes = {"proceed", "follow_up", "complete", "handoff", "approval_needed", "failure"}
            assert outcomes <= words


async def test_prompt_asks_for_a_warm_sentence_where_it_may_hand_over(service):
    """The user reads who goes on before the other agent answers."""
    texts = (await listed(service, locale="es")).instructions
    assert "una frase cordial que diga quién sigue" in texts["sales"]
    assert "una frase cordial" in texts["front"]
    assert "una frase cordial" not in texts["journal"]


async def test_prompt_lists_only_agents_that_the_sessions_user_may_reach(service):
    """A handoff to any other would be refused: another plan, another channel, disabled."""
    chat = service.chat()
    await chat.say(channel="telephone")
    answer = await listed(service, session_id=chat.session_id, user_id=chat.user_id)
    targets = [
        line.split()[1].strip(":")
        for line in answer.instructions["front"].splitlines()
        if line.startswith("- ")
    ]
    assert {"sales", "support"} <= set(targets)
    assert not {"premium", "on_web", "disabled", "journal"} & set(targets)
    # Its completion would be refused as well, and releases instead.
    assert "Disabled" not in answer.instructions["completes_to_disabled"]
    everybody = (await listed(service)).instructions["front"]
    assert "- premium" in everybody
    assert "- disabled" not in everybody


async def test_lesson_that_is_not_interrupted_closes_both_doors(tmp_path):
    """/reset leads out as /supervisor does: check warns, and the prompt names the open door."""
    lesson = DESK.replace("agents:\n", "commands: {disabled: [supervisor]}\nagents:\n", 1)
    found = check_registry(lesson, "lesson").warnings
    (warning,) = [each for each in found if "/reset" in each.message]
    assert warning.remedy == "add reset, or leave supervisor on"
    async with serving(tmp_path, lesson) as service:
        text = (await listed(service, locale="en")).instructions["owner"]
        assert "types /reset." in text
    closed = lesson.replace("[supervisor]", "[supervisor, reset]")
    assert not [e for e in check_registry(closed, "lesson").warnings if "/reset" in e.message]
    async with serving(tmp_path, closed) as service:
        assert "wants to leave" not in (await listed(service, locale="en")).instructions["owner"]
        chat = await service.chat().with_agent("owner")
        assert (await chat.say("/reset")).reply.text.startswith("/reset is not available")
        assert (await chat.status()).active_agent.agent_id == "owner"
