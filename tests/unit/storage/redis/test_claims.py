"""Task ids are unique in their tenant, though a claim and its task are in two slots.

Two stores stand for two replicas of the service. Interrupted steps are made by hand.
"""

import asyncio

import pytest

from routing_service.storage.open_store import redis_place
from routing_service.storage.redis.bounds import DEFAULT_BOUNDS, RedisBounds
from routing_service.storage.redis.keys import Keys
from routing_service.storage.redis.scripts import script_call
from routing_service.storage.redis.store import open_redis_store
from routing_service.storage.redis.writer import TOKEN_BYTES, AppendWriter, fence_command
from routing_service.storage.store import RevisionConflict, StoreUnavailable, TaskTaken
from tests.engines.appends import append, key, outcomes, task


@pytest.fixture
def claim_wait_s():
    """How long the stores wait for another writer's claim; a test may have its own."""
    return DEFAULT_BOUNDS.claim_wait_s


@pytest.fixture
async def replicas(redis_database, tmp_path, claim_wait_s):
    """Two stores on the same data."""
    place = redis_place(redis_database.store_url(tmp_path))
    bounds = RedisBounds(claim_wait_s=claim_wait_s)
    stores = [await open_redis_store(place, bounds=bounds) for _ in range(2)]
    yield stores
    for store in stores:
        await store.close()
    redis_database.clear(tmp_path)


@pytest.fixture
def keys(redis_database, tmp_path):
    """Their keys."""
    return Keys(redis_database.prefix(tmp_path))


async def leave_a_claim(store, number, task_id="task-1"):
    """Claim a task for a session, like an append that then stops; return its token."""
    token, owner = await store._engine._writer._claim(key(number), task_id.encode(), b"")
    assert not owner
    return token


async def append_with(store, number, base, token, task_id="task-1"):
    """Continue an append that has claimed its task; return the script's result."""
    new = append(number, base, tasks=(task(number, task_id),))
    (word, *_) = await store._engine._writer._run(new, {task_id.encode(): token}, {})
    return word


async def test_claim_that_was_left_behind_is_no_owner(replicas):
    """A claim of a stopped process does not keep other sessions from using the id."""
    here, there = replicas
    await leave_a_claim(there, 9)
    assert await here.find_task("acme", "task-1") is None
    await here.append(append(1, tasks=(task(1),)))
    assert await here.find_task("acme", "task-1") == task(1)
    with pytest.raises(TaskTaken) as taken:
        await there.append(append(9, tasks=(task(9),)))
    assert taken.value.session_id == key(1).session_id


async def test_claim_that_was_taken_over_gives_no_task_any_more(replicas):
    """The slow append is refused, since the id has a new owner, and it starts again."""
    here, there = replicas
    token = await leave_a_claim(there, 9)
    await here.append(append(1, tasks=(task(1),)))
    assert await append_with(there, 9, 0, token) == b"fenced"
    assert await there.head_revision(key(9)) == 0


@pytest.mark.parametrize("claim_wait_s", [30.0])
async def test_slow_one_keeps_its_task_if_it_comes_before_the_fence(replicas):
    """Its append finishes while the other one still waits: then it has the id."""
    here, there = replicas
    token = await leave_a_claim(there, 9)
    other = asyncio.create_task(here.append(append(1, tasks=(task(1),))))
    await asyncio.sleep(0.05)
    assert not other.done()
    assert await append_with(there, 9, 0, token) == b"stored"
    with pytest.raises(TaskTaken) as taken:
        await other
    assert taken.value.session_id == key(9).session_id
    assert await here.head_revision(key(1)) == 0


async def test_append_that_was_fenced_off_claims_again(replicas, keys):
    """The fencing process then stopped: the claim stays with its session, with a new token."""
    here, there = replicas
    token = await leave_a_claim(here, 1)
    names = keys.session(key(1))
    claim = token + key(1).session_id.encode()
    fence = fence_command(names, b"task-1", claim)
    assert await there._engine._writes.call([fence]) == [0]
    await here.append(append(1, tasks=(task(1),)))
    assert await there.find_task("acme", "task-1") == task(1)


@pytest.mark.parametrize("claim_wait_s", [30.0])
async def test_claim_of_a_refused_append_does_not_wait(replicas):
    """In one process the failure is known, so there is no wait."""
    here, _ = replicas
    await leave_a_claim(here, 9)
    async with asyncio.timeout(25):
        await here.append(append(1, tasks=(task(1),)))


async def test_refused_append_claims_nothing(replicas, redis_database, keys):
    """A conflict is detected before any claim."""
    here, _ = replicas
    await here.append(append(1))
    with pytest.raises(RevisionConflict):
        await here.append(append(1, request_id="another", tasks=(task(1),)))
    with redis_database.client() as client:
        assert not client.exists(keys.claims("acme", "task-1"))


async def test_one_id_wanted_by_many_sessions_of_two_replicas_has_one_owner(replicas):
    """Concurrent new sessions, many times: one gets the id, the others learn which."""
    for number in range(12):
        name = f"task-{number}"
        sessions = [100 * number + n for n in range(6)]
        results = await outcomes(
            *(
                replicas[place % 2].append(append(n, tasks=(task(n, name),)))
                for place, n in enumerate(sessions)
            )
        )
        stored = [n for n, result in zip(sessions, results, strict=True) if result is None]
        assert len(stored) == 1, results
        owner = key(stored[0]).session_id
        for result in results:
            assert result is None or isinstance(result, TaskTaken), result
            assert result is None or result.session_id == owner
        found = await replicas[0].find_task("acme", name)
        assert found is not None
        assert found.session_id == owner
        listed = [await replicas[1].list_tasks(key(n), limit=5) for n in sessions]
        assert sum(map(len, listed)) == 1


async def test_claims_that_are_lost_again_and_again_are_unavailable(replicas, monkeypatch):
    """Retries are limited; the error says what to do."""
    here, _ = replicas

    async def always_fenced(self, append, tokens, owners):
        return [b"fenced", b"task-1"]

    monkeypatch.setattr(AppendWriter, "_run", always_fenced)
    with pytest.raises(StoreUnavailable, match="other sessions claim the same tasks"):
        await here.append(append(1, tasks=(task(1),)))


async def test_deleted_session_gives_its_task_ids_free(replicas, redis_database, keys):
    """Its claims are deleted, and a slower append does not restore any."""
    here, there = replicas
    names = [f"task-{number}" for number in range(5)]
    for base, name in enumerate(names):
        await here.append(append(1, base, tasks=(task(1, name),)))
    with redis_database.client() as client:
        claims = [client.hget(keys.claims("acme", name), name) for name in names]
        await there.delete_session(key(1), len(names))
        assert [client.hget(keys.claims("acme", name), name) for name in names] == [None] * 5
        assert await append_with(here, 1, 0, claims[0][:TOKEN_BYTES], names[0]) == (b"fenced")
    await there.append(append(2, tasks=(task(2, names[0]),)))
    await here.append(append(1))
    with pytest.raises(TaskTaken):
        await here.append(append(1, 1, tasks=(task(1, names[0]),)))


async def test_delete_that_stopped_half_way_is_finished_by_the_next(
    replicas, redis_database, keys, tmp_path
):
    """Until then its remains are not in the log and own no task."""
    here, there = replicas
    for base in range(3):
        await here.append(append(1, base, tasks=(task(1, f"task-{base}"),)))
    names = keys.session(key(1))
    left = b"0123456789abcdef" + names.member
    aside = [names.prefix + b"y:" + left, names.prefix + b"z:" + left]
    touched = [names.head, names.changes, names.requests, names.tasks, names.task_order]
    touched += [names.sessions, names.due, names.leavings, *aside]
    arguments = ((3).to_bytes(8), key(1).session_id.encode(), names.member, left)
    assert await here._engine._writes.call(
        [script_call("delete_session", touched, *arguments)]
    ) == [[b"deleted"]]
    assert (await there.read_log(b"", 10))[0] == []
    await there.append(append(2, tasks=(task(2, "task-0"),)))
    await there.append(append(1))
    # The new session's changes come once, though old entries name the same revisions.
    page, _ = await there.read_log(b"", 10)
    assert [(name, change.revision) for name, change in page] == [(key(2), 1), (key(1), 1)]
    await there.delete_session(key(1), 1)
    with redis_database.client() as client:
        found = list(client.scan_iter(match=f"{redis_database.prefix(tmp_path)}:*"))
        assert not [name for name in found if left in name or name == names.leavings]
        assert client.xlen(names.log) == (names.log == keys.session(key(2)).log)
    assert await there.find_task("acme", "task-0") == task(2, "task-0")
