"""The registry made from a corpus's agents."""

import json

import pytest

from routing_service.core.registry import AgentKind, OnComplete, Sticks, Topics
from routing_service.registry.file import check_registry, parse_registry
from routing_service.replay.choices import FirstMessage, ReplayPolicy, SwitchMode, TopicMode
from routing_service.replay.corpus_registry import (
    SUPERVISOR_ID,
    CorpusAgent,
    CorpusAgentsInvalid,
    TopicSettings,
    corpus_registry,
    load_corpus_agents,
    with_topics,
)

AGENTS = [
    {
        "id": "hotels",
        "name": "Hotels: all of them",
        "description": 'Find "the best" hotel # and book it',
        "services": [],
        "examples": ["a room, please: two beds", "a room, please: two beds", "- [x] book"],
    },
    {
        "id": "iot",
        "name": "Iot",
        "description": None,
        "services": [{"intents": [{"name": "iot_hue", "description": None}, {"name": "iot_off"}]}],
        "examples": [],
        "examples_follow_up": ["and the kitchen?"],
    },
]


@pytest.fixture
def agents_file(tmp_path):
    """Return the path of a file with one corpus."""
    file = tmp_path / "agents.json"
    file.write_text(json.dumps({"made": AGENTS}), encoding="utf-8")
    return str(file)


def registry(agents_file, policy=ReplayPolicy.STICKY, switch=SwitchMode.SUPERVISOR):
    """Make the registry as a server would read it."""
    text = corpus_registry("made", load_corpus_agents(agents_file, "made"), policy, switch)
    checked = check_registry(text, "made")
    assert not checked.warnings
    return checked.registry


@pytest.mark.parametrize("switch", list(SwitchMode))
@pytest.mark.parametrize(
    ("policy", "sticks"),
    [
        (ReplayPolicy.STICKY, Sticks.SESSION),
        (ReplayPolicy.FOLLOW_UP, Sticks.FOLLOW_UP),
        (ReplayPolicy.SUPERVISOR, Sticks.NEVER),
    ],
)
def test_policy_says_how_long_agents_stick(agents_file, policy, switch, sticks):
    """Every policy is an ordinary registry; the service does not know policies."""
    made = registry(agents_file, policy, switch)
    assert made.home.kind is AgentKind.SUPERVISOR
    assert made.home_agent_id == SUPERVISOR_ID
    assert {agent.sticks for agent in made.specialists} == {sticks}
    assert not any(agent.markers for agent in made.specialists)
    assert made.version == f"made-{policy}-{switch}"


@pytest.mark.parametrize(
    ("policy", "switch", "on_complete"),
    [
        (ReplayPolicy.STICKY, SwitchMode.SUPERVISOR, OnComplete.STAY),
        (ReplayPolicy.STICKY, SwitchMode.AGENT, OnComplete.STAY),
        # Without corrections, a finished task is the only way to another agent.
        (ReplayPolicy.STICKY, SwitchMode.STUCK, OnComplete.RELEASE),
        (ReplayPolicy.FOLLOW_UP, SwitchMode.SUPERVISOR, OnComplete.RELEASE),
    ],
)
def test_topic_rather_than_a_finished_task_frees_a_sticky_agent(
    agents_file, policy, switch, on_complete
):
    """Thanks, and now another booking: the same agent is asked again."""
    made = registry(agents_file, policy, switch)
    assert {agent.on_complete for agent in made.specialists} == {on_complete}


def test_words_of_the_corpus_survive_the_file(agents_file):
    """Colons, quotes and dashes are escaped in YAML."""
    made = registry(agents_file)
    hotels, iot = made.specialists
    assert hotels.display_name("en", "en") == "Hotels: all of them"
    assert hotels.display_description("en", "en") == 'Find "the best" hotel # and book it'
    assert hotels.examples == ("a room, please: two beds", "- [x] book")
    # Its abilities replace a missing description.
    assert iot.display_description("en", "en") == "iot hue; iot off"


def test_name_of_a_part_finds_its_corpus(agents_file):
    """Files are called sgd_train, their corpus sgd."""
    assert [agent.id for agent in load_corpus_agents(agents_file, "made_train")] == [
        "hotels",
        "iot",
    ]


def test_unknown_corpus_is_refused_with_those_there_are(agents_file):
    """The error lists the known ones."""
    with pytest.raises(CorpusAgentsInvalid, match='no agents of a corpus "other"; it has: made'):
        load_corpus_agents(agents_file, "other")


@pytest.mark.parametrize("content", ["[]", "{", '{"made": [{"name": "no id"}]}', '{"made": "x"}'])
def test_file_of_another_form_is_refused(tmp_path, content):
    """The error says what is wrong and what the file should contain."""
    file = tmp_path / "agents.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(CorpusAgentsInvalid, match="holds no agents of corpora"):
        load_corpus_agents(str(file), "made")


def test_missing_file_is_refused(tmp_path):
    """By name."""
    with pytest.raises(CorpusAgentsInvalid, match=r"nowhere.json.*No such file"):
        load_corpus_agents(str(tmp_path / "nowhere.json"), "made")


TOPICS = TopicSettings(TopicMode.AUTO, FirstMessage.AUTO, threshold=0.6, lock_threshold=None)


def test_topics_of_a_run_are_in_the_registry_that_is_made():
    """Without the option they are off, and the registry is unchanged."""
    agents = (CorpusAgent("hotels", "Hotels"), CorpusAgent("weather", "Weather"))
    made = corpus_registry("made", agents, ReplayPolicy.STICKY, SwitchMode.AGENT, TOPICS)
    assert parse_registry(made, "made").topics == Topics("auto", 0.6, None, "auto")
    usual = corpus_registry("made", agents, ReplayPolicy.STICKY, SwitchMode.AGENT)
    assert parse_registry(usual, "usual").topics == Topics()
    assert parse_registry(made, "made").version != parse_registry(usual, "usual").version


def test_topics_of_a_run_replace_those_of_a_file():
    """Everything else stays, including comments."""
    text = """# Ours.
api_version: agent_routing/v1
version: 3
supervisor: desk
topics: {mode: off}  # Not yet.
agents:
  - {id: desk, name: Desk}
  - {id: hotels, name: Hotels, description: Rooms}
"""
    made = with_topics(text, TOPICS)
    assert "# Ours." in made
    registry = parse_registry(made, "made")
    assert registry.topics == Topics("auto", 0.6, None, "auto")
    assert list(registry.agents) == ["desk", "hotels"]
