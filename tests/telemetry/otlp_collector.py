"""A receiver of OTLP metrics for the tests: OpenTelemetry's own service, served by gRPC."""

from __future__ import annotations

import threading
from concurrent import futures
from contextlib import contextmanager
from typing import TYPE_CHECKING

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )


class Receiver(MetricsServiceServicer):
    """Keeps what comes. address: host and port. refusing: answers with this code while set."""

    def __init__(self) -> None:
        self.address = ""
        self.refusing: grpc.StatusCode | None = None
        self.requests: list[ExportMetricsServiceRequest] = []
        self._came = threading.Condition()

    def Export(  # noqa: N802 - the generated name
        self, request: ExportMetricsServiceRequest, context: grpc.ServicerContext
    ) -> ExportMetricsServiceResponse:
        """Keep a request, or refuse it."""
        if self.refusing is not None:
            context.abort(self.refusing, "not now")
        with self._came:
            self.requests.append(request)
            self._came.notify_all()
        return ExportMetricsServiceResponse()

    def wait_for(self, count: int, timeout_s: float = 50) -> list[ExportMetricsServiceRequest]:
        """Return the requests once there are so many. Raises AssertionError after the timeout."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.requests) >= count, timeout_s)
            return list(self.requests)


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Serve a receiver on a free port until the block ends."""
    receiver = Receiver()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    add_MetricsServiceServicer_to_server(receiver, server)
    receiver.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield receiver
    finally:
        server.stop(None)


def metrics_of(request: ExportMetricsServiceRequest) -> dict:
    """Return a request's metrics by name."""
    (resource,) = request.resource_metrics
    (scope,) = resource.scope_metrics
    return {metric.name: metric for metric in scope.metrics}


def resource_of(request: ExportMetricsServiceRequest) -> dict[str, str]:
    """Return who sent a request."""
    (resource,) = request.resource_metrics
    return {each.key: each.value.string_value for each in resource.resource.attributes}


def labels_of(point) -> dict[str, str]:
    """Return a data point's attributes."""
    return {each.key: each.value.string_value for each in point.attributes}
