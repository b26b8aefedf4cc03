"""The client of a command that makes one call to a server, and how that call fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from agent_routing import Admin, Client, RetryPolicy, RoutingError
from routing_service.cli.credentials import given
from routing_service.cli.failure import EXIT_USAGE, CommandFailed, call_failed

_RETRY: Final = RetryPolicy(attempts_max=2, backoff_first_s=0.1)
"""A person waits and can repeat the command: one retry for a broken connection. It is safe for the
commands that remove something too, as a repeat continues with what is left."""

C = TypeVar("C", bound=Client)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """The options of a command's call: the server, the tenant, the timeout, the form of output."""

    target: str
    tenant: str
    timeout_s: float
    as_json: bool


@contextmanager
def connected(kind: type[C], options: CallOptions) -> Iterator[C]:
    """Give a client of this class. Raises CommandFailed if a call in the block fails.

    There is no fallback: a server that does not answer is an error here.
    """
    try:
        with kind(
            options.target,
            tenant=options.tenant,
            timeout=options.timeout_s,
            retry=_RETRY,
            fallback=None,
            **given().for_client(),
        ) as client:
            yield client
    except RoutingError as error:
        raise call_failed(error, options.target, as_json=options.as_json) from error
    except UnicodeEncodeError as error:
        # A byte of the command line that is not UTF-8 arrives as a lone surrogate.
        shown = ascii(error.object)
        message = f"{shown} is not UTF-8; type it in UTF-8"
        raise CommandFailed(message, exit_code=EXIT_USAGE) from error
    except ValueError as error:
        # Another value that no request can carry.
        raise CommandFailed(str(error), exit_code=EXIT_USAGE) from error


@contextmanager
def calling(options: CallOptions) -> Iterator[Admin]:
    """Give the client of most commands. Raises CommandFailed if a call in the block fails."""
    with connected(Admin, options) as client:
        yield client
