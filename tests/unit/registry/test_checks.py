"""The registry as a value: its checks, and lookups of names and languages."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_service.core.identifiers import ID_PATTERN
from routing_service.core.registry import (
    DAY_US,
    HOUR_US,
    MINUTE_US,
    SECOND_US,
    Agent,
    AgentKind,
    Limits,
    OnComplete,
    Registry,
    fold_locale,
    fold_name,
    locale_chain,
    localised,
)

SUPERVISOR = Agent("coordinator", kind=AgentKind.SUPERVISOR)


def registry(*agents: Agent, home: Agent = SUPERVISOR, **fields: object) -> Registry:
    """Return a registry of a home agent and others."""
    return Registry(
        version="1",
        home_agent_id=home.agent_id,
        agents={agent.agent_id: agent for agent in (home, *agents)},
        **fields,
    )


def test_registry_finds_agents_by_id_only():
    """agent() takes ids from events and state; an alias there would be a bug."""
    found = registry(Agent("billing", aliases=("Billing Desk",)))
    assert found.agent("billing") is found.agents["billing"]
    assert found.agent("Billing Desk") is None
    assert found.agent("BILLING") is None
    assert found.home is SUPERVISOR


@pytest.mark.parametrize(
    "name",
    [
        "billing",
        "BILLING",
        " billing ",
        "Billing Desk",
        "billing desk",
        "FACTURACIÓN",
        "facturación",
    ],
)
def test_names_resolve_in_any_case_and_composition(name):
    """Frameworks and users write names their own way; composed or not, an accent is an accent."""
    found = registry(
        Agent("billing", aliases=("Billing Desk", "Facturacio\N{COMBINING ACUTE ACCENT}n"))
    )
    assert found.resolve(name) == "billing"


@pytest.mark.parametrize("name", ["", "bill", "billing-desk", "Facturacion", "coordinador"])
def test_other_names_resolve_to_nobody(name):
    """A similar name is not a match: no message is routed by a guess."""
    found = registry(Agent("billing", aliases=("Billing Desk", "Facturación")))
    assert found.resolve(name) is None


def test_specialists_keep_the_order_of_the_registry():
    """Users see agents in file order."""
    found = registry(
        Agent("b"), Agent("log", kind=AgentKind.SYSTEM), Agent("a", enabled=False), Agent("c")
    )
    assert [agent.agent_id for agent in found.specialists] == ["b", "a", "c"]


def test_swarm_starts_with_a_specialist():
    """Without a supervisor the default agent is a specialist like the others."""
    home = Agent("triage")
    found = registry(Agent("sales"), home=home, is_swarm=True)
    assert found.home is home
    assert home in found.specialists


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Registry(version="1", home_agent_id="x", agents={}), "is not registered"),
        (lambda: registry(home=Agent("a")), "is a specialist, not a supervisor"),
        (lambda: registry(is_swarm=True), "is a supervisor, not a specialist"),
        (
            lambda: registry(home=Agent("a", kind=AgentKind.SYSTEM), is_swarm=True),
            "is a system, not a specialist",
        ),
        (lambda: registry(Agent("b", kind=AgentKind.SUPERVISOR)), "second supervisor"),
        (
            lambda: registry(home=Agent("a", kind=AgentKind.SUPERVISOR, enabled=False)),
            "must be enabled",
        ),
        (
            lambda: registry(home=Agent("a", kind=AgentKind.SUPERVISOR, requires=frozenset({"p"}))),
            "without requires",
        ),
        (
            lambda: registry(home=Agent("a", kind=AgentKind.SUPERVISOR, channels=frozenset())),
            "without channels",
        ),
        (lambda: registry(Agent("a", aliases=("X",)), Agent("b", aliases=("x",))), "two agents"),
        (lambda: registry(Agent("a", aliases=("COORDINATOR",))), "two agents"),
        (lambda: registry(Agent("a"), Agent("A")), "two agents"),
        (lambda: registry(Agent("a", handoff_to=frozenset({"b"}))), "refers to 'b'"),
        (
            lambda: registry(
                Agent("a", on_complete=OnComplete.HOP, on_complete_agent_id="b"),
            ),
            "refers to 'b'",
        ),
        (
            lambda: Registry(
                version="1", home_agent_id="coordinator", agents={"other": SUPERVISOR}
            ),
            "use the id as key",
        ),
    ],
)
def test_incoherent_registry_cannot_be_made(build, message):
    """Decisions rely on a coherent registry, so an incoherent one cannot exist."""
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    "fields",
    [
        {"agent_id": ""},
        {"agent_id": "a", "on_complete": OnComplete.HOP},
        {"agent_id": "a", "on_complete_agent_id": "b"},
        {"agent_id": "a", "turns_max": -1},
        {"agent_id": "a", "turns_max": 1001},
        {"agent_id": "a", "idle_timeout_us": 0},
        {"agent_id": "a", "idle_timeout_us": 366 * DAY_US},
    ],
)
def test_incoherent_agent_cannot_be_made(fields):
    """No rule could interpret such an agent."""
    with pytest.raises(ValueError, match="agent"):
        Agent(**fields)


@pytest.mark.parametrize(
    ("name", "minimum", "maximum"),
    [
        ("hops_per_message", 1, 20),
        ("return_depth", 1, 8),
        ("open_turns", 1, 16),
        ("turn_timeout_us", SECOND_US, DAY_US),
        ("idle_timeout_us", SECOND_US, 365 * DAY_US),
    ],
)
def test_limits_have_bounds(name, minimum, maximum):
    """These limits bound the size of a session's state."""
    assert getattr(Limits(**{name: minimum}), name) == minimum
    assert getattr(Limits(**{name: maximum}), name) == maximum
    for value in (minimum - 1, maximum + 1):
        with pytest.raises(ValueError, match=f"{name} {value} is out of bounds"):
            Limits(**{name: value})


def test_default_limits_are_what_the_file_promises():
    """5 hops, 8 frames, 16 turns, 15 minutes, and no idle timeout."""
    assert Limits() == Limits(5, 8, 16, 15 * MINUTE_US, None)
    assert HOUR_US == 60 * MINUTE_US


def test_nothing_in_a_registry_can_be_reassigned():
    """One value is shared by all sessions."""
    found = registry()
    with pytest.raises(FrozenInstanceError):
        found.version = "2"
    with pytest.raises(FrozenInstanceError):
        found.home.enabled = False


@pytest.mark.parametrize(
    ("locale", "chain"),
    [
        ("", ()),
        ("es", ("es",)),
        ("es_MX", ("es-mx", "es")),
        ("ES-419", ("es-419", "es")),
        ("zh-Hant-TW", ("zh-hant-tw", "zh-hant", "zh")),
        ("en-x-pirate", ("en-x-pirate", "en")),
    ],
)
def test_locale_falls_back_to_its_parents(locale, chain):
    """Most specific first, as RFC 4647 looks tags up."""
    assert locale_chain(locale) == chain


@given(st.text(max_size=40))
def test_any_locale_has_a_finite_chain_of_shorter_tags(locale):
    """The lookup ends for every locale that a caller may send."""
    chain = locale_chain(locale)
    assert list(chain) == sorted(set(chain), key=len, reverse=True)
    assert all(fold_locale(locale).startswith(tag) for tag in chain)


@pytest.mark.parametrize(
    ("locale", "default_locale", "text"),
    [
        ("es-MX", "en", "Impuestos"),
        ("pt_BR", "en", "Impostos (BR)"),
        ("pt", "en", "Taxes"),
        ("fr", "es", "Impuestos"),
        ("", "es-AR", "Impuestos"),
        ("fr", "de", "Taxes"),
    ],
)
def test_text_is_found_in_the_nearest_language(locale, default_locale, text):
    """The user's language, its parents, the default one, else the first there is."""
    texts = {"en": "Taxes", "es": "Impuestos", "pt-BR": "Impostos (BR)"}
    assert localised(texts, locale, default_locale) == text


def test_agent_without_a_name_is_called_by_its_id():
    """Something is always shown."""
    assert Agent("billing").display_name("es", "en") == "billing"
    assert Agent("billing").display_description("es", "en") == ""
    assert Agent("billing").completion_message("es", "en") == ""


def test_agent_texts_are_localised():
    """Names, descriptions and completion messages have a language each."""
    agent = Agent(
        "billing",
        name={"en": "Billing", "es": "Cobros"},
        description={"en": "Invoices"},
        on_complete=OnComplete.HOP,
        on_complete_agent_id="x",
        on_complete_message={"es": "Hecho"},
    )
    assert agent.display_name("es-CL", "en") == "Cobros"
    assert agent.display_description("es", "en") == "Invoices"
    assert agent.completion_message("en", "es") == "Hecho"


@given(st.text(max_size=20))
def test_folding_a_name_twice_changes_nothing(name):
    """Names are compared folded, so folding must settle."""
    assert fold_name(fold_name(name)) == fold_name(name)


@pytest.mark.parametrize("agent_id", ["a", "A.b_c:d-e@f=g;h+i", "x" * 128])
def test_id_pattern_accepts(agent_id):
    """All the characters that ids may have, and the longest id."""
    assert re.match(ID_PATTERN, agent_id)


@pytest.mark.parametrize("agent_id", ["", "a b", "a\n", "x" * 129, "ñ", "a/b", "a\x00"])
def test_id_pattern_refuses(agent_id):
    """A trailing line break is the classic that a $ lets through."""
    assert not re.match(ID_PATTERN, agent_id)
