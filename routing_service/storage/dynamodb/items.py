"""Items of the DynamoDB table, and the values that they hold.

An item that this module did not write is StoreCorrupt; the error names the item. No attribute has
one of DynamoDB's reserved names, so expressions can use them as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from routing_service.storage.dynamodb import keys
from routing_service.storage.store import (
    DAMAGED,
    Append,
    AuditEntry,
    Change,
    Head,
    SessionKey,
    SessionRow,
    StoreCorrupt,
    TaskRow,
    damaged_change,
    damaged_entry,
    damaged_row,
)

Item = dict[str, Any]
"""Attributes by name, each with its type: {"revision": {"N": "3"}}."""

HEAD_ATTRIBUTES: Final = "pk, sk, revision, user_id, create_us, update_us, due_us, gone"
"""The attributes for a line of the list, without the state."""


def text(value: str) -> Item:
    """Make a text attribute."""
    return {"S": value}


def integer(value: int) -> Item:
    """Make a number attribute. DynamoDB keeps 38 digits."""
    return {"N": str(value)}


def binary(value: bytes) -> Item:
    """Make a bytes attribute."""
    return {"B": value}


def key(pk: str, sk: str) -> Item:
    """Make an item's key."""
    return {"pk": text(pk), "sk": text(sk)}


def change_item(append: Append, write_id: str) -> Item:
    """Make the item of a change. write_id: unique for each call of append."""
    change = append.change
    return {
        **key(keys.session_pk(append.key), keys.change_sk(change.revision)),
        "revision": integer(change.revision),
        "time_us": integer(change.time_us),
        "method_name": text(change.method),
        "request_id": text(change.request_id),
        "actor": text(change.actor),
        "fingerprint": binary(change.fingerprint),
        "events": binary(change.events),
        "answer": binary(change.answer),
        "write_id": text(write_id),
    }


def to_change(item: Mapping[str, Any]) -> Change:
    """Read a change. Raises StoreCorrupt."""
    with _reading(item):
        return Change(
            revision=_integer(item, "revision"),
            time_us=_integer(item, "time_us"),
            method=_text(item, "method_name"),
            request_id=_text(item, "request_id"),
            actor=_text(item, "actor"),
            fingerprint=_binary(item, "fingerprint"),
            events=_binary(item, "events"),
            answer=_binary(item, "answer"),
        )


def to_write_id(item: Mapping[str, Any]) -> str:
    """Read which call of append wrote an item. Raises StoreCorrupt."""
    with _reading(item):
        return _text(item, "write_id")


def is_of_place(change: Mapping[str, Any], place: Mapping[str, Any]) -> bool:
    """Whether the append that took a place of the log wrote this change.

    One that has lost its write_id counts as written by it. Raises StoreCorrupt for a damaged place.
    """
    return "write_id" not in change or change["write_id"] == text(to_write_id(place))


def to_revision(item: Mapping[str, Any]) -> int:
    """Read the revision that a head, a request or a place of the log has. Raises StoreCorrupt."""
    with _reading(item):
        return _integer(item, "revision")


def is_gone(item: Mapping[str, Any]) -> bool:
    """Whether a head belongs to a session that is being removed."""
    return "gone" in item


def to_head(item: Mapping[str, Any]) -> Head | None:
    """Read a head; None = the session is being removed. A damaged one has a damaged state."""
    if is_gone(item):
        return None
    with suppress(StoreCorrupt), _reading(item):
        return Head(_integer(item, "revision"), _binary(item, "state_data"))
    return Head(0, DAMAGED)


def to_session_row(session: SessionKey, item: Mapping[str, Any]) -> SessionRow | None:
    """Read a head as a line of the list; None = it is being removed. Damage hides no other."""
    if is_gone(item):
        return None
    with suppress(StoreCorrupt), _reading(item):
        return SessionRow(
            key=session,
            user_id=_text(item, "user_id"),
            revision=_integer(item, "revision"),
            create_us=_integer(item, "create_us"),
            update_us=_integer(item, "update_us"),
            due_us=_integer(item, "due_us") if "due_us" in item else None,
        )
    return damaged_row(session)


def to_task(item: Mapping[str, Any]) -> TaskRow:
    """Read a task. Raises StoreCorrupt."""
    with _reading(item):
        return TaskRow(
            task_id=_text(item, "task_id"),
            session_id=_text(item, "session_id"),
            user_id=_text(item, "user_id"),
            status=_text(item, "task_status"),
            create_us=_integer(item, "create_us"),
            update_us=_integer(item, "update_us"),
            expire_us=_integer(item, "expire_us") if "expire_us" in item else None,
            data=_binary(item, "payload"),
        )


def to_session_id(item: Mapping[str, Any]) -> str:
    """Read the session that a task belongs to. Raises StoreCorrupt."""
    with _reading(item):
        return _text(item, "session_id")


def to_key(item: Mapping[str, Any]) -> SessionKey:
    """Read the session of a sequence's place. Raises StoreCorrupt."""
    with _reading(item):
        return SessionKey(_text(item, "tenant"), _text(item, "session_id"))


def to_time_us(item: Mapping[str, Any]) -> int:
    """Read the time of a place of the log. Raises StoreCorrupt."""
    with _reading(item):
        return _integer(item, "time_us")


def audit_item(entry: AuditEntry, position: int) -> Item:
    """Make the item of an audit entry."""
    session = SessionKey(entry.tenant, entry.session_id)
    return {
        **key(keys.session_pk(session), keys.audit_sk(position)),
        "tenant": text(entry.tenant),
        "session_id": text(entry.session_id),
        "time_us": integer(entry.time_us),
        "revision": integer(entry.revision),
        "kind": text(entry.kind),
        "request_id": text(entry.request_id),
        "user_id": text(entry.user_id),
        "payload": binary(entry.data),
    }


def to_listed_change(item: Mapping[str, Any], revision: int) -> Change:
    """Read a change that is one of many; a damaged one hides no other."""
    try:
        return to_change(item)
    except StoreCorrupt:
        return damaged_change(revision)


def to_audit(session: SessionKey, item: Mapping[str, Any]) -> AuditEntry:
    """Read an audit entry of a session; a damaged one hides no other."""
    with suppress(StoreCorrupt), _reading(item):
        return AuditEntry(
            time_us=_integer(item, "time_us"),
            tenant=_text(item, "tenant"),
            session_id=_text(item, "session_id"),
            revision=_integer(item, "revision"),
            kind=_text(item, "kind"),
            request_id=_text(item, "request_id"),
            user_id=_text(item, "user_id"),
            data=_binary(item, "payload"),
        )
    return damaged_entry(session)


def to_bytes(item: Mapping[str, Any], name: str) -> bytes:
    """Read one attribute's bytes. Raises StoreCorrupt."""
    with _reading(item):
        return _binary(item, name)


def to_integer(item: Mapping[str, Any], name: str) -> int:
    """Read one attribute's number. Raises StoreCorrupt."""
    with _reading(item):
        return _integer(item, name)


def to_text(item: Mapping[str, Any], name: str) -> str:
    """Read one attribute's text. Raises StoreCorrupt."""
    with _reading(item):
        return _text(item, name)


def without_repeats(tasks: Sequence[TaskRow]) -> list[TaskRow]:
    """Keep the last row of each task, as one transaction writes each item once."""
    return list({task.task_id: task for task in tasks}.values())


def _integer(item: Mapping[str, Any], name: str) -> int:
    return int(item[name]["N"])


def _text(item: Mapping[str, Any], name: str) -> str:
    value = item[name]["S"]
    if not isinstance(value, str):
        raise TypeError(name)
    return value


def _binary(item: Mapping[str, Any], name: str) -> bytes:
    return bytes(item[name]["B"])


@contextmanager
def _reading(item: Mapping[str, Any]) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        pk, sk = (item.get(name, {}).get("S", "?") for name in ("pk", "sk"))
        raise StoreCorrupt(
            f'the item "{pk}" "{sk}" cannot be read; restore it from a backup'
        ) from error
