import fcntl
import os
import socket
import subprocess
import sys

import pytest

from routing_service.server import own_sockets
from routing_service.server.own_sockets import OwnSockets, peer_of, subnet_of

pytestmark = pytest.mark.skipif(not own_sockets.is_supported, reason="Linux only")


@pytest.fixture
def listener():
    """Listen on a port of both families, as gRPC does."""
    with socket.create_server(
        ("::", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64
    ) as sock:
        yield sock


def port_of(listener):
    """Return a listener's port."""
    return listener.getsockname()[1]


def connected(listener, source, host="127.0.0.1", timeout_s=5):
    """Connect from an address of this machine, and accept it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    near = socket.socket(family)
    near.settimeout(timeout_s)
    near.bind((source, 0))
    try:
        near.connect((host, port_of(listener)))
    except TimeoutError:
        near.close()
        raise
    far, _ = listener.accept()
    far.settimeout(5)
    return near, far


def test_connections_of_the_ports_alone_are_listed_with_their_peers(listener):
    """Files, other ports and the listener itself are not connections."""
    own = OwnSockets([port_of(listener)])
    near, far = connected(listener, "127.0.0.2")
    with socket.create_server(("127.0.0.1", 0)) as other, near, far:
        elsewhere = socket.create_connection(other.getsockname())
        (found,) = own.connections()
        assert found.number == far.fileno()
        assert found.peer == ("127.0.0.2", near.getsockname()[1])
        assert list(own.listeners) == [listener.fileno()]
        elsewhere.close()
    assert own.connections() == []


_TRIES_LOCK = """
import fcntl, sys
with open(sys.argv[1], "r+") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(3)
"""


def may_lock(path):
    """Say whether another process gets a lock on a file."""
    return subprocess.run([sys.executable, "-c", _TRIES_LOCK, path], check=False).returncode != 3


def test_locks_of_files_are_kept(listener, tmp_path):
    """Closing a duplicate of SQLite's descriptor would release the store's locks."""
    path = tmp_path / "store.db"
    path.touch()
    own = OwnSockets([port_of(listener)])
    with path.open("r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        own.connections()
        assert not may_lock(path)


def test_number_that_a_file_has_by_now_keeps_the_locks_too(listener, tmp_path):
    """A socket was closed, and a locked file opened with its number, before it was looked at."""
    path = tmp_path / "store.db"
    path.touch()
    near, far = connected(listener, "127.0.0.2")
    (found,) = OwnSockets([port_of(listener)]).connections()
    with near, path.open("r+") as file:
        far.close()
        os.dup2(file.fileno(), found.number)
        fcntl.lockf(file, fcntl.LOCK_EX)
        assert not own_sockets.deafen(found)
        assert not own_sockets.reset(found)
        assert own_sockets.traffic_of(found) is None
        assert not may_lock(path)
        os.close(found.number)


def test_traffic_is_what_the_kernel_counted(listener):
    """Bytes in both directions, and how long the peer has said nothing."""
    near, far = connected(listener, "127.0.0.1")
    with near, far:
        near.sendall(b"x" * 1_000)
        far.sendall(b"y" * 30)
        assert near.recv(30)
        (found,) = OwnSockets([port_of(listener)]).connections()
        traffic = own_sockets.traffic_of(found)
        assert (traffic.received_bytes, traffic.sent_bytes) == (1_000, 30)
        assert traffic.silent_s < 5


def test_reset_drops_what_was_not_read(listener):
    """After shutdown() alone the bytes of a flood would still be read."""
    near, far = connected(listener, "127.0.0.1")
    with near, far:
        near.sendall(b"x" * 1_000)
        (found,) = OwnSockets([port_of(listener)]).connections()
        assert own_sockets.reset(found)
        for side in (far, near):
            with pytest.raises(ConnectionResetError):
                side.recv(10)


def test_a_number_that_is_used_again_is_left_alone(listener):
    """Between the look and the reset the descriptor may have been closed and reopened."""
    own = OwnSockets([port_of(listener)])
    near, far = connected(listener, "127.0.0.1")
    (found,) = own.connections()
    second_near = socket.create_connection(("127.0.0.1", port_of(listener)))
    far.close()
    second_far, _ = listener.accept()
    assert second_far.fileno() == found.number
    assert not own_sockets.reset(found)
    assert not own_sockets.deafen(found)
    second_near.sendall(b"alive")
    assert second_far.recv(5) == b"alive"
    for sock in (near, second_near, second_far):
        sock.close()


def test_a_deaf_connection_receives_nothing_more(listener):
    """The peer is not notified, so it does not reconnect."""
    near, far = connected(listener, "127.0.0.1")
    with near, far:
        (found,) = OwnSockets([port_of(listener)]).connections()
        assert own_sockets.deafen(found)
        near.sendall(b"x")
        far.settimeout(0.3)
        with pytest.raises(TimeoutError):
            far.recv(1)


@pytest.mark.parametrize(
    ("refused", "out"),
    [
        ([], set()),
        (["127.0.0.2"], {"127.0.0.2"}),
        (["127.0.0.9", "::/64"], {"::1"}),
        (["127.0.0.3", "127.0.0.2", "2001:db8::/64"], {"127.0.0.2", "127.0.0.3"}),
        ([f"10.0.{n // 256}.{n % 256}" for n in range(511)] + ["127.0.0.3"], {"127.0.0.3"}),
    ],
    ids=["nobody", "one", "ipv6", "several", "as many as there may be"],
)
def test_refused_hosts_cannot_connect_and_others_can(listener, refused, out):
    """The kernel drops their SYN before the server sees it."""
    own = OwnSockets([port_of(listener)])
    own.connections()
    assert own_sockets.refuse(own.listeners.items(), refused)
    kept_out = set()
    for source in ("127.0.0.1", "127.0.0.2", "127.0.0.3", "::1"):
        host = "::1" if ":" in source else "127.0.0.1"
        try:
            for sock in connected(listener, source, host, 0.3):
                sock.close()
        except TimeoutError:
            kept_out.add(source)
    assert kept_out == out
    # Then all hosts can connect again.
    assert own_sockets.refuse(own.listeners.items(), [])
    for sock in connected(listener, "127.0.0.2"):
        sock.close()


@pytest.mark.parametrize(
    ("name", "peer"),
    [
        ("ipv4:127.0.0.1:40412", ("127.0.0.1", 40412)),
        ("ipv6:[::1]:40412", ("::1", 40412)),
        ("ipv6:%5B::1%5D:40412", ("::1", 40412)),
        ("ipv6:%5B::ffff:10.0.0.1%5D:1", ("10.0.0.1", 1)),
        ("unix:/tmp/serve", ("", 0)),
        ("ipv4:nonsense", ("", 0)),
    ],
)
def test_names_of_peers_as_grpc_writes_them(name, peer):
    """They must equal the kernel's names for the same connections."""
    assert peer_of(name) == peer


def test_an_ipv6_network_counts_as_one_peer():
    """One customer has 2**64 addresses at least."""
    assert subnet_of("2001:db8::1") == subnet_of("2001:db8::ffff:2") == "2001:db8::/64"
    assert subnet_of("10.0.0.1") == "10.0.0.1"
