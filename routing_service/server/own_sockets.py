"""The TCP connections of this process, found through its own descriptors.

gRPC has no hook for accepted connections, so their descriptors are listed, read and reset from
outside. Linux only: elsewhere ``is_supported`` is false.

Rule: no descriptor of a file is ever closed here. Closing one, even a duplicate, releases all locks
that this process has on the file, those of SQLite among them, and its store would be damaged.
"""

from __future__ import annotations

import ctypes
import errno
import ipaddress
import os
import socket
import stat
import struct
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

is_supported: Final = sys.platform == "linux"

Host = ipaddress.IPv4Address | ipaddress.IPv6Address
Peer = tuple[str, int]
"""A peer's host, without the form that IPv6 gives IPv4 addresses, and its port."""

BANS_MAX: Final = 512
"""Hosts in one kernel filter. A filter holds 4,096 instructions; a host takes up to 6."""

_DESCRIPTORS: Final = "/proc/self/fd"
_TCP_INFO_BYTES: Final = 208
_LAST_RECEIVED: Final = struct.Struct("=52xI")
_RECEIVED: Final = struct.Struct("=128xQ")
_SENT: Final = struct.Struct("=200xQ")
"""Places in struct tcp_info (linux/tcp.h): last_data_recv, bytes_received, bytes_sent."""

_ATTACH_FILTER, _DETACH_FILTER = 26, 27
"""SO_ATTACH_FILTER and SO_DETACH_FILTER (asm-generic/socket.h); Python has no names for them."""

_SUBNET_BITS: Final = 64
"""Of an IPv6 address: one customer has at least so many addresses, and counts as one peer."""


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A descriptor of one connection. inode: of its socket, so that a reused number is noticed."""

    number: int
    inode: int
    local_port: int
    peer: Peer


@dataclass(frozen=True, slots=True)
class Traffic:
    """What has passed over a connection since it was opened."""

    received_bytes: int
    sent_bytes: int
    silent_s: float
    """Seconds since the peer last sent data."""


NO_TRAFFIC: Final = Traffic(0, 0, 0.0)


class OwnSockets:
    """Lists the connections to some ports. Each descriptor is looked at once while it is open."""

    def __init__(self, ports: Collection[int]) -> None:
        """Look at connections to these local ports alone."""
        self._ports = frozenset(ports)
        self._seen: dict[int, tuple[int, Descriptor | None]] = {}
        self.listeners: dict[int, int] = {}
        """Descriptors that listen on the ports, with their inodes."""

    def connections(self) -> list[Descriptor]:
        """Return the connections that are open now. 2,000 take about 5 ms."""
        seen: dict[int, tuple[int, Descriptor | None]] = {}
        for name in os.listdir(_DESCRIPTORS):  # noqa: PTH208 - a Path each would double its time
            number = int(name)
            try:
                status = os.fstat(number)
            except OSError:
                continue  # Closed since it was listed, as the listing's own descriptor is.
            if not stat.S_ISSOCK(status.st_mode):
                continue
            inode = status.st_ino
            known = self._seen.get(number)
            seen[number] = (
                known if known and known[0] == inode else (inode, self._look(number, inode))
            )
        self._seen = seen
        self.listeners = {
            number: inode for number, inode in self.listeners.items() if number in seen
        }
        return [found for _, found in seen.values() if found is not None]

    def _look(self, number: int, inode: int) -> Descriptor | None:
        with suppress(OSError), _opened(number, inode) as sock:
            if sock.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            port = sock.getsockname()[1]
            if sock.type != socket.SOCK_STREAM or port not in self._ports:
                return None
            if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                self.listeners[number] = inode
                return None
            host, peer_port = sock.getpeername()[:2]
            return Descriptor(number, inode, port, (plain_host(host), peer_port))
        return None


def plain_host(host: str) -> str:
    """Return an address in its one plain form."""
    address: Host = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(address)


def peer_of(name: str) -> Peer:
    """Return the peer that gRPC names ipv4:ADDRESS:PORT or ipv6:[ADDRESS]:PORT; ("", 0) for others.

    The brackets may be percent-encoded.
    """
    scheme, _, place = name.partition(":")
    if scheme not in ("ipv4", "ipv6"):
        return "", 0
    host, _, port = place.replace("%5B", "[").replace("%5D", "]").rpartition(":")
    try:
        return plain_host(host.strip("[]")), int(port)
    except ValueError:
        return "", 0


def subnet_of(host: str) -> str:
    """Return what counts as one peer: an IPv4 address, or an IPv6 network of 64 bits."""
    if ":" not in host:
        return host
    return str(ipaddress.ip_network(f"{host}/{_SUBNET_BITS}", strict=False))


def traffic_of(descriptor: Descriptor) -> Traffic | None:
    """Return a connection's traffic, or None if it is closed or the kernel keeps no count."""
    # Not through a duplicate, which takes four more calls of the system: this only reads.
    try:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=descriptor.number)
    except OSError:
        return None  # Closed since it was listed.
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return None
    finally:
        sock.detach()
    if len(info) < _TCP_INFO_BYTES:
        return None
    return Traffic(
        received_bytes=_RECEIVED.unpack_from(info)[0],
        sent_bytes=_SENT.unpack_from(info)[0],
        silent_s=_LAST_RECEIVED.unpack_from(info)[0] / 1e3,
    )


def reset(descriptor: Descriptor) -> bool:
    """Reset a connection, and drop what it sent and was not read. Return whether it was open.

    shutdown() would leave unread bytes to be read: up to 6 MB, or 40,000 calls of an attack.
    """
    try:
        with _opened(descriptor.number, descriptor.inode) as sock:
            _disconnect(sock.fileno())
    except OSError:
        return False
    return True


_LIBC: Final = ctypes.CDLL(None, use_errno=True) if is_supported else None
_UNSPECIFIED: Final = struct.pack("=H14x", socket.AF_UNSPEC)


def _disconnect(number: int) -> None:
    """Call connect() with AF_UNSPEC, which Python's sockets refuse: it resets the connection."""
    assert _LIBC is not None
    if _LIBC.connect(number, _UNSPECIFIED, len(_UNSPECIFIED)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


@contextmanager
def _opened(number: int, inode: int) -> Iterator[socket.socket]:
    """Open a descriptor's socket through a duplicate. Raises OSError if it is another by now.

    The duplicate stays the same socket even if the number is reused meanwhile.
    """
    duplicate = os.dup(number)
    status = os.fstat(duplicate)
    if not stat.S_ISSOCK(status.st_mode):
        # The number was reused for a file, within microseconds. Its duplicate stays open.
        raise _reused()
    if status.st_ino != inode:
        os.close(duplicate)
        raise _reused()
    try:
        sock = socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        raise
    with sock:
        yield sock


def _reused() -> OSError:
    return OSError(errno.EBADF, "the descriptor was closed, and its number is used again")


# --- filters in the kernel ---

_LOAD_WORD, _LOAD_BYTE, _SHIFT, _IF_EQUAL, _RETURN = 0x20, 0x30, 0x74, 0x15, 0x06
_JUMP: Final = 0x05
_NETWORK_HEADER: Final = -0x100000
_IPV4_SOURCE, _IPV6_SOURCE = 12, 8
_DROP, _TAKE = 0, 0xFFFFFFFF


def refuse(listeners: Iterable[tuple[int, int]], subnets: Collection[str]) -> bool:
    """Have the kernel drop what hosts send to listening sockets. Return whether it does.

    Open connections go on. listeners: descriptor numbers with their inodes. subnets: as
    ``subnet_of`` gives them, the first BANS_MAX; empty = drop none.
    Source: a classic BPF filter on a listening socket sees each SYN; no privilege is needed.
    """
    try:
        for number, inode in listeners:
            with _opened(number, inode) as sock:
                if subnets:
                    _attach(sock, _program([*subnets][:BANS_MAX]))
                else:
                    with suppress(FileNotFoundError):  # None was attached.
                        sock.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)
    except OSError:
        return False
    return True


def deafen(descriptor: Descriptor) -> bool:
    """Have the kernel drop all that arrives on a connection. Return whether it does.

    The peer gets no reset, after which it would connect again at once; so it waits.
    """
    try:
        with _opened(descriptor.number, descriptor.inode) as sock:
            _attach(sock, _step(_RETURN, _DROP))
    except OSError:
        return False
    return True


def _attach(sock: socket.socket, program: bytes) -> None:
    code = ctypes.create_string_buffer(program, len(program))
    attached = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
    sock.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, attached)


def _program(subnets: Iterable[str]) -> bytes:
    """Return the filter: the IP version, then a comparison for each host of that version."""
    ipv4, ipv6 = b"", b""
    for subnet in subnets:
        first = ipaddress.ip_network(subnet).network_address
        if isinstance(first, ipaddress.IPv4Address):
            ipv4 += _step(_IF_EQUAL, int(first), 0, 1) + _step(_RETURN, _DROP)
        else:
            high, low = int(first) >> 96, int(first) >> 64 & 0xFFFFFFFF
            ipv6 += _step(_LOAD_WORD, _NETWORK_HEADER + _IPV6_SOURCE)
            ipv6 += _step(_IF_EQUAL, high, 0, 3)
            ipv6 += _step(_LOAD_WORD, _NETWORK_HEADER + _IPV6_SOURCE + 4)
            ipv6 += _step(_IF_EQUAL, low, 0, 1) + _step(_RETURN, _DROP)
    ipv4 = _step(_LOAD_WORD, _NETWORK_HEADER + _IPV4_SOURCE) + ipv4 + _step(_RETURN, _TAKE)
    ipv6 += _step(_RETURN, _TAKE)
    head = _step(_LOAD_BYTE, _NETWORK_HEADER) + _step(_SHIFT, 4) + _step(_IF_EQUAL, 4, 1, 0)
    return head + _step(_JUMP, len(ipv4) // 8) + ipv4 + ipv6


def _step(operation: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", operation, if_true, if_false, value & 0xFFFFFFFF)
