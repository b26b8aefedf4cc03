"""An agent runtime with OpenTelemetry's SDK that answers a dispatch within its trace.

python runtime.py ADDRESS SPANS_FILE SESSION < dispatch.json

Its spans go to a file, one JSON object a line.
"""

import json
import sys
from pathlib import Path

from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from agent_routing import Client, outcomes


class ToFile(SpanExporter):
    """Writes spans as the frontend does."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def export(self, spans):
        with self._path.open("a", encoding="utf-8") as file:
            for span in spans:
                line = {
                    "service": "runtime",
                    "name": span.name,
                    "traceId": f"{span.context.trace_id:032x}",
                    "spanId": f"{span.context.span_id:016x}",
                    "parentId": f"{span.parent.span_id:016x}" if span.parent else None,
                }
                file.write(json.dumps(line) + "\n")
        return SpanExportResult.SUCCESS


def trace_context():
    """Return the trace context of the current span, as metadata."""
    carrier = {}
    propagate.inject(carrier)
    return carrier.items()


def main() -> None:
    """Answer the dispatch."""
    address, spans_file, session_id = sys.argv[1:]
    dispatch = json.load(sys.stdin)
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ToFile(spans_file)))
    tracer = provider.get_tracer("runtime")
    came_in = propagate.extract({"traceparent": dispatch["traceparent"]})
    with (
        Client(address, metadata=trace_context) as client,
        tracer.start_as_current_span("agent turn", context=came_in),
        tracer.start_as_current_span("CompleteTurn", kind=trace.SpanKind.CLIENT),
    ):
        client.complete_turn(
            session_id,
            dispatch["requestId"],
            dispatch["agentId"],
            outcomes.proceed(),
            text="hello",
            user_id="ana",
            timeout=30,
        )


main()
