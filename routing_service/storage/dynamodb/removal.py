"""Removing content from the DynamoDB store: erasing what a session had, and deleting it whole.

A deletion is decided by one conditional write, which marks the head as gone. The rest goes next, in
transactions that each check that head, so that nothing of a later session of the same name goes
with it. If the process is killed in between, the deletion is finished by the next append to the
session, the next deletion, or the next call that asks what is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from routing_service.ids import new_uuid7
from routing_service.storage.dynamodb import keys
from routing_service.storage.dynamodb.api import Api
from routing_service.storage.dynamodb.errors import ConditionFailed, TransactionRefused
from routing_service.storage.dynamodb.items import (
    Item,
    binary,
    integer,
    is_gone,
    key,
    text,
    to_revision,
    to_text,
)
from routing_service.storage.store import INT_MAX, RevisionConflict, SessionKey, StoreUnavailable

TRANSACTION_DELETES: Final = 90
"""Items that one transaction deletes: DynamoDB takes 100 actions, one is the head's check."""

WRITES_AT_ONCE: Final = 8
"""Items that are blanked at the same time, so that an erasure leaves room for appends."""

ATTEMPTS_MAX: Final = 6
"""Appends to the session that may come first during a removal at revision 0."""


class Removal:
    """Erases and removes on one table."""

    def __init__(self, api: Api) -> None:
        """Do nothing yet."""
        self._api = api
        self._room = asyncio.Semaphore(WRITES_AT_ONCE)

    async def erase_before(self, session: SessionKey, revision: int, blank: bytes) -> int:
        """See Store.erase_before. Each item is a separate write, done whole or not at all."""
        pk = keys.session_pk(session)
        values = {":blank": binary(blank), ":none": binary(b"")}
        differs = "events <> :blank OR answer <> :none OR fingerprint <> :none"
        last = keys.change_sk(min(revision - 1, INT_MAX))
        found = (
            await self._api.query(
                pk,
                keys.change_sk(0),
                last,
                attributes="pk, sk, write_id",
                condition=differs,
                values=values,
            )
            if revision > 1
            else []
        )
        erased = await asyncio.gather(
            *(
                self._update(
                    item,
                    "SET events = :blank, answer = :none, fingerprint = :none",
                    # write_id: spares a later session of the same name.
                    f"write_id = :write AND ({differs})",
                    {**values, ":write": item["write_id"]},
                )
                for item in found
            )
        )
        await self._blank_tasks(session)
        await self._blank_audit(session)
        # The owner goes last: if this is interrupted, the session is found again by its owner.
        await self._update(
            key(pk, keys.HEAD),
            "SET user_id = :nobody",
            "user_id <> :nobody AND attribute_exists(user_id)",
            {":nobody": text("")},
        )
        return sum(erased)

    async def delete_session(self, session: SessionKey, revision: int) -> None:
        """See Store.delete_session. One write decides; further writes remove the rest."""
        head = key(keys.session_pk(session), keys.HEAD)
        mark = str(new_uuid7())
        for _ in range(ATTEMPTS_MAX):
            try:
                await self._api.on_table(
                    "update_item",
                    Key=head,
                    # Due at once, so that the next look for due sessions finishes the removal.
                    UpdateExpression=(
                        "SET revision = :zero, gone = :gone, due_us = :zero, due_shard = :shard "
                        "REMOVE state_data, user_id, create_us, update_us"
                    ),
                    ConditionExpression=(
                        "revision = :revision" if revision else "attribute_not_exists(pk)"
                    ),
                    ExpressionAttributeValues={
                        ":zero": integer(0),
                        ":gone": text(mark),
                        ":shard": text(keys.due_shard(session)),
                        **({":revision": integer(revision)} if revision else {}),
                    },
                )
            except ConditionFailed:
                item = await self._api.get(head, "pk, sk, revision, gone")
                if item is not None and is_gone(item):
                    is_ours = to_text(item, "gone") == mark
                    await self.finish(session)
                    # Marked by our own attempt whose answer was lost.
                    if is_ours or revision == 0:
                        return
                    item = None
                actual = 0 if item is None else to_revision(item)
                if actual != revision:
                    raise RevisionConflict(session, revision, actual) from None
            else:
                await self.finish(session)
                return
        raise StoreUnavailable("other writes are in the same session; try again")

    async def finish(self, session: SessionKey) -> None:
        """Remove the rest of a session whose head is marked as gone."""
        pk = keys.session_pk(session)
        head = await self._api.get(key(pk, keys.HEAD), "pk, sk, gone")
        if head is None or not is_gone(head):
            return
        mark = to_text(head, "gone")
        await self._blank_audit(session)
        try:
            # The list first, because it shows only sessions with a head.
            await self._delete(session, mark, [key(keys.list_pk(session), session.session_id)])
            places = await self._places(session)
            tasks = [
                key(keys.task_pk(session.tenant, to_text(place, "task_id")), keys.TASK)
                for place in places
            ]
            await self._delete(session, mark, tasks)
            for low, high in (("c/", "c/~"), ("r/", "r/~"), ("t/", "t/~")):
                found = await self._api.query(pk, low, high, attributes="pk, sk")
                await self._delete(session, mark, found)
            await self._api.on_table(
                "delete_item",
                Key=key(pk, keys.HEAD),
                ConditionExpression="gone = :mark",
                ExpressionAttributeValues={":mark": text(mark)},
            )
        except (ConditionFailed, TransactionRefused):
            return  # Another process has finished it.

    async def _delete(self, session: SessionKey, mark: str, found: Sequence[Item]) -> None:
        for start in range(0, len(found), TRANSACTION_DELETES):
            actions: list[dict[str, Any]] = [
                {"Delete": {"Key": {"pk": item["pk"], "sk": item["sk"]}}}
                for item in found[start : start + TRANSACTION_DELETES]
            ]
            check = {
                "Key": key(keys.session_pk(session), keys.HEAD),
                "ConditionExpression": "gone = :mark",
                "ExpressionAttributeValues": {":mark": text(mark)},
            }
            await self._api.transact([{"ConditionCheck": check}, *actions], str(new_uuid7()))

    async def _places(self, session: SessionKey) -> list[Item]:
        prefix = keys.TASK_PLACES_PREFIX
        return await self._api.query(
            keys.session_pk(session), prefix, prefix + keys.LAST, attributes="pk, sk, task_id"
        )

    async def _blank_tasks(self, session: SessionKey) -> None:
        await asyncio.gather(
            *(
                self._update(
                    key(keys.task_pk(session.tenant, to_text(place, "task_id")), keys.TASK),
                    "SET user_id = :nobody, payload = :none",
                    "session_id = :session AND (user_id <> :nobody OR payload <> :none)",
                    {
                        ":session": text(session.session_id),
                        ":nobody": text(""),
                        ":none": binary(b""),
                    },
                )
                for place in await self._places(session)
            )
        )

    async def _blank_audit(self, session: SessionKey) -> None:
        values = {":nobody": text(""), ":none": binary(b"")}
        differs = "user_id <> :nobody OR payload <> :none"
        found = await self._api.query(
            keys.session_pk(session),
            keys.AUDIT_PREFIX,
            keys.AUDIT_PREFIX + keys.LAST,
            attributes="pk, sk",
            condition=differs,
            values=values,
        )
        blank = "SET user_id = :nobody, payload = :none"
        await asyncio.gather(*(self._update(item, blank, differs, values) for item in found))

    async def _update(self, item: Item, update: str, condition: str, values: Item) -> bool:
        """Change one item; False = the condition did not hold."""
        async with self._room:
            try:
                await self._api.on_table(
                    "update_item",
                    Key={"pk": item["pk"], "sk": item["sk"]},
                    UpdateExpression=update,
                    ConditionExpression=condition,
                    ExpressionAttributeValues=values,
                )
            except ConditionFailed:
                return False
        return True
