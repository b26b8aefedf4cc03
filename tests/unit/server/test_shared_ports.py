"""Ports that several server processes share, and the settings that processes can share."""

import socket
from contextlib import ExitStack

import pytest

from routing_service.server.shared_ports import hold_ports
from routing_service.settings.listen_address import ListenFailed
from routing_service.settings.rules import SettingsInvalid
from routing_service.settings.settings import Settings

SHARED = {"store": "postgres://db/chat", "processes": 2}


def listening(port):
    """A listener as each process has one."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen()
    return sock


def test_a_free_port_becomes_one_number_that_processes_share():
    """Each process would take a port of its own for port 0."""
    with ExitStack() as held:
        settings = hold_ports(
            Settings(listen="127.0.0.1:0", web_listen="127.0.0.1:0", **SHARED), held
        )
        port = settings.listen_address.port
        assert port
        assert settings.web_address.port not in (0, port)
        with listening(port), listening(port):
            pass


def test_a_held_port_takes_no_connection():
    """Only processes that listen get callers: a process that starts must not lose them."""
    with ExitStack() as held:
        port = hold_ports(Settings(listen="127.0.0.1:0", **SHARED), held).listen_address.port
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port)).close()
        with listening(port):
            socket.create_connection(("127.0.0.1", port)).close()


def test_a_port_of_another_supervisor_is_refused():
    """The system would let both have it, and each would get a part of the other's calls."""
    with ExitStack() as held:
        real = hold_ports(Settings(listen="127.0.0.1:0", **SHARED), held)
        with listening(real.listen_address.port), pytest.raises(ListenFailed, match="another"):
            hold_ports(real, held)


@pytest.mark.parametrize("store", ["memory:", "sqlite:///var/routing.db"])
def test_a_store_of_one_process_is_refused(store):
    """Each process would have a store of its own, or the second would not start."""
    with pytest.raises(SettingsInvalid) as refused:
        Settings(store=store, processes=2)
    assert str(refused.value) == (
        f'processes is "2", and only one process can have a {store.partition(":")[0]} store; use '
        "PostgreSQL, Redis or DynamoDB, or set 1"
    )


@pytest.mark.parametrize("name", ["listen", "admin_listen", "web_listen", "console_listen"])
def test_a_unix_socket_is_refused(name):
    """The last process to start would take it away from the others."""
    with pytest.raises(SettingsInvalid) as refused:
        Settings(**{name: "unix:/run/routing"}, **SHARED)
    assert [each.name for each in refused.value.problems] == [name]
    assert "processes cannot share a unix socket; give HOST:PORT" in str(refused.value)
