"""The texts, numbers and sizes that every engine refuses before it writes.

A value that one engine could not hold is refused by all, and a value that no driver can bind never
reaches a group of other callers' writes. AppendRefused or TooLarge names the field.
"""

from __future__ import annotations

from typing import Final

from routing_service.storage.queue_entries import APPEND_ENTRIES_MAX, LeaseWish, QueueEntry
from routing_service.storage.store import (
    APPEND_TASKS_MAX,
    CHANGE_BYTES_MAX,
    INT_MAX,
    PAGE_ROWS_MAX,
    STATE_BYTES_MAX,
    TASK_BYTES_MAX,
    Append,
    AppendRefused,
    AuditEntry,
    TooLarge,
)

TEXT_BYTES_MAX: Final = 512
"""The longest id, name or status. Two of them and a revision fit into DynamoDB's sort key (1 KB),
and into a third of PostgreSQL's largest index entry (2.7 KB)."""

SETTING_BYTES_MAX: Final = 64 * 1024
"""The largest setting: settings are switches and small documents, read on the way of a request."""


def check_append(append: Append) -> None:
    """Refuse an append that some engine could not store; assert what only a bug of ours can break.

    The asserts are here rather than in Append, of which each turn makes two.
    """
    key, change = append.key, append.change
    assert 0 <= append.base_revision == change.revision - 1, (change, append.base_revision)
    tenant, session_id = key
    texts = f"{tenant}{session_id}{change.method}{change.request_id}{change.actor}{append.user_id}"
    # The usual case: the texts are valid together, so each one is.
    are_plain = texts.isascii() and len(texts) <= TEXT_BYTES_MAX and "\0" not in texts
    if not (are_plain and tenant and session_id):
        _check_name("tenant", tenant)
        _check_name("session id", session_id)
        _check_text("method", change.method)
        _check_text("request id", change.request_id)
        _check_text("actor", change.actor)
        _check_text("user id", append.user_id)
    due_us = append.due_us
    # One check of all, and only if it fails a second one that names the field.
    # INT_MAX is all ones: the numbers joined bit by bit are in its bounds if each one is.
    fits = (
        0 <= change.revision | change.time_us | (due_us or 0) <= INT_MAX
        and change.size_bytes <= CHANGE_BYTES_MAX
        and len(append.state) <= STATE_BYTES_MAX
    )
    if not fits:
        _check_number("revision", change.revision)
        _check_number("time_us", change.time_us)
        _check_size("change", change.size_bytes, CHANGE_BYTES_MAX)
        if due_us is not None:
            _check_number("due_us", due_us)
        _check_size("state", len(append.state), STATE_BYTES_MAX)
    if append.tasks:
        assert len(append.tasks) <= APPEND_TASKS_MAX, len(append.tasks)
        assert all(task.session_id == session_id for task in append.tasks), append.tasks
    for task in append.tasks:
        _check_name("task id", task.task_id)
        _check_text("task's user id", task.user_id)
        _check_text("task's status", task.status)
        _check_number("task's create_us", task.create_us)
        _check_number("task's update_us", task.update_us)
        if task.expire_us is not None:
            _check_number("task's expire_us", task.expire_us)
        _check_size("task", len(task.data), TASK_BYTES_MAX)
    if append.inbox_put or append.inbox_drop:
        entries = (*append.inbox_put, *append.inbox_drop)
        assert len(entries) <= APPEND_ENTRIES_MAX, len(entries)
        assert all(entry.session_id == session_id for entry in entries), entries
        assert len(set(entries)) == len(entries), entries
        check_entries(tenant, entries)


def check_entries(tenant: str, entries: tuple[QueueEntry, ...]) -> None:
    """Refuse entries of queues that some engine could not store."""
    _check_name("tenant", tenant)
    for entry in entries:
        _check_name("queue's name", entry.queue)
        _check_name("entry's session id", entry.session_id)
        _check_name("entry's request id", entry.request_id)
        _check_number("entry's place_us", entry.place_us)


def check_wish(wish: LeaseWish) -> None:
    """Refuse a lease on an entry that some engine could not store."""
    _check_name("lease's token", wish.token)
    _check_text("lease's worker", wish.worker)
    _check_number("lease_us", wish.lease_us)


def check_audit(entry: AuditEntry) -> None:
    """Refuse an audit entry that some engine could not store."""
    _check_name("tenant", entry.tenant)
    _check_name("session id", entry.session_id)
    _check_name("audit kind", entry.kind)
    _check_text("request id", entry.request_id)
    _check_text("user id", entry.user_id)
    _check_number("revision", entry.revision)
    _check_number("time_us", entry.time_us)
    _check_size("audit entry", len(entry.data), CHANGE_BYTES_MAX)


def check_setting(tenant: str, name: str, value: bytes) -> None:
    """Refuse a setting that some engine could not store."""
    _check_name("tenant", tenant)
    _check_name("setting's name", name)
    _check_size("setting", len(value), SETTING_BYTES_MAX)


def check_lease(name: str, holder: str, now_us: int, until_us: int) -> None:
    """Refuse a lease that some engine could not store."""
    _check_name("lease's name", name)
    _check_name("lease's holder", holder)
    _check_number("now_us", now_us)
    _check_number("until_us", until_us)


def check_blank(blank: bytes) -> None:
    """Refuse a blank that could not replace a change's events."""
    _check_size("blank", len(blank), CHANGE_BYTES_MAX)


def check_limit(limit: int) -> None:
    """Assert that a page's limit is in bounds; callers of the service were checked before."""
    assert 1 <= limit <= PAGE_ROWS_MAX, limit


def _check_name(what: str, value: str) -> None:
    if not value:
        raise AppendRefused(f"the {what} is empty; a stored row needs one")
    _check_text(what, value)


def _check_text(what: str, value: str) -> None:
    if value.isascii():
        size_bytes = len(value)
    else:
        try:
            size_bytes = len(value.encode())
        except UnicodeEncodeError as error:
            raise AppendRefused(f"the {what} {value!r} is not valid Unicode text") from error
    if "\0" in value:
        # PostgreSQL cannot store it.
        raise AppendRefused(f"the {what} {value!r} has a NUL character")
    _check_size(what, size_bytes, TEXT_BYTES_MAX)


def _check_number(what: str, value: int) -> None:
    if not 0 <= value <= INT_MAX:
        raise AppendRefused(f"the {what} is {value}; it must be from 0 to {INT_MAX}")


def _check_size(what: str, size_bytes: int, bytes_max: int) -> None:
    if size_bytes > bytes_max:
        raise TooLarge(what, size_bytes, bytes_max)
