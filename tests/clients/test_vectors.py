"""The scenario vectors: valid by their README, and replayed by the Python client."""

import json

import jsonschema
import pytest

from routing_service.examples import EXAMPLES
from tests.clients import story_vectors, vector_runner

SCENARIOS = list(vector_runner.scenarios())
SCHEMA = json.loads((vector_runner.VECTORS / "schema.json").read_text("utf-8"))


@pytest.mark.parametrize(
    "path", sorted(vector_runner.VECTORS.glob("*.json")), ids=lambda at: at.stem
)
def test_a_file_of_vectors_has_the_form_that_runners_expect(path):
    """A misspelt key is an expectation that is never checked."""
    if path.name == "schema.json":
        jsonschema.Draft202012Validator.check_schema(SCHEMA)
    else:
        jsonschema.validate(json.loads(path.read_text("utf-8")), SCHEMA)


def test_the_example_conversations_are_the_stories():
    """Each shipped registry has one, as its scripted agents play it today."""
    served = {
        step["network"].removeprefix("serve-")
        for file, scenario in SCENARIOS
        if file == "stories"
        for step in scenario["steps"]
        if "network" in step
    }
    assert served == {*EXAMPLES, "back"}
    written = story_vectors.PATH.read_text("utf-8")
    assert written == story_vectors.story_vectors(), "run python -m tests.clients.story_vectors"


def test_scenarios_are_many_and_named_apart():
    """Runners report a scenario by its name."""
    names = [scenario["name"] for _file, scenario in SCENARIOS]
    assert len(set(names)) == len(names) >= 60


def test_the_vectors_cover_every_call():
    """A call without a vector may drift in every language."""
    steps = [step for _file, scenario in SCENARIOS for step in scenario["steps"]]
    called = {step["rpc"] for step in steps if "rpc" in step}
    assert called | {"WatchSession", "RouteStream"} == {*vector_runner.METHODS, "RouteStream"}
    assert any("watch" in step for step in steps)
    assert any("stream" in step for step in steps)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ({"a": 1}, {"a": 2}),
        ({"a": None}, {"a": ""}),
        ({"a": True}, {"a": 1}),
        ({"a": [1]}, {"a": [1, 2]}),
        ({"a": [1]}, {}),
        ({"a": {"b": 1}}, {"a": "b"}),
        ({"a": {"$present": True}}, {}),
        ({"a": {"$contains": "x"}}, {"a": "y"}),
        ({"a": {"$length": 1}}, {"a": []}),
        ({"a": {"$includes": [1, 3]}}, {"a": [1, 2]}),
        ({"a": {"$uuid": 7}}, {"a": "0198a6c0-0000-4000-8000-000000000001"}),
        ({"a": {"$not": "x"}}, {"a": "x"}),
    ],
)
def test_what_is_not_like_it_is_found(expected, actual):
    """A comparison that accepts everything would make the vectors useless."""
    with pytest.raises(vector_runner.Mismatch, match=r"at\.a"):
        vector_runner.compare(expected, actual, "at")


async def test_the_python_client_plays_every_scenario():
    """One server for all: a scenario must not depend on an earlier one."""
    failures = []
    async with vector_runner.vector_server() as server:
        for file, scenario in SCENARIOS:
            try:
                await vector_runner.play(server, scenario)
            except vector_runner.Mismatch as mismatch:
                failures.append(f"{file}/{scenario['name']}: {mismatch}")
    assert not failures, "\n".join(failures)
