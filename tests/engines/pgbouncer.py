"""A real pgbouncer for the tests, if this machine has one.

Owns its folder and its process. Tests that need it are skipped on machines without it; install it
(Debian: pgbouncer) to run them.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from tests.engines.postgres_server import UNPRIVILEGED, CannotStart

START_TIMEOUT_S = 10.0


@contextmanager
def pgbouncer(database_url: str, *, server_connections: int) -> Iterator[str]:
    """Yield the URL of a transaction pooler in front of a database.

    Raises CannotStart.
    """
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    if program is None:
        raise CannotStart("pgbouncer is not installed")
    parts = urlsplit(database_url)
    folder = Path(tempfile.mkdtemp(prefix="routing-pgb-"))
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    database = parts.path.removeprefix("/")
    (folder / "pgbouncer.ini").write_text(
        f"""[databases]
{database} = host={parts.hostname} port={parts.port} user={parts.username} password={parts.password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {server_connections}
# The next connection in turn, not the last one used: each transaction finds itself on another.
server_round_robin = 1
logfile = {folder}/log
pidfile = {folder}/pid
"""
    )
    command = [program, "-q", str(folder / "pgbouncer.ini")]
    if os.geteuid() == 0:
        shutil.chown(folder, UNPRIVILEGED)
        command[1:1] = ["-u", UNPRIVILEGED]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_until_it_listens(port, process, folder)
        yield urlunsplit(parts._replace(netloc=f"anybody@127.0.0.1:{port}"))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_it_listens(port: int, process: subprocess.Popen[bytes], folder: Path) -> None:
    ends_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < ends_s and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    log = folder / "log"
    raise CannotStart(f"pgbouncer did not start: {log.read_text() if log.exists() else ''}")
