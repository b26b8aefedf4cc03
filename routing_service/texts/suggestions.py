"""The text of an offer to switch to another agent, and what an answer to it may name.

Rule: a pure function of the agents, the registry and the locale.
"""

from __future__ import annotations

from dataclasses import dataclass

from routing_service.core.registry import Registry
from routing_service.texts.catalogue import Texts, shipped_texts
from routing_service.texts.plain_answers import Offer, names_of


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


def offer_of(
    offered: str, present: str, registry: Registry, locale: str, texts: Texts | None = None
) -> Offer:
    """Return what an answer to an offer may name. offered, present: agent ids."""
    shown = render_suggestion(offered, present, registry, locale, texts)
    return Offer(
        names_of(offered, registry),
        names_of(present, registry),
        (shown.accept_label, shown.stay_label),
    )


def _name(agent_id: str, registry: Registry, locale: str) -> str:
    agent = registry.agent(agent_id)
    return agent.display_name(locale, registry.default_locale) if agent else agent_id
