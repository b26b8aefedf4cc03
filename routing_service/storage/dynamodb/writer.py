"""The append of the DynamoDB store: one transaction, and what its refusal means.

A change is one transaction, so it is stored whole or not at all. What a refusal means is read from
the store, at one moment, and not guessed from which condition failed. A change that is stored with
this call's own mark was stored by an attempt of this call whose answer was lost.

The actions: the head, if it is at the base revision; the change; the place in the log, if it is not
sealed; the request id, if it is new; with the first change, the session in its tenant's list; and
each task, if it is new or this session's, with its place in the session's list if it is new; and
each entry of a queue that is put or dropped. At most 5 + 2 x APPEND_TASKS_MAX + APPEND_ENTRIES_MAX
= 41 of the 100 that DynamoDB takes, and 2.8 of its 4 MB.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog

from routing_service.ids import new_uuid7
from routing_service.storage.dynamodb import keys
from routing_service.storage.dynamodb.api import Api
from routing_service.storage.dynamodb.errors import TransactionRefused
from routing_service.storage.dynamodb.items import (
    Item,
    audit_item,
    binary,
    change_item,
    integer,
    is_gone,
    key,
    text,
    to_change,
    to_integer,
    to_revision,
    to_session_id,
    to_write_id,
    without_repeats,
)
from routing_service.storage.dynamodb.queues import entry_actions
from routing_service.storage.dynamodb.sequence import Sequences
from routing_service.storage.store import (
    Append,
    AuditEntry,
    RequestSeen,
    RevisionConflict,
    SessionKey,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
    TaskRow,
    TaskTaken,
)
from routing_service.storage.write_figures import WriteFigures

ATTEMPTS_MAX: Final = 6
"""Transactions of one append that find its place in the log closed, a task other than expected, or
a removal to be finished. Each is a matter of one race; many in a row mean a store far too slow."""

_log = structlog.get_logger(__name__)


class Writer:
    """Writes appends and audit entries to one table."""

    def __init__(
        self,
        api: Api,
        sequences: Sequences,
        *,
        finish_removal: Callable[[SessionKey], Awaitable[None]],
        settle_every: int,
    ) -> None:
        """Write nothing yet.

        finish_removal: removes the rest of a session. settle_every: places after which a sequence
        is settled.
        """
        self.figures = WriteFigures()
        self._api = api
        self._sequences = sequences
        self._finish_removal = finish_removal
        self._settle_every = settle_every

    async def append(self, append: Append) -> None:
        """Write one append. See Store.append for what it raises."""
        write_id = str(new_uuid7())
        tasks = without_repeats(append.tasks)
        # A guess that the conditions check: a task that was never updated is new.
        new = {
            task.task_id
            for task in tasks
            if append.base_revision == 0 or task.create_us == task.update_us
        }
        name = keys.log_name(append.key)
        for _ in range(ATTEMPTS_MAX):
            place = await self._sequences.give(name)
            actions = self._actions(append, write_id, tasks, new=new, at=(name, place))
            begun_s = time.perf_counter()
            try:
                await self._api.transact(actions, str(new_uuid7()))
            except TransactionRefused:
                # Close the empty place now; readers would close it only after a while.
                await self._sequences.seal(name, [place])
            else:
                if place % self._settle_every == 0:
                    self._sequences.settle_soon(name)
                return
            finally:
                self.figures.count(1, time.perf_counter() - begun_s)
            explained = await self._explain(append, write_id, tasks)
            if explained is None:
                return
            new = explained
        _log.warning("store_append_given_up", attempts=ATTEMPTS_MAX)
        raise StoreUnavailable("other writes are in the same place of the store; try again")

    async def append_audit(self, entry: AuditEntry) -> None:
        """Write one audit entry: itself in its session, and its place in its tenant's audit."""
        name = keys.audit_name(entry.tenant)
        for _ in range(ATTEMPTS_MAX):
            place = await self._sequences.give(name)
            of = {"tenant": text(entry.tenant), "session_id": text(entry.session_id)}
            actions = [
                self._sequences.place_action(name, place, of),
                {"Put": {"Item": audit_item(entry, place)}},
            ]
            try:
                await self._api.transact(actions, str(new_uuid7()))
            except TransactionRefused:
                # A reader closed the place, or an attempt whose answer was lost took it.
                item = await self._api.get(
                    key(keys.sequence_pk(name), keys.number(place)), "sealed"
                )
                if item is None or "sealed" in item:
                    continue
            if place % self._settle_every == 0:
                self._sequences.settle_soon(name)
            return
        raise StoreUnavailable("the store was too slow to take an audit entry; try again")

    def _actions(
        self,
        append: Append,
        write_id: str,
        tasks: list[TaskRow],
        *,
        new: set[str],
        at: tuple[str, int],
    ) -> list[dict[str, Any]]:
        session, change = append.key, append.change
        pk = keys.session_pk(session)
        of = {
            "tenant": text(session.tenant),
            "session_id": text(session.session_id),
            "revision": integer(change.revision),
            "time_us": integer(change.time_us),
            # Distinguishes the change from one of a later session of the same name.
            "write_id": text(write_id),
        }
        actions = [
            _head_action(append),
            {"Put": _new(change_item(append, write_id))},
            self._sequences.place_action(*at, of),
        ]
        if change.request_id:
            request = {
                **key(pk, keys.request_sk(change.method, change.request_id, change.actor)),
                "revision": integer(change.revision),
                "write_id": text(write_id),
            }
            actions.append({"Put": _new(request)})
        if append.base_revision == 0:
            actions.append({"Put": {"Item": key(keys.list_pk(session), session.session_id)}})
        for task in tasks:
            is_new = task.task_id in new
            actions.append(_task_action(session, task, is_new=is_new))
            if is_new:
                listed = key(pk, keys.task_place_sk(task.create_us, task.task_id))
                actions.append({"Put": {"Item": {**listed, "task_id": text(task.task_id)}}})
        if append.inbox_put or append.inbox_drop:
            actions += entry_actions(session, append.inbox_put, append.inbox_drop)
        return actions

    async def _explain(
        self, append: Append, write_id: str, tasks: list[TaskRow]
    ) -> set[str] | None:
        """Find out why a transaction was refused.

        None = an earlier attempt of this call has written it. Otherwise, if it may be tried again,
        the tasks that are new. Raises the append's refusal.
        """
        session, change = append.key, append.change
        pk = keys.session_pk(session)
        wanted = [
            (key(pk, keys.HEAD), "pk, sk, revision, create_us, gone"),
            (key(pk, keys.change_sk(change.revision)), "pk, sk, write_id"),
            (
                key(pk, keys.request_sk(change.method, change.request_id, change.actor)),
                "pk, sk, revision, write_id",
            ),
            *(
                (key(keys.task_pk(session.tenant, task.task_id), keys.TASK), "pk, sk, session_id")
                for task in tasks
            ),
        ]
        head, stored, request, *owners = await self._api.get_together(wanted)
        if head is not None and is_gone(head):
            await self._finish_removal(session)
            head = stored = request = None
        if stored is not None and to_write_id(stored) == write_id:
            return None
        if request is not None and change.request_id:
            raise await self._seen(session, request)
        actual = 0 if head is None else to_revision(head)
        is_other = head is not None and append.begun_us not in (
            None,
            to_integer(head, "create_us"),
        )
        if actual != append.base_revision or is_other:
            raise RevisionConflict(session, append.base_revision, actual)
        if stored is not None:
            raise StoreCorrupt(
                f'session "{session}" is at revision {actual} and has a change after it; restore '
                "the table from a backup"
            )
        for task, owner in zip(tasks, owners, strict=True):
            if owner is not None and to_session_id(owner) != session.session_id:
                raise TaskTaken(task.task_id, to_session_id(owner))
        return {task.task_id for task, owner in zip(tasks, owners, strict=True) if owner is None}

    async def _seen(self, session: SessionKey, request: Item) -> StoreError:
        revision = to_revision(request)
        item = await self._api.get(key(keys.session_pk(session), keys.change_sk(revision)))
        if item is None:
            return StoreCorrupt(
                f'session "{session}" has lost revision {revision}, which a request made; restore '
                "the table from a backup"
            )
        return RequestSeen(session, to_change(item))


def _new(item: Item) -> dict[str, Any]:
    return {"Item": item, "ConditionExpression": "attribute_not_exists(pk)"}


def _head_action(append: Append) -> dict[str, Any]:
    """Make the action on the head. A new head is put whole, which costs the same."""
    change = append.change
    pk = key(keys.session_pk(append.key), keys.HEAD)
    attributes: Item = {
        "revision": integer(change.revision),
        "state_data": binary(append.state),
        "user_id": text(append.user_id),
        "update_us": integer(change.time_us),
    }
    if append.due_us is not None:
        attributes["due_us"] = integer(append.due_us)
        attributes["due_shard"] = text(keys.due_shard(append.key))
    if append.base_revision == 0:
        return {"Put": _new({**pk, **attributes, "create_us": integer(change.time_us)})}
    condition, values = "revision = :base", {":base": integer(append.base_revision)}
    if append.begun_us is not None:
        condition += " AND create_us = :begun"
        values[":begun"] = integer(append.begun_us)
    update = _update(pk, attributes, condition, values)
    if append.due_us is None:
        update["UpdateExpression"] += " REMOVE due_us, due_shard"
    return {"Update": update}


def _task_action(session: SessionKey, task: TaskRow, *, is_new: bool) -> dict[str, Any]:
    pk = key(keys.task_pk(session.tenant, task.task_id), keys.TASK)
    attributes: Item = {
        "session_id": text(session.session_id),
        "user_id": text(task.user_id),
        "task_status": text(task.status),
        "update_us": integer(task.update_us),
        "payload": binary(task.data),
    }
    if task.expire_us is not None:
        attributes["expire_us"] = integer(task.expire_us)
    if is_new:
        made = {"task_id": text(task.task_id), "create_us": integer(task.create_us)}
        return {"Put": _new({**pk, **attributes, **made})}
    update = _update(pk, attributes, "session_id = :session_id", {})
    if task.expire_us is None:
        update["UpdateExpression"] += " REMOVE expire_us"
    return {"Update": update}


def _update(pk: Item, attributes: Item, condition: str, values: Item) -> dict[str, Any]:
    settings = ", ".join(f"{name} = :{name}" for name in attributes)
    return {
        "Key": pk,
        "UpdateExpression": f"SET {settings}",
        "ConditionExpression": condition,
        "ExpressionAttributeValues": {
            **{f":{name}": value for name, value in attributes.items()},
            **values,
        },
    }
