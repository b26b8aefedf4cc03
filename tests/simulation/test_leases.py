"""An independent model of leases, compared with the store over every short history.

The model knows one entry, two workers and a clock. It is written from the rules of the design and
not from the code: a live lease excludes others, a lapsed one may be taken over, its holder may
extend it as long as no other has it, giving back undoes the attempt, and an ended entry takes
its lease along. never: two workers believe at one moment, with reason, that the turn is theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import pytest

from routing_service.storage import memory_store
from routing_service.storage.queue_entries import LeaseWish, QueueEntry

ENTRY = QueueEntry("vat", 10, "chat-1", "r1")
TENANT = "acme"
LEASE_US = 10
WORKERS = ("a", "b")
DEPTH = 6


@dataclass(frozen=True)
class Model:
    """What should be true of the entry. tokens: the lease that each worker believes to have."""

    is_there: bool = True
    now_us: int = 0
    holder: str = ""
    ends_us: int = 0
    attempt: int = 0
    tokens: tuple[tuple[str, str], ...] = ()
    leases: int = 0

    @property
    def is_live(self) -> bool:
        """Whether a lease excludes other workers."""
        return bool(self.holder) and self.ends_us > self.now_us

    def token_of(self, worker: str) -> str:
        """Return the latest lease that a worker got."""
        return dict(self.tokens).get(worker, "")


def after(model: Model, act: str, worker: str) -> tuple[Model, str | None]:
    """Return the model after an act, and the token that the store answers; None = no entry."""
    token = model.token_of(worker)
    match act:
        case "wait":
            return replace(model, now_us=model.now_us + 6), ""
        case "end":
            return replace(model, is_there=False, holder="", ends_us=0, attempt=0), ""
        case "begin" if model.is_there:
            return model, ""  # It is there already, and keeps its lease.
        case "begin":
            return replace(model, is_there=True, holder="", ends_us=0, attempt=0), ""
    if not model.is_there:
        return model, None
    match act:
        case "take" if not model.is_live:
            fresh = f"{worker}{model.leases + 1}"
            tokens = tuple((dict(model.tokens) | {worker: fresh}).items())
            ends_us = model.now_us + LEASE_US
            return replace(
                model,
                holder=fresh,
                ends_us=ends_us,
                attempt=model.attempt + 1,
                tokens=tokens,
                leases=model.leases + 1,
            ), fresh
        case "extend" if token and model.holder == token:
            return replace(model, ends_us=model.now_us + LEASE_US), token
        case "release" if token and model.holder == token:
            attempt = max(0, model.attempt - 1)
            return replace(model, holder="", ends_us=0, attempt=attempt), ""
    return model, model.holder


ACTS = (
    *product(("take", "extend", "release"), WORKERS),
    ("wait", ""),
    ("end", ""),
    ("begin", ""),
)


@pytest.fixture
def clock(monkeypatch):
    """The store's clock, which stands still."""
    times = [0]
    monkeypatch.setattr(memory_store, "_now_us", lambda: times[0])
    return times


async def replayed(history: tuple[tuple[str, str], ...], clock: list[int]) -> None:
    """Play one history on the model and on a store, and compare each step."""
    store = memory_store.MemoryStore()
    clock[0] = 0
    await store.mend_queue(TENANT, (ENTRY,), ())
    model = Model()
    for act, worker in history:
        before = model
        model, wanted = after(model, act, worker)
        clock[0] = model.now_us
        token = before.token_of(worker)
        match act:
            case "wait":
                pass
            case "end":
                await store.mend_queue(TENANT, (), (ENTRY,))
            case "begin":
                await store.mend_queue(TENANT, (ENTRY,), ())
            case _ if act == "take" or token:
                wish = {
                    "take": LeaseWish("", f"{worker}{before.leases + 1}", worker, LEASE_US),
                    "extend": LeaseWish(token, token, worker, LEASE_US),
                    "release": LeaseWish(token, token or "none", worker, 0),
                }[act]
                item = await store.lease_item(TENANT, ENTRY, wish)
                assert (None if item is None else item.token) == wanted, history
        found = await store.find_item(TENANT, ENTRY)
        if not model.is_there:
            assert found is None, history
            continue
        assert found is not None, history
        assert (found.token, found.attempt) == (model.holder, model.attempt), history
        assert found.is_free == (not model.is_live), history
    await store.close()


def distinct_histories() -> list[tuple[tuple[str, str], ...]]:
    """Return a shortest history to every state of the model that DEPTH acts reach, and one more."""
    seen: dict[Model, tuple[tuple[str, str], ...]] = {Model(): ()}
    frontier = list(seen.items())
    histories = []
    for _ in range(DEPTH):
        found: dict[Model, tuple[tuple[str, str], ...]] = {}
        for model, history in frontier:
            for act, worker in ACTS:
                longer = (*history, (act, worker))
                histories.append(longer)
                reached, _ = after(model, act, worker)
                if reached not in seen and reached not in found:
                    found[reached] = longer
        seen |= found
        frontier = list(found.items())
    return histories


async def test_leases_are_as_the_model_has_them_in_every_short_history(clock):
    """Every act on every state that six acts reach."""
    histories = distinct_histories()
    assert len(histories) > 1_000
    for history in histories:
        await replayed(history, clock)


def test_the_model_has_one_worker_at_a_time():
    """A lease that was taken over is never again the one that counts."""
    frontier, seen = [(Model(), frozenset[str]())], set()
    for _ in range(DEPTH):
        reached = []
        for model, lost in frontier:
            for act, worker in ACTS:
                then, _ = after(model, act, worker)
                gone = lost | ({model.holder} if model.holder != then.holder else set())
                assert not then.holder or then.holder not in gone, (model, act)
                if (then, gone) not in seen:
                    seen.add((then, gone))
                    reached.append((then, gone))
        frontier = reached
    assert len(seen) > 100
