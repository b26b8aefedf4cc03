"""One append: stored completely, or refused without a trace."""

import asyncio

import pytest
from msgspec import structs

from routing_service.storage.store import (
    APPEND_TASKS_MAX,
    CHANGE_BYTES_MAX,
    CURSOR_START,
    INT_MAX,
    STATE_BYTES_MAX,
    AppendRefused,
    Head,
    RequestSeen,
    RevisionConflict,
    TaskTaken,
    TooLarge,
)

ODD_TEXTS = [
    "español ñandú",
    "日本語の会話",
    "👩‍👩‍👧 family",
    "e\u0301 stays decomposed",
    "' OR 1=1 --",
    "%_\\*?",
    "\t\r\n\x01",
    "x" * 512,
    "ñ" * 256,
]
ODD_BYTES = [b"", b"\0", bytes(range(256)), b"\xff\xfe not utf-8", b"';--", b"\0" * 70_000]


async def snapshot(store, *keys):
    """Return everything that a refused append must leave unchanged."""
    log, _ = await store.read_log(CURSOR_START, 1_000)
    return log, [(await store.load(key), await store.list_tasks(key, limit=1_000)) for key in keys]


async def test_first_append_makes_the_session(store, make):
    """A session exists from its first change."""
    assert await store.load(make.key()) is None
    assert await store.head_revision(make.key()) == 0
    await store.append(make.append())
    assert await store.load(make.key()) == Head(1, b"state 1")
    assert await store.head_revision(make.key()) == 1


async def test_a_change_is_read_back_field_by_field(store, make):
    """A repeat gets the first answer's exact bytes, so no field may be lost or altered."""
    change = make.change(
        1,
        time_us=1_700_000_000_123_456,
        method="CompleteTurn",
        request_id="0193-a",
        actor="billing",
        fingerprint=b"\x01\x02",
        events=b"\x03",
        answer=b"\x04\x05\x06",
    )
    append = structs.replace(make.append(), change=change)
    await store.append(append)
    assert await store.read_changes(make.key(), limit=10) == [change]


async def test_state_is_replaced_by_every_append(store, make):
    """The head's state is read, never an earlier one."""
    await store.append(make.append(state=b"long " * 1_000))
    await store.append(make.append(base=1, state=b"short"))
    assert await store.load(make.key()) == Head(2, b"short")


async def test_wrong_base_is_a_conflict_that_writes_nothing(store, make):
    """Of two replicas that decided on the same revision, the second must decide again."""
    task = make.task()
    await make.session(store, make.key(), 2)
    before = await snapshot(store, make.key())
    with pytest.raises(RevisionConflict) as raised:
        await store.append(make.append(base=1, request_id="another", tasks=(task,)))
    conflict = raised.value
    assert (conflict.key, conflict.base_revision, conflict.actual_revision) == (make.key(), 1, 2)
    assert await snapshot(store, make.key()) == before
    assert await store.find_request(make.key(), "Route", "another") is None


async def test_base_ahead_of_the_head_is_a_conflict(store, make):
    """A cache that is newer than a restored backup must not leave a gap."""
    await store.append(make.append())
    with pytest.raises(RevisionConflict) as raised:
        await store.append(make.append(base=5))
    assert raised.value.actual_revision == 1
    assert await store.read_changes(make.key(), limit=10) == [make.change(1)]


async def test_base_of_a_session_that_is_not_there_is_a_conflict(store, make):
    """A missing session has the revision 0."""
    with pytest.raises(RevisionConflict) as raised:
        await store.append(make.append(base=3))
    assert raised.value.actual_revision == 0
    assert await store.load(make.key()) is None


async def test_new_session_that_exists_is_a_conflict(store, make):
    """Of two concurrent first messages, one creates the session."""
    await store.append(make.append())
    with pytest.raises(RevisionConflict) as raised:
        await store.append(make.append(request_id="another"))
    assert raised.value.actual_revision == 1


async def test_repeated_request_gets_the_first_change(store, make):
    """A retry after a lost answer must get the answer, not a conflict."""
    await store.append(make.append(answer=b"first answer"))
    await store.append(make.append(base=1))
    before = await snapshot(store, make.key())
    with pytest.raises(RequestSeen) as raised:
        await store.append(make.append(base=2, request_id="request-1", answer=b"second"))
    assert raised.value.change == make.change(1, answer=b"first answer")
    assert raised.value.key == make.key()
    assert await snapshot(store, make.key()) == before


@pytest.mark.parametrize("base", [0, 1, 7])
async def test_request_seen_comes_before_a_conflict(store, make, base):
    """A repeat usually has an old base; its caller needs the first answer."""
    await make.session(store, make.key(), 3)
    with pytest.raises(RequestSeen) as raised:
        await store.append(make.append(base=base, request_id="request-2"))
    assert raised.value.change.revision == 2


async def test_request_seen_comes_before_a_taken_task(store, make):
    """The first answer is given again even if the repeat is wrong in other ways."""
    other = make.key("chat-2")
    await store.append(make.append(other, tasks=(make.task("chat-2"),)))
    await store.append(make.append())
    with pytest.raises(RequestSeen):
        await store.append(make.append(base=1, request_id="request-1", tasks=(make.task(),)))


async def test_conflict_comes_before_a_taken_task(store, make):
    """After a reload the task may differ, so the conflict is reported first."""
    await store.append(make.append(make.key("chat-2"), tasks=(make.task("chat-2"),)))
    await store.append(make.append())
    with pytest.raises(RevisionConflict):
        await store.append(make.append(base=0, request_id="another", tasks=(make.task(),)))


async def test_taken_task_writes_nothing(store, make):
    """A task id of another session must not carry data from one user to another."""
    owner = make.key("chat-2")
    await store.append(make.append(owner, tasks=(make.task("chat-2", data=b"theirs"),)))
    await store.append(make.append())
    before = await snapshot(store, make.key(), owner)
    with pytest.raises(TaskTaken) as raised:
        await store.append(
            make.append(base=1, tasks=(make.task(task_id="task-0"), make.task(data=b"mine")))
        )
    assert (raised.value.task_id, raised.value.session_id) == ("task-1", "chat-2")
    assert await snapshot(store, make.key(), owner) == before
    assert await store.find_task("acme", "task-0") is None


async def test_taken_task_makes_no_session(store, make):
    """A refused first append leaves no session behind."""
    await store.append(make.append(make.key("chat-2"), tasks=(make.task("chat-2"),)))
    with pytest.raises(TaskTaken):
        await store.append(make.append(tasks=(make.task(),)))
    assert await store.load(make.key()) is None
    page, _ = await store.list_sessions("acme", CURSOR_START, 10)
    assert [row.key for row in page] == [make.key("chat-2")]


async def test_refused_append_can_be_made_right(store, make):
    """A refusal leaves nothing that blocks the corrected append."""
    await store.append(make.append(make.key("chat-2"), tasks=(make.task("chat-2"),)))
    with pytest.raises(TaskTaken):
        await store.append(make.append(tasks=(make.task(),)))
    await store.append(make.append(tasks=(make.task(task_id="task-2"),)))
    assert await store.load(make.key()) == Head(1, b"state 1")


async def test_request_id_is_unique_by_session_method_and_actor(store, make):
    """The same id in another method, by another agent or in another session is another request."""
    same = {"request_id": "same"}
    await store.append(make.append(base=0, method="CompleteTurn", actor="a", **same))
    await store.append(make.append(base=1, method="CompleteTurn", actor="b", **same))
    await store.append(make.append(base=2, method="Route", actor="a", **same))
    await store.append(make.append(base=3, method="Route", actor="", **same))
    await store.append(make.append(make.key("chat-2"), method="Route", actor="", **same))
    await store.append(make.append(make.key(tenant="other"), method="Route", actor="", **same))
    assert await store.head_revision(make.key()) == 4
    with pytest.raises(RequestSeen) as raised:
        await store.append(make.append(base=4, method="CompleteTurn", actor="b", **same))
    assert raised.value.change.revision == 2


async def test_changes_without_request_id_never_collide(store, make):
    """The service's own changes, such as an expiry, have no request."""
    for base in range(3):
        await store.append(make.append(base=base, request_id="", method=""))
    assert await store.head_revision(make.key()) == 3
    assert await store.find_request(make.key(), "", "") is None


async def test_find_request_reads_what_append_stored(store, make):
    """Finds the first answer without an append."""
    await store.append(make.append(method="CompleteTurn", request_id="r", actor="billing"))
    stored = make.change(1, method="CompleteTurn", request_id="r", actor="billing")
    assert await store.find_request(make.key(), "CompleteTurn", "r", "billing") == stored
    assert await store.find_request(make.key(), "CompleteTurn", "r") is None
    assert await store.find_request(make.key(), "Route", "r", "billing") is None
    assert await store.find_request(make.key(), "CompleteTurn", "R", "billing") is None
    assert await store.find_request(make.key("chat-2"), "CompleteTurn", "r", "billing") is None


@pytest.mark.parametrize("text", ODD_TEXTS, ids=range(len(ODD_TEXTS)))
async def test_texts_are_kept_as_they_are(store, make, text):
    """Ids are free-form: no engine may fold, trim, escape or normalise them."""
    key = make.key(text, tenant=text)
    await store.append(
        make.append(
            key,
            method=text,
            request_id=text,
            actor=text,
            user_id=text,
            tasks=(make.task(text, task_id=text, user_id=text, status=text),),
        )
    )
    stored = await store.find_request(key, text, text, text)
    assert stored == make.change(1, method=text, request_id=text, actor=text)
    task = await store.find_task(text, text)
    assert task == make.task(text, task_id=text, user_id=text, status=text)
    rows, _ = await store.list_sessions(text, CURSOR_START, 10)
    assert [(row.key, row.user_id) for row in rows] == [(key, text)]


@pytest.mark.parametrize("value", ODD_BYTES, ids=range(len(ODD_BYTES)))
async def test_bytes_are_kept_as_they_are(store, make, value):
    """The store does not interpret bytes."""
    await store.append(
        make.append(
            state=value[:STATE_BYTES_MAX],
            fingerprint=value,
            events=value,
            answer=value,
            tasks=(make.task(data=value),),
        )
    )
    (change,) = await store.read_changes(make.key(), limit=1)
    assert (change.fingerprint, change.events, change.answer) == (value, value, value)
    assert await store.load(make.key()) == Head(1, value[:STATE_BYTES_MAX])
    task = await store.find_task("acme", "task-1")
    assert task is not None
    assert task.data == value


async def test_ids_that_differ_in_form_only_are_different(store, make):
    """Case, the form of accents and trailing spaces make different sessions."""
    names = ["chat", "Chat", "chat ", "e\u0301", "\u00e9"]
    for name in names:
        await store.append(make.append(make.key(name), state=name.encode()))
    heads = [await store.load(make.key(name)) for name in names]
    assert heads == [Head(1, name.encode()) for name in names]


async def test_largest_change_is_stored(store, make):
    """300 KB of events and answer fit on every engine, with the largest state and tasks as well."""
    half = CHANGE_BYTES_MAX // 2
    tasks = tuple(
        make.task(task_id=f"task-{number}", data=b"t" * CHANGE_BYTES_MAX)
        for number in range(APPEND_TASKS_MAX)
    )
    append = make.append(
        state=b"s" * STATE_BYTES_MAX,
        fingerprint=b"",
        events=b"e" * half,
        answer=b"a" * (CHANGE_BYTES_MAX - half),
        tasks=tasks,
    )
    await store.append(append)
    assert await store.read_changes(make.key(), limit=1) == [append.change]
    assert await store.load(make.key()) == Head(1, append.state)
    assert await store.list_tasks(make.key(), limit=10) == list(tasks)


@pytest.mark.parametrize("what", ["change", "state", "task"])
async def test_one_byte_too_much_is_refused(store, make, what):
    """A value that one engine refuses is refused by all, so that data can be moved."""
    parts = {
        "change": {"fingerprint": b"", "answer": b"", "events": b"e" * (CHANGE_BYTES_MAX + 1)},
        "state": {"state": b"s" * (STATE_BYTES_MAX + 1)},
        "task": {"tasks": (make.task(data=b"t" * (CHANGE_BYTES_MAX + 1)),)},
    }
    with pytest.raises(TooLarge) as raised:
        await store.append(make.append(**parts[what]))
    assert raised.value.what == what
    assert raised.value.size_bytes == raised.value.bytes_max + 1
    assert await store.load(make.key()) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("request_id", "\ud800"),
        ("request_id", "a\0b"),
        ("actor", "x" * 513),
        ("method", "ñ" * 257),
        ("user_id", "a\0"),
        ("time_us", -1),
        ("time_us", INT_MAX + 1),
    ],
)
async def test_value_that_some_engine_cannot_hold_is_refused(store, make, field, value):
    """Checked before the write, so that it cannot fail a group with other callers' writes."""
    with pytest.raises(AppendRefused):
        await store.append(make.append(**{field: value}))
    assert await store.load(make.key()) is None
    await store.append(make.append())


@pytest.mark.parametrize(
    ("tenant", "session_id"), [("", "chat-1"), ("acme", ""), ("a\0", "chat-1"), ("acme", "\udfff")]
)
async def test_session_needs_a_name_that_can_be_stored(store, make, tenant, session_id):
    """Sessions with an empty name would be shared by all callers."""
    with pytest.raises(AppendRefused):
        await store.append(make.append(make.key(session_id, tenant=tenant)))


async def test_largest_numbers_are_kept(store, make):
    """Times are 64-bit everywhere and are never rounded through a float."""
    await store.append(
        make.append(
            time_us=INT_MAX - 1,
            tasks=(make.task(create_us=0, update_us=INT_MAX, expire_us=INT_MAX - 2),),
        )
    )
    (change,) = await store.read_changes(make.key(), limit=1)
    task = await store.find_task("acme", "task-1")
    assert change.time_us == INT_MAX - 1
    assert task is not None
    assert (task.create_us, task.update_us, task.expire_us) == (0, INT_MAX, INT_MAX - 2)


async def test_revision_that_does_not_follow_its_base_is_our_mistake(store, make):
    """The check is before every engine, so that a gap is never stored."""
    with pytest.raises(AssertionError):
        await store.append(structs.replace(make.append(), base_revision=1))
    assert await store.load(make.key()) is None


async def test_tenants_do_not_see_each_other(store, make):
    """The same ids in another tenant are other sessions, tasks, requests and settings."""
    await store.append(make.append(state=b"theirs", tasks=(make.task(data=b"theirs"),)))
    mine = make.key(tenant="other")
    assert await store.load(mine) is None
    assert await store.find_task("other", "task-1") is None
    assert await store.find_request(mine, "Route", "request-1") is None
    await store.append(make.append(mine, state=b"mine", tasks=(make.task(data=b"mine"),)))
    assert await store.load(mine) == Head(1, b"mine")
    assert await store.load(make.key()) == Head(1, b"theirs")
    task = await store.find_task("acme", "task-1")
    assert task is not None
    assert task.data == b"theirs"


async def test_append_that_was_decided_on_a_purged_session_is_a_conflict(store, make):
    """Another session was begun under its name, and is at the same revision by now."""
    await store.append(make.append())
    first = (await store.find_session(make.key())).create_us
    await store.delete_session(make.key(), 1)
    begun = make.append()
    begun = structs.replace(begun, change=structs.replace(begun.change, time_us=first + 7))
    await store.append(begun)
    late = make.append(base=1)
    for outdated in (first, first + 6):
        with pytest.raises(RevisionConflict) as conflict:
            await store.append(structs.replace(late, begun_us=outdated))
        assert conflict.value.actual_revision == 1
    assert await store.head_revision(make.key()) == 1
    await store.append(structs.replace(late, begun_us=first + 7))
    # Of a session that is gone there is none to write on; a group finds the same as one alone.
    await store.delete_session(make.key(), 2)
    with pytest.raises(RevisionConflict):
        await store.append(structs.replace(late, begun_us=first))
    other = [make.append(make.key(f"g{n}")) for n in range(9)]
    await asyncio.gather(*(store.append(each) for each in other))
    at_us = other[0].change.time_us
    again = [
        structs.replace(make.append(each.key, 1), begun_us=at_us + (n == 4))
        for n, each in enumerate(other)
    ]
    outcomes = await asyncio.gather(*map(store.append, again), return_exceptions=True)
    assert [type(each).__name__ for each in outcomes if each] == ["RevisionConflict"]
    assert isinstance(outcomes[4], RevisionConflict)
