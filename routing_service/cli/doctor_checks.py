"""The checks of ``agent-routing doctor``, one function each.

Its rules: nothing is changed, created or locked, so that it is safe next to a busy server. A check
that cannot be made says so and does not stop the others. Secrets are not shown.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from agent_routing.proxies import proxy_hint
from agent_routing.v1 import admin_service_pb2 as admin_pb
from agent_routing.v1.admin_service_pb2_grpc import AdminServiceStub
from routing_service import __version__
from routing_service.cli.admin_answers import stickiness_text
from routing_service.cli.credentials import Credentials
from routing_service.cli.screen import count_of
from routing_service.registry.file import RegistryFileError, check_registry_file
from routing_service.rpc.health import READINESS
from routing_service.sessions.stickiness_switch import ALL_TENANTS
from routing_service.settings.listen_address import ListenFailed, check_is_free
from routing_service.settings.rules import without_secrets
from routing_service.settings.settings import Settings
from routing_service.storage.open_store import open_store_to_read, sqlite_path
from routing_service.storage.store import StoreError

Level = Literal["ok", "warning", "problem"]

DISK_BYTES_LEAST: Final = 100 * 1024**2
"""With less, a busy server fills the disk before an operator can act."""
DISK_BYTES_SOON: Final = 1024**3
DESCRIPTORS_LEAST: Final = 1_024
CERTIFICATE_DAYS_SOON: Final = 14
CLOCK_S_MAX: Final = 5.0
"""By how much two clocks may differ before time-outs and tokens are wrong in a way that shows."""
OVERDUE_S: Final = 60.0
"""Time-outs are applied within about a second; after a minute no server is applying them."""
SESSIONS_READ: Final = 1_000
STORE_S_MAX: Final = 15.0
# Network file systems do not give the guarantees that SQLite's log needs.
NETWORK_FILE_SYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "fuse.sshfs"}
)


@dataclass(frozen=True)
class Finding:
    """The result of a check. remedy: what to do; empty if there is no problem."""

    what: str
    level: Level
    said: str
    remedy: str = ""


def machine() -> Iterator[Finding]:
    """Check the interpreter and the limits of this process."""
    yield Finding(
        "version",
        "ok",
        f"{__version__}, Python {platform.python_version()}, grpcio {grpc.__version__}",
    )
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return
    most, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < DESCRIPTORS_LEAST:
        yield Finding(
            "descriptors",
            "warning",
            f"at most {hard} open files and connections",
            "raise it (ulimit -Hn, LimitNOFILE of the unit); each connection and watch needs one",
        )
    else:
        yield Finding("descriptors", "ok", f"{most} open files, as many as {hard} if needed")


def processes(settings: Settings) -> Iterator[Finding]:
    """Compare the processes with the cores that this one may use."""
    if settings.processes == 1:
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    said = f"{settings.processes} server processes on {cores} cores"
    if settings.processes > (cores or 1):
        remedy = "set processes to the cores at most: one process uses one core"
        yield Finding("processes", "warning", said, remedy)
    else:
        yield Finding("processes", "ok", said)


def registry(settings: Settings) -> Iterator[Finding]:
    """Check the registry file as a server would read it."""
    if not settings.agents:
        # Not a problem: a running server with its own file is the usual case.
        yield Finding(
            "registry",
            "warning",
            "no registry file is named, so none was checked",
            "give --agents FILE; a server needs it to start",
        )
        return
    try:
        checked = check_registry_file(settings.agents)
    except RegistryFileError as error:
        problems = str(error).splitlines()
        yield Finding(
            "registry",
            "problem",
            problems[0] + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""),
            f"agent-routing check {settings.agents}",
        )
        return
    said = f"{settings.agents}, version {checked.registry.version}, "
    said += count_of(len(checked.registry.agents), "agent")
    if checked.warnings:
        yield Finding(
            "registry",
            "warning",
            f"{said}; {count_of(len(checked.warnings), 'warning')}: {checked.warnings[0]}",
            f"agent-routing check {settings.agents}",
        )
    else:
        yield Finding("registry", "ok", said)


def disk(settings: Settings) -> Iterator[Finding]:
    """Check the folder of a SQLite store: writable, with free space, on a local disk."""
    if not settings.store.startswith("sqlite:"):
        return
    path = Path(sqlite_path(settings.store, settings.store.partition(":")[2])).absolute()
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    if not os.access(folder, os.W_OK | os.X_OK):
        yield Finding(
            "disk", "problem", f"{folder} cannot be written", f"let this user write to {folder}"
        )
        return
    kind = file_system_of(folder)
    if kind in NETWORK_FILE_SYSTEMS:
        yield Finding(
            "disk",
            "problem",
            f"{folder} is on a network file system ({kind}), which does not lock and sync as "
            "SQLite needs it",
            "keep the file on a disk of this machine, or use PostgreSQL",
        )
    free = shutil.disk_usage(folder).free
    said = f"{folder}, {free / 1024**3:.1f} GB free"
    if free < DISK_BYTES_LEAST:
        yield Finding("disk", "problem", said, "free disk space; a full disk refuses every change")
    elif free < DISK_BYTES_SOON:
        yield Finding("disk", "warning", said, "free disk space soon; a turn takes about 2 KB")
    else:
        yield Finding("disk", "ok", said)


def file_system_of(folder: Path) -> str:
    """Return the type of the file system of a folder; "" if it is unknown."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    best, kind = "", ""
    for line in mounts.splitlines():
        _, where, found, *_ = line.split(" ")
        where = where.replace("\\040", " ")
        inside = where == "/" or str(folder) == where or str(folder).startswith(f"{where}/")
        if inside and len(where) >= len(best):
            best, kind = where, found
    return kind


def store(settings: Settings) -> Iterator[Finding]:
    """Check the store: that it exists, is one of ours, and its times make sense."""
    url = settings.store
    shown = without_secrets(url)
    if url.startswith("memory:"):
        yield Finding(
            "store",
            "warning",
            "memory: forgets everything when the server stops",
            "name a file or a database with --store, unless this is a trial",
        )
        return
    if url.startswith("sqlite:"):
        path = Path(sqlite_path(url, url.partition(":")[2]))
        if not path.exists():
            yield Finding("store", "ok", f"{shown} does not exist yet; the server creates it")
            return
    try:
        yield from asyncio.run(asyncio.wait_for(_look_into(url, shown), STORE_S_MAX))
    except TimeoutError:
        yield Finding(
            "store",
            "problem",
            f"{shown} does not answer within {STORE_S_MAX:.0f} s",
            "check the database and the network to it",
        )
    except StoreError as error:
        yield Finding(
            "store",
            "problem",
            str(error),
            "docs/operations.md, What does it say?, explains each of these",
        )


async def _look_into(url: str, shown: str) -> list[Finding]:
    opened = await open_store_to_read(url)
    try:
        now_us = time.time_ns() // 1_000
        tenants = await opened.list_tenants("", SESSIONS_READ)
        # Settings for all tenants are stored under a name that no tenant can have.
        tenants = [tenant for tenant in tenants if tenant != ALL_TENANTS]
        newest_us = 0
        sessions = 0
        for tenant in tenants:
            rows, _ = await opened.list_sessions(tenant, b"", SESSIONS_READ)
            sessions += len(rows)
            newest_us = max([newest_us, *(row.update_us for row in rows)])
        overdue = await opened.due_sessions(now_us - int(OVERDUE_S * 1e6), SESSIONS_READ)
    finally:
        await opened.close()
    many = f"{sessions} or more sessions" if sessions >= SESSIONS_READ else ""
    many = many or count_of(sessions, "session")
    found = [Finding("store", "ok", f"{shown}, {many} of {count_of(len(tenants), 'tenant')}")]
    ahead_s = (newest_us - now_us) / 1e6
    if ahead_s > CLOCK_S_MAX:
        found.append(
            Finding(
                "clock",
                "problem",
                f"a session was changed {ahead_s:.0f} s from now: this clock is behind, or was set "
                "back",
                "set the clock (chronyc tracking, timedatectl); time-outs wait until it has caught "
                "up",
            )
        )
    if overdue:
        found.append(
            Finding(
                "time-outs",
                "warning",
                f"time-outs of {count_of(len(overdue), 'session')} fell due more than a minute ago",
                "a running server applies them at once; with --no-expiry-sweep they wait for the "
                "session's next call",
            )
        )
    return found


def certificates(settings: Settings) -> Iterator[Finding]:
    """Check the server's certificate: valid, with its key, and not about to expire."""
    file = settings.tls_certificate_file
    if not file:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(file, settings.tls_key_file)
    except (OSError, ssl.SSLError) as error:
        yield Finding(
            "tls",
            "problem",
            f"{file} and {settings.tls_key_file} are not a certificate and its key: {error}",
            "give the certificate with its chain and the key that belongs to it, both as PEM",
        )
        return
    until = certificate_end(file)
    days = (until - datetime.now(UTC)) // timedelta(days=1)
    said = f"{file} is valid until {until:%Y-%m-%d %H:%M} UTC, {days} days"
    if days < 0:
        yield Finding("tls", "problem", f"{file} expired on {until:%Y-%m-%d}", "renew it")
    elif days < CERTIFICATE_DAYS_SOON:
        yield Finding("tls", "warning", said, "renew it; the server reads the new file by itself")
    else:
        yield Finding("tls", "ok", said)


def certificate_end(file: str) -> datetime:
    """Return when the first certificate of a PEM file expires."""
    # The standard library decodes certificates only from files.
    decoded = ssl._ssl._test_decode_cert(file)  # type: ignore[attr-defined]  # noqa: SLF001
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(decoded["notAfter"]), UTC)


def ports(settings: Settings) -> Iterator[Finding]:
    """Check the addresses: free, or in use."""
    addresses = {"listen": settings.listen_address}
    if settings.admin_address is not None:
        addresses["admin_listen"] = settings.admin_address
    for name, address in addresses.items():
        try:
            check_is_free(address)
        except ListenFailed:
            yield Finding(name, "ok", f"{address} is in use; the next lines say by what")
        else:
            yield Finding(name, "ok", f"{address} is free")


def server(target: str, credentials: Credentials, timeout_s: float) -> Iterator[Finding]:
    """Ask the running server whether it is ready, and whether its release is the one here."""
    with credentials.channel(target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]
        try:
            for service, what in (("", "alive"), (READINESS, "ready")):
                asked = health_pb2.HealthCheckRequest(service=service)
                answer = stub.Check(asked, timeout=timeout_s)
                word = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
                if word == "SERVING":
                    yield Finding("server", "ok", f"{target} is {what}")
                else:
                    yield Finding(
                        "server",
                        "problem",
                        f"{target} says {word}: it cannot write to its store, or it is stopping",
                        "check the store and the server's log",
                    )
        except grpc.RpcError as error:
            code = error.code().name
            if code == "UNAVAILABLE":
                said = f"no server answers at {target}{proxy_hint(target)}"
                yield Finding("server", "warning", said, "start one")
            else:
                yield Finding("server", "problem", f"{target} answers {code}", _told(error))
            return
        yield from _operators_view(channel, target, credentials.metadata(), timeout_s)


def _operators_view(
    channel: grpc.Channel, target: str, metadata: tuple[tuple[str, str], ...], timeout_s: float
) -> Iterator[Finding]:
    """Check what only operators may see: release, registry, clock."""
    stub = AdminServiceStub(channel)
    try:
        reloaded, call = stub.ReloadAgents.with_call(
            admin_pb.ReloadAgentsRequest(validate_only=True), timeout=timeout_s, metadata=metadata
        )
        before_us = time.time_ns() // 1_000
        stats = stub.GetRoutingStats(
            admin_pb.GetRoutingStatsRequest(), timeout=timeout_s, metadata=metadata
        )
        after_us = time.time_ns() // 1_000
    except grpc.RpcError as error:
        level: Level = (
            "problem" if error.code() is grpc.StatusCode.FAILED_PRECONDITION else "warning"
        )
        yield Finding(
            "server",
            level,
            f"{target} does not answer operators' calls [{error.code().name}]: {error.details()}",
            "sign in with the scope admin (--token-file), or name the operators' listener "
            "(--target); the checks that follow are skipped",
        )
        return
    told = dict(call.trailing_metadata() or ()).get("agent-routing-release", "")
    release = told if isinstance(told, str) else told.decode("ascii", "replace")
    if release == __version__:
        yield Finding("release", "ok", f"{target} runs {release}, the same as installed here")
    else:
        yield Finding(
            "release",
            "warning",
            f"{target} runs {release or 'an older release'}, installed here is {__version__}",
            "use the commands of the server's release, or finish the roll-out",
        )
    if reloaded.registry_version != reloaded.previous_registry_version or (
        reloaded.added_agent_ids or reloaded.removed_agent_ids or reloaded.changed_agent_ids
    ):
        yield Finding(
            "registry",
            "warning",
            f"the file is at version {reloaded.registry_version}, the server uses "
            f"{reloaded.previous_registry_version}",
            "agent-routing reload",
        )
    else:
        yield Finding("registry", "ok", f"the server uses version {reloaded.registry_version}")
    # An earlier release does not know the call; the finding on the release says so.
    with suppress(grpc.RpcError):
        yield _stickiness(
            stub.GetStickiness(
                admin_pb.GetStickinessRequest(), timeout=timeout_s, metadata=metadata
            )
        )
    if not stats.HasField("as_of_time"):
        return
    # The figures are as of the server's own clock, unless its counting is behind.
    as_of_us = stats.as_of_time.ToMicroseconds()
    ahead_s = (as_of_us - after_us) / 1e6
    behind_s = (before_us - as_of_us) / 1e6
    if behind_s > CLOCK_S_MAX:
        yield Finding(
            "clock",
            "warning",
            f"the server's figures are {behind_s:.0f} s old: its clock is behind, or it "
            "counts later",
            "compare the clocks (chronyc tracking, timedatectl); ask again when it is quiet",
        )
    elif ahead_s > CLOCK_S_MAX:
        yield Finding(
            "clock",
            "problem",
            f"the server's clock is {ahead_s:.0f} s ahead of this one",
            "set the clocks of both machines (chronyc tracking, timedatectl)",
        )
    else:
        yield Finding("clock", "ok", "the server's clock agrees with this one")


def _stickiness(state: admin_pb.GetStickinessResponse) -> Finding:
    said = stickiness_text(state)
    if state.enabled and state.start_enabled:
        return Finding("stickiness", "ok", said)
    return Finding(
        "stickiness",
        "warning",
        said,
        "agent-routing stickiness on --reason …, if agents are to keep their conversations"
        if not state.enabled
        else "change the setting or the registry, so that both say the same",
    )


def _told(error: grpc.RpcError) -> str:
    return str(error.details() or "check the server's log")
