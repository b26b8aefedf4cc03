"""Long random histories over random registries, checked against the invariants.

A failure prints the history as shrunk by Hypothesis, and the seed. To repeat the run:
ROUTING_SEED=<seed> make test args=tests/simulation/test_histories.py
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from msgspec import structs

from routing_service.core.commands import (
    AskApproval,
    Complete,
    Decision,
    Erase,
    Expire,
    Fail,
    FollowUp,
    HandOff,
    Outcome,
    Proceed,
    RouteMessage,
    TopicOpinion,
)
from routing_service.core.decide import decide
from routing_service.core.errors import Reason, RoutingError
from routing_service.core.events import (
    Profile,
    ProfileUpdated,
    SwitchAnswered,
    TurnCompleted,
)
from routing_service.core.evolve import apply_change
from routing_service.core.expiry import next_due_us
from routing_service.core.facts import (
    Facts,
    OfferedMessage,
    PlainAnswer,
    StoredTaskStatus,
    TopicVerdict,
)
from routing_service.core.history import HistoryFold
from routing_service.core.registry import SECOND_US, Registry
from routing_service.core.session import SessionState
from routing_service.core.suggestions import stay_option_id
from routing_service.core.vocabulary import (
    ClearScope,
    Initiator,
    OutcomeStatus,
    RouteReason,
)
from routing_service.storage.event_codec import (
    decode_events,
    decode_state,
    encode_events,
    encode_state,
)
from tests.simulation.conversation import SESSION_ID, START_US, Conversation, uuid7
from tests.simulation.never import check_change, check_offer
from tests.simulation.reference_route import Expected, Reference
from tests.simulation.strategies import (
    REGISTRY_BYTES,
    SESSION_BYTES,
    STEP_BYTES,
    About,
    Answer,
    Clear,
    HandOver,
    Reload,
    Resume,
    Say,
    Step,
    Switch,
    Tape,
    Wait,
    draw_about,
    draw_history,
    draw_registry,
    draw_session,
    tape_bytes,
)

# One seed per run: fixed on CI, random elsewhere.
SEED = int(
    os.environ.get("ROUTING_SEED") or ("0" if os.environ.get("CI") else secrets.randbits(32))
)

# The allowed refusals of a legal call; any other is a bug.
REFUSALS = {
    Reason.HANDOFF_REFUSED,
    Reason.UNKNOWN_AGENT,
    Reason.UNKNOWN_REQUEST,
    Reason.UNKNOWN_SESSION,
    Reason.UNKNOWN_TASK,
    Reason.TASK_OPEN,
    Reason.TASK_CLOSED,
    Reason.TURN_OPEN,
    Reason.TASK_NOT_PAUSED,
    Reason.REQUEST_NOT_OPEN,
    Reason.AGENT_UNAVAILABLE,
    Reason.UNKNOWN_SUGGESTION,
}
STATE_BYTES_MAX = 8 * 1024
STEPS_MAX = 40
PLAIN = Say("hello", (), "", literal_text=True, task="", expire_s=None)


class Actors:
    """Plays drawn steps into a conversation, as the service's callers could."""

    def __init__(self, choices: list[Registry]) -> None:
        self.choices = choices
        self.chat = Conversation(choices[0])
        self.outcomes: Counter[str] = Counter()
        self.answered: dict[tuple[str, str], str] = {}
        self.closed_tasks: dict[str, str] = {}

    def play(self, step: Step) -> None:
        """Play one step; a refusal changes nothing."""
        before = self.chat.state
        if isinstance(step, Answer) and not step.closed and before and not before.open_turns:
            # Most answers are to an open request.
            self.play(PLAIN)
            before = self.chat.state
        stored = encode_state(before) if before else b""
        refusal = None
        try:
            self._play(step)
        except RoutingError as error:
            refusal = error
        self.outcomes[refusal.reason.value if refusal else type(step).__name__] += 1
        if refusal is not None:
            assert refusal.reason in REFUSALS, refusal
            assert 0 < len(refusal.message.encode()) < 4096
            assert self.chat.state is before
        if before is not None:
            assert encode_state(before) == stored, "a decision changed the state before it"
        self._remember_tasks()

    def _play(self, step: Step) -> None:
        chat = self.chat
        match step:
            case Say():
                self._say(step)
            case Answer():
                self._answer(step)
            case HandOver():
                turn = "" if step.turn is None else self._request(step.turn, closed=step.closed)
                offer = chat.state.suggestion if chat.state and step.takes_offer else None
                chat.hands_to(
                    offer.agent_id if offer else step.target,
                    suggestion_id=offer.suggestion_id if offer else "",
                    turn=turn,
                    by=step.by,
                    initiator=Initiator(step.initiator) if step.initiator else None,
                    mode=step.mode,
                )
            case Resume():
                if chat.state is not None:
                    self._resume(step)
            case Clear():
                if chat.state is not None:
                    by_operator = chat.state.revision % 2
                    chat.clears(
                        ClearScope.SESSION if step.session else ClearScope.ACTIVE_AGENT,
                        initiator=Initiator.OPERATOR if by_operator else Initiator.USER,
                    )
            case Wait():
                chat.wait(step.seconds)
            case Reload():
                chat.reload(self.choices[step.place % len(self.choices)])
            case Switch():
                chat.stickiness = step.enabled

    def _say(self, step: Say) -> None:
        chat = self.chat
        if step.answers_offer in ("accept", "stay"):
            offer = chat.state.suggestion if chat.state else None
            suggestion_id = offer.suggestion_id if offer else chat.fresh_id()
            accepts = step.answers_offer == "accept"
            chat.picks(suggestion_id if accepts else stay_option_id(suggestion_id))
            return
        task_id = known_status = ""
        latest = chat.state.task if chat.state else None
        if step.task == "open" and latest is not None:
            task_id = latest.task_id
        elif step.task == "new":
            task_id = chat.fresh_id()
        elif step.task == "closed" and self.closed_tasks:
            task_id, known_status = next(iter(self.closed_tasks.items()))
        command = RouteMessage(
            request_id=chat.fresh_id(),
            text=step.text,
            new_task_id=chat.fresh_id(),
            task_id=task_id,
            profile=Profile(channel=step.channel, entitlements=step.entitlements),
            task_expire_us=_after(chat, step.expire_s),
            literal_text=step.literal_text,
            stickiness_enabled=chat.stickiness,
        )
        facts = Facts(
            {
                StoredTaskStatus: known_status,
                TopicVerdict: step.about and opinion_of(step.about, chat.fresh_id()),
                PlainAnswer: {"yes": True, "no": False}.get(step.answers_offer),
                OfferedMessage: chat.offered,
            }
        )
        before = chat.state
        decision = chat.do(command, facts)
        again = decide(
            before, command, chat.registry, chat.now_us, session_id=SESSION_ID, facts=facts
        )
        assert again.decision == decision, "the same arguments gave another decision"
        accepted = any(isinstance(e, SwitchAnswered) and e.accepted for e in decision.events)
        if decision.reply is None and before is not None and not accepted:
            told = apply_change(
                before,
                [e for e in decision.events if isinstance(e, ProfileUpdated | SwitchAnswered)],
                session_id=SESSION_ID,
                now_us=before.update_us,
                registry_version="",
            )
            # The call's own user data is applied; the time of the last call is as before it.
            told = structs.replace(told, used_us=before.used_us)
            reference = Reference(told, chat.registry, chat.now_us)
            expected = reference.expects(stickiness=chat.stickiness)
            if check_topic(reference, expected, step.about, decision, stickiness=chat.stickiness):
                assert chat.active == decision.dispatch.agent_id
                return
            assert decision.dispatch.agent_id == expected.agent_id
            assert decision.dispatch.reason is expected.reason
            assert (chat.active, chat.locked, chat.stack) == (
                expected.active,
                expected.locked,
                expected.stack,
            )

    def _answer(self, step: Answer) -> None:
        chat = self.chat
        if chat.state is None:
            return
        request = self._request(step.turn, closed=step.closed)
        turn = chat.state.find_turn(request)
        by = step.by or (turn.holder if turn else "") or _holder_of(chat, request)
        if (request, by) in self.answered:
            # The service returns such a repeat's first answer, or refuses it.
            return
        decision = chat.answers(_outcome(step), by=by, request=request, text=step.text)
        (answer,) = (e for e in decision.events if isinstance(e, TurnCompleted))
        self.answered[request, by] = answer.text
        self.outcomes[decision.status.value] += 1

    def _resume(self, step: Resume) -> None:
        chat = self.chat
        request = task_id = known_status = ""
        match step.wrong:
            case "request":
                request = uuid7(10**6)
            case "open request":
                request = self._request(0, closed=False)
            case "task":
                task_id = uuid7(10**6)
            case "closed task" if self.closed_tasks:
                task_id, known_status = next(iter(self.closed_tasks.items()))
                assert chat.state is not None
                if chat.state.task is not None and task_id == chat.state.task.task_id:
                    known_status = ""
        before = chat.state
        decision = chat.resumes(
            step.decision, request=request, task_id=task_id, known_task_status=known_status
        )
        # The waiting request is resumed once, whichever others were open.
        assert before is not None
        assert before.paused is not None
        assert decision.dispatch.request_id not in {turn.request_id for turn in before.open_turns}
        with pytest.raises(RoutingError) as second:
            chat.resumes(step.decision, request=before.paused.request_id)
        assert second.value.reason is Reason.TASK_NOT_PAUSED

    def _request(self, place: int, *, closed: bool) -> str:
        """Return an open request, a past one, or an unknown one."""
        state = self.chat.state
        now_open = [turn.request_id for turn in state.open_turns] if state else []
        if closed:
            past = [request for request in self.chat.known if request not in now_open]
            return past[-1] if past else uuid7(10**6)
        if not now_open:
            return uuid7(10**6)
        return now_open[max(-len(now_open), -1 - place)]

    def _remember_tasks(self) -> None:
        state = self.chat.state
        if state is not None and state.task is not None and not state.task.status.is_open:
            self.closed_tasks[state.task.task_id] = state.task.status.value

    def check_whole(self) -> None:
        """Assert the invariants of the whole history, as a store would return it."""
        chat = self.chat
        if chat.state is None:
            assert not chat.log
            return
        state = None
        history = HistoryFold()
        for revision, (now_us, version, events) in enumerate(chat.log, start=1):
            stored = decode_events(encode_events(events))
            state = apply_change(
                state, stored, session_id=SESSION_ID, now_us=now_us, registry_version=version
            )
            history.apply(revision, now_us, stored)
        assert state == chat.state, "the state differs from its own replay"
        assert chat.state.revision == len(chat.log)
        data = encode_state(chat.state)
        assert decode_state(data) == chat.state
        assert len(data) < STATE_BYTES_MAX
        told = {(record.request_id, record.agent_id): record for record in history.records}
        assert len(told) == len(history.records)
        for key, text in self.answered.items():
            assert told[key].agent_text == text, "an agent's text is not in the history"
        open_requests = {(turn.request_id, turn.holder) for turn in chat.state.open_turns}
        # An agent that answered before it was given the request has had its one answer.
        open_requests -= set(self.answered)
        assert open_requests <= {key for key, record in told.items() if record.is_open}
        positions = [record.position for record in history.records]
        assert positions == sorted(positions), "the history is out of order"


def _holder_of(chat: Conversation, request: str) -> str:
    return chat.known[request].holder if request in chat.known else "ada"


def _after(chat: Conversation, seconds: int | None) -> int | None:
    """Return a time in the future, even after the clock was put back."""
    now_us = max(chat.now_us, chat.state.update_us if chat.state else 0)
    return None if seconds is None else now_us + seconds * SECOND_US


def _outcome(step: Answer) -> Outcome:
    match step.outcome:
        case "follow_up":
            return FollowUp(None if step.timeout_s is None else step.timeout_s * SECOND_US)
        case "complete":
            return Complete(summary="done")
        case "handoff":
            return HandOff(step.target, mode=step.mode, reason="can you help")
        case "approval_needed":
            return AskApproval(prompt="pay?")
        case "failure":
            return Fail(message="no")
        case _:
            return Proceed()


def play_history(tape: bytes) -> Counter[str]:
    """Play a history and check it; return the results of its steps."""
    choices, steps = draw_history(tape)
    actors = Actors(choices)
    with told(*choices, *steps):
        for step in steps:
            actors.play(step)
        actors.check_whole()
    return actors.outcomes


@contextmanager
def told(*drawn: object) -> Iterator[None]:
    """Print what was drawn and the seed of the run with a failure."""
    try:
        yield
    except Exception as error:
        error.add_note("\n".join((f"ROUTING_SEED={SEED}", *map(str, drawn))))
        raise


def tapes(steps: int) -> st.SearchStrategy[bytes]:
    """Return the strategy for histories of so many steps."""
    return st.binary(min_size=tape_bytes(steps), max_size=tape_bytes(steps))


SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)


@pytest.mark.timeout(300)
@seed(SEED)
@settings(max_examples=400, print_blob=True, suppress_health_check=SLOW)
@given(tape=tapes(STEPS_MAX))
def test_nothing_that_never_happens_is_in_a_random_history(tape):
    """Agents are removed and added, stickiness is switched, the clock is put back in between."""
    play_history(tape)


@pytest.mark.timeout(300)
@seed(SEED)
@settings(max_examples=100, print_blob=True, suppress_health_check=SLOW)
@given(tape=tapes(STEPS_MAX), erased_at=st.integers(1, STEPS_MAX - 1))
def test_erased_session_takes_nothing_more_whatever_was_going_on(tape, erased_at):
    """Open turns, a paused task, interrupted agents: everything is gone."""
    choices, steps = draw_history(tape)
    actors = Actors(choices)
    with told(*choices, *steps):
        for step in (PLAIN, *steps[:erased_at]):
            actors.play(step)
        chat = actors.chat
        chat.do(Erase("asked for"))
        erased = chat.state
        for step in (PLAIN, *steps[erased_at:]):
            with suppress(RoutingError):
                actors._play(step)
            assert chat.state is erased, step
        with pytest.raises(RoutingError) as told_so:
            chat.says()
        assert told_so.value.reason is Reason.SESSION_ERASED
        for nothing in (Erase("again"), Expire()):
            assert not chat.do(nothing).events
        assert chat.view() is erased
        assert next_due_us(erased, chat.registry) is None


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_nothing_that_never_happens_is_in_ten_thousand_histories():
    """The long version, which also checks that every kind of answer was seen."""
    total: Counter[str] = Counter()
    played = 0

    @seed(SEED)
    @settings(max_examples=10_000, print_blob=True, suppress_health_check=SLOW, database=None)
    @given(tape=tapes(STEPS_MAX))
    def run(tape):
        nonlocal played
        played += 1
        total.update(play_history(tape))

    run()
    print(f"ROUTING_SEED={SEED}: {played} histories, {sum(total.values())} steps: {dict(total)}")  # noqa: T201
    assert played >= 10_000
    assert {reason.value for reason in REFUSALS} - {"UNKNOWN_SESSION"} <= set(total)
    assert {status.value for status in OutcomeStatus} <= set(total)


@pytest.mark.timeout(300)
@seed(SEED)
@settings(max_examples=3000, print_blob=True, suppress_health_check=SLOW)
@given(
    tape=st.binary(
        min_size=REGISTRY_BYTES + SESSION_BYTES, max_size=REGISTRY_BYTES + SESSION_BYTES
    ),
    waited_s=st.integers(-100, 200),
    stickiness=st.sampled_from((True, True, True, False)),
)
def test_plain_message_goes_where_the_rules_say(tape, waited_s, stickiness):
    """Any storable session, compared with the second implementation of the rules."""
    registry = draw_registry(Tape(tape[:REGISTRY_BYTES]))
    state = draw_session(Tape(tape[REGISTRY_BYTES:]), registry)
    now_us = START_US + waited_s * SECOND_US
    with told(registry, state):
        check_choice(state, registry, now_us, stickiness=stickiness)


BEFORE_TOPICS = {
    RouteReason.STICKINESS_DISABLED,
    RouteReason.AGENT_UNAVAILABLE,
    RouteReason.AWAITING_APPROVAL,
    RouteReason.EXPIRED,
}


def check_topic(
    reference: Reference,
    expected: Expected,
    about: About | None,
    decision: Decision,
    *,
    stickiness: bool,
) -> bool:
    """Assert that topics follow the reference; return whether they took the message."""
    what = ""
    if stickiness and expected.reason not in BEFORE_TOPICS:
        what = reference.topic(about)
    how, _, agent_id = what.partition(" ")
    offered = decision.suggestion.agent_id if decision.suggestion else ""
    assert offered == (agent_id if how == "suggest" else "")
    if how != "auto":
        return False
    assert decision.dispatch is not None
    assert decision.dispatch.agent_id == agent_id
    assert decision.dispatch.reason is RouteReason.TOPIC_SWITCH
    return True


def opinion_of(about: About, suggestion_id: str) -> TopicOpinion:
    """Return what the service passes to a decision."""
    return TopicOpinion(((about.agent_id, about.confidence),), about.stay, "test-1", suggestion_id)


@pytest.mark.timeout(300)
@seed(SEED)
@settings(max_examples=2000, print_blob=True, suppress_health_check=SLOW)
@given(
    tape=st.binary(
        min_size=REGISTRY_BYTES + SESSION_BYTES + STEP_BYTES,
        max_size=REGISTRY_BYTES + SESSION_BYTES + STEP_BYTES,
    ),
    waited_s=st.integers(-100, 200),
)
def test_topic_does_what_the_rules_say(tape, waited_s):
    """Any storable session and any verdict, compared with the second implementation."""
    registry = draw_registry(Tape(tape[:REGISTRY_BYTES]))
    if registry.double_text_rejects:
        registry = replace(registry, double_text_rejects=False)
    state = draw_session(Tape(tape[REGISTRY_BYTES:-STEP_BYTES]), registry)
    about = draw_about(Tape(tape[-STEP_BYTES:]))
    now_us = START_US + waited_s * SECOND_US
    with told(registry, state, about):
        reference = Reference(state, registry, now_us)
        expected = reference.expects(stickiness=True)
        command = RouteMessage(uuid7(99), "hello", uuid7(98))
        facts = Facts({TopicVerdict: about and opinion_of(about, uuid7(97))})
        decided = decide(state, command, registry, now_us, session_id=SESSION_ID, facts=facts)
        check_change(state, command, decided, registry, facts)
        check_offer(command, decided, registry)
        check_topic(reference, expected, about, decided.decision, stickiness=True)


def check_choice(state: SessionState, registry: Registry, now_us: int, *, stickiness: bool) -> None:
    """Assert that a plain message goes where the reference says."""
    expected = Reference(state, registry, now_us).expects(stickiness=stickiness)
    command = RouteMessage(
        uuid7(99), "hello", uuid7(98), literal_text=True, stickiness_enabled=stickiness
    )
    if registry.double_text_rejects:
        registry = replace(registry, double_text_rejects=False)
    decided = decide(state, command, registry, now_us, session_id=SESSION_ID)
    dispatch, after = decided.decision.dispatch, decided.state
    assert (dispatch.agent_id, dispatch.reason) == (expected.agent_id, expected.reason)
    assert after.active_id == expected.active
    assert [frame.agent_id for frame in after.stack] == expected.stack
    assert (after.active is not None and after.active.locked) == expected.locked
