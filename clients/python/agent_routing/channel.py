"""The channels to the service: their options, by kind of target, and what each carries.

Owns how a target is balanced, kept alive and reconnected, and how many calls and streams share a
connection. Retries and deadlines are in calls.py, not in the channel.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeVar

from agent_routing._version import __version__
from agent_routing.proxies import proxy_options

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

PLACES_MAX: Final = 100
"""Calls, or long streams, at a time on one connection: what every server allows, as HTTP/2
recommends. More would wait in gRPC, behind streams that do not end, or be refused."""

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
        **dict(proxy_options(target)),
    }
    if is_replicated(target):
        options["grpc.service_config"] = _SERVICE_CONFIG
    options.update(more)
    return list(options.items())


ChannelT = TypeVar("ChannelT")


class StreamChannels(Generic[ChannelT]):
    """Channels for watches, inboxes and message streams, behind which no call waits.

    Each is a connection of its own for at most PLACES_MAX streams; gRPC closes it if it stays
    unused. Safe in threads.
    """

    OPTIONS: Final = (("grpc.use_local_subchannel_pool", 1),)
    """Channels share connections unless each has its own pool."""

    def __init__(self, new_channel: Callable[[], ChannelT]) -> None:
        """Have no channel yet. new_channel: makes one."""
        self._new_channel = new_channel
        self._lock = threading.Lock()
        self._channels: list[ChannelT] = []
        self._open: list[int] = []
        """The streams that are open on each."""

    @contextmanager
    def place(self) -> Iterator[ChannelT]:
        """Give a channel on which a stream may be open until the block ends."""
        with self._lock:
            places = range(len(self._channels))
            place = next((place for place in places if self._open[place] < PLACES_MAX), None)
            if place is None:
                place = len(self._channels)
                self._channels.append(self._new_channel())
                self._open.append(0)
            self._open[place] += 1
            channel = self._channels[place]
        try:
            yield channel
        finally:
            with self._lock:
                self._open[place] -= 1

    def all(self) -> list[ChannelT]:
        """Return all channels, for their owner to close."""
        with self._lock:
            return list(self._channels)
