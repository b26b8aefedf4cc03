"""What is read of a turn once, and kept with it in memory.

Every message is compared with all recent turns, and reading them again was half of a verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from agent_routing_topics.model.words import split, stem
from routing_service.topics.topic_detector import RecentTurn

_KEPT: Final = "turn, 1"
"""Names what is kept of a turn. Another number where it is made in another way."""

_OWNERS_MAX: Final = 4
"""Registries and models that keep something of one turn; beyond that, all of it is made again."""

_Made = TypeVar("_Made")


class TurnReading:
    """The folded words of a turn, and what else is made of them. Safe to share between threads.

    user, agent: the words of each in order. stems: the different stems of both.
    """

    __slots__ = ("_made", "agent", "stems", "user")

    def __init__(self, turn: RecentTurn) -> None:
        """Read both texts of a turn."""
        self.user = tuple(split(turn.user_text))
        self.agent = tuple(split(turn.agent_text))
        self.stems = tuple(dict.fromkeys(map(stem, (*self.user, *self.agent))))
        self._made: dict[object, Any] = {}

    def has(self, owner: object) -> bool:
        """Tell whether an owner has made something of the turn."""
        return owner in self._made

    def kept(self, owner: object, make: Callable[[], _Made]) -> _Made:
        """Return what an owner made of the turn, or make it. owner: one object, kept with it."""
        made: dict[object, _Made] = self._made
        if owner not in made:
            if len(made) >= _OWNERS_MAX:
                made = {}
            # Assigned whole: another thread reads the one dict or the other.
            self._made = {**made, owner: make()}
        # Another owner may have made room meanwhile.
        kept = self._made
        return kept[owner] if owner in kept else make()


def reading_of(turn: RecentTurn) -> TurnReading:
    """Return what is read of a turn."""
    return turn.notes.kept(_KEPT, lambda: TurnReading(turn))
