"""The figures do not depend on how reading the log is split, repeated or interrupted.

A failure prints the seed: ROUTING_SEED=<seed> make test args=tests/analytics
"""

import asyncio
import random
from collections import Counter

import msgspec
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from routing_service.analytics import keeper as keeper_module
from routing_service.analytics.counts import Pair
from routing_service.analytics.histogram import ERROR, quantile
from routing_service.analytics.keeper import StatsKeeper
from routing_service.analytics.report import read_report
from routing_service.core.events import Profile, SessionStarted
from routing_service.core.evolve import apply_change
from routing_service.storage.event_codec import encode_events, encode_state
from routing_service.storage.memory_store import MemoryStore
from routing_service.storage.store import (
    Append,
    AuditEntry,
    Change,
    SessionKey,
    StoreUnavailable,
)
from tests.analytics.brute_force import HOUR_US, Fact, SessionCounter, at_rank, count
from tests.simulation.strategies import HOME, draw_history, tape_bytes
from tests.simulation.test_histories import SEED, Actors

STEPS = 25
SESSIONS = (("acme", "one"), ("acme", "two"), ("other", "one"))
REFUSALS_AT = SessionKey("acme", "refused")


class TroublesomeStore(MemoryStore):
    """A store that repeats deliveries, fails before and after writes, and yields to others."""

    def __init__(self, rng):
        super().__init__()
        self.rng = rng
        self.trouble = 0.0
        self.redelivered = 0

    async def read_log(self, cursor, limit):
        await asyncio.sleep(0)
        place = int(cursor or b"0")
        again = self.rng.choice([0, 0, 1, 5, 40]) if self.trouble else 0
        begin = max(0, place - again)
        page = [(each.key, each.change) for each in self._engine._log[begin : begin + limit]]
        self.redelivered += place - begin
        # A page may end before what was delivered already: the next page begins there.
        return page, b"%d" % (begin + len(page))

    async def get_setting(self, tenant, name):
        await asyncio.sleep(0)
        return await super().get_setting(tenant, name)

    async def swap_setting(self, tenant, name, before, value):
        await asyncio.sleep(0)
        if self.rng.random() < self.trouble / 2:
            message = "not written"
            raise StoreUnavailable(message)
        swapped = await super().swap_setting(tenant, name, before, value)
        if self.rng.random() < self.trouble / 2:
            message = "written, or not"
            raise StoreUnavailable(message)
        return swapped


def drawn_changes(tapes, rng):
    """Play histories; return every change of all sessions in a mixed order, and the facts."""
    logs, facts = [], []
    for (tenant, session_id), tape in zip(SESSIONS, tapes, strict=True):
        choices, steps = draw_history(tape)
        actors = Actors(choices)
        for step in steps:
            actors.play(step)
        counter = SessionCounter(tenant, session_id, HOME)
        # Sometimes far enough apart that days are read, not only hours.
        offset_us = rng.choice([rng.randrange(0, 40), rng.randrange(150, 400)]) * HOUR_US
        changes, state = [], None
        for revision, (now_us, version, events) in enumerate(actors.chat.log, start=1):
            state = apply_change(
                state, events, session_id=session_id, now_us=now_us, registry_version=version
            )
            # The same conversation some hours later, with the same response times.
            moved = [_later(event, offset_us) for event in events]
            time_us = now_us + offset_us
            counter.take(time_us, moved)
            change = Change(revision, time_us, "Route", "", "", b"", encode_events(moved), b"")
            changes.append(
                Append(
                    SessionKey(tenant, session_id), revision - 1, change, encode_state(state), ""
                )
            )
        logs.append(changes)
        facts += counter.facts
    mixed = []
    while any(logs):
        log = rng.choice([log for log in logs if log])
        mixed.append(log.pop(0))
    return mixed, facts


def _later(event, offset_us):
    dispatched_us = getattr(event, "dispatched_us", None)
    if dispatched_us is None:
        return event
    return msgspec.structs.replace(event, dispatched_us=dispatched_us + offset_us)


async def refuse(store, rng, facts, time_us):
    """Write a refused handoff to the audit, as the command handler does."""
    rules = rng.sample(["entitled", "channel", "handoff_to"], rng.choice([1, 2]))
    target = rng.choice(["ada", "ben"])
    told = {
        "method": "SetActiveAgent",
        "metadata": {"from_agent_id": HOME, "agent_id": target, "initiator": "agent"},
        "verdicts": [["enabled", True, ""], *([rule, False, "no"] for rule in rules)],
    }
    data = msgspec.json.encode(told)
    await store.append_audit(
        AuditEntry(time_us, *REFUSALS_AT, 1, keeper_module.REFUSED_KIND, "", "ana", data)
    )
    where = (*REFUSALS_AT, time_us // HOUR_US, "web")
    facts.append(Fact(*where, "refused", (HOME, target, "agent", "")))
    facts.extend(Fact(*where, "rule", rule) for rule in rules)


async def play(tapes, number):
    """Append and fold in turn, with random failures; return store and facts."""
    rng = random.Random(number)
    store = TroublesomeStore(rng)
    mixed, facts = drawn_changes(tapes, rng)
    state = apply_change(
        None,
        [started := SessionStarted(Profile(channel="web"))],
        session_id=REFUSALS_AT.session_id,
        now_us=1,
        registry_version="1",
    )
    first = Change(1, 1, "Route", "", "", b"", encode_events([started]), b"")
    await store.append(Append(REFUSALS_AT, 0, first, encode_state(state), "ana"))

    def new_keeper():
        return StatsKeeper(store, lambda: HOME, lambda: 10**18, holder="one")

    keepers = [new_keeper(), new_keeper()]
    while mixed:
        for _ in range(rng.choice([1, 1, 3, 20])):
            if mixed:
                await store.append(mixed.pop(0))
        if rng.random() < 0.3:
            await refuse(
                store, rng, facts, rng.randrange(0, 90) * HOUR_US + facts[0].hour * HOUR_US
            )
        store.trouble = rng.choice([0.0, 0.2, 0.6])
        keeper_module.PAGE_CHANGES_MAX = rng.choice([1, 2, 7, 200])
        working = rng.choice([[keepers[0]], [keepers[1]], keepers, keepers * 2])
        done = await asyncio.gather(*(each.advance() for each in working), return_exceptions=True)
        assert all(isinstance(each, bool | StoreUnavailable) for each in done), done
        if rng.random() < 0.3:
            keepers[rng.randrange(2)] = new_keeper()
    store.trouble = 0.0
    return store, new_keeper(), facts


def seen(report):
    """Return a report in the form of the brute force counter."""
    counts = report.counts
    pairs = {
        tuple(msgspec.structs.astuple(Pair.of(name))): row for name, row in counts.handoffs.items()
    }
    rows = counts.agents
    return {
        "messages": counts.messages,
        "saved": counts.saved,
        "sessions": report.sessions,
        "channels": Counter(counts.channels),
        "hours": Counter({period.start_hour: period.counts.messages for period in report.periods}),
        "reasons": Counter(counts.reasons),
        "commands": Counter(counts.commands),
        "handoffs": Counter({pair: row.carried_out for pair, row in pairs.items()}),
        "returned": Counter({pair: row.returned for pair, row in pairs.items()}),
        "ping_pongs": Counter({pair: row.ping_pongs for pair, row in pairs.items()}),
        "refused": Counter({pair: row.refused for pair, row in pairs.items()}),
        "rules": Counter(counts.refusals),
        "turns": Counter({name: row.turns for name, row in rows.items()}),
        "outcomes": Counter(
            {(name, way): n for name, row in rows.items() for way, n in row.outcomes.items()}
        ),
        "stored": Counter({name: row.stored_only for name, row in rows.items()}),
        "degraded": Counter({name: row.degraded for name, row in rows.items()}),
        "abandoned": Counter({name: row.abandoned for name, row in rows.items()}),
        "activations": Counter({name: row.activations for name, row in rows.items()}),
        "stuck": Counter({name: row.stuck for name, row in rows.items()}),
        "stays": Counter({name: row.stays for name, row in rows.items()}),
    }


def compare(report, expected):
    """Compare a report with the brute force figures."""
    found = seen(report)
    if any(period.hours > 1 for period in report.periods):
        days: Counter[int] = Counter()
        for hour, messages in expected["hours"].items():
            days[hour // 24 * 24] += messages
        expected = {**expected, "hours": days}
    for name, value in found.items():
        assert value == expected[name], name  # A Counter's zeros do not count.
    for agent_id, row in report.counts.agents.items():
        stays = expected["stay_sizes"].get(agent_id, [])
        assert row.turns_stayed == sum(stays)
        answers = [us // 100 for us in expected["response_sizes"].get(agent_id, [])]
        for sizes, histogram in ((stays, row.stay_turns), (answers, row.responses)):
            assert sum(histogram.values()) == len(sizes)
            for share in (0.5, 0.95):
                if sizes:
                    right = at_rank(sizes, share)
                    assert abs(quantile(histogram, share) - right) <= right * ERROR
    counts = report.counts
    assert counts.stuck == sum(expected["stuck"].values())
    assert counts.carried_out == sum(expected["handoffs"].values())
    assert counts.refused == sum(expected["refused"].values())
    assert counts.ping_pongs == sum(expected["ping_pongs"].values())


async def check(tapes, number):
    """Play, then compare every tenant and channel, over all time and from a random hour on."""
    store, keeper, facts = await play(tapes, number)
    keeper_module.PAGE_CHANGES_MAX = 200
    hours = sorted({fact.hour for fact in facts})
    for tenant in ("acme", "other", "*"):
        for channel in ("", "web", "app"):
            for start_hour in (0, hours[len(hours) // 2]):
                report = await read_report(
                    store,
                    keeper,
                    tenant=tenant,
                    start_us=start_hour * HOUR_US or None,
                    end_us=None,
                    channel=channel,
                )
                compare(report, count(facts, tenant=tenant, channel=channel, start_hour=start_hour))
    return store.redelivered, len(facts)


@pytest.mark.timeout(300)
@seed(SEED)
@settings(
    max_examples=60,
    deadline=None,
    print_blob=True,
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large),
)
@given(
    tapes=st.tuples(
        *(st.binary(min_size=tape_bytes(STEPS), max_size=tape_bytes(STEPS)) for _ in SESSIONS)
    ),
    number=st.integers(0, 2**32),
)
def test_fold_of_any_split_restart_and_repeat_is_the_count_of_the_whole_log(tapes, number):
    """Two concurrent readers, each killed now and then, over a log that repeats itself."""
    before = keeper_module.PAGE_CHANGES_MAX
    try:
        asyncio.run(check(tapes, number))
    except Exception as error:
        error.add_note(f"ROUTING_SEED={SEED} number={number}")
        raise
    finally:
        keeper_module.PAGE_CHANGES_MAX = before


def test_what_the_property_is_about_really_happens():
    """A fixed example repeats changes and has most kinds of figures."""
    rng = random.Random(7)
    total, kinds = 0, set()
    before = keeper_module.PAGE_CHANGES_MAX
    try:
        for number in range(16):
            tapes = tuple(rng.randbytes(tape_bytes(STEPS)) for _ in SESSIONS)
            redelivered, _ = asyncio.run(check(tapes, number))
            total += redelivered
            _, facts = drawn_changes(tapes, random.Random(number))
            kinds |= {fact.what for fact in facts}
    finally:
        keeper_module.PAGE_CHANGES_MAX = before
    assert total > 100
    assert {"message", "handoff", "returned", "stuck", "stay", "activation", "response"} <= kinds
    assert {"ping_pong", "abandoned", "stored", "degraded", "command"} <= kinds
