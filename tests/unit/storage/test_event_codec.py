"""Stored bytes: readable forever, checked for damage, and small."""

from __future__ import annotations

import msgspec
import pytest

from routing_service.core import events as ev
from routing_service.core.events import MessageSaid, NoteAdded, WaitBegun
from routing_service.core.session import Approval, OpenTurn, SessionState, Task, Tenure
from routing_service.core.vocabulary import (
    ApprovalDecision,
    HandoffMode,
    Initiator,
    OutcomeKind,
    OutcomeStatus,
    RouteReason,
    TaskStatus,
)
from routing_service.storage.event_codec import (
    COMPRESS_FROM_BYTES,
    decode_change,
    decode_events,
    decode_state,
    encode_events,
    encode_state,
)
from routing_service.storage.store import SchemaTooNew, StoreCorrupt

TASK = "0198a6c0-0000-7000-8000-000000000001"
ROOT = "0198a6c0-0000-7000-8000-000000000002"
CHILD = "0198a6c0-0000-7000-8000-000000000003"

EVENTS: list[ev.Event] = [
    ev.SessionStarted(ev.Profile("ana", "es-MX", "web", ("plan:premium",))),
    ev.ProfileUpdated(ev.Profile(locale="en")),
    ev.TaskCreated(TASK, expire_us=7, metadata={"order": "17"}),
    ev.MessageRouted(
        ROOT,
        TASK,
        "coordinator",
        RouteReason.NO_ACTIVE_AGENT,
        text="¿IVA? \N{GRINNING FACE}",
        items=(ev.Item("image/png", data=b"\x00\xff"), ev.Item("text/plain", text="t")),
        metadata={"a": "b"},
    ),
    ev.TurnCompleted(
        ROOT,
        ROOT,
        TASK,
        "coordinator",
        OutcomeKind.HANDOFF,
        OutcomeStatus.APPLIED,
        text="warm",
        steps=(ev.Step("search", "tool", "in", "out", 1, 2),),
    ),
    ev.AgentHandedOff(
        "coordinator",
        "vat",
        Initiator.SUPERVISOR,
        HandoffMode.TRANSFER,
        RouteReason.SUPERVISOR_HANDOFF,
        context={"amount": 1.5, "deep": {"list": [None, True, "x"]}},
        turn_request_id=ROOT,
        child_request_id=CHILD,
        root_request_id=ROOT,
        dispatches=True,
    ),
    ev.LockEngaged("vat", 99, ROOT),
    ev.LockReleased("vat", "timeout"),
    ev.AgentCleared("vat", "command", "why"),
    ev.StickinessExpired("vat", 5),
    ev.TimePassed(7, expired=True),
    ev.SwitchSuggested(CHILD, "payroll", "vat", ROOT, 0.9, "model-1"),
    ev.SwitchAnswered(CHILD, "payroll", "vat", accepted=True),
    ev.SessionErased("asked for"),
    ev.TurnAbandoned(CHILD, ROOT, "vat", "limit"),
    ev.MessageQueued(CHILD, TASK, "and then?", metadata={"a": "b"}, inbox=True),
    ev.MessageDequeued(CHILD, "routed"),
    ev.TaskParked(TASK, 2, "paused", "vat"),
    ev.TaskForegrounded(TASK, "vat", "freed", locked=True),
    ev.StrandChosen(TASK),
    ev.Claimed("desk", "bea", 99, "cem"),
    ev.ClaimReleased("desk", "bea", "timeout"),
    ev.TurnAnswered(ROOT, ROOT, "desk", CHILD),
    WaitBegun("desk", "vat"),
    MessageSaid(CHILD, ROOT, TASK, "desk", "One moment.", "bea"),
    NoteAdded(CHILD, TASK, "desk", "bea", "Called twice.", 9),
    ev.TurnExtended(CHILD, ROOT, "vat", 99),
    ev.StepsReported(CHILD, ROOT, TASK, "vat", 2, 1, (ev.Step("search", "tool", "in", "out"),), 9),
    ev.CommandHandled("status", "active", "/status", "vat"),
    ev.TaskCompleted(TASK, "vat", "done"),
    ev.TaskFailed(TASK, "vat", "failed"),
    ev.TaskPaused(TASK, ROOT, "vat", "Refund?"),
    ev.TaskResumed(TASK, ROOT, "vat", ApprovalDecision.REJECT, CHILD, ROOT, 3, "no"),
    ev.TaskCancelled(TASK, "reset"),
    ev.ApprovalRequested(TASK, ROOT, "vat", "role:treasurer", 2, 99, {"amount": 40.0}),
    ev.ApprovalVoted(TASK, ROOT, "bea", "fine"),
    ev.ApprovalDecided(TASK, ROOT, ApprovalDecision.APPROVE, "cai", 2, 2),
    ev.ApprovalWithdrawn(TASK, ROOT, "command", was_shown=True),
    ev.ApprovalExpired(TASK, ROOT),
    # What a moved conversation adds to events that there were before.
    ev.TurnAbandoned(CHILD, ROOT, "vat", "limit", exact="overtaken"),
    ev.AgentHandedOff(
        "vat",
        "payroll",
        Initiator.OPERATOR,
        HandoffMode.TRANSFER,
        RouteReason.AGENT_HANDOFF,
        turn_request_id=ROOT,
        root_request_id=ROOT,
        dispatches=True,
        to_person=True,
        along=True,
    ),
    ev.MessageRouted(
        CHILD, TASK, "payroll", RouteReason.STICKY, handoff_revision=3, continues=ROOT
    ),
    ev.TurnCompleted(
        ROOT,
        ROOT,
        TASK,
        "vat",
        OutcomeKind.PROCEED,
        OutcomeStatus.STORED_ONLY,
        next_revision=4,
    ),
    MessageSaid(CHILD, "", TASK, "vat", "Payroll helps you.", "bea", Initiator.OPERATOR),
]

# In the format of the first release, never changed: a release that cannot read this loses its
# users' sessions.
GOLDEN_EVENTS = (
    b'{"v":1,"events":[{"kind":"session_started","profile":{"user_id":"ana","locale":"es"}},'
    b'{"kind":"task_created","task_id":"0198a6c0-0000-7000-8000-000000000001"},'
    b'{"kind":"message_routed","request_id":"0198a6c0-0000-7000-8000-000000000002",'
    b'"task_id":"0198a6c0-0000-7000-8000-000000000001","agent_id":"coordinator",'
    b'"reason":"no_active_agent","text":"hola"}],"active":["","",""],"user_id":"ana"}'
)
GOLDEN_STATE = (
    b'{"v":1,"state":{"session_id":"chat-1","revision":3,"create_us":1,"update_us":5,'
    b'"owner":"ana","active":{"agent_id":"vat","locked":true,"lock_expire_us":99},'
    b'"epoch":1,"newest_turn":"0198a6c0-0000-7000-8000-000000000002",'
    b'"task":{"task_id":"0198a6c0-0000-7000-8000-000000000001","status":"running",'
    b'"create_us":1,"update_us":5},"turns_by_agent":{"vat":1}}}'
)


def test_every_event_survives_the_round_trip():
    """A changed event would make a replay wrong."""
    kinds = {type(event) for event in EVENTS}
    assert kinds == set(ev.Event.__args__), "a kind of event is missing here"
    assert decode_events(encode_events(EVENTS)) == EVENTS


def test_state_with_an_approval_is_refused_by_a_release_that_would_drop_its_rule():
    """It would store the state without votes and time; other states keep the first version."""
    plain = SessionState(session_id="chat-1", revision=1, create_us=1, update_us=1)
    assert encode_state(plain).startswith(b'{"v":1,')
    ruled = SessionState(
        session_id="chat-1",
        revision=1,
        create_us=1,
        update_us=1,
        approval=Approval("anyone", needs=2, expire_us=9, voters=("a",)),
    )
    assert encode_state(ruled).startswith(b'{"v":2,')
    assert decode_state(encode_state(ruled)) == ruled


def test_who_was_active_and_who_called_are_kept_beside_the_events():
    """The audit and the watchers need them without folding the session."""
    stored = decode_change(
        encode_events(EVENTS[:2], ["", "vat"], user_id="ana", registry_version="7")
    )
    assert (stored.active, stored.user_id, stored.registry_version) == (["", "vat"], "ana", "7")


def test_bytes_of_the_first_release_are_read():
    """Golden bytes: the stored format is stable."""
    events = decode_events(GOLDEN_EVENTS)
    assert [type(event).__name__ for event in events] == [
        "SessionStarted",
        "TaskCreated",
        "MessageRouted",
    ]
    assert events[2].text == "hola"
    state = decode_state(GOLDEN_STATE)
    assert state.active == Tenure("vat", locked=True, lock_expire_us=99)
    assert state.task == Task(TASK, TaskStatus.RUNNING, 1, 5)


def test_fields_of_a_newer_release_are_skipped():
    """During a roll-out the older replica reads the newer one's data."""
    newer = msgspec.json.decode(GOLDEN_EVENTS)
    newer["later"] = 1
    newer["events"][0]["later"] = {"x": 1}
    assert decode_events(msgspec.json.encode(newer)) == decode_events(GOLDEN_EVENTS)


@pytest.mark.parametrize("change", [{"v": 2}, {"events": [{"kind": "moon_landed"}]}])
def test_a_newer_form_is_told_from_damage(change: dict[str, object]):
    """Another replica may read it: UNAVAILABLE, never DATA_LOSS."""
    newer = {**msgspec.json.decode(GOLDEN_EVENTS), **change}
    with pytest.raises(SchemaTooNew):
        decode_events(msgspec.json.encode(newer))


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"null", b'{"v":1}', b"\xff\xfe", GOLDEN_EVENTS[:-9], b'{"v":"x","events":[]}'],
)
def test_damaged_events_are_corrupt(data: bytes):
    """Only that session is lost, and the error says so."""
    with pytest.raises(StoreCorrupt):
        decode_events(data)


@pytest.mark.parametrize("data", [b"", b"z", b"zgarbage", b"{}", GOLDEN_STATE[:-3]])
def test_damaged_states_are_corrupt(data: bytes):
    """A partly written state must not be accepted."""
    with pytest.raises(StoreCorrupt):
        decode_state(data)


def test_a_state_of_a_newer_release_is_too_new():
    """The same as for events."""
    with pytest.raises(SchemaTooNew):
        decode_state(GOLDEN_STATE.replace(b'"v":1', b'"v":9'))


def test_large_states_are_compressed_and_come_back():
    """Sixteen open turns repeat their field names; the stored state stays within its bound."""
    turns = tuple(
        OpenTurn(
            f"0198a6c0-0000-7000-8000-{place:012d}",
            f"0198a6c0-0000-7000-8000-{place:012d}",
            place,
            TASK,
            "agent-" + "x" * 100,
            1,
            ("agent-" + "x" * 100,),
            RouteReason.STICKY,
            1,
            place,
        )
        for place in range(16)
    )
    state = SessionState("chat-1", 1, 1, 1, open_turns=turns)
    data = encode_state(state)
    assert len(data) < COMPRESS_FROM_BYTES
    assert data[:1] == b"z"
    assert decode_state(data) == state
