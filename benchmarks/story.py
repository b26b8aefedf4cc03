"""The conversation that every contender plays: the same sessions, turns, texts and handoffs.

Peers import it in their own environments, so it uses the standard library alone.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Self

SUPERVISOR = "coordinator"
SPECIALIST = "billing"

USER_TEXT = "I have a question about my last invoice, the amount does not look right to me"
AGENT_TEXT = "I have looked at the invoice of May: the amount includes the yearly fee of 12 euros."
HANDOFF_TEXT = "I will pass you on to our billing specialist."


@dataclass(frozen=True)
class Load:
    """How much is played. In the first turn of a session the supervisor hands over."""

    sessions: int
    turns_per_session: int
    concurrency: int

    @property
    def turns(self) -> int:
        """User turns in all."""
        return self.sessions * self.turns_per_session


@dataclass(frozen=True)
class Result:
    """What one round took."""

    turns: int
    seconds: float

    @property
    def turns_per_s(self) -> float:
        """The rate."""
        return self.turns / self.seconds


def load_from_arguments() -> Load:
    """Read a peer's load from its command line."""
    return Load(**json.loads(sys.argv[1]))


def tell(result: Result) -> None:
    """Print a peer's result, for the benchmark that started it."""
    sys.stdout.write(json.dumps(asdict(result)) + "\n")


class Stopwatch:
    """Measures the wall time of a with block."""

    def __enter__(self) -> Self:
        """Start."""
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.seconds = time.perf_counter() - self._start
