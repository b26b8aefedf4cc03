"""SHA-256 over what is stored, the same on every engine.

Every field goes in with its kind and length, so that no two contents share a form. What an engine
adds of its own, such as row numbers and cursors, stays out.

The form is a promise: a hash that was noted with a backup is compared years later. What a newer
release adds goes in only where it is set, as a record of its own.
"""

from __future__ import annotations

import hashlib
from typing import Final

from routing_service.storage.store import AuditEntry, Change, SessionRow, TaskRow

FORM: Final = "agent-routing 1"

_Field = str | bytes | int | None


class CanonicalHash:
    """Takes records one after the other, and gives their hash."""

    def __init__(self, what: str) -> None:
        """Begin. what: the kind of the hashed data, which is part of the hash."""
        self._sha256 = hashlib.sha256()
        self.record(FORM, what)

    def record(self, *fields: _Field) -> None:
        """Take one record."""
        form = bytearray(b"R%d" % len(fields))
        for field in fields:
            match field:
                case None:
                    form += b"n"
                case int():
                    form += b"i%d;" % field
                case str():
                    data = field.encode()
                    form += b"t%d;" % len(data) + data
                case bytes():
                    form += b"b%d;" % len(field) + field
        self._sha256.update(form)

    def change(self, change: Change) -> None:
        """Take a change."""
        self.record(
            "change",
            change.revision,
            change.time_us,
            change.method,
            change.request_id,
            change.actor,
            change.fingerprint,
            change.events,
            change.answer,
        )

    def task(self, task: TaskRow) -> None:
        """Take a task."""
        self.record(
            "task",
            task.task_id,
            task.session_id,
            task.user_id,
            task.status,
            task.create_us,
            task.update_us,
            task.expire_us,
            task.data,
        )

    def head(self, row: SessionRow, state: bytes) -> None:
        """Take a session's head."""
        self.record(
            "head",
            row.key.tenant,
            row.key.session_id,
            row.user_id,
            row.revision,
            row.create_us,
            row.update_us,
            row.due_us,
            state,
        )

    def audit(self, entry: AuditEntry) -> None:
        """Take an audit entry."""
        self.record(
            "audit",
            entry.time_us,
            entry.tenant,
            entry.session_id,
            entry.revision,
            entry.kind,
            entry.request_id,
            entry.user_id,
            entry.data,
        )

    def setting(self, tenant: str, name: str, value: bytes) -> None:
        """Take a setting."""
        self.record("setting", tenant, name, value)

    def hexdigest(self) -> str:
        """Return the hash of what was taken so far: 64 hexadecimal digits."""
        return self._sha256.hexdigest()
