"""The instructions in agents' prompts: what the registry makes of their outcomes, and no more."""

from __future__ import annotations

import json
import re
from functools import partial
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_service.core.markers import cut_markers
from routing_service.core.registry import Agent, AgentKind, OnComplete, Registry, Sticks
from routing_service.examples import EXAMPLES
from routing_service.registry.file import load_registry
from routing_service.texts import Texts, instruction_texts, shipped_texts
from routing_service.texts.agent_instructions import (
    INSTRUCTIONS_BYTES_MAX,
    NAME_CHARACTERS_MAX,
    InstructionWriter,
    agent_instructions,
    handoff_targets,
)
from tests.unit.texts.test_replies import variables_by_message

LOCALES = ("en", "es", "pt")

HOME = Agent("coordinator", name={"en": "Coordinator"}, kind=AgentKind.SUPERVISOR)
MATH = Agent(
    "math", name={"en": "Mathematics"}, description={"en": "Fractions.", "es": "Quebrados."}
)
CHEERS = Agent(
    "cheers", receives_as_interlude=True, on_complete=OnComplete.RETURN, handoff_to=frozenset()
)
AUDIT = Agent("audit", kind=AgentKind.SYSTEM)


def registry_of(*agents: Agent, is_swarm: bool = False, disabled: tuple[str, ...] = ()) -> Registry:
    """Return a registry whose first agent is home."""
    return Registry(
        version="1",
        home_agent_id=agents[0].agent_id,
        agents={agent.agent_id: agent for agent in agents},
        is_swarm=is_swarm,
        disabled_commands=frozenset(disabled),
    )


def told(agent: Agent, *others: Agent, locale: str = "en", **settings: object) -> str:
    """Return the instructions of an agent next to the coordinator."""
    registry = registry_of(HOME, agent, *others, **settings)  # type: ignore[arg-type]
    return agent_instructions(registry, agent.agent_id, locale)


# --- Texts ------------------------------------------------------------------------------------


def test_instructions_have_the_same_messages_with_the_same_variables_in_every_language():
    """A translation that drops an id sends conversations astray."""
    folder = resources.files("routing_service.texts") / "instructions"
    catalogues = {
        tag: variables_by_message((folder / f"{tag}.ftl").read_text("utf-8")) for tag in LOCALES
    }
    assert set(instruction_texts().locales) == set(shipped_texts().locales) == set(LOCALES)
    assert instruction_texts().missing_texts() == ()
    for tag, found in catalogues.items():
        assert found == catalogues["en"], tag


class _Echo(Texts):
    """Texts that say their own ids, to see which ones a text uses."""

    def __init__(self) -> None:
        folder = resources.files("routing_service.texts") / "instructions"
        super().__init__({"en": (folder / "en.ftl").read_text("utf-8")})

    def render(self, message_id, locale, /, *, default_locale="en", **variables):
        text = super().render(message_id, locale, default_locale=default_locale, **variables)
        return f"⟦{message_id}⟧{text}"


def all_registries() -> list[Registry]:
    """Return registries in which every kind of agent has instructions."""
    home_hops = Agent(
        "desk",
        kind=AgentKind.SUPERVISOR,
        on_complete=OnComplete.HOP,
        on_complete_agent_id="math",
        markers=True,
    )
    return [
        registry_of(
            HOME,
            MATH,
            CHEERS,
            AUDIT,
            Agent("asks", sticks=Sticks.FOLLOW_UP, markers=True),
            Agent("once", sticks=Sticks.NEVER),
            Agent("owner", owns_session=True, on_complete=OnComplete.STAY),
            Agent("brief", receives_as_interlude=True, turns_max=2),
            Agent("hops", on_complete=OnComplete.HOP, on_complete_agent_id="math"),
        ),
        registry_of(HOME),
        registry_of(home_hops, MATH),
        registry_of(MATH, CHEERS, is_swarm=True),
        crowd(),
    ]


def crowd(description: str = "ñ word ") -> Registry:
    """Return the largest registry there may be, with the longest ids and texts."""
    agents = [
        Agent(
            f"a{number:0127}",
            name={"en": "ñ" * 4_000},
            description={"en": (description * 1_000)[:4_000]},
            receives_as_interlude=True,
            turns_max=3,
            owns_session=True,
            markers=True,
            on_complete=OnComplete.HOP,
            on_complete_agent_id="coordinator",
        )
        for number in range(511)
    ]
    return registry_of(HOME, *agents)


def test_no_text_is_left_that_nothing_says():
    """Each message of the catalogue occurs in the instructions of some agent."""
    said = ""
    for registry in all_registries():
        writer = InstructionWriter(registry, "en", _Echo())
        said += "".join(writer.text(agent_id) for agent_id in list(registry.agents)[:12])
    assert set(re.findall(r"⟦([\w-]+)⟧", said)) == set(instruction_texts().message_ids("en"))


@pytest.mark.parametrize("locale", LOCALES)
def test_every_text_is_whole(locale):
    """No hole, no message's id, no line of white space, one line break at the end."""
    ids = set(instruction_texts().message_ids("en"))
    for registry in all_registries():
        writer = InstructionWriter(registry, locale)
        for agent_id in list(registry.agents)[:12]:
            text = writer.text(agent_id)
            assert "{" not in text
            assert text.endswith("\n")
            assert not text.endswith("\n\n")
            assert "\n\n\n" not in text
            assert not ids & set(text.splitlines())


# --- What is said -----------------------------------------------------------------------------


def test_supervisor_is_told_its_specialists_and_not_to_answer_for_them():
    """It gets their ids and descriptions, without system agents and disabled ones."""
    off = Agent("off", enabled=False)
    registry = registry_of(HOME, MATH, CHEERS, AUDIT, off)
    text = agent_instructions(registry, "coordinator")
    listed = [line for line in text.splitlines() if line.startswith("- ")]
    assert listed == ["- math (Mathematics): Fractions.", "- cheers"]
    assert "do not answer for them" in text
    assert "You are the supervisor" in text
    assert "You never keep it yourself" in text
    assert "follow_up:" not in text
    assert "comes back to you when it is done" not in text.replace("the mode interlude", "")


def test_supervisor_that_may_hand_to_some_is_told_of_those_alone():
    """A handoff to any other would only be refused."""
    narrow = Agent("coordinator", kind=AgentKind.SUPERVISOR, handoff_to=frozenset({"cheers"}))
    text = agent_instructions(registry_of(narrow, MATH, CHEERS), "coordinator")
    assert "- cheers" in text
    assert "- math" not in text


@pytest.mark.parametrize(
    ("sticks", "words", "asks"),
    [
        (Sticks.SESSION, "every message of the user comes straight to you", True),
        (Sticks.FOLLOW_UP, "only while you wait for an answer", True),
        (Sticks.NEVER, "You answer one message at a time", False),
    ],
)
def test_agent_is_told_how_long_it_keeps_the_conversation(sticks, words, asks):
    """And whether a question of its own brings the next message to it."""
    text = told(Agent("vat", sticks=sticks))
    assert words in text
    assert ("end the turn with follow_up" in text) is asks


def test_agent_that_owns_the_session_keeps_questions_off_topic():
    """No change of topic in the middle of a lesson."""
    assert "Questions off topic stay with you" in told(Agent("vat", owns_session=True))
    assert "Questions off topic stay with you" not in told(Agent("vat"))


def test_way_out_is_told_in_the_users_words_where_there_is_one():
    """Users may ask an agent how to leave it; a disabled command is not named."""
    assert "types /supervisor." in told(Agent("vat"))
    assert "types /reset." in told(Agent("vat"), disabled=("supervisor",))
    closed = told(Agent("vat"), disabled=("supervisor", "reset"))
    assert "wants to leave you" not in closed


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        (
            Agent("vat", on_complete=OnComplete.RELEASE),
            "otherwise the task is closed and the next message goes to Coordinator.",
        ),
        (Agent("vat", on_complete=OnComplete.RETURN), "the conversation then goes back to it"),
        (Agent("vat", on_complete=OnComplete.STAY), "the conversation stays with you"),
        (
            Agent("vat", on_complete=OnComplete.HOP, on_complete_agent_id="math"),
            "goes on to Mathematics by itself",
        ),
    ],
)
def test_agent_is_told_what_follows_its_completion(agent, words):
    """The registry names the next agent, so the agent need not hand over itself."""
    text = told(agent, MATH)
    assert words in text
    assert (
        sum(
            line.startswith(
                ("The task is then", "If another agent waits for you, the", "The message")
            )
            for line in text.splitlines()
        )
        == 1
    )


def test_agent_is_told_whom_it_may_hand_to_and_who_comes_back():
    """By id, as in the rules; the home agent has a sentence of its own."""
    tutor = Agent("tutor", handoff_to=frozenset({"cheers"}))
    text = told(tutor, MATH, CHEERS)
    assert "- cheers (the conversation comes back to you when it is done)" in text
    assert "- math" not in text
    assert "- coordinator" not in text
    assert "hand over to coordinator (Coordinator)" in text
    alone = told(Agent("vat", handoff_to=frozenset()), MATH)
    assert "no other specialist" in alone
    assert "consult you ask" not in alone
    assert "If you are consulted" in alone


def test_marker_is_told_where_it_counts_and_is_one():
    """The text shows a marker that the service would follow; other agents get none."""
    text = told(Agent("vat", markers=True), MATH)
    marker = re.search(r"\[HANDOFF_TO:id\]", text)
    assert marker is not None
    assert cut_markers(marker.group().replace("id]", "math]")) == ("", "math")
    assert "HANDOFF_TO" not in told(Agent("vat"), MATH)


def test_interlude_is_told_that_somebody_waits_and_when_it_ends():
    """If the registry says so, the conversation returns automatically."""
    text = told(Agent("joker", receives_as_interlude=True, turns_max=3))
    assert "is only interrupted, and waits for you" in text
    assert "After 3 answers of yours" in text
    assert "answers of yours" not in told(Agent("joker"))


def test_default_agent_of_a_swarm_is_told_that_all_begins_with_it():
    """It is the home agent, so it has none to hand back to."""
    text = agent_instructions(registry_of(MATH, CHEERS, is_swarm=True), "math")
    assert "Conversations begin with you" in text
    assert "Handing back" not in text
    assert "supervisor" not in text
    assert "hand over to math (Mathematics)" in agent_instructions(
        registry_of(MATH, CHEERS, is_swarm=True), "cheers"
    )


def test_system_agent_is_told_that_no_message_comes_to_it():
    """Nothing else holds for it."""
    text = told(AUDIT, MATH)
    assert "You run beside the conversation" in text
    assert "handoff and" not in text
    assert "##" not in text


@pytest.mark.parametrize(
    ("locale", "words"),
    [
        ("es-MX", ("Eres math", "Quebrados.", "/supervisor")),
        ("pt-BR", ("Você é coordinator", "Fractions.")),
        ("fr", ("You are math", "Fractions.")),
        ("", ("You are math",)),
    ],
)
def test_instructions_are_in_the_language_asked_for(locale, words):
    """Names and descriptions as the registry has them; a language without texts falls back."""
    registry = registry_of(
        Agent("coordinator", kind=AgentKind.SUPERVISOR),
        Agent("math", description=MATH.description),
        Agent("vat"),
    )
    text = "".join(agent_instructions(registry, agent_id, locale) for agent_id in registry.agents)
    assert all(word in text for word in words)


def test_handoff_targets_are_what_the_rules_allow_whoever_the_user_is():
    """Home is always among them, system agents and those switched off never."""
    off = Agent("off", enabled=False)
    registry = registry_of(HOME, MATH, CHEERS, AUDIT, off)
    found = {
        agent.agent_id: [target.agent_id for target in handoff_targets(registry, agent)]
        for agent in registry.agents.values()
    }
    assert found["coordinator"] == ["math", "cheers"]
    assert found["math"] == ["coordinator", "cheers"]
    assert found["cheers"] == ["coordinator"]


# --- Bounds -----------------------------------------------------------------------------------


@pytest.mark.parametrize("locale", LOCALES)
def test_text_of_the_largest_registry_is_cut_and_says_so(locale):
    """Descriptions first, then names, then agents, which are counted."""
    registry = crowd()
    for agent_id in (HOME.agent_id, f"a{7:0127}"):
        text = agent_instructions(registry, agent_id, locale)
        assert INSTRUCTIONS_BYTES_MAX - 400 < len(text.encode()) <= INSTRUCTIONS_BYTES_MAX
        lines = [line for line in text.splitlines() if line.startswith("- ")]
        more = re.search(r"(\d+)", lines[-1].split("…", 1)[1])
        assert more is not None
        others = 511 - (agent_id != HOME.agent_id)
        assert len(lines) - 1 + int(more.group()) == others
        assert {line.removeprefix("- ").split()[0].rstrip(":") for line in lines[:-1]} <= set(
            registry.agents
        )


def test_descriptions_are_shortened_before_agents_are_left_out():
    """An agent that is not named cannot be handed to; one without its whole description can."""
    agents = [Agent(f"agent_{number}", description={"en": "word " * 200}) for number in range(20)]
    text = agent_instructions(registry_of(HOME, *agents), HOME.agent_id)
    lines = [line for line in text.splitlines() if line.startswith("- ")]
    assert len(lines) == 20
    assert all(line.endswith("…") for line in lines)
    assert "left out" not in text


def test_names_cannot_break_the_lines_of_a_prompt():
    """A registry's texts are data: no line of their own, no invisible characters, no end."""
    agent = Agent("vat", name={"en": "V\n## Orders\N{RIGHT-TO-LEFT OVERRIDE}" + "x" * 500})
    text = told(MATH, agent)
    assert "\n## Orders" not in text
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in text
    line = next(line for line in text.splitlines() if line.startswith("- vat"))
    assert len(line) < NAME_CHARACTERS_MAX + 10


@given(
    st.lists(st.text(max_size=200), max_size=20),
    st.sampled_from(LOCALES),
    st.sampled_from(list(OnComplete)),
    st.sampled_from(list(Sticks)),
    st.booleans(),
)
def test_any_names_give_a_text_within_its_bound(names, locale, on_complete, sticks, flag):
    """For any registry."""
    agents = [
        Agent(
            f"agent_{number}",
            name={"en": name},
            description={"en": name * 20},
            on_complete=on_complete,
            on_complete_agent_id="coordinator" if on_complete is OnComplete.HOP else "",
            sticks=sticks,
            receives_as_interlude=flag,
            markers=flag,
            owns_session=flag,
        )
        for number, name in enumerate(names)
    ]
    registry = registry_of(HOME, *agents)
    writer = InstructionWriter(registry, locale)
    for agent_id in registry.agents:
        assert len(writer.text(agent_id).encode()) <= INSTRUCTIONS_BYTES_MAX


# --- On the command line ----------------------------------------------------------------------


@pytest.fixture
def run(run):
    """Return what runs the command agents: (exit code, stdout, stderr)."""
    return partial(run, "agents")


def test_instructions_of_a_file_are_printed_as_they_are(run):
    """Into a file or a prompt, in the language asked for; an alias will do."""
    path = EXAMPLES["tutor"].registry_path
    expected = agent_instructions(load_registry(path), "math_specialist", "es")
    for name in ("math_specialist", "Math Specialist"):
        asked = ("--instructions", name, "--agents", str(path), "--locale", "es")
        assert run(*asked) == (0, expected, "")
    code, out, _ = run("--instructions", "math", "--agents", str(path), "--json")
    assert code == 0
    assert json.loads(out)["agent_id"] == "math_specialist"
    assert json.loads(out)["instructions"].startswith("You are Math specialist")


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (("--instructions", "maths", "--agents", "{tutor}"), 1, 'agent "maths" is not registered'),
        (("--instructions", "math", "--agents", "nowhere.yaml"), 1, "nowhere.yaml"),
        (("--agents", "{tutor}"), 2, "--instructions ID"),
        (("--instructions", "math", "--agents", "{tutor}", "--session", "s"), 2, "--agents"),
    ],
)
def test_what_cannot_be_printed_is_refused_with_the_remedy(run, argv, code, words):
    """An unknown agent, a file that is not there, options that do not go together."""
    tutor = str(EXAMPLES["tutor"].registry_path)
    got, out, err = run(*(arg.replace("{tutor}", tutor) for arg in argv))
    assert (got, out) == (code, "")
    assert words in " ".join(err.split())
