"""The messages of one stream that wait for answers, over any number of connections.

Owns their order and what happens to them when a connection breaks. A message is the same request on
every connection, and is answered once. Both clients use it. It is not safe in threads, so the
blocking client holds a lock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol, cast

import grpc
from google.rpc.status_pb2 import Status

from agent_routing.calls import Call, CallSettings
from agent_routing.errors import RoutingError, Unavailable
from agent_routing.retry import was_unanswered
from agent_routing.status_details import DETAILS_KEY, routing_error
from agent_routing.v1.routing_service_pb2 import (
    RouteRequest,
    RouteStreamRequest,
    RouteStreamResponse,
)

IN_FLIGHT_MAX: Final = 128
"""Messages of one stream that wait for answers at a time; others wait to be sent. The service takes
as many from a stream, so more would only wait there."""

CLOSE_S_MAX: Final = 1.0
"""How long the service may take to end a stream after its last message."""

METHOD: Final = "RouteStream"

_log: Final = logging.getLogger("agent_routing")


class AnswerFuture(Protocol):
    """What asyncio and concurrent.futures have in common."""

    def done(self) -> bool:
        """Tell whether there is an answer, or the caller no longer waits for one."""

    def set_result(self, result: RouteStreamResponse) -> None:
        """Set the answer."""

    def set_exception(self, exception: BaseException) -> None:
        """Set the error instead of an answer."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message that waits for its answer."""

    call: Call
    future: AnswerFuture

    @property
    def message(self) -> RouteStreamRequest:
        """The message on the wire, the same on each connection."""
        # Several answers in one message take both sides less time.
        return RouteStreamRequest(route=cast("RouteRequest", self.call.request), takes_more=True)


class StreamedMessages:
    """The messages of one stream that wait for answers."""

    def __init__(self, settings: CallSettings) -> None:
        self._settings = settings
        self._waiting: dict[str, Waiting] = {}
        self._breaks = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def find(self, request_id: str) -> Waiting | None:
        """Return the message that waits under an id."""
        return self._waiting.get(request_id)

    def add(self, waiting: Waiting) -> None:
        """Count an attempt, and add the message to those that wait."""
        waiting.call.next_timeout_s()
        self._waiting[waiting.call.request_id] = waiting

    def drop(self, waiting: Waiting) -> None:
        """Remove a message that has its answer, or whose caller no longer waits."""
        if self._waiting.get(waiting.call.request_id) is waiting:
            del self._waiting[waiting.call.request_id]

    def in_order(self) -> list[str]:
        """Return the ids to send on a new connection, in the order of their first attempt."""
        return list(self._waiting)

    def received(self, response: RouteStreamResponse) -> None:
        """Pass each answer of a message to the caller that waits for it."""
        self._breaks = 0
        for answer in (response, *response.more):
            waiting = self._waiting.pop(answer.request_id, None)
            if waiting is not None and not waiting.future.done():
                waiting.future.set_result(answer)

    def broken(self, failure: grpc.RpcError | None) -> float:
        """Decide about the messages whose connection ended before their answers.

        failure: None: the connection ended without an error. Returns the seconds to wait before the
        next one. A message without attempts or time left, or whose stream was refused, gets the
        error.
        """
        self._breaks += 1
        settings = self._settings
        is_calm = not self._waiting or settings.throttle.may_retry()
        backoff_s = settings.retry.backoff_s(self._breaks)
        wait_s = backoff_s
        now_s = time.monotonic()
        for waiting in list(self._waiting.values()):
            error = self._error(failure, waiting.call)
            if error.retry_after is not None:
                wait_s = backoff_s + error.retry_after.total_seconds()
            call = waiting.call
            may_wait = (
                is_calm
                and (was_unanswered(error) or self._may_renew(error))
                and call.attempts < settings.retry.attempts_max
                and now_s + wait_s < call.deadline_s
            )
            if may_wait:
                call.next_timeout_s()
                continue
            self.drop(waiting)
            if not waiting.future.done():
                waiting.future.set_exception(error)
        _log.debug("stream_resumed messages=%d wait_s=%.3f", len(self._waiting), wait_s)
        return wait_s

    def _may_renew(self, error: RoutingError) -> bool:
        """Tell whether a stream may continue with another token: once, until the next answer."""
        return self._breaks == 1 and self._settings.may_renew(error)

    def give_up(self, error: BaseException) -> None:
        """Set the error for all messages that wait."""
        for waiting in list(self._waiting.values()):
            self.drop(waiting)
            if not waiting.future.done():
                waiting.future.set_exception(error)

    def too_late(self, call: Call) -> RoutingError:
        """Return the error for a message whose deadline has passed."""
        if call.is_held_up and self._settings.is_answering:
            return call.too_late()
        return self._error(_late(), call)

    def _error(self, failure: grpc.RpcError | None, call: Call) -> RoutingError:
        if failure is None:
            # For example by a proxy that limits how long a connection may last.
            return Unavailable(
                f'{METHOD}: "{self._settings.target}" ended the stream before it answered',
                code=grpc.StatusCode.UNAVAILABLE,
                method=METHOD,
                request_id=call.request_id,
                session_id=call.session_id,
                attempts=call.attempts,
            )
        return routing_error(
            failure,
            method=METHOD,
            target=self._settings.target,
            request_id=call.request_id,
            session_id=call.session_id,
            timeout_s=call.timeout_s,
            attempts=call.attempts,
        )


class RefusedMessage(grpc.RpcError):
    """The error in an answer, in the form of a failed call."""

    def __init__(
        self,
        code: grpc.StatusCode,
        words: str,
        metadata: Iterable[tuple[str, str | bytes]] = (),
    ) -> None:
        super().__init__(words)
        self._code = code
        self._words = words
        self._metadata = tuple(metadata)

    def code(self) -> grpc.StatusCode:
        """Return the status code."""
        return self._code

    def details(self) -> str:
        """Return the status message."""
        return self._words

    def trailing_metadata(self) -> tuple[tuple[str, str | bytes], ...]:  # type: ignore[override]
        """Return the details, as a call has them."""
        return self._metadata


_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


def refused_message(response: RouteStreamResponse) -> RefusedMessage:
    """Return the error in an answer, or one for an answer of an unknown kind."""
    status = response.error
    if not response.HasField("error"):
        status = Status(
            code=grpc.StatusCode.UNKNOWN.value[0],
            message="the answer is of a kind that this client does not know; update it",
        )
    code = _CODES.get(status.code, grpc.StatusCode.UNKNOWN)
    return RefusedMessage(code, status.message, ((DETAILS_KEY, status.SerializeToString()),))


def _late() -> RefusedMessage:
    return RefusedMessage(grpc.StatusCode.DEADLINE_EXCEEDED, "")
