"""The channel to the service: its options, by kind of target.

Owns how a target is balanced, kept alive and reconnected. Retries and deadlines are in calls.py,
not in the channel.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from agent_routing._version import __version__

HEALTH_SERVICE: Final = "agent_routing.v1.RoutingService"
"""The health service name for readiness; the empty name is liveness."""

METADATA_BYTES_MAX: Final = 32 * 1024
"""Error details are at most 4 KB, and the message next to them is percent-encoded."""

KEEPALIVE_MS: Final = 60_000
"""The service accepts pings on an idle connection at most every 30 s."""

KEEPALIVE_TIMEOUT_MS: Final = 20_000

RECONNECT_FIRST_MS: Final = 100
"""A restarted service is back within a second, and a user waits. gRPC's own first wait is 1 s."""

RECONNECT_MAX_MS: Final = 5_000
"""gRPC's own is two minutes: for so long a client would fall back after an outage."""

_SERVICE_CONFIG: Final = (
    '{"loadBalancingConfig": [{"round_robin": {}}],'
    f' "healthCheckConfig": {{"serviceName": "{HEALTH_SERVICE}"}}}}'
)


def is_replicated(target: str) -> bool:
    """Tell whether a target names several replicas: dns:NAME, or addresses with a comma."""
    scheme, _, rest = target.partition(":")
    return scheme == "dns" or (scheme in ("ipv4", "ipv6", "unix") and "," in rest)


def channel_options(target: str, more: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return the options of a channel. more: override the client's own."""
    options: dict[str, Any] = {
        "grpc.primary_user_agent": f"agent-routing-python/{__version__}",
        "grpc.max_metadata_size": METADATA_BYTES_MAX,
        "grpc.absolute_max_metadata_size": METADATA_BYTES_MAX,
        "grpc.keepalive_time_ms": KEEPALIVE_MS,
        "grpc.keepalive_timeout_ms": KEEPALIVE_TIMEOUT_MS,
        "grpc.initial_reconnect_backoff_ms": RECONNECT_FIRST_MS,
        "grpc.max_reconnect_backoff_ms": RECONNECT_MAX_MS,
    }
    if is_replicated(target):
        options["grpc.service_config"] = _SERVICE_CONFIG
    options.update(more)
    return list(options.items())
