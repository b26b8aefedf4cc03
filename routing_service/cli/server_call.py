"""The client of a command that makes one call to a server, and how that call fails."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from agent_routing import Admin, Client, RetryPolicy, RoutingError
from routing_service.cli.credentials import given
from routing_service.cli.failure import EXIT_USAGE, CommandFailed, call_failed
from routing_service.cli.options import (
    TARGET_DEFAULT,
    TIMEOUT_DEFAULT_S,
    JsonOption,
    TargetOption,
    TenantOption,
    TimeoutOption,
)

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


def server_command(
    *, json: Any = JsonOption, timeout: Any = TimeoutOption, timeout_s: float = TIMEOUT_DEFAULT_S
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a call, and pass their values to it as `call`.

    They come last in its help. json: the option to print JSON, None for none. timeout, timeout_s:
    the option for the timeout and its default.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        keyword = inspect.Parameter.KEYWORD_ONLY
        own = inspect.signature(command, eval_str=True).parameters.values()
        parameters = [
            *(each for each in own if each.name != "call"),
            inspect.Parameter("tenant", keyword, default="", annotation=TenantOption),
            inspect.Parameter("target", keyword, default=TARGET_DEFAULT, annotation=TargetOption),
            inspect.Parameter("timeout", keyword, default=timeout_s, annotation=timeout),
        ]
        if json is not None:
            parameters.append(inspect.Parameter("as_json", keyword, default=False, annotation=json))

        @functools.wraps(command)
        def run(
            *arguments: object,
            tenant: str,
            target: str,
            timeout: float,
            as_json: bool = False,
            **options: object,
        ) -> None:
            call = CallOptions(target=target, tenant=tenant, timeout_s=timeout, as_json=as_json)
            command(*arguments, call=call, **options)

        # The parser reads only the signature.
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


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
