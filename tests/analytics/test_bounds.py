"""Figures stay small for any input, and those of a newer release are not overwritten."""

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_service.analytics.counts import (
    AGENTS_MAX,
    CHANNELS_MAX,
    FIRSTS_MAX,
    NEVER,
    OTHER,
    PAIRS_MAX,
    Counts,
    Pair,
    add_word,
)
from routing_service.analytics.histogram import ERROR, SIZE_MAX, bucket_of, middle_of, quantile
from routing_service.analytics.keeper import StatsKeeper
from routing_service.analytics.stored_forms import (
    ALL_TENANTS,
    DIRECTORY,
    HEAD,
    VALUE_BYTES_MAX,
    Directory,
    DirectoryDelta,
    Figures,
    Head,
    decode,
    encode,
    encode_figures,
)
from routing_service.core.events import MessageRouted, Profile, SessionStarted
from routing_service.core.vocabulary import RouteReason
from routing_service.storage.event_codec import encode_events
from routing_service.storage.memory_store import MemoryStore
from routing_service.storage.store import Append, Change, SchemaTooNew, SessionKey
from tests.analytics.brute_force import HOUR_US, at_rank


@given(st.integers(0, SIZE_MAX))
def test_bucket_is_within_its_error_of_every_size_in_it(size):
    """One thirty-second; exact below sixteen."""
    assert abs(middle_of(bucket_of(size)) - size) <= (size * ERROR if size >= 16 else 0)


@given(st.integers(0, SIZE_MAX - 1))
def test_larger_size_is_never_in_a_smaller_bucket(size):
    """Otherwise quantiles would be out of order."""
    assert bucket_of(size) <= bucket_of(size + 1) <= bucket_of(size) + 1
    assert bucket_of(SIZE_MAX * 9) == bucket_of(SIZE_MAX)


@given(st.lists(st.integers(0, 10**9), min_size=1), st.sampled_from((0.01, 0.5, 0.95, 1.0)))
def test_quantile_is_within_its_error_of_the_size_at_the_rank(sizes, share):
    """For any sizes."""
    histogram = {}
    for size in sizes:
        bucket = bucket_of(size)
        histogram[bucket] = histogram.get(bucket, 0) + 1
    right = at_rank(sizes, share)
    assert abs(quantile(histogram, share) - right) <= right * ERROR


def test_tables_are_bounded_and_lose_no_sum():
    """Everything after the last row shares one row."""
    counts = Counts()
    for number in range(1000):
        counts.agent(f"agent-{number}").turns += 1
        counts.pair(Pair(f"a{number}", "b", "agent", "transfer").name).carried_out += 1
        counts.suggestion(f"a{number}\tb").offered += 1
        add_word(counts.channels, f"channel-{number}", CHANNELS_MAX)
        counts.count_first(number)
    counts.count_first(NEVER)
    assert len(counts.agents) == AGENTS_MAX + 1
    assert counts.agents[OTHER].turns == 1000 - AGENTS_MAX
    assert len(counts.handoffs) == PAIRS_MAX + 1
    assert sum(pair.carried_out for pair in counts.handoffs.values()) == 1000
    assert len(counts.suggestions) == PAIRS_MAX + 1
    assert sum(pair.offered for pair in counts.suggestions.values()) == 1000
    assert sum(counts.channels.values()) == 1000
    assert len(counts.channels) == CHANNELS_MAX + 1
    assert len(counts.firsts) == FIRSTS_MAX
    assert sum(counts.firsts.values()) == 1001
    assert counts.firsts[NEVER] == 1


def test_largest_figures_fit_into_a_setting():
    """Ids of 128 characters that do not compress, and answers of every length."""
    rng = random.Random(1)
    counts = Counts()
    names = [
        "".join(rng.choices("abcdefghijklmnopqrstuvwxyz0123456789._-", k=128)) for _ in range(80)
    ]
    for name in names:
        agent = counts.agent(name)
        agent.turns = rng.randrange(10**9)
        for _ in range(600):
            agent.responses[bucket_of(rng.randrange(2 ** rng.randrange(37)))] = rng.randrange(10**9)
        for other in names:
            counts.pair(Pair(name, other, "agent", "transfer").name).carried_out += 1
            counts.suggestion(f"{name}\t{other}").offered += 1
    turns = sum(agent.turns for agent in counts.agents.values())
    handoffs = sum(pair.carried_out for pair in counts.handoffs.values())
    data = encode_figures(Figures(seq=1, counts=counts))
    assert len(data) <= VALUE_BYTES_MAX
    kept = decode(Figures, data, "figures").counts
    assert sum(agent.turns for agent in kept.agents.values()) == turns
    assert sum(pair.carried_out for pair in kept.handoffs.values()) == handoffs
    offered = sum(pair.offered for pair in counts.suggestions.values())
    assert sum(pair.offered for pair in kept.suggestions.values()) == offered == 80 * 80


def test_directory_of_many_channels_is_bounded():
    """Callers choose channel names."""
    directory = Directory()
    for number in range(1000):
        directory.add(DirectoryDelta("acme", number + 5, number + 5, [f"channel-{number}"]))
    assert len(directory.channels) == CHANNELS_MAX
    assert (directory.first_hour, directory.last_hour) == (5, 1004)
    assert len(encode(directory)) < VALUE_BYTES_MAX


@pytest.mark.parametrize(("kind", "version"), [(Head, 3), (Figures, 2), (Directory, 2)])
def test_value_of_a_newer_release_is_not_taken_for_damage(kind, version):
    """It is refused, and therefore never overwritten."""
    with pytest.raises(SchemaTooNew):
        decode(kind, b"p" + msgspec.msgpack.encode((version, {"new": True})), "x")


async def test_step_over_many_tenants_is_cut_until_it_fits():
    """The head holds what a step adds, which is a lot with long ids in many tenants."""
    rng = random.Random(2)
    store = MemoryStore()
    for number in range(400):
        tenant = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=120))
        agent_id = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=120))
        events = [
            SessionStarted(Profile(channel="web")),
            MessageRouted("r", "t", agent_id, RouteReason.STICKY),
        ]
        change = Change(1, number * HOUR_US, "Route", "", "", b"", encode_events(events), b"")
        await store.append(Append(SessionKey(tenant, "chat"), 0, change, b"", ""))
    keeper = StatsKeeper(store, lambda: "home", lambda: 0, holder="one")
    steps = 1
    while await keeper.advance():
        raw, _ = await keeper.head()
        assert len(raw) <= VALUE_BYTES_MAX
        steps += 1
    assert steps > 2
    total = Counts()
    for day in range(400 // 24 + 1):
        raw = await store.get_setting(ALL_TENANTS, f"{HEAD.removesuffix('fold')}d/{day}")
        total.add(decode(Figures, raw, "day").counts)
    assert (total.messages, total.saved) == (400, 400)
    raw = await store.get_setting(ALL_TENANTS, DIRECTORY)
    assert decode(Directory, raw, DIRECTORY).last_hour == 399
