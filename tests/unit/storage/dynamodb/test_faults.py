"""DynamoDB that throttles, loses answers, hangs, refuses or has damaged items."""

import asyncio
import json
import socket
import time
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from routing_service.storage.dynamodb import keys
from routing_service.storage.dynamodb.api import open_api
from routing_service.storage.dynamodb.bounds import DynamodbBounds
from routing_service.storage.dynamodb.store import open_dynamodb_store
from routing_service.storage.open_store import dynamodb_place, open_store
from routing_service.storage.store import (
    CURSOR_START,
    DAMAGED,
    RequestSeen,
    RevisionConflict,
    StoreClosed,
    StoreCorrupt,
    StoreUnavailable,
)
from tests.engines.appends import append, audit, key, outcomes, task
from tests.engines.dynamodb_proxy import cancel, delay, hang, lose_answer, proxy_to, refuse

BOUND_S = 30.0
"""The time limit on a busy machine for operations that end within a few seconds."""


@pytest.fixture
def table(dynamodb_tables, tmp_path):
    """The URL of an empty store."""
    yield dynamodb_tables.store_url(tmp_path)
    dynamodb_tables.clear(tmp_path)


def with_endpoint(url, endpoint):
    """Put a proxy's address into a URL."""
    return url.partition("endpoint_url=")[0] + f"endpoint_url={endpoint}"


@pytest.fixture
async def proxy(table):
    """A proxy before the server."""
    parts = urlsplit(table.partition("endpoint_url=")[2])
    async with proxy_to(f"http://{parts.netloc}/") as made:
        yield made


@pytest.fixture
async def store(table, proxy):
    """A store on the test's table, through the proxy."""
    opened = await open_store(with_endpoint(table, proxy.endpoint))
    yield opened
    await opened.close()


async def change_item(table, pk, sk, expression, values):
    """Damage one item."""
    async with open_api(dynamodb_place(table)) as api:
        await api.on_table(
            "update_item",
            Key={"pk": {"S": pk}, "sk": {"S": sk}},
            UpdateExpression=expression,
            ExpressionAttributeValues=values,
        )


@pytest.mark.parametrize("request_id", ["request-1", ""])
async def test_own_success_after_a_lost_answer_is_success(store, proxy, request_id):
    """The driver repeats the call, whose conditions then fail because of the first attempt."""
    proxy.then("TransactWriteItems", lose_answer)
    await store.append(append(request_id=request_id, tasks=(task(0),)))
    assert proxy.calls.count("TransactWriteItems") == 2
    assert await store.head_revision(key()) == 1
    log, _ = await store.read_log(CURSOR_START, 10)
    assert [change.revision for _, change in log] == [1]


async def test_lost_answer_of_a_later_change_is_success_too(store, proxy):
    """Also if other changes followed: the change carries its call's mark."""
    await store.append(append())
    proxy.then("TransactWriteItems", lose_answer)
    await store.append(append(base=1))
    assert await store.head_revision(key()) == 2


async def test_anothers_same_request_is_no_success_of_ours(store, proxy, table):
    """The same change by another call: only the mark distinguishes them."""
    other = await open_store(table)
    try:
        await other.append(append())
    finally:
        await other.close()
    proxy.then("TransactWriteItems", refuse("InternalServerError", status=500))
    with pytest.raises(RequestSeen):
        await store.append(append())


async def test_lost_answer_of_an_audit_entry_leaves_one_entry(store, proxy):
    """The limit of refusals counts them."""
    proxy.then("TransactWriteItems", lose_answer)
    await store.append_audit(audit())
    assert await store.count_audit(key(), "handoff_refused", "request-1") == 1
    page, _ = await store.read_audit("acme", None, CURSOR_START, 10)
    assert page == [audit()]


async def test_lost_answers_of_settings_and_leases_are_success(store, proxy):
    """The repeat finds the setting changed and the lease held, by this same call."""
    proxy.then("PutItem", lose_answer, matches=lambda body: "payload" in body["Item"])
    assert await store.swap_setting("acme", "count", None, b"1")
    proxy.then("PutItem", lose_answer)
    assert await store.swap_setting("acme", "count", b"1", b"2")
    assert not await store.swap_setting("acme", "count", b"1", b"2")
    assert await store.get_setting("acme", "count") == b"2"
    proxy.then("UpdateItem", lose_answer)
    assert await store.acquire_lease("sweep", "a", 100, 200)


async def test_lost_answer_of_a_removal_is_success(store, proxy):
    """The repeat finds the session removed, by this same call."""
    await store.append(append(tasks=(task(0),)))
    proxy.then("UpdateItem", lose_answer)
    await store.delete_session(key(), 1)
    assert await store.read_changes(key(), limit=5) == []
    with pytest.raises(RevisionConflict):
        await store.delete_session(key(), 1)


@pytest.mark.parametrize("code", ["ThrottlingException", "ProvisionedThroughputExceededException"])
async def test_short_throttling_is_not_noticed(store, proxy, code):
    """The driver retries after a pause."""
    proxy.then("TransactWriteItems", refuse(code), times=2)
    await store.append(append())
    assert await store.head_revision(key()) == 1


async def test_lasting_throttling_is_unavailable(store, proxy):
    """After the configured attempts; the caller gets our message, and the log has the details."""
    proxy.then("TransactWriteItems", refuse("ThrottlingException"), times=100)
    with capture_logs() as logs, pytest.raises(StoreUnavailable) as raised:
        await store.append(append())
    assert "used more than it can be" in raised.value.reason
    assert [entry["code"] for entry in logs] == ["ThrottlingException"]
    assert proxy.calls.count("TransactWriteItems") == 3
    proxy.rules.clear()
    await store.append(append())


async def test_transactions_that_meet_are_tried_again(store, proxy):
    """DynamoDB refuses both of two concurrent transactions on one item."""
    proxy.then("TransactWriteItems", cancel("None", "TransactionConflict"), times=3)
    await store.append(append())
    proxy.then("PutItem", refuse("TransactionConflictException"), times=2)
    await store.put_setting("acme", "stickiness", b"off")
    assert await store.get_setting("acme", "stickiness") == b"off"
    assert await store.head_revision(key()) == 1


async def test_transactions_that_keep_meeting_are_unavailable(store, proxy):
    """Retries are limited: another process may write this session all the time."""
    proxy.then("TransactWriteItems", cancel("TransactionConflict"), times=1_000)
    with pytest.raises(StoreUnavailable, match="other writes"):
        await store.append(append())


async def test_throttled_transaction_is_unavailable(store, proxy):
    """A transaction may be cancelled because its table is throttled."""
    proxy.then("TransactWriteItems", cancel("None", "ThrottlingError"), times=100)
    with pytest.raises(StoreUnavailable, match="used more than it can be"):
        await store.append(append())


async def test_conflict_beside_a_failed_condition_is_explained_by_the_store(store, proxy):
    """The reasons from AWS are not relied upon: the stored data decides."""
    await store.append(append())
    proxy.then("TransactWriteItems", cancel("TransactionConflict", "ConditionalCheckFailed"))
    await store.append(append(base=1))
    with pytest.raises(RevisionConflict):
        await store.append(append(base=1, request_id="late"))
    assert await store.head_revision(key()) == 2


async def test_place_that_a_reader_closed_is_written_further_on(store, proxy, table):
    """A writer that hangs between its place and its transaction loses the place, not the change."""
    entered, goes_on = asyncio.Event(), asyncio.Event()
    proxy.then("TransactWriteItems", delay(entered, goes_on))
    writing = asyncio.create_task(store.append(append()))
    await entered.wait()
    other = await open_store(table)
    try:
        page, cursor = await other.read_log(CURSOR_START, 10)
        assert page == []
        goes_on.set()
        await asyncio.wait_for(writing, BOUND_S)
        page, cursor = await other.read_log(cursor, 10)
        assert [change.revision for _, change in page] == [1]
        assert (await other.read_log(CURSOR_START, 10))[0] == page
    finally:
        await other.close()


async def test_reader_does_not_pass_what_is_still_being_written(store, proxy, table):
    """The later place is written first; the reader gets both in the order of their places."""
    first, second = (
        key(0),
        next(key(n) for n in range(1, 200) if keys.log_name(key(n)) == keys.log_name(key(0))),
    )
    number = int(second.session_id.removeprefix("chat-"))
    entered, goes_on = asyncio.Event(), asyncio.Event()
    proxy.then("TransactWriteItems", delay(entered, goes_on))
    writing = asyncio.create_task(store.append(append(0)))
    await entered.wait()
    await store.append(append(number))
    other = await open_store(table)
    try:
        reading = asyncio.create_task(other.read_log(CURSOR_START, 10))
        ending = asyncio.create_task(other.log_end())
        goes_on.set()
        await asyncio.wait_for(writing, BOUND_S)
        page, cursor = await asyncio.wait_for(reading, BOUND_S)
        rest, _ = await other.read_log(cursor, 10)
        assert [session for session, _ in page + rest] in ([first, second], [second, first])
        assert (await other.read_log(await ending, 10))[0] == []
    finally:
        await other.close()


async def test_killed_writers_place_holds_nobody_up_for_long(store, proxy):
    """A place that was assigned and never written delays later ones only for a moment."""
    await store._engine._sequences.give(keys.log_name(key()))
    await store.append(append())
    page, _ = await asyncio.wait_for(store.read_log(CURSOR_START, 10), BOUND_S)
    assert [change.revision for _, change in page] == [1]
    assert await asyncio.wait_for(store.log_end(), BOUND_S)


async def test_end_of_a_long_log_is_found_from_where_it_is_settled(store, proxy):
    """Kept with the counter, so that finding it does not read the log from its start."""
    (name,) = {keys.log_name(key())}
    await store._engine._sequences._add(name, 300)
    await store._engine._sequences.seal(name, range(1, 301))
    assert await store._engine._sequences.settle(name) == 300
    (counter,) = await store._engine._sequences.counters([name])
    assert (counter.given, counter.settled) == (300, 300)
    before = len(proxy.calls)
    assert await store._engine._sequences.settle(name) == 300
    assert proxy.calls[before:] == ["BatchGetItem"]


async def test_writer_settles_a_log_that_has_no_reader(table):
    """Now and then, so that finding the end is never much work."""
    bounds = DynamodbBounds(settle_every=4, settle_step=4)
    store = await open_dynamodb_store(dynamodb_place(table), bounds=bounds)
    try:
        for base in range(9):
            await store.append(append(base=base))
        await store._engine._sequences.close()
        (counter,) = await store._engine._sequences.counters([keys.log_name(key())])
    finally:
        await store.close()
    assert counter.given == 9
    assert counter.settled >= 4


async def test_store_that_hangs_is_unavailable_in_bounded_time(table, proxy):
    """Each attempt and the whole call have a timeout."""
    url = with_endpoint(table, proxy.endpoint)
    store = await open_store(f"{url}&read_timeout_s=0.3&call_timeout_s=1")
    try:
        proxy.then("GetItem", hang, times=100)
        begun_s = time.monotonic()
        with pytest.raises(StoreUnavailable):
            await store.head_revision(key())
        assert time.monotonic() - begun_s < BOUND_S
        proxy.rules.clear()
        assert await store.head_revision(key()) == 0
    finally:
        await store.close()


async def test_endpoint_that_is_away_is_unavailable_in_bounded_time(dynamodb_tables):
    """The endpoint is closed; the error names the store and not the driver."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    url = f"dynamodb://eu-west-1/away?endpoint_url=http://127.0.0.1:{port}"
    with pytest.raises(StoreUnavailable, match="cannot be reached") as raised:
        await asyncio.wait_for(open_store(url), BOUND_S)
    assert url in raised.value.reason
    assert "botocore" not in raised.value.reason


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("UnrecognizedClientException", "refuses this service's credentials"),
        ("ExpiredTokenException", "have expired"),
        ("InvalidSignatureException", "refuses this service's credentials"),
        ("AccessDeniedException", "docs/dynamodb.md"),
    ],
)
async def test_wrong_credentials_say_what_to_do(table, proxy, code, words):
    """AWS reports the error; the message adds what to do."""
    proxy.then("GetItem", refuse(code), times=10)
    with capture_logs() as logs, pytest.raises(StoreUnavailable, match=words):
        await open_store(with_endpoint(table, proxy.endpoint))
    assert logs[0]["code"] == code


async def test_no_credentials_say_where_to_put_them(table, monkeypatch):
    """Reported at the first call, when the server starts."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(StoreUnavailable, match="AWS_ACCESS_KEY_ID"):
        await open_store(table)


async def test_spoiled_head_is_that_sessions_affair(store, table):
    """Other sessions are read and written as before."""
    await store.append(append(0))
    await store.append(append(1))
    await change_item(
        table, keys.session_pk(key(0)), keys.HEAD, "SET revision = :r", {":r": {"S": "one"}}
    )
    assert (await store.load(key(0))).state == DAMAGED
    with pytest.raises(StoreCorrupt):
        await store.append(append(0, 1))
    assert (await store.load(key(1))).revision == 1
    await store.append(append(1, 1))


async def test_spoiled_change_is_that_sessions_affair(store, table):
    """Also if a repeat needs it."""
    await store.append(append(0))
    await store.append(append(1))
    pk = keys.session_pk(key(0))
    await change_item(table, pk, keys.change_sk(1), "SET events = :e", {":e": {"N": "7"}})
    for call in (
        store.find_request(key(0), "Route", "request-1"),
        store.append(append(0)),
    ):
        with pytest.raises(StoreCorrupt):
            await call
    (change,) = await store.read_changes(key(0), limit=5)
    assert (change.revision, change.events) == (1, DAMAGED)
    assert len(await store.read_changes(key(1), limit=5)) == 1


async def test_cancelled_caller_leaves_a_whole_append(store, proxy):
    """A sent write is completed; close waits for it."""
    entered, goes_on = asyncio.Event(), asyncio.Event()
    proxy.then("TransactWriteItems", delay(entered, goes_on))
    writing = asyncio.create_task(store.append(append()))
    await entered.wait()
    writing.cancel()
    await asyncio.wait([writing])
    assert writing.cancelled()
    # Appends run in call order, so it waits for the cancelled one.
    following = asyncio.create_task(store.append(append(base=1)))
    goes_on.set()
    await asyncio.wait_for(following, BOUND_S)
    assert await store.head_revision(key()) == 2


async def test_cancelled_read_leaves_the_client_usable(store, proxy):
    """Its connection is given up; the next call has another."""
    entered, never = asyncio.Event(), asyncio.Event()
    proxy.then("GetItem", delay(entered, never))
    reading = asyncio.create_task(store.head_revision(key()))
    await entered.wait()
    reading.cancel()
    await asyncio.wait([reading])
    assert await store.head_revision(key()) == 0


async def test_close_waits_for_what_is_under_way(store, proxy):
    """A drain answers everything."""
    entered, goes_on = asyncio.Event(), asyncio.Event()
    proxy.then("TransactWriteItems", delay(entered, goes_on))
    writing = asyncio.create_task(store.append(append()))
    await entered.wait()
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    with pytest.raises(StoreClosed):
        await store.head_revision(key())
    goes_on.set()
    assert await outcomes(writing, closing) == [None, None]


@pytest.mark.parametrize("tasks", [1, 3])
async def test_wrong_guess_whether_a_task_is_new_is_mended(store, tasks):
    """The conditions detect it: new tasks that look updated, and known ones that look new."""
    await store.append(append())
    rows = tuple(task(0, f"task-{n}") for n in range(tasks))
    await store.append(append(base=1, tasks=rows))
    assert await store.list_tasks(key(), limit=10) == list(rows)


async def test_removal_that_was_cut_short_is_finished_by_the_next_append(store, proxy):
    """Parts of the old session must not show through a new one with its name."""
    for base in range(3):
        await store.append(append(base=base, tasks=(task(0),)))
    proxy.then("TransactWriteItems", refuse("InternalServerError", status=500), times=3)
    with pytest.raises(StoreUnavailable):
        await store.delete_session(key(), 3)
    assert await store.load(key()) is None
    assert await store.head_revision(key()) == 0
    await store.append(append(events=b"anew"))
    assert [c.events for c in await store.read_changes(key(), limit=9)] == [b"anew"]
    assert await store.find_task("acme", "task-1") is None


async def test_removal_that_was_cut_short_is_finished_by_whoever_asks_what_is_due(store, proxy):
    """The session may never be used again."""
    await store.append(append(tasks=(task(0),)))
    proxy.then("TransactWriteItems", refuse("InternalServerError", status=500), times=3)
    with pytest.raises(StoreUnavailable):
        await store.delete_session(key(), 1)
    assert await store.read_changes(key(), limit=9) != []
    assert await store.due_sessions(10, 10) == []
    assert await store.read_changes(key(), limit=9) == []
    assert await store.find_task("acme", "task-1") is None
    page, _ = await store.list_sessions("acme", CURSOR_START, 10)
    assert page == []


async def test_what_a_batch_leaves_is_asked_for_again(store, proxy):
    """An answer has at most 16 MB, and a throttled table returns a part."""
    for number in range(3):
        await store.append(append(number))
    left = {}

    async def leave_some(call):
        table = next(iter(call_body(call)["RequestItems"]))
        left[table] = call_body(call)["RequestItems"][table]
        return await refuse_nothing({"Responses": {table: []}, "UnprocessedKeys": left})(call)

    proxy.then("BatchGetItem", leave_some, times=2)
    page, _ = await store.read_log(CURSOR_START, 10)
    assert len(page) == 3


def call_body(call):
    """Parse the request."""
    return json.loads(call.body)


def refuse_nothing(answer):
    """Answer without calling the server."""

    async def act(_call):
        return web.Response(
            body=json.dumps(answer).encode(), content_type="application/x-amz-json-1.0"
        )

    return act
