"""``agent-routing status``: the state of a session."""

from __future__ import annotations

from typing import Final

from routing_service.cli.answers import print_status
from routing_service.cli.options import (
    TARGET_DEFAULT,
    TIMEOUT_DEFAULT_S,
    JsonOption,
    OptionalSessionArgument,
    TargetOption,
    TaskOption,
    TenantOption,
    TimeoutOption,
    UserOption,
)
from routing_service.cli.screen import print_json
from routing_service.cli.server_call import CallOptions, calling

EPILOG: Final = """\b
Examples:
  agent-routing status chat-1
  agent-routing status --task 0198a6c0-5f3e-7a51-9c1d-2f6f0a4b7e11
  agent-routing status chat-1 --json | jq -r .active_agent.agent_id
"""


def status(
    session: OptionalSessionArgument = "",
    *,
    task: TaskOption = "",
    user: UserOption = "",
    tenant: TenantOption = "",
    target: TargetOption = TARGET_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT_S,
    as_json: JsonOption = False,
) -> None:
    """Show a session: which agent has it, and what is pending."""
    with calling(
        CallOptions(target=target, tenant=tenant, timeout_s=timeout, as_json=as_json)
    ) as client:
        answer = client.status(session, user_id=user, task_id=task)
    if as_json:
        print_json(answer)
    else:
        print_status(answer)
