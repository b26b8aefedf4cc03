"""The comparison page says what the stored result says, and its programs still begin."""

import json
import os
import subprocess
import sys

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from benchmarks.comparison import __main__ as comparison
from benchmarks.comparison import play, scripted, tables
from benchmarks.comparison.contenders import CONTENDERS
from routing_service.registry.file import load_registry

RESULT = json.loads(comparison.RESULT.read_text(encoding="utf-8"))
KEYS = [each.key for each in CONTENDERS]


def test_the_page_has_the_tables_of_the_stored_result():
    """A figure that is changed by hand, or a run whose page is not written, is found here."""
    page = comparison.PAGE.read_text(encoding="utf-8")
    assert comparison.with_tables(page, tables.render(RESULT)) == page
    assert tables.render(RESULT) in page


def test_every_contender_was_seen_in_every_scenario():
    """A table is of one whole run, or of runs of the same programs."""
    assert list(RESULT["seen"]) == KEYS
    for seen in RESULT["seen"].values():
        assert set(seen) == {"versions", *play.SCENARIOS}


@pytest.mark.parametrize("key", [key for key in KEYS if key != play.OURS])
def test_the_page_names_the_versions_that_are_pinned(key):
    """A pin that is raised without a new run is found here."""
    lines = (play.PEERS / f"{key}.txt").read_text(encoding="utf-8").splitlines()
    pinned = {Requirement(line).name: Requirement(line).specifier for line in lines}
    for name, version in RESULT["seen"][key]["versions"].items():
        assert pinned[name] == SpecifierSet(f"=={version}")


@pytest.mark.long
@pytest.mark.parametrize("key", KEYS)
def test_a_contenders_program_begins_where_its_environment_is(key):
    """With nothing to play it only imports what it uses."""
    python = play.ENVIRONMENTS / key / "bin" / "python"
    if key == play.OURS:
        python = sys.executable
    elif not (play.ENVIRONMENTS / key / ".installed").exists():
        pytest.skip(f"{key} is not installed: make compare installs it")
    done = subprocess.run(
        [str(python), str(play.PEERS / f"{key}.py"), "[]"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{play.HERE}{os.pathsep}{play.PEERS}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=55,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize("name", scripted.STORIES)
def test_a_story_is_that_of_an_example(name):
    """Contenders hand over to whom the example's registry allows, and to the home agent."""
    story = scripted.STORIES[name]
    registry = load_registry(play.EXAMPLES / f"{name}.yaml")
    assert registry.home_agent_id == story.home
    for agent_id in story.specialists:
        if agent_id == "motivator":
            continue  # It returns by itself; the others' models have to know the way back.
        allowed = registry.agents[agent_id].handoff_to
        everyone = {agent.agent_id for agent in registry.specialists}
        targets = set(story.handoffs[agent_id]) - {story.home}
        assert targets <= (everyone if allowed is None else allowed)


def test_a_model_is_scripted_by_what_it_is_shown():
    """It cannot hand over without a tool, nor remember an agent that it is not shown."""
    story = scripted.STORIES["tax"]
    unsure = scripted.Seen("I don't know", targets=story.specialists)
    asked = scripted.Seen("I don't know", targets=story.specialists, speaker="vat")
    assert isinstance(scripted.decide(story, "coordinator", unsure), scripted.Say)
    assert scripted.decide(story, "coordinator", asked) == scripted.HandOver(
        "vat", "I bring in vat."
    )
    assert isinstance(scripted.decide(story, "vat", scripted.Seen("An invoice")), scripted.Say)
