"""Names inside sentences: the article and the contracted prepositions of Spanish and Portuguese."""

import pytest

from routing_service.core.registry import Agent
from routing_service.texts.agent_names import name_forms


def forms(name, locale, **given):
    """Return the forms of an agent's name in a language."""
    return name_forms(Agent("it", name={locale: name}, **given), locale, locale, locale)


@pytest.mark.parametrize(
    ("name", "the", "of", "to"),
    [
        ("Asistente principal", "el asistente principal", "del asistente principal", "al"),
        ("Especialista en IVA", "el especialista en IVA", "del especialista en IVA", "al"),
        ("Coordinadora", "la coordinadora", "de la coordinadora", "a la"),
        ("Asesor de renta", "el asesor de renta", "del asesor de renta", "al"),
        ("Equipo de ventas", "el equipo de ventas", "del equipo de ventas", "al"),
        ("Asistente ACME", "el asistente ACME", "del asistente ACME", "al"),
        ("Asistente Principal", "el Asistente Principal", "del Asistente Principal", "al"),
        ("Nóminas", "Nóminas", "de Nóminas", "a"),
        ("Lista de espera", "Lista de espera", "de Lista de espera", "a"),
        ("Víctor", "Víctor", "de Víctor", "a"),
        ("IVA mensual", "IVA mensual", "de IVA mensual", "a"),
        ("Recepción", "Recepción", "de Recepción", "a"),
    ],
)
def test_spanish_roles_have_their_article_and_other_names_have_none(name, the, of, to):
    """It is "el asistente principal" and "del asesor", but "Nóminas" and "de Nóminas"."""
    found = forms(name, "es")
    assert (found.bare, found.the, found.of) == (name, the, of)
    assert found.to.startswith(f"{to} ")
    assert found.start[0].isupper()


@pytest.mark.parametrize(
    ("name", "the", "of", "to"),
    [
        ("Assistente principal", "o assistente principal", "do", "ao"),
        ("Coordenadora", "a coordenadora", "da", "à"),
        ("Especialista em impostos", "o especialista em impostos", "do", "ao"),
        ("Equipe de vendas", "a equipe de vendas", "da", "à"),
        ("Cartões", "Cartões", "de", "a"),
    ],
)
def test_portuguese_articles_contract_with_their_prepositions(name, the, of, to):
    """De + o is do, a + a is à."""
    found = forms(name, "pt")
    assert found.the == the
    assert found.of.split()[0] == of
    assert found.to.split()[0] == to


def test_registry_gives_another_article_or_none():
    """A guess by the first word is wrong for a woman who is called analista."""
    assert forms("Analista", "es").the == "el analista"
    assert forms("Analista", "es", article={"es": "la"}).of == "de la analista"
    assert forms("Analista", "es", article={"es": ""}).the == "Analista"
    assert forms("Clínicas", "pt", article={"pt": "as"}).to == "às clínicas"


def test_english_names_stay_as_they_are():
    """An article would be wrong before half of them."""
    assert forms("VAT specialist", "en").to == "to VAT specialist"


def test_name_of_another_language_takes_the_article_of_the_sentence():
    """A Portuguese user of a Spanish registry reads Portuguese sentences."""
    agent = Agent("it", name={"es": "Especialista en IVA"})
    assert name_forms(agent, "pt", "es", "pt").of == "do especialista en IVA"
