"""More examples in a file next to the registry."""

import asyncio

import pytest

from routing_service.examples import EXAMPLES
from routing_service.registry.file import (
    RegistryFileError,
    check_registry_file,
    load_registry,
    parse_registry,
)
from routing_service.registry.live_registry import RegistrySource

REGISTRY = """
api_version: agent_routing/v1
version: 1
supervisor: home
examples_file: more.yml
agents:
  - {id: home, name: Home, kind: supervisor}
  - {id: bills, name: Bills, examples: [my bill]}
"""


@pytest.fixture
def registry(tmp_path):
    """Return what loads the registry with a file of examples."""
    path = tmp_path / "agents.yaml"
    path.write_text(REGISTRY, "utf-8")

    def load(text):
        (tmp_path / "more.yml").write_text(text, "utf-8")
        return load_registry(path)

    return load


def test_examples_follow_the_agents_own(registry):
    """Each once."""
    loaded = registry('bills: ["¿cuánto debo?", "my bill"]\n')
    assert loaded.agents["bills"].examples == ("my bill", "¿cuánto debo?")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("other: [x]", 'agent "other" is not registered'),
        ("bills: x", "bills has something else than messages"),
        ("bills: [1]", "bills has something else than messages"),
        ("- x", "it is not a mapping"),
        ("bills: [", "examples_file"),
    ],
)
def test_file_that_is_not_one_of_examples_is_refused(registry, text, said):
    """With the registry that names it, at the key."""
    with pytest.raises(RegistryFileError, match=said) as refused:
        registry(text)
    assert refused.value.problems[0].path == "examples_file"


def test_registry_without_its_further_file_serves_and_warns(tmp_path):
    """Such as one that was copied alone; but never one with a file that is somewhere else."""
    path = tmp_path / "agents.yaml"
    path.write_text(REGISTRY, "utf-8")
    checked = check_registry_file(path)
    assert checked.registry.agents["bills"].examples == ("my bill",)
    assert sum("it is not there" in str(warning) for warning in checked.warnings) == 1
    assert parse_registry(REGISTRY, "text").agents["bills"].examples == ("my bill",)
    (tmp_path / "more.yml").mkdir()
    with pytest.raises(RegistryFileError, match="it cannot be read"):
        load_registry(path)
    path.write_text(REGISTRY.replace("more.yml", "../more.yml"), "utf-8")
    with pytest.raises(RegistryFileError, match="not next to the registry"):
        load_registry(path)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_shipped_registries_have_enough_examples(name):
    """Of each agent that users may change to: no example is two agents'."""
    registry = load_registry(EXAMPLES[name].registry_path)
    held = [
        (text.casefold(), agent.agent_id)
        for agent in registry.specialists
        for text in agent.examples
    ]
    assert len({text for text, _ in held}) == len(held)
    many = [agent for agent in registry.specialists if len(agent.examples) >= 25]
    assert len(many) >= len(registry.specialists) - 1


LEARNED = """
temperature: 0.8
stay_offset: -0.25
examples:
  bills: [what do I owe you]
"""


def test_what_was_learned_is_read_from_its_own_file(tmp_path):
    """A calibration, and examples after those of the registry and of its file of examples."""
    path = tmp_path / "agents.yaml"
    path.write_text(REGISTRY + "learned_file: learned.yml\n", "utf-8")
    (tmp_path / "more.yml").write_text("bills: [pay]\n", "utf-8")
    (tmp_path / "learned.yml").write_text(LEARNED, "utf-8")
    loaded = load_registry(path)
    assert (loaded.topics.temperature, loaded.topics.stay_offset) == (0.8, -0.25)
    assert loaded.agents["bills"].examples == ("my bill", "pay", "what do I owe you")
    assert loaded.further_files == ("more.yml", "learned.yml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("temperature: 0", "temperature is 0, not a number from 0.2 to 5"),
        ("stay_offset: much", "stay_offset is 'much', not a number from -5 to 5"),
        ("bills: [x]", '"bills" is not known'),
        ("examples: [x]", "examples is not a mapping"),
    ],
)
def test_learned_file_that_is_not_one_is_refused(tmp_path, text, said):
    """At its own key."""
    path = tmp_path / "agents.yaml"
    path.write_text(REGISTRY.replace("examples_file: more.yml", "learned_file: l.yml"), "utf-8")
    (tmp_path / "l.yml").write_text(text, "utf-8")
    with pytest.raises(RegistryFileError, match=said) as refused:
        load_registry(path)
    assert refused.value.problems[0].path == "learned_file"


async def test_further_files_are_watched_like_the_registry(tmp_path):
    """A correction in them is in force within a poll; a file that is being replaced is not read."""
    path, more = tmp_path / "agents.yaml", tmp_path / "more.yml"
    path.write_text(REGISTRY, "utf-8")
    more.write_text("bills: [pay]\n", "utf-8")
    corrected = asyncio.Event()

    def in_force(registry):
        if registry.agents["bills"].examples == ("my bill", "pay", "settle up"):
            corrected.set()

    source = RegistrySource(
        str(path), lambda: check_registry_file(path), pytest.fail, in_force, poll_s=0.01
    )
    watching = asyncio.create_task(source.watch())
    more.unlink()
    await asyncio.sleep(0.1)
    assert source.failures == 0
    more.write_text("bills: [pay, settle up]\n", "utf-8")
    await asyncio.wait_for(corrected.wait(), 10)
    assert source.reloads == 1
    watching.cancel()
    await asyncio.wait([watching])
