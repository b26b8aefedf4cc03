"""The checker finds planted violations, and accepts every linearisable history."""

import asyncio
import itertools
import random
from collections import defaultdict
from dataclasses import replace

import pytest

import agent_routing
from agent_routing import outcomes
from routing_service.ids import new_uuid7
from tests.rpc.live_service import serving
from tests.rpc.registries import DESK
from tests.torture.linearisability import STATUS, Observed, Outcome, Stored, check
from tests.torture.recorder import Recorder, load_history, stored_changes

SESSION = "default/chat-1"


def kinds(history, log=None):
    """Return the violations in a history."""
    return sorted({violation.kind for violation in check(history, log)})


def write(number, revision, begin, end, **fields):
    """An answered write."""
    given = {
        "session": SESSION,
        "kind": "Route",
        "request_id": f"r-{number}",
        "revision": revision,
        "invoke_ns": begin,
        "response_ns": end,
        "answer": f"answer-{number}",
    }
    return Observed(**(given | fields))


def read(revision, begin, end, agent=None):
    """A Status."""
    return Observed(
        session=SESSION,
        kind=STATUS,
        revision=revision,
        invoke_ns=begin,
        response_ns=end,
        agent=agent,
    )


def unknown(number, begin, end=None):
    """A write without an answer."""
    return Observed(
        session=SESSION,
        kind="Route",
        request_id=f"r-{number}",
        invoke_ns=begin,
        response_ns=end,
        outcome=Outcome.UNKNOWN,
    )


def refused(number, begin, end, **fields):
    """A write that the service refused."""
    return write(number, None, begin, end, outcome=Outcome.REFUSED, answer="", **fields)


def stored(*numbers, agents=()):
    """The log in which the requests with these numbers came one after the other."""
    agents = list(agents) or [None] * len(numbers)
    return {
        SESSION: [
            Stored(revision, "Route", f"r-{number}", "", agent)
            for revision, (number, agent) in enumerate(zip(numbers, agents, strict=True), 1)
        ]
    }


SOUND = {
    "one after the other": ([write(1, 1, 0, 1), write(2, 2, 2, 3), read(2, 4, 5)], stored(1, 2)),
    "at once, the later one first": ([write(1, 2, 0, 9), write(2, 1, 1, 8)], stored(2, 1)),
    "read while it is written": ([write(1, 1, 0, 9), read(0, 1, 2), read(1, 3, 4)], stored(1)),
    "unanswered and done": ([unknown(1, 0, 1), write(2, 2, 2, 3)], stored(1, 2)),
    "unanswered and not done": ([unknown(1, 0, 1), write(2, 1, 2, 3)], stored(2)),
    "unanswered and done much later": (
        [unknown(1, 0, 1), write(2, 1, 2, 3), read(1, 4, 5), read(2, 6, 7)],
        stored(2, 1),
    ),
    "repeated after a time-out": (
        [unknown(1, 0, 1), write(2, 2, 2, 3), write(1, 1, 4, 5, replayed=True)],
        stored(1, 2),
    ),
    "refused": ([write(1, 1, 0, 1), refused(2, 2, 3), write(3, 2, 4, 5)], stored(1, 3)),
    "refused for another revision": (
        [write(1, 1, 0, 1), replace(refused(2, 2, 3), revision=1, expected_revision=0)],
        stored(1),
    ),
    "nothing to clear, twice": (
        [
            write(1, 1, 0, 1),
            write(2, 1, 2, 3, kind="ClearActiveAgent"),
            write(2, 1, 4, 5, kind="ClearActiveAgent"),
        ],
        stored(1),
    ),
    "nothing there yet": ([replace(refused(0, 0, 1), kind=STATUS, error="UNKNOWN_SESSION")], {}),
    "change of the service's own": (
        [write(1, 1, 0, 1), write(2, 3, 2, 3)],
        {SESSION: [*stored(1)[SESSION], Stored(2, "", "", ""), Stored(3, "Route", "r-2", "")]},
    ),
}

BROKEN = {
    # Violations that are visible without the log.
    "shared_revision": [write(1, 1, 0, 1), write(2, 1, 2, 3)],
    "two_answers": [write(1, 1, 0, 1), write(1, 1, 2, 3, answer="another")],
    "reordered": [write(1, 2, 0, 1), write(2, 1, 2, 3)],
    "stale_read": [write(1, 1, 0, 1), read(0, 2, 3)],
    "backwards_read": [write(1, 1, 0, 9), read(1, 1, 2), read(0, 3, 4)],
    "read_ahead": [read(1, 0, 1), write(1, 1, 2, 3)],
    "phantom": [write(1, 1, 0, 1), write(2, 3, 2, 3)],
    "phantom_repeat": [write(1, 1, 0, 1, replayed=True)],
    "two_agents": [write(1, 1, 0, 1), read(1, 2, 3, agent="a"), read(1, 4, 5, agent="b")],
    "unexpected_revision": [write(1, 1, 0, 1), write(2, 2, 2, 3, expected_revision=0)],
    "no_revision": [write(1, 0, 0, 1)],
}

BROKEN_BESIDE_LOG = {
    "lost_write": ([write(1, 1, 0, 1), write(2, 2, 2, 3)], stored(1)),
    "moved_write": ([write(1, 1, 0, 9), write(2, 2, 1, 9)], stored(2, 1)),
    "duplicate_apply": ([write(1, 1, 0, 1)], stored(1, 1)),
    "other_answer": (
        [write(1, 1, 0, 1, kept="one")],
        {SESSION: [Stored(1, "Route", "r-1", "", kept="another")]},
    ),
    "refusal_applied": ([refused(1, 0, 1)], stored(1)),
    "phantom": ([write(1, 1, 0, 1)], stored(1, 7)),
    "gap": (
        [write(1, 1, 0, 1), unknown(2, 2)],
        {SESSION: [Stored(1, "Route", "r-1", ""), Stored(3, "Route", "r-2", "")]},
    ),
    "two_agents": (
        [write(1, 1, 0, 1), read(1, 2, 3, agent="a")],
        stored(1, agents=["b"]),
    ),
    "stale_read": ([write(1, 1, 0, 1), replace(read(0, 2, 3), revision=0)], stored(1)),
}


@pytest.mark.parametrize("name", SOUND)
def test_history_that_one_session_explains_is_accepted(name):
    """The checker accepts it with and without the log."""
    history, log = SOUND[name]
    if name != "change of the service's own":  # Without the log it looks like a phantom.
        assert check(history) == []
    assert check(history, log) == []


@pytest.mark.parametrize("kind", BROKEN)
def test_planted_violation_is_found_from_outside(kind):
    """The report names it, in an otherwise correct history."""
    assert kinds(BROKEN[kind]) == [kind]


@pytest.mark.parametrize("kind", BROKEN_BESIDE_LOG)
def test_planted_violation_is_found_beside_the_log(kind):
    """Including violations that only the store shows."""
    assert kind in kinds(*BROKEN_BESIDE_LOG[kind])


def test_session_that_vanished_is_a_stale_read():
    """NOT_FOUND after an answered write."""
    gone = replace(refused(0, 2, 3), kind=STATUS, request_id="", error="UNKNOWN_SESSION")
    assert kinds([write(1, 1, 0, 1), gone]) == ["stale_read"]


def test_unanswered_call_explains_one_revision_and_no_more():
    """Two gaps and one call that may have filled one of them."""
    assert kinds([unknown(1, 0), write(2, 2, 1, 2)]) == []
    assert kinds([unknown(1, 0), write(2, 3, 1, 2)]) == ["phantom"]
    # It began after a later revision had been seen, so it cannot have made an earlier one.
    assert kinds([write(2, 2, 0, 1), unknown(1, 2)]) == ["phantom"]


def test_sessions_are_told_apart():
    """One revision in each of two sessions is not a shared one."""
    assert check([write(1, 1, 0, 1), write(2, 1, 0, 1, session="default/chat-2")]) == []


class OneAtATime:
    """A correct session, with clients that overlap at random, seeded."""

    def __init__(self, seed):
        self.dice = random.Random(seed)
        self.history = []
        self.log = []
        self.clock = itertools.count(1)

    def play(self, calls):
        """Let several clients call; each call takes effect between its begin and its end."""
        events = []
        for number in range(calls):
            begin = self.dice.random() * calls / 3
            effect = begin + self.dice.random()
            events.append((effect, number, begin, effect + self.dice.random()))
        for effect, number, begin, end in sorted(events):
            begin_ns, end_ns = int(begin * 1e6), int(end * 1e6) + 1
            kind = self.dice.random()
            agent = self.log[-1].agent if self.log else ""
            if kind < 0.3:
                self.history.append(read(len(self.log), begin_ns, end_ns, agent=agent))
            elif kind < 0.4:
                self.history.append(refused(number, begin_ns, end_ns))
            elif kind < 0.5 and effect:
                if self.dice.random() < 0.5:
                    self.applied(number)
                self.history.append(unknown(number, begin_ns, end_ns))
            else:
                self.applied(number)
                self.history.append(write(number, len(self.log), begin_ns, end_ns))
        return self.history, {SESSION: self.log}

    def applied(self, number):
        agent = self.dice.choice(["", "a", "b"])
        self.log.append(Stored(len(self.log) + 1, "Route", f"r-{number}", "", agent))


@pytest.mark.parametrize("seed", range(20))
def test_overlapping_clients_of_a_sound_session_are_accepted(seed):
    """No overlap causes a false alarm."""
    history, log = OneAtATime(seed).play(300)
    assert check(history) == []
    assert check(history, log) == []


@pytest.mark.parametrize("seed", range(20))
def test_one_spoilt_answer_among_many_is_found(seed):
    """One read or write of a large history is changed at random."""
    history, log = OneAtATime(seed).play(300)
    dice = random.Random(seed)
    found = []
    for _ in range(20):
        place = dice.randrange(len(history))
        call = history[place]
        if call.outcome is not Outcome.ANSWERED:
            continue
        by = dice.choice([-9, 9])
        spoilt = list(history)
        spoilt[place] = replace(call, revision=max(call.revision + by, 0))
        found.append(bool(check(spoilt, log)))
    assert found
    assert all(found)


async def test_history_of_a_real_server_is_sound(tmp_path):
    """Clients that share sessions, repeat, overlap and give up, recorded by the real client."""
    recorder = Recorder()
    async with serving(tmp_path, DESK) as service:
        async with agent_routing.AsyncClient(service.server.address, fallback=None) as client:
            talkers = [talk(recorder.wrap(client, f"client-{n}"), n) for n in range(6)]
            await asyncio.gather(*talkers)
        log = await stored_changes(service.store)
    assert check(recorder.history, log) == []
    assert check(recorder.history) == []
    seen = defaultdict(int)
    for call in recorder.history:
        seen[call.kind, call.outcome] += 1
    for kind in ("Route", "CompleteTurn", "SetActiveAgent", "ClearActiveAgent", STATUS):
        assert seen[kind, Outcome.ANSWERED], seen
    assert seen["SetActiveAgent", Outcome.REFUSED], seen
    assert seen["Route", Outcome.UNKNOWN], seen
    recorder.save(tmp_path / "history")
    assert load_history([tmp_path / "history"]) == recorder.history
    # One invented answer makes it wrong.
    lost = replace(recorder.history[0], request_id=new_uuid7())
    assert check([*recorder.history, lost], log) != []


async def talk(client, number):
    """Make random calls in three sessions that all clients use."""
    dice = random.Random(number)
    last = {}
    for step in range(25):
        session = f"chat-{dice.randrange(3)}"
        kind = dice.random()
        try:
            if kind < 0.4:
                request_id = new_uuid7()
                say = client.route(f"message {step}", session_id=session, request_id=request_id)
                if dice.random() < 0.2:
                    giving_up = asyncio.create_task(say)
                    await asyncio.sleep(dice.random() * 0.004)
                    giving_up.cancel()
                    await asyncio.gather(giving_up, return_exceptions=True)
                    say = client.route(f"message {step}", session_id=session, request_id=request_id)
                last[session] = (await say).dispatch
            elif kind < 0.6 and last.get(session):
                dispatch = last[session]
                await client.complete_turn(
                    session,
                    dispatch.request_id,
                    dispatch.agent.agent_id,
                    dice.choice([outcomes.proceed(), outcomes.handoff("sales")]),
                    text="done",
                )
            elif kind < 0.8:
                await client.set_active_agent(session, dice.choice(["sales", "support", "front"]))
            elif kind < 0.85:
                await client.clear_active_agent(session)
            else:
                await client.status(session)
        except agent_routing.RoutingError:
            continue
