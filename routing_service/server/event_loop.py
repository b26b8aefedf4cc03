"""The server's event loop: uvloop's, which reads gRPC's wake-ups many at a time.

gRPC's thread writes one byte to a socket for each event of a call, and its reader on the loop takes
one byte and then all events. Each byte that is left calls the reader again, which releases Python's
interpreter lock twice, for nothing. Rule: without uvloop, or with a gRPC that wakes the loop in
another way, all works as before.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVarTuple

_Ts = TypeVarTuple("_Ts")

_BYTES_MAX: Final = 4096
"""Wake-ups taken at a time. A socket holds fewer: each byte takes hundreds of the kernel's."""

_GRPC_MODULE: Final = "grpc._cython.cygrpc"


class WakeUps(socket.socket):
    """The socket of gRPC's wake-ups: one read takes all that are there."""

    __slots__ = ()

    def recv(self, _size: int, _flags: int = 0, /) -> bytes:
        """Return all wake-ups. gRPC asks for one, and handles all events after any."""
        try:
            return super().recv(_BYTES_MAX)
        except BlockingIOError:
            # Another loop of the process took them; gRPC's queue of events is the same for all.
            return b""


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what makes uvloop's loop, about a fifth faster, if the platform supports it."""
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        return asyncio.new_event_loop

    class ServerLoop(uvloop.Loop):
        """uvloop's loop, which knows gRPC's reader."""

        def add_reader(self, fd: Any, callback: Callable[[*_Ts], Any], *args: *_Ts) -> None:
            """Call a reader when there is something to read."""
            if type(fd) is socket.socket and is_of_grpc(callback):
                # A slotted subclass without fields of its own: the object stays as it is.
                fd.__class__ = WakeUps
            super().add_reader(fd, callback, *args)

    return ServerLoop


def is_of_grpc(reader: object) -> bool:
    """Say whether a reader is gRPC's own."""
    if isinstance(reader, partial):
        reader = reader.func
    return type(getattr(reader, "__self__", None)).__module__ == _GRPC_MODULE
