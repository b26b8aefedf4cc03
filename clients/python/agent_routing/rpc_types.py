"""Names for grpc's generic types, so that the asyncio and the blocking source differ in one word.

For type checkers only: at run time grpc's classes are not generic.
"""

from __future__ import annotations

from grpc import UnaryUnaryMultiCallable as Rpc
from grpc.aio import UnaryUnaryMultiCallable as AsyncRpc

__all__ = ["AsyncRpc", "Rpc"]
