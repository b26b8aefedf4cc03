"""What tasks and audit entries hold, as values. Content that cannot be read is StoreCorrupt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from routing_service.core.vocabulary import TaskStatus
from routing_service.storage.store import DAMAGED, AuditEntry, StoreCorrupt, TaskRow

KINDS: Final = frozenset(
    {"handoff_refused", "session_purged", "stickiness_switched", "operator_act"}
)
"""The kinds of audit entries that this release writes. Their data are JSON."""


def decode_audit(entry: AuditEntry) -> dict[str, Any]:
    """Return an audit entry's data; none of an entry that was blanked. Raises StoreCorrupt."""
    if not entry.data:
        return {}
    try:
        return msgspec.json.decode(entry.data, type=dict[str, Any])
    except msgspec.DecodeError as error:
        reason = "does not fit its checksum" if entry.data == DAMAGED else "cannot be read"
        what = f'audit entry "{entry.kind}"' if entry.kind else "audit entry of unknown kind"
        message = f'an {what} of session "{entry.session_id}" {reason}; restore it from a backup'
        raise StoreCorrupt(message) from error


def decode_metadata(row: TaskRow) -> Mapping[str, str]:
    """Return the metadata of a task row. Raises StoreCorrupt."""
    try:
        return msgspec.json.decode(row.data, type=dict[str, str]) if row.data else {}
    except (msgspec.DecodeError, TypeError) as error:
        raise _damaged(row) from error


def task_status(row: TaskRow) -> TaskStatus:
    """Return the status of a task row. Raises StoreCorrupt."""
    try:
        if row.data != DAMAGED:
            return TaskStatus(row.status)
    except ValueError as error:
        raise _damaged(row) from error
    raise _damaged(row)


def _damaged(row: TaskRow) -> StoreCorrupt:
    return StoreCorrupt(
        f'the stored task "{row.task_id}" of session "{row.session_id}" cannot be read; restore '
        "it from a backup"
    )
