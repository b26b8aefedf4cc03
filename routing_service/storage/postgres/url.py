"""PostgreSQL store URLs: read into libpq's connection parameters and the store's options.

    postgres://user:password@host:port/database?option=value&…

Several hosts are given with commas (host1:5432,host2:5432): the one that takes writes is used.
A Unix socket's folder is given as ?host=/folder. Without a password the driver looks where libpq
does: PGPASSWORD, then the passfile. A password leaves this module only in ``parameters``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final
from urllib.parse import quote

from routing_service.storage.store_url import (
    GivenOptions,
    PostgresOptions,
    read_options,
    read_server,
    shown_option,
    unescape,
)

PORT_DEFAULT: Final = 5432


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresPlace:
    """Where the store is. Its repr has no password."""

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


def parse_url(url: str, given: GivenOptions = MappingProxyType({})) -> PostgresPlace:
    """Read a URL, and separate options, which override those of the URL.

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
    parameters = {"dbname": unescape("database", database)}
    if user:
        parameters["user"] = unescape("user", user)
    if colon:
        parameters["password"] = unescape("password", password)
    parameters |= _hosts(hosts)
    options, passed_on = read_options(
        PostgresOptions,
        query,
        given,
        secrets_remedy="write the password before the @, or leave it to PGPASSWORD or a passfile",
        passed_on=_LIBPQ,
    )
    twice = parameters.keys() & passed_on.keys()
    if twice:
        raise ValueError(f"gives {', '.join(sorted(twice))} twice")
    parameters |= passed_on
    where = hosts or parameters.get("host", "")
    return PostgresPlace(
        parameters=MappingProxyType(parameters),
        options=options,
        shown=f"{scheme}://{where}/{database}{shown_option(options, 'schema')}",
    )


def _hosts(text: str) -> dict[str, str]:
    servers = [read_server(entry, PORT_DEFAULT) for entry in text.split(",")] if text else []
    if not all(host for host, _ in servers):
        raise ValueError("has an empty host; write host:5432, several with commas")
    found = {"host": ",".join(host for host, _ in servers)} if servers else {}
    if any(port for _, port in servers):
        found["port"] = ",".join(port for _, port in servers)
    return found


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
