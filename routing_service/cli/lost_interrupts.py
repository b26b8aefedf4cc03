"""A Ctrl-C that Python drops is raised again.

Python runs a signal's handler between any two steps of the main thread. In a destructor, a weak
reference's callback or a callback from C the KeyboardInterrupt is printed and dropped, and the
program would go on as if the person had pressed nothing.
"""

from __future__ import annotations

import signal
import sys
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

RAISED_AGAIN_AFTER_S: Final = 0.05
"""By then the code that could not raise it has returned."""


def raise_lost_interrupts() -> None:
    """Raise each KeyboardInterrupt that was dropped again; report other exceptions as before."""
    report = sys.unraisablehook

    def hook(dropped: UnraisableHookArgs) -> None:
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            report(dropped)
            return
        later = threading.Timer(RAISED_AGAIN_AFTER_S, _interrupt_main_thread)
        later.daemon = True
        later.start()

    sys.unraisablehook = hook


def _interrupt_main_thread() -> None:
    main = threading.main_thread().ident
    if main is not None and hasattr(signal, "pthread_kill"):
        # To that thread, so that a wait in it ends too.
        signal.pthread_kill(main, signal.SIGINT)
    else:
        signal.raise_signal(signal.SIGINT)
