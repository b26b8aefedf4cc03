"""``agent-routing copy``: copy everything from one store to another."""

from __future__ import annotations

import json
import sys
from contextlib import AsyncExitStack
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from routing_service.cli.failure import EXIT_USAGE, CommandFailed
from routing_service.cli.options import PlainJsonOption
from routing_service.cli.store_call import run_on_store
from routing_service.storage.open_store import open_store, open_store_to_read, without_secrets
from routing_service.stored_data.store_copy import Copied, copy_store, count_sessions

EPILOG: Final = """\b
Copies sessions with all their changes, request ids and answers, tasks, the audit
and the settings, unchanged, between any two engines. The target's tables are
created if missing. No server may use the target; servers may keep using the
source. Run it again to resume an interrupted copy, or to copy what has changed
since:

\b
  agent-routing copy --from sqlite:///var/routing.db --to postgres://db/chat
  (stop the servers)
  agent-routing copy --from sqlite:///var/routing.db --to postgres://db/chat
  (start them with --store postgres://db/chat)

\b
A session that differs in the target is reported and left alone. Compare both
stores afterwards with agent-routing verify.

\b
Exit codes: 0 everything is copied; 1 something is not; 2 a URL is wrong.
"""

REFUSED_SHOWN_MAX: Final = 20
"""Sessions listed as text; --json lists all."""


def copy(
    *,
    source: Annotated[
        str,
        typer.Option("--from", metavar="URL", show_default=False, help="The store to read."),
    ],
    target: Annotated[
        str,
        typer.Option("--to", metavar="URL", show_default=False, help="The store to write."),
    ],
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="Check every session again, also those that an earlier copy has done."
        ),
    ] = False,
    as_json: PlainJsonOption = False,
) -> None:
    """Copy one store into another; run it again to resume."""
    if source == target:
        raise CommandFailed("--from and --to are the same store; name two", exit_code=EXIT_USAGE)
    if target.partition(":")[0].lower() == "memory":
        raise CommandFailed(
            "a memory: store would be lost when this command ends; copy to another store",
            exit_code=EXIT_USAGE,
        )
    copied = run_on_store(_copy(source, target, again=again))
    if as_json:
        refused = [
            {"tenant": key.tenant, "session_id": key.session_id, "reason": reason}
            for key, reason in sorted(copied.refused.items())
        ]
        counts = {name: getattr(copied, name) for name in _COUNTS}
        typer.echo(json.dumps({**counts, "refused": refused}, ensure_ascii=False))
    else:
        typer.echo(
            f"{copied.sessions} sessions checked, {copied.written} written: {copied.changes} "
            f"changes, {copied.tasks} tasks, {copied.blanked} changes erased; {copied.audit} "
            f"audit entries, {copied.settings} settings"
        )
    if copied.refused:
        reasons = [reason for _, reason in sorted(copied.refused.items())]
        shown = reasons[:REFUSED_SHOWN_MAX]
        if len(reasons) > len(shown):
            shown.append(f"and {len(reasons) - len(shown)} more sessions; --json lists all")
        raise CommandFailed("\n".join(shown))


_COUNTS: Final = ("sessions", "written", "changes", "tasks", "blanked", "audit", "settings")


async def _copy(source_url: str, target_url: str, *, again: bool) -> Copied:

    async with AsyncExitStack() as opened:
        source = await open_store_to_read(source_url)
        opened.push_async_callback(source.close)
        target = await open_store(target_url)
        opened.push_async_callback(target.close)
        name = without_secrets(source_url)
        if not sys.stderr.isatty():
            return await copy_store(source, target, source_name=name, again=again)

        columns = (
            TextColumn("sessions"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        total = await count_sessions(source)
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("copy", total=total)
            return await copy_store(
                source,
                target,
                source_name=name,
                again=again,
                on_progress=lambda copied: bar.update(task, completed=copied.sessions),
            )
