"""``agent-routing status``: the state of a session."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from agent_routing.v1.admin_service_pb2 import GetSessionAtResponse
from agent_routing.v1.dispatch_pb2 import Dispatch
from agent_routing.v1.routing_service_pb2 import StatusResponse
from routing_service.cli.answers import print_status
from routing_service.cli.failure import EXIT_USAGE, CommandFailed
from routing_service.cli.options import (
    OptionalSessionArgument,
    TaskOption,
    UserOption,
)
from routing_service.cli.screen import print_json
from routing_service.cli.server_call import CallOptions, calling, server_command

EPILOG: Final = """\b
Examples:
  agent-routing status chat-1
  agent-routing status --task 0198a6c0-5f3e-7a51-9c1d-2f6f0a4b7e11
  agent-routing status chat-1 --at 17
  agent-routing status chat-1 --json | jq -r .active_agent.agent_id
"""


@server_command()
def status(
    session: OptionalSessionArgument = "",
    *,
    task: TaskOption = "",
    at: Annotated[
        int,
        typer.Option(
            "--at",
            metavar="REVISION",
            min=0,
            show_default=False,
            help="The state after this change, for operators. Default: the present state.",
        ),
    ] = 0,
    user: UserOption = "",
    call: CallOptions,
) -> None:
    """Show a session: which agent has it, and what is pending."""
    if at and (task or user or not session):
        message = "--at needs the session, and takes neither --task nor --user"
        raise CommandFailed(message, exit_code=EXIT_USAGE)
    with calling(call) as client:
        answer = (
            client.get_session_at(session, at)
            if at
            else client.status(session, user_id=user, task_id=task)
        )
    if call.as_json:
        print_json(answer)
    else:
        print_status(_as_status(answer) if isinstance(answer, GetSessionAtResponse) else answer)


def _as_status(answer: GetSessionAtResponse) -> StatusResponse:
    """Return an earlier state in the form in which the present one is printed."""
    return StatusResponse(
        session_id=answer.session_id,
        revision=answer.revision,
        active_agent=answer.active_agent if answer.HasField("active_agent") else None,
        # The earlier state does not say whom the next message would have gone to.
        next_agent=answer.active_agent,
        locked=answer.locked,
        lock_expire_time=answer.lock_expire_time if answer.HasField("lock_expire_time") else None,
        return_stack=answer.return_stack,
        task=answer.task if answer.HasField("task") else None,
        open_requests=[
            Dispatch(
                request_id=turn.request_id,
                task_id=turn.task_id,
                agent=turn.agent,
                reason=turn.reason,
            )
            for turn in answer.open_turns
        ],
        registry_version=answer.registry_version,
        locale=answer.locale,
        channel=answer.channel,
        owner=answer.owner,
        create_time=answer.create_time,
        update_time=answer.update_time,
        turns_by_agent=answer.turns_by_agent,
    )
