"""One session folded again from its changes, and where the result differs from what is stored.

A stored state and the tasks' rows follow from the changes; where they differ one of them is
damaged, and this says which value and where.

An erased session's changes are blank, and so is what they would say about its tasks. The change
that erased it starts the state again, so the fold is right from there on.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from routing_service.core import events as ev
from routing_service.core.evolve import apply_change
from routing_service.core.session import SessionState, Task
from routing_service.core.strand_fold import open_or_last
from routing_service.core.vocabulary import TaskStatus
from routing_service.storage.event_codec import decode_change, decode_state
from routing_service.storage.store import (
    Change,
    Head,
    SchemaTooNew,
    SessionKey,
    SessionRow,
    StoreCorrupt,
    TaskRow,
)

PROBLEMS_MAX: Final = 10
"""Problems reported for one session: the first ones cause the others."""


class SessionReplay:
    """Folds one session's changes, in the order of their revisions."""

    def __init__(self, key: SessionKey) -> None:
        """Begin before the first change."""
        self.key = key
        self.revision = 0
        self.problems: list[str] = []
        self.problems_left_out = 0
        self._state: SessionState | None = None
        self._first_us: int | None = None
        self._last_us = 0
        self._is_readable = True
        self._is_blanked = False
        self._statuses: dict[str, TaskStatus] = {}

    def problem(self, text: str) -> None:
        """Record a problem."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(text)
        else:
            self.problems_left_out += 1

    def apply(self, change: Change) -> None:
        """Fold the next change."""
        if change.revision != self.revision + 1:
            self.problem(f"revision {self.revision} is followed by {change.revision}")
        self.revision = change.revision
        self._first_us = change.time_us if self._first_us is None else self._first_us
        self._last_us = change.time_us
        if not self._is_readable:
            return
        try:
            stored = decode_change(change.events)
        except (StoreCorrupt, SchemaTooNew) as error:
            self._is_readable = False
            self.problem(f"revision {change.revision}: {error}")
            return
        self._is_blanked = self._is_blanked or not stored.events
        try:
            state = self._folded(change, stored.events, stored.registry_version)
        except Exception as error:  # noqa: BLE001 - damaged events may raise anything in the fold
            # Erasing starts at the first change. A crash leaves it half done until it is repeated,
            # and the changes that are left cannot be folded without the erased ones.
            if not self._is_blanked:
                self._is_readable = False
                kind = type(error).__name__
                self.problem(f"revision {change.revision}: its events cannot be applied ({kind})")
                return
            state = self._folded(change, [], stored.registry_version)
        self._state = state
        self._note_tasks(state, stored.events)

    def _folded(
        self, change: Change, events: list[ev.Event], registry_version: str
    ) -> SessionState:
        return apply_change(
            self._state,
            events,
            session_id=self.key.session_id,
            now_us=change.time_us,
            registry_version=registry_version,
        )

    def _note_tasks(self, state: SessionState, events: list[ev.Event]) -> None:
        for event in events:
            match event:
                case ev.TaskCreated():
                    self._statuses[event.task_id] = TaskStatus.RUNNING
                case ev.TaskCompleted():
                    self._statuses[event.task_id] = TaskStatus.COMPLETED
                case ev.TaskFailed():
                    self._statuses[event.task_id] = TaskStatus.FAILED
                case ev.TaskCancelled():
                    self._statuses[event.task_id] = TaskStatus.CANCELLED
                case _:
                    pass
        for task in open_or_last(state):
            self._statuses[task.task_id] = task.status

    def compare_head(self, row: SessionRow, head: Head) -> None:
        """Compare the stored head with the fold of all changes."""
        if head.revision != self.revision:
            self.problem(f"the head is at revision {head.revision}, the changes at {self.revision}")
        times = (row.create_us, row.update_us)
        if self._first_us is not None and times != (self._first_us, self._last_us):
            self.problem(
                f"the session's times are {times[0]} and {times[1]}, "
                f"those of its changes {self._first_us} and {self._last_us}"
            )
        try:
            state = decode_state(head.state)
        except (StoreCorrupt, SchemaTooNew) as error:
            self.problem(f"state: {error}")
            return
        if not self._is_readable or self._state is None:
            return
        for name in SessionState.__struct_fields__:
            stored, folded = getattr(state, name), getattr(self._state, name)
            if stored != folded and not (name == "task" and _is_older_form(stored, folded)):
                self.problem(f"the stored state's {name} is not what the changes make it")
        if row.user_id != self._state.owner:
            self.problem("the session's user is not the one that the changes name")

    def compare_task(self, task: TaskRow) -> None:
        """Compare one stored task with the events. Each task is given once."""
        if task.session_id != self.key.session_id:
            self.problem(f"task {task.task_id} says that it is of session {task.session_id}")
        if not self._is_readable:
            return
        expected = self._statuses.pop(task.task_id, None)
        if expected is None:
            if not self._is_blanked:
                self.problem(f"task {task.task_id} is stored and no change made it")
            return
        if task.status != expected.value:
            self.problem(
                f"task {task.task_id} is stored as {task.status}, by the changes it is "
                f"{expected.value}"
            )
        present = open_or_last(self._state) if self._state else []
        current = next((each for each in present if each.task_id == task.task_id), None)
        if current is None:
            return
        if (task.create_us, task.expire_us) != (current.create_us, current.expire_us):
            self.problem(f"task {task.task_id} has other times than the state has of it")

    def expected_tasks(self) -> frozenset[str]:
        """Return the tasks that changes made and ``compare_task`` was not given yet."""
        return frozenset(self._statuses) if self._is_readable else frozenset()


def _is_older_form(stored: Task | None, folded: Task | None) -> bool:
    """Say whether a task is as releases before 0.2.0 fold it: only messages and its status count.

    Those leave its update time where an answer or a handoff moves it today.
    """
    if stored is None or folded is None or stored.update_us > folded.update_us:
        return False
    return replace(stored, update_us=folded.update_us) == folded
