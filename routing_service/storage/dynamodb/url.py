"""From a DynamoDB store's URL to where its table is, and what the store is set to.

Owns the URL's form and the options in its query. It must not connect, nor know the driver. Its
rules: what is not known is refused with what is; and a URL holds no credentials, which come from
where AWS programs look for them (environment, profile, container, instance).

    dynamodb://region/table?option=value&…

endpoint_url is for DynamoDB's stand-ins and for private endpoints; AWS's own is found by the
region.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Final
from urllib.parse import parse_qsl, urlsplit

CONNECTIONS_MAX: Final = 512
"""The most connections that may be asked for: what one event loop can keep busy many times over."""

ATTEMPTS_MAX: Final = 10
"""The most attempts of one call that may be asked for."""

TIMEOUT_MAX_S: Final = 3600.0
"""The longest time-out that may be asked for."""

_REGION: Final = re.compile(r"[a-z][a-z0-9-]{0,62}")
_TABLE: Final = re.compile(r"[A-Za-z0-9_.-]{3,255}")
"""What AWS allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamodbOptions:
    """What may be set of a DynamoDB store. Raises ValueError for values out of bounds."""

    endpoint_url: str = ""
    """Where DynamoDB is, http(s)://host:port; "" = AWS's endpoint of the region."""
    connections: int = 64
    """Calls in flight at once."""
    attempts_max: int = 3
    """Attempts of one call, the first included, where it was throttled, failed or lost."""
    connect_timeout_s: float = 1.0
    """How long one attempt to connect may take."""
    read_timeout_s: float = 2.0
    """How long one attempt may wait for its answer."""
    call_timeout_s: float = 5.0
    """How long one call may take with all its attempts."""
    log_poll_s: float = 0.1
    """How long a reader of the log who has read everything waits before he asks again."""

    def __post_init__(self) -> None:
        if self.endpoint_url:
            _check_endpoint(self.endpoint_url)
        _check_range("connections", self.connections, CONNECTIONS_MAX)
        _check_range("attempts_max", self.attempts_max, ATTEMPTS_MAX)
        for name in ("connect_timeout_s", "read_timeout_s", "call_timeout_s", "log_poll_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and 0 < value <= TIMEOUT_MAX_S):
                raise ValueError(f"{name} is {value}; it must be over 0 and up to {TIMEOUT_MAX_S}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamodbPlace:
    """Where the store is. It holds no secrets."""

    region: str
    table: str
    options: DynamodbOptions

    @property
    def shown(self) -> str:
        """The place for messages and logs."""
        endpoint = self.options.endpoint_url
        query = f"?endpoint_url={endpoint}" if endpoint else ""
        return f"dynamodb://{self.region}/{self.table}{query}"


def parse_url(
    url: str, given: Mapping[str, int | float | None] = MappingProxyType({})
) -> DynamodbPlace:
    """Read a URL, and options given beside it, which come first.

    Raises ValueError, which says what is wrong and what to write, and never repeats the URL.
    """
    _, _, rest = url.partition("://")
    place, _, query = rest.partition("?")
    if "@" in place:
        raise ValueError(
            "holds credentials, which it must not; leave them to AWS's own places (AWS_PROFILE, "
            "AWS_ACCESS_KEY_ID, the container's or instance's role) and write dynamodb://region/table"
        )
    region, slash, table = place.partition("/")
    if not slash or not region or not table:
        raise ValueError("names no region and table; write dynamodb://eu-west-1/agent_routing")
    if not _REGION.fullmatch(region):
        raise ValueError(f'has the region "{region}"; write one as eu-west-1')
    if not _TABLE.fullmatch(table):
        raise ValueError(
            f'has the table "{table}"; a name has 3 to 255 letters, digits, "_", "-" and "."'
        )
    options = _take_query(query)
    if not given.keys() <= _OPTION_FORMS.keys():
        raise ValueError(_unknown(given.keys() - _OPTION_FORMS.keys()))
    try:
        chosen = DynamodbOptions(**{**options, **given})  # type: ignore[arg-type]
    except TypeError as error:
        raise ValueError(str(error)) from error
    return DynamodbPlace(region=region, table=table, options=chosen)


def _take_query(query: str) -> dict[str, object]:
    options: dict[str, object] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ValueError("has a query that is not option=value&option=value") from None
    for name, value in pairs:
        if name in options:
            raise ValueError(f"gives {name} twice")
        if name not in _OPTION_FORMS:
            raise ValueError(_unknown({name}))
        try:
            options[name] = _OPTION_FORMS[name](value)
        except ValueError:
            raise ValueError(f'has {name} "{value}", which is no number') from None
    return options


def _unknown(names: set[str]) -> str:
    return (
        f"has the unknown option {', '.join(sorted(names))}; it may have "
        f"{', '.join(sorted(_OPTION_FORMS))}"
    )


def _check_endpoint(url: str) -> None:
    try:
        parts = urlsplit(url)
        port_is_right = parts.port is None or parts.port > 0
    except ValueError:
        port_is_right = False
        parts = urlsplit("")
    if parts.scheme not in {"http", "https"} or not parts.hostname or not port_is_right:
        raise ValueError("has an endpoint_url that is no address; write http://host:port")
    if parts.username is not None or parts.query or parts.path not in {"", "/"}:
        raise ValueError("has an endpoint_url with more than http://host:port; leave the rest out")


def _check_range(name: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise ValueError(f"{name} is {value}; it must be 1 to {most}")


_FORMS: Final = {"str": str, "int": int, "float": float}
_OPTION_FORMS: Final = {option.name: _FORMS[str(option.type)] for option in fields(DynamodbOptions)}
