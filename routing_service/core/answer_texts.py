"""The texts of an answer, without the markers in them."""

from __future__ import annotations

from msgspec.structs import replace

from routing_service.core.agent_picks import find_by_name
from routing_service.core.commands import CompleteTurn
from routing_service.core.markers import cut_markers
from routing_service.core.registry import Registry


def without_markers(command: CompleteTurn, registry: Registry) -> tuple[CompleteTurn, str]:
    """Return an answer without the markers in its text and items, and the name in the first."""

    def is_name(name: str) -> bool:
        return find_by_name(registry, name) is not None

    text, marker = cut_markers(command.text, is_name)
    items = []
    for item in command.items:
        if item.text is not None:
            left, named = cut_markers(item.text, is_name)
            marker = marker or named
            if not left and item.text.strip():
                continue  # The item was the marker.
            item = replace(item, text=left)  # noqa: PLW2901 - the item without it.
        items.append(item)
    return replace(command, text=text, items=tuple(items)), marker
