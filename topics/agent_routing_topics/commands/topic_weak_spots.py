"""What ``check`` says of a registry's topics: agents that look alike, and figures to expect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final

from agent_routing_topics.commands.topic_figures import wilson
from agent_routing_topics.default_model import load_default_model, load_word_model
from agent_routing_topics.left_out import ENOUGH, WeakSpots, left_out, weak_spots
from routing_service.core.registry import Registry
from routing_service.topics.ask_bound import Counts, Prior, ask_bound, expected

EXAMPLES_WITH_VECTORS_MAX: Final = 1_000
"""Beyond that, words alone judge: vectors would take longer than a person waits for a check."""

PAIRS_SHOWN_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Asking:
    """What a registry's wish comes to in conversations of registries with about as many examples.

    asked: the share of messages that is asked about; right: the share that is right then.
    """

    asked: float
    right: float


def report_of(registry: Registry) -> tuple[WeakSpots, Asking | None]:
    """Judge a registry's examples, and say how much it will ask; None where it never does."""
    count = sum(len(agent.examples) for agent in registry.agents.values())
    has_few = count <= EXAMPLES_WITH_VECTORS_MAX
    model = load_default_model(waits=True) if has_few else load_word_model()
    topics, asking = registry.topics, None
    if topics.asks_when_unsure:
        prior = Prior.of(model.for_registry(registry))
        bound = ask_bound(
            Counts(), prior, ask_share=topics.ask_share, right_wanted=topics.right_wanted
        )
        asking = Asking(*expected(prior, bound))
    return weak_spots(registry, left_out(registry, model.for_registry)), asking


def as_dict(registry: Registry) -> dict[str, object]:
    """Return what ``check --json`` says of a registry's examples."""
    spots, asking = report_of(registry)
    return asdict(spots) | {"asking": asdict(asking) if asking else None}


def lines_of(registry: Registry) -> Iterator[str]:
    """Yield what a person reads of a registry's examples."""
    spots, asking = report_of(registry)
    if asking:
        yield (
            f"topics: about {asking.asked:.0%} of the messages will be asked about, and "
            f"{asking.right:.0%} right, as in other registries with about as many examples"
        )
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
