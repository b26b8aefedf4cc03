"""The options of every engine, and the parts that store URLs have in common.

The option classes are the one table: an option's name, form, default, bounds and meaning. What is
not in it is refused with a list of what is. Messages never repeat the URL, which may hold a
password; all errors are ValueError.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

GivenOptions = Mapping[str, int | float | None]
"""Options given in code with the URL; they override those in its query."""

GROUP_WRITES_MAX: Final = 256
"""Writes in one transaction or round trip. Beyond this the disk's share of a write is a few
microseconds, and the first of the group would only wait longer for the last."""

CONNECTIONS_MAX: Final = 100
"""The most connections of one kind to PostgreSQL, which by default takes that many in all, and to
Redis, which runs one command at a time, so that more than a few gain nothing."""

DYNAMODB_CONNECTIONS_MAX: Final = 512
"""The most connections to DynamoDB: several times what one event loop can keep busy."""

ATTEMPTS_MAX: Final = 10
"""The most attempts of one call."""

TIMEOUT_MAX_S: Final = 3600.0
"""The longest time-out."""

_PORT: Final = re.compile(r"[0-9]{1,5}")


class _Form(NamedTuple):
    """What one option may be."""

    kind: type
    least: float = -math.inf
    most: float = math.inf
    over_zero: bool = False
    pattern: str = ""
    remedy: str = ""
    """What a text must be."""
    or_none: bool = False


def _number(default: int | None, least: int, most: float = math.inf) -> Any:
    form = _Form(int, least, most, or_none=default is None)
    return field(default=default, metadata={"form": form})


def _seconds(default: float) -> Any:
    form = _Form(float, 0, TIMEOUT_MAX_S, over_zero=True)
    return field(default=default, metadata={"form": form})


def _switch(default: bool) -> Any:  # noqa: FBT001 - a column of the table
    return field(default=default, metadata={"form": _Form(bool)})


def _text(default: str, pattern: str = "", remedy: str = "") -> Any:
    return field(default=default, metadata={"form": _Form(str, pattern=pattern, remedy=remedy)})


class _Options:
    """Checks every option against its form. Raises ValueError."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for option in _fields(type(self)):
            _check(option.name, getattr(self, option.name), option.metadata["form"])


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteOptions(_Options):
    """The options of a SQLite store; they are given in code, its URL has none."""

    busy_timeout_s: float = field(default=5.0, metadata={"form": _Form(float, 0, TIMEOUT_MAX_S)})
    """How long a write waits while another program, such as a backup, has the file locked; 0 = not
    at all."""
    group_writes_max: int = _number(GROUP_WRITES_MAX, 1, GROUP_WRITES_MAX)
    """Writes in one transaction; 1 = every write is synced separately."""
    file_bytes_max: int | None = _number(None, 1)
    """The file grows to this and no further (its log comes on top): appends then raise
    StoreUnavailable, as with a full disk. None = until the disk is full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresOptions(_Options):
    """The options of a PostgreSQL store."""

    # A name that needs no quotes, and that PostgreSQL does not cut short.
    schema: str = _text(
        "agent_routing", "[a-z_][a-z0-9_]{0,62}", "a lower-case name of letters, digits and _"
    )
    """The schema that has the tables. Two stores in one database have two."""
    write_connections: int = _number(4, 1, CONNECTIONS_MAX)
    """Groups of writes in flight at once. Usually one is; the others are for when it is late."""
    read_connections: int = _number(4, 1, CONNECTIONS_MAX)
    """Reads in flight at once."""
    group_writes_max: int = _number(GROUP_WRITES_MAX, 1, GROUP_WRITES_MAX)
    """Writes in one transaction; 1 = every write is synced separately."""
    connect_timeout_s: float = _seconds(3.0)
    """How long one attempt to connect may take, all hosts together."""
    call_timeout_s: float = _seconds(5.0)
    """How long the server may work on one call. A second later its connection is given up."""
    lock_timeout_s: float = _seconds(2.0)
    """How long the server may wait for a row that another replica is writing."""
    transaction_pooler: bool = _switch(default=False)
    """Whether a pooler in between gives every transaction another connection (pgbouncer with
    pool_mode=transaction): then nothing is prepared, set or listened to on a connection."""
    hints: bool = _switch(default=True)
    """Whether commits are announced to the other replicas by NOTIFY, and theirs listened for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisOptions(_Options):
    """The options of a Redis store."""

    # No brace, which would move the keys to other slots; nothing that SCAN takes for a pattern.
    prefix: str = _text(
        "agent-routing", "[A-Za-z0-9_.-]{1,64}", "1 to 64 letters, digits, and any of _ . -"
    )
    """What all keys begin with. Two stores in one database have two."""
    durability: str = _text("disk", "disk|memory", "disk or memory")
    """disk: a write is acknowledged once the server has it on its disk. memory: once the server
    has it in memory, so that a crash of the server can lose it."""
    sync_replicas: int = _number(0, 0, CONNECTIONS_MAX)
    """Replicas that must also have a write on their disks before it is acknowledged."""
    read_connections: int = _number(2, 1, CONNECTIONS_MAX)
    """Connections for reading. Reads that wait for one are sent together."""
    group_writes_max: int = _number(GROUP_WRITES_MAX, 1, GROUP_WRITES_MAX)
    """Writes in one round trip; 1 = every write is synced separately."""
    connect_timeout_s: float = _seconds(3.0)
    """How long one attempt to connect may take."""
    call_timeout_s: float = _seconds(5.0)
    """How long the server may take for one group. A second later its connection is given up."""
    socket: str = _text("")
    """The path of the server's Unix socket; "" = connect to the host and port."""
    ssl_ca_certs: str = _text("")
    """The file of certificates that the server's is checked against; "" = the system's."""
    ssl_certfile: str = _text("")
    ssl_keyfile: str = _text("")
    """Our own certificate and its key, if the server asks for one."""
    ssl_check_hostname: bool = _switch(default=True)
    """Whether the server's certificate must be for the host of the URL."""

    def __post_init__(self) -> None:
        # slots=True makes another class, which super() without arguments does not find.
        _Options.__post_init__(self)
        if self.durability == "memory" and self.sync_replicas:
            raise ValueError("sync_replicas needs durability=disk")


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamodbOptions(_Options):
    """The options of a DynamoDB store."""

    endpoint_url: str = _text("")
    """Where DynamoDB is, http(s)://host:port; "" = AWS's endpoint of the region."""
    connections: int = _number(64, 1, DYNAMODB_CONNECTIONS_MAX)
    """Calls in flight at once."""
    attempts_max: int = _number(3, 1, ATTEMPTS_MAX)
    """Attempts of one call, the first included, if it was throttled, failed or lost."""
    connect_timeout_s: float = _seconds(1.0)
    """How long one attempt to connect may take."""
    read_timeout_s: float = _seconds(2.0)
    """How long one attempt may wait for its answer."""
    call_timeout_s: float = _seconds(5.0)
    """How long one call may take with all its attempts."""
    log_poll_s: float = _seconds(0.1)
    """How long a reader at the end of the log waits before it asks again."""

    def __post_init__(self) -> None:
        _Options.__post_init__(self)
        if self.endpoint_url:
            _check_endpoint(self.endpoint_url)


O = TypeVar("O", bound=_Options)  # noqa: E741 - the options of one engine


def read_options(
    kind: type[O],
    query: str,
    given: GivenOptions,
    *,
    secrets_remedy: str,
    passed_on: frozenset[str] = frozenset(),
) -> tuple[O, dict[str, str]]:
    """Read a URL's query and the options given in code, which override it.

    secrets_remedy: where to put a password instead. passed_on: names of the driver's own that the
    query may have as well; they are returned separately. Raises ValueError.
    """
    forms = {option.name: option.metadata["form"] for option in _fields(kind)}
    chosen: dict[str, object] = {}
    others: dict[str, str] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ValueError("has a query that is not option=value&option=value") from None
    for name, value in pairs:
        if name in chosen or name in others:
            raise ValueError(f"gives {name} twice")
        if _is_secret(name):
            raise ValueError(f"has {name} in its query, where programs show it; {secrets_remedy}")
        if name in forms:
            chosen[name] = _read(name, value, forms[name])
        elif name in passed_on:
            others[name] = value
        else:
            raise _unknown({name}, forms, passed_on)
    if not given.keys() <= forms.keys():
        raise _unknown(given.keys() - forms.keys(), forms, passed_on)
    return kind(**{**chosen, **given}), others


def unescape(what: str, quoted: str) -> str:
    """Undo a URL's %-escapes in one of its parts. Raises ValueError."""
    try:
        text = unquote(quoted, errors="strict")
    except UnicodeDecodeError:
        raise ValueError(f"has a {what} whose %-escapes are not UTF-8 text") from None
    if "\0" in text:
        raise ValueError(f"has a NUL character in its {what}")
    return text


def read_server(text: str, port_default: int) -> tuple[str, str]:
    """Read host:port or [IPv6]:port; the port stays text, "" = not given. Raises ValueError."""
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise ValueError(
                f"has an IPv6 address without its brackets; write [::1]:{port_default}"
            )
        port = port.removeprefix(":")
    else:
        host, _, port = text.partition(":")
    if port and not (_PORT.fullmatch(port) and 0 < int(port) < 1 << 16):
        raise ValueError(
            f"has a port that is not a number from 1 to 65535; write host:{port_default} (in a "
            "password write an at sign as %40, a colon as %3A, a slash as %2F)"
        )
    return unescape("host", host), port


def shown_option(options: _Options, name: str) -> str:
    """Return "?name=value" for an option that identifies the store, "" for its default."""
    (default,) = (option.default for option in _fields(type(options)) if option.name == name)
    value = getattr(options, name)
    return "" if value == default else f"?{name}={value}"


def _fields(kind: type[_Options]) -> tuple[Field[Any], ...]:
    return fields(kind)  # type: ignore[arg-type]


def _is_secret(name: str) -> bool:
    return "password" in name or "secret" in name or name.startswith("scram_")


def _unknown(names: set[str], forms: Mapping[str, _Form], passed_on: frozenset[str]) -> ValueError:
    known = ", ".join([*sorted(forms), *sorted(passed_on)])
    return ValueError(f"has the unknown option {', '.join(sorted(names))}; it may have {known}")


def _read(name: str, value: str, form: _Form) -> object:
    if form.kind is bool:
        if value not in {"on", "off"}:
            raise ValueError(f'has {name} "{value}"; write on or off')
        return value == "on"
    try:
        return form.kind(value)
    except ValueError:
        raise ValueError(f'has {name} "{value}", which is not {_described(form)}') from None


def _check(name: str, value: object, form: _Form) -> None:
    if value is None and form.or_none:
        return
    if form.kind is float and isinstance(value, int | float):
        least_fits = form.least < value if form.over_zero else form.least <= value
        if not (math.isfinite(value) and least_fits and value <= form.most):
            least = "over 0" if form.over_zero else f"at least {form.least}"
            raise ValueError(f"{name} is {value}; it must be {least} and up to {form.most}")
    elif not isinstance(value, form.kind):
        raise ValueError(f"{name} is {value!r}; it must be {_described(form)}")
    elif form.kind is int and not form.least <= value <= form.most:  # type: ignore[operator]
        bounds = (
            f"{form.least} to {form.most}" if math.isfinite(form.most) else f"{form.least} or more"
        )
        raise ValueError(f"{name} is {value}; it must be {bounds}")
    elif form.pattern and not re.fullmatch(form.pattern, str(value)):
        raise ValueError(f'{name} is "{value}"; it must be {form.remedy}')


def _described(form: _Form) -> str:
    names = {int: "a whole number", float: "a number", bool: "a switch", str: "a text"}
    return names[form.kind]


def _check_endpoint(url: str) -> None:
    try:
        parts = urlsplit(url)
        port_fits = parts.port is None or parts.port > 0
    except ValueError:
        port_fits = False
        parts = urlsplit("")
    if parts.scheme not in {"http", "https"} or not parts.hostname or not port_fits:
        raise ValueError("has an endpoint_url that is not an address; write http://host:port")
    if parts.username is not None or parts.query or parts.path not in {"", "/"}:
        raise ValueError("has an endpoint_url with more than http://host:port; leave the rest out")
