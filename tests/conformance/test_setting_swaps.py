"""Settings that are changed by what they were before, for engines that can."""

import asyncio

import pytest

from routing_service.storage.store import SwapsSettings, TooLarge


@pytest.fixture
def swaps(store):
    """Give the engine, if it has this."""
    if not isinstance(store, SwapsSettings):
        pytest.skip("this engine does not compare settings")
    return store


async def test_setting_is_swapped_only_where_it_is_as_it_was(swaps):
    """Also where there was none."""
    assert await swaps.swap_setting("acme", "count", None, b"1")
    assert not await swaps.swap_setting("acme", "count", None, b"2")
    assert not await swaps.swap_setting("acme", "count", b"0", b"2")
    assert not await swaps.swap_setting("acme", "other", b"1", b"2")
    assert await swaps.get_setting("acme", "count") == b"1"
    assert await swaps.get_setting("acme", "other") is None
    assert await swaps.swap_setting("acme", "count", b"1", b"")
    assert await swaps.swap_setting("acme", "count", b"", b"3")
    assert await swaps.get_setting("acme", "count") == b"3"


async def test_swaps_of_one_setting_lose_nothing(swaps):
    """Eight writers count up one number."""

    async def count_up():
        done = 0
        while done < 5:
            before = await swaps.get_setting("acme", "count")
            done += await swaps.swap_setting(
                "acme", "count", before, b"%d" % (int(before or b"0") + 1)
            )

    await asyncio.gather(*(count_up() for _ in range(8)))
    assert await swaps.get_setting("acme", "count") == b"40"


async def test_swap_that_is_too_large_is_refused(swaps):
    """As a put is."""
    with pytest.raises(TooLarge):
        await swaps.swap_setting("acme", "big", None, b"x" * (64 * 1024 + 1))
    assert await swaps.get_setting("acme", "big") is None
