"""A contender: semantic-router's IndexedRouter, which has no session by design.

As its documentation shows: routes with example utterances, an encoder, a confidence threshold, one
call for each message. The encoder here is scripted (word counts), since no model may be fetched, so
nothing is said about how well it routes. The program calls the model of the route's agent, and the
home agent's where no route is chosen.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripted import TOPICS, LookUp, Seen, Story, decide, look_up, main
from semantic_router import IndexedRouter, Route
from semantic_router.encoders import DenseEncoder

SIZE = 4096
THRESHOLD = 0.2


class WordCounts(DenseEncoder):
    """Encodes a text by its words."""

    name: str = "words"

    def __call__(self, docs: list[Any]) -> list[list[float]]:
        """Encode."""
        return [_encode(str(each)) for each in docs]

    async def acall(self, docs: list[Any]) -> list[list[float]]:
        """Encode."""
        return self(docs)


def _encode(text: str) -> list[float]:
    vector = [0.0] * SIZE
    for word in re.findall(r"\w+", text.lower()):
        digest = hashlib.sha256(word.encode()).digest()
        vector[int.from_bytes(digest[:4], "big") % SIZE] += 1.0
    length = math.sqrt(sum(each * each for each in vector)) or 1.0
    return [each / length for each in vector]


class SemanticRouter:
    """The story's specialists as routes."""

    async def open(self, story: Story, folder: Path) -> None:
        """Build them."""
        del folder
        self.story = story
        routes = [
            Route(
                name=name,
                utterances=[word for word, owner in TOPICS.items() if owner == name] + [name],
            )
            for name in story.specialists
        ]
        self.router = IndexedRouter(
            encoder=WordCounts(), routes=routes, confidence_threshold=THRESHOLD
        )

    async def send(self, session: str, text: str, request_id: str) -> Mapping[str, Any]:
        """Route the message, alone. There is no session and no id."""
        del session, request_id
        choice = await self.router.acall(text)
        agent = choice.name or self.story.home
        decision = decide(self.story, agent, Seen(text, messages=1))
        if isinstance(decision, LookUp):
            decision = decide(self.story, agent, Seen(text, result=look_up(), messages=1))
        return {"answer": decision.text}

    async def resume(self, session: str, text: str, request_id: str) -> Mapping[str, Any]:
        """Send the message again."""
        return await self.send(session, text, request_id)

    async def read(self, session: str) -> Mapping[str, Any]:
        """Nothing is stored."""
        del session
        return {"texts": [], "active": "", "unfinished": ""}

    async def close(self) -> None:
        """Nothing is open."""


if __name__ == "__main__":
    main(SemanticRouter())
