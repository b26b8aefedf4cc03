"""Plain Python values as protobuf has them: times, durations, structs, names of enum values.

Owns: these conversions, and the errors for values that no request can carry. Must not know: which
field a value is for. Rule: what the service can judge is left to it; refused here is only what
would be lost or changed on the way (a naive time, a number that a double cannot hold).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

if TYPE_CHECKING:
    from google.protobuf.internal.enum_type_wrapper import _EnumTypeWrapper

Number = TypeVar("Number", bound=int)

Seconds: TypeAlias = float | timedelta
"""A length of time: a number of seconds, or a timedelta."""

STRUCT_DEPTH_MAX: Final = 32
"""Levels of a struct, by the contract. Deeper messages cannot be parsed by the other side."""

WHOLE_NUMBER_MAX: Final = 2**53
"""A struct's numbers are doubles: beyond this whole numbers would lose their last digits."""


def seconds(value: Seconds) -> float:
    """Return a length of time in seconds, as a float."""
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


def positive_seconds(name: str, value: Seconds) -> float:
    """Return a time limit in seconds. Raises ValueError unless it is finite and above 0."""
    limit_s = seconds(value)
    if not (math.isfinite(limit_s) and limit_s > 0):
        raise ValueError(f"{name} is {value!r}; give a finite number of seconds above 0")
    return limit_s


def duration(value: Seconds) -> Duration:
    """Return a length of time as protobuf has it, exact to the nanosecond."""
    message = Duration()
    if isinstance(value, timedelta):
        message.FromTimedelta(value)
    else:
        if not math.isfinite(value):
            raise ValueError(f"{value!r} is no length of time; give a finite number of seconds")
        message.FromNanoseconds(round(value * 1_000_000_000))
    return message


def timestamp(name: str, value: datetime) -> Timestamp:
    """Return a point in time as protobuf has it.

    Raises ValueError if it has no time zone: it would be read as UTC, wherever it came from.
    """
    if value.tzinfo is None or value.utcoffset() is None:
        raise ValueError(
            f"{name} {value.isoformat()} has no time zone; give one, such as"
            " datetime.now(timezone.utc) + timedelta(hours=1)"
        )
    message = Timestamp()
    message.FromDatetime(value)
    return message


def struct(name: str, value: Mapping[str, Any]) -> Struct:
    """Return a mapping as protobuf has it.

    value: strings to None, booleans, numbers, strings, lists and mappings, as in JSON. Numbers
    arrive as doubles. Raises ValueError for what does not survive that: other types, whole numbers
    above 2**53, more than 32 levels.
    """
    message = Struct()
    message.update(_plain(name, value, depth=1))
    return message


def _plain(path: str, value: Any, *, depth: int) -> Any:
    """Return a value with mappings and sequences as protobuf takes them; path is for errors."""
    match value:
        case None | bool() | str() | float():
            return value
        case int():
            if abs(value) > WHOLE_NUMBER_MAX:
                raise ValueError(
                    f"{path} is {value}, which a number in a struct cannot hold exactly;"
                    " send it as text"
                )
            return value
        case Mapping() | list() | tuple() if depth > STRUCT_DEPTH_MAX:
            raise ValueError(f"{path} is more than {STRUCT_DEPTH_MAX} levels deep; flatten it")
        case Mapping():
            for key in value:
                if not isinstance(key, str):
                    raise ValueError(f"{path} has the key {key!r}; keys are strings")  # noqa: TRY004 - as for every other value that a struct cannot hold
            return {
                key: _plain(f"{path}.{key}", inner, depth=depth + 1) for key, inner in value.items()
            }
        case list() | tuple():
            return [
                _plain(f"{path}[{index}]", inner, depth=depth + 1)
                for index, inner in enumerate(value)
            ]
        case _:
            raise ValueError(
                f"{path} is a {type(value).__name__}; a struct holds None, booleans, numbers,"
                " strings, lists and mappings"
            )


def enum_value(
    enum: _EnumTypeWrapper[Number], prefix: str, name: str, value: str | Number | None
) -> Number:
    """Return the number of an enum value.

    value: its name without the prefix, in any case; its number, passed through, so that values of a
    newer contract go by number; None for unspecified. Raises ValueError for a name not known.
    """
    if value is not None and not isinstance(value, str):
        return value
    try:
        return enum.Value(prefix + (value or "UNSPECIFIED").upper())
    except ValueError:
        names = [key.removeprefix(prefix) for key in enum.keys()]  # noqa: SIM118 - no mapping
        known = ", ".join(each for each in names if each != "UNSPECIFIED")
        raise ValueError(f"{name} {value!r} is not known; one of {known}") from None
