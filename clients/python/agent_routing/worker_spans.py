"""The span of an agent's function, in the trace of the message, if OpenTelemetry is there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_routing.v1.dispatch_pb2 import Dispatch

try:
    from opentelemetry import propagate, trace
except ImportError:  # An application without traces.
    _HAS_TRACES = False
else:
    _HAS_TRACES = True


@contextmanager
def working_span(dispatch: Dispatch, session_id: str) -> Iterator[None]:
    """Run a block in a span that continues the dispatch's trace. It has ids, and no text.

    Without the package opentelemetry-api, or without a tracer provider of the application, it does
    nothing. The span records an exception of the block.
    """
    if not _HAS_TRACES:
        yield
        return
    carrier = {"traceparent": dispatch.traceparent} if dispatch.traceparent else {}
    tracer = trace.get_tracer("agent_routing.worker")
    with tracer.start_as_current_span(
        f"agent {dispatch.agent.agent_id}",
        context=propagate.extract(carrier),
        kind=trace.SpanKind.CONSUMER,
        attributes={
            "agent_routing.session_id": session_id,
            "agent_routing.request_id": dispatch.request_id,
            "agent_routing.task_id": dispatch.task_id,
            "agent_routing.agent_id": dispatch.agent.agent_id,
        },
    ):
        yield
