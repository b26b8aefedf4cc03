"""DynamoDB store URLs: read into where the table is and the store's options.

    dynamodb://region/table?option=value&…

A URL holds no credentials: they come from where AWS programs look for them (environment, profile,
container, instance). endpoint_url is for DynamoDB's stand-ins and for private endpoints; AWS's own
is found by the region.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from routing_service.storage.store_url import DynamodbOptions, GivenOptions, read_options

_REGION: Final = re.compile(r"[a-z][a-z0-9-]{0,62}")
_TABLE: Final = re.compile(r"[A-Za-z0-9_.-]{3,255}")
"""The form that AWS allows."""


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


def parse_url(url: str, given: GivenOptions = MappingProxyType({})) -> DynamodbPlace:
    """Read a URL, and separate options, which override those of the URL.

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
    options, _ = read_options(
        DynamodbOptions, query, given, secrets_remedy="leave it to AWS_PROFILE or the role"
    )
    return DynamodbPlace(region=region, table=table, options=options)
