"""Which tenants a round of seals reads, and what it does with damage; proofs are in tests/rpc."""

from collections import Counter

import pytest
from structlog.testing import capture_logs

from routing_service.sessions.audit_log import NO_SESSION, AuditLog, Operator
from routing_service.sessions.audit_sealer import (
    ALL_TENANTS_S,
    TENANTS_NOTED_MAX,
    AuditSealer,
)
from routing_service.sessions.seal_notes import SealNotes
from routing_service.storage.audit_seals import (
    AUDIT_SEALED,
    SEALS,
    put_place,
    read_place,
    read_seals,
)
from routing_service.storage.memory_store import MemoryStore
from routing_service.storage.store import AuditEntry, StoreUnavailable

TENANTS = [f"tenant-{number:03}" for number in range(30)]


class CountingStore(MemoryStore):
    """Counts the reads of each tenant, and fails swaps on demand."""

    def __init__(self):
        super().__init__()
        self.reads = Counter()
        self.swaps_fail = False

    async def get_setting(self, tenant, name):
        self.reads[tenant] += 1
        return await super().get_setting(tenant, name)

    async def read_audit(self, tenant, *args):
        self.reads[tenant] += 1
        return await super().read_audit(tenant, *args)

    async def swap_setting(self, *args):
        if self.swaps_fail:
            raise StoreUnavailable("away")
        return await super().swap_setting(*args)


class Replica:
    """The log and the sealer of one process."""

    def __init__(self, store, name="one"):
        self.now_us = 1_000_000
        self.log = AuditLog(store, lambda: self.now_us)
        self.sealer = AuditSealer(store, lambda: self.now_us, holder=name, logs=(self.log,))

    async def seal(self):
        await self.sealer.note_grown()
        await self.sealer.seal()

    async def act(self, *tenants):
        for tenant in tenants:
            await self.log.act(Operator(tenant), tenant, "ReloadAgents", reason="", target="")


async def numbers(store, tenant):
    """Return the numbers of a tenant's seals."""
    return [seal.n for seal in await read_seals(store, tenant)]


@pytest.fixture
async def store():
    """A store with an act in the audit of each tenant, all sealed by a replica that has ended."""
    store = CountingStore()
    before = Replica(store)
    await before.act(*TENANTS)
    await before.sealer.seal()
    assert [await numbers(store, tenant) for tenant in TENANTS] == [[1]] * len(TENANTS)
    return store


async def sealed_once(store):
    """Return a replica that has looked at all tenants, as each does in its first round."""
    replica = Replica(store)
    await replica.sealer.seal()
    store.reads.clear()
    return replica


async def test_idle_round_reads_nothing_of_any_tenant(store):
    """With thousands of tenants it read each tenant's setting and audit every minute."""
    replica = await sealed_once(store)
    for _ in range(3):
        await replica.sealer.note_grown()
        assert await replica.sealer.seal() is False
    assert set(store.reads) == {"*"}


async def test_round_reads_the_tenants_that_got_entries_and_no_other(store):
    """Also of entries that another replica wrote, which no change in the log names."""
    replica, other = await sealed_once(store), Replica(store, "two")
    await replica.act(TENANTS[3])
    await other.act(TENANTS[7])
    await replica.sealer.note_grown()
    await other.sealer.note_grown()
    await replica.sealer.seal()
    assert set(store.reads) == {"*", TENANTS[3], TENANTS[7]}
    assert await numbers(store, TENANTS[3]) == await numbers(store, TENANTS[7]) == [1, 2]
    store.reads.clear()
    await replica.sealer.seal()
    assert set(store.reads) == {"*"}


async def test_entries_of_a_replica_that_crashed_before_its_note_are_sealed_within_the_hour(store):
    """The round that looks at all tenants finds them."""
    replica, crashed = await sealed_once(store), Replica(store, "two")
    await crashed.act(TENANTS[5])
    await replica.sealer.seal()
    assert await numbers(store, TENANTS[5]) == [1]
    replica.now_us += int(ALL_TENANTS_S * 1e6)
    await replica.sealer.seal()
    assert await numbers(store, TENANTS[5]) == [1, 2]


async def test_note_that_failed_is_made_again(store):
    """A store that is away for a minute must not cost an hour."""
    replica = await sealed_once(store)
    await replica.act(TENANTS[1])
    store.swaps_fail = True
    with pytest.raises(StoreUnavailable):
        await replica.sealer.note_grown()
    store.swaps_fail = False
    await replica.sealer.note_grown()
    await replica.sealer.seal()
    assert await numbers(store, TENANTS[1]) == [1, 2]


async def test_more_tenants_than_a_note_holds_are_all_sealed(store):
    """The note then says: all."""
    replica = await sealed_once(store)
    many = [f"many-{number:04}" for number in range(TENANTS_NOTED_MAX + 1)]
    await replica.act(*many)
    await replica.sealer.note_grown()
    await replica.sealer.seal()
    assert all([await numbers(store, tenant) == [1] for tenant in many])
    store.reads.clear()
    await replica.sealer.seal()
    assert set(store.reads) == {"*"}


@pytest.mark.parametrize("name", ["store.audit_seal", "store.audit_grew"])
async def test_damaged_place_or_note_does_not_end_the_sealing(store, name):
    """It ended the sealing of all tenants until a restart, which failed the same way."""
    replica = await sealed_once(store)
    await replica.act(TENANTS[2])
    await replica.sealer.note_grown()
    tenant = "*" if name == "store.audit_grew" else TENANTS[2]
    await store._engine.put_setting(tenant, name, b'{"damaged":1,"crc":"00000000"}')
    await replica.sealer.seal()
    assert await numbers(store, TENANTS[2]) == [1, 2]


async def test_damaged_seal_does_not_end_the_sealing(store):
    """Audit verify names it; later seals have numbers of their own."""
    replica = await sealed_once(store)
    damaged = AuditEntry(5, TENANTS[4], SEALS, 0, AUDIT_SEALED, "", "", b'{"crc":"00000000"}')
    await store._engine.append_audit(damaged)
    await store._engine.put_setting(TENANTS[4], "store.audit_seal", b'{"x":1,"crc":"00000000"}')
    await replica.act(TENANTS[4], TENANTS[5])
    await replica.sealer.note_grown()
    await replica.sealer.seal()
    assert await numbers(store, TENANTS[5]) == [1, 2]
    entries, _ = await store.read_audit(TENANTS[4], SEALS, b"", 10)
    assert len(entries) == 3
    acts, _ = await store.read_audit(TENANTS[4], NO_SESSION, b"", 10)
    assert len(acts) == 2


async def test_sealer_notices_that_its_store_was_put_back_while_it_runs():
    """It knows the seals that it made, without a file of them."""
    replica = Replica(MemoryStore())
    await replica.act("bank")
    await replica.seal()
    await replica.act("bank")
    await replica.seal()
    earlier = MemoryStore()
    before = Replica(earlier)
    await before.act("bank")
    await before.seal()
    replica.sealer._store = replica.log._store = earlier
    with capture_logs() as logs:
        for _ in range(2):
            await replica.act("bank")
            await replica.seal()
    (line,) = [each for each in logs if each["event"] == "audit_rolled_back"]
    assert (line["tenant"], line["noted_seal"], line["last_seal"]) == ("bank", 2, 1)


async def test_two_that_seal_at_once_are_no_rollback(store):
    """Both seals of one number are true, and the store has both."""
    one, other = Replica(store, "one"), Replica(store, "two")
    place = await read_place(store, TENANTS[0])
    for replica in (one, other):
        await put_place(store, TENANTS[0], place)
        await replica.act(TENANTS[0])
        await replica.seal()
        replica.now_us += 1
    with capture_logs() as logs:
        await one.act(TENANTS[0])
        await one.seal()
    assert [each for each in logs if each["log_level"] == "error"] == []
    assert (await numbers(store, TENANTS[0]))[-3:] == [2, 2, 3]


async def test_file_of_seals_is_shared_by_processes(tmp_path, store):
    """Each keeps what the other has noted since."""
    path = tmp_path / "seals.jsonl"
    one, other = SealNotes(path), SealNotes(path)
    one.note("a", 1, b"1" * 32)
    await one.store()
    other.note("b", 5, b"5" * 32)
    await other.store()
    one.note("a", 2, b"2" * 32)
    await one.store()
    assert {tenant: one.of(tenant).seal for tenant in SealNotes(path).tenants} == {"a": 2, "b": 5}
    path.write_text("damaged")
    one.note("a", 3, b"3" * 32)
    with capture_logs() as logs:
        await one.store()
    assert [each["event"] for each in logs] == ["audit_seals_not_noted"]
    path.write_text("")
    await one.store()
    assert SealNotes(path).of("a").seal == 3
