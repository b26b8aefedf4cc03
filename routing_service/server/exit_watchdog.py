"""The end of a process that was asked to stop, even if a part of it hangs.

Rule: nothing that still runs after the drain (a driver at close, a name lookup, an export) delays
the exit. Answers are sent only after the store has them, so that a forced exit loses none.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Final

import structlog

EXIT_BEYOND_DRAIN_S: Final = 5.0
"""Time after drain_s to close the store and send the last spans; then the exit is forced."""

FLUSH_S: Final = 0.5
"""Time to write the last log lines: the process that reads them may hang too."""

_log = structlog.get_logger(__name__)


class ExitWatchdog:
    """Ends the process at a fixed time after it was asked to stop."""

    def __init__(
        self,
        drain_s: float,
        flush: Callable[[], None],
        exit_code: int,
        *,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        """Watch nothing yet. flush: writes the last log lines. end: ends the process."""
        self._limit_s = drain_s + EXIT_BEYOND_DRAIN_S
        self._flush = flush
        self._exit_code = exit_code
        self._end = end
        self._begun = False

    def begin(self) -> None:
        """Start the timer. Further calls do nothing."""
        if not self._begun:
            self._begun = True
            # A daemon thread: the event loop may be what hangs, and an orderly exit ends it.
            timer = threading.Timer(self._limit_s, self._force)
            timer.name, timer.daemon = "exit watchdog", True
            timer.start()

    def _force(self) -> None:
        told = threading.Thread(target=self._tell, name="last log lines", daemon=True)
        told.start()
        told.join(FLUSH_S)
        self._end(self._exit_code)

    def _tell(self) -> None:
        own = {"exit watchdog", "last log lines"}
        _log.error(
            "exit_forced",
            after_s=self._limit_s,
            threads=sorted({each.name for each in threading.enumerate()} - own),
            meaning="a part of the server did not stop; every answer that was sent is stored",
        )
        self._flush()
