"""What identifies a person is replaced, by shape; what routing needs stays."""

from __future__ import annotations

import pytest

from routing_service.replay.pseudonyms import KnownWords, Pseudonyms


def replaced(*texts, **known):
    """Return the texts without what identifies a person."""
    return Pseudonyms(KnownWords(**known)).replace_all(texts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("write to ana.b+x@mail.example.org.", "write to [email 1]."),
        ("see https://example.org/u/17?x=1 now", "see [url 1] now"),
        ("call +34 600 12 34 56 or (212) 555-0100", "call [number 1] or [number 2]"),
        ("my card 4111-1111-1111-1112", "my card [number 1]"),  # Mistyped.
        ("IBAN ES91 2100 0418 4502 0005 1332 please", "IBAN [iban 1] please"),
        ("iban gb29nwbk60161331926819", "iban [iban 1]"),
        ("mi DNI es 12345678Z", "mi DNI es [number 1]"),
        ("NIE X-1234567-L", "NIE [id 1]"),
        ("el NIF 12.345.678-Z", "el NIF [number 1]"),
        ("RFC GODE561231GR8", "RFC [id 1]"),
        ("CPF 529.982.247-25", "CPF [number 1]"),
        ("NINO QQ 12 34 56 C", "NINO [id 1]"),
        ("SSN 078-05-1120", "SSN [number 1]"),
        ("from 10.1.2.3", "from [ip 1]"),
        # A date or an address of a machine is no part of a longer number.
        ("call 25-62-29-72 or 02.27.96.63.08", "call [number 1] or [number 2]"),
        ("born 31/12/1980 or 1980-12-31", "born [date 1] or [date 2]"),
        ("vivo en calle Mayor 5", "vivo en [address 1]"),
        ("at 221 Baker Street", "at [address 1]"),
        ("id 01a20a63-c3f0-7869-9fbc-4133c2de3d63", "id [id 1]"),
        ("me llamo ana garcía", "me llamo [name 1]"),
        ("meu nome é João da Silva", "meu nome é [name 1]"),
        ("Dear Mr. Smith, hello", "Dear Mr. [name 1], hello"),
        ("we met Peter Pan there", "we met [name 1] there"),
    ],
)
def test_each_kind_is_found_by_its_shape(text, expected):
    """In English, Spanish and Portuguese, with spaces, dashes and mistakes."""
    assert replaced(text) == [expected]


@pytest.mark.parametrize(
    "text",
    [
        "I want a refund of 1,250.50 euros for 2 invoices",
        "¿Cuánto IVA pago en el modelo 303?",
        "Quero saber o valor da fatura de 2024",
        "How do I file my VAT return?",
        "It is 10:30 already",
    ],
)
def test_amounts_years_acronyms_and_questions_stay(text):
    """Topic detection needs them."""
    assert replaced(text) == [text]


def test_the_same_value_has_the_same_pseudonym_however_it_is_written():
    """In all texts of a conversation, also in those before the one that gives it away."""
    assert replaced(
        "García again, call 600123456",
        "my name is Ana García",
        "thanks ana, at 600 123 456",
        "GARCÍA, not 600 999 999",
    ) == [
        "[name 1] again, call [number 1]",
        "my name is [name 1]",
        "thanks [name 1], at [number 1]",
        "[name 1], not [number 2]",
    ]


def test_a_short_answer_to_the_question_for_a_name_is_a_name():
    """Nothing in the answer itself says so."""
    assert replaced("What is your last name?", "magnusson")[1] == "[name 1]"
    assert replaced("¿Cuál es su nombre?", "ana")[1] == "[name 1]"


def test_words_of_agents_are_no_names_and_listed_names_are():
    """Hola, Banca is a greeting of an agent."""
    assert replaced("Hola Banca", kept=frozenset({"banca"})) == ["Hola Banca"]
    assert replaced("Rosa came", names=frozenset({"rosa"}), proper_names=False) == ["[name 1] came"]
    assert replaced("a rosa is red", names=frozenset({"rosa"})) == ["a rosa is red"]


def test_capitalised_words_inside_a_sentence_stay_if_asked():
    """Products and places help to route."""
    assert replaced("I flew to Lisbon") == ["I flew to [name 1]"]
    assert replaced("I flew to Lisbon", proper_names=False) == ["I flew to Lisbon"]


def test_ids_of_the_user_and_the_session_are_replaced():
    """They may be anything, so their shape does not show them."""
    found = Pseudonyms(ids=("u7", "chat (1)")).replace_all(["U7 here, in chat (1), not u77"])
    assert found == ["[user 1] here, in [user 2], not u77"]


@pytest.mark.parametrize(
    "text",
    ["1" * 60_000, "a1" * 30_000, "A " * 30_000, "a." * 30_000, "de " * 20_000, "Aa'" * 20_000],
)
def test_long_texts_take_no_time(text):
    """No shape backtracks over a whole text: the time limit of a test would end it."""
    assert replaced(text)
