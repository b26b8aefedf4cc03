"""The open streams, whose callers are checked again when the sign-in has learned something.

Rule: a stream ends in the moment in which a unary call with the same credential is refused: a key
was withdrawn, a line of the callers file was removed or changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import structlog

from routing_service.auth.caller import SignInRefused
from routing_service.core.errors import Reason, RoutingError

CHECK_S_MAX: Final = 2.0
"""Time to check one stream. A stream whose check takes longer ends if its rights have changed, and
goes on if that could not be found out."""

ENDING: Final = frozenset({Reason.UNAUTHENTICATED, Reason.SCOPE_MISSING, Reason.OWNER_MISMATCH})
"""Refusals that end a stream. Others, such as missing keys, say nothing of its caller."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _OpenStream:
    check: Callable[[], Awaitable[None]]
    end: Callable[[RoutingError], None]


class OpenStreams:
    """The open streams of one server."""

    def __init__(self) -> None:
        """Start without open streams."""
        self._streams: set[_OpenStream] = set()
        self._checking: asyncio.Task[None] | None = None
        self._again = False

    @contextmanager
    def opened(
        self, check: Callable[[], Awaitable[None]], end: Callable[[RoutingError], None]
    ) -> Iterator[None]:
        """Keep a stream for the duration of a block.

        check: raises RoutingError if its caller may no longer have it. end: ends it with that.
        """
        stream = _OpenStream(check, end)
        self._streams.add(stream)
        try:
            yield
        finally:
            self._streams.discard(stream)

    def check_all(self) -> None:
        """Check every stream, in the background."""
        self._again = True
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._check_all(), name="check of open streams")

    async def _check_all(self) -> None:
        while self._again:
            self._again = False
            ended = 0
            for stream in list(self._streams):
                if stream in self._streams:
                    ended += await _ends(stream)
            if ended:
                _log.info("streams_ended", streams=ended, meaning="their callers' rights changed")


async def _ends(stream: _OpenStream) -> bool:
    """Check one stream; say whether it was ended."""
    try:
        async with asyncio.timeout(CHECK_S_MAX):
            await stream.check()
    except RoutingError as refusal:
        if refusal.reason in ENDING:
            stream.end(refusal)
            return True
    except TimeoutError:
        _log.warning("stream_check_too_slow", limit_s=CHECK_S_MAX)
    except Exception:  # noqa: BLE001 - logged; the other streams are still checked
        _log.exception("stream_check_failed")
    return False


def rights_changed() -> SignInRefused:
    """Return the refusal of a stream whose caller may open it again, with other rights."""
    return SignInRefused(
        "rights_changed",
        "what this credential may do has changed; open the stream again from where it was",
    )
