"""The server's gRPC channel options: limits, keepalive and overload, each with its reason.

Its rule: excess load is refused before it reaches Python, and no limit is left to an unchecked
default.
"""

from __future__ import annotations

from typing import Final

from routing_service.settings.settings import Settings

RECEIVE_BYTES_MAX: Final = 256 * 1024
"""The largest request: a change is at most 300 KB on every engine, with its answer and events."""

OPERATORS_BYTES_MAX: Final = 4 * 1024 * 1024
"""The largest request on a listener for operators alone: a registry file may have 1 MiB, and one
that is too large is refused with its size rather than by the transport."""

METADATA_BYTES_MAX: Final = 16 * 1024
"""All metadata of a request. The default of 8 KiB is less than some sign-in tokens alone."""

STREAMS_PER_CONNECTION_MIN: Final = 100
"""Calls at a time that every connection may have, as HTTP/2 recommends and our clients rely on.
pending_requests_max raises it."""

PENDING_HARD_FACTOR: Final = 2
"""Up to this multiple of pending_requests_max a growing share is refused, above it every call."""

PING_INTERVAL_MIN_S: Final = 30
"""The minimum interval of clients' keepalive pings. gRPC's default of 300 s would disconnect
clients that keep connections open through proxies with an idle limit of a minute."""

HANDSHAKE_TIMEOUT_S: Final = 10
"""Time for the HTTP/2 handshake: a silent connection holds a descriptor. Default 120 s."""

CONNECTION_AGE_GRACE_S: Final = 60
"""Grace for the calls of a connection that reached its maximum age: as long as a call may take.
Watches are cut then, and resume at their revision."""

_MS_PER_S: Final = 1_000


def channel_options(
    settings: Settings, receive_bytes_max: int = RECEIVE_BYTES_MAX
) -> list[tuple[str, int]]:
    """Return the options of the server, as grpc.aio.server() takes them.

    receive_bytes_max: of one request.
    """
    pending_max = settings.pending_requests_max
    return [
        # On by default: a second server on the same port would start, and get half of the calls.
        # Processes of one supervisor share theirs on purpose, and the supervisor holds them.
        ("grpc.so_reuseport", int(settings.processes > 1)),
        ("grpc.max_receive_message_length", receive_bytes_max),
        ("grpc.max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.max_concurrent_streams", max(STREAMS_PER_CONNECTION_MIN, pending_max)),
        # gRPC would also refuse streams that its peer may open, while earlier ones that have ended
        # are not freed yet: a busy server frees them later than its peer may begin the next.
        ("grpc.http.overload_protection", 0),
        ("grpc.server.max_pending_requests", pending_max),
        ("grpc.server.max_pending_requests_hard_limit", pending_max * PENDING_HARD_FACTOR),
        ("grpc.max_allowed_incoming_connections", settings.connections_max),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_S * _MS_PER_S),
        ("grpc.keepalive_time_ms", int(settings.keepalive_s * _MS_PER_S)),
        ("grpc.keepalive_timeout_ms", int(settings.keepalive_timeout_s * _MS_PER_S)),
        # Clients that only watch, or wait, are pinged too.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MIN_S * _MS_PER_S),
        ("grpc.max_connection_age_ms", int(settings.connection_age_max_s * _MS_PER_S)),
        ("grpc.max_connection_age_grace_ms", CONNECTION_AGE_GRACE_S * _MS_PER_S),
    ]
