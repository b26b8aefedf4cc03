"""``agent-routing audit``: prove the audit of a store, and export it for a SIEM."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from agent_routing.v1.admin_service_pb2 import AuditRecord
from routing_service.cli.admin_options import SinceOption, UntilOption, read_time
from routing_service.cli.failure import EXIT_USAGE, CommandFailed
from routing_service.cli.options import (
    StoreOption,
)
from routing_service.cli.screen import json_line
from routing_service.cli.server_call import CallOptions, calling, server_command
from routing_service.cli.store_call import run_on_store
from routing_service.storage.audit_seals import ALL_TENANTS
from routing_service.storage.checked_store import Store
from routing_service.storage.open_store import open_store_to_read
from routing_service.stored_data.audit_verification import TenantAudit, verify_audit
from routing_service.stored_data.noted_seals import NotASeal, NotedSeal, noted_seal, seals_in
from routing_service.stored_data.whole_session import tenants_of

PAGE_RECORDS: Final = 1_000
"""The service's largest page."""

OVERLAP_US: Final = 300 * 10**6
"""How far before the last record an export that goes on begins: records come approximately in the
order of their times. Those that it has written already are left out by their ids."""

_SEAL: Final = re.compile(r"\d+:.*")

VERIFY_EPILOG: Final = """\b
Every change of a session carries the hash of the one before, and every entry of
a tenant's audit that of another one. About once a minute the server seals the
last hashes. An erasure or a purge leaves both whole.

\b
Who can write to the store could replace all records and seals together, or put
back an earlier copy. So keep seals elsewhere: the server logs each one
(audit_sealed), audit export writes them, and audit_seals_file notes the last.
--expect says which of them the store lacks.

\b
Exit codes: 0 no break; 1 a break, or the store cannot be read; 2 the URL is wrong.
"""

EXPORT_EPILOG: Final = """\b
Examples:
  agent-routing audit export --since 1d --output audit.jsonl
  agent-routing audit export --state siem.json >> audit.jsonl
With --state each run writes what is new since the last one.
"""

EPILOG: Final = """\b
Examples:
  agent-routing audit verify --store sqlite:///var/routing.db --expect audit.jsonl
  agent-routing audit export --state siem.json >> audit.jsonl
"""

audit: Final = typer.Typer(
    name="audit",
    help="Prove the audit of a store, or export it for a SIEM.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@audit.command("verify", epilog=VERIFY_EPILOG)
def verify(
    *,
    store: StoreOption,
    tenant: Annotated[
        str, typer.Option("--tenant", metavar="NAME", help="Only this tenant. Default: all.")
    ] = "",
    expect: Annotated[
        list[str] | None,
        typer.Option(
            "--expect",
            metavar="SEAL:HASH|FILE",
            show_default=False,
            help="A seal that the store must have, or a file with seals: an export, a log in JSON, "
            "the file of audit_seals_file. May be repeated.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON for each tenant.")
    ] = False,
) -> None:
    """Prove that no record of a store's audit was changed, and print up to when it is sealed."""
    broken = run_on_store(_verify(store, tenant, expect or [], as_json=as_json))
    if broken:
        raise CommandFailed(f"the audit of {broken} tenants is broken")


async def _verify(store: str, tenant: str, expect: Sequence[str], *, as_json: bool) -> int:
    opened = await open_store_to_read(store)
    broken = 0
    try:
        expected: list[NotedSeal] = []
        for given in expect:
            expected += await _expected(opened, tenant, given)
        async for found in verify_audit(opened, tenant, expected):
            broken += bool(found.problems)
            typer.echo(json.dumps(dataclasses.asdict(found)) if as_json else _as_text(found))
    finally:
        await opened.close()
    return broken


async def _expected(store: Store, tenant: str, given: str) -> list[NotedSeal]:
    """Return the seals that a value of --expect names. Raises CommandFailed."""
    try:
        if not _SEAL.fullmatch(given):
            seals = await asyncio.to_thread(_seals_of, Path(given))
            if not seals:
                raise CommandFailed(
                    f'"{given}" has no seal; export it again, or name another file',
                    exit_code=EXIT_USAGE,
                )
            return seals
        if not tenant:
            names = [name async for name in tenants_of(store) if name != ALL_TENANTS]
            if len(names) != 1:
                raise CommandFailed(
                    f"--expect {given} is a seal of one tenant, and the store has {len(names)}; "
                    "name it by --tenant",
                    exit_code=EXIT_USAGE,
                )
            tenant = names[0]
        return [noted_seal(tenant, given)]
    except OSError as error:
        why = error.strerror or error
        raise CommandFailed(f'cannot read "{given}": {why}', exit_code=EXIT_USAGE) from error
    except NotASeal as error:
        raise CommandFailed(f'--expect "{given}": {error}', exit_code=EXIT_USAGE) from error


def _seals_of(file: Path) -> list[NotedSeal]:
    with file.open("rb") as lines:
        return seals_in(lines)


def _as_text(found: TenantAudit) -> str:
    how = "BROKEN" if found.problems else "whole"
    in_chains = f"{found.changes} changes and {found.entries} entries in chains"
    lines = [f"tenant {found.tenant}: {how}, {found.sessions} sessions, {in_chains}"]
    if found.unchained:
        lines.append(f"  {found.unchained} changes of earlier releases, which have no chain")
    if found.seals:
        until = datetime.fromtimestamp(found.sealed_until_us / 1e6, UTC)
        lines.append(
            f"  sealed until {until:%Y-%m-%dT%H:%M:%SZ} by seal {found.last_seal}, hash "
            f"{found.last_seal_hash}; {found.unsealed} sessions changed since"
        )
    else:
        lines.append("  not sealed yet")
    lines += [f"  broken: {problem}" for problem in found.problems]
    if found.problems_left_out:
        lines.append(f"  and {found.problems_left_out} more")
    return "\n".join(lines)


@audit.command("export", epilog=EXPORT_EPILOG)
@server_command(json=None)
def export(
    *,
    since: SinceOption = "",
    until: UntilOption = "",
    state: Annotated[
        Path | None,
        typer.Option(
            "--state",
            metavar="FILE",
            show_default=False,
            help="Go on where the last run with this file ended, and note the end in it.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            show_default=False,
            help="Append to this file. Default: to stdout.",
        ),
    ] = None,
    call: CallOptions,
) -> None:
    """Write the audit of a tenant as JSON lines, a record a line, the oldest first."""
    if state is not None and since:
        raise CommandFailed("--state knows since when; leave --since out", exit_code=EXIT_USAGE)
    place = _Place.read(state)
    happened_from = place.start if state is not None else read_time("--since", since)
    happened_before = read_time("--until", until)
    written = 0
    lines = sys.stdout if output is None else _private(output)
    try:
        with calling(call) as client:
            token = ""
            while True:
                page = client.list_events_page(
                    event_time_from=happened_from,
                    event_time_before=happened_before,
                    oldest_first=True,
                    page_size=PAGE_RECORDS,
                    page_token=token,
                )
                for record in page.records:
                    if place.is_new(record):
                        lines.write(f"{json_line(record)}\n")
                        written += 1
                token = page.next_page_token
                if not token:
                    break
        lines.flush()
        if output is not None:
            os.fsync(lines.fileno())
    finally:
        if output is not None:
            lines.close()
    if state is not None:
        # After the records are written: a run that fails is repeated, and nothing is lost.
        place.write(state)
    sys.stderr.write(f"{written} records\n")


def _private(output: Path) -> Any:
    """Open a file to append to; one that is made is readable by its owner alone."""
    try:
        opened = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise CommandFailed(f'cannot write "{output}": {error.strerror or error}') from error
    return os.fdopen(opened, "a", encoding="utf-8")


class _Place:
    """Where an export goes on: the time of its latest record, and the ids near that time."""

    def __init__(self, latest_us: int, seen: dict[str, int]) -> None:
        self._latest_us = latest_us
        self._seen = seen
        self._met: Counter[str] = Counter()

    @classmethod
    def read(cls, state: Path | None) -> _Place:
        """Read the place of the last run; the beginning if there was none."""
        if state is None or not state.exists():
            return cls(0, {})
        try:
            data = json.loads(state.read_text(encoding="utf-8"))
            return cls(int(data["latest_us"]), {str(k): int(v) for k, v in data["seen"].items()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CommandFailed(
                f'"{state}" is not the state of an export; name another file', exit_code=EXIT_USAGE
            ) from error

    @property
    def start(self) -> datetime | None:
        """From when to ask; None = from the beginning."""
        from_us = self._latest_us - OVERLAP_US
        return datetime.fromtimestamp(from_us / 1e6, UTC) if from_us > 0 else None

    def is_new(self, record: AuditRecord) -> bool:
        """Say whether a record was not written yet, and note it.

        Acts of the same microsecond have the same id, and so have entries that are damaged in their
        form: they are told apart by their order, which stays.
        """
        event = record.event
        name = f"{event.session_id} {event.event_id}"
        self._met[name] += 1
        if self._met[name] > 1:
            name = f"{name} {self._met[name]}"
        time_us = event.event_time.ToMicroseconds()
        self._latest_us = max(self._latest_us, time_us)
        if name in self._seen and self._seen[name] == time_us:
            return False
        self._seen[name] = time_us
        return True

    def write(self, state: Path) -> None:
        """Store the place, in place of the one before."""
        # Without a time (0) a record is in every run's answer.
        near = {k: v for k, v in self._seen.items() if v >= self._latest_us - OVERLAP_US or not v}
        new = state.with_name(f".{state.name}.{os.getpid()}")
        new.write_text(json.dumps({"latest_us": self._latest_us, "seen": near}), encoding="utf-8")
        new.replace(state)
