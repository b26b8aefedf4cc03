"""Which plain messages answer the offer of another agent, and which are messages for the agent."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_service.core.registry import Agent, AgentKind, Registry
from routing_service.texts import Answered, offer_of, plain_answer
from routing_service.texts.catalogue import answer_texts, shipped_texts
from tests.typed_inputs import field_inputs, own_inputs

REGISTRY = Registry(
    version="1",
    home_agent_id="home",
    agents={
        "home": Agent("home", kind=AgentKind.SUPERVISOR),
        "f29": Agent("f29", name={"es": "F29"}),
        "invoices": Agent("invoices", name={"es": "Facturas", "en": "Invoices"}),
        "no": Agent("no", name={"es": "No"}),
    },
    default_locale="es",
)
OFFER = offer_of("f29", "invoices", REGISTRY, "es")
WORDS = {None: None, Answered.YES: "yes", Answered.NO: "no", Answered.CHOSE_STAY: "no"}


@pytest.mark.parametrize("inputs", [own_inputs, field_inputs])
def test_offers_are_answered_in_words(inputs):
    """Labels, numbers, signs, and yes and no in as many ways; what says more is a message."""
    found = [[text, WORDS[plain_answer(text, OFFER)]] for text, _ in inputs("answer")]
    assert found == inputs("answer")


@pytest.mark.parametrize("text", ["Seguir con Facturas", "seguir con facturas!", "2", "la 2"])
def test_option_to_stay_itself_is_told_from_a_no(text):
    """A no may be meant for the agent as well; the option is the service's own."""
    assert plain_answer(text, OFFER) is Answered.CHOSE_STAY
    assert plain_answer("no", OFFER) is Answered.NO


def test_words_of_answers_keep_their_meaning_where_an_agent_is_called_so():
    """An agent named "No" does not turn a no into a yes."""
    assert plain_answer("no", offer_of("no", "invoices", REGISTRY, "es")) is Answered.NO


def test_every_language_of_the_replies_has_answers():
    """All languages have the same kinds."""
    assert set(answer_texts().locales) == set(shipped_texts().locales)
    kinds = {answer_texts().message_ids(locale) for locale in answer_texts().locales}
    assert len(kinds) == 1


@given(st.text())
def test_any_message_is_looked_at_without_an_error(text):
    """Users type anything."""
    assert plain_answer(text, OFFER) in WORDS


def test_long_message_is_looked_at_at_once():
    """A message of answers only, as long as one may be."""
    started_s = time.process_time()
    plain_answer("si no " * 33, OFFER)
    plain_answer("si no " * 5_000, OFFER)
    assert time.process_time() - started_s < 1
