"""Long random histories of several tasks, workers and people, checked against the invariants.

As in test_histories.py; to repeat a run: ROUTING_SEED=<seed>.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from routing_service.core.evolve import apply_change
from routing_service.core.history import HistoryFold
from routing_service.core.strand_fold import every_open_turn
from routing_service.storage.event_codec import (
    decode_events,
    decode_state,
    encode_events,
    encode_state,
)
from tests.simulation.conversation import SESSION_ID
from tests.simulation.strategies import REGISTRY_BYTES, Tape
from tests.simulation.task_talk import REFUSALS, STEP_BYTES, TaskTalk, draw_busy_registry
from tests.simulation.test_histories import SEED, SLOW, told

STEPS = 60
STATE_BYTES_MAX = 16 * 1024
TAPES = st.binary(
    min_size=REGISTRY_BYTES + STEPS * STEP_BYTES, max_size=REGISTRY_BYTES + STEPS * STEP_BYTES
)


def play(tape: bytes) -> Counter[str]:
    """Play a history and check it; return the results of its steps, and what was reached."""
    registry = draw_busy_registry(Tape(tape[:REGISTRY_BYTES]))
    talk = TaskTalk(registry)
    with told(registry):
        for place in range(REGISTRY_BYTES, len(tape), STEP_BYTES):
            talk.play(Tape(tape[place : place + STEP_BYTES]))
        check_whole(talk)
    for _, _, events in talk.chat.log:
        talk.outcomes.update({f"{type(event).__name__}" for event in events})
    return talk.outcomes


def check_whole(talk: TaskTalk) -> None:
    """Assert that the log alone gives the state, and that no answer is lost."""
    chat, state, history = talk.chat, None, HistoryFold()
    for revision, (now_us, version, events) in enumerate(chat.log, start=1):
        stored = decode_events(encode_events(events))
        state = apply_change(
            state, stored, session_id=SESSION_ID, now_us=now_us, registry_version=version
        )
        history.apply(revision, now_us, stored)
    assert state is not None
    assert state == chat.state, "the state differs from its own replay"
    data = encode_state(state)
    assert decode_state(data) == state
    assert len(data) < STATE_BYTES_MAX
    records = {(record.request_id, record.agent_id): record for record in history.records}
    for key, text in talk.answered.items():
        assert records[key].agent_text == text, "an agent's text is not in the history"
    open_turns = {(turn.request_id, turn.holder) for turn in every_open_turn(state)}
    open_turns -= set(talk.answered)
    assert open_turns <= {key for key, record in records.items() if record.is_open}
    for turn in every_open_turn(state):
        assert records[turn.request_id, turn.holder].task_id == turn.task_id


@pytest.mark.timeout(300)
@seed(SEED)
@settings(max_examples=150, print_blob=True, suppress_health_check=SLOW)
@given(tape=TAPES)
def test_nothing_that_never_happens_is_in_a_history_of_tasks_and_people(tape):
    """Tasks begin, park and come forward, people claim and release, in any order."""
    play(tape)


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_nothing_that_never_happens_is_in_ten_thousand_histories_of_tasks_and_people():
    """The long version, which also checks that every kind of step and refusal was seen."""
    total: Counter[str] = Counter()
    played = 0

    @seed(SEED)
    @settings(max_examples=10_000, print_blob=True, suppress_health_check=SLOW, database=None)
    @given(tape=TAPES)
    def run(tape):
        nonlocal played
        played += 1
        total.update(play(tape))

    run()
    print(f"ROUTING_SEED={SEED}: {played} histories: {dict(total)}")  # noqa: T201
    assert played >= 10_000
    rare = {"UNKNOWN_SUGGESTION", "TURN_OPEN", "TASKS_OPEN", "UNKNOWN_AGENT"}
    assert {reason.value for reason in REFUSALS} - rare <= set(total)
    assert {"ApprovalVoted", "ApprovalDecided"} <= set(total)
    assert {"TaskParked", "TaskForegrounded", "Claimed", "ClaimReleased", "TurnAnswered"} <= set(
        total
    )
