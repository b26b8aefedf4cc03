"""Sequences of places: the order in which the commits of many processes are read, with none missed.

A place is given out by a counter (one atomic addition), and taken by an item that is put, under the
condition that it is not there, in the transaction of the change. So places have no gaps, and one
that was given out and is empty is either still being written or never will be. A reader waits a
little for such a hole and then closes it: it puts a seal there, under the same condition. Whichever
comes first wins, and the other knows: a writer who finds its place sealed has written nothing and
takes a later one. So a reader who has passed a place has passed it for good. Later places are
higher; hence two changes of one session, the second of which was decided on the first, are in
order.

How far a sequence is known to be complete (settled) is stored with the counter now and then, so
that finding its end does not mean reading it from the start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from routing_service.storage.dynamodb import keys
from routing_service.storage.dynamodb.api import Api
from routing_service.storage.dynamodb.bounds import DynamodbBounds
from routing_service.storage.dynamodb.errors import ConditionFailed
from routing_service.storage.dynamodb.items import Item, integer, key, to_integer, to_text
from routing_service.storage.store import StoreCorrupt, StoreError

LOOK_PAUSE_MIN_S: Final = 0.005
LOOK_PAUSE_MAX_S: Final = 0.1
"""Pauses between two reads of a hole: the first, and the maximum after doubling."""

HOLES_KEPT_MAX: Final = 1_024
"""Holes whose age is remembered: about one for each reader at a different place."""

PAGE_PLACES: Final = 1_000


class Counter(NamedTuple):
    """How far a sequence is."""

    given: int
    """The last place that was given out; 0 = none."""
    settled: int
    """Up to here all places are taken or sealed; maybe further."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """The content of a sequence after some place, up to the first hole."""

    taken: list[tuple[int, Item]]
    """The places and their items, without the sealed ones."""
    reached: int
    """Up to here it is complete."""
    is_held: bool
    """Whether the next place is a hole that is still being written."""
    has_more: bool
    """Whether later places are complete too: there were more than requested."""


class Sequences:
    """The sequences of one table."""

    def __init__(self, api: Api, bounds: DynamodbBounds) -> None:
        """Read nothing yet."""
        self._api = api
        self._bounds = bounds
        self._asking: dict[str, list[asyncio.Future[int]]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._holes: dict[tuple[str, int], tuple[float, int]] = {}
        """By sequence and place: when a hole was first seen, and the last place given out then."""

    async def give(self, name: str) -> int:
        """Give out the next place. Concurrent callers share a call."""
        outcome: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        asking = self._asking.get(name)
        if asking is None:
            self._asking[name] = [outcome]
            self._start(self._give_all(name))
        else:
            asking.append(outcome)
        return await outcome

    def place_action(self, name: str, place: int, item: Item) -> dict[str, Any]:
        """Make the action that takes a place."""
        return {
            "Put": {
                "Item": {**key(keys.sequence_pk(name), keys.number(place)), **item},
                "ConditionExpression": "attribute_not_exists(pk)",
            }
        }

    async def seal(self, name: str, places: Iterable[int]) -> None:
        """Close holes; a place that has been taken meanwhile stays taken."""
        await asyncio.gather(*(self._seal(name, place) for place in places))

    async def counters(self, names: Sequence[str]) -> list[Counter]:
        """Read the state of sequences."""
        wanted = [key(keys.counter_pk(name), keys.COUNTER) for name in names]
        found = await self._api.get_many(wanted)
        return [_counter(found.get((keys.counter_pk(name), keys.COUNTER))) for name in names]

    async def after(self, name: str, place: int, *, upto: int, limit: int) -> Stretch:
        """Read from a place to the first hole; close holes that are too old.

        upto: the last place that was given out.
        """
        stretch, missing = await self._look(name, place, upto, limit)
        if not stretch.is_held:
            return stretch
        hole = (name, stretch.reached + 1)
        now_s = asyncio.get_running_loop().time()
        if hole not in self._holes and len(self._holes) >= HOLES_KEPT_MAX:
            self._holes.clear()
        since_s, given = self._holes.setdefault(hole, (now_s, upto))
        if now_s < since_s + self._bounds.hole_wait_s:
            return stretch
        await self.seal(name, (gap for gap in missing if gap <= given))
        self._holes.pop(hole, None)
        return (await self._look(name, place, upto, limit))[0]

    async def settle(self, name: str, counter: Counter | None = None) -> int:
        """Wait until all given places are taken or sealed, and return the last one."""
        if counter is None:
            (counter,) = await self.counters([name])
        place = counter.settled
        pause_s = LOOK_PAUSE_MIN_S
        while place < counter.given:
            stretch = await self.after(name, place, upto=counter.given, limit=PAGE_PLACES)
            if stretch.reached == place:
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, LOOK_PAUSE_MAX_S)
            place = stretch.reached
        if place >= counter.settled + self._bounds.settle_step:
            await self._remember(name, place)
        return place

    def settle_soon(self, name: str) -> None:
        """Settle it in the background; if that fails, the next reader does it."""

        async def settle() -> None:
            with suppress(StoreError):
                await self.settle(name)

        self._start(settle())

    async def close(self) -> None:
        """Wait for the running tasks."""
        while self._running:
            await asyncio.wait(self._running)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _give_all(self, name: str) -> None:
        """Give out places for as long as writers ask."""
        try:
            while asked := self._asking[name]:
                self._asking[name] = []
                try:
                    last = await self._add(name, len(asked))
                except Exception as error:  # noqa: BLE001 - every waiting writer gets it
                    for outcome in asked:
                        if not outcome.done():
                            outcome.set_exception(_copy(error))
                    continue
                for place, outcome in enumerate(asked, start=last - len(asked) + 1):
                    if not outcome.done():
                        outcome.set_result(place)
        finally:
            # Writers remain here only if the event loop is being torn down.
            for outcome in self._asking.pop(name):
                outcome.cancel()

    async def _add(self, name: str, count: int) -> int:
        """Add to the counter. A repeat by the driver may add twice: readers close those holes."""
        answer = await self._api.on_table(
            "update_item",
            Key=key(keys.counter_pk(name), keys.COUNTER),
            UpdateExpression="ADD given_to :count",
            ExpressionAttributeValues={":count": integer(count)},
            ReturnValues="UPDATED_NEW",
        )
        return to_integer(answer["Attributes"], "given_to")

    async def _look(
        self, name: str, place: int, upto: int, limit: int
    ) -> tuple[Stretch, list[int]]:
        """Read from a place, and list the holes in the part that was read."""
        found = await self._api.query(
            keys.sequence_pk(name), keys.number(place + 1), keys.number(upto), limit=limit
        )
        places = [_place(item) for item in found]
        # If the limit cut the page short, the places after it are unknown.
        end = places[-1] if len(found) >= limit else upto
        there = set(places)
        missing = [gap for gap in range(place + 1, end + 1) if gap not in there]
        reached = missing[0] - 1 if missing else end
        taken = [
            (at, item)
            for at, item in zip(places, found, strict=True)
            if at <= reached and "sealed" not in item
        ]
        stretch = Stretch(
            taken, reached, is_held=bool(missing), has_more=not missing and reached < upto
        )
        return stretch, missing

    async def _seal(self, name: str, place: int) -> None:
        with suppress(ConditionFailed):
            await self._api.on_table(
                "put_item",
                Item={
                    **key(keys.sequence_pk(name), keys.number(place)),
                    "sealed": {"BOOL": True},
                },
                ConditionExpression="attribute_not_exists(pk)",
            )

    async def _remember(self, name: str, place: int) -> None:
        # Otherwise another process had settled further.
        with suppress(ConditionFailed):
            await self._api.on_table(
                "update_item",
                Key=key(keys.counter_pk(name), keys.COUNTER),
                UpdateExpression="SET settled_to = :place",
                ConditionExpression="attribute_not_exists(settled_to) OR settled_to < :place",
                ExpressionAttributeValues={":place": integer(place)},
            )


def _counter(item: Mapping[str, Any] | None) -> Counter:
    if item is None:
        return Counter(0, 0)
    return Counter(
        to_integer(item, "given_to") if "given_to" in item else 0,
        to_integer(item, "settled_to") if "settled_to" in item else 0,
    )


def _place(item: Mapping[str, Any]) -> int:
    written = to_text(item, "sk")
    if not written.isdecimal():
        raise StoreCorrupt(f"the place {written!r} is none; restore the table from a backup")
    return int(written)


def _copy(error: Exception) -> Exception:
    """Make an exception for each caller, because raising one adds to its traceback."""
    if not isinstance(error, StoreError):
        return error
    failure = copy(error)
    failure.__cause__ = error.__cause__
    return failure
