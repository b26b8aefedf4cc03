"""Texts and replies: every one in every language, no holes, no invisible characters, no errors."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace

import pytest
from fluent.syntax import FluentParser
from fluent.syntax import ast as fluent_ast
from fluent.syntax.visitor import Visitor
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as replace_record

from routing_service.core.channel_profiles import BUILT_IN_PROFILES, ChannelProfiles
from routing_service.core.handoff_rules import HANDOFF_RULES
from routing_service.core.history import TurnRecord
from routing_service.core.registry import Agent, AgentKind, Registry
from routing_service.core.slash_commands import (
    SLASH_COMMANDS,
    STATUS_DETAILS,
    ReplySpec,
    parse,
)
from routing_service.examples.scripted_agents import load_lines
from routing_service.texts import (
    MissingTexts,
    RenderedReply,
    Texts,
    missing_texts,
    render_reply,
    render_suggestion,
    shipped_texts,
)
from routing_service.texts.replies import (
    DESCRIPTION_CHARACTERS_MAX,
    HISTORY_CHARACTERS_MAX,
    LISTED_MAX,
    REPLY_CHARACTERS_MAX,
    WRITTEN_CHARACTERS_MAX,
)

LOCALES = ["en", "es", "pt"]

# The languages that the examples speak.
EXAMPLE_LOCALES = ["en", "es"]

REGISTRY = Registry(
    version="1",
    home_agent_id="coordinator",
    agents={
        "coordinator": Agent(
            "coordinator",
            name={"en": "Coordinator", "es": "Coordinadora"},
            kind=AgentKind.SUPERVISOR,
        ),
        "vat": Agent(
            "vat",
            name={"en": "VAT specialist", "es": "Especialista en IVA"},
            description={"en": "VAT and its deadlines.", "es": "El IVA y sus plazos."},
            user_selectable=True,
        ),
        "payroll": Agent("payroll", name={"en": "Payroll", "es": "Nóminas"}),
    },
)
BOTH = ("vat", "payroll")


SPOKEN = replace(REGISTRY, channels=ChannelProfiles({"any": BUILT_IN_PROFILES["voice"]}))


def turn(place: int, agent_id: str, text: str, message_revision: int = 0) -> TurnRecord:
    """Return a turn that an agent had, with the user's text."""
    return TurnRecord(
        position=(place, 0),
        request_id=f"request-{place}",
        agent_id=agent_id,
        task_id="task",
        message_revision=message_revision or place,
        create_us=place,
        revision=place,
        user_text=text,
        agent_text="what an agent said",
    )


# A message that was handed over, and one that is a picture.
TURNS = (
    turn(1, "coordinator", "When is VAT due?"),
    turn(2, "vat", "When is VAT due?", message_revision=1),
    turn(4, "vat", ""),
)


def text_of(reply: ReplySpec, locale: str = "en", registry: Registry = REGISTRY) -> str:
    """Return a reply's text."""
    return render_reply(reply, registry, locale).text


def without(*commands: str) -> Registry:
    """Return the registry with some commands switched off."""
    return replace(REGISTRY, disabled_commands=frozenset(commands))


# --- Catalogues -------------------------------------------------------------------------------


class _Variables(Visitor):
    """Collects the variables that a message uses."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_VariableReference(self, node: fluent_ast.VariableReference) -> None:  # noqa: N802
        self.names.add(node.id.name)


def variables_by_message(source: str) -> dict[str, set[str]]:
    """Return the variables of each message in a catalogue."""
    found = {}
    for entry in FluentParser().parse(source).body:
        assert not isinstance(entry, fluent_ast.Junk), entry.content
        if isinstance(entry, fluent_ast.Message):
            visitor = _Variables()
            visitor.visit(entry)
            found[entry.id.name] = visitor.names
    return found


def sources() -> dict[str, dict[str, str]]:
    """Return every catalogue in the package: folder and example → locale → source."""
    from importlib import resources  # noqa: PLC0415 - only here.

    texts = resources.files("routing_service.texts")
    lines = resources.files("routing_service.examples") / "lines"
    found = {"texts": {tag: (texts / f"{tag}.ftl").read_text("utf-8") for tag in LOCALES}}
    for example in ("tax", "tutor", "budget"):
        found[example] = {
            tag: (lines / f"{example}.{tag}.ftl").read_text("utf-8") for tag in EXAMPLE_LOCALES
        }
    return found


@pytest.mark.parametrize("name", ["texts", "tax", "tutor", "budget"])
def test_languages_have_the_same_messages_with_the_same_variables(name):
    """A translation that drops a name or a number says something else."""
    catalogues = {tag: variables_by_message(source) for tag, source in sources()[name].items()}
    assert len(catalogues) >= 2
    for tag, found in catalogues.items():
        assert whichever_form(found) == whichever_form(catalogues["en"]), tag


def whichever_form(found: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return variables without the form of a name: languages need different ones."""
    return {
        message_id: {re.sub(r"_(the|of|to|start)$", "", name) for name in names}
        for message_id, names in found.items()
    }


def test_shipped_texts_lack_nothing():
    """Every text there is can be said in every language there is."""
    assert set(shipped_texts().locales) == set(LOCALES)
    assert missing_texts() == ()


def test_no_text_is_left_that_nothing_says():
    """Each message of the catalogue is said by some reply of the table below, or by an offer."""
    offer = render_suggestion("vat", "payroll", REGISTRY, "en", _Echo())
    spoken = render_suggestion("vat", "payroll", SPOKEN, "en", _Echo())
    offered = [offer.text, offer.accept_label, offer.stay_label, spoken.text]
    said = set(re.findall(r"⟦([\w-]+)⟧", "".join([*all_replies(_Echo()), *offered])))
    assert set(shipped_texts().message_ids("en")) == said


class _Echo(Texts):
    """Texts that say their own ids, to see which ones a reply uses."""

    def __init__(self) -> None:
        super().__init__(sources()["texts"])

    def render(self, message_id, locale, /, *, default_locale="en", **variables):
        text = super().render(message_id, locale, default_locale=default_locale, **variables)
        return f"⟦{message_id}⟧{text}"


WAITS = (("paused", "running"), ("locked", "paused"))


def all_specs() -> list[ReplySpec]:
    """Return every variant of every reply."""
    rules = tuple(rule.name for rule in HANDOFF_RULES)
    specs = [
        ReplySpec("supervisor", "done", "vat", BOTH),
        ReplySpec("supervisor", "none_active", "", BOTH),
        ReplySpec("reset", "done", "", ()),
        ReplySpec("", "parked", "vat"),
        *(ReplySpec("tasks", "done", "", BOTH, counts=(1, 2), waits=w) for w in WAITS),
        ReplySpec("tasks", "done", "", ("vat",), counts=(1,), waits=("locked",)),
        ReplySpec("tasks", "none_parked"),
        ReplySpec("task", "done", "vat"),
        ReplySpec("task", "paused", "vat"),
        ReplySpec("task", "refused", detail=("owns_session",)),
        ReplySpec("task", "no_argument", "", ("vat",), counts=(1,), waits=("paused",)),
        ReplySpec("task", "unknown_task", "", ("vat",), ("7",), counts=(1,), waits=("paused",)),
        ReplySpec("reset", "done", "", ("vat",)),
        ReplySpec("agents", "done", "vat", BOTH),
        ReplySpec("agents", "done", "", ("payroll",)),
        ReplySpec("agents", "done"),
        ReplySpec("agents", "done", "", ("payroll",) * (LISTED_MAX + 3)),
        ReplySpec("agent", "done", "vat"),
        ReplySpec("agent", "already_active", "vat"),
        ReplySpec("agent", "already_active", "vat", detail=("stickiness_off",)),
        ReplySpec("agent", "refused", "payroll", BOTH, (*rules, "some_new_rule")),
        ReplySpec("agent", "refused", "payroll", BOTH, ("entitled",)),
        ReplySpec("agent", "unknown_agent", "", BOTH, ("vta",)),
        ReplySpec("agent", "no_argument", "", BOTH),
        ReplySpec("agent", "no_argument"),
        ReplySpec("agent", "which", "", BOTH, ("v",)),
        ReplySpec("status", "active", "vat", (), ("locked", "task_running", "returns_to:payroll")),
        *(ReplySpec("status", "active", "vat", (), (detail,)) for detail in STATUS_DETAILS),
        ReplySpec("status", "active", "vat"),
        ReplySpec("status", "none_active"),
        ReplySpec("history", "none_answered"),
        ReplySpec("history", "done", "", ("vat",), (), (1,)),
        ReplySpec("history", "done", "", ("vat",), ("2:task",), (1,)),
        ReplySpec("history", "done", "", ("vat", "other"), (), (2, 1)),
        ReplySpec("history", "done", "", ("vat",) * (LISTED_MAX + 3), (), (2,) * (LISTED_MAX + 3)),
        ReplySpec("help", "done"),
        ReplySpec("", "stays", "vat"),
        ReplySpec("", "notice", approval="expired"),
        ReplySpec("supervisor", "done", "vat", BOTH, approval="withdrawn"),
    ]
    return specs + [ReplySpec(command.name, "disabled") for command in SLASH_COMMANDS]


def all_replies(texts: Texts) -> list[str]:
    """Return all replies in all languages, with and without the commands that they mention."""
    return [
        render_reply(spec, registry, locale, TURNS, texts).text
        for spec in all_specs()
        for registry in (REGISTRY, without("supervisor"), without("agent", "help"))
        for locale in LOCALES
    ]


def test_every_reply_is_whole_in_every_language():
    """No gap, no id in place of a text, no invisible mark, no empty line."""
    replies = all_replies(shipped_texts())
    assert len(replies) == len(all_specs()) * 3 * len(LOCALES)
    ids = set(shipped_texts().message_ids("en"))
    for reply in replies:
        assert reply
        assert "{" not in reply
        assert all(line.strip() for line in reply.splitlines())
        assert not ids & set(reply.splitlines())
        invisible = [c for c in reply if unicodedata.category(c) in {"Cf", "Cc"} and c != "\n"]
        assert invisible == []


def test_replies_differ_between_the_languages():
    """The Spanish texts are not the English ones, and the Portuguese are not the Spanish."""
    for spec in all_specs():
        assert len({text_of(spec, locale) for locale in LOCALES}) == len(LOCALES)


# --- Choosing the language --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("locale", "default_locale", "chosen"),
    [
        ("es", "en", "es"),
        ("es-MX", "en", "es"),
        ("ES_419", "en", "es"),
        ("en-GB", "es", "en"),
        ("pt-BR", "es", "pt"),
        ("pt_PT", "en", "pt"),
        ("fr", "es", "es"),
        ("fr", "de", "en"),
        ("", "es", "es"),
        ("", "", "en"),
        ("not a locale", "es", "es"),
    ],
)
def test_language_is_the_users_else_the_default_else_english(locale, default_locale, chosen):
    """es-MX → es → the registry's default → English."""
    texts = shipped_texts()
    assert texts.negotiate(locale, default_locale) == chosen
    assert texts.render("help-head", locale, default_locale=default_locale) == texts.render(
        "help-head", chosen
    )


def test_reply_says_which_language_it_is_in():
    """A frontend may have to mark it up."""
    spec = ReplySpec("status", "none_active")
    assert render_reply(spec, REGISTRY, "es-MX") == RenderedReply(
        "Estás con la coordinadora.", "es"
    )
    assert render_reply(spec, REGISTRY, "fr") == RenderedReply("You are with Coordinator.", "en")


def test_user_without_a_locale_gets_the_registrys_language():
    """The registry's default counts for names and texts alike."""
    spanish = replace(REGISTRY, default_locale="es")
    assert text_of(ReplySpec("status", "none_active"), "", spanish) == "Estás con la coordinadora."


def test_missing_text_falls_back_and_is_reported():
    """A translation that is behind costs a sentence in another language, never an error."""
    texts = Texts({"en": "a = A\nb = B { $x }\n", "it": "a = Á\n"})
    assert texts.render("a", "it") == "Á"
    assert texts.render("b", "it", x=1) == "B 1"
    assert texts.missing_texts() == (MissingTexts("it", ("b",)),)
    assert str(texts.missing_texts()[0]) == 'lack these texts in "it": b'


def test_languages_without_a_catalogue_are_reported():
    """A registry may have names in languages that replies do not have."""
    assert missing_texts(["es-MX", "en", "pt-BR", "it-CH", "de"]) == (
        MissingTexts("it-CH", ()),
        MissingTexts("de", ()),
    )
    assert str(missing_texts(["de"])[0]) == 'are not there in "de"'


def test_rendering_never_raises():
    """Neither an unknown message nor a missing variable may cost a user the reply."""
    texts = Texts({"en": "a = A { $x }\n-term = T\nc =\n    .attr = only an attribute\n"})
    assert texts.render("nothing", "en") == "nothing"
    assert texts.render("a", "en").startswith("A ")
    assert texts.render("c", "en") == "c"
    assert texts.message_ids("xx") == ()


def test_text_with_a_hole_is_worse_than_the_same_text_in_english():
    """A translation with an unknown variable does not reach the user."""
    texts = Texts({"en": "a = A { $x }\n", "es": "a = Á { $y }\n"})
    assert texts.render("a", "es", x="1") == "A 1"


def test_catalogue_that_does_not_parse_is_refused():
    """Half a catalogue would otherwise be noticed only when the other half is needed."""
    with pytest.raises(ValueError, match='the "en" texts do not parse'):
        Texts({"en": "a = { $x\nb = B\n"})


@given(st.text(max_size=30), st.text(max_size=30), st.text(max_size=30))
def test_any_locale_and_any_value_render(locale, default_locale, value):
    """Locales and names come from callers and files."""
    text = shipped_texts().render("agent-done", locale, default_locale=default_locale, agent=value)
    assert value in text
    assert len(load_lines("tax").render("welcome", locale)) > 20


# --- What replies say -------------------------------------------------------------------------


def test_supervisor_confirms_and_lists_what_can_be_asked():
    """The reply names the supervisor, the agent that was left, and the agents to ask."""
    assert text_of(ReplySpec("supervisor", "done", "vat", BOTH)) == (
        "Coordinator is with you again, in place of VAT specialist.\n"
        "These are the things you can ask about:\n"
        "- VAT specialist [vat]: VAT and its deadlines.\n"
        "- Payroll\n"
        "What do you need?"
    )


def test_supervisor_command_without_an_agent_says_so():
    """Nothing was left, so nothing is said of leaving."""
    assert text_of(ReplySpec("supervisor", "none_active", "", ("payroll",)), "es") == (
        "Ya estás con la coordinadora.\n"
        "Esto es lo que puedes preguntar:\n"
        "- Nóminas\n"
        "¿Qué necesitas?"
    )


def test_agents_are_numbered_with_what_to_type_for_those_that_may_be_chosen():
    """Only what can be typed is shown as typeable; the active one is marked."""
    assert text_of(ReplySpec("agents", "done", "vat", BOTH)) == (
        "There are 2 agents who can help you:\n"
        "1. VAT specialist [vat]: VAT and its deadlines. (you are talking to this one)\n"
        "2. Payroll\n"
        "To talk to VAT specialist directly, type /agent vat"
    )


@pytest.mark.parametrize("registry", [without("agent"), REGISTRY])
def test_agents_that_cannot_be_chosen_are_only_listed(registry):
    """If /agent is off, or no agent may be chosen, no reply says to type it."""
    agent_ids = BOTH if registry.disabled_commands else ("payroll",)
    text = text_of(ReplySpec("agents", "done", "", agent_ids), registry=registry)
    assert "/agent" not in text
    assert "[" not in text
    assert text.endswith("Just ask: Coordinator brings in the right one.")


def test_status_names_the_agent_and_the_way_back():
    """Who answers, whether an answer is awaited, and how to leave."""
    detail = ("locked", "task_running", "returns_to:payroll")
    assert text_of(ReplySpec("status", "active", "vat", (), detail)) == (
        "You are talking to VAT specialist.\n"
        "VAT specialist is waiting for your answer.\n"
        "Your task is in progress.\n"
        "After that you go back to Payroll.\n"
        "To go back to Coordinator, type /supervisor"
    )


def test_status_offers_no_way_back_that_is_switched_off():
    """A command that would only be refused is not recommended."""
    spec = ReplySpec("status", "active", "vat")
    assert "/supervisor" not in text_of(spec, registry=without("supervisor"))


@pytest.mark.parametrize("detail", ["unavailable", "stickiness_off"])
def test_status_says_who_answers_while_the_agent_does_not(detail):
    """The stored agent is not who gets the next message, so it is not said to be."""
    text = text_of(ReplySpec("status", "active", "vat", (), (detail,)))
    assert "You are talking to VAT specialist" not in text
    assert "Coordinator takes" in text


def test_status_in_a_swarm_offers_no_way_from_the_default_agent_to_itself():
    """Where home may be active, going back there leads nowhere."""
    swarm = Registry(
        version="1",
        home_agent_id="triage",
        agents={"triage": Agent("triage", name={"en": "Triage"})},
        is_swarm=True,
    )
    spec = ReplySpec("status", "active", "triage")
    assert text_of(spec, registry=swarm) == "You are talking to Triage."


def test_refusal_says_why_for_each_rule_that_refused():
    """All reasons at once, in the user's language."""
    text = text_of(ReplySpec("agent", "refused", "payroll", BOTH, ("entitled", "channel")))
    assert text == (
        "Payroll cannot take your messages now.\n"
        "Your plan does not include it.\n"
        "It is not available on this channel.\n"
        "You can choose:\n"
        "1. VAT specialist [vat]: VAT and its deadlines.\n"
        "Type /agent and the number or the name."
    )


def test_refusal_for_the_present_task_offers_the_way_out_and_no_other_choice():
    """The owner of the session would refuse every other choice as well."""
    spec = ReplySpec("agent", "refused", "vat", BOTH, ("owns_session",))
    assert text_of(spec).splitlines()[1:] == [
        "What you are doing has to be finished first. To leave it, type /supervisor"
    ]
    assert text_of(spec, registry=without("supervisor")).splitlines()[1:] == [
        "What you are doing has to be finished first."
    ]


@pytest.mark.parametrize("rule", [rule.name for rule in HANDOFF_RULES])
def test_every_handoff_rule_has_words_for_users(rule):
    """A rule that is added needs a text; without one, users get a general one and this fails."""
    spec = ReplySpec("agent", "refused", "payroll", (), (rule,))
    for locale in LOCALES:
        other = shipped_texts().render("rule-other", locale)
        assert f"rule-{rule}" not in text_of(spec, locale)
        assert other not in text_of(spec, locale).splitlines()[1]


@pytest.mark.parametrize("command", SLASH_COMMANDS, ids=lambda command: command.name)
def test_every_command_has_help(command):
    """A command that is added needs a line in /help; one that is off has none."""
    for locale in LOCALES:
        typed = command.typed(locale)
        line = re.compile(rf"^{typed}\b[^\n]+", re.MULTILINE)
        assert line.search(text_of(ReplySpec("help", "done"), locale))
        off = text_of(ReplySpec("help", "done"), locale, without(command.name))
        assert not line.search(off)
        assert text_of(ReplySpec(command.name, "disabled"), locale).startswith(f"{typed} ")


@pytest.mark.parametrize("locale", LOCALES)
def test_commands_in_replies_are_the_languages_own_and_work(locale):
    """A reply only says to type commands of its language that exist."""
    registries = (REGISTRY, without("supervisor"), without("agent", "help"))
    own = {command.typed(locale) for command in SLASH_COMMANDS}
    for spec in all_specs():
        for registry in registries:
            found = set(re.findall(r"(?<!\w)/\w+", text_of(spec, locale, registry)))
            assert found <= own
            assert all(parse(typed) is not None for typed in found)


def test_commands_of_a_language_are_found_for_its_countries():
    """pt-BR writes Portuguese; a language without names of its own writes the table's."""
    helped = text_of(ReplySpec("help", "done"), "pt-BR")
    assert "/histórico: quem respondeu" in helped
    assert "/ajuda: esta lista." in helped
    assert "/history: who has answered" in text_of(ReplySpec("help", "done"), "fr")


def test_history_names_agents_with_counts_and_who_had_the_latest_messages():
    """In the order of their first turns; a message that was handed over names all who had it."""
    spec = ReplySpec("history", "done", "", ("coordinator", "vat", "other"), (), (1, 2, 7))
    assert render_reply(spec, REGISTRY, "en", TURNS).text == (
        "This conversation so far, by agent:\n"
        "- Coordinator: one answer\n"
        "- VAT specialist: 2 answers\n"
        "- others: 7 answers\n"
        "Your latest messages, and who had them:\n"
        "- “When is VAT due?”: Coordinator → VAT specialist\n"
        "- a message without text: VAT specialist"
    )
    assert render_reply(ReplySpec("history", "none_answered"), REGISTRY, "es").text == (
        "Todavía no te ha respondido nadie en esta conversación."
    )


def test_history_never_repeats_what_agents_said():
    """The reply is for a person who forgot who is who, not a second transcript."""
    spec = ReplySpec("history", "done", "", ("vat",), (), (1,))
    for locale in LOCALES:
        assert "what an agent said" not in render_reply(spec, REGISTRY, locale, TURNS).text


def test_history_has_a_bound_and_shows_the_latest():
    """It is stored with the change that it answers, so long messages and many are cut."""
    agent_ids = tuple(f"agent_{number}" for number in range(64))
    spec = ReplySpec("history", "done", "", agent_ids, (), (1_000,) * 64)
    messages = [turn(place, "x" * 128, f"{place} " + "word\n" * 900) for place in range(1, 65)]
    # One of them went round all the agents there are.
    messages += [turn(100 + n, name, "the last", 100) for n, name in enumerate(agent_ids)]
    text = render_reply(spec, REGISTRY, "en", messages).text
    lines = text.splitlines()
    assert "… and 44 more" in text
    assert lines[-5].startswith("- “61 word word")
    assert lines[-1].startswith("- “the last”: agent_0 → agent_1")
    assert max(map(len, lines)) < 2 * HISTORY_CHARACTERS_MAX + 10
    assert len(text.encode()) < 4_096


def test_history_skips_turns_whose_message_it_does_not_have():
    """What is kept in memory begins somewhere; half a line is worse than none."""
    spec = ReplySpec("history", "done", "", ("vat",), (), (1,))
    lost = replace_record(turn(3, "vat", ""), has_message=False)
    assert "latest" not in render_reply(spec, REGISTRY, "en", (lost,)).text


def test_agent_called_other_is_told_by_its_name():
    """It stands for the uncounted agents only if the registry has no agent with that id."""
    registry = replace(
        REGISTRY, agents={**REGISTRY.agents, "other": Agent("other", name={"en": "Misc"})}
    )
    spec = ReplySpec("history", "done", "", ("other",), (), (3,))
    assert "- Misc: 3 answers" in text_of(spec, "en", registry)


def test_unknown_name_is_repeated_without_its_tricks():
    """What a user typed is shown on one line, short, and cannot turn the text around."""
    written = "v\N{RIGHT-TO-LEFT OVERRIDE}ta\n\x1b[31m" + "x" * 500
    line = text_of(ReplySpec("agent", "unknown_agent", "", (), (written,))).splitlines()[0]
    assert line.startswith("Nobody here is called “vta [31mxxx")
    assert line.endswith("x…”.")
    assert len(line) < WRITTEN_CHARACTERS_MAX + 30


def test_long_lists_and_descriptions_are_cut_and_counted():
    """A reply is stored with the change that it answers, so it has a bound."""
    agents = {"home": Agent("home", kind=AgentKind.SUPERVISOR)}
    for number in range(512):
        agent_id = f"agent_{number}"
        agents[agent_id] = Agent(agent_id, description={"en": "word " * 800}, user_selectable=True)
    registry = Registry(version="1", home_agent_id="home", agents=agents)
    text = text_of(ReplySpec("agents", "done", "", tuple(agents)), registry=registry)
    assert len(text.splitlines()) == LISTED_MAX + 4
    assert "… and 492 more" in text
    assert "For more, type /agents 2" in text
    assert max(len(line) for line in text.splitlines()) < DESCRIPTION_CHARACTERS_MAX + 60
    assert len(text) <= REPLY_CHARACTERS_MAX


def test_agent_that_left_the_registry_is_called_by_its_id():
    """A reload may take an agent away that a session still has."""
    spec = ReplySpec("status", "active", "gone", (), ("unavailable",))
    assert text_of(spec).startswith("gone cannot be reached at the moment")


def test_unknown_command_is_our_own_mistake():
    """A row in the table without a reply is noticed by its first use."""
    with pytest.raises(KeyError):
        render_reply(ReplySpec("dance", "done"), REGISTRY, "en")


# --- Offers of another agent ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("locale", "text", "accept", "stay"),
    [
        (
            "en-GB",
            "This sounds like something for VAT specialist. Would you like to switch?",
            "Switch to VAT specialist",
            "Stay with Payroll",
        ),
        (
            "es",
            "Esto parece cosa del especialista en IVA. ¿Quieres cambiar?",
            "Cambiar al especialista en IVA",
            "Seguir con Nóminas",
        ),
        (
            "pt-BR",
            "Isto parece ser com VAT specialist. Você quer mudar?",
            "Mudar para VAT specialist",
            "Continuar com Payroll",
        ),
    ],
)
def test_offer_is_in_the_users_language(locale, text, accept, stay):
    """Text and buttons have the agents' names in that language, if the registry has them."""
    offer = render_suggestion("vat", "payroll", REGISTRY, locale)
    assert (offer.text, offer.accept_label, offer.stay_label) == (text, accept, stay)
