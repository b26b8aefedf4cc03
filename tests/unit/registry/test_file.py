"""Registry files: the result of a valid one, and all errors of an invalid one at once."""

from __future__ import annotations

import json
import traceback
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML
from ruamel.yaml.compat import StringIO

from routing_service.core import registry as core
from routing_service.core.identifiers import ID_PATTERN
from routing_service.core.registry import (
    Agent,
    AgentKind,
    Limits,
    OnComplete,
    Registry,
    Sticks,
    Topics,
)
from routing_service.core.slash_commands import SLASH_COMMANDS
from routing_service.core.vocabulary import WhenUnsure
from routing_service.registry.checks import API_VERSIONS, duration_us
from routing_service.registry.file import (
    RegistryFileError,
    check_registry,
    check_registry_file,
    load_registry,
    parse_registry,
    registry_schema,
)
from routing_service.registry.yaml_document import TEXT_BYTES_MAX, Document, FileProblem

FULL = """\
api_version: agent_routing/v1
version: 1.10
supervisor: coordinator
stickiness: disabled
default_locale: en
limits: {hops_per_message: 7, return_depth: 3, open_turns: 4, turn_timeout: 1h30m, idle_timeout: 2d}
double_text: reject
commands: {disabled: [supervisor, help]}
topics: {mode: off, threshold: 0.75, lock_threshold: 0.9, first_message: supervisor}
agents:
  - id: coordinator
    name: Coordinator
  - id: math_specialist
    aliases: [Math Specialist]
    name: {en: Math specialist, es: Especialista en matemáticas}
    description: {en: Teaches fractions., es: Enseña fracciones.}
    examples: [What is a half?, ¿Qué es un medio?]
    sticks: follow_up
    owns_session: true
    handoff_to: [motivator]
    receives_as: interlude
    turns_max: 4
    on_complete: motivator
    on_complete_message: {en: Great work!, es: ¡Muy bien!}
    requires: ["plan:premium"]
    channels: [web]
    idle_timeout: 20m
    markers: true
    user_selectable: true
    enabled: false
    icon: calculator
    color: "#3366ff"
    kind: specialist
  - id: motivator
    name: Motivator
    on_complete: return
  - id: log
    name: Log
    kind: system
"""

SMALL = """\
api_version: agent_routing/v1
version: 7
supervisor: home
agents:
  - {id: home, name: Home}
  - {id: billing, name: Billing, description: Invoices and payments}
"""


def agent_yaml(extra: str) -> str:
    """Return the small registry with more keys in its second agent."""
    return SMALL.replace("payments}", f"payments, {extra}}}")


def problems_of(text: str) -> tuple[FileProblem, ...]:
    """Return the problems of a registry that must be refused."""
    with pytest.raises(RegistryFileError) as raised:
        parse_registry(text, "agents.yaml")
    return raised.value.problems


def only_problem(text: str) -> FileProblem:
    """Return the only problem of a registry."""
    problems = problems_of(text)
    assert len(problems) == 1, [str(problem) for problem in problems]
    return problems[0]


def warnings_of(text: str) -> list[str]:
    """Return the warnings of a valid registry, as text."""
    return [f"{w.line}:{w.path}: {w.message}" for w in check_registry(text, "x").warnings]


# --- What a good file becomes -----------------------------------------------------------------


def test_every_key_of_a_file_reaches_the_registry():
    """No setting is lost or changed."""
    assert parse_registry(FULL, "full") == Registry(
        version="1.10",
        home_agent_id="coordinator",
        agents={
            "coordinator": Agent(
                "coordinator", name={"en": "Coordinator"}, kind=AgentKind.SUPERVISOR
            ),
            "math_specialist": Agent(
                "math_specialist",
                aliases=("Math Specialist",),
                name={"en": "Math specialist", "es": "Especialista en matemáticas"},
                description={"en": "Teaches fractions.", "es": "Enseña fracciones."},
                examples=("What is a half?", "¿Qué es un medio?"),
                sticks=Sticks.FOLLOW_UP,
                owns_session=True,
                handoff_to=frozenset({"motivator"}),
                receives_as_interlude=True,
                turns_max=4,
                on_complete=OnComplete.HOP,
                on_complete_agent_id="motivator",
                on_complete_message={"en": "Great work!", "es": "¡Muy bien!"},
                requires=frozenset({"plan:premium"}),
                channels=frozenset({"web"}),
                idle_timeout_us=20 * core.MINUTE_US,
                markers=True,
                user_selectable=True,
                enabled=False,
                icon="calculator",
                color="#3366ff",
            ),
            "motivator": Agent(
                "motivator", name={"en": "Motivator"}, on_complete=OnComplete.RETURN
            ),
            "log": Agent("log", name={"en": "Log"}, kind=AgentKind.SYSTEM),
        },
        stickiness_enabled=False,
        limits=Limits(7, 3, 4, 90 * core.MINUTE_US, 2 * core.DAY_US),
        double_text_rejects=True,
        disabled_commands=frozenset({"supervisor", "help"}),
        topics=Topics("off", 0.75, 0.9, "supervisor"),
    )


def test_defaults_are_those_of_the_core():
    """A missing key has the core's default, so that the two cannot differ."""
    assert parse_registry(SMALL, "small") == Registry(
        version="7",
        home_agent_id="home",
        agents={
            "home": Agent("home", name={"en": "Home"}, kind=AgentKind.SUPERVISOR),
            "billing": Agent(
                "billing",
                name={"en": "Billing"},
                description={"en": "Invoices and payments"},
            ),
        },
    )


def test_agents_keep_the_order_of_the_file():
    """Users see them in the order in which an operator put them."""
    assert list(parse_registry(FULL, "full").agents) == [
        "coordinator",
        "math_specialist",
        "motivator",
        "log",
    ]


def test_default_agent_makes_a_swarm():
    """Without a supervisor the default agent is a specialist that conversations start with."""
    registry = parse_registry(SMALL.replace("supervisor: home", "default_agent: home"), "swarm")
    assert registry.is_swarm
    assert registry.home.kind is AgentKind.SPECIALIST


def test_empty_handoff_list_is_nobody_and_no_list_is_everybody():
    """An empty list allows no handoff; a missing list allows all."""
    assert parse_registry(agent_yaml("handoff_to: []"), "x").agents["billing"].handoff_to == set()
    assert parse_registry(SMALL, "x").agents["billing"].handoff_to is None


def test_texts_without_a_language_are_in_the_default_one():
    """A plain name in a Spanish registry is Spanish."""
    registry = parse_registry(f"default_locale: es\n{SMALL}", "x")
    assert registry.agents["billing"].name == {"es": "Billing"}


def test_registry_is_read_from_a_file(tmp_path):
    """Line ends, a byte order mark and any path type do not matter."""
    path = tmp_path / "agents.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + SMALL.replace("\n", "\r\n").encode())
    assert load_registry(path) == load_registry(str(path)) == parse_registry(SMALL, "x")
    assert check_registry_file(path).warnings == ()


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("15m", 15 * 60 * 10**6),
        ("1h30m", 90 * 60 * 10**6),
        ("45s", 45 * 10**6),
        ("500ms", 500_000),
        ("1d2h3m4s5ms", 93_784_005_000),
    ],
)
def test_durations_are_read_by_their_units(text, us):
    """Whole numbers with units, largest first."""
    assert duration_us(text) == us


# --- What a bad file is told ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "path", "message", "remedy"),
    [
        (
            SMALL.replace("v1", "v2"),
            1,
            "api_version",
            'does not read api_version "agent_routing/v2"',
            "write agent_routing/v1 or agent_routing/v1.1, or read the file with the release",
        ),
        (
            SMALL.replace("api_version: agent_routing/v1\n", ""),
            1,
            "",
            "api_version is missing",
            "add api_version: agent_routing/v1",
        ),
        (SMALL.replace("version: 7\n", ""), 1, "", "version is missing", "add version"),
        (SMALL.replace("supervisor: home\n", ""), 1, "", "supervisor is missing", "default_agent"),
        (
            SMALL.replace("supervisor: home", "supervisor: home\ndefault_agent: billing"),
            4,
            "default_agent",
            "both supervisor and default_agent",
            "keep",
        ),
        (
            SMALL.replace("supervisor: home", "supervisor: hme"),
            3,
            "supervisor",
            'names "hme", which is not registered',
            'did you mean "home"? use one of home, billing',
        ),
        (
            agent_yaml("handoff_to: [home, biling]"),
            6,
            "agents[1].handoff_to[1]",
            'handoff_to names "biling"',
            'did you mean "billing"?',
        ),
        (
            agent_yaml("aliases: [BillDesk], handoff_to: [billdesk]"),
            6,
            "agents[1].handoff_to[0]",
            'names "billdesk"',
            'did you mean "billing"?',
        ),
        (
            agent_yaml("handof_to: [home]"),
            6,
            "agents[1].handof_to",
            'unknown key "handof_to"',
            'did you mean "handoff_to"?',
        ),
        (f"agent: []\n{SMALL}", 1, "agent", 'unknown key "agent"', 'did you mean "agents"?'),
        (f"limits: {{hops: 3}}\n{SMALL}", 1, "limits.hops", 'unknown key "hops"', "hops_per_mess"),
        (agent_yaml("<<: {}"), 6, "agents[1].<<", 'unknown key "<<"', "merge keys"),
        (
            agent_yaml("name: Again"),
            6,
            "agents[1].name",
            'the key "name" is already on line 6',
            "keep one",
        ),
        (
            agent_yaml("aliases: [HOME]"),
            6,
            "agents[1].aliases[0]",
            'the alias "HOME" already names the agent on line 5',
            "in any case",
        ),
        (
            SMALL.replace("id: billing", "id: Home"),
            6,
            "agents[1].id",
            'the id "Home" already names the agent on line 5',
            "in any case",
        ),
        (
            SMALL.replace("id: billing", "id: Return"),
            6,
            "agents[1].id",
            'the id "Return" means something else',
            "choose another id",
        ),
        (
            SMALL.replace("id: billing", "id: bill ing"),
            6,
            "agents[1].id",
            'id cannot be "bill ing"',
            "1 to 128 characters",
        ),
        (
            SMALL.replace("id: billing", 'id: "billing\\n"'),
            6,
            "agents[1].id",
            'id cannot be "billing\\n"',
            "1 to 128 characters",
        ),
        (
            SMALL.replace("id: billing, ", ""),
            6,
            "agents[1]",
            "the agent has no id",
            "add id",
        ),
        (
            SMALL.replace("name: Billing, ", ""),
            6,
            "agents[1]",
            'agent "billing" has no name',
            "add name",
        ),
        (
            SMALL.replace("name: Billing", "name: {es: Cobros}"),
            6,
            "agents[1].name",
            'no text in the default_locale "en"',
            "add en:",
        ),
        (
            agent_yaml("on_complete: home, on_complete_message: {es: Hecho}"),
            6,
            "agents[1].on_complete_message",
            'no text in the default_locale "en"',
            "add en:",
        ),
        (
            SMALL.replace("name: Billing", "name: {en: A, EN: B}"),
            6,
            "agents[1].name.EN",
            '"EN" is the same language as "en"',
            "keep one",
        ),
        (
            SMALL.replace("name: Billing", "name: {en: A, english language: B}"),
            6,
            "agents[1].name.english language",
            '"english language" is no language',
            "a language tag",
        ),
        (agent_yaml("enabled: yes"), 6, "agents[1].enabled", 'cannot be "yes"', "true or false"),
        (agent_yaml("turns_max: many"), 6, "agents[1].turns_max", 'be "many"', "a whole number"),
        (agent_yaml("turns_max: 1.5"), 6, "agents[1].turns_max", "be 1.5", "a whole number"),
        (agent_yaml('color: "blue"'), 6, "agents[1].color", 'be "blue"', '"#3366ff"'),
        (
            f"{SMALL}    color: #3366ff\n".replace(
                "  - {id: billing, name: Billing, description: Invoices and payments}",
                "  - id: billing\n    name: Billing",
            ),
            8,
            "agents[1].color",
            "color is empty; in YAML a # starts a comment",
            "in quotes",
        ),
        (agent_yaml("requires: premium"), 6, "agents[1].requires", '"premium"', "a list"),
        (agent_yaml("channels: []"), 6, "agents[1].channels", "be []", "at least one channel"),
        (agent_yaml("channels: [web, web]"), 6, "agents[1].channels[1]", "twice", "remove one"),
        (agent_yaml("on_complete: billing"), 6, "agents[1].on_complete", "to itself", "stay"),
        (
            agent_yaml("on_complete: returns"),
            6,
            "agents[1].on_complete",
            'names "returns"',
            'did you mean "return"? use one of release, return, stay, home, billing',
        ),
        (
            f"{agent_yaml('on_complete: log')}  - {{id: log, name: Log, kind: system}}\n",
            6,
            "agents[1].on_complete",
            'names "log", a system agent',
            "name a specialist",
        ),
        (
            agent_yaml("kind: supervisor"),
            6,
            "agents[1].kind",
            'agent "billing" is of kind supervisor, but supervisor names "home"',
            "make it a specialist",
        ),
        (
            SMALL.replace("name: Home", "name: Home, kind: specialist"),
            5,
            "agents[0].kind",
            "the supervisor cannot be of kind specialist",
            "write supervisor",
        ),
        (
            SMALL.replace("name: Home", "name: Home, enabled: false"),
            5,
            "agents[0].enabled",
            "the supervisor cannot be disabled",
            "remove the key",
        ),
        (
            SMALL.replace("name: Home", "name: Home, requires: [x]"),
            5,
            "agents[0].requires",
            "the supervisor cannot have requires",
            "remove the key",
        ),
        (
            SMALL.replace("name: Home", "name: Home, channels: [web]").replace(
                "supervisor:", "default_agent:"
            ),
            5,
            "agents[0].channels",
            "the default agent cannot have channels",
            "remove the key",
        ),
        (
            f"limits: {{turn_timeout: 20 minutes}}\n{SMALL}",
            1,
            "limits.turn_timeout",
            'turn_timeout cannot be "20 minutes"',
            "a duration with its units, such as 15m",
        ),
        (f"limits: {{turn_timeout: 15}}\n{SMALL}", 1, "limits.turn_timeout", "be 15", "units"),
        (f"limits: {{turn_timeout: 2d}}\n{SMALL}", 1, "limits.turn_timeout", "bounds", "1s to 1d"),
        (
            f"limits: {{parked_timeout: 366d}}\n{SMALL}",
            1,
            "limits.parked_timeout",
            "bounds",
            "365d",
        ),
        (f"tasks: fork\n{SMALL}", 1, "tasks", 'cannot be "fork"', "join or new"),
        (f"while_paused: wait\n{SMALL}", 1, "while_paused", 'cannot be "wait"', "hold or park"),
        (
            f"limits: {{idle_timeout: 0s}}\n{SMALL}",
            1,
            "limits.idle_timeout",
            "bounds",
            "1s to 365d",
        ),
        (agent_yaml("idle_timeout: 1d366d"), 6, "agents[1].idle_timeout", "1d366d", "a duration"),
        (agent_yaml("idle_timeout: 999d"), 6, "agents[1].idle_timeout", "bounds", "1s to 365d"),
        (
            f"limits: {{hops_per_message: 21}}\n{SMALL}",
            1,
            "limits.hops_per_message",
            "21",
            "1 to 20",
        ),
        (f"limits: {{return_depth: 0}}\n{SMALL}", 1, "limits.return_depth", "be 0", "1 to 8"),
        (f"limits: {{open_turns: 17}}\n{SMALL}", 1, "limits.open_turns", "be 17", "1 to 16"),
        (f"stickiness: on\n{SMALL}", 1, "stickiness", 'be "on"', "enabled or disabled"),
        (f"topics: {{lock_threshold: never}}\n{SMALL}", 1, "topics.lock_threshold", "never", "off"),
        (f"topics: {{threshold: 1.2}}\n{SMALL}", 1, "topics.threshold", "1.2", "from 0 to 1"),
        (
            f"commands: {{disabled: [/reset]}}\n{SMALL}",
            1,
            "commands.disabled[0]",
            "reset",
            "one of",
        ),
        (f"default_locale: e\n{SMALL}", 1, "default_locale", 'be "e"', "a language tag"),
        (f"{SMALL}  - nonsense\n", 7, "agents[2]", 'be "nonsense"', "a mapping"),
        (
            "api_version: agent_routing/v1\nversion: 1\nsupervisor: a\nagents: []\n",
            4,
            "agents",
            "[]",
            "list",
        ),
        ("- a\n- b\n", 1, "", "not a mapping", "api_version: agent_routing/v1"),
        ("just words", 1, "", "not a mapping", "api_version"),
        ("", 1, "", "empty", "write"),
        ("agents: [", 1, "", "cannot be read", "close the bracket"),
        (f"{SMALL}---\n{SMALL}", 7, "", "second document", "one document"),
        (agent_yaml("icon: !!python/name:os.system x"), 6, "", "tag", "remove the tag"),
    ],
)
def test_file_is_refused_with_place_value_and_remedy(text, line, path, message, remedy):
    """The problem, its value, its place and a remedy, for each kind of mistake."""
    if "supervisor: a\n" in text:  # Without agents the supervisor is unknown as well.
        problem = next(p for p in problems_of(text) if p.path == path)
    else:
        problem = only_problem(text)
    assert (problem.line, problem.path) == (line, path)
    assert problem.column >= 1
    assert message in problem.message
    assert remedy in problem.remedy


def test_all_problems_are_named_at_once_in_the_order_of_the_file():
    """The author can correct all of them at once."""
    text = """\
api_version: agent_routing/v1
version: two words
supervisor: nobody
sticky: enabled
limits: {hops_per_message: 0, turn_timeout: soon}
agents:
  - id: a
    name: {es: A}
    on_complete: b
    handoff_to: [c, d]
  - id: A
    kind: robot
  - 7
"""
    problems = problems_of(text)
    assert [(problem.line, problem.path) for problem in problems] == [
        (2, "version"),
        (3, "supervisor"),
        (4, "sticky"),
        (5, "limits.hops_per_message"),
        (5, "limits.turn_timeout"),
        (8, "agents[0].name"),
        (9, "agents[0].on_complete"),
        (10, "agents[0].handoff_to[0]"),
        (10, "agents[0].handoff_to[1]"),
        (11, "agents[1]"),
        (11, "agents[1].id"),
        (12, "agents[1].kind"),
        (13, "agents[2]"),
    ]


def test_error_reads_like_a_compilers():
    """File, line, column, path, problem and remedy on each line, for editors."""
    with pytest.raises(RegistryFileError) as raised:
        parse_registry(agent_yaml("enabled: yes"), "agents.yaml")
    assert str(raised.value) == (
        'agents.yaml:6:79: agents[1].enabled: enabled cannot be "yes"; use true or false'
    )
    assert raised.value.source == "agents.yaml"


def test_long_lists_of_problems_are_cut_and_counted():
    """The message stays readable; the attribute has all of them."""
    text = SMALL + "".join(f"  - {{id: a{i}}}\n" for i in range(80))
    with pytest.raises(RegistryFileError) as raised:
        parse_registry(text, "agents.yaml")
    assert len(raised.value.problems) == 80
    assert str(raised.value).splitlines()[-1] == "agents.yaml: and 30 more problems"


def test_unknown_version_hides_what_else_it_would_get_wrong():
    """Keys of another format version are not reported as mistakes."""
    problem = only_problem("api_version: agent_routing/v9\nrobots: [a]\n")
    assert problem.path == "api_version"
    assert API_VERSIONS == ("agent_routing/v1", "agent_routing/v1.1")


def test_newer_files_park_and_queue_unless_they_say_otherwise():
    """A file keeps the behaviour of its version; each key can be set in both."""
    old, new = SMALL, SMALL.replace(*API_VERSIONS)
    assert new != old
    files = (
        old,
        f"while_paused: park\ndouble_text: queue\n{old}",
        new,
        f"while_paused: hold\ndouble_text: allow\n{new}",
        f"double_text: reject\n{new}",
    )
    found = [
        (read.while_paused.value, read.double_text_queues, read.double_text_rejects)
        for read in (parse_registry(text, "agents.yaml") for text in files)
    ]
    assert found == [
        ("hold", False, False),
        ("park", True, False),
        ("park", True, False),
        ("hold", False, False),
        ("park", False, True),
    ]


def test_messages_join_the_open_task_unless_the_file_says_new():
    """In both versions of the file."""
    newer = SMALL.replace(*API_VERSIONS)
    files = (SMALL, newer, f"tasks: join\n{newer}", f"tasks: new\n{SMALL}")
    found = [parse_registry(text, "agents.yaml").begins_tasks for text in files]
    assert found == [False, False, False, True]


def test_long_values_are_cut_in_messages():
    """A whole description is not repeated in an error."""
    problem = only_problem(agent_yaml(f"icon: {'x' * 5000}"))
    assert len(problem.message) < 120
    assert "…" in problem.message


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda _path: None, "no such file"),
        (lambda path: path.mkdir(), "a directory"),
        (lambda path: path.write_bytes(b"version: \xff"), "byte 0xff at offset 9 is not UTF-8"),
        (lambda path: path.write_bytes(b"\xc3" * (TEXT_BYTES_MAX + 10)), "read at most"),
        (lambda path: path.write_bytes(b"# x\n" * (TEXT_BYTES_MAX // 2)), "read at most"),
        (lambda path: path.write_bytes(b""), "empty"),
    ],
)
def test_file_that_cannot_be_read_is_a_problem_too(tmp_path, prepare, message):
    """All read errors are reported as the same exception."""
    path = tmp_path / "agents.yaml"
    prepare(path)
    with pytest.raises(RegistryFileError, match=message) as raised:
        load_registry(path)
    assert raised.value.source == str(path)
    assert raised.value.problems[0].remedy


# --- Warnings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (
            SMALL.replace("name: Home", "name: Home, sticks: never"),
            (
                "5:agents[0].sticks: sticks has no effect on the supervisor, "
                "which never becomes active"
            ),
        ),
        (
            agent_yaml("on_complete_message: Done"),
            (
                '6:agents[1].on_complete_message: agent "billing" has an '
                "on_complete_message, which is shown only before another agent"
            ),
        ),
        (
            SMALL.replace(", description: Invoices and payments", ""),
            '6:agents[1]: agent "billing" has no description',
        ),
        (
            agent_yaml("handoff_to: [billing]"),
            (
                '6:agents[1].handoff_to[0]: agent "billing" may never hand over to "billing", '
                "which is itself"
            ),
        ),
        (
            agent_yaml("owns_session: true, sticks: never"),
            '6:agents[1].owns_session: agent "billing" owns the session but never keeps it',
        ),
        (
            "commands: {disabled: [supervisor, reset]}\n"
            + agent_yaml("owns_session: true, on_complete: stay"),
            (
                '7:agents[1].on_complete: agent "billing" stays when it is done, and users have no '
                "command to leave it"
            ),
        ),
        (
            (
                f"{agent_yaml('on_complete: b')}"
                "  - {id: b, name: B, description: B, on_complete: billing}\n"
            ),
            "6:agents[1].on_complete: completions form a circle: billing -> b -> billing",
        ),
        (
            (
                f"{agent_yaml('on_complete: b')}"
                "  - {id: b, name: B, description: B, enabled: false}\n"
            ),
            '6:agents[1].on_complete: agent "billing" completes to "b", which is disabled',
        ),
        (
            SMALL.replace("name: Home", "name: Home, handoff_to: []"),
            (
                '6:agents[1]: no conversation can reach agent "billing": no reachable agent '
                "hands over or completes to it, and users cannot select it"
            ),
        ),
        (
            agent_yaml("enabled: false"),
            "4:agents: there is no enabled specialist to hand a conversation to",
        ),
        (
            SMALL.replace("name: Billing", "name: {en: Billing, es: Cobros}"),
            '5:agents[0].name: name of agent "home" has no text in es',
        ),
        (
            f"default_locale: de\n{SMALL}",
            '1:default_locale: the replies to commands are not there in "de"',
        ),
        (
            f"topics: {{mode: auto}}\n{SMALL}",
            (
                "1:topics: topics are on, and there are not two agents that a topic could switch "
                "between"
            ),
        ),
        (
            f"topics: {{first_message: auto}}\n{SMALL}",
            "1:topics.first_message: first_message: auto has no effect while topics are off",
        ),
        (
            agent_yaml("topics: {threshold: 0.9}"),
            ('6:agents[1].topics: topics of agent "billing" has no effect while topics are off'),
        ),
        (
            (
                f"topics: {{mode: auto, threshold: 0.9, lock_threshold: 0.7}}\n{SMALL}"
                "  - {id: b, name: B, description: B}\n"
            ),
            (
                "1:topics.lock_threshold: lock_threshold 0.7 is below threshold 0.9, which counts "
                "for locked agents too"
            ),
        ),
        (
            (
                f"topics: {{mode: auto}}\n{SMALL}  - {{id: b, name: B, description: B}}\n"
                "  - {id: s, name: S, kind: system, topics: {mode: auto}}\n"
            ),
            (
                '9:agents[3].topics: topics of agent "s" has no effect: no topic brings users to a '
                "system"
            ),
        ),
        (
            f"{SMALL}  - {{id: s, name: S, kind: system, user_selectable: true}}\n",
            (
                '7:agents[2].user_selectable: agent "s" is user_selectable, but a system agent '
                "refuses every handoff"
            ),
        ),
        (
            f"{agent_yaml('handoff_to: [s]')}  - {{id: s, name: S, kind: system}}\n",
            (
                '6:agents[1].handoff_to[0]: agent "billing" may never hand over to "s", which is a '
                "system agent"
            ),
        ),
    ],
)
def test_what_works_but_is_hardly_meant_is_a_warning(text, warning):
    """The registry is accepted; its author gets one warning with the place."""
    assert warnings_of(text) == [warning]


@pytest.mark.parametrize(
    "text",
    [
        SMALL,
        # Topics, users and completions reach it without a handoff.
        f"topics: {{mode: suggest}}\n{SMALL}".replace("name: Home", "name: Home, handoff_to: [b]")
        + "  - {id: b, name: B, description: B, handoff_to: []}\n",
        SMALL.replace("name: Home", "name: Home, handoff_to: []").replace(
            "payments}", "payments, user_selectable: true}"
        ),
        SMALL.replace("name: Home", "name: Home, handoff_to: [billing]").replace(
            "payments}", "payments, handoff_to: [], on_complete: b}"
        )
        + "  - {id: b, name: B, description: B}\n",
        # A disabled agent is unreachable on purpose.
        SMALL.replace("payments}", "payments, on_complete: stay, owns_session: true}"),
    ],
)
def test_registry_that_makes_sense_has_no_warnings(text):
    """Warnings are only read if there are few."""
    assert warnings_of(text) == []


# --- The schema -------------------------------------------------------------------------------


def test_schema_is_a_valid_json_schema():
    """Editors will use it."""
    schema = registry_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.validate(YAML(typ="safe", pure=True).load(FULL), schema)


def test_printed_schema_cannot_be_changed_by_its_reader():
    """Each caller gets a copy."""
    registry_schema()["properties"].clear()
    assert "agents" in registry_schema()["properties"]


def properties_of(schema: dict[str, Any], path: str = "") -> list[tuple[str, dict[str, Any]]]:
    """Return every property of a schema with its path."""
    found = []
    for name, prop in schema.get("properties", {}).items():
        found.append((f"{path}{name}", prop))
        found += properties_of(prop, f"{path}{name}.")
    return found


def test_every_property_is_described_and_says_what_it_expects():
    """The schema is the documentation of the file."""
    schema = registry_schema()
    properties = properties_of(schema) + properties_of(schema["$defs"]["agent"], "agents.")
    assert {"version", "limits.turn_timeout", "agents.id", "agents.color"} <= dict(
        properties
    ).keys()
    for path, prop in properties:
        resolved = schema["$defs"][prop["$ref"].rpartition("/")[2]] if "$ref" in prop else prop
        if path != "agents":
            assert prop["description"].endswith("."), path
        assert resolved.get("x-expects") or "items" in resolved, path


def test_schema_and_core_have_the_same_bounds_and_words():
    """The values are stated in both, so this test compares them."""
    schema = registry_schema()
    limits = schema["properties"]["limits"]["properties"]
    for name in ("hops_per_message", "return_depth", "open_turns"):
        bounds = [getattr(core, f"{name.upper()}_{end}") for end in ("MIN", "MAX", "DEFAULT")]
        assert [limits[name][key] for key in ("minimum", "maximum", "default")] == bounds
    assert duration_us(limits["turn_timeout"]["default"]) == core.TURN_TIMEOUT_DEFAULT_US
    agent = schema["$defs"]["agent"]["properties"]
    assert agent["turns_max"]["maximum"] == core.TURNS_MAX_MAX
    assert schema["properties"]["agents"]["maxItems"] == core.AGENTS_MAX
    assert agent["kind"]["enum"] == [kind.value for kind in AgentKind]
    assert agent["sticks"]["enum"] == [sticks.value for sticks in Sticks]
    commands = schema["properties"]["commands"]["properties"]["disabled"]["items"]["enum"]
    assert sorted(commands) == sorted(command.name for command in SLASH_COMMANDS)
    assert tuple(schema["properties"]["api_version"]["enum"]) == API_VERSIONS
    topics = schema["properties"]["topics"]["properties"]
    assert topics["when_unsure"]["enum"] == [each.value for each in WhenUnsure]
    assert topics["ask_share"]["default"] == core.ASK_SHARE_DEFAULT
    pattern = schema["$defs"]["agent_id"]["pattern"].removeprefix("^").removesuffix("$")
    assert rf"\A{pattern}\Z" == ID_PATTERN


# --- Any file ---------------------------------------------------------------------------------

IDS = st.from_regex(r"\A[A-Za-z][A-Za-z0-9._:@=;+-]{0,12}\Z").filter(
    lambda name: name.lower() not in core.RESERVED_AGENT_IDS
)
NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20)


@st.composite
def registry_data(draw) -> dict[str, Any]:
    """Return a registry as plain data, correct by construction."""
    ids = draw(st.lists(IDS, min_size=2, max_size=6, unique_by=str.casefold))
    home, others = ids[0], ids[1:]
    agents: list[dict[str, Any]] = [{"id": home, "name": draw(NAMES)}]
    for agent_id in others:
        optional = {
            "sticks": st.sampled_from([sticks.value for sticks in Sticks]),
            "owns_session": st.booleans(),
            "handoff_to": st.lists(st.sampled_from(ids), unique=True),
            "turns_max": st.integers(0, core.TURNS_MAX_MAX),
            "on_complete": st.sampled_from(
                ["stay", "release", "return", *(i for i in ids if i != agent_id)]
            ),
            "requires": st.lists(st.sampled_from(["a", "plan:premium"]), unique=True),
            "channels": st.lists(st.sampled_from(["web", "whatsapp"]), min_size=1, unique=True),
            "idle_timeout": st.integers(1, 3600).map(lambda seconds: f"{seconds}s"),
            "markers": st.booleans(),
            "enabled": st.booleans(),
            "examples": st.lists(NAMES, max_size=3),
        }
        chosen = draw(st.fixed_dictionaries({}, optional=optional))
        name = {"en": draw(NAMES), "es": draw(NAMES)}
        agents.append({"id": agent_id, "name": name, **chosen})
    home_key = draw(st.sampled_from(["supervisor", "default_agent"]))
    return {
        "api_version": "agent_routing/v1",
        "version": draw(st.integers(0, 10**6)),
        home_key: home,
        "agents": agents,
    }


def as_yaml(data: object) -> str:
    """Return data as another YAML writer writes it."""
    stream = StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.allow_unicode = True
    # In flow style this writer leaves a leading question mark bare, which YAML does not allow.
    yaml.default_flow_style = False
    yaml.dump(data, stream)
    return str(stream.getvalue())


@given(registry_data())
def test_any_correct_registry_is_read_the_same_from_yaml_and_json(data):
    """The layout of a file does not matter, and what is written is what is read."""
    registry = parse_registry(as_yaml(data), "yaml")
    assert registry == parse_registry(json.dumps(data), "json")
    assert list(registry.agents) == [agent["id"] for agent in data["agents"]]
    for agent in data["agents"]:
        read = registry.agents[agent["id"]]
        assert read.display_name("es", "en") == (
            agent["name"] if isinstance(agent["name"], str) else agent["name"]["es"]
        )
        assert read.handoff_to == (
            frozenset(agent["handoff_to"]) if "handoff_to" in agent else None
        )
        assert read.requires == frozenset(agent.get("requires", ()))
        assert registry.resolve(agent["id"].swapcase()) == agent["id"]


@given(registry_data(), st.data())
def test_any_damage_to_a_registry_is_taken_or_told(data, draw):
    """Any replaced value gives either a registry or a list of problems."""
    agent = draw.draw(st.sampled_from(data["agents"]))
    target = draw.draw(st.sampled_from([data, agent]))
    key = draw.draw(st.sampled_from([*target, "handoff_to", "on_complete", "color", "new key"]))
    target[key] = draw.draw(
        st.sampled_from(
            [None, "", " ", 0, -1, 1.5, True, [], {}, [None], {"en": 1}, ["x", "x"], "x"]
        )
        | st.text(max_size=5)
    )
    problems: tuple[FileProblem, ...] = ()
    registry = None
    try:
        registry = check_registry(json.dumps(data), "json").registry
    except RegistryFileError as error:
        problems = error.problems
    assert bool(problems) == (registry is None)
    assert all(problem.message and problem.remedy for problem in problems)


def test_a_refusal_does_not_keep_the_text_that_it_refuses():
    """An error is kept by whatever waited for it, and a text of 350 bytes can expand to 40 MB."""
    lines = ["a: &a [" + "x," * 50 + "]"]
    lines += [
        f"{key}: &{key} [" + f"*{before}," * 50 + "]"
        for before, key in zip("abc", "bcd", strict=True)
    ]
    for text in ("\n".join(lines), "api_version: agent_routing/v1\nagents: [{id: 1}]"):
        with pytest.raises(RegistryFileError) as refused:
            check_registry(text, "agents.yaml")
        frames = [frame for frame, _ in traceback.walk_tb(refused.value.__traceback__)]
        kept = [each for frame in frames for each in frame.f_locals.values()]
        assert not any(isinstance(each, Document) for each in kept)
