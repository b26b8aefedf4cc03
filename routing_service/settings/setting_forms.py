"""The forms that a setting's value can have, and how each is read.

Owns the reading of one value, whether it is text (a flag, a variable) or already has a type (a TOML
file, code). It must not know which settings there are. Its rule: ``read`` returns a value of the
form's type or raises ValueError with what to write, as the end of a sentence that names the value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

Value = str | int | float | bool
"""What a setting can be."""

_TRUE: Final = frozenset({"1", "on", "true", "yes"})
_FALSE: Final = frozenset({"0", "off", "false", "no"})


class Form(Protocol):
    """How the values of one setting are written."""

    def read(self, value: object) -> Value:
        """Return the value in its type. Raises ValueError with what to write."""
        ...


@dataclass(frozen=True, slots=True)
class WholeNumber:
    """An integer within bounds, both included."""

    minimum: int
    maximum: int

    def read(self, value: object) -> int:
        """See Form.read."""
        try:
            # A float or a boolean is not rounded into a number that nobody wrote.
            number = int(value) if isinstance(value, str) else value
        except ValueError:
            number = None
        if (
            not isinstance(number, int)
            or isinstance(number, bool)
            or not self.minimum <= number <= self.maximum
        ):
            raise ValueError(f"give a whole number from {self.minimum} to {self.maximum}")
        return number


@dataclass(frozen=True, slots=True)
class Seconds:
    """A time in seconds within bounds, both included; fractions are allowed."""

    minimum_s: float
    maximum_s: float

    def read(self, value: object) -> float:
        """See Form.read."""
        try:
            time_s = float(value) if isinstance(value, str) else value
        except ValueError:
            time_s = None
        if (
            not isinstance(time_s, int | float)
            or isinstance(time_s, bool)
            or not math.isfinite(time_s)
            or not self.minimum_s <= time_s <= self.maximum_s
        ):
            raise ValueError(f"give seconds from {self.minimum_s:g} to {self.maximum_s:g}")
        return float(time_s)


@dataclass(frozen=True, slots=True)
class Switch:
    """True or false."""

    def read(self, value: object) -> bool:
        """See Form.read."""
        if isinstance(value, bool):
            return value
        word = value.strip().lower() if isinstance(value, str) else ""
        if word not in _TRUE | _FALSE:
            raise ValueError("give true or false")
        return word in _TRUE


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some words, in any case."""

    words: tuple[str, ...]

    def read(self, value: object) -> str:
        """See Form.read."""
        word = value.strip().lower() if isinstance(value, str) else ""
        if word not in self.words:
            *others, last = self.words
            raise ValueError(f"give {', '.join(others)} or {last}")
        return word


@dataclass(frozen=True, slots=True)
class Words:
    """Text of one line; ``check`` raises ValueError for what is not of its form."""

    what: str
    check: Callable[[str], object] = str

    def read(self, value: object) -> str:
        """See Form.read."""
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            raise ValueError(f"give {self.what}")
        self.check(value)
        return value
