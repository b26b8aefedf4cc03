"""The console's Spanish and Portuguese: one form of address, and one name for each thing."""

import re
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "console" / "src"
FILES = sorted(SOURCES.glob("*exts.ts"))

EUROPEAN = (
    r"ficheiro|registos?\b|utilizador|percentagem|definições|descarrega|equipa\b|ecrã"
    r"|palavra-passe|telemóvel"
)
INTIMATE = (
    r"\b(elige|escribe|pulsa|pégalo|vuelve a ver|míralo|cambia el|cámbialo|guárdalo|elígelo"
    r"|tus?|tuyos?)\b"
)
SECOND_NAMES = {"es": r"permanencia|agente principal", "pt": r"permanência|agente principal"}


def texts_of(language):
    """Return the lines of one language, by file."""
    found = {}
    for path in FILES:
        _, begun, rest = path.read_text("utf-8").partition(f"const {language}: ")
        if begun:
            found[path.name] = rest.partition("\n};\n")[0].splitlines()
    return found


def lines_with(language, pattern):
    """Return the lines of one language in which a pattern is found."""
    found = re.compile(pattern, re.IGNORECASE)
    return [
        f"{name}: {line.strip()}"
        for name, lines in texts_of(language).items()
        for line in lines
        if found.search(line)
    ]


@pytest.mark.parametrize("language", ["es", "pt"])
def test_every_file_of_texts_has_the_language(language):
    """What follows would find nothing in a file that it does not read."""
    texts = texts_of(language)
    assert [path.name for path in FILES] == sorted(texts)
    assert all(len(lines) > 40 for lines in texts.values())


def test_portuguese_is_brazilian_on_every_page():
    """The page of operations was European, next to pages for Brazil."""
    assert lines_with("pt", EUROPEAN) == []


def test_spanish_addresses_the_operator_in_one_form():
    """The page of the registry said "tú" where the others say "usted"."""
    assert lines_with("es", INTIMATE) == []


@pytest.mark.parametrize("language", sorted(SECOND_NAMES))
def test_a_thing_has_the_same_name_on_every_page(language):
    """Stickiness and the home agent had a second name on one page each."""
    assert lines_with(language, SECOND_NAMES[language]) == []
