"""One call to a server, for the commands that make one.

Owns the client of a command and its options. It must not know which command it is for. Its rule:
nothing is decided in the server's place: a server that is away is an error here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from agent_routing import Admin, RetryPolicy, RoutingError
from routing_service.cli.credentials import given
from routing_service.cli.failure import EXIT_USAGE, CommandFailed, call_failed

_RETRY: Final = RetryPolicy(attempts_max=2, backoff_first_s=0.1)
"""A person waits, and can repeat the command: one repeat for a connection that broke."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a command calls, for whom, and how it shows what comes back."""

    target: str
    tenant: str
    timeout_s: float
    as_json: bool


@contextmanager
def calling(place: Place) -> Iterator[Admin]:
    """Give a client; a call that fails in the block ends the command with its line."""
    try:
        with Admin(
            place.target,
            tenant=place.tenant,
            timeout=place.timeout_s,
            retry=_RETRY,
            fallback=None,
            **given().for_client(),
        ) as client:
            yield client
    except RoutingError as error:
        raise call_failed(error, place.target, as_json=place.as_json) from error
    except UnicodeEncodeError as error:
        # A byte of the command line that was no UTF-8 comes in as a lone surrogate.
        shown = ascii(error.object)
        raise CommandFailed(f"{shown} is not UTF-8; type it so", exit_code=EXIT_USAGE) from error
    except ValueError as error:
        # Another value that no request can carry.
        raise CommandFailed(str(error), exit_code=EXIT_USAGE) from error
