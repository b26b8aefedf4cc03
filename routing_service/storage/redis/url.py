"""Redis store URLs: read into what the driver needs and the store's options.

    redis://user:password@host:port/database?option=value&…

rediss:// is the same over TLS. A Unix socket is given as redis:///0?socket=/path/redis.sock.
Without a password in the URL the environment's REDISCLI_AUTH is taken, as redis-cli does. A
password leaves this module only in ``RedisPlace.password``.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final
from urllib.parse import quote

from routing_service.storage.store_url import (
    GivenOptions,
    RedisOptions,
    read_options,
    read_server,
    shown_option,
    unescape,
)

PORT_DEFAULT: Final = 6379

PASSWORD_VARIABLE: Final = "REDISCLI_AUTH"  # noqa: S105 - a variable's name

_DATABASE: Final = re.compile(r"[0-9]{0,5}")
_TLS_FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisPlace:
    """Where the store is. Its repr has no password."""

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


def parse_url(url: str, given: GivenOptions = MappingProxyType({})) -> RedisPlace:
    """Read a URL, and separate options, which override those of the URL.

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
            f"has a database that is not a number; write {scheme}://user:password@host:6379/0 "
            "(in a user or password a slash is %2F and an at sign %40)"
        )
    user, _, password = user_info.partition(":")
    options, _ = read_options(
        RedisOptions,
        query,
        given,
        secrets_remedy=f"write the password before the @, or leave it to {PASSWORD_VARIABLE}",
    )
    host, port = read_server(server, PORT_DEFAULT)
    tls = scheme.lower() == "rediss"
    if options.socket and (host or tls):
        raise ValueError("has both a host, or TLS, and a socket; write redis:///0?socket=/path")
    if not options.socket and not host:
        raise ValueError("has no host; write redis://user:password@host:6379/0")
    if not tls and any(getattr(options, name) for name in _TLS_FILES):
        raise ValueError("has options of TLS; write rediss:// for it")
    return RedisPlace(
        host=host,
        port=int(port or PORT_DEFAULT),
        database=int(database or 0),
        user=unescape("user", user),
        password=unescape("password", password) or os.environ.get(PASSWORD_VARIABLE, ""),
        tls=tls,
        options=options,
        shown=f"{scheme}://{options.socket or server}/{database}{shown_option(options, 'prefix')}",
    )
