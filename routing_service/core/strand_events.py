"""The events by which a session's tasks change places. Part of events.py, whose rule holds here."""

from __future__ import annotations

import msgspec


class TaskParked(
    msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="task_parked"
):
    """The task in the foreground waits from now on, with its agent, lock, stack and open turns.

    number: by which the user names it. cause: paused | message | command. From format 2 on, as the
    next two.
    """

    task_id: str
    number: int
    cause: str
    agent_id: str = ""


class TaskForegrounded(
    msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="task_foregrounded"
):
    """A parked task has the conversation again, as it was.

    agent_id: its active agent, or else the one that waits for an approval. cause: message | command
    | freed (nothing else was left in the foreground, and its agent waits for an answer).
    """

    task_id: str
    agent_id: str
    cause: str
    locked: bool = False


class StrandChosen(
    msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="strand_chosen"
):
    """The next events of the change are about a parked task; task_id "" = the foreground again.

    Internal: watchers get the events in between with parked_task_id.
    """

    task_id: str = ""
