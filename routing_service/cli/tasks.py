"""``agent-routing tasks``: a session's tasks, the newest first."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from agent_routing.v1.routing_service_pb2 import ListTasksResponse
from agent_routing.v1.task_pb2 import TaskStatus
from routing_service.cli.admin_answers import print_tasks
from routing_service.cli.options import (
    OptionalSessionArgument,
    TaskOption,
    UserOption,
)
from routing_service.cli.screen import print_json
from routing_service.cli.server_call import CallOptions, calling, server_command
from routing_service.cli.sessions import TaskStatusWord

EPILOG: Final = """\b
Examples:
  agent-routing tasks chat-1
  agent-routing tasks chat-1 --status paused --json
"""


@server_command()
def tasks(
    session: OptionalSessionArgument = "",
    *,
    task: TaskOption = "",
    status: Annotated[
        list[TaskStatusWord] | None,
        typer.Option(
            "--status", show_default=False, help="Only tasks with this status. May be repeated."
        ),
    ] = None,
    user: UserOption = "",
    call: CallOptions,
) -> None:
    """List a session's tasks and their status."""
    statuses = [TaskStatus.Value(f"TASK_STATUS_{each.name}") for each in status or ()]
    with calling(call) as client:
        found = list(client.list_tasks(session, user_id=user, task_id=task, statuses=statuses))
    if call.as_json:
        print_json(ListTasksResponse(tasks=found))
    else:
        print_tasks(found)
