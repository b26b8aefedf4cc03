"""The form of a listening address, HOST:PORT or a unix socket, and the checks made on it.

Rule: the text alone decides whether only this machine can reach an address. A name server is never
asked, because its answer may change.
"""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PORT_MAX: Final = 65_535
"""The largest port there is; 0 lets the system choose a free one."""

UNIX_PATH_BYTES_MAX: Final = 103
"""The longest path of a unix socket on every system: 108 on Linux, 104 on macOS, with a NUL."""

ADMIN_LISTEN_DEFAULT: Final = "127.0.0.1:50052"
"""Where AdminService listens with admin_listen auto, if the main address is not on loopback."""

ADMIN_PLACES: Final = frozenset({"auto", "main", "off"})
"""The values of admin_listen that are not addresses."""

_UNIX: Final = "unix:"
_HOST_PORT: Final = re.compile(
    r"(?:\[(?P<ipv6>[^\[\]]+)\]|(?P<host>[^:\[\]\s/]+)):(?P<port>[0-9]+)"
)


class ListenFailed(Exception):
    """The address cannot be listened on; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """One address: a host and a port, or the path of a unix socket."""

    host: str = ""
    """A name or an address, without brackets; "" for a unix socket."""
    port: int = 0
    unix_path: str = ""

    @property
    def is_loopback(self) -> bool:
        """Whether only programs on this machine can reach it."""
        if self.unix_path or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def with_port(self, port: int) -> ListenAddress:
        """Return the same address with the port that the system chose."""
        return ListenAddress(self.host, port, self.unix_path)

    def __str__(self) -> str:
        """Write it as it is read, which is also what gRPC takes as a target."""
        if self.unix_path:
            return f"{_UNIX}{self.unix_path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_listen_address(text: str) -> ListenAddress:
    """Read HOST:PORT, [IPV6]:PORT or unix:PATH. Raises ValueError with what to write instead."""
    if text.startswith(_UNIX):
        path = text.removeprefix(_UNIX)
        if not path or "\0" in path or len(path.encode()) > UNIX_PATH_BYTES_MAX:
            raise ValueError(f"give unix: and a path of 1 to {UNIX_PATH_BYTES_MAX} bytes")
        return ListenAddress(unix_path=path)
    found = _HOST_PORT.fullmatch(text)
    if found is None:
        raise ValueError("give HOST:PORT, such as 127.0.0.1:50051 or [::1]:50051, or unix:PATH")
    port = int(found["port"][:6])
    if port > PORT_MAX:
        raise ValueError(f"give a port from 0 to {PORT_MAX}; 0 lets the system choose one")
    if found["ipv6"]:
        try:
            ipaddress.IPv6Address(found["ipv6"])
        except ValueError:
            raise ValueError("give an IPv6 address between the brackets") from None
    return ListenAddress(host=found["ipv6"] or found["host"], port=port)


def check_is_free(address: ListenAddress) -> None:
    """Raise ListenFailed if the address is taken, or cannot be bound on this machine.

    gRPC only reports that binding failed, and takes a unix socket away from a running server.
    A port that is taken between this check and the server's own binding fails there.
    """
    if address.unix_path:
        _check_unix_path(address)
    else:
        _check_port(address)


def _check_port(address: ListenAddress) -> None:
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise ListenFailed(
            f'cannot listen on {address}: the host "{address.host}" is not known '
            f"({error.strerror or error}); listen on an address of this machine, such as 127.0.0.1"
        ) from error
    for family, kind, protocol, _, place in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                # As gRPC binds: a port whose last connections are still closing is free.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    # If the host stands for both families, each is tried separately.
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(place)
        except OSError as error:
            if error.errno == errno.EAFNOSUPPORT and len(found) > 1:
                continue  # The name has an IPv6 address on a machine without IPv6.
            raise ListenFailed(_why_not(address, error)) from error


def _why_not(address: ListenAddress, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"cannot listen on {address}: another program listens there; stop it, or choose "
            "another port (0 takes a free one)"
        )
    if error.errno == errno.EACCES:
        return (
            f"cannot listen on {address}: this user may not; choose a port from 1024 up, or give "
            "the process the right to bind it"
        )
    if error.errno in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:
        return (
            f"cannot listen on {address}: this machine does not have that address; listen on one "
            "that it has, such as 127.0.0.1"
        )
    return f"cannot listen on {address}: {error.strerror or error}; choose another address"


def _check_unix_path(address: ListenAddress) -> None:
    path = Path(address.unix_path)
    try:
        if not path.parent.is_dir():
            raise ListenFailed(
                f'cannot listen on {address}: there is no folder "{path.parent}"; make it first'
            )
        if not path.exists():
            return
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise ListenFailed(
                f"cannot listen on {address}: the path is taken by something that is no socket; "
                "choose another path"
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.connect(address.unix_path)
    except ConnectionRefusedError:
        return  # Left behind by a server that was killed; gRPC replaces it.
    except OSError as error:
        raise ListenFailed(_why_not(address, error)) from error
    raise ListenFailed(
        f"cannot listen on {address}: another program listens there; stop it, or choose another "
        "path"
    )
