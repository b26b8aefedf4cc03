"""The head of a request, read strictly: what proxies read in different ways is refused.

A head that two programs read differently lets a client smuggle a second request past the first of
them. So a line must end in CR LF, a body has one length, and a head has a size limit however few
pieces it arrives in. h11 itself takes a bare LF, and ignores Content-Length next to chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import h11
from h11._receivebuffer import ReceiveBuffer

_HEAD_END: Final = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class BadHead:
    """Why a head is refused. status: of HTTP."""

    status: int
    message: str


class StrictHeads(ReceiveBuffer):
    """h11's buffer of received bytes, which gives out the lines of a head."""

    def __init__(self, head_bytes_max: int) -> None:
        """Begin empty. head_bytes_max: of one head, with its request line."""
        super().__init__()
        self._head_bytes_max = head_bytes_max
        self.problem: BadHead | None = None

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Return the lines of a complete head. Raises h11.RemoteProtocolError."""
        end = self._data.find(_HEAD_END)
        # What is there of the head; a pipelined request may follow it.
        head = self._data if end < 0 else self._data[: end + len(_HEAD_END)]
        if len(head) > self._head_bytes_max:
            self._refuse(431, f"the headers have more than {self._head_bytes_max} bytes")
        if head.count(b"\n") != head.count(b"\r\n"):
            self._refuse(400, "a line ends in LF without CR")
        lines: list[bytearray] | None = super().maybe_extract_lines()
        if not lines:
            return lines
        names = {bytes(line.partition(b":")[0]).strip().lower() for line in lines}
        if names >= {b"content-length", b"transfer-encoding"}:
            self._refuse(400, "Content-Length and Transfer-Encoding exclude each other")
        if b"transfer-encoding" in names and bytes(lines[0]).endswith(b"HTTP/1.0"):
            self._refuse(400, "HTTP/1.0 has no Transfer-Encoding")
        return lines

    def _refuse(self, status: int, message: str) -> None:
        self.problem = BadHead(status, message)
        raise h11.RemoteProtocolError(message, error_status_hint=status)
