"""Timeouts without a call: their due times, and the effect of a sweep.

A failure prints the history as shrunk by Hypothesis, and the seed.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from routing_service.core import events as ev
from routing_service.core.commands import Expire
from routing_service.core.decide import decide, view
from routing_service.core.expiry import next_due_us
from routing_service.core.registry import SECOND_US, Registry
from routing_service.core.session import SessionState
from tests.simulation.conversation import SESSION_ID
from tests.simulation.strategies import (
    REGISTRY_BYTES,
    SESSION_BYTES,
    Tape,
    draw_history,
    draw_registry,
    draw_session,
)
from tests.simulation.test_histories import SEED, SLOW, Actors, tapes, told

YEARS_US = 10 * 365 * 24 * 3600 * SECOND_US
SWEEPS_MAX = 64
STEPS_MAX = 25

OF_TIME = (
    ev.TurnAbandoned,
    ev.TaskCancelled,
    ev.ApprovalWithdrawn,  # With its task, whose time passed.
    ev.LockReleased,
    ev.StickinessExpired,
    ev.AgentCleared,
    ev.AgentHandedOff,
    ev.TimePassed,
)


def swept(state: SessionState, registry: Registry, now_us: int):
    """Sweep a session only."""
    return decide(state, Expire(), registry, now_us, session_id=SESSION_ID)


def check_due(state: SessionState, registry: Registry) -> int | None:
    """Assert that a sweep changes something when it is due, and nothing before; return the time."""
    due_us = next_due_us(state, registry)
    before_us = state.update_us + YEARS_US if due_us is None else due_us - 1
    if before_us >= state.update_us:
        assert not swept(state, registry, before_us).decision.events
        assert view(state, registry, before_us) is state
    if due_us is not None:
        events = swept(state, registry, due_us).decision.events
        assert events
        assert all(isinstance(event, OF_TIME) for event in events)
        assert isinstance(events[-1], ev.TimePassed)
        assert view(state, registry, due_us) is not state
    return due_us


def sweep_all(actors: Actors) -> int:
    """Let time pass from one timeout to the next until nothing is due."""
    chat = actors.chat
    for count in range(SWEEPS_MAX):
        due_us = check_due(chat.state, chat.registry)
        if due_us is None:
            return count
        chat.now_us = max(chat.now_us, due_us)
        chat.do(Expire())
    raise AssertionError("something is due for ever")


@pytest.mark.timeout(300)
@seed(SEED)
@settings(max_examples=200, print_blob=True, suppress_health_check=SLOW)
@given(tape=tapes(STEPS_MAX), sweeps=st.integers(0, 2**STEPS_MAX - 1))
def test_sweep_changes_something_when_it_is_due_and_nothing_before(tape, sweeps):
    """In any history with sweeps in between; the sweeps then follow the rules.

    The steps' own checks apply as well: the message's target, and that the state is its own replay.
    """
    choices, steps = draw_history(tape)
    actors = Actors(choices)
    counts: Counter[str] = Counter()
    with told(*choices, *steps):
        for place, step in enumerate(steps):
            actors.play(step)
            if actors.chat.state is None:
                continue
            due_us = check_due(actors.chat.state, actors.chat.registry)
            counts["due" if due_us is not None else "never due"] += 1
            if due_us is not None and sweeps >> place & 1:
                actors.chat.now_us = max(actors.chat.now_us, due_us)
                actors.chat.do(Expire())
        if actors.chat.state is not None:
            sweep_all(actors)
        actors.check_whole()


@pytest.mark.timeout(300)
@seed(SEED)
@settings(max_examples=2000, print_blob=True, suppress_health_check=SLOW)
@given(
    tape=st.binary(min_size=REGISTRY_BYTES + SESSION_BYTES, max_size=REGISTRY_BYTES + SESSION_BYTES)
)
def test_due_time_of_any_session_that_could_be_stored(tape):
    """Also states that histories rarely reach."""
    registry = draw_registry(Tape(tape[:REGISTRY_BYTES]))
    state = draw_session(Tape(tape[REGISTRY_BYTES:]), registry)
    with told(registry, state):
        check_due(state, registry)
