"""How many calls gRPC has seen on each connection, as its channelz counts them.

gRPC's core counts every stream, including those that ended before Python saw them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from grpc._cython import cygrpc  # type: ignore[attr-defined] # What grpcio-channelz calls; its servicer has no other form.

from routing_service.server.own_sockets import Peer, peer_of

PAGE_SOCKETS: Final = 500
"""Connections per request to channelz."""


@dataclass(frozen=True, slots=True)
class StreamCounts:
    """Streams of one connection since it was opened."""

    started: int
    succeeded: int
    failed: int

    @property
    def open(self) -> int:
        """Streams that are under way."""
        return self.started - self.succeeded - self.failed


NO_STREAMS: Final = StreamCounts(0, 0, 0)


class OpenCalls:
    """Asks channelz. It remembers the numbers of connections while they are in use."""

    def __init__(self) -> None:
        self._ids: Mapping[Peer, int] = {}

    def counts(self, peers: Iterable[Peer]) -> dict[Peer, StreamCounts]:
        """Return the counts of connections from these peers; unknown ones are left out."""
        wanted = list(peers)
        if any(peer not in self._ids for peer in wanted):
            self._ids = {
                peer: number for each in _server_ids() for peer, number in _sockets_of(each).items()
            }
        found: dict[Peer, StreamCounts] = {}
        for peer in wanted:
            number = self._ids.get(peer)
            data = None if number is None else _socket_data(number)
            if data is not None:
                found[peer] = _streams_of(data)
        return found


def newest_server() -> int:
    """Return the number of the gRPC server that this process made last; 0: there is none."""
    return max(_server_ids(), default=0)


def calls_started(server_id: int) -> int:
    """Return how many calls a server has had, with those it refused unread; 0 once it is gone."""
    return _calls_of(server_id)[0]


def calls_refused(server_id: int) -> int:
    """Return how many of them gRPC refused: they have not ended, and no connection has them open.

    Takes 0.1 ms for each connection.
    """
    started, ended = _calls_of(server_id)
    sockets = [_socket_data(number) for number in _sockets_of(server_id).values()]
    return started - ended - sum(_streams_of(data).open for data in sockets if data is not None)


def connections_of(server_id: int) -> int:
    """Return how many connections a server has."""
    return len(_sockets_of(server_id))


def _calls_of(server_id: int) -> tuple[int, int]:
    """Return how many calls a server has had, and how many have ended."""
    server = _asked(cygrpc.channelz_get_server, server_id).get("server", {})
    started, *ended = (
        int(server.get("data", {}).get(name, 0))
        for name in ("callsStarted", "callsSucceeded", "callsFailed")
    )
    return started, sum(ended)


def _server_ids() -> Iterable[int]:
    start, is_end = 0, False
    while not is_end:
        page = _asked(cygrpc.channelz_get_servers, start)
        found = [int(server["ref"]["serverId"]) for server in page.get("server", [])]
        yield from found
        start = max(found, default=start) + 1
        is_end = bool(page.get("end")) or not found


def _sockets_of(server_id: int) -> dict[Peer, int]:
    """Return the number of each connection of a server, by its peer."""
    found: dict[Peer, int] = {}
    start, is_end = 0, False
    while not is_end:
        page = _asked(cygrpc.channelz_get_server_sockets, server_id, start, PAGE_SOCKETS)
        refs = page.get("socketRef", [])
        for ref in refs:
            number = int(ref["socketId"])
            start = max(start, number + 1)
            # Such as "chttp2 ipv4:127.0.0.1:40412".
            found[peer_of(ref.get("name", "").rpartition(" ")[2])] = number
        is_end = bool(page.get("end")) or not refs
    return found


def _socket_data(number: int) -> Mapping[str, Any] | None:
    found = _asked(cygrpc.channelz_get_socket, number).get("socket")
    return None if found is None else found.get("data", {})


def _streams_of(data: Mapping[str, Any]) -> StreamCounts:
    return StreamCounts(
        int(data.get("streamsStarted", 0)),
        int(data.get("streamsSucceeded", 0)),
        int(data.get("streamsFailed", 0)),
    )


def _asked(function: Callable[..., str], *given: int) -> Mapping[str, Any]:
    """Return channelz's parsed answer; empty if the connection is gone."""
    try:
        answer: Mapping[str, Any] = json.loads(function(*given))
    except ValueError:
        return {}
    return answer
