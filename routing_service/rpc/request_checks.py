"""Checks of request fields: one error names every bad field.

A request that passes can be stored on every engine and quoted in every error.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Final, NoReturn, TypeVar

import msgspec
from google.protobuf import duration_pb2, json_format, struct_pb2, timestamp_pb2
from google.protobuf.message import Message

from agent_routing.v1 import admin_service_pb2, item_pb2, routing_service_pb2, turn_pb2
from routing_service.core.errors import Reason, RoutingError, Violation, invalid_field
from routing_service.core.identifiers import (
    CHANNEL_CHARS_MAX,
    CONTENT_TYPE_CHARS_MAX,
    CONTEXT_BYTES_MAX,
    CONTEXT_DEPTH_MAX,
    ENTITLEMENT_CHARS_MAX,
    ENTITLEMENTS_BYTES_MAX,
    ENTITLEMENTS_MAX,
    ID_ALPHABET,
    ID_CHARACTERS,
    ID_CHARS_MAX,
    ITEMS_BYTES_MAX,
    ITEMS_MAX,
    LOCALE_CHARS_MAX,
    SESSION_BYTES_MAX,
    STEP_KIND_CHARS_MAX,
    STEP_NAME_CHARS_MAX,
    STEPS_BYTES_MAX,
    STEPS_MAX,
    TASK_METADATA_BYTES_MAX,
    TASK_METADATA_ENTRIES_MAX,
    TASK_METADATA_KEY_CHARS_MAX,
    TEXT_BYTES_MAX,
    UNSEEN,
    URI_CHARS_MAX,
    USER_BYTES_MAX,
)
from routing_service.core.registry import Registry

M = TypeVar("M", bound=Message)

Watching = (
    routing_service_pb2.WatchSessionRequest
    | routing_service_pb2.WatchInboxRequest
    | routing_service_pb2.WatchApprovalsRequest
    | admin_service_pb2.WatchEventsRequest
)
"""The requests that have a heartbeat interval."""

JSON_VALUES_MAX: Final = 5_000
"""Values of a JSON request, which Python parses one by one. A request within the limits above has
fewer: a context of 16 KB holds 4,096 of the smallest."""
LOCK_TIMEOUT_S_MAX: Final = 366 * 24 * 3600
PAGE_SIZE_MAX: Final = 1000
HEARTBEAT_S_MIN: Final = 1
HEARTBEAT_S_MAX: Final = 300

BATCH_S_MAX: Final = 5
"""For how long a watch collects changes at most: people see them later by as much."""
HEARTBEAT_S_DEFAULT: Final = 15.0

# The part of a caller's value that an error quotes.
_QUOTED_CHARS_MAX: Final = 64

_ID = re.compile(rf"[{ID_CHARACTERS}]+\Z")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z")
_LOCALE = re.compile(r"[A-Za-z]{2,8}([-_][A-Za-z0-9]{1,8})*\Z")
_CONTENT_TYPE = re.compile(r"[!-.0-~]+/[!-~][ -~]*\Z")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:[^\s\x00-\x1f\x7f]+\Z")
# Unicode's control, format and surrogate characters, and its line and paragraph separators.
_UNSEEN_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})

# A Timestamp lies between 0001-01-01 and 9999-12-31.
_SECONDS_MIN: Final = -62_135_596_800
_SECONDS_MAX: Final = 253_402_300_799
_NANOS_MAX: Final = 999_999_999


class FieldChecks:
    """Collects the bad fields of one request."""

    def __init__(self) -> None:
        """Start without a bad field."""
        self._violations: list[Violation] = []

    def done(self) -> None:
        """Raise INVALID_FIELD with every bad field, if there is any."""
        if not self._violations:
            return
        first = self._violations[0]
        more = len(self._violations) - 1
        rest = f" (and {more} more bad field{'s' if more > 1 else ''})" if more else ""
        raise RoutingError(
            Reason.INVALID_FIELD,
            f"{first.subject}: {first.detail}{rest}",
            metadata={"field": first.subject, "fields": str(len(self._violations))},
            violations=self._violations,
        )

    def refuse(self, field: str, detail: str) -> None:
        """Note that a field is bad, and why."""
        self._violations.append(Violation(field, detail))

    def identifier(self, field: str, value: str, *, required: bool = False) -> None:
        """Check an id that is not a UUID, such as a session's."""
        if not value:
            if required:
                self.refuse(field, f"is required; send an id of 1-{ID_CHARS_MAX} characters")
            return
        if len(value) > ID_CHARS_MAX:
            self.refuse(
                field,
                f"has {len(value)} characters; use at most {ID_CHARS_MAX} of {ID_ALPHABET}",
            )
        elif not _ID.match(value):
            self.refuse(field, f"{_quoted(value)} has characters other than {ID_ALPHABET}")

    def session(self, field: str, value: str, *, required: bool = False) -> None:
        """Check a session's id. Another system made it, so it may have any visible characters.

        It is stored and compared byte by byte, so two forms of one text would be two sessions: only
        Unicode's normal form C is accepted.
        """
        if _ID.match(value) and len(value) <= ID_CHARS_MAX:
            return
        if not value:
            if required:
                self.refuse(field, f"is required; send an id of 1-{ID_CHARS_MAX} characters")
        elif len(value) > ID_CHARS_MAX:
            self.refuse(field, f"has {len(value)} characters; use at most {ID_CHARS_MAX}")
        elif not _UNSEEN_CATEGORIES.isdisjoint(map(unicodedata.category, value)):
            self.refuse(
                field,
                f"{_quoted(value)} has control, invisible or line-separator characters; leave them "
                "out",
            )
        elif not unicodedata.is_normalized("NFC", value):
            normal = unicodedata.normalize("NFC", value)
            self.refuse(
                field,
                f'{_quoted(value)} is not in Unicode normal form C; send "{normal}"',
            )
        elif (size := len(value.encode())) > SESSION_BYTES_MAX:
            self.refuse(field, f"has {size} bytes; use at most {SESSION_BYTES_MAX}")

    def agent(self, field: str, value: str, registry: Registry, *, required: bool = False) -> None:
        """Check an agent's id or alias. A registered alias may have any characters."""
        if registry.resolve(value) is None:
            self.identifier(field, value, required=required)

    def uuid(self, field: str, value: str, *, required: bool = False) -> str:
        """Check a task's, request's or suggestion's id; return it in lower case."""
        if not value:
            if required:
                self.refuse(field, "is required; send a UUID")
            return ""
        if not _UUID.match(value):
            example = "0198a6c0-5f3e-7a51-9c1d-2f6f0a4b7e11"
            empty = "" if required else ", or leave it empty"
            self.refuse(field, f"{_quoted(value)} is not a UUID; send one such as {example}{empty}")
            return value
        return value.lower()

    def user(self, field: str, value: str) -> None:
        """Check a user's id. Another system made it, so it may have any visible characters."""
        if len(value) * 4 > USER_BYTES_MAX and len(value.encode()) > USER_BYTES_MAX:
            self.refuse(field, f"has more than {USER_BYTES_MAX} bytes; use a shorter id")
        elif UNSEEN.search(value):
            self.refuse(
                field,
                "has control or invisible characters; send the id that the user signed in with",
            )

    def text(self, field: str, value: str, bytes_max: int) -> None:
        """Check a text: its size, and that every engine can store it."""
        # UTF-8 has at most four bytes per character, so most texts need not be encoded for this.
        if len(value) * 4 > bytes_max and (size := len(value.encode())) > bytes_max:
            self.refuse(field, f"has {size} bytes; send at most {bytes_max}")
        if "\x00" in value:
            self.refuse(field, "has a NUL character; leave it out")

    def reason(self, field: str, value: str, bytes_max: int) -> None:
        """Check why something is done, if it says so: blank is no reason."""
        self.text(field, value, bytes_max)
        if value and not value.strip():
            self.refuse(field, "is blank; say why")

    def locale(self, field: str, value: str) -> None:
        """Check the form of a language tag."""
        if value and (len(value) > LOCALE_CHARS_MAX or not _LOCALE.match(value)):
            self.refuse(
                field, f'{_quoted(value)} is not a BCP 47 tag; send one such as "es" or "es-MX"'
            )

    def channel(self, field: str, value: str) -> None:
        """Check a channel's name."""
        if value and (len(value) > CHANNEL_CHARS_MAX or not _ID.match(value)):
            self.refuse(
                field,
                f"{_quoted(value)} is not 1-{CHANNEL_CHARS_MAX} characters of {ID_ALPHABET}",
            )

    def entitlements(self, field: str, values: Iterable[str]) -> tuple[str, ...]:
        """Check entitlements; return them sorted and without duplicates."""
        distinct = sorted(set(values))
        if len(distinct) > ENTITLEMENTS_MAX:
            self.refuse(field, f"has {len(distinct)} entries; send at most {ENTITLEMENTS_MAX}")
        for value in distinct[:ENTITLEMENTS_MAX]:
            if not 0 < len(value) <= ENTITLEMENT_CHARS_MAX or UNSEEN.search(value):
                self.refuse(
                    field,
                    f"{_quoted(value)} is not 1-{ENTITLEMENT_CHARS_MAX} printable characters",
                )
        size = sum(len(value.encode()) for value in distinct)
        if size > ENTITLEMENTS_BYTES_MAX:
            self.refuse(field, f"has {size} bytes; send at most {ENTITLEMENTS_BYTES_MAX}")
        return tuple(distinct)

    def metadata(self, field: str, values: Mapping[str, str]) -> None:
        """Check a task's metadata."""
        if len(values) > TASK_METADATA_ENTRIES_MAX:
            self.refuse(
                field, f"has {len(values)} entries; send at most {TASK_METADATA_ENTRIES_MAX}"
            )
        size = 0
        for key, value in values.items():
            size += len(key.encode()) + len(value.encode())
            if not 0 < len(key) <= TASK_METADATA_KEY_CHARS_MAX or UNSEEN.search(key):
                self.refuse(
                    field,
                    f"key {_quoted(key)} is not 1-{TASK_METADATA_KEY_CHARS_MAX} printable "
                    "characters",
                )
            if "\x00" in value:
                self.refuse(f"{field}[{key[:_QUOTED_CHARS_MAX]}]", "has a NUL character")
        if size > TASK_METADATA_BYTES_MAX:
            self.refuse(field, f"has {size} bytes; send at most {TASK_METADATA_BYTES_MAX}")

    def items(self, field: str, items: Iterable[item_pb2.Item]) -> None:
        """Check a message's items: each of them, and their total size."""
        listed = list(items)
        if len(listed) > ITEMS_MAX:
            self.refuse(field, f"has {len(listed)} items; send at most {ITEMS_MAX}")
        size = sum(item.ByteSize() for item in listed)
        if size > ITEMS_BYTES_MAX:
            self.refuse(
                field, f"has {size} bytes; send at most {ITEMS_BYTES_MAX}, large content by uri"
            )
        for place, item in enumerate(listed[:ITEMS_MAX]):
            self._item(f"{field}[{place}]", item)

    def _item(self, field: str, item: item_pb2.Item) -> None:
        kind = item.content_type
        if len(kind) > CONTENT_TYPE_CHARS_MAX or not _CONTENT_TYPE.match(kind):
            self.refuse(
                f"{field}.content_type",
                f'{_quoted(kind)} is not a media type; send one such as "image/png"',
            )
        match item.WhichOneof("content"):
            case "text":
                self.text(f"{field}.text", item.text, TEXT_BYTES_MAX)
            case "uri":
                if len(item.uri) > URI_CHARS_MAX or not _URI.match(item.uri):
                    self.refuse(
                        f"{field}.uri",
                        f"{_quoted(item.uri)} is not an absolute URI of at most "
                        f"{URI_CHARS_MAX} characters",
                    )
            case "data":
                pass
            case _:
                self.refuse(field, "has no content; set one of text, data or uri")

    def steps(self, field: str, steps: Iterable[turn_pb2.Step]) -> None:
        """Check an execution trace."""
        listed = list(steps)
        if len(listed) > STEPS_MAX:
            self.refuse(field, f"has {len(listed)} steps; send at most {STEPS_MAX}")
        size = sum(step.ByteSize() for step in listed)
        if size > STEPS_BYTES_MAX:
            self.refuse(field, f"has {size} bytes; send at most {STEPS_BYTES_MAX}")
        for place, step in enumerate(listed[:STEPS_MAX]):
            at = f"{field}[{place}]"
            if not step.name:
                self.refuse(f"{at}.name", "is required; name the step")
            for part, chars_max in (("name", STEP_NAME_CHARS_MAX), ("kind", STEP_KIND_CHARS_MAX)):
                if (chars := len(getattr(step, part))) > chars_max:
                    self.refuse(f"{at}.{part}", f"has {chars} characters; use at most {chars_max}")
            for part in ("name", "kind", "input", "output"):
                self.text(f"{at}.{part}", getattr(step, part), STEPS_BYTES_MAX)
            if step.HasField("start_time"):
                self.timestamp(f"{at}.start_time", step.start_time)
            if step.HasField("duration"):
                self.duration(f"{at}.duration", step.duration, seconds_max=LOCK_TIMEOUT_S_MAX)

    def context(
        self, field: str, value: struct_pb2.Struct, *, bytes_max: int = CONTEXT_BYTES_MAX
    ) -> None:
        """Check the context of a handoff, or the fields of an approval."""
        size = value.ByteSize()
        if size > bytes_max:
            self.refuse(field, f"has {size} bytes; send at most {bytes_max}")
        elif problem := _struct_problem(value):
            self.refuse(field, problem)

    def timestamp(self, field: str, value: timestamp_pb2.Timestamp) -> None:
        """Check that a time is valid."""
        in_range = _SECONDS_MIN <= value.seconds <= _SECONDS_MAX
        if not in_range or not 0 <= value.nanos <= _NANOS_MAX:
            self.refuse(field, "is not a time between the years 1 and 9999")

    def duration(
        self, field: str, value: duration_pb2.Duration, *, seconds_max: int, positive: bool = False
    ) -> None:
        """Check that a duration is valid and within bounds."""
        nanos_fit = 0 <= value.nanos <= _NANOS_MAX
        if not 0 <= value.seconds <= seconds_max or not nanos_fit:
            self.refuse(field, f"is not between 0 and {seconds_max} seconds")
        elif positive and not value.seconds and not value.nanos:
            self.refuse(field, "is 0; send a longer time, or leave it out")

    def heartbeat_s(self, request: Watching) -> float:
        """Check the heartbeat interval of a watch; return it in seconds, or the default."""
        if not request.HasField("heartbeat_interval"):
            return HEARTBEAT_S_DEFAULT
        value = request.heartbeat_interval
        seconds = value.seconds + value.nanos / 1e9
        if not HEARTBEAT_S_MIN <= seconds <= HEARTBEAT_S_MAX or not 0 <= value.nanos <= _NANOS_MAX:
            self.refuse(
                "heartbeat_interval",
                f"is not between {HEARTBEAT_S_MIN} and {HEARTBEAT_S_MAX} seconds",
            )
        return seconds

    def batch_s(self, request: admin_service_pb2.WatchEventsRequest) -> float:
        """Check for how long changes are collected; return it in seconds, 0 = not at all."""
        value = request.batch_interval
        seconds = value.seconds + value.nanos / 1e9
        if not 0 <= seconds <= BATCH_S_MAX or not 0 <= value.nanos <= _NANOS_MAX:
            self.refuse("batch_interval", f"is not between 0 and {BATCH_S_MAX} seconds")
        return seconds

    def number(self, field: str, value: int, minimum: int, maximum: int) -> None:
        """Check a number's range."""
        if not minimum <= value <= maximum:
            self.refuse(field, f"is {value}; use {minimum} to {maximum}")

    def revision(self, field: str, value: int) -> None:
        """Check a session's revision."""
        if value < 0:
            self.refuse(field, f"is {value}; use 0 or more")

    def word(self, field: str, value: int, allowed: Iterable[int], names: str) -> None:
        """Check an enum's value. names: the allowed values, for the error."""
        if value not in allowed:
            self.refuse(field, f"{value} is not allowed here; use {names}")


_WITH_ITEMS: Final = frozenset({"RouteRequest", "CompleteTurnRequest"})
"""Requests with bytes in a field. RouteStream's is not sent as JSON."""

_BASE64: Final = re.compile(r"(?:[A-Za-z0-9+/]*|[A-Za-z0-9_-]*)={0,2}")


class JsonRequest(bytes):
    """A request in proto3 JSON. It is parsed after its caller is known."""

    __slots__ = ()


def parse(message_type: type[M], data: bytes) -> M:
    """Parse a request. Raises MALFORMED_REQUEST, TOO_LARGE, without the parser's message."""
    try:
        if not isinstance(data, JsonRequest):
            return message_type.FromString(data)
        _check_json(data)
        if message_type.DESCRIPTOR.name in _WITH_ITEMS:
            _check_items(data)
        return json_format.Parse(bytes(data), message_type(), ignore_unknown_fields=True)
    except RoutingError:
        raise
    except Exception as error:  # noqa: BLE001 - DecodeError, or UnicodeDecodeError in some builds
        _refuse_bytes(message_type.DESCRIPTOR.full_name, error)


def _check_json(data: bytes) -> None:
    """Raise TOO_LARGE for JSON that would take so long to parse that other calls wait.

    Raises ValueError, RecursionError for what is not JSON, or not a JSON object.
    """
    if not data.lstrip().startswith(b"{"):
        # Protobuf's parser would take the characters of a string for unknown field names.
        raise ValueError("not an object")
    # Each value but the first follows one of these, so their count is an upper bound.
    if sum(map(data.count, (b",", b":", b"[", b"{"))) < JSON_VALUES_MAX:
        return
    pending, values = [msgspec.json.decode(data)], 1
    while pending:
        value = pending.pop()
        inner = value.values() if isinstance(value, dict) else value
        values += len(inner)
        if values > JSON_VALUES_MAX:
            raise RoutingError(
                Reason.TOO_LARGE,
                f"the request's JSON has more than {JSON_VALUES_MAX} values; send fewer at a time",
                metadata={"limit_values": str(JSON_VALUES_MAX)},
            )
        pending += [each for each in inner if isinstance(each, dict | list)]


def _check_items(data: bytes) -> None:
    """Raise INVALID_FIELD for item data that is not base64.

    Protobuf's parser skips every character that is not of base64, so that it would store something
    else than was sent. Raises msgspec.DecodeError.
    """
    items = msgspec.json.decode(data).get("items")
    for place, item in enumerate(items if isinstance(items, list) else ()):
        value = item.get("data") if isinstance(item, dict) else None
        if isinstance(value, str) and not _is_base64(value):
            raise invalid_field(f"items[{place}].data", "is not base64; encode the bytes as base64")


def _is_base64(text: str) -> bool:
    """Say whether a text is base64, standard or URL-safe, with or without padding."""
    if not _BASE64.fullmatch(text):
        return False
    digits = len(text.rstrip("="))
    return digits % 4 != 1 and (digits == len(text) or len(text) % 4 == 0)


def _refuse_bytes(name: str, error: Exception) -> NoReturn:
    # Each RPC has a request message of its own, named for it.
    method = name.rpartition(".")[2].removesuffix("Request")
    raise RoutingError(
        Reason.MALFORMED_REQUEST,
        f"the request is not a valid {name}; check that client and server use the same contract, "
        "and that text is UTF-8",
        metadata={"method": method},
    ) from error


def _quoted(value: str) -> str:
    """Quote a caller's value, shortened and on one line."""
    shown = value[:_QUOTED_CHARS_MAX] + ("…" if len(value) > _QUOTED_CHARS_MAX else "")
    return '"' + shown.encode("unicode_escape").decode("ascii").replace('"', '\\"') + '"'


def _struct_problem(value: struct_pb2.Struct) -> str:
    """Return what an engine or reader could not accept in an object; "" for nothing."""
    pending = [(key, entry, 1) for key, entry in value.fields.items()]
    while pending:
        key, entry, level = pending.pop()
        if level > CONTEXT_DEPTH_MAX:
            return f"is nested more than {CONTEXT_DEPTH_MAX} deep; flatten it"
        if "\x00" in key or "\x00" in entry.string_value:
            return "has a NUL character; leave it out"
        if not math.isfinite(entry.number_value):
            return f"{_quoted(key)} is not a finite number; JSON has only finite numbers"
        pending += [(k, v, level + 1) for k, v in entry.struct_value.fields.items()]
        pending += [(key, v, level + 1) for v in entry.list_value.values]
    return ""
