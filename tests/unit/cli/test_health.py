"""``agent-routing health``: its output and exit codes for probes and scripts."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from routing_service.cli.app import app
from routing_service.cli.embedded_server import server_in_thread
from routing_service.cli.failure import CommandFailed
from routing_service.examples import EXAMPLES
from routing_service.rpc.health import READINESS


@pytest.fixture
def ask(capsys):
    """Return what runs the command: its stdout, or its failure."""

    def ask_it(*argv):
        try:
            app(["health", *argv], prog_name="agent-routing", standalone_mode=False)
        except CommandFailed as failed:
            return str(failed)
        return capsys.readouterr().out.strip()

    return ask_it


def test_server_that_serves_says_so(ask):
    """Both checks have the same answer."""
    with server_in_thread(EXAMPLES["tax"].registry_path, "memory:") as address:
        assert ask("--target", address).splitlines()[-1] == "SERVING"
        assert ask("--live", "--target", address).splitlines()[-1] == "SERVING"


def test_server_whose_store_is_away_lives_and_cannot_serve(ask):
    """A liveness probe that depended on the store would restart all replicas for nothing."""
    server = grpc.server(ThreadPoolExecutor(1))
    servicer = health.HealthServicer()
    servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    servicer.set(READINESS, health_pb2.HealthCheckResponse.NOT_SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        refused = ask("--target", target)
        assert refused == f"the server at {target} says NOT_SERVING; its log has the reason"
        assert ask("--live", "--target", target) == "SERVING"
    finally:
        server.stop(0).wait()


def test_nobody_there_is_a_failure(ask):
    """With gRPC's code for it."""
    assert "no server answers at 127.0.0.1:1 [" in ask("--target", "127.0.0.1:1")


@contextmanager
def probes(readyz):
    """Serve the probes' pages from a thread; yield their address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response({"/livez": 200, "/readyz": readyz}.get(self.path, 404))
            self.end_headers()

        def log_message(self, *_given):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        running = threading.Thread(target=server.serve_forever)
        running.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        running.join()


def test_the_listener_of_the_probes_is_asked_where_it_is_named(ask):
    """The calls' port may be full although the server is healthy."""
    with probes(readyz=200) as address:
        assert ask("--probe", address) == "SERVING"
    with probes(readyz=503) as address:
        assert ask("--probe", address) == (
            f"the server at {address} says NOT_SERVING; its log has the reason"
        )
        assert ask("--live", "--probe", address) == "SERVING"
    with probes(readyz=404) as address:
        assert ask("--probe", address) == (
            f"{address} answers 404 for /readyz; are the probes there?"
        )
    assert ask("--probe", address).startswith(f"no probes at {address}: ")
    assert ask("--probe", "here").startswith('"here": give HOST:PORT')
