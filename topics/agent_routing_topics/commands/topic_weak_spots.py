"""What ``check`` says of a registry's topics: agents that look alike, and figures to expect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

from agent_routing_topics.commands.topic_figures import wilson
from agent_routing_topics.default_model import load_default_model
from agent_routing_topics.left_out import ENOUGH, WeakSpots, left_out, weak_spots
from agent_routing_topics.model import load_word_model
from routing_service.core.registry import Registry

EXAMPLES_WITH_VECTORS_MAX: Final = 1_000
"""Beyond that, words alone judge: vectors would take longer than a person waits for a check."""

PAIRS_SHOWN_MAX: Final = 10


def weak_spots_of(registry: Registry) -> WeakSpots:
    """Judge a registry's examples."""
    count = sum(len(agent.examples) for agent in registry.agents.values())
    has_few = count <= EXAMPLES_WITH_VECTORS_MAX
    model = load_default_model(waits=True) if has_few else load_word_model()
    return weak_spots(registry, left_out(registry, model.for_registry))


def as_dict(registry: Registry) -> dict[str, object]:
    """Return what ``check --json`` says of a registry's examples."""
    return asdict(weak_spots_of(registry))


def lines_of(registry: Registry) -> Iterator[str]:
    """Yield what a person reads of a registry's examples."""
    spots = weak_spots_of(registry)
    if spots.judged:
        low, high = wilson(spots.right / spots.judged, spots.judged)
        yield (
            f"topics: of {spots.judged} examples, each judged without itself as a first message, "
            f"{spots.right / spots.judged:.0%} ({low:.0%}-{high:.0%}) go to their agent; "
            f"{spots.right_at_fifth / spots.judged:.0%} if the least sure fifth is asked about"
        )
    for one, other, count in spots.pairs[:PAIRS_SHOWN_MAX]:
        yield (
            f"topics: {one} and {other} are hard to tell apart: {count} examples of one go to the "
            "other; make their examples and descriptions differ"
        )
    if spots.few:
        named = ", ".join(f"{agent_id} ({count})" for agent_id, count in spots.few)
        yield (
            f"topics: fewer than {ENOUGH} examples: {named}; agent-routing topics examples gets "
            "more"
        )
