"""StartReplay, WatchReplay and CancelReplay: stored conversations with another registry."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from routing_service.auth.caller import Caller
from routing_service.core.errors import Reason, RoutingError
from routing_service.rpc.rpc_method import Methods, RpcAnswer
from routing_service.telemetry.call_record import CallRecord


class ReplayCalls:
    """The RPCs about replays. This release has none of them yet."""

    @property
    def methods(self) -> Methods:
        """These RPCs by name."""
        return {
            "StartReplay": self._unary,
            "WatchReplay": self._stream,
            "CancelReplay": self._unary,
        }

    async def _unary(self, _caller: Caller, _data: bytes, record: CallRecord) -> RpcAnswer:
        raise RoutingError(
            Reason.NOT_IMPLEMENTED,
            f"this server has no {record.method}",
            metadata={"method": record.method},
        )

    async def _stream(
        self, _caller: Caller, _data: bytes, record: CallRecord
    ) -> AsyncGenerator[tuple[bytes, dict[str, str]]]:
        await self._unary(_caller, _data, record)
        yield b"", {}
