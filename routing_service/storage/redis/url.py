"""From a Redis store's URL to what the driver is told, and what the store is set to.

Owns the URL's form and the options in its query. It must not connect. Its rules: what is not known
is refused with what is; and a password leaves this module only in ``RedisPlace.password``, for the
driver.

    redis://user:password@host:port/database?option=value&…

rediss:// is the same over TLS. A Unix socket is given as redis:///0?socket=/path/redis.sock.
Without a password in the URL the environment's REDISCLI_AUTH is taken, as redis-cli does.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Final
from urllib.parse import parse_qsl, quote, unquote

GROUP_WRITES_MAX: Final = 256
"""Writes in one round trip. Beyond this the disk's share of a write is a few microseconds, and
the first of the group would only wait longer for the last."""

CONNECTIONS_MAX: Final = 100
"""The most connections for reading that may be asked for. The server runs one command at a time:
more than a few gain nothing."""

TIMEOUT_MAX_S: Final = 3600.0
"""The longest time-out that may be asked for."""

PREFIX_DEFAULT: Final = "agent-routing"

PORT_DEFAULT: Final = 6379

PASSWORD_VARIABLE: Final = "REDISCLI_AUTH"  # noqa: S105 - a variable's name

_PREFIX: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""No brace, which would move the keys to other slots; nothing that SCAN takes for a pattern."""

_PORT: Final = re.compile(r"[0-9]{1,5}")
_DATABASE: Final = re.compile(r"[0-9]{0,5}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisOptions:
    """What may be set of a Redis store. Raises ValueError for values out of bounds."""

    prefix: str = PREFIX_DEFAULT
    """What all keys begin with. Two stores in one database have two."""
    durability: str = "disk"
    """disk: a write is acknowledged once the server has it on its disk. memory: once the server
    has it at all, which a crash of the server takes back."""
    sync_replicas: int = 0
    """Replicas that have to have a write on their disks too before it is acknowledged."""
    read_connections: int = 2
    """Connections for reading. What waits for one goes out together."""
    group_writes_max: int = GROUP_WRITES_MAX
    """Writes in one round trip; 1 = every write syncs by itself."""
    connect_timeout_s: float = 3.0
    """How long one attempt to connect may take."""
    call_timeout_s: float = 5.0
    """How long the server may take for one group. A second later its connection is given up."""
    socket: str = ""
    """The path of the server's Unix socket; "" = host and port count."""
    ssl_ca_certs: str = ""
    """The file with the certificates that the server's is checked against; "" = the system's."""
    ssl_certfile: str = ""
    ssl_keyfile: str = ""
    """Our own certificate and its key, where the server asks for one."""
    ssl_check_hostname: bool = True
    """Whether the server's certificate has to be for the host of the URL."""

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            raise ValueError(
                f'prefix is "{self.prefix}"; it must be 1 to 64 letters, digits, and any of _ . -'
            )
        if self.durability not in {"disk", "memory"}:
            raise ValueError(f'durability is "{self.durability}"; it must be disk or memory')
        if self.durability == "memory" and self.sync_replicas:
            raise ValueError("sync_replicas needs durability=disk")
        _check_range("sync_replicas", self.sync_replicas, 0, CONNECTIONS_MAX)
        _check_range("read_connections", self.read_connections, 1, CONNECTIONS_MAX)
        _check_range("group_writes_max", self.group_writes_max, 1, GROUP_WRITES_MAX)
        for name in ("connect_timeout_s", "call_timeout_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and 0 < value <= TIMEOUT_MAX_S):
                raise ValueError(f"{name} is {value}; it must be over 0 and up to {TIMEOUT_MAX_S}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisPlace:
    """Where the store is. What it shows of itself has no password."""

    host: str
    port: int
    database: int
    user: str
    password: str = field(repr=False)
    tls: bool
    options: RedisOptions
    shown: str
    """The place for messages and logs."""

    def without_secrets(self, text: str) -> str:
        """Take the password out of a text, as written in the URL or as meant."""
        for form in (self.password, quote(self.password), quote(self.password, safe="")):
            if form:
                text = text.replace(form, "…")
        return text


def parse_url(
    url: str, given: Mapping[str, int | float | None] = MappingProxyType({})
) -> RedisPlace:
    """Read a URL, and options given beside it, which come first.

    Raises ValueError, which says what is wrong and what to write, and never repeats the URL.
    """
    scheme, _, rest = url.partition("://")
    if not rest:
        raise ValueError("has no server; write redis://user:password@host:6379/0")
    if "#" in rest:
        raise ValueError('has a "#"; in a user or password write %23')
    place, _, query = rest.partition("?")
    authority, _, database = place.partition("/")
    user_info, _, server = authority.rpartition("@")
    if not _DATABASE.fullmatch(database):
        raise ValueError(
            f"names a database that is no number; write {scheme}://user:password@host:6379/0 "
            "(in a user or password a slash is %2F and an at sign %40)"
        )
    user, _, password = user_info.partition(":")
    options = _read_query(query)
    if not given.keys() <= _FORMS.keys():
        raise ValueError(_unknown(given.keys() - _FORMS.keys()))
    try:
        chosen = RedisOptions(**{**options, **given})  # type: ignore[arg-type]
    except TypeError as error:
        raise ValueError(str(error)) from error
    host, port = _server(server)
    tls = scheme.lower() == "rediss"
    if chosen.socket and (host or tls):
        raise ValueError("has both a host, or TLS, and a socket; write redis:///0?socket=/path")
    if not chosen.socket and not host:
        raise ValueError("has no host; write redis://user:password@host:6379/0")
    if not tls and any(getattr(chosen, name) for name in _TLS_FILES):
        raise ValueError("has options of TLS; write rediss:// for it")
    prefix = "" if chosen.prefix == PREFIX_DEFAULT else f"?prefix={chosen.prefix}"
    return RedisPlace(
        host=host,
        port=port,
        database=int(database or 0),
        user=_text("user", user),
        password=_text("password", password) or os.environ.get(PASSWORD_VARIABLE, ""),
        tls=tls,
        options=chosen,
        shown=f"{scheme}://{chosen.socket or server}/{database}{prefix}",
    )


_TLS_FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


def _server(text: str) -> tuple[str, int]:
    if text.startswith("["):  # An IPv6 address.
        host, bracket, port = text[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise ValueError("has an IPv6 address without its brackets; write [::1]:6379")
        port = port.removeprefix(":")
    else:
        host, _, port = text.partition(":")
    if port and not (_PORT.fullmatch(port) and 0 < int(port) < 1 << 16):
        raise ValueError(
            "has a port that is no port's number; write host:6379 (in a password write an at sign "
            "as %40, a colon as %3A, a slash as %2F)"
        )
    return _text("host", host), int(port or PORT_DEFAULT)


def _read_query(query: str) -> dict[str, object]:
    options: dict[str, object] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ValueError("has a query that is not option=value&option=value") from None
    for name, value in pairs:
        if name in options:
            raise ValueError(f"gives {name} twice")
        if "password" in name:
            raise ValueError(
                f"has {name} in its query, where programs show it; write the password before the "
                f"@, or leave it to {PASSWORD_VARIABLE}"
            )
        if name not in _FORMS:
            raise ValueError(_unknown({name}))
        options[name] = _read_option(name, value)
    return options


def _read_option(name: str, value: str) -> object:
    form = _FORMS[name]
    if form == "str":
        return value
    if form == "bool":
        if value not in {"on", "off"}:
            raise ValueError(f'has {name} "{value}"; write on or off')
        return value == "on"
    try:
        return int(value) if form == "int" else float(value)
    except ValueError:
        wanted = "whole number" if form == "int" else "number"
        raise ValueError(f'has {name} "{value}", which is no {wanted}') from None


_FORMS: Final = {option.name: str(option.type) for option in fields(RedisOptions)}


def _unknown(names: set[str]) -> str:
    return (
        f"has the unknown option {', '.join(sorted(names))}; it may have "
        f"{', '.join(sorted(_FORMS))}"
    )


def _text(what: str, quoted: str) -> str:
    try:
        text = unquote(quoted, errors="strict")
    except UnicodeDecodeError:
        raise ValueError(f"has a {what} that is no UTF-8 text behind its %-escapes") from None
    if "\0" in text:
        raise ValueError(f"has a NUL character in its {what}")
    return text


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}; it must be {least} to {most}")
