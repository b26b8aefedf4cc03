"""Whose turn is offered next."""

import random
from collections import Counter

import pytest

from routing_service.sessions.inbox_backlog import ENTRIES_MAX, Backlog
from routing_service.storage.queue_entries import QueueEntry, QueueItem


def entry(number, session="s"):
    """Return the entry of a turn; a larger number is younger."""
    return QueueEntry("pay", number, f"{session}-{number}", f"r-{number}")


def filled(users, upto=None):
    """Return a backlog after a read: the user of each entry, the oldest first."""
    backlog = Backlog()
    entries = {entry(number): user for number, user in enumerate(users)}
    backlog.begin_read()
    backlog.replace([QueueItem(each) for each in entries], entries, upto)
    return backlog, entries


def offered(backlog, entries, count=1, *, spread=False):
    """Return the users of the next turns."""
    return [entries[item.entry] for item in backlog.take(count, spread=spread)]


def test_a_user_with_a_thousand_turns_delays_another_by_one():
    """Behind 1,500 turns of one user the next user waited for all of them."""
    backlog, entries = filled(["eve"] * 999 + ["ana"])
    assert offered(backlog, entries, 3) == ["eve", "ana", "eve"]


def test_a_user_who_comes_later_is_next_however_many_turns_the_other_had():
    """What a user had offered before counts in this round alone."""
    backlog, entries = filled(["eve"] * 500)
    assert offered(backlog, entries, 40) == ["eve"] * 40
    entries[entry(600)] = "ana"
    backlog.add(entry(600), "ana")
    assert "ana" in offered(backlog, entries, 2)


def test_users_take_turns_over_many_looks_and_reads():
    """One worker that takes a turn at a time; the queue is read again meanwhile."""
    names = ["eve"] * 60 + ["ana"] * 3 + ["ben"] * 3
    backlog, entries = filled(names)
    order = []
    for look in range(9):
        order += offered(backlog, entries)
        if look % 2:
            left = {e: u for e, u in entries.items() if backlog.is_known(e)}
            backlog.begin_read()
            backlog.replace([QueueItem(e) for e in left], left, None)
    assert Counter(order) == {"eve": 3, "ana": 3, "ben": 3}
    assert [set(order[at : at + 3]) for at in (0, 3, 6)] == [{"eve", "ana", "ben"}] * 3


def test_turns_of_different_users_are_offered_by_age():
    """As before: the longest waiting first."""
    names = [f"user-{number}" for number in range(50)]
    backlog, entries = filled(names)
    assert offered(backlog, entries, 50) == names


def test_sessions_without_a_user_count_as_users_of_their_own():
    """Without sign-in nothing says that they belong together."""
    backlog, entries = filled([""] * 20)
    assert [item.entry for item in backlog.take(20, spread=False)] == list(entries)


@pytest.mark.parametrize("seed", range(20))
def test_replicas_that_begin_at_random_places_leave_no_user_of_the_round_out(seed):
    """A user with one turn was skipped by chance behind a long queue."""
    random.seed(seed)
    backlog, entries = filled(["eve"] * 900 + ["ana"])
    assert "ana" in offered(backlog, entries, 8, spread=True)
    # Among many users they spread, so that they seldom ask for the same lease.
    first = filled([f"user-{n}" for n in range(900)])[0].take(8, spread=True)[0].entry.place_us
    assert 0 <= first <= 24


def test_an_entry_that_ends_is_offered_no_more_and_one_that_begins_during_a_read_is():
    """The read may have been made before it."""
    backlog, entries = filled(["ana", "ben"])
    backlog.discard(entry(0))
    backlog.discard(entry(7))
    backlog.begin_read()
    backlog.add(entry(2), "cai")
    backlog.replace([QueueItem(entry(1))], entries, None)
    assert [item.entry.place_us for item in backlog.take(9, spread=False)] == [1, 2]
    assert backlog.take(1, spread=False) == []


def test_a_new_entry_does_not_overtake_older_ones_that_were_not_read():
    """The next read has all of them."""
    backlog, _ = filled(["ana"] * 5, upto=entry(4))
    backlog.add(entry(90), "ben")
    assert len(backlog) == 5
    assert backlog.is_cut
    whole, _ = filled([f"user-{n}" for n in range(ENTRIES_MAX)])
    whole.add(entry(ENTRIES_MAX + 1), "ben")
    assert (len(whole), whole.is_cut) == (ENTRIES_MAX, True)


def test_a_short_read_keeps_what_lies_beyond_it():
    """A hint makes a replica read the first page again, not all of it."""
    backlog, entries = filled(["ana"] * 10)
    backlog.begin_read()
    backlog.replace([QueueItem(entry(n)) for n in (0, 2)], entries, entry(3))
    assert sorted(item.entry.place_us for item in backlog.take(99, spread=False)) == [
        0, 2, 4, 5, 6, 7, 8, 9,
    ]  # fmt: skip


def test_a_user_with_several_turns_does_not_wait_behind_users_who_keep_coming():
    """Each new user would be served before somebody's second turn."""
    backlog, entries = filled(["ana", "ana"])
    order = []
    for number in range(10, 40):
        entries[entry(number)] = f"user-{number}"
        backlog.add(entry(number), f"user-{number}")
        order += offered(backlog, entries)
    assert order[0] == "ana"
    assert "ana" in order[1:4]


def test_what_is_kept_of_users_ends_with_their_turns():
    """Any number of users may come by."""
    backlog = Backlog()
    for number in range(3_000):
        backlog.add(entry(number), f"user-{number}")
        assert len(backlog.take(1, spread=False)) == 1
        if not number % 100:
            backlog.begin_read()
            backlog.replace([], {}, None)
    assert len(backlog._served_us) + len(backlog._waiting) + len(backlog._users) < 150


@pytest.mark.parametrize("seed", range(10))
def test_nothing_is_lost_or_offered_twice_whatever_comes_and_goes(seed):
    """Entries that begin, end, are offered, come back and are read, at random."""
    choose = random.Random(seed)
    backlog, known, taken = Backlog(), {}, set()
    for number in range(2_000):
        match choose.randrange(6):
            case 0 | 1 | 2:
                new = entry(choose.randrange(10_000))
                known.setdefault(new, f"user-{choose.randrange(5)}")
                if new not in taken:
                    backlog.add(new, known[new])
            case 3:
                gone = choose.choice(list(known) or [entry(0)])
                backlog.discard(gone)
                known.pop(gone, None)
                taken.discard(gone)
            case 4:
                for item in backlog.take(choose.randrange(4), spread=bool(number % 2)):
                    assert item.entry in known
                    assert item.entry not in taken
                    taken.add(item.entry)
            case 5:
                backlog.begin_read()
                free = [QueueItem(each) for each in known if each not in taken]
                upto = choose.choice([None, *known]) if known else None
                free = [item for item in free if upto is None or item.entry <= upto]
                backlog.replace(free, known, upto)
                assert {item.entry for item in free} <= set(backlog._items)
        assert len(backlog) == sum(map(len, backlog._waiting.values())) == len(backlog._users)
        assert len(backlog._line) == len(backlog._waiting)
        assert backlog._line == sorted(backlog._line)
