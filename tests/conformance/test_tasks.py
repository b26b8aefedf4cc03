"""Tasks: updated by the change that touched them, listed in order of creation."""

import pytest
from msgspec import structs

from routing_service.storage.store import TASKS_START, TaskCursor, TaskTaken


async def all_tasks(store, key, limit):
    """Read the session's tasks to the end in pages."""
    found, place = [], TASKS_START
    while page := await store.list_tasks(key, after=place, limit=limit):
        found += page
        place = page[-1].cursor
    return found


async def test_task_is_read_back_field_by_field(store, make):
    """By its id alone within the tenant: a task id without a session finds its session."""
    task = make.task(
        user_id="bo",
        status="paused",
        create_us=5,
        update_us=6,
        expire_us=7,
        data=b"\0\xff",
    )
    await store.append(make.append(tasks=(task,)))
    assert await store.find_task("acme", "task-1") == task
    assert await store.list_tasks(make.key(), limit=5) == [task]


async def test_unknown_task_is_none(store, make):
    """An unknown task is not an error here; the caller decides."""
    await store.append(make.append())
    assert await store.find_task("acme", "task-1") is None
    assert await store.find_task("nobody", "task-1") is None
    assert await store.list_tasks(make.key(), limit=5) == []
    assert await store.list_tasks(make.key("chat-9"), limit=5) == []


async def test_later_append_updates_the_task(store, make):
    """The row has the task's state after the latest change: status, times, data, expiry."""
    await store.append(make.append(tasks=(make.task(expire_us=9_000),)))
    done = make.task(status="completed", update_us=3_000, expire_us=None, data=b"done")
    await store.append(make.append(base=1, tasks=(done,)))
    assert await store.find_task("acme", "task-1") == done
    assert await store.list_tasks(make.key(), limit=5) == [done]


async def test_update_cannot_move_a_task_in_its_list(store, make):
    """A task that moved during paging would be skipped or listed twice."""
    tasks = tuple(make.task(task_id=f"task-{n}", create_us=n) for n in (1, 2, 3))
    await store.append(make.append(tasks=tasks))
    moved = make.task(task_id="task-1", create_us=99, status="completed")
    await store.append(make.append(base=1, tasks=(moved,)))
    listed = await store.list_tasks(make.key(), limit=5)
    assert [task.task_id for task in listed] == ["task-1", "task-2", "task-3"]
    assert listed[0] == structs.replace(moved, create_us=1)


async def test_append_without_tasks_leaves_them(store, make):
    """Most changes touch no task."""
    await store.append(make.append(tasks=(make.task(),)))
    await store.append(make.append(base=1))
    assert await store.list_tasks(make.key(), limit=5) == [make.task()]


async def test_tasks_are_listed_by_creation_then_id(store, make):
    """Tasks made in the same microsecond still have one order."""
    made = [("b", 2), ("a", 2), ("c", 1), ("d", 3), ("A", 2), ("ñ", 2), ("z", 2)]
    for base, (task_id, create_us) in enumerate(made):
        task = make.task(task_id=task_id, create_us=create_us)
        await store.append(make.append(base=base, tasks=(task,)))
    listed = await store.list_tasks(make.key(), limit=10)
    assert [task.task_id for task in listed] == ["c", "A", "a", "b", "z", "ñ", "d"]


async def test_pages_of_tasks_fit_together(store, make):
    """Every task once, with many of the same time on both sides of a page's edge."""
    expected = []
    for base in range(30):
        task = make.task(task_id=f"task-{(base * 17) % 30:02}", create_us=1 + base // 10)
        expected.append(task)
        await store.append(make.append(base=base, tasks=(task,)))
    await store.append(make.append(make.key("chat-2"), tasks=(make.task("chat-2", "other"),)))
    expected.sort(key=lambda task: task.cursor)
    for limit in (1, 7, 30, 31):
        assert await all_tasks(store, make.key(), limit) == expected, limit


async def test_place_between_tasks_need_not_be_a_task(store, make):
    """A page token stays valid after its task is gone."""
    tasks = tuple(make.task(task_id=f"task-{n}", create_us=n * 10) for n in (1, 2, 3))
    await store.append(make.append(tasks=tasks))
    page = await store.list_tasks(make.key(), after=TaskCursor(15, "gone"), limit=5)
    assert [task.task_id for task in page] == ["task-2", "task-3"]
    assert await store.list_tasks(make.key(), after=TaskCursor(2**70, ""), limit=5) == []


async def test_task_keeps_its_session(store, make):
    """The id still belongs to the session after the task is closed."""
    done = make.task(status="completed")
    await store.append(make.append(tasks=(done,)))
    with pytest.raises(TaskTaken):
        await store.append(make.append(make.key("chat-2"), tasks=(make.task("chat-2"),)))
    assert await store.find_task("acme", "task-1") == done


async def test_one_append_may_touch_several_tasks(store, make):
    """Closing one task and opening the next is one change."""
    await store.append(make.append(tasks=(make.task(),)))
    closed = make.task(status="cancelled", update_us=5_000)
    opened = make.task(task_id="task-2", create_us=5_000)
    await store.append(make.append(base=1, tasks=(closed, opened)))
    assert await store.list_tasks(make.key(), limit=5) == [closed, opened]
