"""From a PostgreSQL store's URL to what the driver is told, and what the store is set to.

Owns the URL's form and the options in its query. It must not connect. Its rules: what is not known
is refused with what is; and a password leaves this module only in ``parameters``, for the driver.

    postgres://user:password@host:port/database?option=value&…

Several hosts are given with commas (host1:5432,host2:5432): the one that takes writes is used.
A Unix socket's folder is given as ?host=/folder. Without a password the driver looks where libpq
does: PGPASSWORD, then the passfile.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Final
from urllib.parse import parse_qsl, quote, unquote

GROUP_WRITES_MAX: Final = 256
"""Writes in one transaction. Beyond this the disk's share of a write is a few microseconds, and
the first of the group would only wait longer for the last."""

CONNECTIONS_MAX: Final = 100
"""The most connections of one kind that may be asked for: what a server takes in all by default."""

TIMEOUT_MAX_S: Final = 3600.0
"""The longest time-out that may be asked for."""

SCHEMA_DEFAULT: Final = "agent_routing"

_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
"""A name that needs no quotes, and that PostgreSQL does not cut short."""

_PORT: Final = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresOptions:
    """What may be set of a PostgreSQL store. Raises ValueError for values out of bounds."""

    schema: str = SCHEMA_DEFAULT
    """The schema that has the tables. Two stores in one database have two."""
    write_connections: int = 4
    """Groups of writes in flight at once. Usually one is: the others are for when it is late."""
    read_connections: int = 4
    """Reads in flight at once."""
    group_writes_max: int = GROUP_WRITES_MAX
    """Writes in one transaction; 1 = every write syncs by itself."""
    connect_timeout_s: float = 3.0
    """How long one attempt to connect may take, all hosts together."""
    call_timeout_s: float = 5.0
    """How long the server may work on one call. A second later its connection is given up."""
    lock_timeout_s: float = 2.0
    """How long the server may wait for a row that another replica is writing."""
    transaction_pooler: bool = False
    """Whether a pooler stands between that gives every transaction another connection (pgbouncer
    with pool_mode=transaction): nothing is then prepared, set or listened to on a connection."""
    hints: bool = True
    """Whether commits are announced to the other replicas by NOTIFY, and theirs listened for."""

    def __post_init__(self) -> None:
        if not _SCHEMA.fullmatch(self.schema):
            raise ValueError(
                f'schema is "{self.schema}"; it must be a lower-case name of letters, digits and _'
            )
        for name in ("write_connections", "read_connections"):
            _check_range(name, getattr(self, name), 1, CONNECTIONS_MAX)
        _check_range("group_writes_max", self.group_writes_max, 1, GROUP_WRITES_MAX)
        for name in ("connect_timeout_s", "call_timeout_s", "lock_timeout_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and 0 < value <= TIMEOUT_MAX_S):
                raise ValueError(f"{name} is {value}; it must be over 0 and up to {TIMEOUT_MAX_S}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresPlace:
    """Where the store is. What it shows of itself has no password."""

    parameters: Mapping[str, str] = field(repr=False)
    """libpq's connection parameters."""
    options: PostgresOptions
    shown: str
    """The place for messages and logs."""

    def without_secrets(self, text: str) -> str:
        """Take the password out of a text, as written in the URL or as meant."""
        password = self.parameters.get("password", "")
        for form in (password, quote(password), quote(password, safe="")):
            if form:
                text = text.replace(form, "…")
        return text


def parse_url(
    url: str, given: Mapping[str, int | float | None] = MappingProxyType({})
) -> PostgresPlace:
    """Read a URL, and options given beside it, which come first.

    Raises ValueError, which says what is wrong and what to write, and never repeats the URL.
    """
    scheme, _, rest = url.partition("://")
    if not rest:
        raise ValueError("has no server; write postgres://user:password@host:5432/database")
    if "#" in rest:
        raise ValueError('has a "#"; in a user, password or name write %23')
    place, _, query = rest.partition("?")
    authority, slash, database = place.partition("/")
    user_info, _, hosts = authority.rpartition("@")
    if not slash or not database:
        raise ValueError(
            f"names no database; write {scheme}://user:password@host:5432/database "
            "(in a user or password a slash is %2F and an at sign %40)"
        )
    if "/" in database:
        raise ValueError("has a second slash; in a user, password or database's name write %2F")
    user, colon, password = user_info.partition(":")
    parameters = {"dbname": _text("database", database)}
    if user:
        parameters["user"] = _text("user", user)
    if colon:
        parameters["password"] = _text("password", password)
    parameters |= _hosts(hosts)
    options = _take_query(query, parameters)
    if not given.keys() <= _OPTION_FORMS.keys():
        raise ValueError(_unknown("option", given.keys() - _OPTION_FORMS.keys()))
    try:
        chosen = PostgresOptions(**{**options, **given})  # type: ignore[arg-type]
    except TypeError as error:
        raise ValueError(str(error)) from error
    where = hosts or parameters.get("host", "")
    schema = "" if chosen.schema == SCHEMA_DEFAULT else f"?schema={chosen.schema}"
    return PostgresPlace(
        parameters=MappingProxyType(parameters),
        options=chosen,
        shown=f"{scheme}://{where}/{database}{schema}",
    )


def _hosts(text: str) -> dict[str, str]:
    names, ports = [], []
    for entry in text.split(",") if text else []:
        if entry.startswith("["):  # An IPv6 address.
            name, bracket, port = entry[1:].partition("]")
            if not bracket or (port and not port.startswith(":")):
                raise ValueError("has an IPv6 address without its brackets; write [::1]:5432")
            port = port.removeprefix(":")
        else:
            name, _, port = entry.partition(":")
        if not name:
            raise ValueError("has an empty host; write host:5432, several with commas")
        if port and not _PORT.fullmatch(port):
            raise ValueError(
                "has a port that is no number; write host:5432 (in a password write an at sign as "
                "%40, a colon as %3A, a slash as %2F)"
            )
        names.append(_text("host", name))
        ports.append(port)
    found = {"host": ",".join(names)} if names else {}
    if any(ports):
        found["port"] = ",".join(ports)
    return found


def _take_query(query: str, parameters: dict[str, str]) -> dict[str, object]:
    """Put libpq's parameters to the others, and return the store's own options."""
    options: dict[str, object] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ValueError("has a query that is not option=value&option=value") from None
    for name, value in pairs:
        if name in options or name in parameters:
            raise ValueError(f"gives {name} twice")
        if name in _SECRETS:
            raise ValueError(
                f"has {name} in its query, where programs show it; write the password before the "
                "@, or leave it to PGPASSWORD or a passfile"
            )
        if name in _OPTION_FORMS:
            options[name] = _OPTION_FORMS[name](name, value)
        elif name in _LIBPQ:
            parameters[name] = value
        else:
            raise ValueError(_unknown("option", {name}))
    return options


def _unknown(what: str, names: set[str]) -> str:
    return (
        f"has the unknown {what} {', '.join(sorted(names))}; it may have "
        f"{', '.join([*sorted(_OPTION_FORMS), *sorted(_LIBPQ)])}"
    )


def _text(what: str, quoted: str) -> str:
    try:
        text = unquote(quoted, errors="strict")
    except UnicodeDecodeError:
        raise ValueError(f"has a {what} that is no UTF-8 text behind its %-escapes") from None
    if "\0" in text:
        raise ValueError(f"has a NUL character in its {what}")
    return text


def _as_text(_name: str, value: str) -> str:
    return value


def _as_int(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ValueError(f'has {name} "{value}", which is no whole number') from None


def _as_float(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError(f'has {name} "{value}", which is no number') from None


def _as_switch(name: str, value: str) -> bool:
    if value not in {"on", "off"}:
        raise ValueError(f'has {name} "{value}"; write on or off')
    return value == "on"


_FORMS: Final = {"str": _as_text, "int": _as_int, "float": _as_float, "bool": _as_switch}
_OPTION_FORMS: Final = {option.name: _FORMS[str(option.type)] for option in fields(PostgresOptions)}

_LIBPQ: Final = frozenset(
    {
        "application_name",
        "channel_binding",
        "gssencmode",
        "host",
        "hostaddr",
        "keepalives",
        "keepalives_count",
        "keepalives_idle",
        "keepalives_interval",
        "krbsrvname",
        "load_balance_hosts",
        "passfile",
        "port",
        "require_auth",
        "requirepeer",
        "sslcert",
        "sslcertmode",
        "sslcrl",
        "sslcrldir",
        "sslkey",
        "sslmode",
        "sslnegotiation",
        "sslrootcert",
        "sslsni",
        "ssl_max_protocol_version",
        "ssl_min_protocol_version",
        "tcp_user_timeout",
        "user",
    }
)
"""Parameters of libpq that are passed on. Left out are those that the store sets (options,
target_session_attrs, connect_timeout, client_encoding) and those that carry secrets."""

_SECRETS: Final = frozenset(
    {"password", "sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret"}
)


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}; it must be {least} to {most}")
