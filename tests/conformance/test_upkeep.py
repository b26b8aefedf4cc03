"""Maintenance of sessions between calls: due times, leases, erasing, deleting."""

import asyncio

import pytest
from msgspec import structs

from routing_service.storage.store import (
    CURSOR_START,
    ERASE_CHANGES_MAX,
    INT_MAX,
    AppendRefused,
    Head,
    RequestSeen,
    RevisionConflict,
    TaskTaken,
    TooLarge,
)

CANARY = b"canary"


async def due(store, now_us, limit=100):
    """Return the sessions that are due."""
    return [key.session_id for key in await store.due_sessions(now_us, limit)]


async def test_due_sessions_come_earliest_first(store, make):
    """Of all tenants; a session is due from due_us = now_us on."""
    for session_id, due_us in [("c", 30), ("a", 10), ("d", 41), ("b", 20), ("e", None)]:
        append = make.append(make.key(session_id))
        await store.append(structs.replace(append, due_us=due_us))
    other = make.append(make.key("other", tenant="zeta"))
    await store.append(structs.replace(other, due_us=25))
    assert await due(store, 9) == []
    assert await due(store, 40) == ["a", "b", "other", "c"]
    assert await due(store, 40, limit=2) == ["a", "b"]
    assert await due(store, INT_MAX) == ["a", "b", "other", "c", "d"]
    assert (await store.due_sessions(25, 10))[-1] == make.key("other", tenant="zeta")


async def test_due_time_is_replaced_by_each_append(store, make):
    """The latest append decides, also if it has no due time."""
    for base, due_us, found in [
        (0, 50, ["chat-1"]),
        (1, 90, []),
        (2, 20, ["chat-1"]),
        (3, None, []),
        (4, 0, ["chat-1"]),
    ]:
        await store.append(structs.replace(make.append(base=base), due_us=due_us))
        assert await due(store, 60) == found


async def test_due_times_of_a_large_group_are_each_ones_own(store, make):
    """Appends that wait together are written together, for new and old sessions."""
    for base in range(2):
        appends = [
            structs.replace(
                make.append(make.key(f"chat-{n:02}"), base),
                due_us=(base * 100 + n) if n % 3 else None,
            )
            for n in range(40)
        ]
        await asyncio.gather(*(store.append(append) for append in appends))
    wanted = [f"chat-{n:02}" for n in range(40) if n % 3]
    assert await due(store, 99) == []
    assert await due(store, 1_000) == wanted


async def test_refused_append_leaves_the_due_time(store, make):
    """The due time is part of the change."""
    await store.append(structs.replace(make.append(), due_us=5))
    late = structs.replace(make.append(request_id="late"), due_us=None)
    with pytest.raises(RevisionConflict):
        await store.append(late)
    assert await due(store, 10) == ["chat-1"]


async def test_due_time_that_no_engine_can_hold_is_refused(store, make):
    """The same check as for every number."""
    for due_us in (-1, INT_MAX + 1):
        with pytest.raises(AppendRefused):
            await store.append(structs.replace(make.append(), due_us=due_us))
    assert await store.head_revision(make.key()) == 0


async def test_due_times_outlive_the_process(lasting_engine, make):
    """Timeouts from a time without a running service are found at the start."""
    store = await lasting_engine.open()
    await store.append(structs.replace(make.append(), due_us=5))
    await store.close()
    assert await due(await lasting_engine.open(), 5) == ["chat-1"]


async def test_lease_is_one_holders_until_its_end(store):
    """Its holder can renew it, others are refused, and it is free again after its end."""
    assert await store.acquire_lease("sweep", "a", 100, 200)
    assert not await store.acquire_lease("sweep", "b", 199, 300)
    assert await store.acquire_lease("sweep", "a", 150, 250)
    assert not await store.acquire_lease("sweep", "b", 249, 300)
    assert await store.acquire_lease("sweep", "b", 250, 300)
    assert not await store.acquire_lease("sweep", "a", 260, 400)


async def test_leases_are_by_name(store):
    """The lease for sweeping does not block the one for folding figures."""
    assert await store.acquire_lease("sweep", "a", 100, 200)
    assert await store.acquire_lease("fold", "b", 100, 200)
    assert not await store.acquire_lease("fold", "a", 100, 200)


async def test_lease_given_up_is_free_at_once(store):
    """Also for a process whose clock is behind; only the holder can release it."""
    assert await store.acquire_lease("sweep", "a", 100, 200)
    assert not await store.acquire_lease("sweep", "b", 150, 150)
    assert not await store.acquire_lease("sweep", "b", 150, 250)
    assert await store.acquire_lease("sweep", "a", 160, 160)
    assert await store.acquire_lease("sweep", "b", 10, 250)


async def test_lease_asked_for_by_many_at_once_has_one_holder(engine):
    """Two replicas are two opened stores, if the engine allows that."""
    stores = [await engine.open()]
    if stores[0].shared_writers:
        stores.append(await engine.open())
    for round_us in (100, 200, 300):
        taken = await asyncio.gather(
            *(
                store.acquire_lease("sweep", f"{number}-{place}", round_us, round_us + 100)
                for number, store in enumerate(stores)
                for place in range(8)
            )
        )
        assert sum(taken) == 1


@pytest.mark.parametrize("fields", [("", "a", 1, 2), ("n", "", 1, 2), ("n", "a\0", 1, 2)])
async def test_lease_that_no_engine_can_hold_is_refused(store, fields):
    """The rules are those of all names."""
    with pytest.raises(AppendRefused):
        await store.acquire_lease(*fields)


async def talk(store, make, key, changes):
    """Store a session with content in every field that can have some, and audit entries."""
    task = make.task(key.session_id, f"task of {key.session_id}", user_id="ana", data=CANARY)
    await asyncio.gather(
        *(
            store.append(
                make.append(
                    key,
                    base,
                    tasks=(task,) if base == 0 else (),
                    fingerprint=CANARY,
                    events=CANARY + b" %d" % base,
                    answer=CANARY,
                )
            )
            for base in range(changes)
        )
    )
    for _ in range(2):
        await store.append_audit(make.audit(key.session_id, key.tenant, data=CANARY))


async def everything(store, key):
    """Read all that the store has of a session."""
    changes = await store.read_changes(key, limit=1_000)
    requests = [await store.find_request(key, "Route", c.request_id) for c in changes]
    log, _ = await store.read_log(CURSOR_START, 1_000)
    return {
        "head": await store.load(key),
        "changes": changes,
        "requests": requests,
        "log": [change for owner, change in log if owner == key],
        "tasks": await store.list_tasks(key, limit=1_000),
        "audit": (await store.read_audit(key.tenant, key.session_id, CURSOR_START, 1_000))[0],
    }


async def test_erasing_takes_the_content_and_keeps_the_order(store, make):
    """Everything before a revision, over several transactions; other sessions are unchanged."""
    changes = ERASE_CHANGES_MAX + 12
    key, beside, other = make.key(), make.key("chat-2"), make.key(tenant="other")
    for session, count in ((key, changes), (beside, 2), (other, 2)):
        await talk(store, make, session, count)
    before = await everything(store, key)
    kept = [await everything(store, session) for session in (beside, other)]
    upto = changes - 2

    assert await store.erase_before(key, upto, b"blank") == upto - 1

    wanted = [
        structs.replace(change, events=b"blank", answer=b"", fingerprint=b"")
        if change.revision < upto
        else change
        for change in before["changes"]
    ]
    found = await everything(store, key)
    assert found["changes"] == found["requests"] == found["log"] == wanted
    assert found["head"] == before["head"]
    for name in ("tasks", "audit"):
        assert found[name] == [structs.replace(row, user_id="", data=b"") for row in before[name]]
    assert [await everything(store, session) for session in (beside, other)] == kept
    rows, _ = await store.list_sessions("acme", CURSOR_START, 10)
    assert [(row.key, row.user_id) for row in rows] == [(key, ""), (beside, "ana")]
    assert CANARY not in repr([found["changes"][: upto - 1], found["tasks"]]).encode()


async def test_erasing_again_finds_nothing_left(store, make):
    """An interrupted caller calls again; the answer counts only this call's work."""
    await talk(store, make, make.key(), 6)
    assert await store.erase_before(make.key(), 4, b"blank") == 3
    after = await everything(store, make.key())
    assert await store.erase_before(make.key(), 4, b"blank") == 0
    assert await everything(store, make.key()) == after
    assert await store.erase_before(make.key(), 100, b"blank") == 3
    assert await store.erase_before(make.key(), INT_MAX, b"blank") == 0


async def test_erasing_nothing_is_no_error(store, make):
    """An unknown session can only have audit entries; before revision 1 there is nothing."""
    await store.append_audit(make.audit("never-stored", data=CANARY))
    assert await store.erase_before(make.key("never-stored"), 5, b"") == 0
    (entry,), _ = await store.read_audit("acme", "never-stored", CURSOR_START, 10)
    assert entry == make.audit("never-stored", user_id="", data=b"")
    assert await store.load(make.key("never-stored")) is None
    await make.session(store, make.key(), 1)
    for revision in (0, 1):
        assert await store.erase_before(make.key(), revision, b"") == 0
    assert await store.read_changes(make.key(), limit=5) == [make.change(1)]


async def test_repeat_of_an_erased_request_is_still_known(store, make):
    """It must not be handled as a new request."""
    await talk(store, make, make.key(), 3)
    await store.erase_before(make.key(), 4, b"blank")
    with pytest.raises(RequestSeen) as seen:
        await store.append(make.append(base=3, request_id="request-2"))
    assert seen.value.change.revision == 2
    assert seen.value.change.answer == b""


async def test_blank_that_no_change_can_have_is_refused(store, make):
    """A blanked change must still fit into every engine."""
    await make.session(store, make.key(), 2)
    with pytest.raises(TooLarge):
        await store.erase_before(make.key(), 3, b"x" * (300 * 1024 + 1))
    assert await store.read_changes(make.key(), limit=5) == [make.change(1), make.change(2)]


async def test_session_goes_on_while_it_is_erased(store, make):
    """A concurrent append comes before or after, and neither is lost."""
    await talk(store, make, make.key(), 30)
    erased, *stored = await asyncio.gather(
        store.erase_before(make.key(), 21, b"blank"),
        *(store.append(make.append(base=base)) for base in range(30, 40)),
    )
    assert erased == 20
    assert stored == [None] * 10
    changes = await store.read_changes(make.key(), limit=100)
    assert [change.revision for change in changes] == list(range(1, 41))
    assert [change.events == b"blank" for change in changes] == [True] * 20 + [False] * 20


async def test_erased_bytes_stay_away_after_reopening(lasting_engine, make):
    """The erasure is durable when the call returns."""
    store = await lasting_engine.open()
    await talk(store, make, make.key(), 3)
    await store.erase_before(make.key(), 4, b"blank")
    after = await everything(store, make.key())
    await store.close()
    assert await everything(await lasting_engine.open(), make.key()) == after


async def test_deleted_session_leaves_nothing_but_its_audit(store, make):
    """Its ids are free again; a session that uses them is a new one."""
    for session in (make.key(), make.key("chat-2"), make.key(tenant="other")):
        await talk(store, make, session, 3)
    await store.append(structs.replace(make.append(base=3), due_us=5))
    kept = [await everything(store, k) for k in (make.key("chat-2"), make.key(tenant="other"))]

    await store.delete_session(make.key(), 4)

    audit = [make.audit(user_id="", data=b"")] * 2
    nothing = {"head": None, "changes": [], "requests": [], "log": [], "tasks": []}
    assert await everything(store, make.key()) == nothing | {"audit": audit}
    assert await store.head_revision(make.key()) == 0
    assert await store.find_task("acme", "task of chat-1") is None
    assert await due(store, 100) == []
    (row,), _ = await store.list_sessions("acme", CURSOR_START, 10)
    assert row.key == make.key("chat-2")
    kept_now = [await everything(store, k) for k in (make.key("chat-2"), make.key(tenant="other"))]
    assert kept_now == kept

    task = make.task("chat-2", "task of chat-1")
    await store.append(make.append(make.key("chat-2"), 3, tasks=(task,)))
    await store.append(make.append(user_id="bo"))
    assert await store.load(make.key()) == Head(1, b"state 1")
    with pytest.raises(TaskTaken):
        await store.append(make.append(base=1, tasks=(make.task(task_id="task of chat-1"),)))


async def test_deleting_is_refused_elsewhere_than_at_the_revision(store, make):
    """The session has changed or is gone, so the caller must look again."""
    await talk(store, make, make.key(), 3)
    before = await everything(store, make.key())
    for revision, session_id, actual in [(2, "chat-1", 3), (0, "chat-1", 3), (1, "chat-9", 0)]:
        with pytest.raises(RevisionConflict) as conflict:
            await store.delete_session(make.key(session_id), revision)
        assert (conflict.value.base_revision, conflict.value.actual_revision) == (revision, actual)
    assert await everything(store, make.key()) == before


async def test_deleting_what_is_not_there_blanks_its_audit(store, make):
    """Revision 0: a refusal may have been recorded for a session that was never stored."""
    await store.append_audit(make.audit("never-stored", data=CANARY))
    await store.delete_session(make.key("never-stored"), 0)
    (entry,), _ = await store.read_audit("acme", "never-stored", CURSOR_START, 10)
    assert entry == make.audit("never-stored", user_id="", data=b"")


async def test_delete_or_append_wins_and_never_half_of_both(store, make):
    """A message arrives while the session is being purged."""
    keys = [make.key(f"chat-{number:02}") for number in range(12)]
    for key in keys:
        await make.session(store, key, 2)
    outcomes = await asyncio.gather(
        *(store.delete_session(key, 2) for key in keys[::2]),
        *(store.append(make.append(key, 2)) for key in keys),
        *(store.delete_session(key, 2) for key in keys[1::2]),
        return_exceptions=True,
    )
    assert {type(outcome) for outcome in outcomes} <= {type(None), RevisionConflict}
    deletes = dict(zip(keys[::2] + keys[1::2], outcomes[:6] + outcomes[18:], strict=True))
    appends = dict(zip(keys, outcomes[6:18], strict=True))
    for key in keys:
        assert (deletes[key] is None) != (appends[key] is None)
        changes = await store.read_changes(key, limit=10)
        assert [change.revision for change in changes] == ([1, 2, 3] if deletes[key] else [])
        assert await store.head_revision(key) == len(changes)


async def test_cursors_stay_good_after_a_delete(store, make):
    """Cursors before, within and after the deleted part; new changes come after the end."""
    keys = [make.key(name) for name in ("a", "b", "c")]
    for base in range(3):
        for key in keys:
            await store.append(make.append(key, base))
    cursors, cursor = [CURSOR_START], CURSOR_START
    for _ in range(9):
        _, cursor = await store.read_log(cursor, 1)
        cursors.append(cursor)
    _, list_cursor = await store.list_sessions("acme", CURSOR_START, 2)
    await store.delete_session(make.key("b"), 3)
    await store.delete_session(make.key("c"), 3)
    for place, cursor in enumerate(cursors):
        page, _ = await store.read_log(cursor, 10)
        found = [(key.session_id, change.revision) for key, change in page]
        assert found == [("a", n // 3 + 1) for n in range(9) if n % 3 == 0 and n >= place]
    end = await store.log_end()
    await store.append(make.append(make.key("b")))
    for cursor in (end, cursors[-1]):
        page, _ = await store.read_log(cursor, 10)
        assert [(key.session_id, change.revision) for key, change in page] == [("b", 1)]
    page, _ = await store.list_sessions("acme", list_cursor, 10)
    assert page == []


async def test_erasing_does_not_move_the_log(store, make):
    """A watcher sees each change once, erased or not."""
    await make.session(store, make.key(), 6)
    page, cursor = await store.read_log(CURSOR_START, 3)
    await store.erase_before(make.key(), 7, b"blank")
    rest, end = await store.read_log(cursor, 10)
    assert [change.revision for _, change in page + rest] == [1, 2, 3, 4, 5, 6]
    assert {change.events for _, change in rest} == {b"blank"}
    assert (await store.read_log(end, 10))[0] == []
