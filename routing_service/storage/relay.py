"""Messages between the processes of one store, for what is worth nothing a minute later.

Rule: nothing is stored. A message may be lost, and comes at most once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

RELAY_BYTES_MAX: Final = 5_900
"""Of one message: in base64, and with its sender, below the 8,000 bytes of PostgreSQL's NOTIFY."""


class Relay(Protocol):
    """The messages of one store."""

    def hear(self, listener: Callable[[bytes], None]) -> None:
        """Give every message of another process to a listener, from ``begin`` on. Called once."""
        ...

    def begin(self) -> None:
        """Listen from now on. What is sent before a connection is made is lost."""
        ...

    async def send(self, messages: Sequence[bytes]) -> None:
        """Send messages, of RELAY_BYTES_MAX bytes at most, to the other processes.

        Raises StoreUnavailable, StoreClosed.
        """
        ...
