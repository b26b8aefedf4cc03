"""What the service itself says to users and to agents, language by language.

``catalogue`` finds and renders texts; ``replies`` turns the core's replies to commands into words,
``suggestions`` the offers of another agent.
The texts of replies lie here, those of agents' instructions in a folder of their own.
"""

from routing_service.texts.catalogue import (
    FALLBACK_LOCALE,
    MissingTexts,
    Texts,
    instruction_texts,
    missing_texts,
    shipped_texts,
)
from routing_service.texts.replies import RenderedReply, render_reply
from routing_service.texts.suggestions import (
    RenderedSuggestion,
    plain_answer,
    render_suggestion,
)

__all__ = [
    "FALLBACK_LOCALE",
    "MissingTexts",
    "RenderedReply",
    "RenderedSuggestion",
    "Texts",
    "instruction_texts",
    "missing_texts",
    "plain_answer",
    "render_reply",
    "render_suggestion",
    "shipped_texts",
]
