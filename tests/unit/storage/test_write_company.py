"""When a group of writes waits for more, and how soon it stops waiting."""

import asyncio

import pytest

from routing_service.storage.in_hand import BUSY_WRITES_MIN
from routing_service.storage.write_company import SHARE, WriteCompany

ENDLESS_S = 600.0
MANY = 64


@pytest.fixture
def queue():
    """The writes that wait."""
    return []


@pytest.fixture
def company(queue):
    """Of a writer with a burst of MANY writes, all answered, behind it."""
    company = WriteCompany(queue, writes_max=1000, pace_s=ENDLESS_S)
    burst(company, queue, MANY)
    return company


def come(company, queue, count):
    """Put writes into the queue."""
    for _ in range(count):
        queue.append(None)
        company.came()


def burst(company, queue, count):
    """Let writes come together and be answered together."""
    come(company, queue, count)
    queue.clear()
    for _ in range(count):
        company.went()


async def ended(company, queue):
    """End a wait by the clock, and let the group go."""
    company._end()
    await asyncio.sleep(0)
    queue.clear()


async def test_after_few_at_once_a_write_waits_for_nobody(queue):
    """A lone user pays nothing."""
    company = WriteCompany(queue, writes_max=1000, pace_s=ENDLESS_S)
    burst(company, queue, BUSY_WRITES_MIN - 1)
    come(company, queue, 1)
    assert company.begin() is None


async def test_after_many_at_once_it_waits_until_most_have_come(company, queue):
    """Not for all: some callers are still being answered."""
    come(company, queue, 1)
    gathering = company.begin()
    assert company.is_gathering
    come(company, queue, int(MANY * SHARE) - 2)
    assert not gathering.done()
    come(company, queue, 1)
    async with asyncio.timeout(30):
        await gathering
    assert not company.is_gathering


async def test_a_group_that_is_large_enough_does_not_wait(company, queue):
    """They came during the group before."""
    come(company, queue, int(MANY * SHARE))
    assert company.begin() is None


async def test_a_group_never_waits_for_more_than_it_takes(queue):
    """The store's own limit of a group."""
    company = WriteCompany(queue, writes_max=10, pace_s=ENDLESS_S)
    burst(company, queue, MANY)
    come(company, queue, 10)
    assert company.begin() is None


async def test_the_wait_ends_with_its_time(queue):
    """Where no other write comes."""
    company = WriteCompany(queue, writes_max=1000, pace_s=0.0001)
    burst(company, queue, MANY)
    come(company, queue, 1)
    async with asyncio.timeout(30):
        await company.begin()


async def test_closing_ends_the_wait_and_there_is_no_other(company, queue):
    """No other write can come then."""
    come(company, queue, 1)
    gathering = company.begin()
    company.close()
    async with asyncio.timeout(30):
        await gathering
    assert company.begin() is None


async def test_a_lone_writer_after_a_burst_soon_waits_for_nobody(company, queue):
    """It has waited in vain a few times."""
    waits = 0
    while True:
        come(company, queue, 1)
        if company.begin() is None:
            break
        waits += 1
        await ended(company, queue)
        company.went()
    assert waits == 4


async def test_on_a_slow_machine_groups_stay_large(company, queue):
    """Most of the writes come in time, and the rest later: that is no reason for less patience."""
    for _ in range(50):
        come(company, queue, 30)
        if company.begin() is not None:
            await ended(company, queue)
        queue.clear()
        for _ in range(30):
            company.went()
    come(company, queue, 20)
    assert company.begin() is not None
