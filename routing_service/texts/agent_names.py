"""An agent's name inside a sentence: with its article, and joined with a preposition.

Spanish and Portuguese need an article before a role ("el asistente principal") and none before the
name of a person or an area ("Nóminas"). Rule: the registry's own article wins; otherwise an article
is added only where the first word is a role whose gender its form shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Final

from routing_service.core.registry import Agent, locale_chain
from routing_service.texts.catalogue import role_texts

FORMS: Final = ("", "_the", "_of", "_to", "_start")
"""The forms of a name: bare; with its article; after "of"; after "to"; as a sentence begins."""

_NO_ARTICLE: Final = ""

# Roles by their ending: asesora, planificador, especialista.
_FEMININE_ENDINGS: Final = ("dora", "tora", "sora")
_MASCULINE_ENDINGS: Final = ("dor", "tor", "sor", "ista")

_PREPOSITIONS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {"en": ("of", "to"), "es": ("de", "a"), "pt": ("de", "a")}
)

_CONTRACTED: Final[Mapping[tuple[str, str], str]] = MappingProxyType(
    {
        ("es", "de el"): "del",
        ("es", "a el"): "al",
        ("pt", "de o"): "do",
        ("pt", "de a"): "da",
        ("pt", "de os"): "dos",
        ("pt", "de as"): "das",
        ("pt", "a o"): "ao",
        ("pt", "a a"): "à",
        ("pt", "a os"): "aos",
        ("pt", "a as"): "às",
    }
)


@dataclass(frozen=True, slots=True)
class NameForms:
    """A name, and its forms within a sentence of one language."""

    bare: str
    the: str
    of: str
    to: str
    start: str

    def variables(self, name: str) -> dict[str, str]:
        """Return the placeholders of texts for an agent that they call by this name."""
        forms = (self.bare, self.the, self.of, self.to, self.start)
        return {f"{name}{form}": text for form, text in zip(FORMS, forms, strict=True)}


def name_forms(
    agent: Agent, locale: str, default_locale: str, text_locale: str, emphasis: str = ""
) -> NameForms:
    """Return the forms of an agent's name.

    text_locale: the language of the sentence. emphasis: what stands on both sides of the name.
    """
    name = agent.display_name(locale, default_locale)
    own = next((agent.article[tag] for tag in locale_chain(locale) if tag in agent.article), None)
    return _forms(name, text_locale, own, emphasis)


def plain_forms(name: str, text_locale: str, emphasis: str = "") -> NameForms:
    """Return the forms of a name that takes no article, such as an id."""
    return _forms(name, text_locale, _NO_ARTICLE, emphasis)


def _forms(name: str, text_locale: str, own_article: str | None, emphasis: str) -> NameForms:
    chain = locale_chain(text_locale)
    language = next((tag for tag in chain if tag in _PREPOSITIONS), "en")
    article = _article_of(name, language) if own_article is None else own_article
    shown = _inside(name) if article else name
    marked = f"{emphasis}{shown}{emphasis}"
    of, to = _PREPOSITIONS[language]
    the = f"{article} {marked}" if article else marked
    return NameForms(
        bare=f"{emphasis}{name}{emphasis}",
        the=the,
        of=f"{_joined(of, article, language)} {marked}",
        to=f"{_joined(to, article, language)} {marked}",
        start=the[:1].upper() + the[1:] if article else the,
    )


def _joined(preposition: str, article: str, language: str) -> str:
    both = f"{preposition} {article}" if article else preposition
    return _CONTRACTED.get((language, both), both)


def _article_of(name: str, language: str) -> str:
    """Return the article of a name that begins with a role; empty for every other name."""
    roles = _roles(language)
    if roles is None or not name:
        return _NO_ARTICLE
    word = name.split(maxsplit=1)[0].strip(",.:;").lower()
    known = roles.by_word.get(word)
    if known is not None:
        return known
    if not word.isalpha():
        return _NO_ARTICLE
    if word.endswith(_FEMININE_ENDINGS):
        return roles.feminine
    return roles.masculine if word.endswith(_MASCULINE_ENDINGS) else _NO_ARTICLE


@dataclass(frozen=True, slots=True)
class _Roles:
    """A language's articles, and its words for what an agent is, each with its article."""

    masculine: str
    feminine: str
    by_word: Mapping[str, str]


@cache
def _roles(language: str) -> _Roles | None:
    texts = role_texts()
    if language not in texts.locales:
        return None
    masculine = texts.render("article-masculine", language)
    feminine = texts.render("article-feminine", language)
    by_word: dict[str, str] = {}
    articles = (("masculine", masculine), ("feminine", feminine), ("neither", _NO_ARTICLE))
    for message_id, article in articles:
        words = texts.render(message_id, language).split("|")
        by_word |= {word.strip(): article for word in words}
    return _Roles(masculine, feminine, by_word)


def _inside(name: str) -> str:
    """Return a name as it is written after its article: "Asistente principal" in small letters.

    A name in title case or capitals is taken for a brand's and stays as it is.
    """
    first, *others = name.split()
    is_title = any(word[:1].isupper() and word[1:].islower() for word in others)
    if is_title or not (first[:1].isupper() and first[1:].islower()):
        return name
    return name[:1].lower() + name[1:]
