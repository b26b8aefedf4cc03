"""Opens the store that a URL names; an engine is imported only when a URL asks for it.

A URL that cannot be served is refused with what is wrong in it and what to write instead, without
the password that it may hold.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol, TypeVar
from urllib.parse import unquote

from routing_service.storage.checked_store import Store
from routing_service.storage.store import StoreError
from routing_service.storage.store_url import GivenOptions, SqliteOptions

if TYPE_CHECKING:
    from routing_service.storage.dynamodb.url import DynamodbPlace
    from routing_service.storage.postgres.url import PostgresPlace
    from routing_service.storage.redis.url import RedisPlace

P = TypeVar("P", bound="_ServerPlace")

_SCHEME: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?P<rest>.*)", re.DOTALL)
_USER_INFO: Final = re.compile(r"//.*@", re.DOTALL)
"""As much as a password with an unescaped "/" or "@" can reach."""
_QUERY_SECRET: Final = re.compile(r"((?:password|secret|_key)=)[^&#]*", re.IGNORECASE)


class StoreUrlInvalid(StoreError):
    """The URL or an option names no store that this release can open. Not retryable."""


async def open_store(url: str, **options: float | None) -> Store:
    """Open the store that a URL names, ready for use.

    memory: keeps everything in this process; sqlite:///relative/path and sqlite:////absolute/path
    keep it in one file; postgres://user:password@host:port/database and
    redis://user:password@host:port/database keep it on a server; several postgres URLs with spaces
    between them keep each tenant on one of several; dynamodb://region/table keeps it in a table of
    AWS. Options are the engine's own: see its module.
    Raises StoreUrlInvalid, StoreUnavailable, StoreCorrupt, SchemaTooNew.
    """
    found = _SCHEME.fullmatch(url)
    if found is None:
        raise StoreUrlInvalid(
            f'store URL "{url}" names no engine; write sqlite:///{url} for a file, or memory:'
        )
    engine = found["scheme"].lower()
    if engine not in _ENGINES:
        raise StoreUrlInvalid(
            f'store URL "{without_secrets(url)}" names the unknown engine "{engine}"; '
            f"use {_built_engines()}"
        )
    return await _ENGINES[engine](url, found["rest"], options)


async def open_store_to_read(url: str) -> Store:
    """Open a store that is there, for reading it as a whole while servers may be using it.

    Nothing is migrated. A file is opened without its lock, and writing to it raises
    StoreUnavailable. Raises as ``open_store``, and StoreUnavailable for what an older release made.
    """
    engine, _, rest = url.partition(":")
    match engine.lower():
        case "sqlite":
            from routing_service.storage.sqlite.reading import (  # noqa: PLC0415 - when asked for
                open_sqlite_to_read,
            )

            return await open_sqlite_to_read(sqlite_path(url, rest))
        case "postgres" | "postgresql":
            return await _open_postgres_place(postgres_place(url), may_migrate=False)
        case "memory":
            raise StoreUrlInvalid(
                "memory: holds nothing but what its own process has put there; name another store"
            )
        case _:
            return await open_store(url)


async def _open_memory(url: str, rest: str, options: GivenOptions) -> Store:
    from routing_service.storage.memory_store import MemoryStore  # noqa: PLC0415 - when asked for

    if rest not in {"", "//"}:
        raise StoreUrlInvalid(f'store URL "{url}" has a place, which memory has not; use memory:')
    if options:
        raise _unknown_options("memory", options, known=())
    return MemoryStore()


async def _open_sqlite(url: str, rest: str, options: GivenOptions) -> Store:
    from routing_service.storage.sqlite.store import (  # noqa: PLC0415 - when asked for
        open_sqlite_store,
    )

    path = sqlite_path(url, rest)
    known = {option.name for option in fields(SqliteOptions)}
    if not options.keys() <= known:
        raise _unknown_options("sqlite", options, known=sorted(known))
    try:
        chosen = SqliteOptions(**options)  # type: ignore[arg-type]
    except ValueError as error:
        raise StoreUrlInvalid(f"the options of sqlite are wrong: {error}") from error
    return await open_sqlite_store(path, chosen)


def sqlite_path(url: str, rest: str) -> str:
    """Read the path in a SQLite URL. rest: what follows the scheme. Raises StoreUrlInvalid."""
    path = unquote(rest.removeprefix("///"))
    if not rest.startswith("///") or not path:
        raise StoreUrlInvalid(
            f'store URL "{url}" has no path; write sqlite:///relative/path.db or '
            "sqlite:////absolute/path.db"
        )
    if path == ":memory:":
        raise StoreUrlInvalid(f'store URL "{url}" names no file; use memory: for a trial run')
    if "?" in rest or "#" in rest or "\0" in path:
        raise StoreUrlInvalid(
            f"store URL {url!r} has more than a path; leave it out, or write %3F for a question "
            "mark and %23 for a hash in a file's name"
        )
    return path


async def _open_postgres(url: str, rest: str, options: GivenOptions) -> Store:
    del rest
    return await _open_postgres_place(postgres_place(url, options), may_migrate=True)


async def _open_postgres_place(place: PostgresPlace, *, may_migrate: bool) -> Store:
    from routing_service.storage.postgres.store import (  # noqa: PLC0415 - when asked for
        open_postgres_store,
    )

    return await open_postgres_store(place, may_migrate=may_migrate)


def postgres_place(url: str, options: GivenOptions = MappingProxyType({})) -> PostgresPlace:
    """Read a PostgreSQL URL. Raises StoreUrlInvalid, also where the driver is not installed."""
    from routing_service.storage.postgres.url import parse_url  # noqa: PLC0415 - when asked for

    return _read_place(parse_url, url, options, _Driver("psycopg", "PostgreSQL", "postgres"))


async def _open_redis(url: str, rest: str, options: GivenOptions) -> Store:
    del rest
    place = redis_place(url, options)
    from routing_service.storage.redis.store import (  # noqa: PLC0415 - when asked for
        open_redis_store,
    )

    return await open_redis_store(place)


def redis_place(url: str, options: GivenOptions = MappingProxyType({})) -> RedisPlace:
    """Read a Redis URL. Raises StoreUrlInvalid, also where the driver is not installed."""
    from routing_service.storage.redis.url import parse_url  # noqa: PLC0415 - when asked for

    return _read_place(parse_url, url, options, _Driver("redis", "Redis", "redis"))


async def _open_dynamodb(url: str, rest: str, options: GivenOptions) -> Store:
    del rest
    place = dynamodb_place(url, options)
    from routing_service.storage.dynamodb.store import (  # noqa: PLC0415 - when asked for
        open_dynamodb_store,
    )

    return await open_dynamodb_store(place)


def dynamodb_place(url: str, options: GivenOptions = MappingProxyType({})) -> DynamodbPlace:
    """Read a DynamoDB URL. Raises StoreUrlInvalid, also where the driver is not installed."""
    from routing_service.storage.dynamodb.url import parse_url  # noqa: PLC0415 - when asked for

    return _read_place(parse_url, url, options, _Driver("aiobotocore", "DynamoDB", "dynamodb"))


@dataclass(frozen=True, slots=True)
class _Driver:
    """What an engine on a server needs installed: a module, whose it is, the extra that has it."""

    module: str
    engine: str
    extra: str


class _ServerPlace(Protocol):
    """What a URL on a server is read into."""

    @property
    def shown(self) -> str:
        """The URL without its secrets."""
        ...


def _read_place(
    parse_url: Callable[[str, GivenOptions], P],
    url: str,
    options: GivenOptions,
    driver: _Driver,
) -> P:
    try:
        place = parse_url(url, options)
    except ValueError as error:
        raise StoreUrlInvalid(f'store URL "{without_secrets(url)}" {error}') from None
    if find_spec(driver.module) is None:
        raise StoreUrlInvalid(
            f'store URL "{place.shown}" needs the driver of {driver.engine}; install it with '
            f'pip install "agent-routing-service[{driver.extra}]"'
        )
    return place


Opener = Callable[[str, str, GivenOptions], Awaitable[Store]]

_ENGINES: Final[Mapping[str, Opener]] = MappingProxyType(
    {
        "memory": _open_memory,
        "sqlite": _open_sqlite,
        "postgres": _open_postgres,
        "postgresql": _open_postgres,
        "redis": _open_redis,
        "rediss": _open_redis,
        "dynamodb": _open_dynamodb,
    }
)


def _built_engines() -> str:
    # Each once: an alias is not another engine.
    *first, last = [name for name in _ENGINES if name not in {"postgresql", "rediss"}]
    return f"{', '.join(first)} or {last}"


def _unknown_options(
    engine: str, options: GivenOptions, *, known: tuple[str, ...] | list[str]
) -> StoreUrlInvalid:
    unknown = ", ".join(sorted(options.keys() - set(known)))
    remedy = f"it has {', '.join(known)}" if known else "it has none"
    return StoreUrlInvalid(f"the engine {engine} has no option {unknown}; {remedy}")


def without_secrets(url: str) -> str:
    """Return a URL as it may be shown: without its user and password."""
    return _QUERY_SECRET.sub(r"\1…", _USER_INFO.sub("//…@", url))
