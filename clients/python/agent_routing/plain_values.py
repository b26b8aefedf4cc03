"""Conversion of plain Python values to protobuf: times, durations, structs, names of enum values.

Refuses only values that would be lost or changed on the way (a time without a zone, a number that a
double cannot hold). The service validates the rest. None is an unset field.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

from agent_routing.messages import duration_pb2, struct_pb2, timestamp_pb2

if TYPE_CHECKING:
    from google.protobuf.internal.enum_type_wrapper import _EnumTypeWrapper

    from agent_routing.v1.clear_scope_pb2 import ClearScope
    from agent_routing.v1.dispatch_pb2 import Decision, Delivery
    from agent_routing.v1.handoff_pb2 import HandoffMode, Initiator
    from agent_routing.v1.moved_turn_pb2 import MovedTurn
    from agent_routing.v1.routing_service_pb2 import TurnOrder, WatchInclude
    from agent_routing.v1.task_pb2 import TaskStatus
else:

    class _Enum:
        """The part of the generated enums that the aliases below use, without importing them."""

        ValueType = int

    class MovedTurn:
        """The same, of the generated message that has the enum."""

        OpenTurn = _Enum

    ClearScope = Decision = Delivery = HandoffMode = Initiator = _Enum
    TaskStatus = TurnOrder = WatchInclude = _Enum

Number = TypeVar("Number", bound=int)

Seconds: TypeAlias = float | timedelta
"""A duration: a number of seconds, or a timedelta."""

InitiatorName: TypeAlias = Literal["SUPERVISOR", "AGENT", "USER", "OPERATOR"] | Initiator.ValueType
HandoffModeName: TypeAlias = Literal["TRANSFER", "INTERLUDE"] | HandoffMode.ValueType
ClearScopeName: TypeAlias = Literal["ACTIVE_AGENT", "SESSION"] | ClearScope.ValueType
OpenTurnName: TypeAlias = Literal["TAKE_ALONG", "LEAVE", "ABANDON"] | MovedTurn.OpenTurn.ValueType
DeliveryName: TypeAlias = Literal["INBOX"] | Delivery.ValueType
WatchIncludeName: TypeAlias = Literal["DELTAS", "NOTES", "STEPS"] | WatchInclude.ValueType
DecisionName: TypeAlias = Literal["APPROVE", "REJECT"] | Decision.ValueType
TurnOrderName: TypeAlias = Literal["OLDEST_FIRST", "NEWEST_FIRST"] | TurnOrder.ValueType
TaskStatusName: TypeAlias = (
    Literal["RUNNING", "PAUSED", "COMPLETED", "FAILED", "CANCELLED"] | TaskStatus.ValueType
)
"""Enum values: by name without the prefix, or as a value of the generated enum."""

STRUCT_DEPTH_MAX: Final = 32
"""Levels of a struct, from the contract. The service cannot parse deeper ones."""

WHOLE_NUMBER_MAX: Final = 2**53
"""A struct's numbers are doubles: larger whole numbers would lose their last digits."""


def texts(name: str, value: Iterable[str]) -> Iterable[str]:
    """Return a list of strings. Raises TypeError for one string: each letter would be an entry."""
    if isinstance(value, str):
        raise TypeError(f"{name} is the string {value!r}; give a list of strings")
    return value


def seconds(value: Seconds) -> float:
    """Return a duration in seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


def positive_seconds(name: str, value: Seconds) -> float:
    """Return a time limit in seconds. Raises ValueError unless it is finite and above 0."""
    limit_s = seconds(value)
    if not (math.isfinite(limit_s) and limit_s > 0):
        raise ValueError(f"{name} is {value!r}; give a finite number of seconds above 0")
    return limit_s


def duration(value: Seconds | None) -> duration_pb2.Duration | None:
    """Return a protobuf Duration, exact to the nanosecond. Raises ValueError unless finite."""
    if value is None:
        return None
    message = duration_pb2.Duration()
    if isinstance(value, timedelta):
        message.FromTimedelta(value)
    else:
        if not math.isfinite(value):
            raise ValueError(f"{value!r} is not a duration; give a finite number of seconds")
        message.FromNanoseconds(round(value * 1_000_000_000))
    return message


def timestamp(name: str, value: datetime | None) -> timestamp_pb2.Timestamp | None:
    """Return a protobuf Timestamp.

    Raises ValueError for a time without a zone: it would be read as UTC.
    """
    if value is None:
        return None
    if value.tzinfo is None or value.utcoffset() is None:
        raise ValueError(
            f"{name} {value.isoformat()} has no time zone; give one, such as"
            " datetime.now(timezone.utc) + timedelta(hours=1)"
        )
    message = timestamp_pb2.Timestamp()
    message.FromDatetime(value)
    return message


def struct(name: str, value: Mapping[str, Any] | None) -> struct_pb2.Struct | None:
    """Return a protobuf Struct.

    value: strings to None, booleans, numbers, strings, lists and mappings, as in JSON. Numbers
    arrive as doubles. Raises ValueError for other types, whole numbers above 2**53, and more than
    32 levels.
    """
    if value is None:
        return None
    message = struct_pb2.Struct()
    message.update(_plain(name, value, depth=1))
    return message


def _plain(path: str, value: Any, *, depth: int) -> Any:
    """Return a value with the types that protobuf takes. path: for the errors."""
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

    value: its name without the prefix, in any case; None: unspecified; or its number, which is
    passed through, also if this release does not know it. Raises ValueError for an unknown name.
    """
    if value is not None and not isinstance(value, str):
        return value
    try:
        return enum.Value(prefix + (value or "UNSPECIFIED").upper())
    except ValueError:
        names = [key.removeprefix(prefix) for key in enum.keys()]  # noqa: SIM118 - no mapping
        known = ", ".join(each for each in names if each != "UNSPECIFIED")
        raise ValueError(f"{name} {value!r} is not known; one of {known}") from None
