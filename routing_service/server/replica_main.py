"""One of several server processes: its settings come from the supervisor, on stdin.

Rule: it does not outlive its supervisor, however that ends: stdin then ends too.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import Final

from routing_service.server import process
from routing_service.settings.settings import Settings

_STDIN: Final = 0


def main() -> int:
    """Serve until a stop signal, or until the supervisor is gone; return the exit code."""
    # Unbuffered: the thread reads on, and would hold a buffer's lock when this process ends.
    with open(_STDIN, "rb", buffering=0, closefd=False) as stdin:
        given = stdin.readline()
    if not given:
        return process.EXIT_FAILED  # The supervisor ended meanwhile.
    settings = Settings(**json.loads(given))
    threading.Thread(target=_stop_at_end, name="supervisor watch", daemon=True).start()
    return process.run(settings, is_one_of_several=True)


def _stop_at_end() -> None:
    """Ask this process to stop once its stdin has ended."""
    while os.read(_STDIN, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
