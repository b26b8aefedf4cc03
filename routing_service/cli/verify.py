"""``agent-routing verify``: check every session of a store against its own changes."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Final

import typer

from routing_service.cli.failure import CommandFailed
from routing_service.cli.options import StoreOption
from routing_service.cli.store_call import run_on_store
from routing_service.storage.open_store import open_store_to_read
from routing_service.storage.store_format import NEWEST_FORMAT
from routing_service.stored_data.verification import (
    QueueReport,
    Report,
    SessionReport,
    StoreReport,
    TenantReport,
    verify_store,
)

EPILOG: Final = """\b
For each session it checks that revisions have no gaps, that every request id
leads to its change, that the changes fold into the stored state, and that the
tasks match the changes; that what waits for an approval or in an inbox has its
entry there, and no entry is left over. Damaged sessions are listed and do not stop the rest.

\b
The hashes are the same for the same content on every engine:
  agent-routing verify --store sqlite:///var/routing.db > before
  agent-routing copy --from sqlite:///var/routing.db --to postgres://db/chat
  agent-routing verify --store postgres://db/chat | diff before -
Servers may keep writing; compare only stores that do not change.

\b
Exit codes: 0 no damage; 1 something is damaged, or the store cannot be read;
2 the URL is wrong.
"""


def verify(
    *,
    store: StoreOption,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only damaged sessions and the total.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON for each session and tenant.")
    ] = False,
) -> None:
    """Verify a store's data, and print hashes to compare."""
    total = run_on_store(_verify(store, quiet=quiet, as_json=as_json))
    problems = []
    if total.damaged:
        problems.append(
            f"{total.damaged} of {total.sessions} sessions are damaged; restore them from a "
            "backup, or keep them out of use"
        )
    if total.wrong_entries:
        problems.append(
            f"{total.wrong_entries} entries of queues do not fit their sessions; agent-routing "
            f"migrate --format {NEWEST_FORMAT} puts them right, no content is lost"
        )
    if problems:
        raise CommandFailed("; ".join(problems))


async def _verify(store: str, *, quiet: bool, as_json: bool) -> StoreReport:

    opened = await open_store_to_read(store)
    try:
        async for report in verify_store(opened):
            is_whole = isinstance(report, SessionReport | TenantReport) and not report.problems
            if not (quiet and is_whole):
                typer.echo(_as_json(report) if as_json else _as_text(report))
            if isinstance(report, StoreReport):
                return report
    finally:
        await opened.close()
    raise AssertionError("the report on the whole store comes last")


def _as_json(report: Report) -> str:

    fields = dataclasses.asdict(report)
    key = fields.pop("key", None)
    if key is not None:
        fields = {"tenant": key[0], "session_id": key[1], **fields}
    return json.dumps(fields, ensure_ascii=False)


def _as_text(report: Report) -> str:

    if isinstance(report, StoreReport):
        wrong = f", {report.wrong_entries} wrong entries" if report.wrong_entries else ""
        return (
            f"{report.sha256}  all: {report.tenants} tenants, {report.sessions} sessions, "
            f"{report.changes} changes, {report.tasks} tasks, {report.settings} settings, "
            f"{report.audit} audit entries, {report.damaged} damaged{wrong}"
        )
    if isinstance(report, QueueReport):
        return f"  wrong entry: {report.wrong}"
    if isinstance(report, SessionReport):
        name = f"{report.key}, revision {report.revision}"
    else:
        name = f"{report.tenant}, {report.settings} settings, {report.audit} audit entries"
    problems = (f"\n  damaged: {problem}" for problem in report.problems)
    return f"{report.sha256:64}  {name}{''.join(problems)}"
