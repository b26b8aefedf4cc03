"""The free entries of one queue, in the order in which a replica offers them.

Rule: users take turns. A user is in line since its oldest entry came, or since its last offer. So
one user's thousand conversations delay another user by one turn.
"""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, TypeVar

from routing_service.storage.queue_entries import QueueEntry, QueueItem

ENTRIES_MAX: Final = 1_000
"""Free entries among which the next one is chosen, the oldest. Ten users at the default of
``user_turns_max`` fill them."""

OFFERS_AHEAD: Final = 4
"""Replicas that share a queue begin at a random place among this many times the turns that their
workers can take, so that they seldom ask for the same lease."""


class Backlog:
    """Free entries by user and age. is_cut: the queue may have younger entries than these."""

    def __init__(self) -> None:
        """Have no entry."""
        self.is_cut = False
        self._items: dict[QueueEntry, QueueItem] = {}
        self._users: dict[QueueEntry, str] = {}
        self._waiting: defaultdict[str, list[QueueEntry]] = defaultdict(list)
        """By user, the oldest first."""
        self._line: list[tuple[int, QueueEntry]] = []
        """The oldest entry of each user, with the time since when the user is in line."""
        self._served_us: dict[str, int] = {}
        """When a user with entries had its last offer. The time is that of the youngest entry by
        then, so that clocks of replicas do not matter."""
        self._now_us = 0
        self._added: set[QueueEntry] = set()

    def __len__(self) -> int:
        """Return how many entries it has."""
        return len(self._items)

    def is_known(self, entry: QueueEntry) -> bool:
        """Say whether it has an entry, with its user."""
        return not self._users.get(entry, _NO_USER).startswith(_NO_USER)

    def begin_read(self) -> None:
        """Keep what is added from now on in the next ``replace``: the read may not have it."""
        self._added.clear()

    def replace(
        self,
        free: Iterable[QueueItem],
        users: Mapping[QueueEntry, str],
        upto: QueueEntry | None,
    ) -> None:
        """Have the free entries of a read of the queue.

        users: of the entries, as far as they are known; a session of an unknown user counts as one.
        upto: the last entry read; those after it stay. None = the queue was read to its end.
        """
        items = {item.entry: item for item in free}
        for entry, item in self._items.items():
            if entry in self._added or (upto is not None and entry > upto):
                items.setdefault(entry, item)
        users = {**self._users, **users}
        self.is_cut = upto is not None
        self._items, self._users, self._line = {}, {}, []
        self._waiting.clear()
        for entry in sorted(items):
            self._place(items[entry], users.get(entry, ""))
        served = self._served_us
        self._served_us = {user: served[user] for user in self._waiting if user in served}

    def add(self, entry: QueueEntry, user: str) -> None:
        """Have an entry that begins. It is left to the next read if older ones are missing."""
        if self.is_cut or len(self._items) >= ENTRIES_MAX:
            self.is_cut = True
        elif entry not in self._items:
            self._added.add(entry)
            self._place(QueueItem(entry), user)

    def discard(self, entry: QueueEntry) -> None:
        """Have an entry no more, if it was here."""
        if self._items.pop(entry, None) is None:
            return
        self._added.discard(entry)
        user = self._users.pop(entry)
        own = self._waiting[user]
        place = bisect_left(own, entry)
        if not place:
            self._leave_line(user)
        del own[place]
        if not own:
            del self._waiting[user]
        elif not place:
            self._enter_line(user)

    def take(self, count: int, *, spread: bool) -> list[QueueItem]:
        """Return the next entries, which are no longer here. spread: see OFFERS_AHEAD."""
        users = [self._users[entry] for _, entry in self._line[: OFFERS_AHEAD * count]]
        if len(users) >= count:
            chosen = [self._waiting[user][0] for user in (_some(users, count) if spread else users)]
        else:
            more = OFFERS_AHEAD * (count - len(users)) if spread else count
            after = list(islice(self._after_first(users), more))
            chosen = [self._waiting[user][0] for user in users]
            chosen += _some(after, count - len(users)) if spread else after
        taken: list[QueueItem] = []
        for entry in chosen[:count]:
            taken.append(self._items[entry])
            user = self._users[entry]
            self._leave_line(user)
            self._now_us += 1
            self._served_us[user] = self._now_us
            self._enter_line(user)
            self.discard(entry)
        return taken

    def _after_first(self, users: list[str]) -> Iterator[QueueEntry]:
        """Yield the users' second entries, then their third, and so on."""
        place = 1
        while users := [user for user in users if len(self._waiting[user]) > place]:
            yield from (self._waiting[user][place] for user in users)
            place += 1

    def _place(self, item: QueueItem, user: str) -> None:
        entry = item.entry
        user = user or _NO_USER + entry.session_id
        self._items[entry] = item
        self._users[entry] = user
        self._now_us = max(self._now_us, entry.place_us)
        own = self._waiting[user]
        if own and entry < own[0]:
            self._leave_line(user)
        insort(own, entry)
        if own[0] == entry:
            self._enter_line(user)

    def _enter_line(self, user: str) -> None:
        insort(self._line, self._place_in_line(user))

    def _leave_line(self, user: str) -> None:
        del self._line[bisect_left(self._line, self._place_in_line(user))]

    def _place_in_line(self, user: str) -> tuple[int, QueueEntry]:
        oldest = self._waiting[user][0]
        return max(oldest.place_us, self._served_us.get(user, 0)), oldest


T = TypeVar("T")

_NO_USER: Final = "\x1f"
"""How the name of a session without a user begins. No user's does."""


def _some(found: list[T], count: int) -> list[T]:
    """Return neighbours from a random place near the beginning."""
    first = found[: OFFERS_AHEAD * count]
    start = random.randrange(max(0, len(first) - count) + 1)  # noqa: S311 - spreads replicas, guards nothing
    return first[start : start + count]
