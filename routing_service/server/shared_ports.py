"""Ports that several server processes share (SO_REUSEPORT), held from before the first starts.

The supervisor binds each port without listening: connections go only to the processes that listen,
and the port stays the same number, and this user's, while all of them restart.
"""

from __future__ import annotations

import dataclasses
import socket
from contextlib import ExitStack
from typing import Any

from routing_service.settings.listen_address import ListenAddress, ListenFailed, check_is_free
from routing_service.settings.settings import Settings


def hold_ports(settings: Settings, held: ExitStack) -> Settings:
    """Bind the shared ports until held closes; return the settings with their real numbers.

    Raises ListenFailed for an address that is taken, or cannot be bound on this machine.
    """
    given: dict[str, Any] = dataclasses.asdict(settings)
    addresses = {
        "listen": settings.listen_address,
        "admin_listen": settings.admin_address,
        "web_listen": settings.web_address,
        "console_listen": settings.console_address,
    }
    for name, address in addresses.items():
        if address is not None:
            given[name] = str(_held(address, held))
    return Settings(**given)


def _held(address: ListenAddress, held: ExitStack) -> ListenAddress:
    # Without the option, so that the port of another program is refused, one of this user's too.
    check_is_free(address)
    if not hasattr(socket, "SO_REUSEPORT"):
        raise ListenFailed(
            f"cannot share {address}: this system has no SO_REUSEPORT; set processes to 1"
        )
    (family, kind, protocol, _, place), *_ = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sock = held.enter_context(socket.socket(family, kind, protocol))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        sock.bind(place)
    except OSError as error:
        raise ListenFailed(
            f"cannot listen on {address}: {error.strerror or error}; choose another address"
        ) from error
    return address.with_port(sock.getsockname()[1])
