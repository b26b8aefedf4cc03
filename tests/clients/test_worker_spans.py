"""The spans of workers: in the trace of the message, with ids and no text."""

from contextlib import suppress

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agent_routing import worker_spans
from agent_routing.v1.agent_pb2 import Agent
from agent_routing.v1.dispatch_pb2 import Dispatch

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


def spans_of(monkeypatch, dispatch, error=None):
    """Run a block for a dispatch and return its spans."""
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(worker_spans.trace, "get_tracer", provider.get_tracer)
    with suppress(ValueError), worker_spans.working_span(dispatch, "chat-1"):
        if error is not None:
            raise error
    return kept.get_finished_spans()


def test_a_span_continues_the_trace_of_the_message(monkeypatch):
    """Its parent is the span that the dispatch names; the user's text is not in it."""
    dispatch = Dispatch(
        request_id="r1",
        task_id="t1",
        agent=Agent(agent_id="vat"),
        text="my secret",
        traceparent=f"00-{TRACE_ID}-b7ad6b7169203331-01",
    )
    (span,) = spans_of(monkeypatch, dispatch)
    assert f"{span.context.trace_id:032x}" == TRACE_ID
    assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
    assert span.name == "agent vat"
    assert dict(span.attributes) == {
        "agent_routing.session_id": "chat-1",
        "agent_routing.request_id": "r1",
        "agent_routing.task_id": "t1",
        "agent_routing.agent_id": "vat",
    }
    assert "secret" not in span.to_json()


def test_a_message_without_a_trace_begins_one(monkeypatch):
    """And an exception of the function is recorded and raised on."""
    (span,) = spans_of(monkeypatch, Dispatch(agent=Agent(agent_id="vat")), ValueError("no"))
    assert span.parent is None
    assert not span.status.is_ok


def test_without_opentelemetry_nothing_happens(monkeypatch):
    """The client does not need it."""
    monkeypatch.setattr(worker_spans, "_HAS_TRACES", False)
    assert spans_of(monkeypatch, Dispatch()) == ()
