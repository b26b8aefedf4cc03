"""What the service itself says to users and to agents, in each language.

``catalogue`` finds and renders texts; ``replies`` renders the core's replies to commands,
``suggestions`` the offers of another agent. The texts of replies are in this folder, those of
agents' instructions in ``instructions``.
"""

from routing_service.texts.catalogue import (
    FALLBACK_LOCALE,
    MissingTexts,
    Texts,
    instruction_texts,
    missing_texts,
    shipped_texts,
)
from routing_service.texts.plain_answers import Answered, Offer, plain_answer
from routing_service.texts.replies import RenderedReply, render_reply
from routing_service.texts.suggestions import (
    RenderedSuggestion,
    offer_of,
    render_suggestion,
)

__all__ = [
    "FALLBACK_LOCALE",
    "Answered",
    "MissingTexts",
    "Offer",
    "RenderedReply",
    "RenderedSuggestion",
    "Texts",
    "instruction_texts",
    "missing_texts",
    "offer_of",
    "plain_answer",
    "render_reply",
    "render_suggestion",
    "shipped_texts",
]
