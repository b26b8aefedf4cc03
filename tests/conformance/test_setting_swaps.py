"""Settings that are stored only if they still have the value that the writer read."""

import asyncio

import pytest

from routing_service.storage.store import TooLarge


async def test_setting_is_swapped_only_where_it_is_as_it_was(store):
    """Also if there was no value."""
    assert await store.swap_setting("acme", "count", None, b"1")
    assert not await store.swap_setting("acme", "count", None, b"2")
    assert not await store.swap_setting("acme", "count", b"0", b"2")
    assert not await store.swap_setting("acme", "other", b"1", b"2")
    assert await store.get_setting("acme", "count") == b"1"
    assert await store.get_setting("acme", "other") is None
    assert await store.swap_setting("acme", "count", b"1", b"")
    assert await store.swap_setting("acme", "count", b"", b"3")
    assert await store.get_setting("acme", "count") == b"3"


async def test_swaps_of_one_setting_lose_nothing(store):
    """Eight writers increment one number."""

    async def count_up():
        done = 0
        while done < 5:
            before = await store.get_setting("acme", "count")
            done += await store.swap_setting(
                "acme", "count", before, b"%d" % (int(before or b"0") + 1)
            )

    await asyncio.gather(*(count_up() for _ in range(8)))
    assert await store.get_setting("acme", "count") == b"40"


async def test_swap_that_is_too_large_is_refused(store):
    """The same limit as for a put."""
    with pytest.raises(TooLarge):
        await store.swap_setting("acme", "big", None, b"x" * (64 * 1024 + 1))
    assert await store.get_setting("acme", "big") is None
