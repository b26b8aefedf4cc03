"""The forms that a setting's value can have, and how one value is read.

A value is text (from a flag or a variable) or already has a type (from TOML or code). ``read``
returns a value of the form's type, or raises ValueError. The error says what to write; it completes
a sentence that names the value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

VARIABLE_PREFIX: Final = "AGENT_ROUTING_"

Value = str | int | float | bool
"""The types of settings."""

_TRUE: Final = frozenset({"1", "on", "true", "yes"})
_FALSE: Final = frozenset({"0", "off", "false", "no"})


class Form(Protocol):
    """The form of one setting's values."""

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
            # A float or a boolean is refused, not rounded to an integer.
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
    """One of several words, in any case."""

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
    """One line of text; ``check`` raises ValueError if it is not valid."""

    what: str
    check: Callable[[str], object] = str

    def read(self, value: object) -> str:
        """See Form.read."""
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            raise ValueError(f"give {self.what}")
        self.check(value)
        return value


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting with its flag and its variable."""

    name: str
    form: Form
    default: Value
    help: str

    @property
    def flag(self) -> str:
        """Its option on the command line."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return f"{VARIABLE_PREFIX}{self.name.upper()}"


def separated(text: str) -> tuple[str, ...]:
    """Return the parts of a comma-separated setting."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
