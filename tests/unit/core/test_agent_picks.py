"""Which agent a user means after /agent, and what of it is the message."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_service.core.agent_picks import (
    Pick,
    PickCase,
    pick_agent,
    recall_list,
    remember_list,
)
from routing_service.core.registry import Agent, AgentKind, Registry
from routing_service.core.slash_commands import parse
from tests.simulation.conversation import registry_of
from tests.typed_inputs import field_inputs, own_inputs


def spanish(*agents: Agent) -> Registry:
    """Return a registry whose users speak Spanish."""
    home = Agent("home", kind=AgentKind.SUPERVISOR, name={"es": "Asistente"})
    named = {agent.agent_id: agent for agent in (home, *agents)}
    return Registry("1", "home", named, default_locale="es")


def pick(registry: Registry, text: str, listed: tuple[str, ...] = ()) -> Pick:
    """Pick as a user who reaches every agent."""
    return pick_agent(text, PickCase(registry, tuple(registry.agents), listed, "es"))


@pytest.mark.parametrize("inputs", [own_inputs, field_inputs])
def test_users_pick_agents_by_what_they_see(inputs):
    """Numbers, ids, names in any case and parts of a name; if two agents match, none is picked."""
    given_inputs = inputs("pick")
    agents = [
        Agent(agent_id, name={"es": name}, user_selectable=True)
        for agent_id, name in given_inputs["agents"]
    ]
    registry = spanish(*agents)
    listed = tuple(agent.agent_id for agent in agents)
    wrong = []
    for typed, agent_id, *message in given_inputs["typed"]:
        parsed = parse(typed)
        assert parsed is not None
        found = pick(registry, parsed.argument, listed)
        rest = found.rest if found.agent_id else ""
        if (found.agent_id or None, rest) != (agent_id, message[0] if message else ""):
            wrong.append((typed, found))
    assert wrong == []


def test_longest_name_wins():
    """A name that begins as another one does is not taken for it."""
    registry = spanish(
        Agent("a", name={"es": "Ventas"}), Agent("b", name={"es": "Ventas de empresa"})
    )
    assert pick(registry, "ventas de empresa hola") == Pick(
        "b", written="ventas de empresa", rest="hola"
    )
    assert pick(registry, "ventas hola").agent_id == "a"


def test_user_is_asked_which_of_those_that_fit():
    """Two names with one word; the one that users may choose counts alone."""
    registry = spanish(
        Agent("a", name={"es": "Soporte técnico"}, user_selectable=True),
        Agent("b", name={"es": "Soporte comercial"}, user_selectable=True),
        Agent("c", name={"es": "Cobros internos"}),
        Agent("d", name={"es": "Cobros"}, user_selectable=True),
    )
    assert pick(registry, "soporte ya").fitting == ("a", "b")
    assert pick(registry, "soporte comercial ya") == Pick(
        "b", written="soporte comercial", rest="ya"
    )
    assert pick(registry, "cobro").agent_id == "d"


def test_list_is_remembered_shortly_and_not_over_other_agents():
    """Numbers of a list count until another registry has other agents."""
    registry = registry_of(*(Agent(f"{'x' * 120}{number}") for number in range(500)))
    listed = tuple(registry.agents)[1:]
    remembered = remember_list(registry, listed)
    assert len(remembered) <= 400
    assert recall_list(registry, remembered) == listed[:99]
    assert recall_list(registry_of(Agent("other")), remembered) is None


@given(st.from_regex(r"\A[A-Za-z0-9._:@=;+-]{1,128}\Z"), st.sampled_from([" ", "\n", "\t"]))
def test_any_agent_id_can_be_typed(agent_id, space):
    """Every id that an agent may have is found, with a message behind."""
    registry = spanish(Agent(agent_id))
    found = pick(registry, f"{agent_id}{space}hello there")
    assert (found.agent_id, found.rest) == (agent_id, "hello there")


@given(st.text(), st.text())
def test_every_text_is_read_without_an_error(name, text):
    """Users type anything; only punctuation and a name are removed from the message."""
    registry = spanish(Agent("a", name={"es": name or "x"}))
    for typed in (text, f"{name} {text}", f'"{name}" {text}'):
        found = pick(registry, typed, ("a",))
        assert typed.endswith(found.rest)
        assert found.agent_id in ("", "a", "home")


def test_long_text_among_many_agents_is_read_at_once():
    """512 agents, and a message of 32 KB."""
    registry = spanish(*(Agent(f"a{n}", name={"es": f"Nombre número {n}"}) for n in range(511)))
    started_s = time.process_time()
    assert pick(registry, "nombre " * 5_000).agent_id == ""
    assert time.process_time() - started_s < 1
