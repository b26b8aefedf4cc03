"""A framework's own requests for approval, as the service decides them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

APPROVAL_STEP: Final = "approval"
"""The kind of the step that a paused turn reports. A resumed turn finds by it that the framework,
and not the program's own code, asked."""


@dataclass(frozen=True, slots=True)
class Approval:
    """What a run waits for: pass it to decide(), in this process or another.

    request_id: the request that waits. prompt: what to approve.
    """

    session_id: str
    task_id: str
    request_id: str
    agent_id: str
    prompt: str


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision. comment: of the person who decided; may be empty."""

    is_approved: bool
    comment: str

    @property
    def rejection(self) -> str:
        """The text for the model about a tool call that was rejected."""
        return f"rejected: {self.comment}" if self.comment else "rejected"


class ApprovedRunLost(RuntimeError):
    """A decided run that cannot continue: it was already taken up, or its state is not here."""


def describe_call(tool: str, arguments: object) -> str:
    """Return the prompt for a tool call: its name, and its arguments.

    arguments: a mapping, or the JSON text of one; other values are shown as they are.
    """
    given: Any = arguments
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            return f"{tool}: {given}"
    if not isinstance(given, Mapping):
        return f"{tool}: {given}" if given else tool
    shown = ", ".join(f"{key}: {_shown(value)}" for key, value in given.items())
    return f"{tool}: {shown}" if shown else tool


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
