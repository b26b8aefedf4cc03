"""``agent-routing sessions``: list the sessions of a tenant."""

from __future__ import annotations

import enum
from typing import Annotated, Final

import typer

from agent_routing.v1.admin_service_pb2 import ListSessionsResponse
from agent_routing.v1.task_pb2 import TaskStatus
from routing_service.cli.admin_answers import print_sessions
from routing_service.cli.admin_options import (
    MaxOption,
    OnlyChannelOption,
    OwnerOption,
    SinceOption,
    UntilOption,
    read_time,
)
from routing_service.cli.screen import print_json
from routing_service.cli.server_call import CallOptions, calling, server_command

SESSIONS_MAX_DEFAULT: Final = 100

PAGE_MAX: Final = 1_000
"""The service's largest page."""


class TaskStatusWord(enum.StrEnum):
    """The status of a session's task."""

    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


EPILOG: Final = """\b
Examples:
  agent-routing sessions
  agent-routing sessions --active billing --locked --since 2h
  agent-routing sessions --task paused --json | jq -r .sessions[].session_id
"""


@server_command()
def sessions(
    *,
    owner: OwnerOption = "",
    active: Annotated[
        str,
        typer.Option(
            "--active",
            metavar="AGENT",
            show_default=False,
            help="Only sessions where this agent is active.",
        ),
    ] = "",
    task: Annotated[
        TaskStatusWord | None,
        typer.Option(
            "--task", show_default=False, help="Only sessions whose task has this status."
        ),
    ] = None,
    channel: OnlyChannelOption = "",
    locked: Annotated[
        bool | None,
        typer.Option(
            "--locked/--unlocked",
            show_default=False,
            help="Only sessions whose active agent waits for an answer, or does not.",
        ),
    ] = None,
    since: SinceOption = "",
    until: UntilOption = "",
    most: MaxOption = SESSIONS_MAX_DEFAULT,
    call: CallOptions,
) -> None:
    """List sessions and the agent that has each.

    --since and --until compare with the time of a session's last change.
    """
    changed_from, changed_before = read_time("--since", since), read_time("--until", until)
    answer = ListSessionsResponse()
    with calling(call) as client:
        while True:
            page = client.list_sessions_page(
                owner=owner,
                active_agent_id=active,
                task_status=None if task is None else TaskStatus.Value(f"TASK_STATUS_{task.name}"),
                channel=channel,
                locked=locked,
                update_time_from=changed_from,
                update_time_before=changed_before,
                page_size=min(most - len(answer.sessions), PAGE_MAX),
                page_token=answer.next_page_token,
            )
            answer.sessions.extend(page.sessions)
            answer.next_page_token = page.next_page_token
            if not page.next_page_token or len(answer.sessions) >= most:
                break
    if call.as_json:
        print_json(answer)
    else:
        print_sessions(answer)
