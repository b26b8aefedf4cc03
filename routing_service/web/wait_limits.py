"""How long the web listener waits for a client. Each wait holds one of connections_max."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WaitLimits:
    """Waits in seconds; after each the connection is closed."""

    headers_s_max: float = 10.0
    """For all headers of a request: from the start of the connection, or from the first byte behind
    the request before it."""

    body_s_max: float = 30.0
    """For the whole body of a request, which has at most 256 KiB."""

    unread_s_max: float = 30.0
    """For the reader of an answer to take another byte of it, as on the gRPC listener."""


DEFAULT_WAITS = WaitLimits()
