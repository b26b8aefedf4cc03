"""Calls with http_proxy in the environment, as on company laptops and many builders."""

import asyncio
from contextlib import asynccontextmanager

import pytest

import agent_routing
from agent_routing.proxies import is_local, proxy_hint, proxy_options
from routing_service.cli import doctor_checks
from routing_service.cli.credentials import given
from routing_service.cli.failure import call_failed
from tests.rpc.live_service import serving


@asynccontextmanager
async def proxied(monkeypatch):
    """Set a proxy that refuses every host; yield what it was asked for."""
    asked = []

    async def refuse(reader, writer):
        asked.append((await reader.readline()).decode().strip())
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy", "grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
    try:
        yield asked
    finally:
        server.close()


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "unix:"])
async def test_this_machine_is_called_directly(tmp_path, monkeypatch, listen):
    """No proxy can reach it: clients and commands find the server as without one."""
    address = f"unix:{tmp_path}/s" if listen == "unix:" else listen
    async with serving(tmp_path, "tax", listen=address) as running, proxied(monkeypatch) as asked:
        target = running.server.address
        assert not await asyncio.to_thread(is_degraded, target)
        async with agent_routing.AsyncClient(target, fallback=None) as client:
            assert (await client.route("hello", user_id="ana")).agent_id
        said = [finding.said for finding in await asyncio.to_thread(looked_at, target)]
        assert f"{target} is ready" in said
    assert asked == []


def is_degraded(target):
    """Route a message with the blocking client."""
    with agent_routing.Client(target, fallback=None) as client:
        return client.route("hello", user_id="ana").degraded


def looked_at(target):
    """Return what doctor says about a server; health takes the same channel."""
    return list(doctor_checks.server(target, given(), 5.0))


async def test_an_error_names_the_variable_of_the_proxy(monkeypatch):
    """Elsewhere the proxy may be meant, or be what is wrong."""
    hint = "through the proxy of https_proxy"
    async with proxied(monkeypatch) as asked:
        async with agent_routing.AsyncClient("routing.invalid:50051", fallback=None) as client:
            with pytest.raises(agent_routing.errors.Unavailable, match=hint) as raised:
                await client.status("chat-1")
        assert hint in str(call_failed(raised.value, "routing.invalid:50051", as_json=False))
        [finding] = await asyncio.to_thread(looked_at, "routing.invalid:50051")
        assert hint in finding.said
    assert set(asked) == {"CONNECT routing.invalid:50051 HTTP/1.1"}


@pytest.mark.parametrize(
    ("target", "is_here"),
    [
        ("127.0.0.1:50051", True),
        ("127.9.9.9:50051", True),
        ("localhost:50051", True),
        ("[::1]:50051", True),
        ("ipv4:127.0.0.1:50051", True),
        ("ipv4:127.0.0.1:50051,127.0.0.1:50052", True),
        ("dns:///localhost:50051", True),
        ("unix:/run/routing.sock", True),
        ("routing.example:50051", False),
        ("dns:///routing.example:50051", False),
        ("ipv4:127.0.0.1:50051,10.0.0.1:50052", False),
        ("localhost.example:50051", False),
    ],
)
def test_only_loopback_and_unix_sockets_are_this_machine(monkeypatch, target, is_here):
    """Others may have to go through the proxy."""
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    assert is_local(target) == is_here
    assert bool(proxy_options(target)) == is_here
    assert bool(proxy_hint(target)) != is_here


def test_a_host_of_no_proxy_goes_through_none(monkeypatch):
    """GRPC compares the ends of names."""
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "10.0.0.1, .example")
    assert not proxy_hint("routing.example:50051")
    assert not proxy_hint("10.0.0.1:50051")
    assert proxy_hint("routing.test:50051")
