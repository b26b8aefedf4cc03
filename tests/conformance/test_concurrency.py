"""Many concurrent callers: each append has its own outcome, and one base has one winner."""

import asyncio
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from routing_service.storage.memory_store import MemoryStore
from routing_service.storage.store import (
    CURSOR_START,
    RequestSeen,
    RevisionConflict,
    StoreError,
    TaskTaken,
)


async def together(*writes):
    """Start all calls at once; exceptions are returned as results."""
    return await asyncio.gather(*writes, return_exceptions=True)


def kinds(outcomes):
    """Count the outcomes by kind."""
    return Counter("stored" if o is None else type(o).__name__ for o in outcomes)


async def test_one_base_has_one_winner(store, make):
    """Thirty-two replicas decided on the same revision."""
    await store.append(make.append())
    outcomes = await together(
        *(store.append(make.append(base=1, request_id=f"r-{n}")) for n in range(32))
    )
    assert kinds(outcomes) == {"stored": 1, "RevisionConflict": 31}
    conflicts = [outcome for outcome in outcomes if isinstance(outcome, RevisionConflict)]
    assert {conflict.actual_revision for conflict in conflicts} == {2}
    changes = await store.read_changes(make.key(), limit=10)
    winner = outcomes.index(None)
    assert [change.request_id for change in changes] == ["request-1", f"r-{winner}"]


async def test_one_new_session_has_one_maker(store, make):
    """Two concurrent first messages of one chat."""
    outcomes = await together(
        *(store.append(make.append(request_id=f"r-{n}", user_id=f"u-{n}")) for n in range(8))
    )
    assert kinds(outcomes) == {"stored": 1, "RevisionConflict": 7}
    ((row,), _) = await store.list_sessions("acme", CURSOR_START, 10)
    assert row.user_id == f"u-{outcomes.index(None)}"


async def test_appends_of_one_session_that_follow_each_other_all_pass(store, make):
    """Appends are tried in call order, so a chain that is sent at once succeeds."""
    outcomes = await together(*(store.append(make.append(base=base)) for base in range(20)))
    assert outcomes == [None] * 20
    changes = await store.read_changes(make.key(), limit=100)
    assert changes == [make.change(revision) for revision in range(1, 21)]
    head = await store.load(make.key())
    assert head is not None
    assert head.state == b"state 20"


async def test_chain_with_a_break_is_stored_up_to_the_break(store, make):
    """Appends that follow a refused one are refused too."""
    bases = [0, 1, 1, 2, 5, 3]
    outcomes = await together(
        *(store.append(make.append(base=b, request_id=f"r-{n}")) for n, b in enumerate(bases))
    )
    assert [outcome is None for outcome in outcomes] == [True, True, False, True, False, True]
    changes = await store.read_changes(make.key(), limit=10)
    assert [change.request_id for change in changes] == ["r-0", "r-1", "r-3", "r-5"]


async def test_conflicts_are_their_own_affair(store, make):
    """Every third session's append conflicts; the others are stored as usual."""
    for number in range(30):
        await store.append(make.append(make.key(f"chat-{number:02}")))
    outcomes = await together(
        *(
            store.append(make.append(make.key(f"chat-{n:02}"), 7 if n % 3 == 0 else 1))
            for n in range(30)
        )
    )
    for number, outcome in enumerate(outcomes):
        refused = number % 3 == 0
        assert isinstance(outcome, RevisionConflict) == refused, (number, outcome)
        assert await store.head_revision(make.key(f"chat-{number:02}")) == (1 if refused else 2)


async def test_repeat_at_the_head_is_its_own_affair(store, make):
    """A repeat of the newest request has the right base; only its id shows that it is a repeat."""
    for number in range(12):
        await store.append(make.append(make.key(f"chat-{number:02}"), answer=b"first"))
    outcomes = await together(
        *(
            store.append(
                make.append(
                    make.key(f"chat-{n:02}"), 1, request_id="request-1" if n in {4, 9} else "new"
                )
            )
            for n in range(12)
        )
    )
    for number, outcome in enumerate(outcomes):
        assert isinstance(outcome, RequestSeen) == (number in {4, 9}), (number, outcome)
        assert await store.head_revision(make.key(f"chat-{number:02}")) == (
            1 if number in {4, 9} else 2
        )
    assert outcomes[4].change.answer == b"first"


async def test_one_request_sent_many_times_is_stored_once(store, make):
    """A client that retries before it has the answer."""
    outcomes = await together(*(store.append(make.append()) for _ in range(16)))
    assert kinds(outcomes) == {"stored": 1, "RequestSeen": 15}
    seen = [outcome for outcome in outcomes if outcome is not None]
    assert all(outcome.change == make.change(1) for outcome in seen)


async def test_one_task_id_in_many_sessions_has_one_owner(store, make):
    """All sessions are new and the task is unassigned: only one session gets it."""
    names = [f"chat-{number:02}" for number in range(16)]
    outcomes = await together(
        *(store.append(make.append(make.key(name), tasks=(make.task(name),))) for name in names)
    )
    assert kinds(outcomes) == {"stored": 1, "TaskTaken": 15}
    owner = names[outcomes.index(None)]
    taken = [outcome for outcome in outcomes if isinstance(outcome, TaskTaken)]
    assert {outcome.session_id for outcome in taken} == {owner}
    page, _ = await store.list_sessions("acme", CURSOR_START, 100)
    assert [row.key.session_id for row in page] == [owner]


async def test_writes_of_all_kinds_pass_together(store, make):
    """Appends, audit, settings and probes share one queue and do not affect each other."""
    writes = []
    for number in range(20):
        writes += [
            store.append(make.append(make.key(f"chat-{number:02}"))),
            store.append_audit(make.audit(data=b"%d" % number)),
            store.put_setting("acme", f"name-{number}", b"%d" % number),
            store.probe_write(),
            store.append(make.append(make.key(f"chat-{number:02}"), 9)),
        ]
    outcomes = await together(*writes)
    assert kinds(outcomes) == {"stored": 80, "RevisionConflict": 20}
    entries, _ = await store.read_audit("acme", None, CURSOR_START, 100)
    assert sorted(entry.data for entry in entries) == sorted(b"%d" % n for n in range(20))
    assert await store.get_setting("acme", "name-19") == b"19"
    page, _ = await store.list_sessions("acme", CURSOR_START, 100)
    assert [row.revision for row in page] == [1] * 20


async def test_thousand_appends_at_once_are_all_stored(store, make):
    """More than fit into one group."""
    keys = [make.key(f"chat-{number:04}") for number in range(1_000)]
    outcomes = await together(*(store.append(make.append(key)) for key in keys))
    assert outcomes == [None] * 1_000
    found, cursor = [], CURSOR_START
    while True:
        page, cursor = await store.list_sessions("acme", cursor, 300)
        if not page:
            break
        found += [row.key for row in page]
    assert found == keys


async def test_large_appends_at_once_are_all_stored(store, make):
    """A group is limited by bytes too; what does not fit goes into the next one."""
    keys = [make.key(f"chat-{number:02}") for number in range(40)]
    event = b"e" * 250_000
    outcomes = await together(*(store.append(make.append(key, events=event)) for key in keys))
    assert outcomes == [None] * 40
    for key in keys:
        (change,) = await store.read_changes(key, limit=1)
        assert len(change.events) == 250_000


async def test_head_is_seen_as_soon_as_the_append_has_returned(store, make):
    """A read sees every acknowledged write, including other callers'."""

    async def write_and_look(number):
        key = make.key(f"chat-{number}")
        for base in range(10):
            await store.append(make.append(key, base))
            assert await store.head_revision(key) == base + 1
            head = await store.load(key)
            assert head is not None
            assert (head.revision, head.state) == (base + 1, b"state %d" % (base + 1))
            assert await store.find_request(key, "Route", f"request-{base + 1}")

    async with asyncio.TaskGroup() as tasks:
        for number in range(12):
            tasks.create_task(write_and_look(number))


async def test_state_and_revision_are_never_torn(store, make):
    """During writes, a reader always sees a head with that revision's state."""
    done = asyncio.Event()

    async def look():
        while not done.is_set():
            head = await store.load(make.key())
            assert head is None or head.state == b"state %d" % head.revision
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        watchers = [tasks.create_task(look()) for _ in range(3)]
        await make.session(store, make.key(), 60)
        done.set()
    assert all(watcher.done() for watcher in watchers)


@pytest.mark.parametrize("ticks", [0, 1, 2, 3, 5, 8])
async def test_cancelled_append_is_whole_or_nothing(store, make, ticks):
    """A deadline may end a call at any moment; other callers' writes are not affected."""
    key = make.key("cancelled")
    others = [make.key(f"chat-{number}") for number in range(10)]
    cancelled = asyncio.create_task(store.append(make.append(key, tasks=(make.task("cancelled"),))))
    rest = [asyncio.create_task(store.append(make.append(other))) for other in others]
    for _ in range(ticks):
        await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([cancelled, *rest])
    assert [task.exception() for task in rest] == [None] * 10
    # Later calls see the result of the cancelled write.
    await store.probe_write()
    revision = await store.head_revision(key)
    stored = await store.find_request(key, "Route", "request-1")
    task = await store.find_task("acme", "task-1")
    log, _ = await store.read_log(CURSOR_START, 100)
    logged = [change for logged_key, change in log if logged_key == key]
    if revision == 0:
        assert (stored, task, logged) == (None, None, [])
    else:
        assert (revision, stored, logged) == (1, make.change(1), [make.change(1)])
        assert task == make.task("cancelled")
    await store.append(make.append(key, revision, request_id="next"))


async def test_cancelled_append_can_be_repeated(store, make):
    """The client repeats with the same request id and learns the result."""
    for number in range(20):
        key = make.key(f"chat-{number}")
        call = asyncio.create_task(store.append(make.append(key)))
        for _ in range(number % 5):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        (repeat,) = await together(store.append(make.append(key)))
        assert repeat is None or repeat.change == make.change(1), repeat
        assert await store.head_revision(key) == 1


async def test_cancelled_reads_leave_the_store_usable(store, make):
    """A read may be cancelled as well."""
    await make.session(store, make.key(), 5)
    reads = [asyncio.create_task(store.read_changes(make.key(), limit=5)) for _ in range(10)]
    await asyncio.sleep(0)
    for read in reads[::2]:
        read.cancel()
    await asyncio.wait(reads)
    for read in reads[1::2]:
        assert len(read.result()) == 5
    assert await store.head_revision(make.key()) == 5


# One append of a group: session, base relative to the previous one, request, tasks.
DRAWN_APPENDS = st.lists(
    st.lists(
        st.tuples(
            st.integers(0, 5),
            st.sampled_from([0, 0, 0, 0, 0, -1, 1]),
            st.integers(0, 12),
            st.lists(st.integers(0, 8), max_size=2, unique=True),
        ),
        min_size=1,
        max_size=12,
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(groups=DRAWN_APPENDS)
def test_any_groups_have_the_outcome_of_one_after_the_other(engine, make, groups):
    """Grouping affects only speed: the same appends one by one, in groups' order, end the same."""
    end_as_one_after_the_other(engine, make, groups)


@pytest.mark.torture
@pytest.mark.timeout(600)
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(groups=DRAWN_APPENDS)
def test_hundreds_of_groups_have_the_outcome_of_one_after_the_other(engine, make, groups):
    """The long version of the test above."""
    end_as_one_after_the_other(engine, make, groups)


def end_as_one_after_the_other(engine, make, groups):
    """Compare a store that gets the groups with a model that gets their appends.

    The model is the memory engine, fed one append at a time in the order of the sorted group.
    """

    async def run():
        model = MemoryStore()
        store = await engine.open()
        try:
            for group in groups:
                appends = []
                planned = Counter()
                for session, shift, request, task_numbers in group:
                    key = make.key(f"chat-{session}")
                    base = await model.head_revision(key) + planned[key] + shift
                    if shift == 0:
                        planned[key] += 1
                    appends.append(
                        make.append(
                            key,
                            max(base, 0),
                            request_id=f"request-{request}",
                            time_us=100 + request,
                            state=b"%d %d" % (session, request),
                            user_id=f"user-{request}",
                            tasks=tuple(
                                make.task(
                                    key.session_id,
                                    f"task-{number}",
                                    user_id=f"user-{request}",
                                    status=f"status-{request}",
                                    create_us=1 + (request * 7 + number) % 5,
                                    update_us=100 + request,
                                    expire_us=request or None,
                                    data=b"%d" % request,
                                )
                                for number in task_numbers
                            ),
                        )
                    )
                appends.sort(key=lambda append: append.key)
                expected = [await outcome(model, append) for append in appends]
                if engine.engine.sorts_groups:
                    got = await asyncio.gather(*(outcome(store, append) for append in appends))
                else:
                    got = [await outcome(store, append) for append in appends]
                assert got == expected
            assert await contents(store, make) == await contents(model, make)
        finally:
            await store.close()
            engine.opened.clear()
            engine.clear()

    asyncio.run(run())


async def outcome(store, append):
    """Return what an append's caller gets, in a comparable form."""
    try:
        await store.append(append)
    except StoreError as error:
        return str(error)
    return "stored"


async def contents(store, make):
    """Return everything that can be read of the sessions in the groups."""
    found = []
    for number in range(6):
        key = make.key(f"chat-{number}")
        found += [
            await store.load(key),
            await store.read_changes(key, limit=1_000),
            await store.list_tasks(key, limit=1_000),
        ]
    sessions, _ = await store.list_sessions("acme", CURSOR_START, 100)
    return [*found, sessions]
