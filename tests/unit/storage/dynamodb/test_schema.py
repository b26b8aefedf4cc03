"""The table: created only by migrate, checked at the start, and never changed if it is foreign."""

import asyncio

import pytest

from routing_service.storage.dynamodb.api import open_api
from routing_service.storage.migrate_store import migrate_store
from routing_service.storage.open_store import StoreUrlInvalid, dynamodb_place, open_store
from routing_service.storage.store import SchemaTooNew, StoreCorrupt, StoreUnavailable
from tests.engines.appends import append, key


@pytest.fixture
def new_url(dynamodb_tables, tmp_path):
    """The URL of a table that is not there yet."""
    yield dynamodb_tables.new_url(tmp_path)
    dynamodb_tables.clear(tmp_path)


async def on_table(url, operation, **parameters):
    """Call DynamoDB as another program."""
    async with open_api(dynamodb_place(url)) as api:
        return await api.on_table(operation, **parameters)


async def test_missing_table_says_how_to_make_it(new_url):
    """A server does not need the right to create tables, so it creates none."""
    with pytest.raises(StoreUnavailable, match="agent-routing migrate --store URL") as raised:
        await open_store(new_url)
    assert "there is no table" in raised.value.reason


async def test_migrate_makes_the_table_once(new_url):
    """The second run does nothing, and the store keeps its identity."""
    migrated = await migrate_store(new_url)
    assert (migrated.store, migrated.before, migrated.after) == (new_url, 0, 1)
    store = await open_store(new_url)
    await store.append(append())
    cursor = await store.log_end()
    await store.close()
    migrated = await migrate_store(new_url)
    assert (migrated.before, migrated.after) == (1, 1)
    store = await open_store(new_url)
    assert await store.head_revision(key()) == 1
    assert (await store.read_log(cursor, 5))[0] == []
    await store.close()
    async with open_api(dynamodb_place(new_url)) as api:
        described = await api.describe()
    assert described["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"


async def test_two_who_migrate_at_once_make_one_store(new_url):
    """A roll-out may start migrate twice."""
    await migrate_store(new_url)
    await on_table(new_url, "delete_item", Key={"pk": {"S": "m"}, "sk": {"S": "m"}})
    told = await asyncio.gather(*(migrate_store(new_url) for _ in range(4)))
    assert {migrated.after for migrated in told} == {1}
    stores = [await open_store(new_url) for _ in range(2)]
    cursor = await stores[0].log_end()
    assert (await stores[1].read_log(cursor, 5))[0] == []
    for store in stores:
        await store.close()


async def test_table_without_its_record_is_not_served(new_url):
    """If empty, migrate was interrupted.

    With items the table is foreign, and migrate refuses it too.
    """
    await migrate_store(new_url)
    await on_table(new_url, "delete_item", Key={"pk": {"S": "m"}, "sk": {"S": "m"}})
    with pytest.raises(StoreUnavailable, match="agent-routing migrate"):
        await open_store(new_url)
    await on_table(new_url, "put_item", Item={"pk": {"S": "theirs"}, "sk": {"S": "1"}})
    with pytest.raises(StoreCorrupt, match="belongs to something else"):
        await migrate_store(new_url)


async def test_table_of_another_form_is_left_alone(new_url):
    """Its keys differ from ours."""
    await on_table(
        new_url,
        "create_table",
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
    )
    for call in (open_store, migrate_store):
        with pytest.raises(StoreCorrupt, match="belongs to something else"):
            await call(new_url)


@pytest.mark.parametrize(("compatible_from", "is_served"), [(1, True), (2, False)])
async def test_newer_schema_is_served_if_it_says_so(new_url, compatible_from, is_served):
    """During a roll-out old and new replicas run at the same time."""
    await migrate_store(new_url)
    await on_table(
        new_url,
        "update_item",
        Key={"pk": {"S": "m"}, "sk": {"S": "m"}},
        UpdateExpression="SET schema_version = :two, compatible_from = :from",
        ExpressionAttributeValues={":two": {"N": "2"}, ":from": {"N": str(compatible_from)}},
    )
    if is_served:
        store = await open_store(new_url)
        await store.append(append())
        await store.close()
        assert (await migrate_store(new_url)).after == 2
    else:
        for call in (open_store, migrate_store):
            with pytest.raises(SchemaTooNew, match="schema version 2"):
                await call(new_url)


async def test_nobody_is_granted_anything(new_url):
    """IAM manages the rights."""
    with pytest.raises(StoreUrlInvalid, match="grant"):
        await migrate_store(new_url, grant_to="router")
