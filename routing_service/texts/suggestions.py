"""The text of an offer to switch to another agent, and what an answer to it may name.

Rule: a pure function of the agents, the registry and the locale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from routing_service.core.channel_profiles import Choices
from routing_service.core.registry import Registry
from routing_service.texts.agent_names import NameForms, name_forms, plain_forms
from routing_service.texts.catalogue import Texts
from routing_service.texts.own_texts import reply_texts
from routing_service.texts.plain_answers import Offer, names_of
from routing_service.texts.plain_text import clipped, without_emoji

_EMOJI: Final = "💡"


@dataclass(frozen=True, slots=True)
class RenderedSuggestion:
    """An offer's text, and the labels of its two buttons."""

    text: str
    accept_label: str
    stay_label: str


def render_suggestion(
    offered: str,
    present: str,
    registry: Registry,
    locale: str,
    texts: Texts | None = None,
    *,
    channel: str = "",
) -> RenderedSuggestion:
    """Return what the user sees. offered, present: agent ids. locale: "" = the registry's."""
    texts = texts or reply_texts(registry.replies)
    locale = locale or registry.default_locale
    profile = registry.channels.of(channel)
    emoji = registry.replies.emoji

    def say(message_id: str, emphasis: str = "", **values: str) -> str:
        names: dict[str, str] = {}
        for name, agent_id in (("agent", offered), ("present", present)):
            names |= _name(agent_id, registry, locale, texts, emphasis).variables(name)
        names |= _name(registry.home_agent_id, registry, locale, texts, emphasis).variables("home")
        text = texts.render(
            message_id, locale, default_locale=registry.default_locale, **names, **values
        )
        return without_emoji(text) if emoji is False or not profile.shows_emoji else text

    labels = [say("suggestion-accept"), say("suggestion-stay")]
    lines = [say("suggestion-text", profile.bold.value)]
    if emoji and profile.shows_emoji:
        lines[0] = f"{_EMOJI} {lines[0]}"
    if profile.choices is Choices.NUMBERS:
        lines += [
            say("list-number-plain", number=str(number), label=label)
            for number, label in enumerate(labels, start=1)
        ]
    elif profile.choices is Choices.SPOKEN:
        lines.append(say("suggestion-spoken"))
    accept, stay = (clipped(label, profile.button_characters) for label in labels)
    return RenderedSuggestion("\n".join(lines), accept, stay)


def offer_of(
    offered: str,
    present: str,
    registry: Registry,
    locale: str,
    texts: Texts | None = None,
    *,
    channel: str = "",
) -> Offer:
    """Return what an answer to an offer may name. offered, present: agent ids."""
    shown = render_suggestion(offered, present, registry, locale, texts, channel=channel)
    return Offer(
        names_of(offered, registry),
        names_of(present, registry),
        (shown.accept_label, shown.stay_label),
    )


def _name(agent_id: str, registry: Registry, locale: str, texts: Texts, emphasis: str) -> NameForms:
    agent = registry.agent(agent_id)
    text_locale = texts.negotiate(locale, registry.default_locale)
    if agent is None:
        return plain_forms(agent_id, text_locale, emphasis)
    return name_forms(agent, locale, registry.default_locale, text_locale, emphasis)
