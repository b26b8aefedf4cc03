"""The number of the forms that may be written into a store, on every engine."""

import asyncio

import pytest

from routing_service.storage.memory_store import MemoryStore
from routing_service.storage.store import SchemaTooNew, StoreCorrupt
from routing_service.storage.store_format import (
    FORMAT_SETTING,
    FORMAT_TENANT,
    NEWEST_FORMAT,
    OLDEST_FORMAT,
    FormatRefused,
    present_format,
    raise_format,
    read_format,
    settle_format,
)
from routing_service.stored_data.store_copy import copy_store


async def test_empty_store_begins_at_the_newest_format(store):
    """And keeps it: a second server finds what the first one wrote."""
    assert await settle_format(store) == NEWEST_FORMAT
    assert await read_format(store) == NEWEST_FORMAT
    assert await settle_format(store) == NEWEST_FORMAT


async def test_store_of_the_oldest_format_is_not_served(store):
    """Its replicas could not read what this release writes. A setting shows that it is in use."""
    await store.put_setting("acme", "stickiness", b"{}")
    with pytest.raises(FormatRefused, match="agent-routing migrate --store URL --format 2"):
        await settle_format(store)
    assert await read_format(store) is None
    await raise_format(store, 2)
    assert await settle_format(store) == 2


async def test_format_is_raised_by_request_and_never_lowered(store):
    """The number before is returned, and repeating a migration is no mistake."""
    await store.put_setting("acme", "stickiness", b"{}")
    assert await raise_format(store, NEWEST_FORMAT) == OLDEST_FORMAT
    assert await raise_format(store, NEWEST_FORMAT) == NEWEST_FORMAT
    with pytest.raises(FormatRefused, match="cannot be lowered"):
        await raise_format(store, OLDEST_FORMAT)
    with pytest.raises(FormatRefused, match="this release knows the formats"):
        await raise_format(store, NEWEST_FORMAT + 1)
    assert await read_format(store) == NEWEST_FORMAT


async def test_format_of_a_newer_release_is_refused(store):
    """Before anything is served."""
    await store.put_setting(FORMAT_TENANT, FORMAT_SETTING, b"%d" % (NEWEST_FORMAT + 1))
    with pytest.raises(SchemaTooNew):
        await settle_format(store)


async def test_format_that_is_no_number_is_reported(store):
    """It is never taken for the oldest."""
    await store.put_setting(FORMAT_TENANT, FORMAT_SETTING, b"two")
    with pytest.raises(StoreCorrupt, match=r"store\.format"):
        await settle_format(store)


async def test_several_servers_of_an_empty_store_agree(store):
    """They start at the same time; only the first one writes."""
    assert set(await asyncio.gather(*(settle_format(store) for _ in range(4)))) == {NEWEST_FORMAT}


async def test_copy_keeps_the_format(store):
    """Otherwise a server would take the target for an older store, or for a new one."""
    old, new = MemoryStore(), MemoryStore()
    await old.put_setting("acme", "stickiness", b"{}")
    await settle_format(new)
    await copy_store(old, store, source_name="old")
    assert await present_format(store) == OLDEST_FORMAT
    await copy_store(new, store, source_name="new")
    assert await settle_format(store) == NEWEST_FORMAT
