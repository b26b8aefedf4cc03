"""How commands run on a store, and how they fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

from routing_service.cli.failure import EXIT_INTERRUPTED, EXIT_USAGE, CommandFailed
from routing_service.storage.open_store import StoreUrlInvalid
from routing_service.storage.store import StoreError
from routing_service.telemetry.call_log import configure_logging

T = TypeVar("T")


def run_on_store(work: Coroutine[object, object, T]) -> T:
    """Run a command's work. Raises CommandFailed for errors of the store."""
    return call_store(lambda: asyncio.run(work))


def call_store(work: Callable[[], T]) -> T:
    """Run blocking work. Raises CommandFailed for errors of the store."""
    # Log the driver's errors; the command prints the rest.
    configure_logging("error", "auto")
    try:
        return work()
    except StoreUrlInvalid as error:
        raise CommandFailed(str(error), exit_code=EXIT_USAGE) from None
    except StoreError as error:
        raise CommandFailed(str(error)) from None
    except KeyboardInterrupt:
        raise CommandFailed("interrupted; run it again", exit_code=EXIT_INTERRUPTED) from None
