"""Copies between stores that fail, differ, grow or are erased meanwhile."""

import asyncio
import random

import pytest
from msgspec import structs

from routing_service.storage.event_codec import BLANK_EVENTS
from routing_service.storage.memory_store import MemoryStore
from routing_service.storage.store import (
    APPEND_TASKS_MAX,
    CURSOR_START,
    Append,
    AuditEntry,
    Change,
    SessionKey,
    StoreUnavailable,
    TaskRow,
)
from routing_service.stored_data.store_copy import copy_store
from routing_service.stored_data.verification import verify_store
from routing_service.stored_data.whole_session import SessionBusy, settled_head

NAME = "sqlite:///source.db"


async def append(store, key, *, tasks=(), due_us=None, word=b"", user_id="ana", answer=None):
    """Append the next change of a session."""
    revision = await store.head_revision(key) + 1
    change = Change(
        revision,
        revision * 10,
        "Route",
        f"request-{revision}",
        "",
        b"fingerprint",
        b"events %d" % revision + word,
        b"answer" if answer is None else answer,
    )
    state = b"state %d" % revision
    await store.append(Append(key, revision - 1, change, state, user_id, tasks, due_us))


def task(key, name, **fields):
    """Return a task of a session."""
    row = TaskRow(name, key.session_id, "ana", "running", 5, 6, None, b"{}")
    return structs.replace(row, **fields)


async def filled(seed=0, sessions=40):
    """Return a store with sessions of several lengths, two tenants, and all other data."""
    store, rng = MemoryStore(), random.Random(seed)
    for number in range(sessions):
        key = SessionKey(rng.choice(["acme", "ñandú"]), f"chat-{number}")
        for _ in range(rng.choice([1, 2, 3, 50])):
            tasks = (task(key, f"{number}-{rng.randrange(4)}", data=rng.randbytes(9)),)
            await append(store, key, tasks=tasks, due_us=rng.choice([None, 7]))
    for number in range(250):
        await store.append_audit(
            AuditEntry(number // 3, "acme", f"chat-{number % 7}", 1, "k", "r", "ana", b"why")
        )
    await store.put_setting("acme", "stickiness", b"off")
    await store.put_setting("settings-only", "x", b"")
    return store


async def hashes(store):
    """Return each hash of a store, by its subject.

    The bytes stored here do not fold into a state.
    """
    found = {}
    async for report in verify_store(store):
        name = getattr(report, "key", None) or getattr(report, "tenant", "all")
        found[name] = report.sha256
    return found


class Breaking:
    """A store whose writes fail at random, before or after they are done."""

    def __init__(self, store, rng):
        self._store, self._rng = store, rng

    def __getattr__(self, name):
        method = getattr(self._store, name)
        if name not in {"append", "append_audit", "put_setting"}:
            return method

        async def call(*arguments):
            fate = self._rng.random()
            if fate < 0.01:
                raise StoreUnavailable("broken before it was done")
            await method(*arguments)
            if fate < 0.02:
                raise StoreUnavailable("broken after it was done")

        return call


async def test_copy_is_exact(monkeypatch):
    """Times, revisions, bytes, due times, owners, tasks, audit and settings."""
    source, target = await filled(), MemoryStore()
    copied = await copy_store(source, target, source_name=NAME)
    assert copied.refused == {}
    assert await hashes(target) == await hashes(source)
    for key in (SessionKey("acme", "chat-1"), SessionKey("ñandú", "chat-0")):
        assert await target.find_session(key) == await source.find_session(key)
        assert await target.load(key) == await source.load(key)
        changes = await source.read_changes(key, limit=1000)
        assert await target.read_changes(key, limit=1000) == changes
        for change in changes:
            assert await target.find_request(key, "Route", change.request_id) == change
    entries, _ = await source.read_audit("acme", None, CURSOR_START, 1000)
    assert await target.read_audit("acme", None, CURSOR_START, 1000) != (entries, b"")
    assert (await target.read_audit("acme", None, CURSOR_START, 1000))[0] == entries


@pytest.mark.parametrize("seed", range(4))
async def test_copy_that_breaks_anywhere_goes_on_when_it_is_repeated(seed):
    """Nothing is lost or duplicated, wherever it failed, including the audit."""
    source, target = await filled(seed), MemoryStore()
    breaking = Breaking(target, random.Random(seed))
    broken = 0
    looked_at = 0
    while True:
        try:
            copied = await copy_store(
                source, breaking, source_name=NAME, sessions_per_note=3, audit_per_note=7
            )
        except StoreUnavailable:
            broken += 1
            assert broken < 500
            continue
        looked_at = copied.sessions
        break
    assert broken > 3
    # The last run did not start at the first session.
    assert looked_at < 40
    assert await hashes(target) == await hashes(source)


async def test_repeated_copy_looks_at_what_has_changed_alone():
    """The second run, with the servers stopped, is short."""
    source, target = await filled(), MemoryStore()
    first = await copy_store(source, target, source_name=NAME)
    assert first.sessions == 40
    key = SessionKey("acme", "new")
    for _ in range(40):
        await append(source, key)
    await append(source, SessionKey("ñandú", "chat-0"))
    await source.append_audit(AuditEntry(1, "ñandú", "chat-0", 1, "k", "r", "ana", b"new"))
    await source.put_setting("acme", "stickiness", b"on")
    second = await copy_store(source, target, source_name=NAME)
    assert second.sessions <= 4
    assert (second.changes, second.audit, second.settings) == (41, 1, 1)
    assert await hashes(target) == await hashes(source)


async def test_source_may_be_written_to_while_it_is_copied():
    """Changes behind the copy's position are in the log; a last copy adds the rest."""
    source, target = await filled(), MemoryStore()
    rng = random.Random(1)
    done = asyncio.Event()

    async def write():
        while not done.is_set():
            await append(source, SessionKey("acme", f"chat-{rng.randrange(60)}"))
            await asyncio.sleep(0)

    writing = asyncio.create_task(write())

    class Slow:
        def __getattr__(self, name):
            return getattr(target, name)

        async def append(self, change):
            await asyncio.sleep(0)
            await target.append(change)

    first = await copy_store(source, Slow(), source_name=NAME, sessions_per_note=3)
    done.set()
    await writing
    assert first.refused == {}
    await copy_store(source, target, source_name=NAME, sessions_per_note=3)
    assert await hashes(target) == await hashes(source)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"word": b"other"}, "revision 1"),
        ({"answer": b"other"}, "revision 1"),
        ({"user_id": "eve"}, "its owner"),
        ({"due_us": 5}, "its owner, times or due time"),
    ],
)
async def test_session_that_is_there_with_other_content_is_named_and_left(change, difference):
    """All others are copied; once it is corrected, a repeat copies it too."""
    source, target = await filled(), MemoryStore()
    key = SessionKey("acme", "mine")
    await append(source, key)
    await append(target, key, **change)
    before = (await hashes(target))[key]
    copied = await copy_store(source, target, source_name=NAME)
    assert list(copied.refused) == [key]
    assert difference in copied.refused[key]
    assert 'session "acme/mine" is in the target with other content' in copied.refused[key]
    assert (await hashes(target))[key] == before
    await target.delete_session(key, 1)
    assert (await copy_store(source, target, source_name=NAME)).refused == {}
    assert await hashes(target) == await hashes(source)


async def test_session_that_is_ahead_in_the_target_is_refused():
    """It was changed in the target; no program can decide which version is right."""
    source, target = MemoryStore(), MemoryStore()
    key = SessionKey("acme", "mine")
    for store, changes in ((source, 2), (target, 3)):
        for _ in range(changes):
            await append(store, key)
    copied = await copy_store(source, target, source_name=NAME)
    assert "revision 3 there, 2 in the source" in copied.refused[key]


async def test_task_id_that_another_session_has_in_the_target_is_refused():
    """A task finds its session by its id alone."""
    source, target = MemoryStore(), MemoryStore()
    mine, theirs = SessionKey("acme", "mine"), SessionKey("acme", "theirs")
    await append(source, mine, tasks=(task(mine, "one"),))
    await append(target, theirs, tasks=(task(theirs, "one"),))
    copied = await copy_store(source, target, source_name=NAME)
    assert "task one is of session theirs" in copied.refused[mine]
    assert await target.head_revision(mine) == 0


async def test_more_tasks_than_one_append_holds_are_all_copied():
    """They go with the last changes, as many as each may have."""
    source, target = MemoryStore(), MemoryStore()
    key = SessionKey("acme", "busy")
    for number in range(5):
        tasks = tuple(
            task(key, f"{number}-{place}", create_us=number) for place in range(APPEND_TASKS_MAX)
        )
        await append(source, key, tasks=tasks)
    await append(source, key)
    assert (await copy_store(source, target, source_name=NAME)).tasks == 5 * APPEND_TASKS_MAX
    assert await hashes(target) == await hashes(source)


async def test_other_sessions_of_the_target_stay_as_they_are():
    """Two stores may be merged into one."""
    one, other, target = await filled(0), MemoryStore(), MemoryStore()
    await append(other, SessionKey("acme", "elsewhere"))
    await copy_store(one, target, source_name="sqlite:///one.db")
    await copy_store(other, target, source_name="sqlite:///other.db")
    both = await hashes(target)
    assert (await hashes(one)).items() - both.items() == {("all", (await hashes(one))["all"])}
    assert SessionKey("acme", "elsewhere") in both


async def test_erasure_follows_to_what_was_copied_before():
    """A copy that keeps erased data would be a leak."""
    source, target = MemoryStore(), MemoryStore()
    key = SessionKey("acme", "mine")
    for number in range(3):
        await append(source, key, tasks=(task(key, f"task-{number}"),), word=b"secret")
    await source.append_audit(AuditEntry(1, "acme", "mine", 1, "k", "r", "ana", b"secret"))
    await copy_store(source, target, source_name=NAME)
    await append(source, key, user_id="")
    await source.erase_before(key, 4, BLANK_EVENTS)
    copied = await copy_store(source, target, source_name=NAME)
    assert (copied.refused, copied.blanked) == ({}, 3)
    assert await hashes(target) == await hashes(source)
    assert b"secret" not in b"".join(c.events for c in await target.read_changes(key, limit=9))
    ((entry,), _) = await target.read_audit("acme", None, CURSOR_START, 9)
    assert (entry.user_id, entry.data) == ("", b"")


async def test_erased_session_is_copied_as_it_is():
    """Blank changes, tasks and audit; its request ids stay known."""
    source, target = MemoryStore(), MemoryStore()
    key = SessionKey("acme", "mine")
    for number in range(3):
        await append(source, key, tasks=(task(key, f"task-{number}"),))
    await append(source, key, user_id="")
    await source.erase_before(key, 4, BLANK_EVENTS)
    await copy_store(source, target, source_name=NAME)
    assert await hashes(target) == await hashes(source)
    found = await target.find_request(key, "Route", "request-2")
    assert found is not None
    assert found.revision == 2


async def test_what_was_erased_in_the_target_stays_erased():
    """The erasure was requested in the target; the source needs its own request."""
    source, target = MemoryStore(), MemoryStore()
    key = SessionKey("acme", "mine")
    for number in range(3):
        await append(source, key, tasks=(task(key, f"task-{number}"),))
    await copy_store(source, target, source_name=NAME)
    await target.erase_before(key, 3, BLANK_EVENTS)
    erased = await hashes(target)
    copied = await copy_store(source, target, source_name=NAME, again=True)
    assert copied.refused == {}
    assert await hashes(target) == erased


async def test_source_that_was_restored_from_a_backup_is_gone_through_again():
    """Its log is a different one, so the stored position is meaningless."""
    source, restored, target = await filled(), await filled(), MemoryStore()
    await copy_store(source, target, source_name=NAME)
    await append(restored, SessionKey("acme", "after"))
    copied = await copy_store(restored, target, source_name=NAME)
    assert (copied.refused, copied.sessions, copied.written) == ({}, 41, 1)
    assert await hashes(target) == await hashes(restored)


async def test_audit_is_not_doubled_by_a_copy_that_is_begun_again_and_breaks():
    """Its position must not count entries that it has not compared yet."""
    source, target = await filled(), MemoryStore()
    await copy_store(source, target, source_name=NAME, audit_per_note=7)

    class BreaksAfterThreePages:
        pages = 0

        def __getattr__(self, name):
            return getattr(source, name)

        async def read_audit(self, *arguments):
            self.pages += 1
            if self.pages > 4:
                raise StoreUnavailable("broken")
            return await source.read_audit(*arguments)

    with pytest.raises(StoreUnavailable):
        await copy_store(
            BreaksAfterThreePages(), target, source_name=NAME, again=True, audit_per_note=7
        )
    await copy_store(source, target, source_name=NAME, audit_per_note=7)
    assert await hashes(target) == await hashes(source)


async def test_row_and_state_are_of_one_revision_whoever_writes_in_between():
    """An owner or due time of one revision never comes with another revision's state."""
    store = MemoryStore()
    key = SessionKey("acme", "busy")
    await append(store, key, due_us=1)

    class WrittenInBetween:
        writes = 3

        def __getattr__(self, name):
            return getattr(store, name)

        async def load(self, wanted):
            if self.writes:
                self.writes -= 1
                await append(store, wanted, due_us=9)
            return await store.load(wanted)

    found = await settled_head(WrittenInBetween(), key)
    assert found is not None
    row, head = found
    assert (row.revision, row.due_us) == (4, 9)
    assert (head.revision, head.state) == (4, b"state 4")
    endless = WrittenInBetween()
    endless.writes = 10**6
    with pytest.raises(SessionBusy):
        await settled_head(endless, key)
