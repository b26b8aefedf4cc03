"""The text of an offer to switch to another agent, and which plain messages answer it.

Rule: a pure function of the agents, the registry and the locale. A message is a yes or a no only if
it says nothing else.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from routing_service.core.registry import Registry
from routing_service.texts.catalogue import FALLBACK_LOCALE, Texts, shipped_texts

_WORDS_SEPARATOR: Final = "|"

PLAIN_ANSWER_CHARACTERS_MAX: Final = 40
"""Longer messages are not checked: no catalogue has a yes or no of that length."""


@dataclass(frozen=True, slots=True)
class RenderedSuggestion:
    """An offer's text, and the labels of its two buttons."""

    text: str
    accept_label: str
    stay_label: str


def render_suggestion(
    offered: str, present: str, registry: Registry, locale: str, texts: Texts | None = None
) -> RenderedSuggestion:
    """Return what the user sees. offered, present: agent ids. locale: "" = the registry's."""
    texts = texts or shipped_texts()
    locale = locale or registry.default_locale
    names = {
        "agent": _name(offered, registry, locale),
        "present": _name(present, registry, locale),
    }

    def say(message_id: str) -> str:
        return texts.render(message_id, locale, default_locale=registry.default_locale, **names)

    return RenderedSuggestion(
        say("suggestion-text"), say("suggestion-accept"), say("suggestion-stay")
    )


def plain_answer(text: str, locale: str, default_locale: str = FALLBACK_LOCALE) -> bool | None:
    """Return whether a message is a plain yes (True) or no (False); None if it is neither."""
    if len(text) > PLAIN_ANSWER_CHARACTERS_MAX:
        return None
    word = _folded(text)
    if word in _words("suggestion-yes", locale, default_locale):
        return True
    return False if word in _words("suggestion-no", locale, default_locale) else None


def _name(agent_id: str, registry: Registry, locale: str) -> str:
    agent = registry.agent(agent_id)
    return agent.display_name(locale, registry.default_locale) if agent else agent_id


# Locales come from callers: without a bound they could fill the memory.
@lru_cache(maxsize=256)
def _words(message_id: str, locale: str, default_locale: str) -> frozenset[str]:
    said = shipped_texts().render(
        message_id, locale or default_locale, default_locale=default_locale
    )
    return frozenset(_folded(word) for word in said.split(_WORDS_SEPARATOR))


def _folded(text: str) -> str:
    """Return the form in which answers are compared: letters alone, no case, no accents."""
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    letters = (c if c.isalnum() else " " for c in decomposed if not unicodedata.combining(c))
    return " ".join("".join(letters).split())
